// What is not plain C++: memory, barriers and products of Hopper. tests/impls runs the rest on a CPU, with a header in
// place of this one that gives the same names. An address in shared memory is a number of bytes from its beginning.
#ifndef SSMPERF_DELTA_DEVICE
#define SSMPERF_DELTA_DEVICE

#define ENTRY(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define FUNCTION static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define TWICE _Pragma("unroll 2")
#define EIGHT(d, i)                                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])

typedef unsigned short bfloat16;
struct Two {
    float a, b;
};

extern __shared__ __align__(1024) unsigned char shared_memory[];
__shared__ unsigned long long barriers_of_groups[18];

FUNCTION int thread() { return threadIdx.x; }
FUNCTION int block() { return blockIdx.x; }
FUNCTION int blocks() { return gridDim.x; }
FUNCTION unsigned absolute(unsigned at) { return (unsigned)__cvta_generic_to_shared(shared_memory) + at; }
FUNCTION unsigned first_unit() { return absolute(0) >> 4; }

// Barriers. Those with a number count arrivals, and are waited for by the parity of their turn.
FUNCTION void barrier() { __syncthreads(); }
FUNCTION void warp_sync() { __syncwarp(); }
FUNCTION unsigned numbered(int i) { return (unsigned)__cvta_generic_to_shared(barriers_of_groups + i); }
FUNCTION void open_barriers(int first, int end, int arrivals) {
    for (int i = first; i < end; ++i)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(numbered(i)), "r"(arrivals));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
