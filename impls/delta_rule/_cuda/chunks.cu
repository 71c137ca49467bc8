// G * inverse as high + low, gates and rates of chunks of 64 steps: a block of four warps takes chunk after chunk.
#include "parts.cuh"

// A square of 64 x 64 in shared memory has L below its diagonal, then the inverse, turned, above it.
constexpr int LINE = 72;  // its pitch, for which neither rows nor columns share banks
constexpr int OF_K = 0, OF_L = 2 * HALF, OF_SUMS = OF_L + C * LINE * 4, SUMS_BYTES = 12 * C;
constexpr int OF_RATES = OF_SUMS + 2 * SUMS_BYTES, OF_NEXT = OF_RATES + 4 * C;

FUNCTION unsigned at(int row, int column) { return OF_L + (row * LINE + column) * 4; }

struct Given {
    const bfloat16* k;
    const float *beta, *log_a;
    const long long* bounds;
    float* vectors;
    int T, H, G, K, NT, sequences, count;
};

// Finds the first place from `place` on that has steps, begins to copy its keys, and finds its gates: the sums and
// numbers of resets up to each step, and what is left of each at the end of its eight. A warp does it.
FUNCTION void prepare(const Given& given, int place, unsigned sums) {
    const int lane = thread() % 32;
    Steps steps = {0, 0};
    for (; place < given.count; place += blocks()) {
        steps = steps_of(place % given.NT, given.T, given.bounds, given.sequences);
        if (steps.left > 0) break;
    }
    if (lane == 0) put_word(OF_NEXT, place < given.count ? place : -1);
    if (place >= given.count) return;
    const int bh = place / given.NT, batch = bh / given.H, head = bh % given.H;
    const long long step = (long long)batch * given.T + steps.first, stride = (long long)given.G * given.K;
    float log_gate[2], rate[2];
    UNROLL
    for (int i = 0; i < 2; ++i) {  // two steps of a lane
        int t = 2 * lane + i;
        bool inside = t < steps.left;
        log_gate[i] = given.log_a && inside ? given.log_a[(step + t) * given.H + head] : 0.0f;
        rate[i] = inside ? given.beta[(step + t) * given.H + head] : 0.0f;
    }
    const int piece = lane % 16, odd = lane / 16;  // two rows of a copy of all lanes
    const bfloat16* from = given.k + (step + odd) * stride + head / (given.H / given.G) * given.K + 8 * piece;
    unsigned to[4];
    UNROLL
    for (int i = 0; i < 4; ++i) to[i] = OF_K + piece / 8 * HALF + swizzled(2 * i + odd, piece % 8);
    const int left = (8 * piece < given.K ? steps.left : 0) - odd;
    ROLLED
    for (int i = 0; i < 8; ++i) {
        UNROLL
        for (int j = 0; j < 4; ++j, from += 2 * stride) copy_16(to[j] + 1024 * i, from, 8 * i + 2 * j < left);
    }
    float gate[2];
    int reset[2];
    UNROLL
    for (int i = 0; i < 2; ++i) {
        reset[i] = log_gate[i] < RESET;
        gate[i] = reset[i] ? 0.0f : log_gate[i];
    }
    float sum = gate[0] + gate[1];
    int seen = reset[0] + reset[1];
    UNROLL
    for (int by = 1; by < 32; by *= 2) {
        float before = shuffle_up(sum, by);
        int others = shuffle_up(seen, by);
        if (lane >= by) sum += before, seen += others;
    }
    const Two last = {from_lane(sum, 31), (float)from_lane(seen, 31)},
              eighth = {from_lane(sum, lane | 3), (float)from_lane(seen, lane | 3)};
    const Two here[2] = {{sum - gate[1], (float)(seen - reset[1])}, {sum, (float)seen}};
    UNROLL
    for (int i = 0; i < 2; ++i) {
        int t = 2 * lane + i;
        put_two(sums + 8 * t, here[i].a, here[i].b);
        put_float(sums + 8 * C + 4 * t, decay(eighth, here[i], true));
        put_float(OF_RATES + 4 * t, rate[i]);
    }
    wait_for_copies();
    float* out = given.vectors + (long long)place * VECTORS;
    UNROLL
    for (int i = 0; i < 2; ++i) {
        int t = 2 * lane + i;
        out[t] = here[i].b == 0.0f ? exponential(here[i].a) : 0.0f;
        out[C + t] = decay(last, here[i], true);
        out[2 * C + t] = rate[i];
        out[3 * C + 2 * t] = here[i].a, out[3 * C + 2 * t + 1] = here[i].b;
    }
}

