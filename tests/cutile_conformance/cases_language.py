"""Control flow, functions, Python's data types in a kernel, kernel parameters, and the arguments of a launch."""

import contextlib
import dataclasses
import enum
import functools
import math
import operator
from typing import NamedTuple

import cuda.tile as ct
import numpy as np
import torch
from cuda.tile import bid as block_index
from cuda.tile import load, store

from .building import small, zeros
from .harness import Case

CASES = []
COMPILER = ("compiler",)


def add(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


def computes(name, kernel, expected, *scalars, size=8, grid=(1,)):
    """The kernel fills an int32 array of zeros, given that array and scalars."""
    add(name, kernel, grid, lambda rng: [zeros(size), *scalars], expected=lambda y, *rest: {0: expected})


def refuse(name, kernel, match="", error=ct.TileTypeError, needs=(), scalars=()):
    CASES.append(Case(name, kernel, (1,), lambda rng: [zeros(16), *scalars], error=error, match=match, needs=needs))


# --- if ----------------------------------------------------------------------------------------------------------


@ct.kernel
def if_by_block(y):
    i = ct.bid(0)
    if i % 2 == 0:
        value = i * 10
    else:
        value = -i
    ct.store(y, (i,), value)


@ct.kernel
def elif_chain(y):
    i = ct.bid(0)
    if i < 2:
        value = 100
    elif i < 4:
        value = 200
    elif i == 5:
        value = 300
    else:
        value = 400
    ct.store(y, (i,), value + i)


@ct.kernel
def if_without_else(y):
    i = ct.bid(0)
    value = 1
    if i > 3:
        value = 2
        if i > 5:
            value = value + i
    ct.store(y, (i,), value)


@ct.kernel
def if_only_side_effect(y):
    i = ct.bid(0)
    if i != 3:
        ct.store(y, (i,), 7)


@ct.kernel
def conditional_expression(y):
    i = ct.bid(0)
    ct.store(y, (i,), 1 if i < 3 else 2 if i < 6 else 3)


@ct.kernel
def boolean_operators(y):
    i = ct.bid(0)
    a = i > 1 and i < 5
    b = i == 0 or i == 7
    value = 0
    if a and not b:
        value += 1
    if a or b:
        value += 2
    if not (a or b):
        value += 4
    ct.store(y, (i,), value)


@ct.kernel
def tiles_in_branches(y):
    i = ct.bid(0)
    tile = ct.arange(4, dtype=ct.int32)
    if i == 0:
        tile = tile + 1
    else:
        tile = tile * 5
    ct.store(y, (i,), tile)


@ct.kernel
def branch_on_data(y):
    ct.store(y, (0,), ct.arange(8, dtype=ct.int32))
    i = ct.bid(0)
    if ct.sum(ct.load(y, (0,), (8,))) == 28:
        ct.store(y, (i,), 50)


@ct.kernel
def nested_divergence(y):
    i = ct.bid(0)
    value = 0
    if i % 2 == 0:
        if i % 4 == 0:
            value = 1
        else:
            value = 2
    else:
        if i > 4:
            value = 3
    value = value * 10 + i
    ct.store(y, (i,), value)


@ct.kernel
def tuple_in_branches(y):
    i = ct.bid(0)
    pair = (i, i + 1)
    if i > 3:
        pair = (pair[1], pair[0] * 2)
    ct.store(y, (i,), pair[0] * 10 + pair[1])


i = np.arange(8)
for name, kernel, expected in [
    ("if_else", if_by_block, np.where(i % 2 == 0, i * 10, -i)),
    ("elif", elif_chain, [100, 101, 202, 203, 404, 305, 406, 407]),
    ("nested_if", if_without_else, [1, 1, 1, 1, 2, 2, 8, 9]),
    ("store_in_a_branch", if_only_side_effect, np.where(i != 3, 7, 0)),
    ("conditional_expression", conditional_expression, [1, 1, 1, 2, 2, 2, 3, 3]),
    ("and_or_not", boolean_operators, [2, 4, 3, 3, 3, 4, 4, 2]),
    ("nested_divergence", nested_divergence, [10, 1, 22, 3, 14, 35, 26, 37]),
    ("tuple_in_branches", tuple_in_branches, np.where(i > 3, (i + 1) * 10 + i * 2, i * 10 + i + 1)),
]:
    computes(f"control_flow/{name}", kernel, expected, grid=(8,))
computes("control_flow/tiles_in_branches", tiles_in_branches, [1, 2, 3, 4, 0, 5, 10, 15], grid=(2,))
computes("control_flow/condition_from_memory", branch_on_data, [50, *range(1, 8)])

# --- for and while -----------------------------------------------------------------------------------------------


@ct.kernel
def for_ranges(y):
    a = 0
    for i in range(5):
        a += i
    b = 0
    for i in range(2, 9):
        b += i
    c = 0
    for i in range(1, 10, 4):
        c = c * 10 + i
    d = 7
    for i in range(5, 5):
        d = i
    ct.store(y, (0,), a)
    ct.store(y, (1,), b)
    ct.store(y, (2,), c)
    ct.store(y, (3,), d)


@ct.kernel
def for_run_time_bounds(y):
    i = ct.bid(0)
    total = 0
    for k in range(i, 2 * i, i // 4 + 1):
        total += k
    ct.store(y, (i,), total)


@ct.kernel
def for_bounds_are_evaluated_once(y, n):
    count = 0
    for _ in range(n):
        n = n - 1
        count += 1
    ct.store(y, (0,), count)
    ct.store(y, (1,), n)


@ct.kernel
def for_break(y):
    i = ct.bid(0)
    total = 0
    for k in range(10):
        if k == i:
            break
        total += 1
    ct.store(y, (i,), total)


@ct.kernel
def for_continue(y):
    i = ct.bid(0)
    total = 0
    for k in range(8):
        if k % 2 == i % 2:
            continue
        total += k
    ct.store(y, (i,), total)


@ct.kernel
def for_nested_break(y):
    i = ct.bid(0)
    total = 0
    for a in range(4):
        for b in range(4):
            if b > a:
                break
            if (a + b) % 2 == 1:
                continue
            total += a * i + b
        if total > 20:
            break
    ct.store(y, (i,), total)


def for_nested_break_of(i):
    total = 0
    for a in range(4):
        for b in range(4):
            if b > a:
                break
            if (a + b) % 2 == 1:
                continue
            total += a * i + b
        if total > 20:
            break
    return total


@ct.kernel
def while_loop(y):
    n = ct.bid(0) + 1
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    ct.store(y, (ct.bid(0),), steps)


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@ct.kernel
def while_true(y):
    i = ct.bid(0)
    k = 0
    while True:
        k += 1
        if k * k > 10 * i:
            break
        if k == 5:
            k += 1
            continue
    ct.store(y, (i,), k)


def while_true_of(i):
    k = 0
    while True:
        k += 1
        if k * k > 10 * i:
            return k
        if k == 5:
            k += 1


@ct.kernel
def while_never(y):
    k = 3
    while k < 0:
        k = 9
    ct.store(y, (0,), k)


@ct.kernel
def loop_carries_several(y):
    a = 0
    b = 1
    for _ in range(6):
        a, b = b, a + b
    ct.store(y, (0,), a)
    ct.store(y, (1,), b)


@ct.kernel
def loop_carries_a_tile(y):
    tile = ct.ones((8,), ct.int32)
    for k in range(3):
        tile = tile * 2 + k
    ct.store(y, (0,), tile)


@ct.kernel
def loop_carries_a_tuple(y):
    state = (0, ct.zeros((2,), ct.int32))
    for k in range(4):
        state = (state[0] + k, state[1] + state[0])
    ct.store(y, (0,), state[0])
    ct.store(y, (1,), state[1])


@ct.kernel
def early_return(y):
    i = ct.bid(0)
    if i > 4:
        return
    if i == 2:
        ct.store(y, (i,), 9)
        return
    ct.store(y, (i,), i + 1)


@ct.kernel
def return_in_a_loop(y):
    i = ct.bid(0)
    for k in range(10):
        if k == i:
            ct.store(y, (i,), k * 2)
            return
        if k == 5:
            return
    ct.store(y, (i,), -1)


@ct.kernel
def loops_of_different_length(y):
    i = ct.bid(0)
    total = 0
    k = i
    while k > 0:
        for j in range(k):
            if j == 3:
                break
            total += 1
        k -= 2
    ct.store(y, (i,), total)


def loops_of_different_length_of(i):
    total, k = 0, i
    while k > 0:
        total += min(k, 3)
        k -= 2
    return total


@ct.kernel
def loop_variable_afterwards(y):
    last = -1
    for k in range(4):
        last = k
    ct.store(y, (0,), last)


@ct.kernel
def loop_stores(y):
    for k in range(8):
        ct.store(y, (7 - k,), k * k)


@ct.kernel
def loop_over_data(y):
    """Loads, within the loop, what an iteration before has stored."""
    ct.store(y, (0,), 1)
    for k in range(1, 8):
        ct.store(y, (k,), ct.load(y, (k - 1,), ()) * 2)


for name, kernel, expected in [
    ("for_ranges", for_ranges, [10, 35, 159, 7, 0, 0, 0, 0]),
    ("while_never_entered", while_never, [3, 0, 0, 0, 0, 0, 0, 0]),
    ("simultaneous_assignment", loop_carries_several, [8, 13, 0, 0, 0, 0, 0, 0]),
    ("loop_carries_a_tile", loop_carries_a_tile, [12] * 8),
    ("loop_carries_a_tuple", loop_carries_a_tuple, [6, 0, 4, 4, 0, 0, 0, 0]),
    ("loop_variable_kept", loop_variable_afterwards, [3, 0, 0, 0, 0, 0, 0, 0]),
    ("stores_in_a_loop", loop_stores, [49, 36, 25, 16, 9, 4, 1, 0]),
    ("loop_reads_its_own_stores", loop_over_data, 2**i),
]:
    computes(f"control_flow/{name}", kernel, expected)
computes("control_flow/range_bounds_are_evaluated_once", for_bounds_are_evaluated_once, [5, 0, 0, 0, 0, 0, 0, 0], 5)
for name, kernel, expected in [
    ("for_run_time_bounds", for_run_time_bounds, [sum(range(k, 2 * k, k // 4 + 1)) for k in range(8)]),
    ("for_break", for_break, i),
    ("for_continue", for_continue, np.where(i % 2 == 0, 16, 12)),
    ("for_nested_break", for_nested_break, [for_nested_break_of(k) for k in range(8)]),
    ("while", while_loop, [collatz(k + 1) for k in range(8)]),
    ("while_true", while_true, [while_true_of(k) for k in range(8)]),
    ("early_return", early_return, [1, 2, 9, 4, 5, 0, 0, 0]),
    ("return_in_a_loop", return_in_a_loop, [0, 2, 4, 6, 8, 10, 0, 0]),
    ("loops_of_different_length", loops_of_different_length, [loops_of_different_length_of(k) for k in range(8)]),
]:
    computes(f"control_flow/{name}", kernel, expected, grid=(8,))


# --- what the compiler refuses -----------------------------------------------------------------------------------


@ct.kernel
def condition_on_a_tile(x):
    if ct.arange(4, dtype=ct.int32) > 2:
        ct.store(x, (0,), 1)


@ct.kernel
def while_on_a_tile(x):
    while ct.arange(4, dtype=ct.int32) > 2:
        ct.store(x, (0,), 1)


@ct.kernel
def and_on_tiles(x):
    tile = ct.arange(4, dtype=ct.int32)
    ct.store(x, (0,), ct.where(tile > 1 and tile < 3, tile, 0))


@ct.kernel
def loop_changes_dtype(x):
    total = 0
    for _ in range(4):
        total = total + 0.5
    ct.store(x, (0,), total.astype(ct.int32))


@ct.kernel
def loop_changes_shape(x):
    total = ct.zeros((1,), ct.int32)
    for _ in range(4):
        total = total + ct.ones((4,), ct.int32)
    ct.store(x, (0,), total)


@ct.kernel
def branches_differ_in_dtype(x):
    if ct.bid(0) == 0:
        value = 1
    else:
        value = 1.5
    ct.store(x, (0,), value)


@ct.kernel
def branches_differ_in_shape(x):
    if ct.bid(0) == 0:
        value = ct.zeros((4,), ct.int32)
    else:
        value = ct.zeros((8,), ct.int32)
    ct.store(x, (0,), value)


@ct.kernel
def undefined_in_one_branch(x):
    if ct.bid(0) == 0:
        value = 1
    ct.store(x, (0,), value)


@ct.kernel
def undefined_after_loop(x):
    for k in range(x.shape[0]):
        value = k
    ct.store(x, (0,), value)


@ct.kernel
def undefined_name(x):
    if ct.bid(0) == 100:
        ct.store(x, (0,), no_such_name)  # noqa: F821


@ct.kernel
def zero_step(x):
    for k in range(0, 4, 0):
        ct.store(x, (k,), 1)


@ct.kernel
def negative_step(x):
    for k in range(4, 0, -1):
        ct.store(x, (k,), 1)


@ct.kernel
def float_range(x):
    for k in range(4.0):
        ct.store(x, (k,), 1)


@ct.kernel
def for_over_a_tile(x):
    for value in ct.arange(4, dtype=ct.int32):
        ct.store(x, (0,), value)


@ct.kernel
def list_literal(x):
    items = [1, 2]
    ct.store(x, (0,), items[0])


@ct.kernel
def dict_literal(x):
    items = {"a": 1}
    ct.store(x, (0,), items["a"])


@ct.kernel
def list_comprehension(x):
    items = [k for k in range(4)]
    ct.store(x, (0,), items[0])


@ct.kernel
def try_except(x):
    try:
        ct.store(x, (0,), 1)
    except ValueError:
        pass


@ct.kernel
def assert_statement(x):
    assert x.ndim == 1


@ct.kernel
def delete_statement(x):
    a = 1
    del a


@ct.kernel
def for_else(x):
    for k in range(4):
        ct.store(x, (k,), 1)
    else:
        ct.store(x, (0,), 2)


@ct.kernel
def while_else(x):
    while ct.bid(0) > 0:
        pass
    else:
        ct.store(x, (0,), 2)


@ct.kernel
def match_statement(x):
    match x.ndim:
        case 1:
            ct.store(x, (0,), 2)


@ct.kernel
def walrus(x):
    if (n := ct.bid(0)) == 0:
        ct.store(x, (n,), 2)


@ct.kernel
def import_statement(x):
    import math

    ct.store(x, (0,), math.gcd(4, 6))


@ct.kernel
def class_statement(x):
    class A:
        pass


@ct.kernel
def returns_a_value(x):
    return 5


@ct.kernel
def yields(x):
    yield 5


@ct.kernel
def attribute_assignment(x):
    x.size = 4


@ct.kernel
def unknown_attribute(x):
    ct.store(x, (0,), x.size)


@ct.kernel
def unknown_function(x):
    ct.store(x, (0,), ct.softmax(x))


@ct.kernel
def calls_numpy(x):
    ct.store(x, (0,), np.zeros(4))


@ct.kernel
def calls_a_tile(x):
    ct.arange(4, dtype=ct.int32)(0)


@ct.kernel
def tuple_run_time_index(x):
    pair = (1, 2)
    ct.store(x, (0,), pair[ct.bid(0)])


@ct.kernel
def tuple_assignment(x):
    pair = (1, 2)
    pair[0] = 3


@ct.kernel
def unpacks_too_many(x):
    a, b = (1, 2, 3)
    ct.store(x, (a,), b)


@ct.kernel
def unpacks_a_tile(x):
    a, b = ct.arange(2, dtype=ct.int32)
    ct.store(x, (a,), b)


for name, kernel, match, error, needs in [
    ("condition_on_a_tile", condition_on_a_tile, "", ct.TileTypeError, ()),
    ("while_on_a_tile", while_on_a_tile, "", ct.TileTypeError, ()),
    ("and_on_tiles", and_on_tiles, "", ct.TileTypeError, ()),
    ("loop_changes_dtype", loop_changes_dtype, "total", ct.TileTypeError, COMPILER),
    ("loop_changes_shape", loop_changes_shape, "total", ct.TileTypeError, COMPILER),
    ("branches_differ_in_dtype", branches_differ_in_dtype, "value", ct.TileTypeError, COMPILER),
    ("branches_differ_in_shape", branches_differ_in_shape, "value", ct.TileTypeError, COMPILER),
    ("undefined_in_one_branch", undefined_in_one_branch, "value", ct.TileError, COMPILER),
    ("undefined_after_a_loop", undefined_after_loop, "value", ct.TileError, COMPILER),
    ("undefined_name", undefined_name, "no_such_name", ct.TileSyntaxError, COMPILER),
    ("range_step_zero", zero_step, "positive", ct.TileTypeError, ()),
    ("range_step_negative", negative_step, "positive", ct.TileTypeError, ()),
    ("range_of_a_float", float_range, "", ct.TileTypeError, ()),
    ("for_over_a_tile", for_over_a_tile, "", ct.TileTypeError, ()),
    ("list_literal", list_literal, "", ct.TileSyntaxError, COMPILER),
    ("dict_literal", dict_literal, "", ct.TileSyntaxError, COMPILER),
    ("list_comprehension", list_comprehension, "", ct.TileSyntaxError, COMPILER),
    ("try_except", try_except, "", ct.TileSyntaxError, COMPILER),
    ("assert_statement", assert_statement, "", ct.TileSyntaxError, COMPILER),
    ("del_statement", delete_statement, "", ct.TileSyntaxError, COMPILER),
    ("for_else", for_else, "for-else", ct.TileSyntaxError, COMPILER),
    ("while_else", while_else, "while-else", ct.TileSyntaxError, COMPILER),
    ("match_statement", match_statement, "", ct.TileSyntaxError, COMPILER),
    ("walrus", walrus, "", ct.TileSyntaxError, COMPILER),
    ("import_statement", import_statement, "", ct.TileSyntaxError, COMPILER),
    ("class_statement", class_statement, "", ct.TileSyntaxError, COMPILER),
    ("return_of_a_value", returns_a_value, "return", ct.TileTypeError, COMPILER),
    ("yield", yields, "", ct.TileError, COMPILER),
    ("attribute_assignment", attribute_assignment, "", ct.TileSyntaxError, COMPILER),
    ("unknown_attribute", unknown_attribute, "size", ct.TileTypeError, ()),
    ("unknown_function", unknown_function, "softmax", ct.TileTypeError, COMPILER),
    ("numpy_in_a_kernel", calls_numpy, "", ct.TileError, COMPILER),
    ("call_of_a_tile", calls_a_tile, "", ct.TileTypeError, ()),
    ("run_time_index_of_a_tuple", tuple_run_time_index, "constant", ct.TileTypeError, COMPILER),
    ("assignment_to_a_tuple", tuple_assignment, "immutable", ct.TileTypeError, ()),
    ("too_many_values_to_unpack", unpacks_too_many, "unpack", ct.TileValueError, ()),
    ("tile_unpacked", unpacks_a_tile, "", ct.TileTypeError, ()),
]:
    refuse(f"language/{name}_refused", kernel, match, error, needs)

# --- functions ---------------------------------------------------------------------------------------------------


def scaled(tile, factor=3, *, offset=0):
    return tile * factor + offset


@ct.function
def marked_function(tile, amount):
    return tile - amount


@ct.function(host=True)
def shared_with_the_host(n):
    return n * 2 + 1


def two_results(tile):
    return tile + 1, tile * 2


def returns_early(value):
    if value > 3:
        return value * 100
    for k in range(10):
        if k == value:
            return -k
    return 0


def stores_by_itself(y, index, value):
    ct.store(y, (index,), value)


def variadic(*tiles, **options):
    return tiles[0] + tiles[-1] * options["factor"]


def increment(tile):
    return tile + 1


def recursive_sum(n):
    return 0 if n == 0 else n + recursive_sum(n - 1)


def endless(n):
    return endless(n) + 1


@ct.kernel
def calls_helpers(y):
    tile = ct.arange(8, dtype=ct.int32)
    ct.store(y, (0,), scaled(scaled(tile), 2, offset=1))


@ct.kernel
def calls_marked_function(y):
    ct.store(y, (0,), marked_function(ct.arange(8, dtype=ct.int32), amount=5))


@ct.kernel
def calls_host_function(y):
    n = shared_with_the_host(3)
    ct.store(y, (0,), ct.arange(8, dtype=ct.int32) + n)


@ct.kernel
def unpacks_results(y):
    a, b = two_results(ct.arange(8, dtype=ct.int32))
    ct.store(y, (0,), a * b)


@ct.kernel
def calls_with_early_return(y):
    for k in range(8):
        ct.store(y, (k,), returns_early(k))


@ct.kernel
def helper_has_side_effects(y):
    for k in range(8):
        stores_by_itself(y, k, k + 2)


@ct.kernel
def calls_variadic(y):
    tile = ct.arange(8, dtype=ct.int32)
    ct.store(y, (0,), variadic(tile, 1000, tile + 1, factor=10))


@ct.kernel
def unpacks_arguments(y):
    arguments = (ct.arange(8, dtype=ct.int32), 4)
    ct.store(y, (0,), scaled(*arguments))


@ct.kernel
def calls_imported_names(y):
    i = block_index(0)
    store(y, (i,), load(y, (i,), (8,)) + 6)


@ct.kernel
def calls_lambda(y):
    double = lambda tile: tile * 2  # noqa: E731
    ct.store(y, (0,), double(double(ct.arange(8, dtype=ct.int32))))


@ct.kernel
def calls_nested_function(y):
    amount = 3

    def plus(tile):
        return tile + amount

    ct.store(y, (0,), plus(plus(ct.arange(8, dtype=ct.int32))))


@ct.kernel
def function_as_argument(y):
    def twice(function, value):
        return function(function(value))

    def step(value):
        return value * 3 + 1

    ct.store(y, (0,), twice(step, ct.arange(8, dtype=ct.int32)))


def closure_kernel(size, function, factors):
    @ct.kernel
    def kernel(y):
        tile = function(ct.arange(size, dtype=ct.int32)) * factors[1]
        ct.store(y, (0,), tile)

    return kernel


TIMES_FIVE = functools.partial(scaled, factor=5)


@ct.kernel
def calls_partial(y):
    ct.store(y, (0,), TIMES_FIVE(ct.arange(8, dtype=ct.int32), offset=2))


@ct.kernel
def constant_recursion(y):
    ct.store(y, (0,), recursive_sum(4))


@ct.kernel
def endless_recursion(x):
    ct.store(x, (0,), endless(1))


lanes = np.arange(8)
for name, kernel, expected in [
    ("helper_with_defaults_and_keywords", calls_helpers, lanes * 6 + 1),
    ("ct_function", calls_marked_function, lanes - 5),
    ("ct_function_for_host_too", calls_host_function, lanes + 7),
    ("two_results", unpacks_results, (lanes + 1) * lanes * 2),
    ("early_return", calls_with_early_return, [0, -1, -2, -3, 400, 500, 600, 700]),
    ("side_effects", helper_has_side_effects, lanes + 2),
    ("variadic", calls_variadic, lanes + (lanes + 1) * 10),
    ("unpacked_arguments", unpacks_arguments, lanes * 4),
    ("names_imported_from_cuda_tile", calls_imported_names, np.full(8, 6)),
    ("lambda", calls_lambda, lanes * 4),
    ("nested_function", calls_nested_function, lanes + 6),
    ("function_as_argument", function_as_argument, (lanes * 3 + 1) * 3 + 1),
    ("closure", closure_kernel(8, increment, (0, 9)), (lanes + 1) * 9),
    ("recursion_over_a_constant", constant_recursion, [10, 0, 0, 0, 0, 0, 0, 0]),
]:
    computes(f"functions/{name}", kernel, expected)
refuse("functions/endless_recursion_refused", endless_recursion, "recursion", ct.TileRecursionError, COMPILER)


@ct.kernel
def too_few_for_helper(x):
    ct.store(x, (0,), marked_function(1))


@ct.kernel
def unknown_keyword_for_helper(x):
    ct.store(x, (0,), scaled(1, amount=2))


refuse("functions/partial_refused", calls_partial, "partial", needs=COMPILER)
refuse("functions/missing_argument_refused", too_few_for_helper)
refuse("functions/unknown_keyword_refused", unknown_keyword_for_helper)

# --- numbers that came one of several ways --------------------------------------------------------------------------


def one_of_two(i):
    if i == 0:
        return 2
    return 3


def one_of_a_loop(i):
    for j in range(3):
        if j == i:
            return 2
    return 3


def one_of_a_pair(i):
    if i == 0:
        return 2, 0.0
    elif i == 7:
        return 3, 1.0
    else:
        return 4, 2.0


def chosen_by_the_compiler(name):
    if name == "two":
        return 2
    return 3


@ct.kernel
def numbers_that_functions_return(y):
    i = ct.bid(0)
    tile = ct.astype(ct.bid(0) + 100, ct.int8)
    ct.store(y, (0,), tile * one_of_two(i))
    ct.store(y, (1,), tile * one_of_a_loop(i))
    number, divisor = one_of_a_pair(i)
    ct.store(y, (2,), tile * number)
    ct.store(y, (3,), ct.where(1.0 / divisor > 1e30, 1, 0))
    kept = tile * chosen_by_the_compiler("two")
    ct.static_assert(kept.dtype == ct.int8)
    ct.store(y, (4,), kept)
    ct.store(y, (5,), one_of_two(i) * 2000000000)


@ct.kernel
def numbers_that_a_test_has_chosen(y):
    flag, number, other, ready = 0, 1, 1, False
    if ct.bid(0) == 0:
        flag = 1
        ready = flag == 1 and True
    if flag == 1:
        number = 2
    if ready:
        other = 3
    tile = ct.astype(ct.bid(0) + 100, ct.int8)
    ct.store(y, (0,), tile * number)
    ct.store(y, (1,), tile * other)
    ct.store(y, (2,), tile * (2 if not ready else 4))
    typed = ct.int16(0)
    for _ in range(2):
        typed = ct.int16(1)
    ct.store(y, (3,), tile * (5 if typed == 1 else 2))


@ct.kernel
def numbers_that_divide_by_zero(y):
    zero, nought = 1.0, 1
    if ct.bid(0) == 0:
        zero = 0.0
    for _ in range(ct.bid(0) + 2):
        nought = 0
    typed = ct.float32(1.0)
    if ct.bid(0) == 0:
        typed = ct.float32(0.0)
    ct.store(y, (0,), ct.where(1.0 / zero > 1e30, 1, 0))
    ct.store(y, (1,), ct.where(ct.log(zero) < -1e30, 2, 0))
    ct.store(y, (2,), ct.where(ct.isnan(ct.sqrt(typed - 1.0)), 3, 0))
    ct.store(y, (3,), ct.where(1.0 / -zero < -1e30, 4, 0))
    if nought != 0:
        ct.store(y, (4,), 5 // nought)


@ct.kernel
def numbers_that_are_the_same_all_ways(y):
    size, other = 4, 2
    if ct.bid(0) == 0:
        size = 4
    for _ in range(2):
        other = 2
    ct.static_assert(size == 4)
    ct.store(y, (0,), ct.full((size * other,), -size, ct.int32))


@ct.kernel
def constants_that_are_cast(y):
    whole, rounded = ct.astype(-2.5, ct.uint16), ct.astype(3.1, ct.bfloat16)
    ct.static_assert(whole == 65534 and rounded == 3.09375)
    ct.store(y, (0,), ct.full((4,), -ct.bool_(True) + (~ct.uint8(254)).astype(ct.int32), ct.int32))
    ct.store(y, (1,), ct.full((~ct.uint8(253) * ct.uint8(2),), 7, ct.int32))


@ct.kernel
def constants_that_are_reduced(y):
    five, sixteen, one = ct.max(5), ct.sum(ct.int16(16)), ct.sum(True)
    ct.static_assert(five == 5 and sixteen == 16 and one == 1)
    tile = ct.astype(ct.arange(4, dtype=ct.int32), ct.int8)
    narrow, wider, widest = tile * five, tile * sixteen, tile * one
    ct.static_assert((narrow.dtype, wider.dtype, widest.dtype) == (ct.int8, ct.int16, ct.int32))
    ct.store(y, (0,), narrow + wider)
    ct.store(y, (1,), widest)


computes("numbers/reduced", constants_that_are_reduced, [0, 21, 42, 63, 0, 1, 2, 3])
computes("numbers/functions_return", numbers_that_functions_return, [200, 200, 200, 1, -56, 4000000000 - 2**32, 0, 0])
computes("numbers/a_test_has_chosen", numbers_that_a_test_has_chosen, [200, 300, 400, 500, 0, 0, 0, 0])
computes("numbers/divide_by_zero", numbers_that_divide_by_zero, [1, 2, 3, 4, 0, 0, 0, 0])
computes("numbers/the_same_all_ways", numbers_that_are_the_same_all_ways, [-4] * 8)
computes("numbers/cast", constants_that_are_cast, [0, 0, 0, 0, 7, 7, 7, 7])

# --- the host's functions in compile-time expressions -----------------------------------------------------------------


def kind_of(value):
    return "int" if type(value) is int else "other"


def written(value):
    return f"{value}"


def bits_of(value):
    return int.bit_length(value) + int.from_bytes(b"\x01", "big")


def clipped(tile):
    return max(tile, 2)


def doubled(tile, times=2):
    if ct.static_eval(times == 2):
        return tile + tile
    return tile * int(times)


@dataclasses.dataclass(frozen=True)
class Plan:
    before: object


PLAN = Plan(clipped)


@ct.kernel
def host_functions(y):
    ct.store(y, (0,), 1 if ct.static_eval(kind_of(3) == "int") else -1)
    ct.store(y, (1,), 2 if ct.static_eval(written(0.1) == "0.1") else -1)
    ct.store(y, (2,), ct.static_eval(bits_of(3)))
    ct.store(y, (3,), ct.static_eval(int.bit_length(15)))
    ct.store(y, (4,), 5 if ct.static_eval(issubclass(bool, int) and any(t is float for t in (int, float))) else -1)


@ct.kernel
def functions_of_objects(y):
    before, largest = ct.static_eval(PLAN.before), ct.static_eval([max, min][0])
    tile = before(ct.arange(4, dtype=ct.int32))
    ct.store(y, (0,), tile)
    for step in ct.static_iter([PLAN.before, doubled]):
        tile = step(tile)
    ct.store(y, (1,), largest(tile, 5))


computes("static/host_functions", host_functions, [1, 2, 3, 4, 5, 0, 0, 0])
computes("static/functions_of_objects", functions_of_objects, [2, 2, 2, 3, 5, 5, 5, 6])

# --- Python's data types -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tiling:
    rows: int
    columns: int = 2

    def area(self):
        return self.rows * self.columns

    @property
    def shape(self):
        return (self.rows, self.columns)


class Activation(enum.Enum):
    RELU = "relu"
    SQUARE = "square"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Pair(NamedTuple):
    first: int
    second: int


TILING = Tiling(4)
PAIR = Pair(3, 4)


def activated(tile, kind):
    if kind == Activation.RELU:
        return ct.maximum(tile, 0)
    return tile * tile


@ct.kernel
def uses_dataclass(y):
    tile = ct.full(TILING.shape, TILING.area(), ct.int32)
    ct.store(y, (0,), ct.reshape(tile, (8,)))


@ct.kernel
def makes_dataclass(y):
    tiling = Tiling(rows=ct.bid(0) + 3, columns=5)
    ct.store(y, (0,), tiling.rows * 10 + tiling.columns)
    ct.store(y, (1,), tiling.area())


@ct.kernel
def replaces_dataclass_field(y):
    tiling = dataclasses.replace(TILING, columns=7)
    ct.store(y, (0,), tiling.area())


@ct.kernel
def uses_enum(y):
    tile = ct.arange(8, dtype=ct.int32) - 4
    ct.store(y, (0,), activated(tile, Activation.RELU) + activated(tile, Activation.SQUARE) * 100)


@ct.kernel
def uses_int_enum(y):
    ct.store(y, (0,), ct.arange(8, dtype=ct.int32) * Level.HIGH)


@ct.kernel
def tuple_operations(y):
    shape = (2, 4) + (8,)
    ct.static_assert(len(shape) == 3)
    ct.static_assert(shape[-1] == 8)
    ct.static_assert(shape[1:] == (4, 8))
    a, (b, c) = shape[0], shape[1:]
    ct.store(y, (0,), a * 100 + b * 10 + c)


@ct.kernel
def tuple_comprehension(y):
    tiles = tuple(ct.full((2,), k + 1, ct.int32) for k in ct.static_iter(range(4)))
    for k in ct.static_iter(range(4)):
        ct.store(y, (k,), tiles[k])


@ct.kernel
def none_is_a_constant(y):
    mask = None
    value = 1 if mask is None else 2
    ct.store(y, (0,), value)


@ct.kernel
def strings_are_constants(y):
    mode = "fast"
    if mode == "fast":
        ct.store(y, (0,), 1)
    else:
        ct.store(y, (0,), 2)


@ct.kernel
def constant_arithmetic(y):
    n = 3
    n = n**2 - 1
    size = n if n in (4, 8) else 4
    ct.store(y, (0,), ct.full((size,), 7 // 2 + 7 % 4, ct.int32))


@ct.kernel
def math_constants(y):
    ct.store(y, (0,), ct.full((8,), math.pi * 100, ct.float32).astype(ct.int32))


@ct.kernel
def builtins_on_scalars(y):
    i = ct.bid(0)
    ct.store(y, (0,), max(i, 3))
    ct.store(y, (1,), min(i, 3))
    ct.store(y, (2,), abs(i - 5))
    ct.store(y, (3,), len((1, 2, 3)))


@ct.kernel
def operator_module(y):
    ct.store(y, (0,), operator.add(ct.arange(8, dtype=ct.int32), 2))


@ct.kernel
def uses_named_tuple(y):
    pair = PAIR
    ct.store(y, (0,), pair[0] * 10 + pair[1])


@ct.kernel
def named_tuple_field(x):
    pair = PAIR
    ct.store(x, (0,), pair.first)


@contextlib.contextmanager
def doubled_before_and_after(y, index):
    ct.store(y, (index,), 10)
    yield index + 1
    ct.store(y, (index + 2,), 30)


@ct.kernel
def context_manager(y):
    with doubled_before_and_after(y, 0) as middle:
        ct.store(y, (middle,), 20)
    ct.store(y, (3,), 40)


for name, kernel, expected in [
    ("dataclass_of_constants", uses_dataclass, np.full(8, 8)),
    ("dataclass_made_in_a_kernel", makes_dataclass, [35, 15, 0, 0, 0, 0, 0, 0]),
    ("dataclass_replace", replaces_dataclass_field, [28, 0, 0, 0, 0, 0, 0, 0]),
    ("enum", uses_enum, np.maximum(lanes - 4, 0) + (lanes - 4) ** 2 * 100),
    ("int_enum", uses_int_enum, lanes * 5),
    ("tuples", tuple_operations, [248, 0, 0, 0, 0, 0, 0, 0]),
    ("tuple_comprehension", tuple_comprehension, [1, 1, 2, 2, 3, 3, 4, 4]),
    ("none", none_is_a_constant, [1, 0, 0, 0, 0, 0, 0, 0]),
    ("strings", strings_are_constants, [1, 0, 0, 0, 0, 0, 0, 0]),
    ("constant_arithmetic", constant_arithmetic, np.full(8, 6)),
    ("math_constants", math_constants, np.full(8, 314)),
    ("builtins_on_scalars", builtins_on_scalars, [3, 0, 5, 3, 0, 0, 0, 0]),
    ("operator_module", operator_module, lanes + 2),
    ("named_tuple", uses_named_tuple, [34, 0, 0, 0, 0, 0, 0, 0]),
    ("context_manager", context_manager, [10, 20, 30, 40, 0, 0, 0, 0]),
]:
    computes(f"python/{name}", kernel, expected)

refuse("python/field_of_a_named_tuple_refused", named_tuple_field, "first", needs=COMPILER)

# --- kernel parameters -------------------------------------------------------------------------------------------


@ct.kernel
def scalars(y, i, f, b):
    ct.store(y, (0,), i)
    ct.store(y, (1,), f)
    ct.store(y, (2,), f / 4 + i)
    if b:
        ct.store(y, (3,), 1.0)


for flag in (True, False):
    add(
        f"parameters/int_float_bool_{flag}",
        scalars,
        (1,),
        lambda rng, flag=flag: [zeros(4, "float32"), -3, 2.5, flag],
        expected=lambda y, i, f, b: {0: [-3, 2.5, -2.375, float(b)]},
    )


@ct.kernel
def scalar_dtypes(y, i, f):
    ct.static_assert(i.dtype == ct.int32)
    ct.static_assert(f.dtype == ct.float32)
    ct.store(y, (0,), i)


@ct.kernel
def scalar_int64(y, i: ct.ScalarInt64):
    ct.static_assert(i.dtype == ct.int64)
    ct.store(y, (0,), i * 2)


@ct.kernel
def constants(y, n: ct.Constant[int], scale: ct.Constant[float], flag: ct.Constant[bool], any_type: ct.Constant):
    ct.static_assert(n == 8)
    ct.static_assert(flag)
    tile = ct.full((n,), scale, ct.float32) * any_type
    ct.store(y, (0,), tile.astype(ct.int32))


@ct.kernel
def constant_dtype(y, dtype: ct.Constant):
    tile = ct.full((8,), 300, ct.int32).astype(dtype)
    ct.store(y, (0,), tile.astype(ct.int32))


@ct.kernel
def tuple_parameter(y, pair):
    ct.store(y, (0,), pair[0] * 10 + pair[1])
    ct.store(y, (1,), len(pair))


@ct.kernel
def constant_tuple(y, shape: ct.Constant[tuple[int, int]]):
    ct.store(y, (0,), ct.reshape(ct.ones(shape, ct.int32), (8,)))


@ct.kernel
def mixed_tuple(y, things: tuple[ct.Constant[int], int]):
    size, value = things
    ct.store(y, (0,), ct.full((size,), value, ct.int32))


@ct.kernel
def arrays_in_a_tuple(y, arrays):
    a, b = arrays
    ct.store(y, (0,), ct.load(a, (0,), (8,)) + ct.load(b, (1,), (8,)))


for name, kernel, arguments, expected in [
    ("python_scalars_are_int32_and_float32", scalar_dtypes, (5, 0.5), [5, 0, 0, 0, 0, 0, 0, 0]),
    ("constants", constants, (8, 2.5, True, 2), np.full(8, 5)),
    ("tuple", tuple_parameter, ((4, 7),), [47, 2, 0, 0, 0, 0, 0, 0]),
    ("constant_tuple", constant_tuple, ((2, 4),), np.ones(8)),
    ("tuple_of_constant_and_scalar", mixed_tuple, ((4, 9),), [9, 9, 9, 9, 0, 0, 0, 0]),
]:
    computes(f"parameters/{name}", kernel, expected, *arguments)
add(
    "parameters/int64_scalar",
    scalar_int64,
    (1,),
    lambda rng: [zeros(1, "int64"), 2**40],
    expected=lambda y, i: {0: [2**41]},
)
add(
    "parameters/tuple_of_arrays",
    arrays_in_a_tuple,
    (1,),
    lambda rng: [zeros(8), (small(rng, "int32", (8,), 1, 9), small(rng, "int32", (16,), 1, 9))],
    expected=lambda y, arrays: {0: arrays[0] + arrays[1][8:]},
)


@ct.kernel
def run_time_scalar_as_shape(x, n):
    ct.store(x, (0,), ct.zeros((n,), ct.int32))


@ct.kernel
def run_time_scalar_asserted(x, n):
    ct.static_assert(n == 4)


refuse("parameters/run_time_scalar_as_shape_refused", run_time_scalar_as_shape, "constant", scalars=(4,))
refuse("parameters/run_time_scalar_in_static_assert_refused", run_time_scalar_asserted, "constant", scalars=(4,))


@ct.kernel(num_ctas=1, occupancy=2, opt_level=2)
def with_options(y):
    ct.store(y, (0,), ct.arange(8, dtype=ct.int32) + 1)


@ct.kernel(occupancy=ct.ByTarget(sm_90=2, default=4))
def with_options_by_target(y):
    ct.store(y, (0,), ct.arange(8, dtype=ct.int32) + 1)


@ct.kernel
def waits_for_the_grid(y):
    ct.grid_dependency_control_wait()
    ct.store(y, (0,), ct.arange(8, dtype=ct.int32) + 1)
    ct.grid_dependency_control_launch_dependents()


for name, kernel in (
    ("compiler_options", with_options),
    ("compiler_options_by_target", with_options_by_target),
    ("grid_dependency_control", waits_for_the_grid),
):
    computes(f"parameters/{name}", kernel, lanes + 1)

# --- dtypes of other libraries ----------------------------------------------------------------------------------

HALF = np.float16(0.5)
FOUR = np.int64(4)


@ct.kernel
def dtypes_of_other_libraries(y):
    if y.dtype == torch.int32:
        ct.store(y, (0,), 1)
    if y.dtype == np.int32:
        ct.store(y, (1,), 2)
    if y.dtype in (torch.float32, torch.int32):
        ct.store(y, (2,), 3)
    if y.dtype != torch.int32 or np.float32 == y.dtype:
        ct.store(y, (3,), 4)
    ct.store(y, (4,), torch.int16(5).astype(ct.int32))
    ct.store(y, (5,), np.int8(ct.bid(0) + 262).astype(ct.int32))
    ct.store(y, (6,), y.dtype(7))
    ct.store(y, (7,), ct.zeros((), np.int32) + ct.ones((), torch.int32))


@ct.kernel
def constants_of_numpy(y):
    n = ct.bid(0) + 3
    half, wide = n * HALF, FOUR + n
    ct.static_assert(half.dtype == ct.float16)
    ct.static_assert(wide.dtype == ct.int64)
    ct.store(y, (0,), (half * 2).astype(ct.int32))
    ct.store(y, (1,), wide.astype(ct.int32))


computes("dtypes/of_other_libraries", dtypes_of_other_libraries, [1, 2, 3, 0, 5, 6, 7, 1])
computes("dtypes/constants_of_numpy", constants_of_numpy, [3, 7, 0, 0, 0, 0, 0, 0])

# --- numbers are 0-d tiles ---------------------------------------------------------------------------------------


def like(value, number):
    return number.astype(value.dtype)


@ct.kernel
def attributes_of_numbers(y, n: ct.Constant[int], eps: ct.Constant[float]):
    half = eps.astype(ct.float16)
    size = ct.cdiv(n, 2)
    ct.static_assert(half == 0.5)
    whole, single, boolean = n.dtype, eps.dtype, True.dtype
    ct.static_assert((whole, single, boolean) == (ct.int32, ct.float32, ct.bool_))
    shape, rank = eps.shape, size.ndim
    ct.static_assert((shape, rank) == ((), 0))
    ct.store(y, (0,), n.reshape((1,)))
    ct.store(y, (1,), like(size, 2.5))
    ct.store(y, (2,), size.item())
    ct.store(y, (3,), like(n, half * 8))
    ct.store(y, (4,), ct.full((), ct.minimum(n, 4).item(), ct.int32))


@ct.kernel
def folded_constants(y):
    n = ct.ensure_constant(~ct.int32(-3))
    m = ct.ensure_constant(-ct.bool_(True) + 3)
    known = ct.ensure_constant(not ct.bool_(False))
    right = ct.ensure_constant(ct.isnan(ct.float16(1.5)))
    ct.static_assert(known and not right)
    size = ct.ensure_constant(ct.max(ct.int16(4)).item()).astype(ct.int32)
    ct.store(y, (0,), ct.full((n,), m, ct.int32))
    ct.store(y, (1,), ct.ones((2,), ct.int32) + ct.int32(ct.ensure_constant(ct.atan2(0.0, ct.float32(1.0)))))
    ct.store(y, (1,), ct.zeros((size,), ct.int32) + ct.astile(5, dtype=ct.int32) + ct.broadcast_to(ct.int32(1), ()))


@ct.kernel
def folded_number_in_a_loop(y):
    # A number that a loop assigns is of a dtype there, whichever function it came from.
    bytes_ = ct.arange(8, dtype=ct.int8)
    total, doubled = ct.cdiv(7, 2), ct.assume_divisible_by(2, 2)
    for _ in range(2):
        total = total + 100
        doubled = doubled * 2
    wide, dtype = bytes_ + total, (bytes_ + doubled).dtype
    ct.static_assert(dtype == ct.int32)
    ct.store(y, (0,), wide)


computes("numbers/attributes", attributes_of_numbers, [7, 2, 4, 4, 4, 0, 0, 0], 7, 0.5)
computes("numbers/folded", folded_constants, [2, 2, 1, 1, 6, 6, 6, 6])
computes("numbers/folded_in_a_loop", folded_number_in_a_loop, np.arange(8) + 204)

# --- the arguments of a launch -----------------------------------------------------------------------------------


@ct.kernel
def fills(y, n: ct.Constant[int]):
    ct.store(y, (ct.bid(0),), ct.full((n,), 1, ct.int32))


def plain_function(y, n):
    pass


def launch_error(name, error, match, grid=(1,), kernel=fills, args=lambda rng: [zeros(16), 4]):
    CASES.append(Case(f"launch/{name}_refused", kernel, grid, args, error=error, match=match, needs=("no-front-end",)))


launch_error("grid_a_list", TypeError, "tuple", grid=[1])
launch_error("grid_a_number", TypeError, "tuple", grid=4)
launch_error("grid_of_floats", TypeError, "integer", grid=(1.0,))
launch_error("grid_of_numpy_integers", TypeError, "integer", grid=(np.int64(1),))
launch_error("grid_of_four", ValueError, "at most 3", grid=(1, 1, 1, 1))
launch_error("grid_negative", (OverflowError, ValueError), "", grid=(-1,))
launch_error("grid_over_24_bits", ValueError, "24-bit", grid=(2**24,))
launch_error("not_a_kernel", TypeError, "kernel", kernel=plain_function)
launch_error("too_few_arguments", TypeError, "", args=lambda rng: [zeros(16)])
launch_error("too_many_arguments", TypeError, "", args=lambda rng: [zeros(16), 4, 5])
launch_error("array_for_a_constant", TypeError, "", args=lambda rng: [zeros(16), zeros(1)])
launch_error("unsupported_argument", (TypeError, ct.TileTypeError), "", args=lambda rng: [object(), 4])
launch_error("dictionary_argument", (TypeError, ct.TileTypeError), "", args=lambda rng: [{}, 4])
launch_error("complex_argument", (TypeError, ct.TileTypeError), "", args=lambda rng: [1j, 4])
