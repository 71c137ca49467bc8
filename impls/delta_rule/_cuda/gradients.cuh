// What the groups of gradients.cu share: where operands lie, and how they come and go.
#ifndef SSMPERF_DELTA_GRADIENTS
#define SSMPERF_DELTA_GRADIENTS
#include "parts.cuh"

constexpr int TILE = 2 * HALF, STATE = 4 * HALF;  // bytes of 64 x 128 and of 128 x 128 numbers
constexpr int OF_DO = 0, OF_Y = TILE, OF_DX = 2 * TILE, OF_V = 3 * TILE, OF_S = 4 * TILE, OF_DS = OF_S + STATE;
constexpr int OF_HALVED = OF_DS + STATE, OF_KNOWN = OF_HALVED + HALF, OF_KEYS = OF_KNOWN + HALF, KEYS_STAGE = 2 * TILE;
constexpr int OF_DQ = OF_KEYS + 2 * KEYS_STAGE, OF_DK = OF_HALVED, OF_VECTORS = OF_DQ + HALF;
constexpr int V_START = 0, V_END = 4 * C, V_RATE = 8 * C, V_SUMS = 12 * C;  // of the vectors of a stage
// Found by a group: sums of columns by each warp, and a number of each step.
constexpr int V_COLUMNS = OF_VECTORS + 2 * 4 * VECTORS, V_ROWS = V_COLUMNS + 32 * C, V_KNOWN = V_ROWS + 8 * C,
              V_VALUES = V_KNOWN + 4 * C, V_LAST = V_VALUES + 8 * C, V_CARRIED = V_LAST + 4 * C;
constexpr int PRODUCER = 40, CONSUMER = 232;  // registers of a thread
static_assert(PRODUCER + 2 * CONSUMER <= THIRDS);
constexpr unsigned OF_STATES = STATE / 2 / 16 << 16;  // as BY_COLUMN, of tiles of 128 rows
// Sets of operands that come and go together; of keys, queries and vectors there are two. Barriers: one when a set has
// come, one when it may go. Then of what the groups find for one another, and of v, when it has been read.
enum { VALUES = 0, KEYS, STATES = KEYS + 2, DSTATES, OWN_VALUES, SETS, HALVED = 2 * SETS, FOUND, FREE, READ, BARRIERS };
// Where keys, queries and vectors of a turn are, and their barrier and its parity.
struct Keys {
    int at, queries, vectors, set, parity;
};
FUNCTION Keys keys_of(int turn) {
    int stage = turn & 1, at = OF_KEYS + stage * KEYS_STAGE;
    return {at, at + TILE, OF_VECTORS + stage * 4 * VECTORS, KEYS + stage, turn / 2 & 1};
}

// 64 x 128, of values BY_ROW times the tiles of a state.
FUNCTION void start_states(float* d, unsigned left, unsigned right) {
    products_begin();
    UNROLL
    for (int i = 0; i < 8; ++i) product_states(d, left + along_row(i), right + down_rows(i), i > 0);
    products_close();
}
FUNCTION float row_sum(float x) { return x += shuffle_xor(x, 1), x + shuffle_xor(x, 2); }
// Sums over the columns of d * x, with x 64 x 128 in shared memory, of a thread's two rows.
FUNCTION void dot_rows(float* sums, const float* d, unsigned x, int row, int pair) {
    sums[0] = sums[1] = 0;
    UNROLL
    for (int n = 0; n < 16; ++n) {
        UNROLL
        for (int side = 0; side < 2; ++side) {
            unsigned both = load_word(x + n / 8 * HALF + swizzled(row + 8 * side, n % 8) + 4 * pair);
            sums[side] += d[4 * n + 2 * side] * low_half(both) + d[4 * n + 2 * side + 1] * high_half(both);
        }
    }
    UNROLL
    for (int side = 0; side < 2; ++side) sums[side] = row_sum(sums[side]);
}
// Store 64 x 128 numbers, each warp its 16 rows, 64 columns after 64.
FUNCTION void put_rows(bfloat16* to, unsigned tile, long long stride, int left, int width, const float* d, int warp,
                       int lane) {
    UNROLL
    for (int half = 0; half < 2; ++half, d += 32) {
        UNROLL
        for (int n = 0; n < 8; n += 2) {
            unsigned r[4] = {rounded_pair(d[4 * n], d[4 * n + 1]), rounded_pair(d[4 * n + 2], d[4 * n + 3]),
                             rounded_pair(d[4 * n + 4], d[4 * n + 5]), rounded_pair(d[4 * n + 6], d[4 * n + 7])};
            store_matrices(tile + swizzled(16 * warp + lane % 16, n + lane / 16), r);
        }
        warp_sync();
        ROLLED
        for (int i = 0, piece = lane % 8; i < 16; i += 4) {
            const int row = 16 * warp + i + lane / 8;
            if (row < left && half * 64 + piece * 8 < width)
                store_16(to + row * stride + half * 64 + piece * 8, tile + swizzled(row, piece));
        }
        warp_sync();
    }
}
FUNCTION void put_square(unsigned to, const unsigned* r, int warp, int lane) {  // 64 x 64, of the right side's order
    UNROLL
    for (int n = 0; n < 8; n += 2) {
        int row = 16 * warp + (lane & 7) + (lane & 8), piece = n + lane / 16;
        store_matrices(to + swizzled(row, piece), r + 2 * n);
    }
}

