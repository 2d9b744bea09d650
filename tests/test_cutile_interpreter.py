"""The interpreter as a whole: groups of blocks, divergence, order, limits, speed and memory."""

import subprocess
import sys
import time
import tracemalloc

import cuda.tile as ct
import numpy as np
import pytest
import torch

from tilekit import cutile_interpreter, triton_mode
from tilekit.cutile_interpreter import execution


def launch(grid, kernel, *args, **options):
    cutile_interpreter.launch(None, grid, kernel, args, **options)


@ct.kernel
def by_parity(x, out, TILE: ct.Constant[int]):
    i = ct.bid(0)
    tile = ct.load(x, (i,), (TILE,))
    if i % 2 == 0:
        tile = tile + 1.0
    else:
        for _ in range(i):
            tile = tile * 2.0
    ct.store(out, (i,), tile)


def test_blocks_that_go_different_ways():
    x = np.ones(96, np.float32)
    out = np.empty_like(x)
    launch((12,), by_parity, x, out, 8)
    wanted = [2.0 if i % 2 == 0 else 2.0**i for i in range(12)]
    assert np.array_equal(out.reshape(12, 8), np.repeat(np.array(wanted, np.float32)[:, None], 8, 1))


@ct.kernel
def in_place_twice(x):
    i = ct.bid(0)
    ct.store(x, (i,), ct.load(x, (i,), (4,)) + 1.0)
    ct.store(x, (i,), ct.load(x, (i,), (4,)) * 2.0)


def test_a_block_sees_what_it_stored():
    x = np.arange(32, dtype=np.float32)
    launch((8,), in_place_twice, x)
    assert np.array_equal(x, (np.arange(32, dtype=np.float32) + 1) * 2)


@ct.kernel
def stores_then_splits(x, out):
    i = ct.bid(0)
    ct.store(out, (i,), ct.load(out, (i,), (1,)) + ct.load(x, (i,), (1,)))
    if i > 3:
        ct.store(x, (i,), ct.zeros((1,), ct.float32))


def test_a_group_that_splits_leaves_nothing_half_done():
    x, out = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    launch((8,), stores_then_splits, x, out)
    assert np.array_equal(out, 1 + np.arange(8, dtype=np.float32))
    assert np.array_equal(x, [0, 1, 2, 3, 0, 0, 0, 0])


@ct.kernel
def waits_for_the_next(flags):
    i = ct.bid(0)
    while ct.atomic_cas(flags, i + 1, 1, 1) == 0:
        pass
    ct.atomic_xchg(flags, i, 1)


def test_a_wait_for_a_later_block_ends_with_an_explanation():
    with pytest.raises(RuntimeError, match=r"block \(0, 0, 0\) took more than 1,000 decisions.*one after another"):
        launch((3,), waits_for_the_next, np.zeros(4, np.int32), max_steps=1000)


@ct.kernel
def never_counts(flags):
    n = 0
    while n < 10:
        ct.store(flags, ct.bid(0), n)


@ct.kernel
def never_leaves(flags):
    while True:
        if ct.bid(0) > 5:
            break


@pytest.mark.parametrize("kernel", [never_counts, never_leaves])
@pytest.mark.parametrize("check", [False, True])
def test_a_loop_whose_test_never_changes_ends_with_an_explanation(kernel, check):
    with pytest.raises(RuntimeError, match="1,000 decisions. Does the loop change what its test looks at?"):
        launch((3,), kernel, np.zeros(4, np.int32), max_steps=1000, check=check)


