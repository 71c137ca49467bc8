// What is not plain C++: memory operations, barriers, conversions. tests/impls runs the rest on a CPU, with
// a header in place of this one that gives the same names.
#ifndef SSMPERF_DEVICE
#define SSMPERF_DEVICE

#define ENTRY extern "C" __global__ __launch_bounds__(32 * RUNS, BLOCKS)
#define FUNCTION __device__ __forceinline__
#define TEXT(x) #x
#define UNROLL _Pragma("unroll")
#define UNROLL_BY(count) _Pragma(TEXT(unroll(count)))

typedef unsigned long long Word;

struct bfloat16 {
    unsigned short bits;
};
struct float16 {
    unsigned short bits;
};

FUNCTION int thread() { return threadIdx.x; }
FUNCTION int block() { return blockIdx.x; }
FUNCTION void barrier() { __syncthreads(); }

FUNCTION unsigned char* arena() {
    extern __shared__ __align__(16) unsigned char bytes[];
    return bytes;
}

FUNCTION float as_float(unsigned bits) { return __uint_as_float(bits); }
FUNCTION unsigned as_bits(float x) { return __float_as_uint(x); }

// Subnormal results are rounded to 0; 2^-inf is 0.
FUNCTION float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

FUNCTION float widened(bfloat16 x) { return as_float((unsigned)x.bits << 16); }
FUNCTION float widened(float16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// Two numbers rounded to nearest and packed, the first in the low half.
FUNCTION unsigned packed(float low, float high, bfloat16) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
FUNCTION unsigned packed(float low, float high, float16) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// 16 bytes from global to shared memory, beside the computation; zeros if not inside.
FUNCTION void copy_16(void* to, const void* from, bool inside) {
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}
FUNCTION void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's closed groups of copies are under way.
template <int PENDING>
FUNCTION void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

FUNCTION Word draw(Word* counter) { return atomicAdd(counter, 1ull); }
FUNCTION Word look(const Word* at) {
    Word word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}
FUNCTION void tell(Word* at, Word word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}

#endif
