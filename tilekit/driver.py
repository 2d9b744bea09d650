"""Ask the NVIDIA driver what it supports and which GPU it sees, through its own library and nothing else.

A broken driver can hang or crash whoever calls it, so :mod:`tilekit.environment` runs this file in a process of its
own, and imports it only where CUDA works already.
"""

import ctypes
import json
import sys

_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute in cuda.h


def ask(library: str | None = None) -> dict:
    """``{}`` without a driver; else its CUDA version, the status of ``cuInit``, and the first GPU it shows."""
    try:
        driver = ctypes.CDLL(library or ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"))
    except OSError:
        return {}
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    answer = {"cuda": [number.value // 1000, number.value % 1000 // 10], "status": driver.cuInit(0)}
    if answer["status"] or driver.cuDeviceGetCount(ctypes.byref(number)) or not number.value:
        return answer
    name = ctypes.create_string_buffer(128)
    driver.cuDeviceGetName(name, len(name), 0)
    answer["gpu"] = name.value.decode(errors="replace")
    answer["compute_capability"] = []
    for attribute in (_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, 0)
        answer["compute_capability"].append(number.value)
    return answer


if __name__ == "__main__":
    print(json.dumps(ask(*sys.argv[1:])))
