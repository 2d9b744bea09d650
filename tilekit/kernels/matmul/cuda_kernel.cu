// The matrix product: out[i, j] = sum over k of a[i, k] * b[k, j], summed up in float. A block computes a tile of
// BLOCK_M x BLOCK_N, walking along K in steps of BLOCK_K; the tiles of a and b for STAGES - 1 steps are on their way
// into shared memory while it works on one.
#include "common.cuh"

// Tiles in bands of 8 rows, column by column, so that blocks that run together share inputs.
__device__ inline void place(unsigned tile, unsigned tiles_m, unsigned tiles_n, unsigned& tile_m, unsigned& tile_n) {
    unsigned first = tile / (8 * tiles_n) * 8, inside = tile % (8 * tiles_n);
    unsigned rows = tiles_m - first < 8 ? tiles_m - first : 8;
    tile_m = first + inside % rows;
    tile_n = inside / rows;
}

// A tile in shared memory: BLOCK_M x BLOCK_K of a, BLOCK_K x BLOCK_N of b, or its transpose where the array's own
// columns are neighbours. The padding keeps the rows that a warp reads together in different banks.
constexpr int PADDING = 16 / sizeof(T);
// In TF32 a tile that is to be transposed is read element by element, from four rows at a time.
constexpr int PADDING_ACROSS = TENSOR_CORES && sizeof(T) == 4 ? 8 : PADDING;
constexpr int A_ROWS = A_DOWN ? BLOCK_K : BLOCK_M, A_COLS = A_DOWN ? BLOCK_M : BLOCK_K;
constexpr int B_ROWS = B_DOWN ? BLOCK_N : BLOCK_K, B_COLS = B_DOWN ? BLOCK_K : BLOCK_N;
constexpr int A_PITCH = A_COLS + (A_DOWN ? PADDING_ACROSS : PADDING), B_PITCH = B_COLS + (B_DOWN ? PADDING : PADDING_ACROSS);
constexpr int STAGE = A_ROWS * A_PITCH + B_ROWS * B_PITCH;

struct Operands {
    const T *a, *b;
    INDEX a_m, a_k, b_k, b_n, M, N, K;  // sizes from this block's first row and column on
};

__device__ inline void load_step(T* stage, const Operands& o, INDEX k) {
    T *a = stage, *b = stage + A_ROWS * A_PITCH;
    if (k < o.K) {
        const T *a_k = o.a + k * o.a_k, *b_k = o.b + k * o.b_k;
        if (A_DOWN)
            load_tile<A_ROWS, A_COLS, A_PITCH, A_VEC, false>(a, a_k, o.a_k, o.a_m, o.K - k, o.M);
        else
            load_tile<A_ROWS, A_COLS, A_PITCH, A_VEC, A_ALONG_M>(a, a_k, o.a_m, o.a_k, o.M, o.K - k);
        if (B_DOWN)
            load_tile<B_ROWS, B_COLS, B_PITCH, B_VEC, false>(b, b_k, o.b_n, o.b_k, o.N, o.K - k);
        else
            load_tile<B_ROWS, B_COLS, B_PITCH, B_VEC, B_ALONG_K>(b, b_k, o.b_k, o.b_n, o.K - k, o.N);
    }
    end_of_copies();  // of an empty group, too, so that groups and steps go on agreeing
}

#if TENSOR_CORES
// The warps share the tile as WARPS_M x WARPS_N; each sums up WARP_M x WARP_N of it in fragments of 16 x 8.
constexpr int WARPS_N = BLOCK_N / WARP_N, FRAGMENTS_M = WARP_M / 16, FRAGMENTS_N = WARP_N / 8;

struct Accumulator {
    float acc[FRAGMENTS_M][FRAGMENTS_N][4] = {};

