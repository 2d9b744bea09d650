// The gradients of attention, without the L x S matrix in memory. P = exp(scale * query @ key.mT - lse) is computed
// again, tile by tile; with dP = grad @ value.mT and delta = sum(grad * out) row by row, dS = P * (dP - delta). Then
// dvalue = P.mT @ grad, dkey = scale * dS.mT @ query and dquery = scale * dS @ key.
//
// Two kernels walk the tiles: a block owns OWNED keys and walks the queries, or owns queries and walks the keys, in
// tiles of WALKED. Nobody else adds to what it owns, so there are no atomics. Written once for both: the owned rows
// have a part `a` in the logits and `b` in dP (key and value, or query and grad), the walked rows have `c` and `d`.
// With the owned rows down and the walked ones across, both are the same products: logits = a @ c.mT, dP = b @ d.mT,
// and the sums are dS @ c, and P @ d for the values.
#include "common.cuh"

constexpr int PADDING = 16 / sizeof(T);  // keeps the rows that a warp reads together in different banks
constexpr int PITCH_E = PADDED_E + PADDING, PITCH_EV = PADDED_EV + PADDING, PITCH_P = WALKED + PADDING;

// PLACES for walked tiles in shared memory: 4 for c and d of this step and the next, 2 for those of one step, or 1 that
// c and d take in turns.
constexpr int STAGES = PLACES == 4 ? 2 : 1;
constexpr int STAGE = PLACES == 1 ? WALKED * (PITCH_E > PITCH_EV ? PITCH_E : PITCH_EV) : WALKED * (PITCH_E + PITCH_EV);
constexpr int D_PLACE = PLACES == 1 ? 0 : WALKED * PITCH_E;
constexpr int ROWS = OWNED > WALKED ? OWNED : WALKED;  // room for that many rows' lse and delta

// The rows of one array in one head.
struct Array {
    const T* first;
    INDEX row_stride, col_stride, rows, cols;

    __device__ Array(const T* first, long long row_stride, long long col_stride, long long rows, long long cols)
        : first(first), row_stride(row_stride), col_stride(col_stride), rows(rows), cols(cols) {}

    template <int COUNT, int COLS> __device__ void load(T* tile, INDEX start) const {
        if (start < rows)
            load_tile<COUNT, COLS, COLS + PADDING, VEC, false>(
                tile, first + start * row_stride, row_stride, col_stride, rows - start, cols);
    }
};

// What is known of each query: its log-sum-exp, and delta.
struct Queries {
    const float *lse, *delta;
    INDEX count;

    template <int COUNT> __device__ void load(float* to, INDEX start) const {
        for (int i = threadIdx.x; i < COUNT; i += THREADS) {
            bool inside = start + i < count;
            float value = inside ? lse[start + i] : 0.0f;
            to[i] = value == -INF ? INF : value;  // a row that saw no key: all its weights are exp(-inf)
            to[ROWS + i] = inside ? delta[start + i] : 0.0f;
        }
    }
};

// A logit becomes its weight P, and dP becomes dS.
__device__ inline void weigh(float& logit, float& slope, float lse, float delta, float scale, bool hidden) {
    // No weight is larger than 1; at large logits the rounding of lse could make one overflow. A NaN stays one.
    float exponent = logit * scale - lse;
    // With the bare one, the compiler runs out of registers at some sizes.
    float p = exp2f((exponent > 0.0f ? 0.0f : exponent) * LOG2_E);
    logit = hidden ? 0.0f : p;
    slope = hidden ? 0.0f : p * (slope - delta);
}

#if TENSOR_CORES
// A warp has 16 owned rows, and sums up a part of their channels: SPLIT warps share the same rows, where one warp's
// registers could not hold the sums. Each of them computes all of P and dS.
struct Tile {
    float logits[WALKED / 8][4], slopes[WALKED / 8][4];

    __device__ static int warp() { return threadIdx.x / 32; }
    __device__ static int first() { return warp() / SPLIT * 16; }
    __device__ static int owned(int, int c) { return first() + threadIdx.x % 32 / 4 + c / 2 * 8; }
    __device__ static int walked(int j, int c) { return 8 * j + threadIdx.x % 4 * 2 + c % 2; }

