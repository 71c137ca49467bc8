// What the groups of gradients.cu share: where operands lie, and how they come and go.
#ifndef SSMPERF_DELTA_GRADIENTS
#define SSMPERF_DELTA_GRADIENTS
#include "parts.cuh"

constexpr int TILE = 2 * HALF, STATE = 4 * HALF;  // bytes of 64 x 128 and of 128 x 128 numbers
constexpr int OF_DO = 0, OF_Y = TILE, OF_DX = 2 * TILE, OF_K = 3 * TILE, OF_Q = 4 * TILE, OF_V = 5 * TILE,
              OF_S = 6 * TILE, OF_DS = OF_S + STATE;
constexpr int OF_HALVED = OF_DS + STATE, OF_KNOWN = OF_HALVED + HALF, OF_DQ = OF_KNOWN + HALF, OF_DK = OF_DQ + TILE,
              OF_VECTORS = OF_DK + TILE;
constexpr int V_START = OF_VECTORS, V_END = V_START + 4 * C, V_RATE = V_END + 4 * C, V_SUMS = V_RATE + 4 * C;
// Found by a group: sums of columns by each warp, and a number of each step.
constexpr int V_COLUMNS = V_SUMS + 8 * C, V_ROWS = V_COLUMNS + 32 * C, V_KNOWN = V_ROWS + 8 * C,
              V_VALUES = V_KNOWN + 4 * C, V_LAST = V_VALUES + 4 * C, V_CARRIED = V_LAST + 4 * C;
constexpr int PRODUCER = 24, CONSUMER = 240;  // registers of a thread
static_assert(PRODUCER + 2 * CONSUMER <= THIRDS);
constexpr unsigned OF_STATES = STATE / 2 / 16 << 16;  // as BY_COLUMN, of tiles of 128 rows
// Sets of operands that come and go together, in the order of their use; barriers: one when it has come, one when it
// may go. Then those of what the group of dq finds for the other.
enum { VALUES = 0, KEYS, OWN_VALUES, STATES, DSTATES, SETS, HALVED = 2 * SETS, FOUND, FREE, BARRIERS };

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
// Store 64 x 128 numbers, each warp its 16 rows.
FUNCTION void put_rows(bfloat16* to, unsigned tile, long long stride, int left, int width, const float* d, int warp,
                       int lane) {
    UNROLL
    for (int n = 0; n < 16; n += 2) {
        unsigned r[4] = {rounded_pair(d[4 * n], d[4 * n + 1]), rounded_pair(d[4 * n + 2], d[4 * n + 3]),
                         rounded_pair(d[4 * n + 4], d[4 * n + 5]), rounded_pair(d[4 * n + 6], d[4 * n + 7])};
        int row = 16 * warp + (lane & 7) + (lane & 8), piece = n + lane / 16;
        store_matrices(tile + piece / 8 * HALF + swizzled(row, piece % 8), r);
    }
    warp_sync();
    UNROLL
    for (int i = 0; i < 8; ++i) {
        int row = 16 * warp + 2 * i + lane / 16, piece = lane % 16;
        if (row < left && piece * 8 < width)
            store_16(to + row * stride + piece * 8, tile + piece / 8 * HALF + swizzled(row, piece % 8));
    }
    warp_sync();
}
FUNCTION void put_square(unsigned to, const unsigned* r, int warp, int lane) {  // 64 x 64, of the right side's order
    UNROLL
    for (int n = 0; n < 8; n += 2) {
        int row = 16 * warp + (lane & 7) + (lane & 8), piece = n + lane / 16;
        store_matrices(to + swizzled(row, piece), r + 2 * n);
    }
}

// A chunk of a head of a value. place: of its gates and rates; at: among those of the launch.
struct Chunk {
    int at, place, bh, left;
    long long step;  // of its first step, among those of all batch elements
};
// For each chunk of a block, with its number. Of the NT places of each head the launch is for PER, from `skipped` on.
template <class Use>
FUNCTION void for_chunks(int T, int H, int NT, const long long* bounds, int sequences, int count, int PER, int SHARE,
                         int skipped, Use use) {
    for (int at = block(), turn = 0; at < count; at += blocks()) {
        const int bh = at / PER, place = at % PER + skipped, of_rates = bh / H * (H / SHARE) + bh % H / SHARE;
        const Steps steps = steps_of(place, T, bounds, sequences);
        if (steps.left > 0)
            use(Chunk{at, of_rates * NT + place, bh, steps.left, (long long)(bh / H) * T + steps.first}, turn++);
    }
}
struct Lane {
    int warp, lane, group, pair, row;
};
FUNCTION Lane my_lane_of_group() {
    int own = thread() % 128, warp = own / 32, lane = own % 32;
    return {warp, lane, lane / 4, lane % 4, 16 * warp + lane / 4};
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

// The tiles of a state, of strips of 64 values, by one thread.
FUNCTION void copy_states(unsigned to, const bfloat16* from, int strips, int i) {
    if (thread() == 0) {
        expect_bytes(i, strips * (STATE / 2));
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
// A set of operands of this turn may be copied when both groups have left that of the turn before.
FUNCTION void wait_for_room(int set, int turn) {
    if (turn) wait_at(SETS + set, (turn - 1) & 1);
}
#endif
