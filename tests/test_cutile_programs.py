"""Kernels as people write them, one to a test, against torch."""

import dataclasses
import enum
import functools
import math

import cuda.tile as ct
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tilekit import cutile_interpreter

ConstInt = ct.Constant[int]
ConstBool = ct.Constant[bool]
ConstFloat = ct.Constant[float]


def launch(grid, kernel, *args):
    cutile_interpreter.launch(None, grid, kernel, args)


def close(got, wanted, tolerance=2e-5):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# Normalisation --------------------------------------------------------------------------------------------------------


@ct.kernel
def layer_norm_forward(X, W, B, Y, Mean, Rstd, eps, TILE: ConstInt):
    row = ct.bid(0)
    tiles = ct.num_tiles(X, axis=1, shape=(1, TILE))
    N = X.shape[1]
    mean = ct.full((1, TILE), 0, dtype=ct.float32)
    for j in range(tiles):
        mean += ct.load(X, index=(row, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO)
    mean = ct.sum(mean, axis=1) / N
    ct.store(Mean, index=(row,), tile=mean)
    var = ct.full((1, TILE), 0, dtype=ct.float32)
    for j in range(tiles):
        tx = ct.load(X, index=(row, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO)
        inside = (j * TILE + ct.arange(TILE, dtype=ct.int32)) < N
        centered = ct.where(inside, tx - mean, 0)
        var += centered**2
    var = ct.sum(var, axis=1) / N
    rstd = 1 / ct.sqrt(var + eps)
    ct.store(Rstd, index=(row,), tile=rstd)
    for j in range(tiles):
        tx = ct.load(X, index=(row, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO)
        tw = ct.load(W, index=(j,), shape=(TILE,), padding_mode=ct.PaddingMode.ZERO)
        tb = ct.load(B, index=(j,), shape=(TILE,), padding_mode=ct.PaddingMode.ZERO)
        ct.store(Y, index=(row, j), tile=((tx - mean) * rstd * tw + tb).astype(Y.dtype))


def bwd_helper(X, W, DY, row, j, mean, rstd, TILE, N):
    tx = ct.load(X, index=(row, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO)
    tw = ct.load(W, index=(j,), shape=(TILE,), padding_mode=ct.PaddingMode.ZERO)
    tdy = ct.load(DY, index=(row, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO)
    xhat = (tx - mean) * rstd
    wdy = tw * tdy
    mask = j * TILE + ct.arange(TILE, dtype=ct.int32) < N
    xhat = ct.where(mask, xhat, 0)
    wdy = ct.where(mask, wdy, 0)
    return tdy, xhat, wdy


@ct.kernel
def layer_norm_backward(DX, DY, DW, DB, X, W, Mean, Rstd, Locks, TILE: ConstInt, GROUP: ConstInt):
    row = ct.bid(0)
    group = row % GROUP
    tiles = ct.num_tiles(X, axis=1, shape=(1, TILE))
    N = X.shape[1]
    mean = ct.load(Mean, index=(row,), shape=(1,))
    rstd = ct.load(Rstd, index=(row,), shape=(1,))
    c1 = ct.full((1, TILE), 0, dtype=ct.float32)
    c2 = ct.full((1, TILE), 0, dtype=ct.float32)
    for j in range(tiles):
        _, xhat, wdy = bwd_helper(X, W, DY, row, j, mean, rstd, TILE, N)
        c1 += xhat * wdy
        c2 += wdy
    c1 = ct.sum(c1, axis=1) / N
    c2 = ct.sum(c2, axis=1) / N
    for j in range(tiles):
        tdy, xhat, wdy = bwd_helper(X, W, DY, row, j, mean, rstd, TILE, N)
        ct.store(DX, index=(row, j), tile=((wdy - (xhat * c1 + c2)) * rstd).astype(DX.dtype))
        partial_dw = (tdy * xhat).astype(DW.dtype)
        partial_db = tdy.astype(DB.dtype)
        while ct.atomic_cas(Locks, group, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) == 1:
            pass
        partial_dw += ct.load(DW, index=(group, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO)
        partial_db += ct.load(DB, index=(group, j), shape=(1, TILE), padding_mode=ct.PaddingMode.ZERO)
        ct.store(DW, index=(group, j), tile=partial_dw)
        ct.store(DB, index=(group, j), tile=partial_db)
        ct.atomic_xchg(Locks, group, 0, memory_order=ct.MemoryOrder.RELEASE)


def test_layer_norm():
    M, N, T = 13, 100, 32
    x = torch.randn(M, N, requires_grad=True)
    w = torch.randn(N, requires_grad=True)
    b = torch.randn(N, requires_grad=True)
    y, mean, rstd = torch.full((M, N), torch.nan), torch.empty(M), torch.empty(M)
    launch((M,), layer_norm_forward, x, w, b, y, mean, rstd, 1e-5, T)
    wanted = F.layer_norm(x, (N,), w, b, 1e-5)
    close(y, wanted.detach())
    dy = torch.randn(M, N)
    wanted.backward(dy)
    dx, dw, db = torch.empty(M, N), torch.zeros(4, N), torch.zeros(4, N)
    launch((M,), layer_norm_backward, dx, dy, dw, db, x.detach(), w.detach(), mean, rstd,
           torch.zeros(4, dtype=torch.int32), T, 4)  # fmt: skip
    close(dx, x.grad)
    close(dw.sum(0), w.grad)
    close(db.sum(0), b.grad)


@ct.kernel
def rms_norm_gather(x, w, out, Rstd, N: ConstInt, eps: ConstFloat, offset: ConstFloat, TILE: ConstInt):
    row = ct.bid(0)
    _rms = ct.full((TILE,), 0.0, dtype=ct.float32)
    num_tiles = ct.cdiv(N, TILE)
    offsets = ct.arange(TILE, dtype=ct.int32)
    for j in range(0, num_tiles):
        offs = j * TILE + offsets
        xj = ct.gather(x, (row, offs), latency=1).astype(ct.float32)
        _rms += xj * xj
    rms = ct.rsqrt(ct.sum(_rms, axis=0, keepdims=False) / N + eps)
    ct.scatter(Rstd, row, rms)
    for j in range(0, num_tiles):
        offs = j * TILE + offsets
        wj = ct.gather(w, offs, latency=1).astype(ct.float32)
        xj = ct.gather(x, (row, offs), latency=1).astype(ct.float32)
        ct.scatter(out, (row, offs), (xj * rms * (offset + wj)).astype(x.dtype), latency=1)


@ct.kernel
def rms_norm_persistent(x, w, out, M: ConstInt, TILE_M: ConstInt, TILE_N: ConstInt, eps: ConstFloat):
    bid = ct.bid(0)
    M, N = x.shape[0], x.shape[1]
    upper = (M + TILE_M - 1) // TILE_M
    w_tile = ct.load(w, index=(0,), shape=(TILE_N,), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    for current in range(bid, upper, ct.num_blocks(0)):
        tx = ct.load(x, index=(current, 0), shape=(TILE_M, TILE_N), latency=10, padding_mode=ct.PaddingMode.ZERO)
        tx = ct.astype(tx, ct.float32)
        mean2 = ct.sum(ct.mul(tx, tx), axis=1, keepdims=True) / ct.full((TILE_M, 1), N * 1.0, dtype=ct.float32)
        r = ct.rsqrt(ct.add(mean2, ct.full((TILE_M, 1), eps, dtype=ct.float32)))
        wb = ct.broadcast_to(ct.reshape(w_tile, (1, TILE_N)), (TILE_M, TILE_N))
        y = ct.mul(ct.mul(tx, r), wb)
        ct.store(out, index=(current, 0), tile=ct.astype(y, x.dtype), allow_tma=False, latency=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm(dtype):
    x, w = torch.randn(37, 200).to(dtype), torch.randn(200).to(dtype)
    wanted = F.rms_norm(x.double(), (200,), w.double(), 1e-5)
    tol = 2e-5 if dtype is torch.float32 else 2e-2
    out, rstd = torch.empty_like(x), torch.empty(37)
    launch((37,), rms_norm_gather, x, w, out, rstd, 200, 1e-5, 0.0, 64)
    close(out, wanted, tol)
    out.fill_(torch.nan)
    launch((4,), rms_norm_persistent, x, w, out, 37, 4, 256, 1e-5)
    close(out, wanted, tol)


@ct.kernel
def batch_norm(x, mean, var, w, b, y, eps, HW: ConstInt):
    n, c = ct.bid(0), ct.bid(1)
    m = ct.load(mean, (c,), ()).item() if False else ct.load(mean, (c,), (1,)).item()
    rstd = ct.rsqrt(ct.load(var, (c,), (1,)).item() + eps)
    tile = ct.load(x, (n, c, 0), (1, 1, HW), padding_mode=ct.PaddingMode.ZERO)
    y_tile = (tile - m) * rstd * ct.load(w, c, 1).item() + ct.load(b, c, 1).item()
    ct.store(y, (n, c, 0), y_tile)


def test_batch_norm():
    x = torch.randn(3, 5, 7, 7)
    mean, var, w, b = torch.randn(5), torch.rand(5) + 0.5, torch.randn(5), torch.randn(5)
    y = torch.empty(3, 5, 49)
    launch((3, 5), batch_norm, x.reshape(3, 5, 49), mean, var, w, b, y, 1e-5, 64)
    close(y.view(3, 5, 7, 7), F.batch_norm(x, mean, var, w, b, eps=1e-5))


# Elementwise ----------------------------------------------------------------------------------------------------------


@ct.kernel
def rope(q, cos, sin, BH: ConstInt, TILE_HD: ConstInt):
    batch, seq = ct.bid(0) // q.shape[2], ct.bid(0) % q.shape[2]
    c = ct.load(cos, (0, seq, 0), (1, 1, TILE_HD), padding_mode=ct.PaddingMode.ZERO).reshape((1, TILE_HD))
    s = ct.load(sin, (0, seq, 0), (1, 1, TILE_HD), padding_mode=ct.PaddingMode.ZERO).reshape((1, TILE_HD))
    q1 = ct.load(q, (batch, 0, seq, 0, 0), (1, BH, 1, 1, TILE_HD)).reshape((BH, TILE_HD))
    q2 = ct.load(q, (batch, 0, seq, 1, 0), (1, BH, 1, 1, TILE_HD)).reshape((BH, TILE_HD))
    new1 = q1 * c - q2 * s
    new2 = q2 * c + q1 * s
    ct.store(q, (batch, 0, seq, 0, 0), new1.reshape((1, BH, 1, 1, TILE_HD)).astype(q.dtype))
    ct.store(q, (batch, 0, seq, 1, 0), new2.reshape((1, BH, 1, 1, TILE_HD)).astype(q.dtype))


def test_rope_in_place():
    B, H, S, D = 2, 4, 9, 16
    q = torch.randn(B, H, S, D)
    angles = torch.outer(torch.arange(S).float(), 10000 ** (-torch.arange(0, D, 2) / D))
    cos, sin = angles.cos()[None], angles.sin()[None]
    a, b = q[..., : D // 2], q[..., D // 2 :]
    wanted = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    mine = q.clone()
    launch((B * S,), rope, mine.view(B, H, S, 2, D // 2), cos, sin, H, D // 2)
    close(mine, wanted)


def sigmoid(x):
    denom = ct.add(1.0, ct.exp(-x), flush_to_zero=True)
    return ct.truediv(1.0, denom, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)


def silu(x):
    return x * sigmoid(x)


ACTIVATIONS = {"silu": silu, "relu": lambda x: ct.maximum(x, 0), "gelu": lambda x: x * (0.5 * (1 + ct.tanh(
    0.7978845608028654 * (x + 0.044715 * x * x * x))))}  # fmt: skip


class Activation(enum.Enum):
    SILU = "silu"
    RELU = "relu"
    GELU = "gelu"


def make_gated(activation):
    function = ACTIVATIONS[activation.value]

    @ct.kernel
    def gated(x, out, TILE: ConstInt, hidden: ConstInt):
        bid = ct.bid(0)
        offsets = ct.arange(TILE, dtype=torch.int32)
        row = bid
        a = ct.gather(x, (row, offsets), check_bounds=True).astype(torch.float32)
        b = ct.gather(x, (row, offsets + hidden), check_bounds=True).astype(torch.float32)
        ct.scatter(out, (row, offsets), (function(a) * b).astype(out.dtype), check_bounds=True)

    return gated


@pytest.mark.parametrize("activation", list(Activation))
def test_gated_activations_from_a_table(activation):
    x, out = torch.randn(6, 2 * 40).bfloat16(), torch.empty(6, 40, dtype=torch.bfloat16)
    launch((6,), make_gated(activation), x, out, 64, 40)
    a, b = x.double().chunk(2, -1)
    theirs = {"silu": F.silu, "relu": F.relu, "gelu": functools.partial(F.gelu, approximate="tanh")}[activation.value]
    close(out, theirs(a) * b, 2e-2)


def mulhi(x, y):
    return ((x.astype(ct.uint64) * y.astype(ct.uint64)) >> ct.uint64(32)).astype(ct.uint32)


def philox(counter, seed):
    c0, c1, c2, c3 = counter, ct.zeros(counter.shape, ct.uint32), ct.zeros(counter.shape, ct.uint32), ct.zeros(
        counter.shape, ct.uint32)  # fmt: skip
    k0, k1 = seed, ct.uint32(0)
    for _ in ct.static_iter(range(10)):
        a = ct.uint32(0xD2511F53)
        b = ct.uint32(0xCD9E8D57)
        hi0, lo0 = mulhi(b, c2), b * c2
        hi1, lo1 = mulhi(a, c0), a * c0
        c0, c1, c2, c3 = hi0 ^ c1 ^ k0, lo0, hi1 ^ c3 ^ k1, lo1
        k0 = k0 + ct.uint32(0x9E3779B9)
        k1 = k1 + ct.uint32(0xBB67AE85)
    return c0


@ct.kernel
def dropout(x, out, bits, p: float, seed: int, TILE: ConstInt):
    i = ct.bid(0)
    offs = (i * TILE + ct.arange(TILE, dtype=ct.int32)).astype(ct.uint32)
    r = philox(offs, ct.astype(seed, ct.uint32))
    u = (r >> ct.uint32(8)).astype(ct.float32) * (1.0 / 16777216.0)
    keep = u > p
    tile = ct.load(x, i, TILE)
    ct.store(bits, i, r)
    ct.store(out, i, ct.where(keep, tile / (1 - p), 0.0))


def philox_numpy(counter, seed):
    mask = 0xFFFFFFFF
    out = []
    for c in counter:
        c0, c1, c2, c3, k0, k1 = int(c), 0, 0, 0, seed, 0
        for _ in range(10):
            p0, p1 = 0xCD9E8D57 * c2, 0xD2511F53 * c0
            c0, c1, c2, c3 = (p0 >> 32) ^ c1 ^ k0, p0 & mask, (p1 >> 32) ^ c3 ^ k1, p1 & mask
            k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
        out.append(c0)
    return np.array(out, np.uint32)


def test_dropout_with_philox():
    x, out = torch.randn(1024), torch.empty(1024)
    bits = torch.empty(1024, dtype=torch.uint32)
    launch((4,), dropout, x, out, bits, 0.25, 1234, 256)
    wanted = philox_numpy(range(1024), 1234)
    assert np.array_equal(bits.numpy(), wanted)
    keep = (wanted >> 8).astype(np.float32) / 2**24 > 0.25
    close(out, torch.where(torch.from_numpy(keep), x / 0.75, 0.0))


@ct.kernel
def adamw(p, g, m, v, lr: float, b1: float, b2: float, eps: float, wd: float, step: int, TILE: ConstInt):
    i = ct.bid(0)
    tp = ct.load(p, i, TILE, padding_mode=ct.PaddingMode.ZERO)
    tg = ct.load(g, i, TILE, padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    tm = ct.load(m, i, TILE, padding_mode=ct.PaddingMode.ZERO) * b1 + tg * (1.0 - b1)
    tv = ct.load(v, i, TILE, padding_mode=ct.PaddingMode.ZERO) * b2 + tg * tg * (1.0 - b2)
    mhat = tm / (1.0 - ct.pow(b1, ct.astype(step, ct.float32)))
    vhat = tv / (1.0 - b2 ** ct.astype(step, ct.float32))
    tp = tp * (1.0 - lr * wd) - lr * mhat / (ct.sqrt(vhat) + eps)
    ct.store(p, i, tp)
    ct.store(m, i, tm)
    ct.store(v, i, tv)


def test_adamw():
    p = torch.randn(300)
    theirs = p.clone().requires_grad_()
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    m, v = torch.zeros(300), torch.zeros(300)
    for step in range(1, 4):
        g = torch.randn(300)
        theirs.grad = g.clone()
        optimizer.step()
        launch((3,), adamw, p, g, m, v, 1e-2, 0.9, 0.999, 1e-8, 0.1, step, 128)
    close(p, theirs.detach(), 1e-4)


# Softmax, cross entropy -----------------------------------------------------------------------------------------------


@ct.kernel(occupancy=ct.ByTarget(sm_100=4, default=2))
def softmax_persistent(x, out, n_rows: ConstInt, TILE: ConstInt, n_cols: ConstInt):
    pid = ct.bid(0)
    offsets = ct.arange(TILE, dtype=ct.int32)
    for row in range(pid, n_rows, ct.num_blocks(0)):
        t = ct.gather(x, (row, offsets), check_bounds=True, padding_value=-math.inf)
        t = ct.astype(t, ct.float32)
        e = ct.exp(t - ct.max(t, 0, keepdims=True))
        ct.scatter(out, (row, offsets), ct.astype(e / ct.sum(e, 0, keepdims=True), x.dtype), check_bounds=True)


@ct.kernel
def softmax_online(x, out, TILE: ConstInt):
    row = ct.bid(0)
    m = ct.full((1, 1), -np.inf, ct.float32)
    s = ct.full((1, 1), 0.0, dtype=ct.float32)
    for j in range(ct.num_tiles(x, 1, (1, TILE))):
        t = ct.load(x, (row, j), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF)
        new = max(m, ct.max(t, 1, keepdims=True))
        s = s * ct.exp(m - new) + ct.sum(ct.exp(t - new), axis=1, keepdims=True)
        m = new
    for j in range(ct.num_tiles(x, 1, (1, TILE))):
        t = ct.load(x, (row, j), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF)
        ct.store(out, (row, j), ct.exp(t - m) / s)


def test_softmaxes():
    x = torch.randn(11, 100)
    out = torch.empty_like(x)
    launch((3,), softmax_persistent, x, out, 11, 128, 100)
    close(out, x.softmax(-1))
    out.fill_(9)
    launch((11,), softmax_online, x, out, 32)
    close(out, x.softmax(-1))


@ct.kernel
def cross_entropy(logits, labels, loss, grad, ignore: ConstInt, smoothing: ConstFloat, TILE: ConstInt):
    row = ct.bid(0)
    V = logits.shape[1]
    y = ct.gather(labels, row)
    if y == ignore:
        for j in range(ct.cdiv(V, TILE)):
            ct.store(grad, (row, j), ct.zeros((1, TILE), grad.dtype))
        ct.scatter(loss, row, 0.0)
        return
    m = ct.float32(float("-inf"))
    d = ct.float32(0.0)
    for j in range(ct.cdiv(V, TILE)):
        t = ct.load(logits, (row, j), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        new = max(m, ct.max(t))
        d = d * ct.exp(m - new) + ct.sum(ct.exp(t - new))
        m = new
    lse = m + ct.log(d)
    ct.scatter(loss, row, lse - ct.gather(logits, (row, y)).astype(ct.float32))
    for j in range(ct.cdiv(V, TILE)):
        t = ct.load(logits, (row, j), (1, TILE), padding_mode=ct.PaddingMode.NEG_INF).astype(ct.float32)
        columns = j * TILE + ct.arange(TILE, dtype=ct.int64)[None, :]
        g = ct.exp(t - lse) - ct.where(columns == y, 1.0, 0.0)
        ct.store(grad, (row, j), g.astype(grad.dtype))


def test_cross_entropy_that_returns_early():
    x = torch.randn(9, 70, requires_grad=True)
    y = torch.randint(0, 70, (9,))
    y[[2, 5]] = -100
    loss, grad = torch.empty(9), torch.empty(9, 70)
    launch((9,), cross_entropy, x.detach(), y, loss, grad, -100, 0.0, 32)
    wanted = F.cross_entropy(x, y, reduction="none", ignore_index=-100)
    wanted.sum().backward()
    close(loss, wanted.detach())
    close(grad, x.grad)


# Matrix products ------------------------------------------------------------------------------------------------------


def swizzle_2d_from_bid(M, N, tm, tn, GROUP_SIZE_M, bid):
    num_bid_m = ct.cdiv(M, tm)
    num_bid_n = ct.cdiv(N, tn)
    num_bid_in_group = GROUP_SIZE_M * num_bid_n
    group_id = bid // num_bid_in_group
    first_bid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_bid_m - first_bid_m, GROUP_SIZE_M)
    bid_m = first_bid_m + (bid % group_size_m)
    bid_n = (bid % num_bid_in_group) // group_size_m
    return bid_m, bid_n


@ct.kernel(num_ctas=ct.ByTarget(sm_100=2))
def static_persistent_matmul(A, B, C, M: ct.Constant, N: ct.Constant, K: ct.Constant, TM: ConstInt, TN: ConstInt,
                             TK: ConstInt, transpose_a: ConstBool, transpose_b: ConstBool, GROUP: ConstInt):  # fmt: skip
    bid = ct.bid(0)
    tiles = ct.cdiv(M, TM) * ct.cdiv(N, TN)
    zero_pad = ct.PaddingMode.ZERO
    for current in range(bid, tiles, ct.num_blocks(0)):
        accumulator = ct.full((TM, TN), 0.0, dtype=ct.float32)
        bm, bn = swizzle_2d_from_bid(M, N, TM, TN, GROUP, current)
        for k in range(ct.cdiv(K, TK)):
            if transpose_a:
                a = ct.transpose(ct.load(A, index=(k, bm), shape=(TK, TM), padding_mode=zero_pad))
            else:
                a = ct.load(A, index=(bm, k), shape=(TM, TK), padding_mode=zero_pad)
            if transpose_b:
                b = ct.load(B, index=(k, bn), shape=(TK, TN), order=(1, 0), padding_mode=zero_pad)
            else:
                b = ct.load(B, index=(k, bn), shape=(TK, TN), padding_mode=zero_pad)
            dtype = ct.tfloat32 if A.dtype == ct.float32 else A.dtype
            accumulator = ct.mma(a.astype(dtype), b.astype(dtype), accumulator)
        ct.store(C, index=(bm, bn), tile=ct.astype(accumulator, C.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_static_persistent_matmul(dtype, ta, tb):
    M, N, K = 70, 50, 40
    a = torch.randn(K, M).to(dtype) if ta else torch.randn(M, K).to(dtype)
    b = torch.randn(N, K).to(dtype) if tb else torch.randn(K, N).to(dtype)
    c = torch.full((M, N), torch.nan, dtype=dtype)
    launch((5,), static_persistent_matmul, a, b, c, M, N, K, 16, 32, 16, ta, tb, 4)
    wanted = (a.double().T if ta else a.double()) @ (b.double().T if tb else b.double())
    close(c, wanted, 3e-2)


@ct.kernel
def split_k_locked(A, B, C, LOCKS, COUNTS, TM: ConstInt, TN: ConstInt, TK: ConstInt, SPLIT: ConstInt):
    i, j, s = ct.bid(0), ct.bid(1), ct.bid(2)
    acc = ct.full((TM, TN), 0.0, dtype=ct.float32)
    for k in range(s, ct.num_tiles(A, 1, (TM, TK)), SPLIT):
        a = ct.load(A, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(B, (k, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(a, b, acc)
    acc = ct.astype(acc, C.dtype)
    lock = i * ct.num_blocks(1) + j
    count = ct.atomic_add(COUNTS, lock, 0)
    while ct.atomic_cas(LOCKS, lock, 0, 1, memory_order=ct.MemoryOrder.ACQUIRE) == 1:
        pass
    count = ct.gather(COUNTS, lock)
    if count == 0:
        ct.store(C, (i, j), tile=acc)
    else:
        curr = ct.load(C, (i, j), shape=(TM, TN))
        ct.store(C, (i, j), tile=(curr + acc))
    ct.scatter(COUNTS, lock, (count + 1) % SPLIT)
    ct.atomic_xchg(LOCKS, lock, 0, memory_order=ct.MemoryOrder.RELEASE)


@ct.kernel
def split_k_atomic(A, B, C, TM: ConstInt, TN: ConstInt, TK: ConstInt):
    i, j, s = ct.bid(0), ct.bid(1), ct.bid(2)
    acc = ct.zeros((TM, TN), ct.float32)
    k = s
    tiles = ct.num_tiles(A, 1, (TM, TK))
    while k < tiles:
        acc = ct.load(A, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO) @ ct.load(
            B, (k, j), (TK, TN), padding_mode=ct.PaddingMode.ZERO) + acc  # fmt: skip
        k += ct.num_blocks(2)
    rows = i * TM + ct.arange(TM, dtype=ct.int32)[:, None]
    cols = j * TN + ct.arange(TN, dtype=ct.int32)[None, :]
    ct.atomic_add(C, (rows, cols), acc)


def test_split_k():
    a, b = torch.randn(50, 90), torch.randn(90, 40)
    c = torch.full((50, 40), torch.nan)
    locks, counts = torch.zeros(2, 12, dtype=torch.int32).unbind()
    launch((4, 3, 3), split_k_locked, a, b, c, locks, counts, 16, 16, 16, 3)
    close(c, a @ b, 1e-4)
    assert not locks.any() and not counts.any()
    c.zero_()
    launch((4, 3, 3), split_k_atomic, a, b, c, 16, 16, 16)
    close(c, a @ b, 1e-4)


@ct.kernel
def stream_k(A, B, C, LOCKS, total_full, total_partial, iters: ConstInt, TM: ConstInt, TN: ConstInt, TK: ConstInt):
    pid = ct.bid(0)
    grid = ct.num_blocks(0)
    start = pid * total_full + min(pid, total_partial)
    last = (pid + 1) * total_full + min(pid + 1, total_partial)
    nn = ct.cdiv(B.shape[1], TN)
    while start < last:
        end = min(start + (iters - start % iters), last)
        tile = start // iters
        bm, bn = tile // nn, tile % nn
        acc = ct.zeros((TM, TN), ct.float32)
        for it in range(start, end):
            k = it % iters
            a = ct.load(A, (bm, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
            b = ct.load(B, (k, bn), (TK, TN), padding_mode=ct.PaddingMode.ZERO)
            acc = ct.mma(a, b, acc)
        rows = bm * TM + ct.arange(TM, dtype=ct.int32)[:, None]
        cols = bn * TN + ct.arange(TN, dtype=ct.int32)[None, :]
        if end % iters == 0 and start % iters == 0:
            ct.store(C, (bm, bn), acc)
        else:
            ct.atomic_add(C, (rows, cols), acc)
        start = end
    ct.atomic_add(LOCKS, 0, grid)


def test_stream_k():
    a, b, c, programs = torch.randn(60, 100), torch.randn(100, 60), torch.zeros(60, 60), 7
    tiles, iters = 16, 7
    launch((programs,), stream_k, a, b, c, torch.zeros(1, dtype=torch.int32), tiles * iters // programs,
           tiles * iters % programs, iters, 16, 16, 16)  # fmt: skip
    close(c, a @ b, 1e-4)


@ct.kernel
def batched_matmul(A, B, C, TM: ConstInt, TN: ConstInt, TK: ConstInt):
    b, i, j = ct.bid(2), ct.bid(0), ct.bid(1)
    acc = ct.zeros((1, TM, TN), dtype=ct.float32)
    for k in range(ct.num_tiles(A, 2, (1, TM, TK))):
        acc = ct.mma(
            ct.load(A, (b, i, k), shape=(1, TM, TK), padding_mode=ct.PaddingMode.ZERO),
            ct.load(B, (b, k, j), shape=(1, TK, TN), padding_mode=ct.PaddingMode.ZERO),
            acc,
        )
    ct.store(C, (b, i, j), acc.astype(C.dtype))


@ct.kernel
def grouped_matmul(As, Bs, Cs, TM: ConstInt, TN: ConstInt, TK: ConstInt, SMS: ConstInt):
    tile_idx = ct.bid(0)
    last = 0
    for g in range(len(As)):
        Ai, Bi, Ci = As[g], Bs[g], Cs[g]
        nm = ct.num_tiles(Ai, 0, (TM, TK))
        nk = ct.num_tiles(Ai, 1, (TM, TK))
        nn = ct.num_tiles(Bi, 1, (TK, TN))
        tiles = nm * nn
        while tile_idx >= last and tile_idx < last + tiles:
            idx = tile_idx - last
            acc = ct.full((TM, TN), 0.0, dtype=ct.float32)
            for k in range(nk):
                ta = ct.load(Ai, (idx // nn, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
                tb = ct.load(Bi, (k, idx % nn), shape=(TK, TN), padding_mode=ct.PaddingMode.ZERO)
                acc = ct.mma(ta, tb, acc)
            ct.store(Ci, (idx // nn, idx % nn), ct.astype(acc, Ci.dtype))
            tile_idx += SMS
        last = last + tiles


def test_batched_and_grouped_matmul():
    a, b, c = torch.randn(3, 33, 20).half(), torch.randn(3, 20, 17).half(), torch.empty(3, 33, 17).half()
    launch((3, 2, 3), batched_matmul, a, b, c, 16, 16, 16)
    close(c, a.double() @ b.double(), 1e-2)
    sizes = [(20, 30, 40), (64, 16, 16), (5, 5, 5)]
    As = [torch.randn(m, k) for m, n, k in sizes]
    Bs = [torch.randn(k, n) for m, n, k in sizes]
    Cs = [torch.full((m, n), torch.nan) for m, n, k in sizes]
    launch((3,), grouped_matmul, As, Bs, Cs, 16, 16, 16, 3)
    for x, y, z in zip(As, Bs, Cs, strict=True):
        close(z, x @ y, 1e-4)


@ct.kernel
def int8_matmul(A, B, SA, SB, C, TM: ConstInt, TN: ConstInt, TK: ConstInt):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), ct.int32)
    for k in range(ct.num_tiles(A, 1, (TM, TK))):
        a = ct.load(A, (i, k), (TM, TK), padding_mode=ct.PaddingMode.ZERO)
        b = ct.load(B, (k, j), (TK, TN), order="F", padding_mode=ct.PaddingMode.ZERO)
        acc = ct.mma(a, b, acc)
    sa = ct.load(SA, (i,), (TM,))[:, None]
    sb = ct.load(SB, (j,), (TN,))[None, :]
    ct.store(C, (i, j), (acc.astype(ct.float32) * sa * sb).astype(C.dtype))


def test_int8_matmul():
    a, b = torch.randint(-128, 128, (32, 64), dtype=torch.int8), torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    sa, sb, c = torch.rand(32), torch.rand(32), torch.empty(32, 32)
    launch((2, 2), int8_matmul, a, b, sa, sb, c, 16, 16, 32)
    close(c, (a.double() @ b.double().T) * sa[:, None] * sb[None, :])


@ct.kernel
def fp8_blockwise_matmul(A, B, SA, SB, C, TM: ConstInt, TN: ConstInt, TK: ConstInt):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), ct.float32)
    for k in range(ct.num_tiles(A, 1, (TM, TK))):
        a = ct.load(A, (i, k), (TM, TK))
        b = ct.load(B, (k, j), (TK, TN), order=(1, 0))
        part = ct.mma(a, b, ct.zeros((TM, TN), ct.float32))
        acc = acc + part * ct.load(SA, (i, k), (TM, 1)) * ct.load(SB, (j, k), (1, 1))
    ct.store(C, (i, j), acc.astype(C.dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_blockwise_matmul(dtype):
    a, b = torch.randn(32, 64).to(dtype), torch.randn(32, 64).to(dtype)
    sa, sb = torch.rand(32, 2), torch.rand(2, 2)
    c = torch.empty(32, 32, dtype=torch.bfloat16)
    launch((2, 2), fp8_blockwise_matmul, a, b, sa, sb, c, 16, 16, 32)
    da = a.double().view(32, 2, 32) * sa[:, :, None]
    db = b.double().view(2, 16, 2, 32) * sb[:, None, :, None]
    close(c, da.reshape(32, 64) @ db.reshape(32, 64).T, 2e-2)


@ct.kernel
def mxfp8_matmul(A, B, SA, SB, C, TM: ConstInt, TN: ConstInt, TK: ConstInt, V: ConstInt):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), ct.float32)
    for k in range(ct.num_tiles(A, 1, (TM, TK))):
        acc = ct.mma_scaled(
            ct.load(A, (i, k), (TM, TK)), ct.load(SA, (i, k), (TM, TK // V)),
            ct.load(B, (k, j), (TK, TN)), ct.load(SB, (k, j), (TK // V, TN)), acc,
        )  # fmt: skip
    ct.store(C, (i, j), acc)


@ct.kernel
def nvfp4_matmul(A, B, SA, SB, C, TM: ConstInt, TN: ConstInt, TK: ConstInt):
    i, j = ct.bid(0), ct.bid(1)
    acc = ct.zeros((TM, TN), ct.float32)
    for k in range(ct.num_tiles(SA, 1, (TM, TK // 16))):
        a = ct.unpack_from_bytes(ct.load(A, (i, k), (TM, TK // 2)).reshape((TM * TK // 2,)), ct.float4_e2m1fn)
        b = ct.unpack_from_bytes(ct.load(B, (j, k), (TN, TK // 2)).reshape((TN * TK // 2,)), ct.float4_e2m1fn)
        a, b = a.reshape((TM, TK)), ct.permute(b.reshape((TN, TK)), (1, 0))
        sa, sb = ct.load(SA, (i, k), (TM, TK // 16)), ct.load(SB, (j, k), (TN, TK // 16)).transpose()
        acc = ct.mma_scaled(a, sa, b, sb, acc)
    ct.store(C, (i, j), acc)


def test_block_scaled_matmul():
    a, b = torch.randn(32, 128).to(torch.float8_e4m3fn), torch.randn(128, 32).to(torch.float8_e4m3fn)
    sa = torch.randint(120, 132, (32, 4), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    sb = torch.randint(120, 132, (4, 32), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    c = torch.empty(32, 32)
    launch((2, 2), mxfp8_matmul, a, b, sa, sb, c, 16, 16, 64, 32)
    wide_a = a.double() * sa.double().repeat_interleave(32, 1)
    wide_b = b.double() * sb.double().repeat_interleave(32, 0)
    close(c, wide_a @ wide_b, 1e-4)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.double)
    codes = [torch.randint(0, 16, (32, 64), dtype=torch.uint8) for _ in "ab"]
    packed = [(x[:, 0::2] | x[:, 1::2] << 4) for x in codes]
    scales = [torch.rand(32, 4).add(0.5).to(torch.float8_e4m3fn) for _ in "ab"]
    launch((2, 2), nvfp4_matmul, *packed, *scales, c, 16, 16, 32)
    wide = [values[x.long()] * s.double().repeat_interleave(16, 1) for x, s in zip(codes, scales, strict=True)]
    close(c, wide[0] @ wide[1].T, 1e-4)


# Attention ------------------------------------------------------------------------------------------------------------

INV_LOG_2 = 1.0 / math.log(2)


@ct.kernel(occupancy=2)
def fmha(Q, K, V, Out, Lse, qk_scale: float, input_pos: int, TILE_D: ConstInt, H: ConstInt, TILE_M: ConstInt,
         TILE_N: ConstInt, GROUP: ConstInt, CAUSAL: ConstBool, EVEN_K: ConstBool):  # fmt: skip
    bid_x, bid_y = ct.bid(0), ct.bid(1)
    batch, head = bid_y // H, bid_y % H
    off_kv_h = head // GROUP
    qk_scale = qk_scale * INV_LOG_2
    offs_m = bid_x * TILE_M + ct.arange(TILE_M, dtype=ct.int32)
    offs_m += input_pos
    offs_m = offs_m[:, None]
    offs_n_tile = ct.arange(TILE_N, dtype=ct.int32)[None, :]
    m_i = ct.full((TILE_M, 1), -np.inf, dtype=ct.float32)
    l_i = ct.full((TILE_M, 1), 0.0, dtype=ct.float32)
    acc = ct.full((TILE_M, TILE_D), 0.0, dtype=ct.float32)
    q = ct.load(Q, index=(batch, head, bid_x, 0), shape=(1, 1, TILE_M, TILE_D), padding_mode=ct.PaddingMode.ZERO)
    q = q.reshape((TILE_M, TILE_D))
    m_end = input_pos + (bid_x + 1) * TILE_M
    k_seqlen = K.shape[2]
    if CAUSAL:
        mask_start = (input_pos + bid_x * TILE_M) // TILE_N
        mask_start = min(mask_start, k_seqlen // TILE_N)
        Tc = ct.cdiv(min(m_end, k_seqlen), TILE_N)
    else:
        Tc = ct.cdiv(k_seqlen, TILE_N)
        mask_start = k_seqlen // TILE_N
    for j in range(0, Tc):
        k = ct.load(K, index=(batch, off_kv_h, 0, j), shape=(1, 1, TILE_D, TILE_N), order=(0, 1, 3, 2), latency=2,
                    padding_mode=ct.PaddingMode.ZERO)  # fmt: skip
        k = k.reshape((TILE_D, TILE_N))
        qk = ct.full((TILE_M, TILE_N), 0.0, dtype=ct.float32)
        qk = ct.mma(q, k, qk)
        if (CAUSAL or not EVEN_K) and j >= mask_start:
            offs_n = j * TILE_N + offs_n_tile
            mask = ct.full((TILE_M, TILE_N), True, dtype=ct.bool_)
            if not EVEN_K:
                mask = mask & (offs_n < k_seqlen)
            if CAUSAL:
                mask = mask & (offs_m >= offs_n)
            mask = ct.where(mask, 0.0, -np.inf)
            qk += mask
        m_ij = max(m_i, ct.max(qk, axis=-1, keepdims=True) * qk_scale)
        qk = qk * qk_scale - m_ij
        p = ct.exp2(qk, flush_to_zero=True)
        l_ij = ct.sum(p, axis=-1, keepdims=True)
        alpha = ct.exp2(m_i - m_ij, flush_to_zero=True)
        l_i = l_i * alpha + l_ij
        acc = acc * alpha
        v = ct.load(V, index=(batch, off_kv_h, j, 0), shape=(1, 1, TILE_N, TILE_D), latency=4,
                    padding_mode=ct.PaddingMode.ZERO).reshape((TILE_N, TILE_D))  # fmt: skip
        p = p.astype(Q.dtype)
        acc = ct.mma(p, v, acc)
        m_i = m_ij
    acc = ct.truediv(acc, l_i, flush_to_zero=True, rounding_mode=ct.RoundingMode.APPROX)
    acc = acc.reshape((1, 1, TILE_M, TILE_D)).astype(Out.dtype)
    ct.store(Out, index=(batch, head, bid_x, 0), tile=acc)
    lse = (m_i + ct.log2(l_i)) / INV_LOG_2
    ct.store(Lse, index=(batch, head, bid_x), tile=lse.reshape((1, 1, TILE_M)))


@ct.kernel
def attention_delta(Out, DO, Delta, TILE_M: ConstInt, D: ConstInt):
    b, h, m = ct.bid(2), ct.bid(1), ct.bid(0)
    o = ct.load(Out, (b, h, m, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    do = ct.load(DO, (b, h, m, 0), (1, 1, TILE_M, D), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    ct.store(Delta, (b, h, m), ct.sum(o * do, axis=3))


@ct.kernel
def attention_backward(Q, K, V, DO, Lse, Delta, DQ, DK, DV, scale: float, TM: ConstInt, TN: ConstInt, D: ConstInt,
                       CAUSAL: ConstBool):  # fmt: skip
    n, h, b = ct.bid(0), ct.bid(1), ct.bid(2)
    pad = ct.PaddingMode.ZERO
    k = ct.load(K, (b, h, n, 0), (1, 1, TN, D), padding_mode=pad).reshape((TN, D))
    v = ct.load(V, (b, h, n, 0), (1, 1, TN, D), padding_mode=pad).reshape((TN, D))
    dk, dv = ct.zeros((TN, D), ct.float32), ct.zeros((TN, D), ct.float32)
    columns = n * TN + ct.arange(TN, dtype=ct.int32)[None, :]
    start = 0
    if CAUSAL:
        start = n * TN // TM
    L, S = Q.shape[2], K.shape[2]
    for m in range(start, ct.cdiv(L, TM)):
        q = ct.load(Q, (b, h, m, 0), (1, 1, TM, D), padding_mode=pad).reshape((TM, D))
        do = ct.load(DO, (b, h, m, 0), (1, 1, TM, D), padding_mode=pad).reshape((TM, D))
        lse = ct.load(Lse, (b, h, m), (1, 1, TM), padding_mode=pad).reshape((TM, 1))
        delta = ct.load(Delta, (b, h, m), (1, 1, TM), padding_mode=pad).reshape((TM, 1))
        s = ct.mma(q, ct.permute(k, (1, 0)), ct.zeros((TM, TN), ct.float32)) * scale
        rows = m * TM + ct.arange(TM, dtype=ct.int32)[:, None]
        valid = (rows < L) & (columns < S)
        if CAUSAL:
            valid &= rows >= columns
        p = ct.where(valid, ct.exp(s - lse), 0.0)
        dv = ct.mma(p.astype(do.dtype).transpose(), do, dv)
        dp = ct.matmul(do, v.transpose()).astype(ct.float32)
        ds = (p * (dp - delta) * scale).astype(q.dtype)
        dk = ct.mma(ds.transpose(), q, dk)
        dq = ct.mma(ds, k, ct.zeros((TM, D), ct.float32))
        ct.atomic_add(DQ, (b, h, rows, ct.arange(D, dtype=ct.int32)[None, :]), dq)
    ct.store(DK, (b, h, n, 0), dk.reshape((1, 1, TN, D)).astype(DK.dtype))
    ct.store(DV, (b, h, n, 0), dv.reshape((1, 1, TN, D)).astype(DV.dtype))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_fmha(causal, group):
    B, H, S, D = 2, 4, 50, 16
    q, k, v = torch.randn(B, H, S, D), torch.randn(B, H // group, S, D), torch.randn(B, H // group, S, D)
    out, lse = torch.full_like(q, torch.nan), torch.empty(B, H, S)
    launch((4, B * H), fmha, q, k, v, out, lse, D**-0.5, 0, D, H, 16, 16, group, causal, False)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=group > 1)
    close(out, wanted, 1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_backward(causal):
    B, H, S, D = 1, 2, 40, 16
    q, k, v = (torch.randn(B, H, S, D, requires_grad=True) for _ in range(3))
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    do = torch.randn_like(wanted)
    wanted.backward(do)
    out, lse, delta = torch.empty(B, H, S, D), torch.empty(B, H, S), torch.empty(B, H, S)
    launch((3, B * H), fmha, q, k, v, out, lse, D**-0.5, 0, D, H, 16, 16, 1, causal, False)
    launch((3, H, B), attention_delta, out, do, delta, 16, D)
    dq, dk, dv = torch.zeros(B, H, S, D), torch.empty(B, H, S, D), torch.empty(B, H, S, D)
    launch((3, H, B), attention_backward, q, k, v, do, lse, delta, dq, dk, dv, D**-0.5, 16, 16, D, causal)
    for mine, theirs in ((dq, q), (dk, k), (dv, v)):
        close(mine, theirs.grad, 1e-4)


@ct.kernel
def paged_decode(Q, KC, VC, Table, Lengths, Out, scale: float, PAGE: ConstInt, D: ConstInt, G: ConstInt):
    b, h = ct.bid(0), ct.bid(1)
    q = ct.load(Q, (b, h, 0, 0), (1, 1, G, D)).reshape((G, D))
    length = ct.load(Lengths, (b,), (1,)).item()
    m = ct.full((G, 1), -math.inf, ct.float32)
    state = (m, ct.zeros((G, 1), ct.float32), ct.zeros((G, D), ct.float32))
    for p in range(ct.cdiv(length, PAGE)):
        page = ct.gather(Table, (b, p))
        k = ct.load(KC, (page, 0, h, 0), (1, PAGE, 1, D)).reshape((PAGE, D))
        v = ct.load(VC, (page, 0, h, 0), (1, PAGE, 1, D)).reshape((PAGE, D))
        s = (q @ k.transpose()) * scale
        where = p * PAGE + ct.arange(PAGE, dtype=ct.int32) < length
        s = ct.where(where[None, :], s, -math.inf)
        m, d, acc = state
        new = ct.maximum(m, ct.max(s, 1, keepdims=True))
        e = ct.exp(s - new)
        a = ct.exp(m - new)
        state = (new, d * a + ct.sum(e, 1, keepdims=True), ct.mma(e, v, acc * a))
    ct.store(Out, (b, h, 0, 0), (state[2] / state[1]).reshape((1, 1, G, D)))


def test_paged_decode():
    B, H, G, D, PAGE = 3, 2, 4, 16, 8
    lengths = torch.tensor([5, 17, 24], dtype=torch.int32)
    q, kc, vc = torch.randn(B, H, G, D), torch.randn(20, PAGE, H, D), torch.randn(20, PAGE, H, D)
    table = torch.randperm(20)[: B * 3].view(B, 3).int()
    out = torch.empty_like(q)
    launch((B, H), paged_decode, q, kc, vc, table, lengths, out, D**-0.5, PAGE, D, G)
    for b in range(B):
        k = kc[table[b].long()].reshape(-1, H, D)[: lengths[b]].permute(1, 0, 2)
        v = vc[table[b].long()].reshape(-1, H, D)[: lengths[b]].permute(1, 0, 2)
        close(out[b], F.scaled_dot_product_attention(q[b], k, v), 1e-4)


@ct.kernel
def mla_decode_split(Q, QPE, KV, KPE, Mid, Lse, scale: float, TN: ConstInt, H: ConstInt, D: ConstInt, P: ConstInt,
                     SPLIT: ConstInt):  # fmt: skip
    b, s = ct.bid(0), ct.bid(1)
    q = ct.load(Q, (b, 0, 0), (1, H, D)).reshape((H, D))
    qpe = ct.load(QPE, (b, 0, 0), (1, H, P)).reshape((H, P))
    S = KV.shape[1]
    per = ct.cdiv(ct.cdiv(S, TN), SPLIT)
    m = ct.full((1, H), -math.inf, ct.float32)
    d = ct.full((1, H), 0.0, ct.float32)
    acc = ct.full((D, H), 0.0, ct.float32)
    for j in range(s * per, min((s + 1) * per, ct.cdiv(S, TN))):
        k = ct.load(KV, (b, j, 0), (1, TN, D), padding_mode=ct.PaddingMode.ZERO).reshape((TN, D))
        kpe = ct.load(KPE, (b, j, 0), (1, TN, P), padding_mode=ct.PaddingMode.ZERO).reshape((TN, P))
        qk = ct.mma(k, q.transpose(), ct.full((TN, H), 0.0, ct.float32))
        qk = ct.mma(kpe, qpe.transpose(), qk) * scale
        if (j + 1) * TN > S:
            qk = ct.where((j * TN + ct.arange(TN, dtype=ct.int32))[:, None] < S, qk, -1e6)
        new = max(m, ct.max(qk, 0, keepdims=True))
        p = ct.exp(qk - new)
        alpha = ct.exp(m - new)
        d = d * alpha + ct.sum(p, 0, keepdims=True)
        acc = ct.mma(k.transpose(), p.astype(k.dtype), acc * alpha)
        m = new
    ct.store(Mid, (b, s, 0, 0), ct.transpose(acc / d).reshape((1, 1, H, D)))
    ct.store(Lse, (b, s, 0), (m + ct.log(d)).reshape((1, 1, H)))


@ct.kernel
def splitkv_reduce(Mid, Lse, Out, SPLIT: ConstInt, H: ConstInt, D: ConstInt):
    b, h = ct.bid(0), ct.bid(1)
    lse = ct.load(Lse, (b, 0, h), (1, SPLIT, 1), padding_mode=ct.PaddingMode.NEG_INF).reshape((SPLIT, 1))
    mid = ct.load(Mid, (b, 0, h, 0), (1, SPLIT, 1, D)).reshape((SPLIT, D))
    w = ct.exp(lse - ct.max(lse))
    ct.store(Out, (b, h, 0), (ct.sum(w * mid, axis=0) / ct.sum(w)).reshape((1, 1, D)))


def test_mla_decode():
    B, H, D, P, S = 2, 8, 32, 16, 50
    q, qpe, kv, kpe = torch.randn(B, H, D), torch.randn(B, H, P), torch.randn(B, S, D), torch.randn(B, S, P)
    mid, lse, out = torch.empty(B, 2, H, D), torch.empty(B, 2, H), torch.empty(B, H, D)
    scale = (D + P) ** -0.5
    launch((B, 2), mla_decode_split, q, qpe, kv, kpe, mid, lse, scale, 16, H, D, P, 2)
    launch((B, H), splitkv_reduce, mid, lse, out, 2, H, D)
    p = ((q @ kv.mT + qpe @ kpe.mT) * scale).softmax(-1)
    close(out, p @ kv, 1e-4)


# Moving data ----------------------------------------------------------------------------------------------------------


@ct.kernel
def moe_align(ids, counts, sorted_ids, offsets, E: ConstInt, T: ConstInt):
    n = ids.shape[0]
    for i in range(ct.cdiv(n, T)):
        e = ct.load(ids, i, T, padding_mode=ct.PaddingMode.ZERO)
        inside = i * T + ct.arange(T, dtype=ct.int32) < n
        ct.atomic_add(counts, ct.where(inside, e, E), 1)
    c = ct.load(counts, 0, E)
    start = ct.cumsum(c, 0) - c
    ct.store(offsets, 0, start)
    for i in range(n):
        e = ct.gather(ids, i)
        place = ct.atomic_add(offsets, e, 1)
        ct.scatter(sorted_ids, place, i)


@ct.kernel
def moe_gemm(X, W, sorted_ids, starts, Y, E: ConstInt, TM: ConstInt, D: ConstInt, F_: ConstInt):
    e, m = ct.bid(0), ct.bid(1)
    first, last = ct.gather(starts, e), ct.gather(starts, e + 1)
    if first + m * TM >= last:
        return
    rows = first + m * TM + ct.arange(TM, dtype=ct.int32)
    valid = rows < last
    token = ct.gather(sorted_ids, rows, mask=valid, padding_value=-1)
    x = ct.gather(X, (token[:, None], ct.arange(D, dtype=ct.int32)[None, :]))
    w = ct.load(W, (e, 0, 0), (1, D, F_)).reshape((D, F_))
    y = ct.mma(x, w, ct.zeros((TM, F_), ct.float32))
    ct.scatter(Y, (token[:, None], ct.arange(F_, dtype=ct.int32)[None, :]), y)


def test_mixture_of_experts():
    n, E, D, H = 50, 8, 16, 32
    ids = torch.randint(0, E, (n,), dtype=torch.int32)
    counts, offsets, order = torch.zeros(E).int(), torch.zeros(E).int(), torch.full((n,), -1).int()
    launch((1,), moe_align, ids, counts, order, offsets, E, 16)
    assert torch.equal(counts.long(), torch.bincount(ids, minlength=E))
    assert torch.equal(order.long(), torch.argsort(ids, stable=True))
    starts = torch.cat((torch.zeros(1), counts.cumsum(0))).int()
    x, w, y = torch.randn(n, D), torch.randn(E, D, H), torch.full((n, H), torch.nan)
    launch((E, 8), moe_gemm, x, w, order, starts, y, E, 8, D, H)
    close(y, torch.einsum("nd,ndh->nh", x, w[ids.long()]), 1e-4)


@ct.kernel
def embedding(ids, table, out, D: ConstInt, T: ConstInt):
    i = ct.bid(0)
    index = ct.load(ids, i, T, padding_mode=ct.PaddingMode.ZERO)
    rows = ct.gather(table, (ct.expand_dims(index, 1), ct.arange(D, dtype=ct.int64)))
    ct.store(out, (i, 0), rows)


@ct.kernel
def embedding_backward(ids, dout, dtable, D: ConstInt, T: ConstInt):
    i = ct.bid(0)
    rows = i * T + ct.arange(T, dtype=ct.int32)
    index = ct.gather(ids, rows, padding_value=-1)
    grad = ct.load(dout, (i, 0), (T, D), padding_mode=ct.PaddingMode.ZERO)
    ct.atomic_add(dtable, (index[:, None], ct.arange(D, dtype=ct.int32)[None]), grad,
                  memory_order=ct.MemoryOrder.RELAXED)  # fmt: skip


def test_embedding():
    table = torch.randn(10, 16, requires_grad=True)
    ids, out = torch.randint(0, 10, (21,)), torch.empty(21, 16)
    launch((3,), embedding, ids, table, out, 16, 8)
    wanted = F.embedding(ids, table)
    close(out, wanted.detach())
    dout, dtable = torch.randn(21, 16), torch.zeros(10, 16)
    wanted.backward(dout)
    launch((3,), embedding_backward, ids, dout, dtable, 16, 8)
    close(dtable, table.grad)


@ct.kernel
def histogram(x, out, T: ConstInt):
    i = ct.bid(0)
    ct.atomic_add(out, ct.load(x, i, T), 1)


@ct.kernel
def histogram_by_comparison(x, out, T: ConstInt, BINS: ConstInt):
    i = ct.bid(0)
    t = ct.load(x, i, T, padding_mode=ct.PaddingMode.ZERO)
    inside = i * T + ct.arange(T, dtype=ct.int32) < x.shape[0]
    hits = (t[:, None] == ct.arange(BINS, dtype=x.dtype)[None, :]) & inside[:, None]
    ct.atomic_add(out, ct.arange(BINS, dtype=ct.int32), ct.sum(hits.astype(ct.int32), axis=0))


def test_histograms():
    x = torch.randint(0, 16, (1000,), dtype=torch.int32)
    wanted = torch.bincount(x, minlength=16).int()
    a, b = torch.zeros(16).int(), torch.zeros(16).int()
    launch((10,), histogram, x[:960].contiguous(), a, 96 + 32)
    launch((8,), histogram_by_comparison, x, b, 128, 16)
    assert torch.equal(b, wanted)
    a.zero_()
    launch((125,), histogram, x, a, 8)
    assert torch.equal(a, wanted)


@ct.kernel
def transpose(x, y, T: ConstInt):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, (j, i), ct.load(x, (i, j), (T, 2 * T)).transpose())


@ct.kernel
def transpose_by_order(x, y, T: ConstInt):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, (i, j), ct.load(x, (i, j), (T, 2 * T)), order="F")


def test_transposes():
    x = torch.randn(40, 70)
    for kernel in (transpose, transpose_by_order):
        y = torch.full((70, 40), torch.nan)
        launch((5, 5), kernel, x, y, 8)
        assert torch.equal(y, x.T)


@ct.kernel
def conv2d_by_gather(x, w, y, C: ConstInt, R: ConstInt, K: ConstInt, T: ConstInt):
    n, p = ct.bid(0), ct.bid(1)
    OW = y.shape[3]
    at = p * T + ct.arange(T, dtype=ct.int32)
    oh, ow = at // OW, at % OW
    acc = ct.zeros((T, K), ct.float32)
    channels = ct.arange(C, dtype=ct.int32)
    for r in ct.static_iter(range(R)):
        for s in ct.static_iter(range(R)):
            patch = ct.gather(x, (n, channels[None, :], (oh + r - R // 2)[:, None], (ow + s - R // 2)[:, None]))
            weight = ct.load(w, (0, 0, r, s), (K, C, 1, 1)).reshape((K, C))
            acc = ct.mma(patch, weight.transpose(), acc)
    ct.scatter(y, (n, ct.arange(K, dtype=ct.int32)[None, :], oh[:, None], ow[:, None]), acc)


def test_conv2d():
    x, w, y = torch.randn(2, 4, 9, 11), torch.randn(8, 4, 3, 3), torch.full((2, 8, 9, 11), torch.nan)
    launch((2, 7), conv2d_by_gather, x, w, y, 4, 3, 8, 16)
    close(y, F.conv2d(x, w, padding=1), 1e-4)


@ct.kernel
def causal_conv1d(x, w, b, state, y, K: ConstInt, T: ConstInt):
    n, c, i = ct.bid(0), ct.bid(1), ct.bid(2)
    at = i * T + ct.arange(T, dtype=ct.int32)
    acc = ct.full((T,), 0, ct.float32) + ct.load(b, c, 1)
    for k in ct.static_iter(range(K)):
        before = at - (K - 1 - k)
        old = ct.gather(state, (n, c, before + (K - 1)), mask=before < 0)
        new = ct.gather(x, (n, c, before))
        acc += ct.where(before < 0, old, new) * ct.load(w, (c, k), (1, 1)).reshape((1,))
    ct.store(y, (n, c, i), (acc / (1 + ct.exp(-acc))).reshape((1, 1, T)))


def test_causal_conv():
    x, w, b, state = torch.randn(2, 3, 37), torch.randn(3, 4), torch.randn(3), torch.randn(2, 3, 3)
    y = torch.empty_like(x)
    launch((2, 3, 3), causal_conv1d, x, w, b, state, y, 4, 16)
    close(y, F.silu(F.conv1d(torch.cat((state, x), 2), w[:, None], b, groups=3)))


# Sorting, searching, scanning -----------------------------------------------------------------------------------------


@ct.kernel
def top_k(x, values, indices, N: ConstInt, K: ConstInt):
    row = ct.bid(0)
    t = ct.load(x, (row, 0), (1, N), padding_mode=ct.PaddingMode.NEG_INF)
    columns = ct.arange(N, dtype=ct.int32)[None, :]
    for k in ct.static_iter(range(K)):
        best = ct.argmax(t, 1, keepdims=True)
        ct.store(values, (row, k), ct.max(t, axis=1, keepdims=True))
        ct.store(indices, (row, k), best)
        t = ct.where(columns == best, -math.inf, t)


def test_top_k():
    x = torch.randn(5, 50)
    values, indices = torch.empty(5, 8), torch.empty(5, 8, dtype=torch.int32)
    launch((5,), top_k, x, values, indices, 64, 8)
    wanted = x.topk(8)
    assert torch.equal(values, wanted.values) and torch.equal(indices.long(), wanted.indices)


@ct.kernel
def bitonic_sort(x, y, LOG: ConstInt):
    N = 1 << LOG
    t = ct.load(x, (ct.bid(0), 0), (1, N)).reshape((N,))
    index = ct.arange(N, dtype=ct.int32)
    for stage in ct.static_iter(range(1, LOG + 1)):
        for step in ct.static_iter(range(stage - 1, -1, -1)):
            pairs = t.reshape((N >> (step + 1), 2, 1 << step))
            low = ct.extract(pairs, (0, 0, 0), (N >> (step + 1), 1, 1 << step))
            high = ct.extract(pairs, (0, 1, 0), (N >> (step + 1), 1, 1 << step))
            small, large = ct.minimum(low, high), ct.maximum(low, high)
            up = (index.reshape(pairs.shape) >> stage) & 1
            lower = ct.where(ct.extract(up, (0, 0, 0), low.shape) == 0, small, large)
            upper = ct.where(ct.extract(up, (0, 0, 0), low.shape) == 0, large, small)
            t = ct.cat((lower, upper), 1).reshape((N,))
    ct.store(y, (ct.bid(0), 0), t.reshape((1, N)))


def test_bitonic_sort():
    x = torch.randn(6, 64)
    y = torch.empty_like(x)
    launch((6,), bitonic_sort, x, y, 6)
    assert torch.equal(y, x.sort(-1).values)


def complex_multiply(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


@ct.kernel
def fft(re, im, w_re, w_im, out, N: ConstInt, A: ConstInt, B: ConstInt):
    """N = A * B: a transform over each factor, as products with matrices, and twiddles in between."""
    row = ct.bid(0)
    x = (ct.load(re, (row, 0), (1, N)).reshape((A, B)), ct.load(im, (row, 0), (1, N)).reshape((A, B)))
    ia, ib = ct.arange(A, dtype=ct.int32), ct.arange(B, dtype=ct.int32)

    def root(power):
        return ct.gather(w_re, power % N), ct.gather(w_im, power % N)

    def product(u, v):
        return u[0] @ v[0] - u[1] @ v[1], u[0] @ v[1] + u[1] @ v[0]

    y = product(root(ia[:, None] * ia[None, :] * B), x)
    y = complex_multiply(y, root(ia[:, None] * ib[None, :]))
    y = product(y, root(ib[:, None] * ib[None, :] * A))
    both = tuple(ct.transpose(v).reshape((1, N, 1)) for v in ct.static_iter(y))
    ct.store(out, (row, 0, 0), ct.cat(both, 2))


def test_fft():
    x = torch.randn(3, 64, dtype=torch.complex64)
    w = torch.exp(-2j * math.pi * torch.arange(64, dtype=torch.double) / 64).to(torch.complex64)
    out = torch.empty(3, 64, 2)
    launch((3,), fft, x.real.contiguous(), x.imag.contiguous(), w.real.contiguous(), w.imag.contiguous(), out, 64, 8, 8)
    close(out, torch.view_as_real(torch.fft.fft(x)), 1e-4)


def affine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@ct.kernel
def linear_recurrence(a, b, h, T: ConstInt):
    row = ct.bid(0)
    carry = ct.zeros((1, 1), ct.float32)
    for j in range(ct.num_tiles(a, 1, (1, T))):
        ta = ct.load(a, (row, j), (1, T), padding_mode=ct.PaddingMode.ZERO)
        tb = ct.load(b, (row, j), (1, T), padding_mode=ct.PaddingMode.ZERO)
        pa, pb = ct.scan((ta, tb), axis=1, func=affine, identity=(1.0, 0.0))
        state = pa * carry + pb
        ct.store(h, (row, j), state)
        carry = ct.extract(state, (0, T - 1), (1, 1))


def test_linear_recurrence():
    a, b, h = torch.rand(4, 48), torch.randn(4, 48), torch.empty(4, 48)
    launch((4,), linear_recurrence, a, b, h, 16)
    state, wanted = torch.zeros(4), []
    for i in range(48):
        state = a[:, i] * state + b[:, i]
        wanted.append(state)
    close(h, torch.stack(wanted, 1), 1e-4)


@ct.kernel
def prefix_sum_with_lookback(x, y, flags, sums, T: ConstInt):
    i = ct.bid(0)
    t = ct.cumsum(ct.load(x, i, T, padding_mode=ct.PaddingMode.ZERO), 0)
    total = ct.extract(t, T - 1, 1).item()
    before = ct.int32(0)
    if i > 0:
        while ct.atomic_add(flags, i - 1, 0, memory_order=ct.MemoryOrder.ACQUIRE) == 0:
            pass
        before = ct.gather(sums, i - 1)
    ct.scatter(sums, i, before + total)
    ct.atomic_xchg(flags, i, 1, memory_order=ct.MemoryOrder.RELEASE)
    ct.store(y, i, t + before)


def test_prefix_sum_across_blocks():
    x, y = torch.randint(-9, 9, (100,), dtype=torch.int32), torch.zeros(100).int()
    launch((7,), prefix_sum_with_lookback, x, y, torch.zeros(7).int(), torch.zeros(7).int(), 16)
    assert torch.equal(y, x.cumsum(0).int())


@ct.kernel
def reduce_in_the_last_block(x, partial, done, out, T: ConstInt, BLOCKS: ConstInt):
    i = ct.bid(0)
    ct.scatter(partial, i, ct.sum(ct.load(x, i, T, padding_mode=ct.PaddingMode.ZERO)))
    if ct.atomic_add(done, 0, 1) == ct.num_blocks(0) - 1:
        ct.scatter(out, 0, ct.sum(ct.gather(partial, ct.arange(BLOCKS, dtype=ct.int32))))


def test_reduction_in_the_last_block():
    x, out = torch.randn(100), torch.zeros(1)
    launch((7,), reduce_in_the_last_block, x, torch.zeros(7), torch.zeros(1).int(), out, 16, 8)
    close(out, x.sum().view(1), 1e-4)


# Quantisation ---------------------------------------------------------------------------------------------------------


@ct.kernel
def quantise(x, q, scale, T: ConstInt):
    i, j = ct.bid(0), ct.bid(1)
    t = ct.load(x, (i, j), (1, T), padding_mode=ct.PaddingMode.ZERO).astype(ct.float32)
    s = max(ct.max(abs(t), 1, keepdims=True), 1e-10) / 448.0
    ct.store(q, (i, j), (t / s).astype(q.dtype))
    ct.store(scale, (i, j), s)


@ct.kernel
def pack_int4(x, q, scale, T: ConstInt):
    i = ct.bid(0)
    t = ct.load(x, (i, 0), (1, T)).reshape((T // 2, 2))
    s = ct.max(ct.where(t < 0, -t, t)) / 7.0
    n = ct.floor(t / s + 0.5).astype(ct.int32) + 8
    weights = ct.full((1, 2), 1, ct.int32) << (ct.arange(2, dtype=ct.int32)[None, :] * 4)
    packed = ct.sum(n * weights, axis=1).astype(ct.uint8)
    ct.store(q, (i, 0), packed.reshape((1, T // 2)))
    ct.scatter(scale, i, s)


@ct.kernel
def unpack_int4(q, scale, y, T: ConstInt):
    i = ct.bid(0)
    p = ct.load(q, (i, 0), (1, T // 2)).reshape((T // 2, 1)).astype(ct.int32)
    n = (p >> (ct.arange(2, dtype=ct.int32)[None, :] * 4)) & 0xF
    ct.store(y, (i, 0), ((n - 8).astype(ct.float32) * ct.gather(scale, i)).reshape((1, T)))


def test_quantisation():
    x = torch.randn(6, 128).bfloat16()
    q, scale = torch.empty(6, 128, dtype=torch.float8_e4m3fn), torch.empty(6, 2)
    launch((6, 2), quantise, x, q, scale, 64)
    wanted = x.float().view(6, 2, 64).abs().amax(-1) / 448
    close(scale, wanted)
    assert torch.equal(q.float(), (x.float().view(6, 2, 64) / wanted[..., None]).to(q.dtype).float().view(6, 128))
    x, packed, scale, y = torch.randn(6, 32), torch.empty(6, 16, dtype=torch.uint8), torch.empty(6), torch.empty(6, 32)
    launch((6,), pack_int4, x, packed, scale, 32)
    launch((6,), unpack_int4, packed, scale, y, 32)
    step = x.abs().amax(1) / 7
    close(y, torch.floor(x / step[:, None] + 0.5) * step[:, None])


# Control flow and Python ----------------------------------------------------------------------------------------------


@ct.kernel
def random_walk(start, steps, out, LIMIT: ConstInt):
    i = ct.bid(0)
    state = ct.gather(start, i)
    position, count = ct.int32(0), ct.int32(0)
    while True:
        state = state ^ (state << ct.uint32(13))
        state = state ^ (state >> ct.uint32(17))
        state = state ^ (state << ct.uint32(5))
        if state & ct.uint32(1) == ct.uint32(0):
            position += 1
        else:
            position -= 1
        count += 1
        if abs(position) >= LIMIT:
            break
        if state % ct.uint32(7) == ct.uint32(0):
            continue
        count += 1
    ct.scatter(out, i, position)
    ct.scatter(steps, i, count)


def test_random_walks():
    start = np.arange(1, 20, dtype=np.uint32) * np.uint32(2654435761)
    steps, out = np.zeros(19, np.int32), np.zeros(19, np.int32)
    launch((19,), random_walk, start, steps, out, 6)
    for i, state in enumerate(map(int, start)):
        position = count = 0
        while True:
            state = (state ^ state << 13) & 0xFFFFFFFF
            state ^= state >> 17
            state = (state ^ state << 5) & 0xFFFFFFFF
            position += 1 if state % 2 == 0 else -1
            count += 1
            if abs(position) >= 6:
                break
            count += state % 7 != 0
        assert (out[i], steps[i]) == (position, count)


@dataclasses.dataclass(frozen=True)
class Config:
    TILE: int
    scale: float
    mode: str = "fast"
    shift: float = 0.0

    @property
    def double(self):
        return self.TILE * 2


@dataclasses.dataclass(frozen=True)
class Running:
    m: object
    s: object

    def update(self, t):
        new = max(self.m, ct.max(t))
        return Running(new, self.s * ct.exp(self.m - new) + ct.sum(ct.exp(t - new)))


TABLE = {"square": lambda x: x * x, "half": lambda x: ct.mul(x, 0.5)}
CONFIG = Config(16, 0.0, shift=1.5)


def chain(x, *functions, **options):
    for f in ct.static_iter(functions):
        x = f(x)
    return x + options["shift"]


def make(config: Config, names):
    chosen = tuple(TABLE[n] for n in names)

    @ct.kernel
    def kernel(x, out):
        i = ct.bid(0)
        t = ct.load(x, i, config.TILE)
        t = chain(t, *chosen, shift=CONFIG.shift)
        if config.mode == "fast":
            t = t * config.scale
        ct.store(out, i, t)

    return kernel


def test_closures_tables_partials_and_star_arguments():
    x, out = torch.randn(64), torch.empty(64)
    launch((4,), make(Config(16, 2.0), ("square", "half", "square")), x, out)
    close(out, ((x * x * 0.5) ** 2 + 1.5) * 2)
    launch((4,), make(Config(16, 2.0, "slow"), ("half",)), x, out)
    close(out, x * 0.5 + 1.5)


@ct.kernel
def optional_bias(x, bias, out, T: ConstInt):
    t = ct.load(x, ct.bid(0), T)
    if bias is not None:
        t = t + ct.load(bias, ct.bid(0), T)
    ct.store(out, ct.bid(0), t)


def test_optional_arguments():
    x, b, out = torch.randn(64), torch.randn(64), torch.empty(64)
    launch((4,), optional_bias, x, b, out, 16)
    close(out, x + b)

    def specialised(bias):
        @ct.kernel
        def kernel(x, out, T: ConstInt):
            t = ct.load(x, ct.bid(0), T)
            if bias is not None:
                t = t + bias
            ct.store(out, ct.bid(0), t)

        return kernel

    launch((4,), specialised(None), x, out, 16)
    close(out, x)
    launch((4,), specialised(2), x, out, 16)
    close(out, x + 2)


@ct.kernel
def five_dimensions(x: ct.IndexedWithInt64, out, zero, T: ConstInt):
    a, b, c = ct.bid(0), ct.bid(1), ct.bid(2)
    t = ct.load(x, (a, b, c, 0, 0), (1, 1, 1, 4, T), order=(0, 1, 2, 4, 3))
    ct.store(out, (a, b, c, 0, 0), ct.permute(t, (0, 1, 2, 3, 4)) + ct.load(zero, (), ()))


def test_five_dimensions_and_none():
    x, out, zero = torch.randn(2, 3, 2, 8, 4), torch.empty(2, 3, 2, 4, 8), torch.tensor(3.0)
    launch((2, 3, 2), five_dimensions, x, out, zero, 8)
    close(out, x.mT + 3)


@ct.kernel
def tuples_in_loops(x, out, T: ConstInt, SIZES: ct.Constant[tuple]):
    i = ct.bid(0)
    state = (ct.zeros((T,), ct.float32), (ct.int32(0), ct.ones((T,), ct.float32)))
    for k in range(3):
        total, (count, product) = state
        t = ct.load(x, i, T)
        state = total + t, (count + k, product * t)
    extra = 0
    for size in ct.static_iter(SIZES):
        extra += size
    for j, name in ct.static_iter(enumerate(("a", "b"))):
        extra += j if name == "b" else 10
    ct.store(out, i, state[0] + state[1][1] + state[1][0] + extra)


def test_tuples_in_loops():
    x, out = torch.randn(32), torch.empty(32)
    launch((2,), tuples_in_loops, x, out, 16, (1, 2, 3))
    close(out, 3 * x + x**3 + 3 + 6 + 11)


def test_an_online_softmax_in_a_dataclass():
    @ct.kernel
    def kernel(x, out):
        state = Running(ct.float32(-math.inf), ct.float32(0.0))
        for j in range(4):
            state = state.update(ct.load(x, (ct.bid(0), j), (1, 8)))
        ct.scatter(out, ct.bid(0), state.m + ct.log(state.s))

    x, out = torch.randn(3, 32), torch.empty(3)
    launch((3,), kernel, x, out)
    close(out, x.logsumexp(-1))


@ct.kernel
def prints(x, T: ConstInt):
    i = ct.bid(0)
    t = ct.load(x, i, T)
    if i == 1:
        print(f"block {i} of {ct.num_blocks(0)}: {t} max={ct.max(t):.2f} {(i, ct.sum(t))}", T, sep=" | ")
        ct.printf("%d %5.1f\n", i, ct.max(t))


def test_prints(capsys):
    launch((2,), prints, torch.arange(8.0), 4)
    assert capsys.readouterr().out == (
        "block 1 of 2: [4.000000, 5.000000, 6.000000, 7.000000] max=7.00 (1, 22.000000) | 4\n1   7.0\n"
    )
