// The gradients of GELU(x * w + b) in one pass. With z = x * w + b and dz = grad * gelu'(z): dx = dz * w, and dw and db
// are dz * x and dz, or their sums over what w and b repeat along. A block sums up its own tile, and the host the
// tiles.
#include "common.cuh"

// gelu'(z), with the limits at both ends: 1 at inf, 0 at -inf.
__device__ inline float slope(float z) {
    // At 100 and beyond both forms are at their limits; inf itself would give inf * 0. A NaN stays one.
    z = z < -100.0f ? -100.0f : z > 100.0f ? 100.0f : z;
#if TANH
    // gelu is z s(u) with s(u) = 1 / (1 + exp(-u)), u = z (1.5958 + 0.07135 z^2), so its slope is s + z s (1 - s) u'.
    float gate = 1.0f / (1.0f + bare_exp2(z * (-2.302208198144325f - 0.10294323970294f * z * z)));
    return gate + z * gate * (1.0f - gate) * (1.5957691216057308f + 0.21406444881780076f * z * z);
#else
    return 0.5f * (1.0f + erff(z * 0.7071067811865476f)) + z * 0.3989422804014327f * expf(-0.5f * z * z);
#endif
}

// A parameter's gradient, of which this thread computes VEC columns, row by row. KIND says what becomes of it.
template <int KIND> struct Parameter {
    float sums[VEC] = {};

    __device__ void add(void* to, INDEX offset, const float (&row)[VEC]) {
        Vector<T, VEC> result;
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            sums[v] += row[v];
            result.values[v] = from_float<T>(row[v]);
        }
        if (KIND == FULL) *(Vector<T, VEC>*)((T*)to + offset) = result;
    }

    // Stores the tile's sums: one for each column, or one in all.
    __device__ void finish(void* to, INDEX tile_m, unsigned tile_n, unsigned tiles_n, INDEX n, INDEX size_n) {
        __shared__ float shared[THREADS / COLUMN_THREADS][COLUMN_THREADS * VEC];
        if (KIND == COLUMNS) {
            int column = threadIdx.x % COLUMN_THREADS * VEC;
            __syncthreads();  // the other parameter's sums have been read
#pragma unroll
            for (int v = 0; v < VEC; v++) shared[threadIdx.x / COLUMN_THREADS][column + v] = sums[v];
            __syncthreads();
            if (threadIdx.x < COLUMN_THREADS && n < size_n)
#pragma unroll
                for (int v = 0; v < VEC; v++) {
                    for (int i = 1; i < THREADS / COLUMN_THREADS; i++) sums[v] += shared[i][column + v];
                    ((float*)to)[tile_m * size_n + n + v] = sums[v];
                }
        }
        if (KIND == TOTAL) {
            float total = 0.0f;
#pragma unroll
            for (int v = 0; v < VEC; v++) total += sums[v];
            total = over_threads<Sum, THREADS>(total, shared[0]);
            if (threadIdx.x == 0) ((float*)to)[tile_m * tiles_n + tile_n] = total;
        }
    }
};

// A block computes a tile of TILE_M rows; COLUMN_THREADS threads have the VEC columns each of one row of it at a time.
extern "C" __global__ void __launch_bounds__(THREADS) fused_gelu_backward(
    const T* grad, const T* x, const T* w, const T* b, T* dx, void* dw, void* db,
    long long size_1, long long size_m, long long size_n,
    long long grad_0, long long grad_1, long long grad_m, long long grad_n,
    long long x_0, long long x_1, long long x_m, long long x_n,
    long long w_0, long long w_1, long long w_m, long long w_n,
    long long b_0, long long b_1, long long b_m, long long b_n,
    long long out_0, long long out_1, long long out_m, long long out_n) {
    constexpr int TILE_N = COLUMN_THREADS * VEC;
    unsigned tiles_m = (size_m + TILE_M - 1) / TILE_M, tiles_n = (size_n + TILE_N - 1) / TILE_N;
    unsigned tile_m = blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n;  // tile_m counts through all outer rows
    INDEX i_0 = tile_m / tiles_m / size_1, i_1 = tile_m / tiles_m % size_1;
    INDEX first = (INDEX)(tile_m % tiles_m) * TILE_M, end = first + TILE_M < size_m ? first + TILE_M : size_m;
    INDEX n = ((INDEX)tile_n * COLUMN_THREADS + threadIdx.x % COLUMN_THREADS) * VEC;
    grad += i_0 * grad_0 + i_1 * grad_1 + n * grad_n;
    x += i_0 * x_0 + i_1 * x_1 + n * x_n;
    w += i_0 * w_0 + i_1 * w_1 + n * w_n;
    b += i_0 * b_0 + i_1 * b_1 + n * b_n;
    INDEX out = i_0 * out_0 + i_1 * out_1 + n * out_n;
    Parameter<DW> w_gradient;
    Parameter<DB> b_gradient;
    if (n < size_n)
        for (INDEX m = first + threadIdx.x / COLUMN_THREADS; m < end; m += THREADS / COLUMN_THREADS) {
            Vector<T, VEC> grads = load_along<VEC>(grad + m * (INDEX)grad_m, grad_n);
            Vector<T, VEC> xs = load_vector<VEC>(x + m * (INDEX)x_m), result;
            Vector<T, VEC> ws = load_along<VEC>(w + m * (INDEX)w_m, w_n), bs = load_along<VEC>(b + m * (INDEX)b_m, b_n);
            float dz[VEC], dz_x[VEC];
#pragma unroll
            for (int v = 0; v < VEC; v++) {
                float x_v = to_float(xs.values[v]), w_v = to_float(ws.values[v]);
                dz[v] = to_float(grads.values[v]) * slope(x_v * w_v + to_float(bs.values[v]));
                dz_x[v] = dz[v] * x_v;
                result.values[v] = from_float<T>(dz[v] * w_v);
            }
            if (DX) *(Vector<T, VEC>*)(dx + out + m * (INDEX)out_m) = result;
            w_gradient.add(dw, out + m * (INDEX)out_m, dz_x);
            b_gradient.add(db, out + m * (INDEX)out_m, dz);
        }
    w_gradient.finish(dw, tile_m, tile_n, tiles_n, n, size_n);
    b_gradient.finish(db, tile_m, tile_n, tiles_n, n, size_n);
}
