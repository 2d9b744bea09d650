// Attention: out = softmax(scale * query @ key.mT) @ value, without the L x S matrix in memory. A block owns BLOCK_M rows
// of query of one head and walks the keys in tiles of BLOCK_N. For each row it keeps the largest logit so far (m_i), the
// sum of exponentials relative to it (l_i) and the weighted sum of values (acc); when a tile brings a larger logit, what
// was summed so far shrinks by exp(old - new).
#include "common.cuh"

constexpr float LN_2 = 0.6931471805599453f;
constexpr int PADDING = 16 / sizeof(T);  // keeps the rows that a warp reads together in different banks
constexpr int PITCH_E = PADDED_E + PADDING, PITCH_EV = PADDED_EV + PADDING, PITCH_P = BLOCK_N + PADDING;

// What one row keeps besides its part of acc. Several lanes share a row; each sums the exponentials of its own columns.
struct Row {
    float m_i = -INF, l_i = 0.0f;

    // Takes the row's largest new logit; returns what the sums so far shrink by.
    __device__ float rise_to(float largest, float scale_log2) {
        float m_new = fmaxf(m_i, largest);
        float alpha = bare_exp2((m_i - finite(m_new)) * scale_log2);
        m_i = m_new;
        l_i *= alpha;
        return alpha;
    }
    // Subtracted before it is scaled: however large the logits are, the largest one gives exactly 1.
    __device__ float weight(float logit, float scale_log2) {
        float p = bare_exp2((logit - finite(m_i)) * scale_log2);
        l_i += p;
        return p;
    }
    // While a row has seen nothing but -inf, any finite number will do: exp2 gives 0 instead of NaN.
    __device__ static float finite(float m) { return m == -INF ? 0.0f : m; }
};

// Where one block's head begins in each array, and how far its rows and channels are apart.
struct Head {
    const T *q, *k, *v;
    INDEX q_l, q_e, k_s, k_e, v_s, v_e, L, S, E, Ev;
};

__device__ inline void load_key(T* k, const Head& head, INDEX start, INDEX end) {
    if (start < end)
        load_tile<BLOCK_N, PADDED_E, PITCH_E, VEC, false>(
            k, head.k + start * head.k_s, head.k_s, head.k_e, head.S - start, head.E);
    end_of_copies();
}

__device__ inline void load_value(T* v, const Head& head, INDEX start) {
    load_tile<BLOCK_N, PADDED_EV, PITCH_EV, VEC, false>(
        v, head.v + start * head.v_s, head.v_s, head.v_e, head.S - start, head.Ev);
    end_of_copies();
}

__device__ inline bool hidden(INDEX row, INDEX key, INDEX S) { return key >= S || (CAUSAL && key > row); }

#if TENSOR_CORES
// Each warp has 16 rows, in fragments of 16 x 8: of its own rows r = lane / 4 and r + 8, a lane has two columns of each.
struct Rows {
    float acc[PADDED_EV / 8][4] = {}, logits[BLOCK_N / 8][4];
    Row row[2];

    __device__ static int first() { return threadIdx.x / 32 * 16; }
    __device__ static int column() { return threadIdx.x % 4 * 2; }
    __device__ static int index(int half) { return first() + threadIdx.x % 32 / 4 + 8 * half; }

    __device__ void compute_logits(const T* q, const T* k) {
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) logits[j][c] = 0.0f;
        multiply_transposed<BLOCK_N / 8, PADDED_E>(logits, q + first() * PITCH_E, PITCH_E, k, PITCH_E);
    }

    __device__ void mask(INDEX start_m, INDEX start_n, INDEX S) {
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (hidden(start_m + index(c / 2), start_n + 8 * j + column() + c % 2, S)) logits[j][c] = -INF;
    }

    __device__ void add(T*, const T* v, float scale_log2) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float largest = -INF;
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; j++)
                largest = fmaxf(largest, fmaxf(logits[j][2 * half], logits[j][2 * half + 1]));
            float alpha = row[half].rise_to(max_of_lanes<4>(largest), scale_log2);
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
                for (int c = 2 * half; c < 2 * half + 2; c++) logits[j][c] = row[half].weight(logits[j][c], scale_log2);
#pragma unroll
            for (int j = 0; j < PADDED_EV / 8; j++)
#pragma unroll
                for (int c = 2 * half; c < 2 * half + 2; c++) acc[j][c] *= alpha;
        }
        multiply_sums<false>(acc, logits, v, PITCH_EV);  // in registers: the weights need no shared memory
    }

    __device__ void store(T* out, float* lse, INDEX rows, INDEX Ev, float scale_log2) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float l_i = sum_of_lanes<4>(row[half].l_i);
            if (index(half) >= rows) continue;
            // A row that saw no key has l_i = 0, acc = 0 and m_i = -inf.
            if (column() == 0) lse[index(half)] = (row[half].m_i * scale_log2 + log2f(l_i)) * LN_2;
            T* to = out + index(half) * Ev;
#pragma unroll
            for (int j = 0; j < PADDED_EV / 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (8 * j + column() + c < Ev)
                        to[8 * j + column() + c] = from_float<T>(acc[j][2 * half + c] / (l_i == 0.0f ? 1.0f : l_i));
        }
    }
};
#else
// IEEE products in float. Thread (y, x), 8 across, has the rows y + DOWN i: the columns x + 8 j of their logits, and
// 4 (x + 8 j) + c of acc. Between the two products the weights pass through shared memory.
struct Rows {
    static constexpr int COUNT = BLOCK_M / DOWN<8>;
    float acc[COUNT][PADDED_EV / 8] = {}, logits[COUNT][BLOCK_N / 8];
    Row row[COUNT];

