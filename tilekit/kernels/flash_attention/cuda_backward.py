"""The gradients of attention in CUDA C++, without the L x S matrix in memory.

With P = softmax(scale * query @ key.mT) and dP = grad @ value.mT, and row by row delta = sum(grad * out):
dS = P * (dP - delta), dvalue = P.mT @ grad, dkey = scale * dS.mT @ query, dquery = scale * dS @ key.
P is computed again, tile by tile, from the log-sum-exp that the forward pass kept: P = exp(logits - lse).

Shapes: as in the forward kernel; grad is of out's shape and any strides; lse and delta are (B, H, L) in float32. float32
products are in TF32 where torch's setting allows it and the GPU has it (compute capability 8.0), else IEEE.
Work: B * H * L * S * 2 (3 E + 2 Ev) FLOPs once, and (2 E + Ev) more, because two kernels compute dS each for
itself: sums of one block go nowhere else, so no atomics are needed and the result is the same each time.
One warp of the first kernel computes a row of delta. One block of the second owns OWNED keys and walks the queries that
see them, of all heads that share these keys, in tiles of WALKED. One of the third owns queries and walks the keys they
see. On tensor cores for 16-bit types, a warp for each 16 owned rows, or two with half of the channels each; for float32
with 256 threads, each with OWNED / 16 rows.
"""

from functools import lru_cache

import torch

from tilekit.kernels import _cuda
from tilekit.kernels.flash_attention.layout import gradients
from tilekit.plans import CannotServe, Plan, cdiv, contiguous_strides, grid_of, index_bits, limits_of


