"""What callers pass to a launch: views of one memory, odd arrays, threads; and what a launch leaves behind."""

import gc
import signal
import sys
import threading
import tracemalloc

import cuda.tile as ct
import numpy as np
import pytest
import torch

from tilekit import cutile_interpreter
from tilekit.cutile_interpreter import api
from tilekit.cutile_interpreter.run import running


def launch(grid, kernel, *args, **options):
    cutile_interpreter.launch(None, grid, kernel, args, **options)


@ct.kernel
def copy(x, out, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(out, i, ct.load(x, i, TILE))


@ct.kernel
def add_one(x, out, TILE: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(out, i, ct.load(x, i, TILE) + 1)


# The call -------------------------------------------------------------------------------------------------------------


def test_a_launch_takes_what_ct_launch_takes():
    x = np.arange(8, dtype=np.float32)
    out = np.zeros_like(x)
    launch((True, 1), copy, x, out, 8, programmatic_dependent_launch=True)
    assert np.array_equal(out, x)
    with pytest.raises(TypeError, match="tuple"):
        cutile_interpreter.launch(None, (1,), copy, [x, out, 8])
    with pytest.raises(TypeError, match="integers of Python's"):
        launch((torch.tensor(1),), copy, x, out, 8)


# One memory -----------------------------------------------------------------------------------------------------------


@ct.kernel
def ones_then_next_number(floats, words):
    i = ct.bid(0)
    ct.store(floats, i, ct.full((4,), 1.0, ct.float32))
    ct.store(words, i, ct.load(words, i, 4) + 1)


@ct.kernel
def bytes_then_one_more(floats, words):
    i = ct.bid(0)
    ct.store(words, i, ct.full((16,), 0x40, ct.uint8))
    ct.store(floats, i, ct.load(floats, i, 4) + 1)


def test_views_of_one_memory_in_two_dtypes_see_each_other():
    x = np.zeros(64, np.float32)
    launch((16,), ones_then_next_number, x, x.view(np.int32))
    assert np.array_equal(x, np.full(64, np.nextafter(np.float32(1), np.float32(2))))
    launch((16,), bytes_then_one_more, x, x.view(np.uint8))
    assert np.array_equal(x, np.full(64, np.frombuffer(b"\x40" * 4, np.float32)[0] + 1))


@ct.kernel
def three_views(a, words, c):
    i = ct.bid(0)
    ct.store(a, i, ct.full((4,), 1.0, ct.float32))
    ct.store(c, i, ct.load(c, i, 4) + ct.load(words, i, 4).astype(ct.float32))


def test_overlapping_views_share_a_memory_with_another_dtype_in_between():
    x, wanted = np.zeros(20, np.float32), np.zeros(20, np.float32)
    launch((4,), three_views, x[:16], x[:16].view(np.int32), x[4:])
    for i in range(4):
        wanted[4 * i : 4 * i + 4] = 1
        added = wanted[4 * i : 4 * i + 4].view(np.int32).astype(np.float32)
        wanted[4 * i + 4 : 4 * i + 8] += added
    assert np.array_equal(x, wanted)


def test_the_same_array_twice_and_shifted():
    x = np.arange(8, dtype=np.float32)
    launch((2,), add_one, x, x, 4)
    assert np.array_equal(x, np.arange(1, 9))
    x = np.arange(6, dtype=np.float32)
    launch((1,), copy, x[:4], x[2:], 4)
    assert np.array_equal(x, [0, 1, 0, 1, 2, 3])


@pytest.mark.parametrize("turn", [lambda a: a, lambda a: a[::-1], lambda a: np.stack([a, a], 1)[:, 1]])
def test_strided_arrays(turn):
    x, out = turn(np.arange(8, dtype=np.float32)), turn(np.zeros(8, np.float32))
    launch((2,), copy, x, out, 4)
    assert np.array_equal(out, x)


@pytest.mark.parametrize("store", ["store", "scatter", "atomic_add"])
def test_read_only_arrays(store):
    @ct.kernel
    def writes(x):
        if store == "store":
            ct.store(x, 0, ct.load(x, 0, 4))
        elif store == "scatter":
            ct.scatter(x, 0, ct.float32(1.0))
        else:
            ct.atomic_add(x, 0, 1.0)

    x = np.ones(4, np.float32)
    kept = x.view()
    kept.flags.writeable = False
    out = np.zeros(4, np.float32)
    launch((1,), copy, kept, out, 4)
    assert out.all()
    with pytest.raises(ct.TileValueError, match=r"Argument x: a kernel may load from a read-only array.*\.copy\(\)"):
        launch((1,), writes, kept)
    for pair in ((kept, x), (x, kept)):
        x[:] = 1
        if pair[0] is kept:
            launch((1,), add_one, *pair, 4)
            assert (x == 2).all()


# Odd arrays -----------------------------------------------------------------------------------------------------------

TORCH = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu"
)


@pytest.mark.parametrize("name", TORCH.split())
def test_every_dtype_of_torch_that_cutile_has(name):
    x = torch.arange(1, 5).to(torch.float32).to(getattr(torch, name))
    out = torch.zeros(4).to(getattr(torch, name))
    launch((1,), copy, x, out, 4)
    assert torch.equal(out.view(torch.uint8), x.view(torch.uint8))


def test_tensors_of_a_graph():
    x, out = torch.ones(4, requires_grad=True), torch.zeros(4)
    launch((1,), copy, x * 3, out, 4)
    assert (out == 3).all() and not out.requires_grad
    with torch.inference_mode():
        out = torch.zeros(4)
    launch((1,), copy, torch.nn.Parameter(torch.ones(4)), out, 4)
    assert out.all()


REFUSED = {
    "meta": lambda: torch.ones(4, device="meta"),
    "negated": lambda: torch._neg_view(torch.ones(4)),
    "sparse": lambda: torch.ones(4).to_sparse(),
    "complex": lambda: torch.ones(4, dtype=torch.complex64),
    "float8_e4m3fnuz": lambda: torch.ones(4).to(torch.float8_e4m3fnuz),
    "big-endian": lambda: np.ones(4, ">f4"),
    "structured": lambda: np.zeros(4, [("a", "f4")]),
    "objects": lambda: np.zeros(4, object),
    "None": lambda: None,
    "text": lambda: "text",
    "numbers in a list": lambda: [1.0, 2.0],
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cutile_has_no_arrays_of(which):
    with pytest.raises(TypeError, match=r"Argument '?x'?"):
        launch((1,), copy, REFUSED[which](), np.zeros(4, np.float32), 4)


def test_empty_arrays():
    out = np.ones(4, np.float32)
    launch((1,), copy, np.zeros(0, np.float32), out, 4)
    launch((1,), copy, out, np.zeros(0, np.float32), 4)
    launch((0,), copy, out, np.zeros(0, np.float32), 4)


# States ---------------------------------------------------------------------------------------------------------------


def test_threads_launch_at_once():
    problems = []

    def work(n):
        try:
            for _ in range(20):
                x, out = np.full(1024, n, np.float32), np.zeros(1024, np.float32)
                with cutile_interpreter.interpreting():
                    ct.launch(None, (16,), add_one, (x, out, 64))
                assert (out == n + 1).all()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@ct.kernel
def waits(flag):
    while ct.gather(flag, 0) == 0:
        pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals here")
def test_an_interrupt_leaves_nothing_behind():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch((1,), waits, np.zeros(1, np.int32), max_steps=10**12)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    x = np.zeros(8, np.float32)
    launch((2,), add_one, x, x, 4)
    assert (x == 1).all()
    with pytest.raises(RuntimeError, match="inside a kernel"):
        running()


def test_a_trace_function_sees_the_kernels_lines():
    code, lines = api.python_function(add_one).__code__, set()

    def trace(frame, event, arg):
        if frame.f_code.co_name == "add_one":
            lines.add(frame.f_lineno - code.co_firstlineno)
            return trace
        return None

    x, before = np.zeros(8, np.float32), sys.gettrace()
    sys.settrace(trace)
    try:
        launch((2,), add_one, x, x, 4)
    finally:
        sys.settrace(before)
    assert {2, 3} <= lines


@ct.kernel
def launches(x):
    ct.launch(None, (1,), copy, (x, x, 4))


@ct.kernel
def calls(x):
    copy(x, x, 4)


@pytest.mark.parametrize("kernel", [launches, calls])
def test_a_kernel_inside_a_kernel(kernel):
    with pytest.raises(ct.TileTypeError, match="plain function"):
        launch((1,), kernel, np.zeros(4, np.float32))


def recursive(x):
    return recursive(x) + 1


@ct.kernel
def recursion(x):
    ct.store(x, 0, recursive(ct.load(x, 0, 4)))


def test_endless_recursion():
    with pytest.raises(ct.TileRecursionError, match="recursion"):
        launch((1,), recursion, np.zeros(4, np.float32))


def grown(times, work):
    work()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(times):
            work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / times
    finally:
        tracemalloc.stop()


def test_launches_do_not_gather_memory():
    def work():
        x = np.ones(1024, np.float32)
        launch((4,), add_one, x, np.empty_like(x), 256)

    assert grown(300, work) < 100


def test_kernels_are_forgotten_with_what_they_hold():
    def work():
        held = np.ones(1 << 16, np.float32)

        @ct.kernel
        def local(x, n: ct.Constant[int]):
            ct.store(x, ct.bid(0), ct.load(x, ct.bid(0), 4) + SIZE * n)

        SIZE = float(held[0])
        local.held = held
        launch((4,), local, np.ones(16, np.float32), 1)

    assert grown(20, work) < (1 << 18)


# Other libraries' arrays ----------------------------------------------------------------------------------------------


class Exported:
    """An array that says no more about itself than DLPack does."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("make", [lambda: np.zeros(8, np.float32), lambda: torch.zeros(8, dtype=torch.bfloat16)])
def test_an_object_with_dlpack_is_written_in_place(make):
    x, out = make(), make()
    launch((2,), add_one, Exported(x), Exported(out), 4)
    assert out.tolist() == [1.0] * 8 and x.tolist() == [0.0] * 8


def test_an_object_with_dlpack_elsewhere_is_refused():
    x = Exported(np.zeros(8, np.float32))
    x.__class__ = type("OnGpu", (Exported,), {"__dlpack_device__": lambda self: (2, 0)})
    with pytest.raises(TypeError, match="CPU's memory; got an object of type OnGpu"):
        launch((2,), add_one, x, np.zeros(8, np.float32), 4)