    __device__ static int index(int i) { return thread_y<8>() + DOWN<8> * i; }
    __device__ static int column(int j) { return thread_x<8>() + 8 * j; }

    __device__ void compute_logits(const T* q, const T* k) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; j++) logits[i][j] = 0.0f;
        multiply_transposed<COUNT, BLOCK_N / 8, PADDED_E, PITCH_E, PITCH_E, 8>(logits, q, k);
    }

    __device__ void mask(INDEX start_m, INDEX start_n, INDEX S) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; j++)
                if (hidden(start_m + index(i), start_n + column(j), S)) logits[i][j] = -INF;
    }

    __device__ void add(T* p, const T* v, float scale_log2) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float largest = -INF;
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; j++) largest = fmaxf(largest, logits[i][j]);
            float alpha = row[i].rise_to(max_of_lanes<8, 2>(largest), scale_log2);
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; j++)
                p[index(i) * PITCH_P + column(j)] = row[i].weight(logits[i][j], scale_log2);
#pragma unroll
            for (int j = 0; j < PADDED_EV / 8; j++) acc[i][j] *= alpha;
        }
        __syncwarp();  // a row's weights come from 8 lanes of one warp, and nobody else reads them
        multiply_tiles<COUNT, PADDED_EV / 8, BLOCK_N, PITCH_P, PITCH_EV, false, 8>(acc, p, v);
    }

    __device__ void store(T* out, float* lse, INDEX rows, INDEX Ev, float scale_log2) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            float l_i = sum_of_lanes<8, 2>(row[i].l_i);
            if (index(i) >= rows) continue;
            // A row that saw no key has l_i = 0, acc = 0 and m_i = -inf.
            if (column(0) == 0) lse[index(i)] = (row[i].m_i * scale_log2 + log2f(l_i)) * LN_2;
#pragma unroll
            for (int j = 0; j < PADDED_EV / 8; j++) {
                int e = 4 * column(j / 4) + j % 4;
                if (e < Ev) out[index(i) * Ev + e] = acc[i][j] / (l_i == 0.0f ? 1.0f : l_i);
            }
        }
    }
};
#endif

extern "C" __global__ void __launch_bounds__(THREADS) flash_attention(
    const T* query, const T* key, const T* value, T* out, float* lse,
    long long heads, long long kv_group, long long L, long long S, long long E, long long Ev,
    long long q_b, long long q_h, long long q_l, long long q_e,
    long long k_b, long long k_h, long long k_s, long long k_e,
    long long v_b, long long v_h, long long v_s, long long v_e, float scale_log2) {
    extern __shared__ __align__(16) unsigned char memory[];
    T *q = (T*)memory, *k = q + BLOCK_M * PITCH_E, *v = k + BLOCK_N * PITCH_E, *p = v + BLOCK_N * PITCH_EV;

    // Under a causal mask the last rows see the most keys: they come first, of all heads, so that short blocks remain for
    // the end. Else the blocks of a head run together, and its keys stay in the L2 cache.
    unsigned tiles = (L + BLOCK_M - 1) / BLOCK_M, all = gridDim.x / tiles;
    unsigned tile = CAUSAL ? tiles - 1 - blockIdx.x / all : blockIdx.x % tiles;
    long long bh = CAUSAL ? blockIdx.x % all : blockIdx.x / tiles, b = bh / heads, h = bh % heads;
    INDEX start_m = (INDEX)tile * BLOCK_M;
    Head head = {query + b * q_b + h * q_h + start_m * q_l, key + b * k_b + h / kv_group * k_h,
                 value + b * v_b + h / kv_group * v_h, (INDEX)q_l, (INDEX)q_e, (INDEX)k_s, (INDEX)k_e,
                 (INDEX)v_s, (INDEX)v_e, (INDEX)L, (INDEX)S, (INDEX)E, (INDEX)Ev};
    // No row of this block sees a key from `end` on.
    INDEX end = CAUSAL && start_m + BLOCK_M < head.S ? start_m + BLOCK_M : head.S;

    load_tile<BLOCK_M, PADDED_E, PITCH_E, VEC, false>(q, head.q, head.q_l, head.q_e, head.L - start_m, head.E);
    load_key(k, head, 0, end);
    if (SIGN != 1) {  // the largest product is the largest logit only if the scale is positive
        wait_for_copies<0>();
        __syncthreads();
        for (int i = threadIdx.x; i < BLOCK_M * PITCH_E; i += THREADS) q[i] = from_float<T>(to_float(q[i]) * SIGN);
    }
    Rows rows;
    for (INDEX start_n = 0; start_n < end; start_n += BLOCK_N) {
        wait_for_copies<0>();
        __syncthreads();  // this tile's keys are there, and everybody is done with the values of the tile before
        load_value(v, head, start_n);
        rows.compute_logits(q, k);
        if (start_n + BLOCK_N > head.S || (CAUSAL && start_n + BLOCK_N > start_m + 1)) rows.mask(start_m, start_n, head.S);
        wait_for_copies<0>();
        __syncthreads();  // this tile's values are there, and everybody is done with its keys
        load_key(k, head, start_n + BLOCK_N, end);
        rows.add(p, v, scale_log2);
    }
    wait_for_copies<0>();
    long long first = bh * L + start_m;
    rows.store(out + first * Ev, lse + first, head.L - start_m, head.Ev, scale_log2);
}
