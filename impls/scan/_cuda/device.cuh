// What is not plain C++: memory operations, barriers, conversions. tests/impls runs the rest on a CPU, with
// a header in place of this one that gives the same names.
#ifndef SSMPERF_DEVICE
#define SSMPERF_DEVICE

#define ENTRY extern "C" __global__ __launch_bounds__(32 * WARPS, BLOCKS)
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

// Reduced to |y| <= pi/4 in double precision; below 2e-9 by then.
FUNCTION void cos_sin(float phase, float& cosine, float& sine) {
    double quarters = rint(phase * 0.6366197723675814);
    float y = (float)fma(quarters, -1.5707963267948966, (double)phase), z = y * y;
    float s = y + y * z * (-1.f / 6 + z * (1.f / 120 + z * (-1.f / 5040 + z * (1.f / 362880))));
    float c = 1.f + z * (-.5f + z * (1.f / 24 + z * (-1.f / 720 + z * (1.f / 40320 + z * (-1.f / 3628800)))));
    int quadrant = (int)(long long)quarters & 3;
    cosine = quadrant & 1 ? s : c;
    sine = quadrant & 1 ? c : s;
    if (quadrant == 1 || quadrant == 2) cosine = -cosine;
    if (quadrant >= 2) sine = -sine;
}

FUNCTION float shuffle_up(float x, int by) { return __shfl_up_sync(~0u, x, by); }
FUNCTION float shuffle_xor(float x, int by) { return __shfl_xor_sync(~0u, x, by); }

FUNCTION float widened(bfloat16 x) { return as_float((unsigned)x.bits << 16); }
FUNCTION float widened(float16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// The two numbers packed in a word.
FUNCTION void widened(unsigned both, float& low, float& high, bfloat16) {
    low = as_float(both << 16);
    high = as_float(both & 0xffff0000u);
}
FUNCTION void widened(unsigned both, float& low, float& high, float16) {
    low = widened(float16{(unsigned short)both});
    high = widened(float16{(unsigned short)(both >> 16)});
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
FUNCTION void copy_16(void* to, const void* from) {
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
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
