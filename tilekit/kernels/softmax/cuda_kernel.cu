// Softmax along rows of N elements: out[i, j] = exp(x[i, j] - max_i) / sum over j of exp(x[i, j] - max_i).
#include "common.cuh"

__device__ inline float exponential(float x) { return bare_exp2(x * LOG2_E); }

#if !ONLINE
// ROW_THREADS threads hold a row in their registers, PER_THREAD times VEC elements each: x is read once. A block has
// THREADS / ROW_THREADS rows.
extern "C" __global__ void __launch_bounds__(THREADS) softmax(
    const T* x, T* out, long long outer, long long rows, long long N, long long x_0, long long x_1, long long x_n,
    long long out_0, long long out_1, long long out_n) {
    __shared__ float shared[32];
    INDEX row = (INDEX)blockIdx.x * (THREADS / ROW_THREADS) + threadIdx.x / ROW_THREADS;
    if (row >= outer * rows) return;  // all threads of a row, and so of a warp, together
    x += row / rows * x_0 + row % rows * x_1;
    out += row / rows * out_0 + row % rows * out_1;
    int first = threadIdx.x % ROW_THREADS * VEC;
    float values[PER_THREAD][VEC], largest = -INF, total = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int j = first + i * ROW_THREADS * VEC;
        Vector<T, VEC> loaded;
        if (j < N) loaded = load_vector<VEC>(x + j * (INDEX)x_n);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            values[i][v] = j < N ? to_float(loaded.values[v]) : -INF;
            largest = fmaxf(largest, values[i][v]);
        }
    }
    largest = over_threads<Max, ROW_THREADS>(largest, shared);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++)
#pragma unroll
        for (int v = 0; v < VEC; v++) total += values[i][v] = exponential(values[i][v] - largest);
    float share = 1.0f / over_threads<Sum, ROW_THREADS>(total, shared);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int j = first + i * ROW_THREADS * VEC;
        Vector<T, VEC> result;
#pragma unroll
        for (int v = 0; v < VEC; v++) result.values[v] = from_float<T>(values[i][v] * share);
        if (j < N) *(Vector<T, VEC>*)(out + j * (INDEX)out_n) = result;
    }
}
#else

// While all so far is -inf, (-inf) - (-inf) would be NaN; subtract 0 instead.
__device__ inline float finite(float largest) { return largest == -INF ? 0.0f : largest; }

// The sum so far is relative to the maximum so far, and shrinks when that grows.
__device__ inline void add(float& largest, float& total, float more_largest, float more_total) {
    float top = fmaxf(largest, more_largest);
    total = total * exponential(largest - finite(top)) + more_total * exponential(more_largest - finite(top));
    largest = top;
}

__device__ inline void add(float& largest, float& total, const Vector<T, VEC>& more) {
    float top = largest;
#pragma unroll
    for (int v = 0; v < VEC; v++) top = fmaxf(top, to_float(more.values[v]));
    if (top > largest) total *= exponential(largest - top);
    largest = top;
#pragma unroll
    for (int v = 0; v < VEC; v++) total += exponential(to_float(more.values[v]) - finite(top));
}

// Rows of any length and any strides. A block has BLOCK_ROWS neighbouring rows, and SLICES threads walk along each: twice,
// first for the maximum and the sum, then for the result.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_online(
    const T* x, T* out, long long outer, long long rows, long long N, long long x_0, long long x_1, long long x_n,
    long long out_0, long long out_1, long long out_n) {
    __shared__ float maxima[SLICES][BLOCK_ROWS], totals[SLICES][BLOCK_ROWS];
    INDEX tiles = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    INDEX row = blockIdx.x % tiles * BLOCK_ROWS + threadIdx.x % BLOCK_ROWS, slice = threadIdx.x / BLOCK_ROWS;
    bool inside = row < rows;
    x += blockIdx.x / tiles * x_0 + (inside ? row : 0) * x_1;
    out += blockIdx.x / tiles * out_0 + (inside ? row : 0) * out_1;
    float largest = -INF, total = 0.0f;
#pragma unroll 4
    for (INDEX j = slice * VEC; j < N; j += SLICES * VEC) add(largest, total, load_vector<VEC>(x + j * (INDEX)x_n));
    maxima[slice][threadIdx.x % BLOCK_ROWS] = largest;
    totals[slice][threadIdx.x % BLOCK_ROWS] = total;
    __syncthreads();
    // A tree over the slices: half of them add the other half's sums, then half of those.
    for (int half = SLICES / 2; half > 0; half /= 2) {
        if (slice < half) {
            int r = threadIdx.x % BLOCK_ROWS;
            add(maxima[slice][r], totals[slice][r], maxima[slice + half][r], totals[slice + half][r]);
        }
        __syncthreads();
    }
    largest = maxima[0][threadIdx.x % BLOCK_ROWS];
    total = totals[0][threadIdx.x % BLOCK_ROWS];
    float share = 1.0f / total;
    if (inside)
#pragma unroll 4
        for (INDEX j = slice * VEC; j < N; j += SLICES * VEC) {
            Vector<T, VEC> loaded = load_vector<VEC>(x + j * (INDEX)x_n), result;
#pragma unroll
            for (int v = 0; v < VEC; v++)
                result.values[v] = from_float<T>(exponential(to_float(loaded.values[v]) - largest) * share);
            *(Vector<T, VEC>*)(out + j * (INDEX)out_n) = result;
        }
}
#endif