    template <int K> __device__ static void multiply(float (&to)[WALKED / 8][4], const T* own, const T* other) {
#pragma unroll
        for (int j = 0; j < WALKED / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) to[j][c] = 0.0f;
        multiply_transposed<WALKED / 8, K>(to, own + first() * (K + PADDING), K + PADDING, other, K + PADDING);
    }
};

template <int CHANNELS> struct Sums {
    static constexpr int OWN = CHANNELS / SPLIT;
    float acc[OWN / 8][4] = {};

    __device__ static int column() { return Tile::warp() % SPLIT * OWN; }

    template <bool FINITE> __device__ void add(const float (&weights)[WALKED / 8][4], T*, const T* walked) {
        multiply_sums<FINITE>(acc, weights, walked + column(), CHANNELS + PADDING);
    }

    __device__ void store(T* to, float factor, INDEX rows, INDEX channels) const {
#pragma unroll
        for (int j = 0; j < OWN / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                INDEX row = Tile::owned(0, c), e = column() + Tile::walked(j, c);
                if (row < rows && e < channels) to[row * channels + e] = from_float<T>(acc[j][c] * factor);
            }
    }
};
#else
// IEEE products in float. Thread (y, x) of 16 x 16 has the owned rows y + 16 i: the walked rows x + 16 j of their
// logits, and the channels 64 j + 4 x + c of the sums. Between two products the weights pass through shared memory.
struct Tile {
    float logits[OWNED / 16][WALKED / 16], slopes[OWNED / 16][WALKED / 16];

    __device__ static int owned(int i, int) { return threadIdx.x / 16 + 16 * i; }
    __device__ static int walked(int, int j) { return threadIdx.x % 16 + 16 * j; }

    template <int K>
    __device__ static void multiply(float (&to)[OWNED / 16][WALKED / 16], const T* own, const T* other) {
#pragma unroll
        for (int i = 0; i < OWNED / 16; i++)
#pragma unroll
            for (int j = 0; j < WALKED / 16; j++) to[i][j] = 0.0f;
        multiply_transposed<OWNED / 16, WALKED / 16, K, K + PADDING, K + PADDING>(to, own, other);
    }
};

template <int CHANNELS> struct Sums {
    float acc[OWNED / 16][CHANNELS / 16] = {};

    template <bool FINITE>
    __device__ void add(const float (&weights)[OWNED / 16][WALKED / 16], T* p, const T* walked) {
        __syncwarp();  // a row's weights come from 16 lanes of one warp, and nobody else reads them
#pragma unroll
        for (int i = 0; i < OWNED / 16; i++)
#pragma unroll
            for (int j = 0; j < WALKED / 16; j++) p[Tile::owned(i, j) * PITCH_P + Tile::walked(i, j)] = weights[i][j];
        __syncwarp();
        multiply_tiles<OWNED / 16, CHANNELS / 16, WALKED, PITCH_P, CHANNELS + PADDING, FINITE>(acc, p, walked);
    }

    __device__ void store(T* to, float factor, INDEX rows, INDEX channels) const {
#pragma unroll
        for (int i = 0; i < OWNED / 16; i++)
#pragma unroll
            for (int j = 0; j < CHANNELS / 16; j++) {
                INDEX row = Tile::owned(i, j), e = j / 4 * 64 + threadIdx.x % 16 * 4 + j % 4;
                if (row < rows && e < channels) to[row * channels + e] = acc[i][j] * factor;
            }
    }
};
#endif

template <> struct Sums<0> {};  // a block that owns queries sums up dS @ c only

