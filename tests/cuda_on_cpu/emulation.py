"""Runs the package's CUDA C++ kernels on CPU tensors: a C++ compiler makes a library of the kernel and the emulator."""

import ctypes
import functools
import hashlib
import itertools
import re
import shutil
import struct
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import tilekit
from tilekit import backends, cuda_cpp, kernels
from tilekit.kernels import _cuda

FOLDER = Path(__file__).parent
COMPILER = shutil.which("g++")
OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fsanitize=alignment", "-fno-sanitize-recover=all")


@functools.cache
def library(source: str, defines: tuple[str, ...]):
    """All kernels of a source, as these definitions leave it: one for each is what takes long to compile."""
    common = dict(_cuda.headers())["common.cuh"].replace('#include "ptx.cuh"', '#include "emulator.h"')
    source = source.replace('#include "common.cuh"', "")
    preprocess = [COMPILER, "-E", "-P", "-x", "c++", *defines, "-"]
    text = subprocess.run(preprocess, input=source, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)", text)
    # Dynamic shared memory is one array of the emulator's.
    text = common.replace("#pragma once", "") + source.replace("extern __shared__", "extern")
    text += "\nstatic void** given;\n"
    for name in found:
        types = [p.type + "*" * p.is_pointer for p in cuda_cpp.parameters(source, name, defines)]
        arguments = ", ".join(f"*({kind}*)given[{i}]" for i, kind in enumerate(types))
        text += (
            f"static void {name}_of_one_thread() {{ {name}({arguments}); }}\n"
            f'extern "C" void run_{name}(unsigned blocks, unsigned count, void** arguments) {{\n'
            f"    given = arguments;\n    run_grid({name}_of_one_thread, blocks, count);\n}}\n"
        )
    content = repr((text, defines, OPTIONS, (FOLDER / "emulator.h").read_text()))
    folder = Path(tempfile.gettempdir()) / "tilekit-cuda-on-cpu"
    folder.mkdir(exist_ok=True)
    made = folder / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.so"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            (Path(work) / "kernel.cpp").write_text(text)
            command = [COMPILER, *OPTIONS, f"-I{FOLDER}", *defines, f"{work}/kernel.cpp", "-o", f"{work}/kernel.so"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            Path(f"{work}/kernel.so").rename(made)
    return ctypes.CDLL(str(made))


def launch(kernel: str, plan, *arrays) -> None:
    """As ``_cuda.launch``, on the CPU."""
    defines = _cuda.defines(plan, arrays[0].dtype)
    compiled = _cuda.compiled(kernel, plan, arrays[0].dtype)
    assert plan.shared_memory <= 227 * 1024
    values = [array.data_ptr() for array in arrays] + list(plan.arguments)
    (blocks,) = plan.grid
    emulate(_cuda.source(kernel), compiled, defines, blocks, plan.options["threads"], values)


def emulate(source: str, kernel: cuda_cpp.Kernel, defines, blocks: int, threads: int, values) -> None:
    """Run the kernel of that source on a grid of one dimension."""
    codes = "".join(code for code, _ in kernel._codes)
    packed = struct.pack("@" + codes, *values)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(buffer) + o for o in cuda_cpp._offsets(codes)))
    getattr(library(source, defines), f"run_{kernel.name}")(blocks, threads, pointers)


@contextmanager
def on_cpu(limits):
    """The backend "cuda" takes CPU tensors: its kernels are emulated, with the plans of a device of these limits.

    Yields a list to which each launch adds the name of its function and its plan.
    """
    launched = []

    def launch_noting(kernel, plan, *arrays):
        launched.append((plan.variant or kernel.replace(" ", "_"), plan))
        launch(kernel, plan, *arrays)

    with ExitStack() as stack:
        for kernel, part in itertools.product(kernels.NAMES, ("kernel", "backward")):
            if find_spec(name := f"tilekit.kernels.{kernel}.cuda_{part}"):
                stack.enter_context(mock.patch.object(import_module(name), "limits_of", lambda device: limits))
        stack.enter_context(mock.patch.object(_cuda, "launch", launch_noting))
        stack.enter_context(mock.patch.object(backends, "_require", lambda *_: None))
        stack.enter_context(tilekit.use_backend("cuda"))
        yield launched
