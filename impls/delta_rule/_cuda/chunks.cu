// G * inverse as high + low, gates and rates of a chunk of 64 steps: a block of four warps per chunk.
#include "parts.cuh"

constexpr int LINE = 72, SHORT = 24, WEIGHTS = 20;  // pitches: of L in halves, of a block of 16 in halves and in floats
constexpr int OF_K = 0, OF_L = 0, L_BYTES = C * LINE * 2;  // L in three parts, where keys were
constexpr int OF_X = 3 * L_BYTES, X_BYTES = 4 * 16 * SHORT * 2, OF_WEIGHTS = OF_X + 3 * X_BYTES;
constexpr int OF_SUMS = OF_WEIGHTS + 4 * 16 * WEIGHTS * 4, OF_RATES = OF_SUMS + 8 * C;

FUNCTION void load_gates(Two* x, int step) {  // of two steps
    float w[4];
    load_four(w, OF_SUMS + 8 * step);
    x[0] = {w[0], w[1]}, x[1] = {w[2], w[3]};
}

struct Parts {
    unsigned of[3][4];
};  // a 16 x 16 matrix as the left side of products, a sum of three

FUNCTION void split(float a, float b, unsigned& high, unsigned& middle, unsigned& low) {
    high = rounded_pair(a, b);
    a -= low_half(high), b -= high_half(high);
    middle = rounded_pair(a, b);
    low = rounded_pair(a - low_half(middle), b - high_half(middle));
}
FUNCTION Parts parts_of(const float* d) {  // of an accumulator: [8 columns][side][2]
    Parts p;
    UNROLL
    for (int i = 0; i < 4; ++i) split(d[2 * i], d[2 * i + 1], p.of[0][i], p.of[1][i], p.of[2][i]);
    return p;
}
// d += a y^T with y 16 x 16 in three parts in shared memory, `between` bytes apart; 24 bits.
FUNCTION void add_product(float* d, const Parts& a, unsigned y, int pitch, int between) {
    int lane = thread() % 32;
    unsigned at = y + ((lane & 7) + (lane & 16) / 2) * pitch * 2 + (lane & 8) * 2;
    UNROLL
    for (int part = 2; part >= 0; --part) {
        unsigned b[4];
        load_matrices(b, at + part * between);
        UNROLL
        for (int other = 2 - part; other >= 0; --other) {
            product(d, a.of[other], b[0], b[1]);
            product(d + 4, a.of[other], b[2], b[3]);
        }
    }
}
// Store a block of the inverse, given transposed, with its gates.
FUNCTION void put_block(bfloat16* high, bfloat16* low, const float* d, int row, int column) {
    int lane = thread() % 32, group = lane / 4, pair = lane % 4;
    Two to[2][2], from[2];
    UNROLL
    for (int half = 0; half < 2; ++half) load_gates(to[half], row + 8 * half + 2 * pair);
    UNROLL
    for (int side = 0; side < 2; ++side) from[side] = load_two(OF_SUMS + 8 * (column + 8 * side + group));
    UNROLL
    for (int half = 0; half < 2; ++half) {
        UNROLL
        for (int side = 0; side < 2; ++side) {
            int i = row + 8 * half + 2 * pair, j = column + 8 * side + group;
            float a = d[4 * half + 2 * side] * decay(to[half][0], from[side], i >= j);
            float b = d[4 * half + 2 * side + 1] * decay(to[half][1], from[side], i + 1 >= j);
            unsigned upper = rounded_pair(a, b), rest = rounded_pair(a - low_half(upper), b - high_half(upper));
            int at = stored_at(row + 8 * half + group, column + 8 * side) + 2 * pair;
            *(unsigned*)(high + at) = turn(upper);
            *(unsigned*)(low + at) = turn(rest);
        }
    }
}