// d += a y^T, 16 x 16, y in shared memory. a is as products leave it. LOWER: nothing above y's diagonal is taken.
template <bool LOWER>
FUNCTION void add_product(float* d, const float* a, unsigned y) {
    const int lane = thread() % 32, group = lane / 4, pair = lane % 4;
    float left[8];
    left_of(left, a);
    UNROLL
    for (int k = 0; k < 2; ++k) {
        UNROLL
        for (int n = 0; n < 2; ++n) {
            if (LOWER && k > n) continue;
            Two b = load_two(y + ((8 * n + group) * LINE + 8 * k + 2 * pair) * 4);
            if (LOWER && k == n) {
                if (2 * pair > group) b.a = 0.0f;
                if (2 * pair + 1 > group) b.b = 0.0f;
            }
            split_product(d + 4 * n, d + 4 * n, a + 4 * k, left + 4 * k, b);
        }
    }
}
// Column j of the inverse's blocks of 16: turned, a block is -(what is above it L^T) D^T. A warp does it.
FUNCTION void merge(int j) {
    const int lane = thread() % 32, group = lane / 4, pair = lane % 4;
    float x[3][8];
    UNROLL
    for (int n = 0; n < 2; ++n) {
        UNROLL
        for (int side = 0; side < 2; ++side) {
            Two y = {0.0f, 0.0f};
            if (n >= side) y = load_two(at(16 * j + 8 * side + group, 16 * j + 8 * n + 2 * pair));
            if (n == side) {
                if (2 * pair < group) y.a = 0.0f;
                if (2 * pair + 1 < group) y.b = 0.0f;
            }
            x[0][4 * n + 2 * side] = y.a, x[0][4 * n + 2 * side + 1] = y.b;
        }
    }
    UNROLL
    for (int down = 1; down < 4; ++down) {
        const int i = j + down;
        if (i > 3) return;
        float e[8] = {}, found[8] = {};
        UNROLL
        for (int m = 0; m < down; ++m) add_product<false>(e, x[m], at(16 * i, 16 * (j + m)));
        UNROLL
        for (int n = 0; n < 8; ++n) e[n] = -e[n];
        add_product<true>(found, e, at(16 * i, 16 * i));
        UNROLL
        for (int n = 0; n < 8; ++n)
            if (down < 3) x[down][n] = found[n];
        UNROLL
        for (int n = 0; n < 4; ++n)
            put_two(at(16 * j + n % 2 * 8 + group, 16 * i + n / 2 * 8 + 2 * pair), found[2 * n], found[2 * n + 1]);
    }
}

FUNCTION void put_parts(unsigned* high, unsigned* low, const float* x, int count) {
    UNROLL
    for (int i = 0; i < count; ++i) {
        high[i] = rounded_pair(x[2 * i], x[2 * i + 1]);
        low[i] = rounded_pair(x[2 * i] - low_half(high[i]), x[2 * i + 1] - high_half(high[i]));
    }
}
// Store the inverse with its gates.
FUNCTION void put_square(bfloat16* high, bfloat16* low, unsigned sums) {
    const int own = thread() / 8, line = thread() % 8;
    unsigned whole[4], rest[4];
    UNROLL
    for (int half = 0; half < 2; ++half) {  // 28 groups of 8 x 8 below the diagonal, and four of zeros above it
        int row, column, group = own + 16 * half;
        if (group < 28) {
            column = (group >= 7) + (group >= 13) + (group >= 18) + (group >= 22) + (group >= 25) + (group >= 27);
            row = 8 * (group - column * (15 - column) / 2 + column + 1) + line, column *= 8;
            const float gates = decay(load_two(sums + 8 * row), load_two(sums + 8 * (column + 7)), true);
            float x[8], left[8];
            load_four(left, sums + 8 * C + 4 * column), load_four(left + 4, sums + 8 * C + 4 * column + 16);
            UNROLL
            for (int i = 0; i < 8; ++i) x[i] = load_one(at(column + i, row)) * (left[i] * gates);
            put_parts(whole, rest, x, 4);
        } else {
            row = 16 * (group - 28) + line, column = 16 * (group - 28) + 8;
            UNROLL
            for (int i = 0; i < 4; ++i) whole[i] = rest[i] = 0;
        }
        put_four_words(high + stored_at(row, column), whole);
        put_four_words(low + stored_at(row, column), rest);
    }
    const int row = thread() / 2, column = row / 8 * 8 + thread() % 2 * 4;  // four on the diagonal
    const Two to = load_two(sums + 8 * row);
    float x[4], from[8];
    load_four(from, sums + 8 * column), load_four(from + 4, sums + 8 * column + 16);
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const bool below = row >= column + i;
        x[i] = load_one(at(column + i, row)) * decay(to, {from[2 * i], from[2 * i + 1]}, below);
        if (!below) x[i] = 0.0f;  // also where there are numbers that are none
    }
    put_parts(whole, rest, x, 2);
    const int first = stored_at(row, row / 8 * 8) + thread() % 2 * 4;
    put_two_words(high + first, whole[0], whole[1]);
    put_two_words(low + first, rest[0], rest[1]);
}

