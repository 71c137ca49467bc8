// Stands in for device.cuh on a CPU: a thread for each thread of a block. What a GPU traps or waits for forever ends the
// process with a reason, which pytest -s shows: addresses that are not aligned, and copies of other sizes than a barrier
// expects.
#ifndef SSMPERF_DELTA_DEVICE
#define SSMPERF_DELTA_DEVICE
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#define ENTRY(threads, blocks) extern "C" void
#define FUNCTION static inline
#define UNROLL
#define ROLLED
#define TWICE

typedef unsigned short bfloat16;
struct Two {
    float a, b;
};
FUNCTION void demand(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "stand-in for Hopper: %s\n", what);
    std::abort();
}

struct Warp {
    std::barrier<> meet{32};
    unsigned words[32], left[32][4];
    float numbers[32][6];
};
struct Turns {  // a barrier of so many arrivals
    int arrivals{0};
    std::atomic<int> missing{0}, turn{0}, bytes{0};  // that are expected and have not been copied
    void arrive() {
        if (missing.fetch_sub(1) != 1) return;
        demand(bytes == 0, "copies of other sizes than a barrier expects");
        missing = arrivals;
        turn.fetch_add(1);
        turn.notify_all();
    }
    void wait(int parity) {
        for (int now; ((now = turn.load()) & 1) == parity;) turn.wait(now);
    }
};
struct Block {
    std::barrier<> all, groups[4]{std::barrier<>(128), std::barrier<>(128), std::barrier<>(128), std::barrier<>(128)};
    Warp warps[16];
    Turns turns[18];
    unsigned left[128][4];
    std::vector<unsigned char> memory;
    Block(int threads, int bytes) : all(threads), memory(bytes, 0xff) {}
};
struct Me {
    int thread, block, threads, blocks;
    Block* of;
};
static thread_local Me me;

FUNCTION int thread() { return me.thread; }
FUNCTION int block() { return me.block; }
FUNCTION int blocks() { return me.blocks; }
FUNCTION unsigned first_unit() { return 0; }
FUNCTION unsigned char* byte_at(unsigned at) { return &me.of->memory.at(at); }
// The same of the first of so many bytes that are moved at once.
FUNCTION unsigned char* bytes_at(unsigned at, int bytes, int to = 0) {
    demand(at % (to ? to : bytes) == 0, "an address in shared memory is not aligned");
    byte_at(at + bytes - 1);
    return byte_at(at);
}
template <class To>
To* aligned(To* at, int to = 16) {
    demand((size_t)at % to == 0, "an address in global memory is not aligned");
    return at;
}
FUNCTION Warp& my_warp() { return me.of->warps[me.thread / 32]; }
FUNCTION int my_lane() { return me.thread % 32; }
FUNCTION void barrier() { me.of->all.arrive_and_wait(); }
FUNCTION void warp_sync() { my_warp().meet.arrive_and_wait(); }
FUNCTION std::barrier<>& my_group() { return me.of->groups[me.thread / 128]; }
FUNCTION void open_barriers(int first, int end, int arrivals) {
    for (int i = first; i < end; ++i) me.of->turns[i].missing = me.of->turns[i].arrivals = arrivals;
}
FUNCTION void wait_at(int i, int parity) { me.of->turns[i].wait(parity); }
FUNCTION void wait_for_copied(int i, int parity) { wait_at(i, parity); }
FUNCTION void arrive(int i) { me.of->turns[i].arrive(); }
FUNCTION void arrive_when_copied(int i) { me.of->turns[i].arrive(); }
FUNCTION void meet() { my_group().arrive_and_wait(); }
FUNCTION void publish() { meet(); }
FUNCTION void publish_at(int i) { arrive(i); }
template <int COUNT, int BEGUN>
void take_registers() {}
FUNCTION void copy_16(unsigned to, const void* from, bool inside) {
    if (inside) std::memcpy(bytes_at(to, 16), aligned(from), 16);
    else std::memset(bytes_at(to, 16), 0, 16);
}
FUNCTION void wait_for_copies() {}
FUNCTION void expect_bytes(int i, int bytes) { me.of->turns[i].bytes += bytes; }
FUNCTION void copy_bytes(unsigned to, const void* from, int bytes, int i) {
    demand(bytes % 16 == 0, "a bulk copy is no multiple of 16 bytes");
    std::memcpy(bytes_at(to, bytes, 16), aligned(from), bytes);
    me.of->turns[i].bytes -= bytes;
}
FUNCTION void store_bytes(void* to, unsigned from, int bytes) {
    demand(bytes % 16 == 0, "a bulk copy is no multiple of 16 bytes");
    std::memcpy(aligned(to), bytes_at(from, bytes, 16), bytes);
}
FUNCTION void wait_until_stored() {}
FUNCTION void products_begin() {}
FUNCTION void products_close() {}
template <int PENDING>
void wait_products() { my_group().arrive_and_wait(); }
FUNCTION void claim(float*, int) {}

