// Runs a CUDA C++ kernel on the CPU: one block after the other, its threads as coroutines that take turns at barriers.
// Slow and strict. Shared memory begins as NaN; a barrier that some threads miss, and a vector that is not aligned,
// end the process; a copy into shared memory takes place only when it is waited for. Replaces ptx.cuh.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n)

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

enum State { READY, AT_WARP_BARRIER, AT_BLOCK_BARRIER, DONE };
struct Copy {
    void* to;
    const void* from;
    bool inside;
};
struct Thread {
    Index index;
    State state;
    ucontext_t context;
    std::vector<char> stack;
    std::vector<std::vector<Copy>> groups;  // the last one is still open
};

inline std::vector<Thread> threads;
inline Thread* current;
inline ucontext_t scheduler;
inline Index blockIdx, gridDim;
#define threadIdx (current->index)
alignas(128) inline unsigned char memory[256 * 1024];
alignas(16) inline unsigned char slots[64][32][64];  // for each warp, what its lanes show each other

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: %s (block %u, thread %u)\n", what, blockIdx.x, current ? current->index.x : 0);
    std::abort();
}

inline void wait_as(State state) {
    current->state = state;
    swapcontext(&current->context, &scheduler);
}
inline void __syncthreads() { wait_as(AT_BLOCK_BARRIER); }
inline void __syncwarp() { wait_as(AT_WARP_BARRIER); }

// What every lane of this warp shows.
template <typename Shown> struct Exchange {
    Exchange(const Shown& own) {
        std::memcpy(slots[threadIdx.x / 32][threadIdx.x % 32], &own, sizeof(Shown));
        __syncwarp();
    }
    ~Exchange() { __syncwarp(); }
    const Shown& of(unsigned lane) const { return *(const Shown*)slots[threadIdx.x / 32][lane]; }
};

inline float __shfl_xor_sync(unsigned, float x, int distance) {
    Exchange<float> lanes(x);
    return lanes.of(threadIdx.x % 32 ^ distance);
}

inline bool __any_sync(unsigned, bool own) {
    Exchange<bool> lanes(own);
    bool any = false;
    for (unsigned lane = 0; lane < 32; lane++) any |= lanes.of(lane);
    return any;
}

inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// --- 16-bit floats -------------------------------------------------------------------------------------------------

struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __half2float(__half x) {
    _Float16 value;
    std::memcpy(&value, &x, 2);
    return value;
}
inline __half __float2half(float x) {
    _Float16 value = x;
    __half bits;
    std::memcpy(&bits, &value, 2);
    return bits;
}
inline float __bfloat162float(__nv_bfloat16 x) { return __int_as_float(x.bits << 16); }
inline __nv_bfloat16 __float2bfloat16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return {0x7fff};
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline float widened(__half x) { return __half2float(x); }
inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// --- what ptx.cuh has ----------------------------------------------------------------------------------------------

inline float bare_exp2(float x) { return exp2f(x); }
inline float __fdividef(float x, float y) { return x / y; }

inline void copy_16_bytes(void* to, const void* from, bool inside) {
    if ((uintptr_t)to % 16 || (inside && (uintptr_t)from % 16)) fail("a copy of 16 bytes is not aligned");
    current->groups.back().push_back({to, from, inside});
}
inline void end_of_copies() { current->groups.emplace_back(); }
template <int PENDING> inline void wait_for_copies() {
    auto& groups = current->groups;
    while (groups.size() > PENDING + 1) {
        for (auto& copy : groups.front())
            if (copy.inside)
                std::memcpy(copy.to, copy.from, 16);
            else
                std::memset(copy.to, 0, 16);
        groups.erase(groups.begin());
    }
}

template <bool TRANSPOSED, typename Element> inline void load_matrices(unsigned (&matrices)[4], const Element* row) {
    if ((uintptr_t)row % 16) fail("a row of ldmatrix is not aligned");
    unsigned lane = threadIdx.x % 32, r = lane / 4, c = lane % 4 * 2;
    Exchange<const Element*> rows(row);
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(Element) == 4) {  // two of 16 bits are one of 32
            std::memcpy(&matrices[i], &rows.of(8 * i + r)[c / 2], 4);
        } else {
            Element low = TRANSPOSED ? rows.of(8 * i + c)[r] : rows.of(8 * i + r)[c];
            Element high = TRANSPOSED ? rows.of(8 * i + c + 1)[r] : rows.of(8 * i + r)[c + 1];
            matrices[i] = low.bits | (unsigned)high.bits << 16;
        }
    }
}

inline unsigned to_tf32(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return x != x ? bits : (bits + 0x1000) & ~0x1fffu;
}

struct Fragments {
    unsigned a[4], b[2];
};
template <typename Element>
inline void multiply_accumulate(float (&acc)[4], const unsigned (&a)[4], const unsigned* b, Element) {
    unsigned lane = threadIdx.x % 32;
    Exchange<Fragments> lanes({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    for (int i = 0; i < 4; i++) {
        unsigned row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            unsigned left = lanes.of(row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2];
            unsigned right = lanes.of(col * 4 + k % 8 / 2).b[k / 8];
            Element x = {(uint16_t)(k % 2 ? left >> 16 : left)}, y = {(uint16_t)(k % 2 ? right >> 16 : right)};
            acc[i] += widened(x) * widened(y);
        }
    }
}

inline void multiply_accumulate(float (&acc)[4], const unsigned (&a)[4], const unsigned* b, float) {
    unsigned lane = threadIdx.x % 32;
    Exchange<Fragments> lanes({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
    for (int i = 0; i < 4; i++) {
        unsigned row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 8; k++) {
            unsigned left = lanes.of(row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2];
            unsigned right = lanes.of(col * 4 + k % 4).b[k / 4];
            acc[i] += __int_as_float(left) * __int_as_float(right);
        }
    }
}

// --- blocks --------------------------------------------------------------------------------------------------------

inline void (*kernel_of_one_thread)();

inline void coroutine() {
    kernel_of_one_thread();
    current->state = DONE;
    swapcontext(&current->context, &scheduler);
}

inline void run_block(unsigned count) {
    std::memset(memory, 0xff, sizeof memory);
    for (unsigned i = 0; i < count; i++) {
        Thread& thread = threads[i];
        thread.index.x = i;
        thread.state = READY;
        thread.groups.assign(1, {});
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = thread.stack.size();
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, coroutine, 0);
    }
    for (;;) {
        unsigned done = 0, at_block = 0;
        for (unsigned warp = 0; warp < count; warp += 32)
            for (;;) {
                unsigned at_warp = 0, others = 0;
                for (unsigned i = warp; i < warp + 32; i++) {
                    current = &threads[i];
                    if (current->state == READY) swapcontext(&scheduler, &current->context);
                    (current->state == AT_WARP_BARRIER ? at_warp : others)++;
                }
                if (at_warp && others) fail("some lanes of a warp do not reach a barrier of the warp");
                if (!at_warp) break;
                for (unsigned i = warp; i < warp + 32; i++) threads[i].state = READY;
            }
        for (unsigned i = 0; i < count; i++) {
            done += threads[i].state == DONE;
            at_block += threads[i].state == AT_BLOCK_BARRIER;
        }
        if (done == count) return;
        if (at_block != count) fail("some threads of a block do not reach a barrier of the block");
        for (unsigned i = 0; i < count; i++) threads[i].state = READY;
    }
}

inline void run_grid(void (*kernel)(), unsigned blocks, unsigned count) {
    kernel_of_one_thread = kernel;
    threads.resize(count);
    for (auto& thread : threads) thread.stack.resize(32 * 1024);
    gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) run_block(count);
}
