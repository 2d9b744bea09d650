"""print, printf and assert_, and what is evaluated at compile time: static_*, ensure_constant."""

import re

import cuda.tile as ct
import numpy as np

from .building import ones, zeros
from .dtypes import FLOATS, INTEGERS, TILE
from .harness import Case

CASES = []
COMPILER = ("compiler",)


def add(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


def refuse(name, kernel, match="", error=ct.TileTypeError, needs=()):
    CASES.append(Case(name, kernel, (1,), lambda rng: [zeros(16)], error=error, match=match, needs=needs))


def prints(name, kernel, text, args=lambda rng: []):
    CASES.append(Case(name, kernel, (1,), args, expected=rf"\A{re.escape(text)}\Z"))


# --- print -------------------------------------------------------------------------------------------------------


def print_full(dtype, value):
    @ct.kernel
    def kernel():
        print(ct.full((2,), value, dtype))

    return kernel


for dtype in INTEGERS:
    prints(f"print/tile-{dtype}", print_full(TILE[dtype], 100), "[100, 100]\n")
for dtype in ("int8", "int32", "int64"):
    prints(f"print/negative-{dtype}", print_full(TILE[dtype], -7), "[-7, -7]\n")
for dtype in FLOATS:
    prints(f"print/tile-{dtype}", print_full(TILE[dtype], 1.5), "[1.500000, 1.500000]\n")
prints("print/tile-bool", print_full(ct.bool_, True), "[1, 1]\n")
prints("print/uint64_above_int64", print_full(ct.uint64, 2**63), "[9223372036854775808, 9223372036854775808]\n")
prints("print/large_float64", print_full(ct.float64, 2.0**50), "[1125899906842624.000000, 1125899906842624.000000]\n")


@ct.kernel
def print_arange():
    print(ct.arange(4, dtype=ct.int32))


@ct.kernel
def print_2d():
    print(ct.reshape(ct.arange(8, dtype=ct.int32), (2, 4)))


@ct.kernel
def print_3d():
    print(ct.reshape(ct.arange(8, dtype=ct.int32), (2, 2, 2)))


@ct.kernel
def print_scalar():
    print(ct.full((), 42, ct.int32))


@ct.kernel
def print_one_element():
    print(ct.full((1, 1), 42, ct.int32))


@ct.kernel
def print_several():
    tile = ct.arange(2, dtype=ct.int32)
    print("tile:", tile, "twice:", tile * 2)


@ct.kernel
def print_sep_end():
    print(ct.bid(0), "a", "b", sep="-", end="!")
    ct.print(ct.bid(0) + 1, "c", sep="")


@ct.kernel
def print_nothing():
    print()


@ct.kernel
def print_constant():
    n = 3
    print("n =", n, n + 1, True, None)


@ct.kernel
def print_f_string():
    i = ct.bid(0) + 5
    ct.print(f"i={i}")
    print(f"{i} and {i + 1}", f"{i:4d}|")


@ct.kernel
def print_format():
    x = ct.full((), 2.71828, ct.float32)
    i = ct.full((), 42, ct.int32)
    print(f"{x:.1f} {x:8.3f} {x:+.2f} {x:<8.2f}| {x:08.2f} {x:.2e}")
    print(f"{i:5} {i:<5}| {i:05d} {i:+d} {i:x} {i:X} {i:#x} {i:o}")


@ct.kernel
def print_format_tile():
    print(f"{ct.full((2,), 2.5, ct.float32):.1f}")


@ct.kernel
def print_f_string_of_constant():
    n = 4
    name = "rows"
    print(f"{n} {name} of {ct.bid(0)}")


@ct.kernel
def print_percent():
    print("100% of", ct.bid(0), "%d")


@ct.kernel
def print_tuple():
    tile = ct.zeros(2, dtype=ct.int32)
    print((tile, tile + 1))


@ct.kernel
def print_nested_tuple():
    print((ct.bid(0), (1, 2)))


@ct.kernel
def print_in_order():
    for i in range(3):
        print(i)
    print("done")


@ct.kernel
def print_once():
    if ct.bid(0) == 2:
        print("block", ct.bid(0))


@ct.kernel
def print_loaded(x):
    print(ct.load(x, (0,), (4,)))


@ct.kernel
def print_shape(x):
    print(x.shape[0], x.ndim)


@ct.kernel
def print_typed_constants():
    # The compiler knows them, so they are in its text in Python's words; in an f-string the run formats them.
    half = ct.float16(2.5)
    print(half, ct.bool_(True), ct.float64(0.1), -ct.int8(5), half * 2)
    print((half, ct.int16(5)), str(half), repr(ct.bool_(False)))
    print(f"{half} {ct.bool_(True)}")


@ct.kernel
def print_float_constants():
    eps = 0.1
    print(eps, (eps, 2), "eps " + str(eps), repr(eps), ", ".join((str(eps), str(3))))


@ct.kernel
def print_tuple_of_words():
    words = ("rows", ct.float32, 1)
    print(words, ("a",), str(words), f"{words}")
    print("a", "b")


for name, kernel, text in [
    ("typed_constants", print_typed_constants, "2.5 True 0.10000000149011612 -5 5.0\n(2.5, 5) 2.5 False\n2.500000 1\n"),
    (
        "float_constants",
        print_float_constants,
        "0.10000000149011612 (0.10000000149011612, 2) eps 0.10000000149011612 0.10000000149011612 "
        "0.10000000149011612, 3\n",
    ),
    (
        "tuple_of_words",
        print_tuple_of_words,
        "('rows', <DType 'float32'>, 1) ('a',) ('rows', <DType 'float32'>, 1) ('rows', <DType 'float32'>, 1)\na b\n",
    ),
    ("arange", print_arange, "[0, 1, 2, 3]\n"),
    ("2d", print_2d, "[[0, 1, 2, 3], [4, 5, 6, 7]]\n"),
    ("3d", print_3d, "[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]\n"),
    ("scalar", print_scalar, "42\n"),
    ("one_element", print_one_element, "[[42]]\n"),
    ("several_arguments", print_several, "tile: [0, 1] twice: [0, 2]\n"),
    ("sep_and_end", print_sep_end, "0-a-b!1c\n"),
    ("nothing", print_nothing, "\n"),
    ("f_string", print_f_string, "i=5\n5 and 6    5|\n"),
    ("format_spec_of_a_tile", print_format_tile, "[2.5, 2.5]\n"),
    (
        "format_specs",
        print_format,
        "2.7    2.718 +2.72 2.72    | 00002.72 2.72e+00\n   42 42   | 00042 +42 2a 2A 0x2a 52\n",
    ),
    ("f_string_of_constants", print_f_string_of_constant, "4 rows of 0\n"),
    ("constants", print_constant, "n = 3 4 True None\n"),
    ("percent_sign", print_percent, "100% of 0 %d\n"),
    ("tuple", print_tuple, "([0, 0], [1, 1])\n"),
    ("nested_tuple", print_nested_tuple, "(0, (1, 2))\n"),
    ("in_program_order", print_in_order, "0\n1\n2\ndone\n"),
]:
    prints(f"print/{name}", kernel, text)
CASES.append(Case("print/from_one_block", print_once, (5,), lambda rng: [], expected=r"\Ablock 2\n\Z"))
prints("print/loaded", print_loaded, "[3, 4, 5, 6]\n", lambda rng: [np.arange(3, 9, dtype=np.int32)])
prints("print/shape", print_shape, "6 1\n", lambda rng: [np.arange(6, dtype=np.int32)])


@ct.kernel
def printf_integers():
    tile = ct.full((), 42, ct.int32)
    ct.printf("value: %d\n", tile)
    ct.printf("[%5d] [%-5d] [%05d] [%x] [%i]\n", tile, tile, tile, tile, tile)


@ct.kernel
def printf_floats():
    x = ct.full((), 1.5, ct.float32)
    ct.printf("%f %.1f %8.3f %e %g\n", x, x, x, x, x)


@ct.kernel
def printf_percent():
    ct.printf("%d%%\n", ct.bid(0))


@ct.kernel
def printf_plain():
    ct.printf("hello\n")


for name, kernel, text in [
    ("integers", printf_integers, "value: 42\n[   42] [42   ] [00042] [2a] [42]\n"),
    ("floats", printf_floats, "1.500000 1.5    1.500 1.500000e+00 1.5\n"),
    ("percent_sign", printf_percent, "0%\n"),
    ("no_argument", printf_plain, "hello\n"),
]:
    prints(f"printf/{name}", kernel, text)


def printf_with(format, *values):
    if len(values) == 0:

        @ct.kernel
        def kernel(x):
            ct.printf(format)

    elif len(values) == 1:
        value = values[0]

        @ct.kernel
        def kernel(x):
            ct.printf(format, ct.full((), value, DTYPE))
    else:
        value = values[0]

        @ct.kernel
        def kernel(x):
            ct.printf(format, ct.full((), value, DTYPE), ct.full((), value, DTYPE))

    DTYPE = ct.float32 if values and isinstance(values[0], float) else ct.int32
    return kernel


for name, kernel, match in [
    ("too_few_arguments", printf_with("%d %d\n", 1), "Not enough arguments"),
    ("too_many_arguments", printf_with("%d\n", 1, 2), "Too many arguments"),
    ("no_argument_for_a_specifier", printf_with("%d\n"), "Not enough arguments"),
    ("integer_format_for_a_float", printf_with("%d\n", 1.5), "unexpected type"),
    ("float_format_for_an_integer", printf_with("%f\n", 1), "unexpected type"),
    ("string_format", printf_with("%s\n", 1), "not supported"),
    ("pointer_format", printf_with("%p\n", 1), "not supported"),
    ("broken_format", printf_with("%y\n", 1), "Invalid format"),
]:
    refuse(f"printf/{name}_refused", kernel, match)


@ct.kernel
def printf_run_time_format(x):
    ct.printf(ct.bid(0))


@ct.kernel
def print_float_spec_for_integer(x):
    print(f"{ct.bid(0):.2f}")


@ct.kernel
def print_integer_spec_for_float(x):
    print(f"{ct.full((), 1.0, ct.float32):d}")


@ct.kernel
def print_unknown_keyword(x):
    ct.print(ct.bid(0), file=None)


for name, kernel, match in [
    ("printf/run_time_format", printf_run_time_format, "string"),
    ("print/float_spec_for_an_integer", print_float_spec_for_integer, "incompatible"),
    ("print/integer_spec_for_a_float", print_integer_spec_for_float, "incompatible"),
    ("print/unknown_keyword", print_unknown_keyword, ""),
]:
    refuse(f"{name}_refused", kernel, match)

# --- assert_ -----------------------------------------------------------------------------------------------------


@ct.kernel
def assert_holds(x, y):
    tile = ct.load(x, (0,), (8,))
    ct.assert_(tile > 0)
    ct.assert_(tile < 100, "a message")
    ct.assert_(ct.bid(0) == 0)
    ct.store(y, (0,), tile)


add(
    "assert/a_true_condition_changes_nothing",
    assert_holds,
    (1,),
    lambda rng: [np.arange(1, 9, dtype=np.int32), zeros(8)],
    expected=lambda x, y: {1: x},
)


@ct.kernel
def assert_integer(x):
    ct.assert_(ct.load(x, (0,), (8,)))


@ct.kernel
def assert_message(x):
    ct.assert_(ct.load(x, (0,), (8,)) > 0, 5)


refuse("assert/integer_condition_refused", assert_integer, "bool")
refuse("assert/message_not_a_string_refused", assert_message, "string")

# --- static_assert -----------------------------------------------------------------------------------------------


@ct.kernel
def static_assert_holds(y, n: ct.Constant[int]):
    tile = ct.ones((n, 2), ct.float16)
    ct.static_assert(n == 4)
    ct.static_assert(tile.shape == (4, 2), "not evaluated: " + undefined_name)  # noqa: F821
    ct.static_assert(tile.dtype == ct.float16 and tile.ndim == 2)
    ct.static_assert(all(size in (2, 4) for size in tile.shape))
    ct.static_assert(isinstance(n, int))
    ct.store(y, (0,), n)


add(
    "static_assert/true_conditions_vanish",
    static_assert_holds,
    (1,),
    lambda rng: [zeros(1), 4],
    expected=lambda y, n: {0: [4]},
)


@ct.kernel
def static_assert_false(x):
    ct.static_assert(x.ndim == 2)


@ct.kernel
def static_assert_message(x):
    tile = ct.ones((4,), dtype=ct.int32)
    ct.static_assert(tile.dtype == ct.float32, f"wanted float32, got {tile.dtype}")


@ct.kernel
def static_assert_object(x):
    ct.static_assert(False, ct.ones((4,), dtype=ct.int32).shape)


@ct.kernel
def static_assert_none(x):
    ct.static_assert(False, None)


@ct.kernel
def static_assert_run_time(x):
    i = ct.bid(0)
    ct.static_assert(i == 0)


@ct.kernel
def static_assert_number(x):
    ct.static_assert(1)


@ct.kernel
def static_assert_in_branch(x):
    if x.ndim == 1:
        ct.static_assert(False, "reached")


@ct.kernel
def static_assert_dead_branch(y):
    if y.ndim == 2:
        ct.static_assert(False, "not reached")
    ct.store(y, (0,), 1)


for name, kernel, match, error in [
    ("false", static_assert_false, "Static assertion failed", ct.TileStaticAssertionError),
    ("message", static_assert_message, "failed: wanted float32, got int32", ct.TileStaticAssertionError),
    ("no_message_for_none", static_assert_none, "Static assertion failed", ct.TileStaticAssertionError),
    ("in_a_taken_branch", static_assert_in_branch, "failed: reached", ct.TileStaticAssertionError),
    ("run_time_condition", static_assert_run_time, "compile-time constant", ct.TileTypeError),
    ("condition_not_boolean", static_assert_number, "boolean", ct.TileTypeError),
]:
    refuse(f"static_assert/{name}_refused", kernel, match, error)
add(
    "static_assert/branch_discarded_at_compile_time",
    static_assert_dead_branch,
    (1,),
    lambda rng: [zeros(1)],
    expected=lambda y: {0: [1]},
)

# --- static_eval -------------------------------------------------------------------------------------------------

TABLE = {"scale": 3, "bias": 4}


@ct.kernel
def static_eval_python(y, n: ct.Constant[int]):
    size = ct.static_eval(1 << (n - 1).bit_length())
    names = ct.static_eval(tuple(sorted(TABLE)))
    ct.static_assert(names == ("bias", "scale"))
    scale = ct.static_eval(TABLE["scale"] * len([i for i in range(n) if i % 2]))
    ct.store(y, (0,), ct.full((size,), scale, ct.int32))


@ct.kernel
def static_eval_selects(y, n: ct.Constant[int]):
    x = ct.arange(8, dtype=ct.int32)
    z = x * 10
    ct.store(y, (0,), ct.static_eval(x + 1 if n % 2 == 0 else z - 1))


@ct.kernel
def static_eval_shape(y, n: ct.Constant[int]):
    x = ct.ones((2, 4), ct.int32)
    total = ct.static_eval(x.shape[0] * x.shape[1])
    ct.store(y, (0,), ct.full((total,), n, ct.int32))


def power_of_two_from(n):
    size = 1
    while size < n:
        size *= 2
    return size


def rows_of(n):
    rows = []
    for i in range(n):
        rows.append(i * i)
    most = rows[-1]
    if most > 100:
        most = 100
    return most


def first_of(n, m):
    return n or m, n and m, not n


def narrower(dtype):
    return ct.int8 if dtype is ct.int32 and isinstance(dtype, ct.DType) else dtype


def label_of(n):
    return f"{n:.1f} {n > 2} {n!r}"


def kind_of(x):
    return f"{x}" + str(x) + repr(x)


@ct.kernel
def static_eval_loops(y, n: ct.Constant[int]):
    # What a compile-time expression calls runs by Python's rules: the results of its loops are constants.
    size = ct.static_eval(power_of_two_from(n))
    ct.static_assert(type(size) is int)
    ct.static_assert(first_of(n, 7) + first_of(0, "none") == (5, 7, False, "none", 0, True))
    ct.store(y, (0,), ct.full((size,), ct.static_eval(rows_of(n)), ct.int32))


@ct.kernel
def static_eval_words(y, n: ct.Constant[int]):
    x = ct.arange(8, dtype=ct.int32)
    ct.static_assert(narrower(x.dtype) is ct.int8)
    ct.static_assert(label_of(n) == f"{n}.0 True {n}")
    ct.static_assert(f"{x}" == str(x) == repr(x) == "<tile[int32, (8,)]>")
    ct.static_assert(kind_of(x) == "<tile[int32, (8,)]>" * 3)
    ct.store(y, (0,), x)


for name, kernel, n, expected in [
    ("loops_of_a_function", static_eval_loops, 5, np.full(8, 16)),
    ("words", static_eval_words, 5, np.arange(8)),
    ("python_of_constants", static_eval_python, 7, np.full(8, 9)),
    ("selects_an_expression_even", static_eval_selects, 2, np.arange(8) + 1),
    ("selects_an_expression_odd", static_eval_selects, 3, np.arange(8) * 10 - 1),
    ("shape_arithmetic", static_eval_shape, 5, np.full(8, 5)),
]:
    add(
        f"static_eval/{name}",
        kernel,
        (1,),
        lambda rng, n=n: [zeros(8), n],
        expected=lambda y, n, expected=expected: {0: expected},
    )


@ct.kernel
def static_eval_gather(x):
    ct.static_eval(ct.gather(x, 0))


@ct.kernel
def static_eval_walrus(x):
    ct.static_eval(n := 4)  # noqa: F841


@ct.kernel
def static_eval_raises(x):
    ct.static_eval(int("four"))


@ct.kernel
def static_eval_two_arguments(x):
    ct.static_eval(1, 2)


@ct.kernel
def static_eval_unsupported_result(x):
    s = ct.static_eval(object())
    ct.store(x, (0,), s)


for name, kernel, match, error, needs in [
    ("run_time_operation", static_eval_gather, "", ct.TileError, COMPILER),
    ("assignment", static_eval_walrus, "", ct.TileSyntaxError, COMPILER),
    ("exception", static_eval_raises, "four", ct.TileError, ()),
    ("two_arguments", static_eval_two_arguments, "single expression", ct.TileSyntaxError, COMPILER),
    ("unsupported_result", static_eval_unsupported_result, "", ct.TileTypeError, ()),
]:
    refuse(f"static_eval/{name}_refused", kernel, match, error, needs)

# --- static_iter -------------------------------------------------------------------------------------------------


@ct.kernel
def static_iter_doc(y):
    tile = ct.zeros(4, dtype=ct.int32)
    size = 4
    states = ()
    for i in ct.static_iter(range(size)):
        states += (tile + i,)
    total = ct.zeros(4, dtype=ct.int32)
    for i in ct.static_iter(range(size)):
        total = total * 10 + states[(i + 1) % size] + states[i]
    ct.store(y, (0,), total)


@ct.kernel
def static_iter_shapes(y):
    for i, size in ct.static_iter(enumerate((1, 2, 4))):
        tile = ct.ones((size,), ct.int32)
        ct.store(y, (i,), ct.sum(tile))


@ct.kernel
def static_iter_zip(y):
    for name, factor in ct.static_iter(zip(("a", "bb"), (3, 5))):
        i = ct.static_eval(len(name))
        ct.store(y, (i,), factor)


@ct.kernel
def static_iter_dictionary(y):
    total = 0
    for key, value in ct.static_iter(TABLE.items()):
        total += value * ct.static_eval(len(key))
    ct.store(y, (0,), total)


@ct.kernel
def static_iter_nested(y):
    for i in ct.static_iter(range(2)):
        for j in ct.static_iter(range(i, 2)):
            ct.store(y, (2 * i + j,), 10 * i + j + 1)


@ct.kernel
def static_iter_empty(y):
    for _ in ct.static_iter(()):
        ct.static_assert(False)
    ct.store(y, (0,), 1)


@ct.kernel
def static_iter_tiles(y):
    a, b = ct.arange(4, dtype=ct.int32), ct.full((4,), 7, ct.int32)
    total = ct.zeros((4,), ct.int32)
    for tile in ct.static_iter((a, b, a)):
        total += tile
    ct.store(y, (0,), total)


for name, kernel, expected in [
    ("states_in_a_tuple", static_iter_doc, [1353, 1353, 1353, 1353]),
    ("sizes_of_tiles", static_iter_shapes, [1, 2, 4, 0]),
    ("zip", static_iter_zip, [0, 3, 5, 0]),
    ("dictionary", static_iter_dictionary, [31, 0, 0, 0]),
    ("nested", static_iter_nested, [1, 2, 0, 12]),
    ("empty", static_iter_empty, [1, 0, 0, 0]),
    ("tiles", static_iter_tiles, [7, 9, 11, 13]),
]:
    add(
        f"static_iter/{name}",
        kernel,
        (1,),
        lambda rng: [zeros(4)],
        expected=lambda y, expected=expected: {0: expected},
    )


@ct.kernel
def static_iter_too_long(x):
    for i in ct.static_iter(range(1001)):
        ct.static_assert(i >= 0)


@ct.kernel
def static_iter_break(x):
    for i in ct.static_iter(range(4)):
        if i == 2:
            break


@ct.kernel
def static_iter_continue(x):
    for i in ct.static_iter(range(4)):
        if i == 2:
            continue


@ct.kernel
def static_iter_return(x):
    for i in ct.static_iter(range(4)):
        if i == 2:
            return


@ct.kernel
def static_iter_run_time(x):
    n = ct.bid(0)
    for i in ct.static_iter(range(n)):
        ct.store(x, (i,), 1)


@ct.kernel
def static_iter_not_iterable(x):
    for _ in ct.static_iter(4):
        pass


@ct.kernel
def static_iter_outside_for(x):
    items = ct.static_iter(range(4))
    ct.store(x, (0,), items)


for name, kernel, match, error, needs in [
    ("more_than_1000_iterations", static_iter_too_long, "iterations", ct.TileStaticEvalError, ()),
    ("break", static_iter_break, "Break", ct.TileSyntaxError, COMPILER),
    ("continue", static_iter_continue, "Continue", ct.TileSyntaxError, COMPILER),
    ("return", static_iter_return, "Return", ct.TileSyntaxError, COMPILER),
    ("run_time_range", static_iter_run_time, "", ct.TileError, COMPILER),
    ("not_iterable", static_iter_not_iterable, "", ct.TileTypeError, ()),
    ("outside_a_for", static_iter_outside_for, "for", ct.TileSyntaxError, COMPILER),
]:
    refuse(f"static_iter/{name}_refused", kernel, match, error, needs)

# --- static_exception and ensure_constant ------------------------------------------------------------------------


@ct.kernel
def static_exception_raised(x):
    raise ct.static_exception(ValueError("rows must be even"))


@ct.kernel
def static_exception_of_shape(x):
    tile = ct.ones((4, 2), ct.int32)
    if tile.shape[0] != tile.shape[1]:
        raise ct.static_exception(TypeError(f"not square: {tile.shape}"))


@ct.kernel
def static_exception_untaken(y):
    if y.ndim != 1:
        raise ct.static_exception(ValueError("one dimension, please"))
    ct.store(y, (0,), 1)


@ct.kernel
def plain_raise(x):
    raise ValueError("no")


@ct.kernel
def static_exception_elsewhere(x):
    ct.static_exception(ValueError("no"))


@ct.kernel
def static_exception_of_a_string(x):
    raise ct.static_exception("no")


@ct.kernel
def static_exception_at_run_time(x):
    if ct.bid(0) == 100:
        raise ct.static_exception(ValueError("branches are compiled, taken or not"))


for name, kernel, match, error, needs in [
    ("raised", static_exception_raised, r"ValueError: rows must be even", ct.StaticException, ()),
    ("with_values", static_exception_of_shape, r"TypeError: not square: \(4, 2\)", ct.StaticException, ()),
    ("in_a_run_time_branch", static_exception_at_run_time, "branches are compiled", ct.StaticException, COMPILER),
    ("plain_raise", plain_raise, "static_exception", ct.TileSyntaxError, COMPILER),
    ("outside_raise", static_exception_elsewhere, "raise", ct.TileSyntaxError, COMPILER),
    ("not_an_exception", static_exception_of_a_string, "", ct.TileError, ()),
]:
    refuse(f"static_exception/{name}_refused", kernel, match, error, needs)
add(
    "static_exception/in_a_branch_not_compiled",
    static_exception_untaken,
    (1,),
    lambda rng: [zeros(1)],
    expected=lambda y: {0: [1]},
)


@ct.kernel
def constants_ensured(y, n: ct.Constant[int]):
    if ct.ensure_constant(n > 2):
        size = ct.ensure_constant(n * 2)
        ct.store(y, (0,), ct.full((size,), 5, ct.int32))
    else:
        ct.static_assert(False)


@ct.kernel
def run_time_ensured(x):
    ct.ensure_constant(ct.bid(0))


@ct.kernel
def loop_variable_ensured(x):
    for i in range(4):
        ct.ensure_constant(i)


@ct.kernel
def shape_ensured(x):
    ct.ensure_constant(x.shape[0])


add(
    "ensure_constant/constant",
    constants_ensured,
    (1,),
    lambda rng: [ones(8), 4],
    expected=lambda y, n: {0: np.full(8, 5)},
)
for name, kernel in (
    ("block_index", run_time_ensured),
    ("loop_variable", loop_variable_ensured),
    ("shape_of_an_array", shape_ensured),
):
    refuse(f"ensure_constant/{name}_refused", kernel, "not a compile-time constant", ct.TileStaticAssertionError)