FUNCTION float widened(bfloat16 x) {
    unsigned bits = (unsigned)x << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}
FUNCTION bfloat16 rounded(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
FUNCTION unsigned rounded_pair(float low, float high) { return rounded(low) | (unsigned)rounded(high) << 16; }
FUNCTION float low_half(unsigned x) { return widened(x & 0xffff); }
FUNCTION float high_half(unsigned x) { return widened(x >> 16); }
FUNCTION float upper(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    bits &= 0xffffe000u;
    std::memcpy(&x, &bits, 4);
    return x;
}
FUNCTION float exponential(float x) { return std::exp(x); }

// Element (n, k) of a side of a product of Hopper, by its descriptor as the PTX manual lays tiles out.
FUNCTION float side_of(unsigned low, int n, int k, bool turned, bool in_pieces = false) {
    unsigned first = (low & 0x3fff) << 4, across = (low >> 16 & 0x3fff) << 4, down = 1024;
    if (in_pieces) {
        bfloat16 x;
        std::memcpy(&x, byte_at(first + k / 8 * across + (turned ? n / 8 * 1024 + k % 8 * 16 + n % 8 * 2 : n / 8 * 128 + n % 8 * 16 + k % 8 * 2)), 2);
        return widened(x);
    }
    unsigned at = turned ? first + n / 64 * across + k / 8 * down + k % 8 * 128 + n % 64 * 2 : first + n / 8 * down + n % 8 * 128 + k * 2;
    at ^= (at >> 7 & 7) << 4;
    bfloat16 x;
    std::memcpy(&x, byte_at(at), 2);
    return widened(x);
}
template <int N, class Left>
void multiply(float* d, Left left, unsigned right, bool more, bool turned, bool in_pieces = false) {
    int lane = my_lane();
    for (int side = 0; side < 2; ++side)
        for (int n = 0; n < N; ++n) {
            if (n % 8 / 2 != lane % 4) continue;
            float sum = more ? d[n / 8 * 4 + 2 * side + n % 2] : 0.0f;
            for (int k = 0; k < 16; ++k) sum += left(lane / 4 + 8 * side, k) * side_of(right, n, k, turned, in_pieces);
            d[n / 8 * 4 + 2 * side + n % 2] = sum;
        }
}
FUNCTION float of_words(const unsigned (*words)[4], int row, int k) {
    unsigned word = words[row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)];
    return widened(k % 2 ? word >> 16 : word & 0xffff);
}
template <int N>
void from_registers(float* d, const unsigned* a, unsigned right, bool more, bool turned, bool in_pieces = false) {
    Warp& warp = my_warp();
    std::memcpy(warp.left[my_lane()], a, 16);
    warp_sync();
    multiply<N>(d, [&](int row, int k) { return of_words(warp.left, row, k); }, right, more, turned, in_pieces);
    warp_sync();
}
template <int N>
void from_shared(float* d, unsigned left, unsigned right, bool more, bool left_turned, bool turned) {
    int first = me.thread % 128 / 32 * 16;
    multiply<N>(d, [=](int row, int k) { return side_of(left, first + row, k, left_turned); }, right, more, turned);
}
template <bool IN_PIECES = false>
void product_64(float* d, const unsigned* a, unsigned right, bool more) { from_registers<64>(d, a, right, more, false, IN_PIECES); }
FUNCTION void product_32(float* d, const unsigned* a, unsigned right, bool more) { from_registers<32>(d, a, right, more, false, true); }
template <bool IN_PIECES = false>
void product_64_turned(float* d, const unsigned* a, unsigned right, bool more) { from_registers<64>(d, a, right, more, true, IN_PIECES); }
FUNCTION void product_128(float* d, const unsigned* a, unsigned right) { from_registers<128>(d, a, right, true, true); }
FUNCTION void square_64(float* d, unsigned left, unsigned right, bool more) { from_shared<64>(d, left, right, more, false, false); }
FUNCTION void square_64_turned(float* d, unsigned left, unsigned right, bool more) { from_shared<64>(d, left, right, more, true, true); }
FUNCTION void product_states(float* d, unsigned left, unsigned right, bool more) { from_shared<128>(d, left, right, more, false, true); }
FUNCTION void product_turned(float* d, unsigned left, unsigned right) { from_shared<128>(d, left, right, true, true, true); }
FUNCTION void fine_product(float* d, const float* a, float b0, float b1) {
    Warp& warp = my_warp();
    int lane = my_lane();
    for (int i = 0; i < 4; ++i) warp.numbers[lane][i] = upper(a[i]);
    warp.numbers[lane][4] = upper(b0), warp.numbers[lane][5] = upper(b1);
    warp_sync();
    for (int i = 0; i < 4; ++i) {
        int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        float sum = 0;
        for (int k = 0; k < 8; ++k)
            sum += warp.numbers[row % 8 * 4 + k / 2][row / 8 * 2 + k % 2] * warp.numbers[column * 4 + k / 2][4 + k % 2];
        d[i] += sum;
    }
    warp_sync();
}