// L of a chunk, and the inverses of its blocks on the diagonal in their places, below and, turned, above: a column of a
// lane; the other half of the warp does the same again.
FUNCTION void invert_blocks() {
    const int warp = thread() / 32, lane = thread() % 32, column = lane % 16;
    const unsigned first = at(16 * warp, 16 * warp);
    float x[16];
    UNROLL
    for (int i = 0; i < 16; ++i) x[i] = i == column ? 1.0f : 0.0f;
    UNROLL
    for (int i = 1; i < 16; ++i) {
        UNROLL
        for (int part = 0; part <= (i - 1) / 4; ++part) {
            float w[4];
            load_four(w, first + (i * LINE + 4 * part) * 4);
            UNROLL
            for (int m = 0; m < 4; ++m)
                if (4 * part + m < i) x[i] -= w[m] * x[4 * part + m];
        }
    }
    warp_sync();
    const bool turned = lane < 16;
    const unsigned to = first + column * (turned ? LINE * 4 : 4), each = turned ? 4 : LINE * 4;
    UNROLL
    for (int i = 0; i < 16; ++i)
        put_float_if(i >= column + !turned, to + i * each, x[i]);
}

ENTRY(128, 5)
cuda_delta_chunks(const bfloat16* k, const float* beta, const float* log_a, const long long* bounds, bfloat16* high,
                  bfloat16* low, float* vectors, int T, int H, int G, int K, int NT, int sequences, int count) {
    const Given given = {k, beta, log_a, bounds, vectors, T, H, G, K, NT, sequences, count};
    const int warp = thread() / 32, lane = thread() % 32, pair = lane % 4, i0 = 16 * warp + lane / 4;
    const unsigned base = first_unit() | BY_ROW;
    int place = -1;
    unsigned sums = OF_SUMS, next = OF_SUMS + SUMS_BYTES;
    for (int turn = block();; ++turn) {
        const int role = (warp + turn) % 4;  // columns take unequal time
        if (role == 3)
            prepare(given, place < 0 ? block() : place + blocks(), next);
        else if (place >= 0)
            merge(role);
        barrier();
        if (place >= 0) put_square(high + (long long)place * SQUARE, low + (long long)place * SQUARE, sums);
        place = (int)load_word(OF_NEXT);
        if (place < 0) return;
        const unsigned own = next;
        next = sums, sums = own;
        float d[32];
        start_square(d, base + OF_K / 16, base + OF_K / 16);
        const float rates[2] = {load_one(OF_RATES + 4 * i0), load_one(OF_RATES + 4 * i0 + 32)};
        wait_products<0>();
        claim(d, 32);
        barrier();  // nobody reads the last inverse any more
        UNROLL
        for (int n = 0; n < 8; ++n) {
            if (n / 2 > warp) break;
            UNROLL
            for (int side = 0; side < 2; ++side)
                put_two(at(i0 + 8 * side, 8 * n + 2 * pair), rates[side] * d[4 * n + 2 * side],
                        rates[side] * d[4 * n + 2 * side + 1]);
        }
        warp_sync();
        invert_blocks();
        barrier();
    }
}
