// The instructions that CUDA C++ has no function for: a bare exponential, copies into shared memory that run in the
// background, and the tensor cores. NVIDIA documents them in "PTX ISA": ex2, cvt, cp.async, ldmatrix, mma.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// 2^x to two units in the last place. What exp2f adds is care for results below 2^-126: they are 0 here.
__device__ inline float bare_exp2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// Copies 16 bytes from global to shared memory, or writes 16 zero bytes. From sm_80 on in the background.
__device__ inline void copy_16_bytes(void* to, const void* from, bool inside) {
#if __CUDA_ARCH__ >= 800
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
#else
    *(uint4*)to = inside ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
#endif
}

// Ends a group of copies, so that one can wait for it.
__device__ inline void end_of_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until this thread's copies are there, but for those of the latest PENDING groups.
template <int PENDING>
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Four matrices of 8 x 8 from shared memory: lane 8 i + j gives the address of row j of matrix i. In each of them, lane
// 4 r + c then has the elements 2 c and 2 c + 1 of row r; with TRANSPOSED, of column r.
template <bool TRANSPOSED, typename Element>
__device__ inline void load_matrices(unsigned (&matrices)[4], const Element* row) {
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                     : "r"(address)
                     : "memory");
}

// acc (16 x 8) += a (16 x 16) b (16 x 8), by the whole warp. With r = lane / 4 and c = 2 (lane % 4), a lane has
// the elements (r, c), (r, c + 1), (r + 8, c), (r + 8, c + 1) of acc; of a those pairs, then the same 8 columns on; of b
// the pairs (c, r), (c + 1, r) and the same 8 rows down.
__device__ inline void multiply_accumulate(float (&acc)[4], const unsigned (&a)[4], const unsigned* b, __half) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else  // Turing's tensor cores take half as many columns of a at a time.
    for (int half = 0; half < 2; half++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                     : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}

__device__ inline void multiply_accumulate(float (&acc)[4], const unsigned (&a)[4], const unsigned* b, __nv_bfloat16) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// A float in TF32, the tensor cores' own format: rounded to 10 bits of mantissa.
__device__ inline unsigned to_tf32(float x) {
    unsigned rounded = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
#endif
    return rounded;
}

// acc (16 x 8) += a (16 x 8) b (8 x 8) in TF32. With r = lane / 4 and c = lane % 4, a lane has of a the elements (r, c),
// (r + 8, c), (r, c + 4), (r + 8, c + 4), and of b (c, r) and (c + 4, r); of acc those from above.
__device__ inline void multiply_accumulate(float (&acc)[4], const unsigned (&a)[4], const unsigned* b, float) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
