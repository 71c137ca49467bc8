// What both walks share. A block walks through the chunks of a head, or of a segment of it, with a strip of 64 values
// of its state, or two (Wide). It has groups of four warps. One copies chunks to shared memory, three deep, and outputs
// from there. One for each strip is a chain: it has the state, V x K, in its registers, and does what the next chunk
// waits for, and nothing else. One finds what the chain takes or leaves, scores first, or has a thread that stores what
// is kept.
//
// Segments: first each is walked through from 0 and, without values, from I, which gives the map S -> M S + U that it
// is; carry.cu finds the state in which each begins; then all are walked through for their results.
#ifndef SSMPERF_DELTA_WALKS
#define SSMPERF_DELTA_WALKS
#include "parts.cuh"

constexpr int STRIP = 64, STAGES = 3;  // values of a block, chunks in shared memory
constexpr int OF_K = 0, OF_Q = 2 * HALF, OF_X = 4 * HALF, OF_HIGH = 5 * HALF, OF_LOW = 6 * HALF, STAGE = 7 * HALF;
constexpr int OF_VECTORS = STAGES * STAGE, VECTORS_STAGE = 4 * VECTORS;
constexpr int V_START = 0, V_END = 4 * C, V_RATE = 8 * C, V_SUMS = 12 * C;  // of the vectors of a stage
constexpr int OF_HELD = OF_VECTORS + 4096, HELD_BYTES = 2 * HALF;           // the state as bfloat16
// Registers of a thread of each group.
constexpr int PRODUCER = 88, CHAIN = 232, BESIDE = 184;
static_assert(PRODUCER + CHAIN + BESIDE <= THIRDS);
enum { FULL = 0, EMPTY = STAGES, OTHERS = 2 * STAGES };  // barriers: of each stage, and of each walk's own

// How a block divides shared memory and registers among its chains, of 64 values each. Two slots hold what a chain
// gives to the group beside it: one chain takes turns, two have one each. For two there is room if y goes where v was
// and the inverse has fewer of its zeros (PACKED); backwards, with two stages.
struct Narrow {
    static constexpr int CHAINS = 1, TURNS = 2, STAGES = ::STAGES, SIZE = STAGE, HIGH = OF_HIGH, LOW = OF_LOW;
    static constexpr int OF_VECTORS = STAGES * SIZE, HELD = OF_HELD;
    static constexpr int BEGUN = THIRDS / 3, PRODUCER = ::PRODUCER, CHAIN = ::CHAIN, BESIDE = ::BESIDE;
    static constexpr bool PACKED = false;
};
struct Wide {
    static constexpr int CHAINS = 2, TURNS = 1, STAGES = ::STAGES, HIGH = OF_X + 2 * HALF, LOW = HIGH + PACKED_BYTES;
    static constexpr int SIZE = LOW + PACKED_BYTES, OF_VECTORS = STAGES * SIZE, HELD = OF_VECTORS + 4096;
    static constexpr int BEGUN = QUARTERS / 4, PRODUCER = 32, CHAIN = 168, BESIDE = 144;
    static constexpr bool PACKED = true;
};
struct WideBack {
    static constexpr int CHAINS = 2, STAGES = 2, HIGH = OF_X + 2 * HALF, LOW = HIGH + HALF, SIZE = LOW + HALF;
    static constexpr int OF_VECTORS = STAGES * SIZE, HELD = OF_VECTORS + 4096;
    static constexpr int BEGUN = QUARTERS / 4, PRODUCER = 56, CHAIN = 176, BESIDE = 104;
    static constexpr bool PACKED = false;
};
static_assert(Wide::PRODUCER + 2 * Wide::CHAIN + Wide::BESIDE <= QUARTERS);
static_assert(WideBack::PRODUCER + 2 * WideBack::CHAIN + WideBack::BESIDE <= QUARTERS);
template <class Layout>
FUNCTION int slot_of(int chunk, int own) {
    return Layout::CHAINS == 1 ? chunk % 2 : own;
}
// Where y of a chunk is, steps x values.
template <class Layout>
FUNCTION unsigned seen_at(int stage, int slot) {
    return slot * HALF + (Layout::CHAINS == 1 ? Layout::HELD + 2 * HELD_BYTES : stage * Layout::SIZE + OF_X);
}