    __device__ void add(const T* a, const T* b) {
        int m = threadIdx.x / 32 / WARPS_N * WARP_M, n = threadIdx.x / 32 % WARPS_N * WARP_N;
#pragma unroll
        for (int k = 0; k < BLOCK_K; k += FRAGMENT_K) {
            unsigned left[FRAGMENTS_M][4], right[FRAGMENTS_N / 2][4];
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; i++)
                load_left<A_DOWN>(left[i], a + (A_DOWN ? k * A_PITCH + m + 16 * i : (m + 16 * i) * A_PITCH + k), A_PITCH);
#pragma unroll
            for (int j = 0; j < FRAGMENTS_N / 2; j++)
                load_right<B_DOWN>(right[j], b + (B_DOWN ? (n + 16 * j) * B_PITCH + k : k * B_PITCH + n + 16 * j), B_PITCH);
#pragma unroll
            for (int i = 0; i < FRAGMENTS_M; i++)
#pragma unroll
                for (int j = 0; j < FRAGMENTS_N; j++)
                    multiply_accumulate(acc[i][j], left[i], right[j / 2] + j % 2 * 2, T());
        }
    }

    __device__ void store(T* out, INDEX out_m, INDEX M, INDEX N) const {
        int m = threadIdx.x / 32 / WARPS_N * WARP_M + threadIdx.x % 32 / 4;
        int n = threadIdx.x / 32 % WARPS_N * WARP_N + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M * 2; i++)
#pragma unroll
            for (int j = 0; j < FRAGMENTS_N; j++) {
                int row = m + 8 * i, col = n + 8 * j;
                const float* two = acc[i / 2][j] + i % 2 * 2;
                if (OUT_PAIRS && row < M && col < N)
                    *(Vector<T, 2>*)(out + row * out_m + col) = {from_float<T>(two[0]), from_float<T>(two[1])};
                if (!OUT_PAIRS && row < M && col < N) out[row * out_m + col] = from_float<T>(two[0]);
                if (!OUT_PAIRS && row < M && col + 1 < N) out[row * out_m + col + 1] = from_float<T>(two[1]);
            }
    }
};
#else
// IEEE products in float: 256 threads as 16 x 16, each with BLOCK_M / 16 rows and BLOCK_N / 16 columns.
struct Accumulator {
    float acc[BLOCK_M / 16][BLOCK_N / 16] = {};

    __device__ void add(const T* a, const T* b) {
        multiply_tiles<BLOCK_M / 16, BLOCK_N / 16, BLOCK_K, A_PITCH, B_PITCH>(acc, a, b);
    }

    __device__ void store(T* out, INDEX out_m, INDEX M, INDEX N) const {
#pragma unroll
        for (int i = 0; i < BLOCK_M / 16; i++)
#pragma unroll
            for (int j = 0; j < BLOCK_N / 16; j++) {
                int row = threadIdx.x / 16 + 16 * i, col = j / 4 * 64 + threadIdx.x % 16 * 4 + j % 4;
                if (row < M && col < N) out[row * out_m + col] = acc[i][j];
            }
    }
};
#endif

extern "C" __global__ void __launch_bounds__(THREADS) matmul(
    const T* a, const T* b, T* out, long long M, long long N, long long K, long long batch_1,
    long long a_0, long long a_1, long long a_m, long long a_k,
    long long b_0, long long b_1, long long b_k, long long b_n,
    long long out_0, long long out_1, long long out_m) {
    extern __shared__ __align__(16) unsigned char memory[];
    T* stages = (T*)memory;
    unsigned tiles_m = (M + BLOCK_M - 1) / BLOCK_M, tiles_n = (N + BLOCK_N - 1) / BLOCK_N, tile_m, tile_n;
    place(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n, tile_m, tile_n);
    long long i_0 = blockIdx.x / (tiles_m * tiles_n) / batch_1, i_1 = blockIdx.x / (tiles_m * tiles_n) % batch_1;
    long long m = (long long)tile_m * BLOCK_M, n = (long long)tile_n * BLOCK_N;
    Operands operands = {a + i_0 * a_0 + i_1 * a_1 + m * a_m, b + i_0 * b_0 + i_1 * b_1 + n * b_n,
                         (INDEX)a_m, (INDEX)a_k, (INDEX)b_k, (INDEX)b_n, (INDEX)(M - m), (INDEX)(N - n), (INDEX)K};
    Accumulator accumulator;
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) load_step(stages + step * STAGE, operands, step * BLOCK_K);
    int stage = 0;
    for (INDEX k = 0; k < operands.K; k += BLOCK_K) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // everybody's copies for this step are there, and nobody reads the step before it any more
        int next = stage == 0 ? STAGES - 1 : stage - 1;
        load_step(stages + next * STAGE, operands, k + (STAGES - 1) * BLOCK_K);
        accumulator.add(stages + stage * STAGE, stages + stage * STAGE + A_ROWS * A_PITCH);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    accumulator.store(out + i_0 * out_0 + i_1 * out_1 + m * out_m + n, (INDEX)out_m, operands.M, operands.N);
}