@ct.kernel
def transpose(x, out, TILE: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(out, (j, i), ct.load(x, (i, j), (TILE, TILE)).transpose())


@pytest.mark.parametrize("of", ["numpy", "torch", "negative strides", "expanded"])
def test_any_array(of):
    x = np.arange(20 * 12, dtype=np.float32).reshape(20, 12)
    out = np.zeros((12, 20), np.float32)
    if of == "torch":
        x, out = torch.from_numpy(x), torch.from_numpy(out)
    elif of == "negative strides":
        x = x[::-1, ::-1]
    elif of == "expanded":
        x = np.broadcast_to(x[:1], x.shape)
    launch((5, 3), transpose, x, out, 4)
    assert np.array_equal(np.asarray(out), np.asarray(x).T)


@pytest.mark.parametrize("vectorised", [True, False])
def test_the_same_result_block_by_block(vectorised):
    x = torch.randn(40, 72)
    out = torch.empty(72, 40)
    launch((5, 9), transpose, x, out, 8, vectorize=vectorised)
    assert torch.equal(out, x.T)


def test_tracebacks_show_the_kernels_line():
    with pytest.raises(ct.TileValueError) as caught:
        launch((4,), reads_past_the_end, np.zeros(3, np.float32))
    assert "reads_past_the_end" in str(caught.value) and "check_bounds=False)  # here" in str(caught.value)
    lines = [entry.name for entry in caught.traceback]
    assert "reads_past_the_end" in lines


@ct.kernel
def reads_past_the_end(x):
    ct.load(x, (ct.bid(0),), (2,), check_bounds=False)  # here


@ct.kernel
def asserts_small(x, out):
    tile = ct.load(x, (ct.bid(0),), (4,))
    ct.assert_(tile < 10.0, "too large")
    ct.store(out, (ct.bid(0),), tile)


def test_an_error_names_its_block_and_the_blocks_before_it_have_run():
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    with pytest.raises(AssertionError, match=r"in block \(2, 0, 0\) at element \(2,\)") as caught:
        launch((4,), asserts_small, x, out)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["in block (2, 0, 0) of grid (4, 1, 1)"]
    assert np.array_equal(out, np.where(x < 8, x, 0))


def test_it_needs_no_torch(tmp_path):
    """It imports none; NVIDIA's front end, which checks the kernel, imports it where it is installed."""
    script = tmp_path / "script.py"  # a file, because NVIDIA's front end reads a kernel's source
    script.write_text(
        "import sys\n"
        "import numpy as np, cuda.tile as ct\n"
        "from tilekit import cutile_interpreter\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None  # not installed\n"
        "@ct.kernel\n"
        "def double(x):\n"
        "    ct.store(x, 0, ct.load(x, 0, 8) * 2.0)\n"
        "x = np.ones(8, np.float32)\n"
        "cutile_interpreter.launch(None, (1,), double, (x,))\n"
        "assert (x == 2).all()\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


# Speed and memory -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(triton_mode.mode() != "interpreted", reason="Triton compiles in this process")
def test_faster_than_tritons_interpreter():
    """The figures are in benchmarks/; here it is enough that a kernel is far from as slow as Triton's."""
    import triton.language as tl

    from tilekit.kernels.vadd import cutile_kernel, triton_kernel

    n, tile = 2**16, 256
    a, b, out = torch.randn(n), torch.randn(n), torch.empty(n)
    grid = (n // tile,)
    ours, theirs = [], []
    for times, call in [
        (ours, lambda: launch(grid, cutile_kernel.vadd_kernel, a, b, out, tile)),
        (theirs, lambda: triton_kernel.vadd_kernel[grid](a, b, out, n, BLOCK=tile, INDEX=tl.int32)),
    ]:
        for _ in range(4):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        assert torch.equal(out, a + b)
    assert min(theirs) > 10 * min(ours)


def test_attention_over_4096_keys_stays_small():
    from tilekit.kernels.flash_attention import cutile_kernel

    q, k, v = (torch.randn(1, 2, 4096, 64) for _ in range(3))
    out, lse = torch.empty_like(q), torch.empty(1, 2, 4096, 1)
    args = (q, k, v, out, lse, 0.125 * 1.4426950408889634, 1, False, 128, 128, 64, 64, 1, 2, False)
    tracemalloc.start()
    launch((64,), cutile_kernel.flash_attention_kernel, *args)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 2**20
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v), rtol=1e-4, atol=1e-5)


def test_groups_are_bounded_by_bytes():
    ready = execution.prepared(transpose)
    launch((64, 64), transpose, np.zeros((2048, 2048), np.float32), np.zeros((2048, 2048), np.float32), 32)
    assert ready.tile_bytes == 32 * 32 * 4


@ct.kernel
def from_a_list(xs, out, i: int):
    ct.store(out, 0, ct.load(xs[i], 0, 4))


@pytest.mark.parametrize("index", [-1, 3])
def test_a_list_has_no_array_beside_its_own(index):
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    launch((1,), from_a_list, [x, 2 * x, 3 * x], out, 2)
    assert out.tolist() == [0, 3, 6, 9]
    with pytest.raises(ct.TileValueError, match=f"Index {index} lies outside of the list xs of 3 arrays, in block"):
        launch((1,), from_a_list, [x, 2 * x, 3 * x], out, index)


@ct.kernel
def triangular(out):
    j = 0
    total = 0
    while j < ct.bid(0):
        total += j
        j += 1
    ct.store(out, ct.bid(0), total)


def test_a_group_that_blocks_leave_one_by_one(monkeypatch):
    runs, once = [], execution.Launch.once
    monkeypatch.setattr(execution.Launch, "once", lambda self, blocks: (runs.append(len(blocks)), once(self, blocks)))
    out = np.zeros(100, np.int32)
    launch((100,), triangular, out)
    assert out.tolist() == [i * (i - 1) // 2 for i in range(100)]
    assert len(runs) <= 100 + 4 * execution.LEAVERS_MAX, "a run again for each that leaves is slower than one by one"
