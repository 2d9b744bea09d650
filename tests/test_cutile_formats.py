"""How kernels print numbers: C's printf, held against the C library's and against what NVIDIA's front end asks for."""

import ctypes
import io
import sys

import cuda.tile as ct
import numpy as np
import pytest

from tilekit import cutile_interpreter
from tilekit.cutile_interpreter import formats

NUMBERS = [0, 3, -7, 2**31 - 1, -(2**31)]
REALS = [0.0, -0.0, 1.5, -2.71828, 1e-5, 12345.678, 1e300, float("inf"), float("-inf")]
FLAGS = ["", "+", "-", " ", "#", "0", "-+", "0+", "#0", "8", "-8", "08", "+08", ".3", "8.3", "-8.3", "08.3", ".0"]


@pytest.mark.skipif(sys.platform == "win32", reason="C's library prints hexadecimal floats in its own way there")
@pytest.mark.parametrize("flags", FLAGS)
def test_numbers_look_as_c_prints_them(flags):
    buffer = ctypes.create_string_buffer(512)
    print_to = ctypes.CDLL(None).snprintf
    for kinds, values, dtype, as_c in (
        (formats.INTEGERS, NUMBERS, ct.int32, ctypes.c_int),
        (formats.FLOATS, REALS, ct.float64, ctypes.c_double),
    ):
        for kind in kinds:
            for value in values:
                print_to(buffer, len(buffer), f"%{flags}{kind}".encode(), as_c(value))
                assert formats.text(value, f"%{flags}{kind}", dtype) == buffer.value.decode(), (kind, value)


def test_narrow_and_wide_integers():
    assert formats.text(-1, "%x", ct.int8) == "ffffffff"
    assert formats.text(-1, "%llx", ct.int64) == "f" * 16
    assert formats.text(2**32 - 1, "%d", ct.uint32) == "-1"


@ct.kernel
def constants(n):
    print(1, 2.5, True, 0.1)
    print((1, 2.5, n), f"{(1, 2.5)}")
    print(f"{2.5} {True} {3} {2.5:8}|{n / 2:8.3}|{n:.3d}|{n:^5}|{-n:x}|{n / 2:a}")


def test_constants_and_f_strings():
    printed = io.StringIO()
    cutile_interpreter.launch(None, (1,), constants, (3,), output=printed)
    assert printed.getvalue().splitlines() == [
        "1 2.5 True 0.10000000149011612",
        "(1, 2.5, 3) (1, 2.5)",
        "2.500000 1 3 2.500000|   1.500|003|    3|fffffffd|0x1.8p+0",
    ]


@ct.kernel
def grouped(x):
    print(f"{ct.sum(ct.load(x, 0, 4)):,}")


def test_what_printf_cannot_do_is_refused():
    with pytest.raises(ValueError, match="unsupported format spec ','"):
        cutile_interpreter.launch(None, (1,), grouped, (np.zeros(4, np.int32),))
