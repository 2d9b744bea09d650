// Vector addition: out[i] = a[i] + b[i]. One thread adds VEC neighbouring elements: 16 bytes, where all arrays begin at
// a multiple of 16 bytes, else one element.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) vadd(const T* a, const T* b, T* out, long long n) {
    INDEX i = ((INDEX)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (i + VEC <= n) {
        auto x = load_vector<VEC>(a + i), y = load_vector<VEC>(b + i);
        Vector<T, VEC> sum;
#pragma unroll
        for (int v = 0; v < VEC; v++) sum.values[v] = from_float<T>(to_float(x.values[v]) + to_float(y.values[v]));
        *(Vector<T, VEC>*)(out + i) = sum;
    } else {
        for (; i < n; i++) out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));  // the last few elements
    }
}

// For any strides: a block adds a tile of 32 columns and TILE_M rows, a warp one row of it at a time.
extern "C" __global__ void __launch_bounds__(THREADS) vadd_strided(
    const T* a, const T* b, T* out, long long size_1, long long size_m, long long size_n,
    long long a_0, long long a_1, long long a_m, long long a_n,
    long long b_0, long long b_1, long long b_m, long long b_n,
    long long out_0, long long out_1, long long out_m, long long out_n) {
    unsigned tiles_m = (size_m + TILE_M - 1) / TILE_M, tiles_n = (size_n + 31) / 32;
    unsigned tile = blockIdx.x % (tiles_m * tiles_n), outer = blockIdx.x / (tiles_m * tiles_n);
    INDEX i_0 = outer / size_1, i_1 = outer % size_1;
    INDEX first = (INDEX)(tile / tiles_n) * TILE_M, end = first + TILE_M < size_m ? first + TILE_M : size_m;
    INDEX n = (INDEX)(tile % tiles_n) * 32 + threadIdx.x % 32;
    if (n >= size_n) return;
    a += i_0 * a_0 + i_1 * a_1 + n * a_n;
    b += i_0 * b_0 + i_1 * b_1 + n * b_n;
    out += i_0 * out_0 + i_1 * out_1 + n * out_n;
    for (INDEX m = first + threadIdx.x / 32; m < end; m += THREADS / 32)
        out[m * (INDEX)out_m] = from_float<T>(to_float(a[m * (INDEX)a_m]) + to_float(b[m * (INDEX)b_m]));
}