// Of the use of one of `count` buffers that take turns: the parity with which to wait until it has been filled. Its
// n-th filling waits for the emptying before it, if there was one.
FUNCTION int parity_of(int use, int count) { return use / count & 1; }
FUNCTION void wait_until_free(int i, int use, int count) {
    if (use >= count) wait_at(i, parity_of(use, count) ^ 1);
}

// A strip of values of a segment, which a block walks through; without segments NS is 1. bh: of the head among all;
// state: of the segment among all; kept: of its first chunk among those of the launch; first: value.
struct Strip {
    Sequence sequence;
    int bh, segment, first;
    long long state, kept, row, key_row;  // rows of its first step, among those of v and of k
};
// width: values of a block. SHARE heads have the same inverses, and so one place for each chunk's among those. Blocks are
// for `segments` of each head, from `skipped` on.
FUNCTION Strip strip_of(int block, int width, const long long* bounds, int T, int H, int G, int strips, int NT, int NS,
                        int PER, int SHARE, int segments, int skipped) {
    int each = block / strips, bh = each / segments, segment = each % segments + skipped, head = bh % H;
    Sequence part = sequence_of(bh / H, head / SHARE, T, H / SHARE, NT, bounds);
    long long kept = bounds ? part.place + (long long)(head - head / SHARE) * NT : (long long)bh * NT;
    if (NS > 1) {
        int begin = segment * PER;
        part.first += begin * C, part.steps -= begin * C, part.place += begin;
        part.chunks = part.chunks - begin < PER ? part.chunks - begin : PER;
        kept += begin;
    }
    return {part,
            bh,
            segment,
            block % strips * width,
            (long long)bh * NS + segment,
            kept,
            part.first * H + head,
            part.first * G + head / (H / G)};
}

// Copies what the walk needs of a chunk. x: v or do, of so many values. READ: q, too. In bulk what kernels wrote for
// kernels, since copies of 16 bytes soon wait for one another.
template <bool READ, class Layout>
FUNCTION void copy_in(const Strip& strip, int walked, int chunk, const bfloat16* q, const bfloat16* k,
                      const bfloat16* x, const bfloat16* high, const bfloat16* low, const float* vectors, int H, int G,
                      int K, int V, int values) {
    const int stage = walked % Layout::STAGES, left = strip.sequence.steps - chunk * C;
    const unsigned to = stage * Layout::SIZE;
    const long long at = strip.sequence.place + chunk, key_row = (strip.key_row + (long long)chunk * C * G) * K;
    if (thread() == 0) {
        expect_bytes(FULL + stage, 2 * SQUARE_BYTES + VECTORS_STAGE);
        copy_square<Layout::PACKED>(to + Layout::HIGH, high + at * SQUARE, FULL + stage);
        copy_square<Layout::PACKED>(to + Layout::LOW, low + at * SQUARE, FULL + stage);
        copy_bytes(Layout::OF_VECTORS + stage * VECTORS_STAGE, vectors + at * VECTORS, VECTORS_STAGE, FULL + stage);
    }
    copy_tile<C>(to + OF_K, k + key_row, (long long)G * K, left, K);
    const bfloat16* first = x + (strip.row + (long long)chunk * C * H) * V + strip.first;
    if (Layout::CHAINS == 2)
        copy_tile<C>(to + OF_X, first, (long long)H * V, left, values);
    else
        copy_half<C>(to + OF_X, first, (long long)H * V, left, values);
    if (READ) copy_tile<C>(to + OF_Q, q + key_row, (long long)G * K, left, K);
    arrive_when_copied(FULL + stage);
}

template <class Layout>
FUNCTION void clear_squares() {
    for (int stage = 0; stage < Layout::STAGES; ++stage)
        clear_square<Layout::PACKED>(stage * Layout::SIZE + Layout::HIGH),
            clear_square<Layout::PACKED>(stage * Layout::SIZE + Layout::LOW);
}