// What a block keeps: the owned rows in shared memory, and their sums.
template <bool OWNS_KEYS> struct Block {
    T *a, *b, *stages, *p;
    float* statistics;  // lse and delta of the walked queries, for each stage, or of the owned ones
    INDEX start;        // the first owned row
    Sums<PADDED_E> of_c;
    Sums<OWNS_KEYS ? PADDED_EV : 0> of_d;

    __device__ Block(unsigned char* memory, const Array& own_a, const Array& own_b, INDEX start) : start(start) {
        a = (T*)memory, b = a + OWNED * PITCH_E, stages = b + OWNED * PITCH_EV, p = stages + STAGES * STAGE;
        statistics = (float*)(p + (TENSOR_CORES ? 0 : OWNED * PITCH_P));
        own_a.load<OWNED, PADDED_E>(a, start);
        own_b.load<OWNED, PADDED_EV>(b, start);
        end_of_copies();
        if (ZERO_SCALE) {  // as in the forward pass: a product that overflows is no logit of NaN then
            wait_for_copies<0>();
            __syncthreads();
            for (int i = threadIdx.x; i < OWNED * PITCH_E; i += THREADS) a[i] = from_float<T>(to_float(a[i]) * 0.0f);
        }
    }

    __device__ void walk(const Array& c, const Array& d, const Queries& queries, INDEX first, INDEX end, float scale) {
        int stage = 0;
        if (STAGES == 2) load(c, d, queries, first, 0);
        for (INDEX start_walked = first; start_walked < end; start_walked += WALKED) {
            if (STAGES == 1) load(c, d, queries, start_walked, 0);
            wait_for_copies<0>();
            __syncthreads();  // this step's tiles are there, and everybody is done with the step before
            if (STAGES == 2 && start_walked + WALKED < end) load(c, d, queries, start_walked + WALKED, 1 - stage);
            step(c, d, start_walked, stage, scale);
            if (STAGES == 1) __syncthreads();  // everybody is done with this step
            if (STAGES == 2) stage = 1 - stage;
        }
        if (STAGES == 2) __syncthreads();  // everybody is done, and the next head's tiles may come
    }

    __device__ void load(const Array& c, const Array& d, const Queries& queries, INDEX start_walked, int stage) {
        T* tile = stages + stage * STAGE;
        c.load<WALKED, PADDED_E>(tile, start_walked);
        if (PLACES > 1) d.load<WALKED, PADDED_EV>(tile + D_PLACE, start_walked);
        end_of_copies();
        if (OWNS_KEYS) queries.load<WALKED>(statistics + stage * 2 * ROWS, start_walked);
    }

    __device__ void step(const Array& c, const Array& d, INDEX start_walked, int stage, float scale) {
        T *c_tile = stages + stage * STAGE, *d_tile = c_tile + D_PLACE;
        const float* lse = statistics + (OWNS_KEYS ? stage * 2 * ROWS : 0);
        Tile tile;
        tile.multiply<PADDED_E>(tile.logits, a, c_tile);
        if (PLACES == 1) exchange<PADDED_EV>(d_tile, d, start_walked);
        tile.multiply<PADDED_EV>(tile.slopes, b, d_tile);

        // The diagonal of a causal mask, and rows past the end, which are zero but have weights.
        INDEX last = start_walked + WALKED, first_query = OWNS_KEYS ? start_walked : start;
        bool masked = last > c.rows || (CAUSAL && (OWNS_KEYS ? start + OWNED : last) > first_query + 1);
        INDEX shift = start - start_walked;
        bool infinite = false;
#pragma unroll
        for (int i = 0; i < sizeof(tile.logits) / sizeof(tile.logits[0]); i++)
#pragma unroll
            for (int j = 0; j < sizeof(tile.logits[0]) / sizeof(float); j++) {
                int own = Tile::owned(i, j), other = Tile::walked(i, j), query = OWNS_KEYS ? other : own;
                INDEX ahead = OWNS_KEYS ? shift + own - other : other - own - shift;  // of the key before the query
                bool hidden = masked && (start_walked + other >= c.rows || (CAUSAL && ahead > 0));
                infinite |= !(fabsf(tile.logits[i][j]) < INF);
                weigh(tile.logits[i][j], tile.slopes[i][j], lse[query], lse[ROWS + query], scale, hidden);
            }
        if constexpr (OWNS_KEYS) of_d.template add<false>(tile.logits, p, d_tile);
        if (PLACES == 1) exchange<PADDED_E>(c_tile, c, start_walked);
        // A logit of -inf has weight 0 and moves nothing, but 0 times the infinity that made it would be NaN. An
        // infinity in c shows in all its logits.
        if (__any_sync(0xffffffff, infinite))
            of_c.template add<true>(tile.slopes, p, c_tile);
        else
            of_c.template add<false>(tile.slopes, p, c_tile);
    }

    // The other tile takes the place.
    template <int COLS> __device__ void exchange(T* tile, const Array& array, INDEX start_walked) {
        __syncthreads();
        array.load<WALKED, COLS>(tile, start_walked);
        end_of_copies();
        wait_for_copies<0>();
        __syncthreads();
    }
};