// A chunk of a head of a value. place: of its gates and rates; at: among those of all heads; last: whether no other
// head that shares its keys follows.
struct Chunk {
    int at, place, head, key_head, left;
    bool last;
    long long step;  // of its first step, among those of all batch elements
};
// The chunks of a block, one after the other: for each of a key head those of the heads that share it, of which so many
// are done.
struct Chunks {
    int T, H, G, NT;
    const long long* bounds;
    int sequences, count, SHARE, at, done;
};
FUNCTION bool next_chunk(Chunks& all, Chunk& chunk) {
    const int heads = all.H / all.G;
    if (all.done == heads) all.done = 0, all.at += blocks();
    for (; all.at < all.count; all.at += blocks()) {
        const int of_keys = all.at / all.NT, place = all.at % all.NT;
        const Steps steps = steps_of(place, all.T, all.bounds, all.sequences);
        if (steps.left <= 0) continue;
        const int bh = of_keys * heads + all.done++, b = bh / all.H, head = bh % all.H;
        const int of_rates = b * (all.H / all.SHARE) + head / all.SHARE;
        chunk = {bh * all.NT + place, of_rates * all.NT + place, head, of_keys % all.G, steps.left,
                 all.done == heads, (long long)b * all.T + steps.first};
        return true;
    }
    return false;
}
struct Lane {
    int warp, lane, group, pair, row;
};
FUNCTION Lane my_lane_of_group() {
    int own = thread() % 128, warp = own / 32, lane = own % 32;
    return {warp, lane, lane / 4, lane % 4, 16 * warp + lane / 4};
}
FUNCTION void load_rows(float* x, unsigned vector, const Lane& me) {  // numbers of a thread's two rows
    x[0] = load_one(vector + 4 * me.row), x[1] = load_one(vector + 4 * me.row + 32);
}
// The sums over the rows of a block, of two columns, for those who add up the warps.
FUNCTION void put_columns(int columns_at, const Lane& me, int n, float* columns) {
    UNROLL
    for (int odd = 0; odd < 2; ++odd) {
        UNROLL
        for (int by = 4; by < 32; by *= 2) columns[odd] += shuffle_xor(columns[odd], by);
        if (me.group == 0) put_float(columns_at + 256 * me.warp + 4 * (8 * n + 2 * me.pair + odd), columns[odd]);
    }
}

// A tile of 64 steps; 0 from step `left` and from column `width` on. Rolled, since instructions of three groups must
// fit into their cache together.
FUNCTION void copy_rows(unsigned to, const bfloat16* from, long long stride, int left, int width) {
    const int row = thread() / 16, piece = thread() % 16;
    to += piece / 8 * HALF + swizzled(row, piece % 8), from += row * stride + 8 * piece;
    left = 8 * piece < width ? left - row : 0;
    ROLLED
    for (int i = 0; i < C; i += 8, to += 1024, from += 8 * stride) copy_16(to, from, i < left);
}
// The tiles of a state, of strips of 64 values, by one thread.
FUNCTION void copy_states(unsigned to, const bfloat16* from, int strips, int i) {
    if (thread() == 0) {
        expect_bytes(i, strips * (STATE / 2));
        ROLLED
        for (int each = 0; each < 2 * strips; ++each)  // strip by strip, 64 keys by 64 keys
            copy_bytes(to + each % 2 * (STATE / 2) + each / 2 * HALF, from + each * (HALF / 2), HALF, i);
    }
    arrive(i);
}
// The second strip, which may never come.
FUNCTION void clear_tiles() {
    const float zeros[4] = {};
    for (int at = thread() * 16; at < HALF; at += 128 * 16) {
        put_four(OF_Y + HALF + at, zeros), put_four(OF_DX + HALF + at, zeros);
        for (int half = 0; half < 2; ++half)
            put_four(OF_S + half * (STATE / 2) + HALF + at, zeros),
                put_four(OF_DS + half * (STATE / 2) + HALF + at, zeros);
    }
}
// A set of operands of this turn may be copied when those who read that of the turn before have left it.
FUNCTION void wait_for_room(int set, int turn) {
    if (turn) wait_at(SETS + set, (turn - 1) & 1);
}
#endif
