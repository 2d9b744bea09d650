// What the kernels share: conversions, vectors of 16 bytes, tiles in shared memory, and products of tiles.
// A launch defines TYPE, the arrays' element type, and INDEX, the type of offsets into them: int, or long long where
// offsets pass 2^31.
#pragma once
#include "ptx.cuh"

using T = TYPE;

#define INF __int_as_float(0x7f800000)
constexpr float LOG2_E = 1.4426950408889634f;  // exp(x) is 2^(x log2(e))

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename To> __device__ inline To from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline __half from_float<__half>(float x) { return __float2half(x); }
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16(x); }

// N neighbouring elements that are read and written by one instruction.
template <typename E, int N> struct alignas(sizeof(E) * N) Vector {
    E values[N];
};

template <int N, typename E> __device__ inline Vector<E, N> load_vector(const E* from) {
    return *(const Vector<E, N>*)from;
}

// N elements along a dimension whose stride is 1, or 0 for one element that repeats.
template <int N, typename E> __device__ inline Vector<E, N> load_along(const E* from, INDEX stride) {
    if (N == 1 || stride != 0) return load_vector<N>(from);
    Vector<E, N> same;
#pragma unroll
    for (int v = 0; v < N; v++) same.values[v] = *from;
    return same;
}

// Two elements in 32 bits, the first one low, as the tensor cores take them.
template <typename E> __device__ inline unsigned pair(float first, float second) {
    Vector<E, 2> both = {from_float<E>(first), from_float<E>(second)};
    return *(unsigned*)&both;
}

// The largest value, or the sum, over WIDTH lanes of a warp that are STEP apart; every one of them gets it.
template <int WIDTH, int STEP = 1> __device__ inline float max_of_lanes(float x) {
#pragma unroll
    for (int distance = WIDTH * STEP / 2; distance >= STEP; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    return x;
}

template <int WIDTH, int STEP = 1> __device__ inline float sum_of_lanes(float x) {
#pragma unroll
    for (int distance = WIDTH * STEP / 2; distance >= STEP; distance /= 2)
        x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

struct Sum {
    __device__ static float of(float a, float b) { return a + b; }
    __device__ static float of_lanes(float x) { return sum_of_lanes<32>(x); }
};
struct Max {
    __device__ static float of(float a, float b) { return fmaxf(a, b); }
    __device__ static float of_lanes(float x) { return max_of_lanes<32>(x); }
};

// One value from COUNT threads, a warp or the whole block: by shuffles within a warp, and through shared memory between
// warps. Always in the same order, so a sum is the same each time.
template <typename Operation, int COUNT> __device__ inline float over_threads(float x, float* shared) {
    x = Operation::of_lanes(x);
    if (COUNT == 32) return x;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int warp = 1; warp < COUNT / 32; warp++) x = Operation::of(x, shared[warp]);
    __syncthreads();  // before anybody writes there again
    return x;
}

// Copies a tile of ROWS x COLS elements into shared memory, PITCH elements from row to row, with zeros where it reaches
// past the `rows` and `cols` that there are. CHUNK elements of a row go together: 16 bytes, if the array's columns are
// neighbours and everything begins at multiples of 16 bytes, else 1. DOWN walks down the columns, for arrays whose
// rows are neighbours, so that a warp's accesses are, too.
template <int ROWS, int COLS, int PITCH, int CHUNK, bool DOWN>
__device__ inline void load_tile(T* tile, const T* array, INDEX row_stride, INDEX col_stride, INDEX rows, INDEX cols) {
    constexpr int CHUNKS = COLS / CHUNK;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int row = DOWN ? i % ROWS : i / CHUNKS, col = DOWN ? i / ROWS * CHUNK : i % CHUNKS * CHUNK;
        bool inside = row < rows && col < cols;
        const T* from = inside ? array + (row * row_stride + col * col_stride) : array;
        if (CHUNK > 1)
            copy_16_bytes(tile + row * PITCH + col, from, inside);
        else
            tile[row * PITCH + col] = inside ? *from : from_float<T>(0.0f);
    }
}

// --- products on the tensor cores: T of 16 bits, or float in TF32 ----------------------------------------------------

constexpr int FRAGMENT_K = 32 / sizeof(T);  // the depth of one product of fragments

__device__ inline unsigned rounded(unsigned float_bits) { return to_tf32(__int_as_float(float_bits)); }

