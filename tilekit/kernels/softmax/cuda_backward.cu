// The gradient of softmax along rows of N elements: dx[i, j] = out[i, j] * (grad[i, j] - sum over j of grad[i, j] *
// out[i, j]). The threads share the rows as in the forward pass.
#include "common.cuh"

#if !WIDE
// ROW_THREADS threads hold both rows in their registers, as they were read: PER_THREAD times VEC elements of each.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward(
    const T* grad, const T* out, T* dx, long long outer, long long rows, long long N,
    long long grad_0, long long grad_1, long long grad_n, long long out_0, long long out_1, long long out_n) {
    __shared__ float shared[32];
    INDEX row = (INDEX)blockIdx.x * (THREADS / ROW_THREADS) + threadIdx.x / ROW_THREADS;
    if (row >= outer * rows) return;  // all threads of a row, and so of a warp, together
    grad += row / rows * grad_0 + row % rows * grad_1;
    out += row / rows * out_0 + row % rows * out_1;
    dx += row / rows * out_0 + row % rows * out_1;
    int first = threadIdx.x % ROW_THREADS * VEC;
    Vector<T, VEC> grads[PER_THREAD], outs[PER_THREAD];
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int j = first + i * ROW_THREADS * VEC;
        if (j >= N) continue;
        grads[i] = load_vector<VEC>(grad + j * (INDEX)grad_n);
        outs[i] = load_vector<VEC>(out + j * (INDEX)out_n);
#pragma unroll
        for (int v = 0; v < VEC; v++) total += to_float(grads[i].values[v]) * to_float(outs[i].values[v]);
    }
    total = over_threads<Sum, ROW_THREADS>(total, shared);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int j = first + i * ROW_THREADS * VEC;
        if (j >= N) continue;
        Vector<T, VEC> result;
#pragma unroll
        for (int v = 0; v < VEC; v++)
            result.values[v] = from_float<T>(to_float(outs[i].values[v]) * (to_float(grads[i].values[v]) - total));
        *(Vector<T, VEC>*)(dx + j * (INDEX)out_n) = result;
    }
}
#else

// Rows of any length and any strides. A block has BLOCK_ROWS neighbouring rows, and SLICES threads walk along each:
// twice, first for the sum, then for the result.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward_wide(
    const T* grad, const T* out, T* dx, long long outer, long long rows, long long N,
    long long grad_0, long long grad_1, long long grad_n, long long out_0, long long out_1, long long out_n) {
    __shared__ float totals[SLICES][BLOCK_ROWS];
    INDEX tiles = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    INDEX row = blockIdx.x % tiles * BLOCK_ROWS + threadIdx.x % BLOCK_ROWS, slice = threadIdx.x / BLOCK_ROWS;
    bool inside = row < rows;
    grad += blockIdx.x / tiles * grad_0 + (inside ? row : 0) * grad_1;
    out += blockIdx.x / tiles * out_0 + (inside ? row : 0) * out_1;
    dx += blockIdx.x / tiles * out_0 + (inside ? row : 0) * out_1;
    float total = 0.0f;
    for (INDEX j = slice; j < N; j += SLICES)
        total += to_float(grad[j * (INDEX)grad_n]) * to_float(out[j * (INDEX)out_n]);
    totals[slice][threadIdx.x % BLOCK_ROWS] = total;
    __syncthreads();
    // A tree over the slices: half of them add the other half's sums, then half of those.
    for (int half = SLICES / 2; half > 0; half /= 2) {
        if (slice < half) totals[slice][threadIdx.x % BLOCK_ROWS] += totals[slice + half][threadIdx.x % BLOCK_ROWS];
        __syncthreads();
    }
    total = totals[0][threadIdx.x % BLOCK_ROWS];
    if (inside)
        for (INDEX j = slice; j < N; j += SLICES)
            dx[j * (INDEX)out_n] =
                from_float<T>(to_float(out[j * (INDEX)out_n]) * (to_float(grad[j * (INDEX)grad_n]) - total));
}
#endif