// A thread's part of a state (K, V) in float32: of two values and 32 keys each.
template <class Use>
FUNCTION void for_state(int first, int K, int V, Use use) {
    int lane = thread() % 32, value = first + lane / 4, key = 2 * (lane % 4);
    UNROLL
    for (int i = 0; i < 64; ++i) {
        int down = i / 4 * 8 + i % 2, side = i % 4 / 2 * 8;
        if (value + side < V && key + down < K) use(i, key + down, value + side);
    }
}
FUNCTION void load_state(float* state, const float* from, long long which, int first, int K, int V) {
    UNROLL
    for (int i = 0; i < 64; ++i) state[i] = 0.0f;
    if (from)
        for_state(first, K, V, [&](int i, int key, int value) { state[i] = from[(which * K + key) * V + value]; });
}
FUNCTION void store_state(float* to, const float* state, long long which, int first, int K, int V) {
    for_state(first, K, V, [&](int i, int key, int value) { to[(which * K + key) * V + value] = state[i]; });
}
// The state as the left side of products, and as a tile in shared memory, V x K.
FUNCTION void hold(unsigned* held, const float* state) {
    UNROLL
    for (int i = 0; i < 32; ++i) held[i] = rounded_pair(state[2 * i], state[2 * i + 1]);
}
FUNCTION void start_with_keys(float* r, const unsigned* held, unsigned at) {  // times the keys of the stage there
    products_begin();
    UNROLL
    for (int i = 0; i < 8; ++i) product_64(r, held + 4 * i, (at | BY_ROW) + OF_K / 16 + along_row(i), i > 0);
    products_close();
}
FUNCTION void put_held(unsigned tile, const unsigned* held, int warp) {
    int lane = thread() % 32, row = 16 * warp + (lane & 7) + (lane & 8);
    UNROLL
    for (int i = 0; i < 8; ++i) {
        int piece = 2 * i + lane / 16;
        store_matrices(tile + piece / 8 * HALF + swizzled(row, piece % 8), held + 4 * i);
    }
}
// A warp's 16 values of 64 steps, turned: a tile of steps x values has them as the left side of products.
FUNCTION unsigned value_piece(unsigned tile, int i, int warp) {
    int lane = thread() % 32, step = 16 * i + (lane & 7) + (lane & 16) / 2;
    return tile + swizzled(step, 2 * warp + (lane / 8 & 1));
}
FUNCTION void load_values(unsigned* r, unsigned tile, int warp) {
    UNROLL
    for (int i = 0; i < 4; ++i) load_turned(r + 4 * i, value_piece(tile, i, warp));
}
FUNCTION void put_values(unsigned tile, const unsigned* r, int warp) {
    UNROLL
    for (int i = 0; i < 4; ++i) store_turned(value_piece(tile, i, warp), r + 4 * i);
}

// Two numbers of a vector of steps: those of a thread's columns of a product, j of eight.
FUNCTION Two load_steps(unsigned vector, int j, int pair) { return load_two(vector + (8 * j + 2 * pair) * 4); }

// A group copies rows of a tile of 64 steps x 64 values to global memory.
FUNCTION void store_steps(bfloat16* to, unsigned tile, int left, long long stride, int values) {
    UNROLL
    for (int i = 0; i < 4; ++i) {
        int step = 16 * i + thread() % 128 / 8, piece = thread() % 8;
        if (step < left && piece * 8 < values) store_16(to + step * stride + piece * 8, tile + swizzled(step, piece));
    }
}
// scores * decay of a chunk as bfloat16, of a thread's two rows: the left side of products. Left of the block of 16 on
// the diagonal, decay is a product by way of the block's first step: two exponentials for four numbers.
FUNCTION void decayed(unsigned* r, const float* scores, unsigned sums, int warp) {
    int lane = thread() % 32, row = 16 * warp + lane / 4;
    const Two to[2] = {load_two(sums + 8 * row), load_two(sums + 8 * row + 64)}, by = load_two(sums + 128 * warp);
    const float after[2] = {decay(to[0], by, true), decay(to[1], by, true)};
    UNROLL
    for (int n = 0; n < 8; ++n) {
        int j = 8 * n + 2 * (lane % 4);
        if (n / 2 > warp) {
            r[2 * n] = r[2 * n + 1] = 0;
            continue;
        }
        float w[4];
        load_four(w, sums + 8 * j);
        const Two from[2] = {{w[0], w[1]}, {w[2], w[3]}};
        if (n / 2 < warp) {
            float a = decay(by, from[0], true), b = decay(by, from[1], true);
            UNROLL
            for (int side = 0; side < 2; ++side)
                r[2 * n + side] = rounded_pair(scores[4 * n + 2 * side] * a * after[side],
                                               scores[4 * n + 2 * side + 1] * b * after[side]);
        } else {
            UNROLL
            for (int side = 0; side < 2; ++side) {
                int i = row + 8 * side;
                r[2 * n + side] = rounded_pair(scores[4 * n + 2 * side] * decay(to[side], from[0], i >= j),
                                               scores[4 * n + 2 * side + 1] * decay(to[side], from[1], i > j));
            }
        }
    }
}
#endif