@lru_cache(maxsize=4096)
def plan(shapes, strides, dtype, limits, is_causal, scale, aligned=True, tf32=False) -> dict[str, Plan]:
    """The launches by name: ``"delta"``, ``"key_value"`` and ``"query"``.

    `shapes` and `strides` are those of query, key, value and the gradient of the result, in 4-D; `aligned` says that all
    four, and the result, begin at a multiple of 16 bytes.
    """
    (batch, heads, rows, channels), (_, kv_heads, keys, _), (_, _, _, value_channels), _ = shapes
    if max(channels, value_channels) > 256:
        raise CannotServe(
            f"serves at most 256 channels; got {channels} in query and {value_channels} in value (use backend='torch')"
        )
    tensor_cores = dtype.itemsize == 2 or tf32
    tiles, threads, shared = _tiles(rows, keys, channels, value_channels, dtype, limits, tensor_cores)
    owned, walked = tiles["OWNED"], tiles["WALKED"]
    # A tile that reaches past the end computes offsets, masked off, up to a tile further; a walk looks one tile ahead.
    reach = [((*shape[:2], shape[2] + owned + walked, shape[3] + 64), stride) for shape, stride in zip(shapes, strides)]
    most = max(channels, value_channels) + 64
    results = (batch, heads, rows + owned, most), (batch, kv_heads, keys + owned, most)
    bits = index_bits(*reach, *((shape, contiguous_strides(shape)) for shape in results))
    vec = 16 // dtype.itemsize
    if not aligned or channels % vec or value_channels % vec:
        vec = 1
    if any(stride[3] != 1 or any(step % vec for step in stride[:3]) for stride in strides):
        vec = 1
    largest = torch.finfo(torch.float32).max
    zero = abs(scale) < torch.finfo(torch.float32).tiny
    # The three kernels are one file, so with the same constants they are compiled together.
    constants = {"TENSOR_CORES": tensor_cores, "ZERO_SCALE": zero, "CAUSAL": is_causal, "VEC": vec, **tiles}
    options = {"threads": threads}
    scalars = (heads, heads // kv_heads, rows, keys, channels, value_channels)
    scalars = (*scalars, *(step for stride in strides for step in stride), max(-largest, min(float(scale), largest)))
    all_rows = batch * heads * rows
    return {
        "delta": Plan(
            grid_of(cdiv(all_rows, threads // 32)), (all_rows, heads, rows, value_channels, *strides[3]),
            constants, options, bits, variant="flash_attention_delta",
        ),
        "key_value": Plan(
            grid_of(batch, kv_heads, cdiv(keys, owned)), scalars, constants, options, bits, shared,
            variant="flash_attention_key_value",
        ),
        "query": Plan(
            grid_of(batch, heads, cdiv(rows, owned)), scalars, constants, options, bits, shared,
            variant="flash_attention_query",
        ),
    }  # fmt: skip


# Channels of query and value together, at most -> OWNED, WALKED, PLACES: the first one if it fits into shared memory, else
# the first of the smaller ones that does. A thread's sums and logits are to stay in its registers.
_HALF = {128: (64, 64, 4), 512: (64, 32, 4)}
_SINGLE = {128: (64, 64, 2), 512: (64, 32, 2)}
_SMALLER = ((64, 32, 2), (32, 32, 2), (32, 16, 2), (16, 16, 2), (16, 16, 1))


def _tiles(rows, keys, channels, value_channels, dtype, limits, tensor_cores) -> tuple[dict[str, int], int, int]:
    """Tile sizes by name, the threads of a block, and the bytes of shared memory they need."""
    padding = 16 // dtype.itemsize
    # Two warps share 16 rows where the sums of all channels would not fit into one's registers.
    split = 2 if tensor_cores and channels + value_channels > 256 else 1
    # Whole fragments of 16 for each warp, or four neighbours for each of 16 threads.
    step = 16 * split if tensor_cores else 64
    padded_e, padded_ev = (max(1, cdiv(n, step)) * step for n in (channels, value_channels))
    table, length = _HALF if tensor_cores else _SINGLE, max(rows, keys)
    best = next(tiles for most, tiles in table.items() if padded_e + padded_ev <= most)
    for owned, walked, places in (best, *_SMALLER):
        # Few rows need no large block; tiles stay a power of two, so that there are few kernels to compile.
        while owned > 16 and owned // 2 >= length:
            owned //= 2
        while walked > 16 and walked // 2 >= length:
            walked //= 2
        pitch_e, pitch_ev = padded_e + padding, padded_ev + padding
        walked_pitch = max(pitch_e, pitch_ev) if places == 1 else (pitch_e + pitch_ev) * places // 2
        shared = owned * (pitch_e + pitch_ev) + walked * walked_pitch
        if not tensor_cores:
            shared += owned * (walked + padding)
        # The log-sum-exp and delta of the rows, for each step on its way.
        shared = shared * dtype.itemsize + (2 if places == 4 else 1) * 2 * max(owned, walked) * 4
        if shared <= limits.shared_memory:
            # Two blocks at a time hide each other's waits; where there is room for one, it may have all registers.
            blocks = 2 if 2 * (shared + 1024) <= limits.shared_memory + 1024 else 1
            tiles = {"OWNED": owned, "WALKED": walked, "PLACES": places, "SPLIT": split, "BLOCKS": blocks}
            threads = 32 * split * (owned // 16) if tensor_cores else 256
            return {**tiles, "PADDED_E": padded_e, "PADDED_EV": padded_ev}, threads, shared
    raise CannotServe(
        f"needs {shared:,} bytes of shared memory for the gradients' smallest tiles of {padded_e} and {padded_ev} channels, "
        f"and a block has {limits.shared_memory:,} on this device (use backend='torch')"
    )


def launch(grad, grad_lse, query, key, value, out, lse, is_causal, scale, needs):
    """dquery, dkey and dvalue, contiguous; ``None`` where `needs` does not ask for it."""
    return gradients(_launch, grad, grad_lse, query, key, value, out, lse, is_causal, scale, needs)


def _launch(arrays, grad_lse, delta, results, is_causal, scale):
    query, key, value, grad, out, lse = arrays
    dq, dk, dv = results
    inputs, limits = (query, key, value, grad), limits_of(query.device)
    plans = plan(
        tuple(a.shape for a in inputs), tuple(a.stride() for a in inputs), query.dtype, limits,
        is_causal, scale, _cuda.aligned(*inputs, out), _cuda.tf32(query.dtype, limits),
    )  # fmt: skip
    _cuda.launch("flash_attention backward", plans["delta"], out, grad, delta)
    if grad_lse is not None:
        delta.sub_(grad_lse)
    if dk is not None:
        _cuda.launch("flash_attention backward", plans["key_value"], *inputs, lse, delta, dk, dv)
    if dq is not None:
        _cuda.launch("flash_attention backward", plans["query"], *inputs, lse, delta, dq)