template <bool TURNED>
void move_matrices(unsigned* r, unsigned at, bool store) {
    Warp& warp = my_warp();
    int lane = my_lane();
    warp.words[lane] = at;
    warp_sync();
    for (int i = 0; i < 8; ++i) {
        int row = TURNED ? lane % 4 * 2 + i % 2 : lane / 4, column = TURNED ? lane / 4 : lane % 4 * 2 + i % 2;
        auto* there = bytes_at(warp.words[i / 2 * 8 + row], 16) + column * 2;
        auto* here = (unsigned char*)(r + i / 2) + i % 2 * 2;
        std::memcpy(store ? there : here, store ? here : there, 2);
    }
    warp_sync();
}
FUNCTION void load_turned(unsigned* r, unsigned at) { move_matrices<true>(r, at, false); }
FUNCTION void store_matrices(unsigned at, const unsigned* r) { move_matrices<false>((unsigned*)r, at, true); }
FUNCTION void store_turned(unsigned at, const unsigned* r) { move_matrices<true>((unsigned*)r, at, true); }
template <class X>
X from_lane(X x, int lane) {
    Warp& warp = my_warp();
    std::memcpy(&warp.words[my_lane()], &x, 4);
    warp_sync();
    X found;
    std::memcpy(&found, &warp.words[lane], 4);
    warp_sync();
    return found;
}
template <class X>
X shuffle_up(X x, int by) { return from_lane(x, my_lane() < by ? my_lane() : my_lane() - by); }
template <class X>
X shuffle_down(X x, int by) { return from_lane(x, my_lane() + by > 31 ? my_lane() : my_lane() + by); }
template <class X>
X shuffle_xor(X x, int by) { return from_lane(x, my_lane() ^ by); }
template <class X>
void load_many(X* to, unsigned at, int count) { std::memcpy((void*)to, bytes_at(at, 4 * count), 4 * count); }
FUNCTION float load_one(unsigned at) {
    float x;
    load_many(&x, at, 1);
    return x;
}
FUNCTION Two load_two(unsigned at) {
    Two x;
    load_many(&x, at, 2);
    return x;
}
FUNCTION void load_four(float* w, unsigned at) { load_many(w, at, 4); }
FUNCTION unsigned load_word(unsigned at) {
    unsigned x;
    load_many(&x, at, 1);
    return x;
}
FUNCTION void load_four_words(unsigned* w, unsigned at) { load_many(w, at, 4); }
FUNCTION void put_float(unsigned at, float x) { std::memcpy(bytes_at(at, 4), &x, 4); }
FUNCTION void put_float_if(bool wanted, unsigned at, float x) {
    if (wanted) put_float(at, x);
}
FUNCTION void put_two(unsigned at, float a, float b) { bytes_at(at, 8), put_float(at, a), put_float(at + 4, b); }
FUNCTION void put_four(unsigned at, const float* x) { std::memcpy(bytes_at(at, 16), x, 16); }
FUNCTION void put_word(unsigned at, unsigned x) { std::memcpy(bytes_at(at, 4), &x, 4); }
FUNCTION void put_four_words(bfloat16* to, const unsigned* w) { std::memcpy(aligned(to), w, 16); }
FUNCTION void put_two_words(bfloat16* to, unsigned a, unsigned b) {
    unsigned w[2] = {a, b};
    std::memcpy(aligned(to, 8), w, 8);
}
FUNCTION void take_four(float* x, const float* from) { std::memcpy(x, aligned(from), 16); }
FUNCTION void store_16(bfloat16* to, unsigned at) { std::memcpy(aligned(to), bytes_at(at, 16), 16); }

// Runs the blocks of a kernel one after another, with so many bytes of shared memory. Arguments have 64 bits each.
template <class... Arguments, size_t... I>
void on_threads(void (*kernel)(Arguments...), int grid, int threads, int bytes, const long long* given,
                std::index_sequence<I...>) {
    for (int number = 0; number < grid; ++number) {
        Block of(threads, bytes);
        std::vector<std::thread> running;
        for (int t = 0; t < threads; ++t)
            running.emplace_back([&, t] {
                me = {t, number, threads, grid, &of};
                kernel((Arguments)given[I]...);
            });
        for (auto& each : running) each.join();
    }
}
#define RUN(kernel, threads, bytes) \
    extern "C" void run_##kernel(int grid, const long long* given) { run_kernel(kernel, grid, threads, bytes, given); }
template <class... Arguments>
void run_kernel(void (*kernel)(Arguments...), int grid, int threads, int bytes, const long long* given) {
    on_threads(kernel, grid, threads, bytes, given, std::index_sequence_for<Arguments...>{});
}
#endif