FUNCTION void wait_at(int i, int parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra "
        "again;\ndone:\n}" ::"r"(numbered(i)),
        "r"(parity)
        : "memory");
}
// Products read what copies and stores have written if a fence is between. Without its state space it would wait for
// global memory, too: three times as slow a walk.
FUNCTION void fence_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FUNCTION void wait_for_copied(int i, int parity) {
    wait_at(i, parity);
    fence_for_products();
}
FUNCTION void arrive(int i) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(numbered(i)) : "memory"); }
FUNCTION void arrive_when_copied(int i) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(numbered(i)) : "memory");
}
FUNCTION void meet() { asm volatile("bar.sync %0, 128;" ::"r"((int)threadIdx.x / 128 + 1) : "memory"); }  // a warpgroup
// Shows what a warpgroup has written to itself and to products, or to products of whoever waits at barrier i.
FUNCTION void publish() {
    fence_for_products();
    meet();
}
FUNCTION void publish_at(int i) {
    fence_for_products();
    arrive(i);
}
// Registers of each thread of a warpgroup from here on, of as many as all began with. An instruction that goes the other
// way is illegal.
template <int COUNT, int BEGUN>
FUNCTION void take_registers() {
    if constexpr (COUNT > BEGUN)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
    else
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Copies from global to shared memory; 0 unless they are inside.
FUNCTION void copy_16(unsigned to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(absolute(to)), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}
FUNCTION void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_for_products();
}
// Copies in bulk, of multiples of 16 bytes, by one thread. To shared memory: a phase of barrier i ends when all bytes
// that were expected have come, too.
FUNCTION void expect_bytes(int i, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(numbered(i)), "r"(bytes) : "memory");
}
FUNCTION void copy_bytes(unsigned to, const void* from, int bytes, int i) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(absolute(to)),
        "l"(from), "r"(bytes), "r"(numbered(i))
        : "memory");
}
FUNCTION void store_bytes(void* to, unsigned from, int bytes) {
    fence_for_products();
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(absolute(from)), "r"(bytes)
                 : "memory");
}
FUNCTION void wait_until_stored() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Products of a warpgroup run on; their sides and sums must not be touched until they are waited for. `claim` keeps the
// compiler from moving arithmetic on sums across what stands before it.
FUNCTION void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FUNCTION void products_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
FUNCTION void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
FUNCTION void claim(float* x, int count) {
    UNROLL
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
// Descriptors of sides in shared memory. SWIZZLED: tiles of 8 rows 1,024 bytes apart, swizzled over 128 bytes. Else
// matrices of 8 x 8 numbers: 8 rows are 128 bytes, 8 columns 1,024 bytes from the next.
enum Side { SWIZZLED, PLAIN, PLAIN_TURNED };
template <Side SIDE = SWIZZLED>
FUNCTION unsigned long long described(unsigned low) {
    constexpr unsigned high = SIDE == SWIZZLED ? 1u << 30 | 64 : SIDE == PLAIN ? 8 : 64;
    unsigned long long found;
    asm("mov.b64 %0, {%1, %2};" : "=l"(found) : "r"(low), "r"(high));
    return found;
}
// 64 x 16 from registers times 16 x 64; added to d if there is more.
template <bool IN_PIECES = false>
FUNCTION void product_64(float* d, const unsigned* a, unsigned right, bool more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
        "%30,%31"
        "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described<IN_PIECES ? PLAIN : SWIZZLED>(right)),
          "r"((int)more));
}
// The same of 32 columns in pieces, whose distance along the sum is in `right`.
FUNCTION void product_32(float* d, const unsigned* a, unsigned right, bool more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
        : EIGHT(d, 0), EIGHT(d, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described<PLAIN>(right)), "r"((int)more));
}
// As product_64, with a right side that is contiguous along its columns.
template <bool IN_PIECES = false>
FUNCTION void product_64_turned(float* d, const unsigned* a, unsigned right, bool more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
        "%30,%31"
        "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described<IN_PIECES ? PLAIN_TURNED : SWIZZLED>(right)),
          "r"((int)more));
}
// 64 x 16 times 16 x 128, contiguous along its columns, added to d.
FUNCTION void product_128(float* d, const unsigned* a, unsigned right) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
        "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"
        "%57,%58,%59,%60,%61,%62,%63"
        "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;\n}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described(right)), "r"(1));
}
// 64 x 16 times 16 x 64, both from shared memory.
FUNCTION void square_64(float* d, unsigned left, unsigned right, bool more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
        "%30,%31"
        "}, %32, %33, p, 1, 1, 0, 0;\n}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
        : "l"(described(left)), "l"(described(right)), "r"((int)more));
}
// The same with sides that are contiguous along rows and columns of the product.
FUNCTION void square_64_turned(float* d, unsigned left, unsigned right, bool more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
        "%30,%31"
        "}, %32, %33, p, 1, 1, 1, 1;\n}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24)
        : "l"(described(left)), "l"(described(right)), "r"((int)more));
}
// 64 x 16 times 16 x 128, contiguous along its columns.
FUNCTION void product_states(float* d, unsigned left, unsigned right, bool more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
        "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"
        "%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, p, 1, 1, 0, 1;\n}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56)
        : "l"(described(left)), "l"(described(right)), "r"((int)more));
}
// The same with a left side that is contiguous along its columns, too; added to d.
FUNCTION void product_turned(float* d, unsigned left, unsigned right) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
        "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"
        "%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, p, 1, 1, 1, 1;\n}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48), EIGHT(d, 56)
        : "l"(described(left)), "l"(described(right)), "r"(1));
}
// 16 x 8 times 8 x 8 of a warp, added to d, of the first 11 binary digits of each number. a is as another such product
// leaves it, and b has rows 2 i and 2 i + 1 of its column: what is summed over is in this order.
FUNCTION void fine_product(float* d, const float* a, float b0, float b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[1])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Matrices of 8 x 8 between shared memory and the registers of a warp, four at once; each lane has the address of a
// row.
#define FOUR_WORDS(r) "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
FUNCTION void load_turned(unsigned* r, unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : FOUR_WORDS(r)
                 : "r"(absolute(at))
                 : "memory");
}
FUNCTION void store_matrices(unsigned at, const unsigned* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(absolute(at)), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
FUNCTION void store_turned(unsigned at, const unsigned* r) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(absolute(at)), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// Shared memory.
FUNCTION float load_one(unsigned at) {
    float r;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(r) : "r"(absolute(at)) : "memory");
    return r;
}
FUNCTION Two load_two(unsigned at) {
    Two r;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(r.a), "=f"(r.b) : "r"(absolute(at)) : "memory");
    return r;
}
FUNCTION void load_four(float* w, unsigned at) {
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(w[0]), "=f"(w[1]), "=f"(w[2]), "=f"(w[3])
                 : "r"(absolute(at))
                 : "memory");
}
FUNCTION unsigned load_word(unsigned at) {
    unsigned r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(absolute(at)) : "memory");
    return r;
}
FUNCTION void load_four_words(unsigned* r, unsigned at) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : FOUR_WORDS(r) : "r"(absolute(at)) : "memory");
}
FUNCTION void put_float(unsigned at, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(absolute(at)), "f"(x) : "memory");
}
FUNCTION void put_float_if(bool wanted, unsigned at, float x) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.shared.f32 [%0], %1;\n}" ::"r"(absolute(at)), "f"(x),
                 "r"((int)wanted)
                 : "memory");
}
FUNCTION void put_two(unsigned at, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(absolute(at)), "f"(a), "f"(b) : "memory");
}
FUNCTION void put_four(unsigned at, const float* x) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(absolute(at)), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
}
FUNCTION void put_word(unsigned at, unsigned x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(absolute(at)), "r"(x) : "memory");
}
FUNCTION void put_four_words(bfloat16* to, const unsigned* w) { *(uint4*)to = make_uint4(w[0], w[1], w[2], w[3]); }
FUNCTION void put_two_words(bfloat16* to, unsigned a, unsigned b) { *(uint2*)to = make_uint2(a, b); }
FUNCTION void take_four(float* x, const float* from) {  // from global memory
    float4 y = *(const float4*)from;
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}
FUNCTION void store_16(bfloat16* to, unsigned at) {  // from shared to global memory
    unsigned r[4];
    load_four_words(r, at);
    put_four_words(to, r);
}

// Numbers.
FUNCTION unsigned rounded_pair(float low, float high) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
FUNCTION float low_half(unsigned x) { return __uint_as_float(x << 16); }
FUNCTION float high_half(unsigned x) { return __uint_as_float(x & 0xffff0000u); }
FUNCTION float upper(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }  // its first 11 digits
FUNCTION float exponential(float x) {  // __expf would keep what is below 2^-126, by four instructions more
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.4426950408889634f));
    return r;
}
template <class X>
FUNCTION X shuffle_up(X x, int by) {
    return __shfl_up_sync(~0u, x, by);
}
template <class X>
FUNCTION X shuffle_down(X x, int by) {
    return __shfl_down_sync(~0u, x, by);
}
template <class X>
FUNCTION X shuffle_xor(X x, int by) {
    return __shfl_xor_sync(~0u, x, by);
}
template <class X>
FUNCTION X from_lane(X x, int lane) {
    return __shfl_sync(~0u, x, lane);
}
#endif