// delta, by a warp a row.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_attention_delta(
    const T* out, const T* grad, float* delta, long long all_rows, long long heads, long long L, long long Ev,
    long long g_b, long long g_h, long long g_l, long long g_e) {
    long long row = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= all_rows) return;
    long long head = row / L;
    out += row * Ev;
    grad += head / heads * g_b + head % heads * g_h + row % L * g_l;
    float total = 0.0f;
    for (int e = threadIdx.x % 32 * VEC; e < Ev; e += 32 * VEC) {
        Vector<T, VEC> outs = load_vector<VEC>(out + e), grads = load_vector<VEC>(grad + e * (INDEX)g_e);
#pragma unroll
        for (int v = 0; v < VEC; v++) total += to_float(outs.values[v]) * to_float(grads.values[v]);
    }
    total = sum_of_lanes<32>(total);
    if (threadIdx.x % 32 == 0) delta[row] = total;
}

// The gradients of key and value. All heads of query that share a head of key are walked by the block that owns the
// keys.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_attention_key_value(
    const T* query, const T* key, const T* value, const T* grad, const float* lse, const float* delta,
    T* dkey, T* dvalue,
    long long heads, long long kv_group, long long L, long long S, long long E, long long Ev,
    long long q_b, long long q_h, long long q_l, long long q_e,
    long long k_b, long long k_h, long long k_s, long long k_e,
    long long v_b, long long v_h, long long v_s, long long v_e,
    long long g_b, long long g_h, long long g_l, long long g_e, float scale) {
    extern __shared__ __align__(16) unsigned char memory[];
    // The first keys come first: under a causal mask the most queries see them.
    unsigned tiles = (S + OWNED - 1) / OWNED, all = gridDim.x / tiles;
    INDEX start = (INDEX)(blockIdx.x / all) * OWNED;
    unsigned kv_head = blockIdx.x % all, kv_heads = heads / kv_group, b = kv_head / kv_heads, kv_h = kv_head % kv_heads;
    Block<true> block(memory, Array(key + b * k_b + kv_h * k_h, k_s, k_e, S, E),
                      Array(value + b * v_b + kv_h * v_h, v_s, v_e, S, Ev), start);
    // Query i sees the keys 0 to i, so those before this block's first key see none of it.
    INDEX first = CAUSAL ? start / WALKED * WALKED : 0;
    for (unsigned member = 0; member < kv_group; member++) {
        long long h = kv_h * kv_group + member;
        long long row = (b * heads + h) * L;
        block.walk(Array(query + b * q_b + h * q_h, q_l, q_e, L, E), Array(grad + b * g_b + h * g_h, g_l, g_e, L, Ev),
                   Queries{lse + row, delta + row, (INDEX)L}, first, L, scale);
    }
    long long row = kv_head * S + start;
    block.of_c.store(dkey + row * E, scale, S - start, E);
    block.of_d.store(dvalue + row * Ev, 1.0f, S - start, Ev);
}

// The gradient of query.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_attention_query(
    const T* query, const T* key, const T* value, const T* grad, const float* lse, const float* delta, T* dquery,
    long long heads, long long kv_group, long long L, long long S, long long E, long long Ev,
    long long q_b, long long q_h, long long q_l, long long q_e,
    long long k_b, long long k_h, long long k_s, long long k_e,
    long long v_b, long long v_h, long long v_s, long long v_e,
    long long g_b, long long g_h, long long g_l, long long g_e, float scale) {
    extern __shared__ __align__(16) unsigned char memory[];
    // The last queries come first: under a causal mask they see the most keys.
    unsigned tiles = (L + OWNED - 1) / OWNED, all = gridDim.x / tiles;
    INDEX start = (INDEX)(tiles - 1 - blockIdx.x / all) * OWNED;
    long long head = blockIdx.x % all, b = head / heads, h = head % heads, kv_h = h / kv_group, row = head * L;
    Block<false> block(memory, Array(query + b * q_b + h * q_h, q_l, q_e, L, E),
                       Array(grad + b * g_b + h * g_h, g_l, g_e, L, Ev), start);
    Queries queries = {lse + row, delta + row, (INDEX)L};
    queries.load<OWNED>(block.statistics, start);
    INDEX end = CAUSAL && start + OWNED < S ? start + OWNED : S;
    block.walk(Array(key + b * k_b + kv_h * k_h, k_s, k_e, S, E), Array(value + b * v_b + kv_h * v_h, v_s, v_e, S, Ev),
               queries, 0, end, scale);
    block.of_c.store(dquery + (row + start) * E, scale, L - start, E);
}