// A 16 x FRAGMENT_K operand on the left, from shared memory where its rows are; TRANSPOSED: where its columns are rows.
template <bool TRANSPOSED> __device__ inline void load_left(unsigned (&a)[4], const T* tile, int pitch) {
    int lane = threadIdx.x % 32;
    if constexpr (sizeof(T) == 2) {
        int row = TRANSPOSED ? lane % 8 + lane / 16 * 8 : lane % 16, col = TRANSPOSED ? lane / 8 % 2 * 8 : lane / 16 * 8;
        load_matrices<TRANSPOSED>(a, tile + row * pitch + col);
    } else if constexpr (TRANSPOSED) {  // the hardware transposes elements of 16 bits only
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = to_tf32(to_float(tile[(lane % 4 + i / 2 * 4) * pitch + lane / 4 + i % 2 * 8]));
    } else {
        load_matrices<false>(a, tile + lane % 16 * pitch + lane / 16 * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = rounded(a[i]);
    }
}

// Two neighbouring FRAGMENT_K x 8 operands on the right, b[0..1] and b[2..3]; TRANSPOSED as above.
template <bool TRANSPOSED> __device__ inline void load_right(unsigned (&b)[4], const T* tile, int pitch) {
    int lane = threadIdx.x % 32;
    if constexpr (sizeof(T) == 2) {
        int row = TRANSPOSED ? lane % 8 + lane / 16 * 8 : lane % 16, col = TRANSPOSED ? lane / 8 % 2 * 8 : lane / 16 * 8;
        // The hardware wants pairs of neighbours in a column, which lie in one row of the transposed tile.
        load_matrices<!TRANSPOSED>(b, tile + row * pitch + col);
    } else if constexpr (TRANSPOSED) {
        load_matrices<false>(b, tile + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) b[i] = rounded(b[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) b[i] = to_tf32(to_float(tile[(lane % 4 + i % 2 * 4) * pitch + lane / 4 + i / 2 * 8]));
    }
}

// A warp's sums: 16 rows, and 8 N columns in fragments of 16 x 8. Of the rows r = lane / 4 and r + 8, a lane has the
// columns 8 j + 2 (lane % 4) and the next one, in acc[j].

// acc[row][col] += left[row][k] * right[col][k], summed over K values of k.
template <int N, int K>
__device__ inline void multiply_transposed(
    float (&acc)[N][4], const T* left, int left_pitch, const T* right, int right_pitch) {
#pragma unroll
    for (int k = 0; k < K; k += FRAGMENT_K) {
        unsigned l[4], r[4];
        load_left<false>(l, left + k, left_pitch);
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            load_right<true>(r, right + 8 * j * right_pitch + k, right_pitch);
            multiply_accumulate(acc[j], l, r, T());
            multiply_accumulate(acc[j + 1], l, r + 2, T());
        }
    }
}

// Values that others are multiplied by: 0 in place of an infinity.
__device__ inline float without_infinity(float x) { return fabsf(x) == INF ? 0.0f : x; }

template <typename E> __device__ inline unsigned finite_pair(unsigned two) {
    Vector<E, 2> both = *(Vector<E, 2>*)&two;
    float first = to_float(both.values[0]), second = to_float(both.values[1]);
    return pair<E>(without_infinity(first), without_infinity(second));
}

// acc[row][col] += left[row][k] * right[k][col], summed over the columns k of left, which are sums of this warp
// themselves: two fragments of a result side by side are one fragment of an operand. FINITE takes infinities on the
// right as 0.
template <bool FINITE, int N, int M>
__device__ inline void multiply_sums(float (&acc)[N][4], const float (&left)[M][4], const T* right, int right_pitch) {
    constexpr int TOGETHER = FRAGMENT_K / 8;
#pragma unroll
    for (int m = 0; m < M; m += TOGETHER) {
        const float *p = left[m], *next = left[m + TOGETHER - 1];
        unsigned l[4], r[4];
        if constexpr (sizeof(T) == 2) {
            l[0] = pair<T>(p[0], p[1]), l[1] = pair<T>(p[2], p[3]);
            l[2] = pair<T>(next[0], next[1]), l[3] = pair<T>(next[2], next[3]);
        } else {  // the operand's columns c and c + 4 are the sums' 2 c and 2 c + 1, and the rows on the right likewise
            l[0] = to_tf32(p[0]), l[1] = to_tf32(p[2]), l[2] = to_tf32(p[1]), l[3] = to_tf32(p[3]);
        }
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            if constexpr (sizeof(T) == 2) {
                load_right<false>(r, right + 8 * m * right_pitch + 8 * j, right_pitch);
                if (FINITE)
#pragma unroll
                    for (int i = 0; i < 4; i++) r[i] = finite_pair<T>(r[i]);
            } else {
                int lane = threadIdx.x % 32;
                const T* from = right + (8 * m + lane % 4 * 2) * right_pitch + 8 * j + lane / 4;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float value = to_float(from[i % 2 * right_pitch + i / 2 * 8]);
                    r[i] = to_tf32(FINITE ? without_infinity(value) : value);
                }
            }
            multiply_accumulate(acc[j], l, r, T());
            multiply_accumulate(acc[j + 1], l, r + 2, T());
        }
    }
}

