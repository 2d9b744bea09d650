// GELU(x * w + b) in one pass over memory. One thread computes VEC neighbouring elements: 16 bytes, where the arrays
// allow it, else one element.
#include "common.cuh"

// z * Phi(z), with the limits at both ends: z at inf, -0 at -inf.
__device__ inline float gelu(float z) {
    z = z < -100.0f ? -100.0f : z;  // both forms are -0 from here down; -inf itself would become NaN. A NaN stays one.
#if TANH
    // 0.5 z (1 + tanh(u)) is z / (1 + exp(-2 u)), here in powers of two. The power may be inf, and z / inf is the limit.
    return __fdividef(z, 1.0f + bare_exp2(z * (-2.302208198144325f - 0.10294323970294f * z * z)));
#else
    return 0.5f * z * (1.0f + erff(z * 0.7071067811865476f));
#endif
}

__device__ inline Vector<T, VEC> gelus(Vector<T, VEC> x, Vector<T, VEC> w, Vector<T, VEC> b) {
    Vector<T, VEC> out;
#pragma unroll
    for (int v = 0; v < VEC; v++)
        out.values[v] = from_float<T>(gelu(to_float(x.values[v]) * to_float(w.values[v]) + to_float(b.values[v])));
    return out;
}

extern "C" __global__ void __launch_bounds__(THREADS) fused_gelu(
    const T* x, const T* w, const T* b, T* out, long long n, long long w_n, long long b_n) {
    INDEX i = ((INDEX)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (i + VEC <= n) {
        *(Vector<T, VEC>*)(out + i) =
            gelus(load_vector<VEC>(x + i), load_along<VEC>(w + i * (INDEX)w_n, w_n), load_along<VEC>(b + i * (INDEX)b_n, b_n));
    } else {
        for (; i < n; i++)  // the last few elements
            out[i] = from_float<T>(gelu(to_float(x[i]) * to_float(w[i * (INDEX)w_n]) + to_float(b[i * (INDEX)b_n])));
    }
}

// For any strides: a block computes a tile of 32 VEC columns and TILE_M rows, a warp one row of it at a time.
extern "C" __global__ void __launch_bounds__(THREADS) fused_gelu_strided(
    const T* x, const T* w, const T* b, T* out, long long size_1, long long size_m, long long size_n,
    long long x_0, long long x_1, long long x_m, long long x_n,
    long long w_0, long long w_1, long long w_m, long long w_n,
    long long b_0, long long b_1, long long b_m, long long b_n,
    long long out_0, long long out_1, long long out_m, long long out_n) {
    unsigned tiles_m = (size_m + TILE_M - 1) / TILE_M, tiles_n = (size_n + 32 * VEC - 1) / (32 * VEC);
    unsigned tile = blockIdx.x % (tiles_m * tiles_n), outer = blockIdx.x / (tiles_m * tiles_n);
    INDEX i_0 = outer / size_1, i_1 = outer % size_1;
    INDEX first = (INDEX)(tile / tiles_n) * TILE_M, end = first + TILE_M < size_m ? first + TILE_M : size_m;
    INDEX n = ((INDEX)(tile % tiles_n) * 32 + threadIdx.x % 32) * VEC;
    if (n >= size_n) return;
    x += i_0 * x_0 + i_1 * x_1 + n * x_n;
    w += i_0 * w_0 + i_1 * w_1 + n * w_n;
    b += i_0 * b_0 + i_1 * b_1 + n * b_n;
    out += i_0 * out_0 + i_1 * out_1 + n * out_n;
    // All of a thread's rows of x are on their way before the first one is needed.
    constexpr int COUNT = TILE_M / (THREADS / 32);
    Vector<T, VEC> row[COUNT], w_row, b_row;
    INDEX m = first + threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (m + i * (THREADS / 32) < end) row[i] = load_vector<VEC>(x + (m + i * (THREADS / 32)) * (INDEX)x_m);
    if (!W_ROWS) w_row = load_along<VEC>(w, w_n);
    if (!B_ROWS) b_row = load_along<VEC>(b, b_n);
#pragma unroll
    for (int i = 0; i < COUNT; i++, m += THREADS / 32) {
        if (m >= end) return;
        if (W_ROWS) w_row = load_along<VEC>(w + m * (INDEX)w_m, w_n);
        if (B_ROWS) b_row = load_along<VEC>(b + m * (INDEX)b_m, b_n);
        *(Vector<T, VEC>*)(out + m * (INDEX)out_m) = gelus(row[i], w_row, b_row);
    }
}