ENTRY(128, 5)
cuda_delta_chunks(const bfloat16* k, const float* beta, const float* log_a, const long long* bounds, bfloat16* high,
                  bfloat16* low, float* vectors, int T, int H, int G, int K, int NT, int sequences) {
    const int warp = thread() / 32, lane = thread() % 32, group = lane / 4, pair = lane % 4;
    const int chunk = block() % NT, bh = block() / NT, batch = bh / H, head = bh % H;
    const Steps steps = steps_of(chunk, T, bounds, sequences);
    if (steps.left <= 0) return;
    const long long step = (long long)batch * T + steps.first, own = (step * G + head / (H / G)) * K,
                    place = (long long)bh * NT + chunk;
    copy_tile<C>(OF_K, k + own, (long long)G * K, steps.left, K);
    if (warp == 0) {  // two steps of a lane
        float* to = vectors + place * VECTORS;
        float gate[2];
        int reset[2];
        UNROLL
        for (int i = 0; i < 2; ++i) {
            int t = 2 * lane + i;
            bool inside = t < steps.left;
            float log_gate = log_a && inside ? log_a[(step + t) * H + head] : 0.0f,
                  rate = inside ? beta[(step + t) * H + head] : 0.0f;
            reset[i] = log_gate < RESET;
            gate[i] = reset[i] ? 0.0f : log_gate;
            put_float(OF_RATES + 4 * t, rate);
            to[2 * C + t] = rate;
        }
        float sum = gate[0] + gate[1];
        int count = reset[0] + reset[1];
        UNROLL
        for (int by = 1; by < 32; by *= 2) {
            float before = shuffle_up(sum, by);
            int others = shuffle_up(count, by);
            if (lane >= by) sum += before, count += others;
        }
        float total = from_lane(sum, 31);
        int all = from_lane(count, 31);
        UNROLL
        for (int i = 0; i < 2; ++i) {
            int t = 2 * lane + i;
            float here = i ? sum : sum - gate[1];
            int seen = i ? count : count - reset[1];
            put_two(OF_SUMS + 8 * t, here, (float)seen);
            to[t] = seen == 0 ? exponential(here) : 0.0f;
            to[C + t] = seen == all ? exponential(least(total - here, 0.0f)) : 0.0f;
            to[3 * C + 2 * t] = here, to[3 * C + 2 * t + 1] = (float)seen;
        }
    }
    wait_for_copies();
    barrier();
    float d[32];
    const unsigned base = first_unit() | BY_ROW;
    start_square(d, base + OF_K / 16, base + OF_K / 16);
    const int i0 = 16 * warp + group;
    const float rates[2] = {load_one(OF_RATES + 4 * i0), load_one(OF_RATES + 4 * i0 + 32)};
    wait_products<0>();
    claim(d, 32);
    barrier();  // nobody reads keys any more
    const long long at = place * SQUARE;
    UNROLL
    for (int n = 0; n < 8; ++n)
        if (n / 2 < warp) {  // L in three parts
            UNROLL
            for (int side = 0; side < 2; ++side) {
                unsigned p[3], to = OF_L + (i0 + 8 * side) * LINE * 2 + (8 * n + 2 * pair) * 2;
                split(rates[side] * d[4 * n + 2 * side], rates[side] * d[4 * n + 2 * side + 1], p[0], p[1], p[2]);
                UNROLL
                for (int part = 0; part < 3; ++part) put_word(to + part * L_BYTES, p[part]);
            }
        } else if (n / 2 == warp) {
            UNROLL
            for (int side = 0; side < 2; ++side) {
                int column = 8 * (n % 2) + 2 * pair;
                put_two(OF_WEIGHTS + (16 * warp + group + 8 * side) * WEIGHTS * 4 + column * 4,
                        rates[side] * d[4 * n + 2 * side], rates[side] * d[4 * n + 2 * side + 1]);
            }
        }
    warp_sync();
    {  // the inverse of the block on the diagonal, a column of a lane; the other half of the warp does the same again
        float x[16];
        unsigned weights = OF_WEIGHTS + 16 * warp * WEIGHTS * 4;
        UNROLL
        for (int i = 0; i < 16; ++i) x[i] = i == lane % 16 ? 1.0f : 0.0f;
        UNROLL
        for (int i = 1; i < 16; ++i) {
            UNROLL
            for (int part = 0; part <= (i - 1) / 4; ++part) {
                float w[4];
                load_four(w, weights + i * WEIGHTS * 4 + part * 16);
                UNROLL
                for (int m = 0; m < 4; ++m)
                    if (4 * part + m < i) x[i] -= w[m] * x[4 * part + m];
            }
        }
        if (lane < 16) {
            UNROLL
            for (int i = 0; i < 8; ++i) {
                unsigned p[3];
                split(x[2 * i], x[2 * i + 1], p[0], p[1], p[2]);
                UNROLL
                for (int part = 0; part < 3; ++part) {
                    UNROLL
                    for (int odd = 0; odd < 2; ++odd)
                        put_half(OF_X + part * X_BYTES + ((16 * warp + 2 * i + odd) * SHORT + lane) * 2,
                                 odd ? p[part] >> 16 : p[part] & 0xffff);
                }
            }
        }
    }
    barrier();
    const int mine = (warp + block()) % 4;  // the column of blocks
    Parts x[4];
    float e[8];
    UNROLL
    for (int i = 0; i < 4; ++i) {
        if (i == mine) {
            unsigned from = OF_X + (16 * i + (lane & 7) + (lane & 16) / 2) * SHORT * 2 + (lane & 8) * 2;
            UNROLL
            for (int part = 0; part < 3; ++part) load_turned(x[i].of[part], from + part * X_BYTES);
            UNROLL
            for (int n = 0; n < 4; ++n) {
                UNROLL
                for (int odd = 0; odd < 2; ++odd) {
                    float sum = 0;
                    UNROLL
                    for (int part = 2; part >= 0; --part)
                        sum += odd ? high_half(x[i].of[part][n]) : low_half(x[i].of[part][n]);
                    e[2 * n + odd] = sum;
                }
            }
            put_block(high + at, low + at, e, 16 * i, 16 * mine);
        } else if (i > mine) {
            UNROLL
            for (int n = 0; n < 8; ++n) e[n] = 0;
            UNROLL
            for (int m = 0; m < i; ++m)
                if (m >= mine) add_product(e, x[m], OF_L + (16 * i * LINE + 16 * m) * 2, LINE, L_BYTES);
            UNROLL
            for (int n = 0; n < 8; ++n) e[n] = -e[n];
            Parts sum = parts_of(e);
            UNROLL
            for (int n = 0; n < 8; ++n) e[n] = 0;
            add_product(e, sum, OF_X + 16 * i * SHORT * 2, SHORT, X_BYTES);
            if (i < 3) x[i] = parts_of(e);
            put_block(high + at, low + at, e, 16 * i, 16 * mine);
        }
    }
}