// --- products without tensor cores: T is float ----------------------------------------------------------------------

// Thread (y, x) of those that share a tile, ACROSS of them side by side, owns the rows y + DOWN i of the result. With each
// float4 that it reads from shared memory it feeds at least 16 multiplications: that, and not the arithmetic, decides how
// fast this is.
template <int ACROSS> constexpr int DOWN = THREADS / ACROSS;

// 16 across are half a warp. 8 across put a warp on 4 x 8 places, neighbours in x two lanes apart: then of every half-warp,
// on either side, pairs of lanes read the same 16 bytes, and the hardware needs two turns for a warp's float4 instead of four.
template <int ACROSS> __device__ inline int thread_x() {
    return ACROSS == 8 ? threadIdx.x / 2 % 8 : threadIdx.x % ACROSS;
}
template <int ACROSS> __device__ inline int thread_y() {
    return ACROSS == 8 ? threadIdx.x / 16 * 2 + threadIdx.x % 2 : threadIdx.x / ACROSS;
}

// acc[i][j] += left[y + DOWN i][k] * right[x + ACROSS j][k], summed over K values of k.
template <int ROWS, int COLS, int K, int LEFT_PITCH, int RIGHT_PITCH, int ACROSS = 16>
__device__ inline void multiply_transposed(float (&acc)[ROWS][COLS], const float* left, const float* right) {
    int x = thread_x<ACROSS>(), y = thread_y<ACROSS>();
#pragma unroll 2
    for (int k = 0; k < K; k += 4) {
        Vector<float, 4> l[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) l[i] = load_vector<4>(left + (y + DOWN<ACROSS> * i) * LEFT_PITCH + k);
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            Vector<float, 4> r = load_vector<4>(right + (x + ACROSS * j) * RIGHT_PITCH + k);
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int i = 0; i < ROWS; i++) acc[i][j] = fmaf(l[i].values[c], r.values[c], acc[i][j]);
        }
    }
}

// acc[i][4 j + c] += left[y + DOWN i][k] * right[k][4 (x + ACROSS j) + c], summed over K values of k. FINITE takes
// infinities on the right as 0.
template <int ROWS, int COLS, int K, int LEFT_PITCH, int RIGHT_PITCH, bool FINITE = false, int ACROSS = 16>
__device__ inline void multiply_tiles(float (&acc)[ROWS][COLS], const float* left, const float* right) {
    int x = thread_x<ACROSS>(), y = thread_y<ACROSS>();
#pragma unroll 2
    for (int k = 0; k < K; k += 4) {
        Vector<float, 4> l[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) l[i] = load_vector<4>(left + (y + DOWN<ACROSS> * i) * LEFT_PITCH + k);
#pragma unroll
        for (int inner = 0; inner < 4; inner++)
#pragma unroll
            for (int j = 0; j < COLS / 4; j++) {
                Vector<float, 4> r = load_vector<4>(right + (k + inner) * RIGHT_PITCH + 4 * (x + ACROSS * j));
                if (FINITE)
#pragma unroll
                    for (int c = 0; c < 4; c++) r.values[c] = fabsf(r.values[c]) == INF ? 0.0f : r.values[c];
#pragma unroll
                for (int i = 0; i < ROWS; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        acc[i][4 * j + c] = fmaf(l[i].values[inner], r.values[c], acc[i][4 * j + c]);
            }
    }
}
