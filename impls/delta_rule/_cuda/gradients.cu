// Gradients of all operands of the delta rule, chunk by chunk. Blocks stay and take chunk after chunk: a producer
// warpgroup copies ahead, group of operands by group, into the room that the consumer warpgroup has left.
#include "parts.cuh"

constexpr int TILE = 2 * HALF, STATE = 4 * HALF;  // bytes of 64 x 128 and of 128 x 128 numbers
constexpr int OF_DO = 0, OF_Y = TILE, OF_DX = 2 * TILE, OF_K = 3 * TILE, OF_Q = 4 * TILE, OF_V = 5 * TILE,
              OF_S = 6 * TILE, OF_DS = OF_S + STATE;
constexpr int OF_HALVED = OF_DS + STATE, OF_KNOWN = OF_HALVED + HALF, OF_OUT = OF_KNOWN + HALF,
              OF_VECTORS = OF_OUT + TILE;
constexpr int V_START = OF_VECTORS, V_END = V_START + 4 * C, V_RATE = V_END + 4 * C, V_SUMS = V_RATE + 4 * C;
constexpr int V_COLUMNS = V_SUMS + 8 * C, V_ROWS = V_COLUMNS + 16 * C, V_KNOWN = V_ROWS + 4 * C,
              V_VALUES = V_KNOWN + 4 * C;
constexpr int V_LAST = V_VALUES + 4 * C, V_CARRIED = V_LAST + 4 * C;
constexpr unsigned OF_STATES = STATE / 2 / 16 << 16;  // as BY_COLUMN, of tiles of 128 rows
// Groups of operands that come and go together, in the order of their use; barriers: one when it has come, one when it
// may go.
enum { VALUES = 0, KEYS, OWN_VALUES, STATES, DSTATES, GROUPS };

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
FUNCTION void put_rows(bfloat16* to, long long stride, int left, int width, const float* d, int warp, int lane) {
    UNROLL
    for (int n = 0; n < 16; n += 2) {
        unsigned r[4] = {rounded_pair(d[4 * n], d[4 * n + 1]), rounded_pair(d[4 * n + 2], d[4 * n + 3]),
                         rounded_pair(d[4 * n + 4], d[4 * n + 5]), rounded_pair(d[4 * n + 6], d[4 * n + 7])};
        int row = 16 * warp + (lane & 7) + (lane & 8), piece = n + lane / 16;
        store_matrices(OF_OUT + piece / 8 * HALF + swizzled(row, piece % 8), r);
    }
    warp_sync();
    UNROLL
    for (int i = 0; i < 8; ++i) {
        int row = 16 * warp + 2 * i + lane / 16, piece = lane % 16;
        if (row < left && piece * 8 < width)
            store_16(to + row * stride + piece * 8, OF_OUT + piece / 8 * HALF + swizzled(row, piece % 8));
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

ENTRY(256, 1)
cuda_delta_gradients(const bfloat16* q, const bfloat16* k, const bfloat16* v, const float* vectors,
                     const long long* bounds, const bfloat16* d_o, const bfloat16* dx, const bfloat16* y,
                     const bfloat16* states, const bfloat16* dstates, bfloat16* dq, bfloat16* dk, bfloat16* dv,
                     float* dbeta, float* dlog_a, int T, int H, int G, int K, int V, int NT, int sequences, int count) {
    if (thread() == 0) open_barriers(2 * GROUPS);
    barrier();
    if (thread() < 128) {  // the producer
        for (int at = block(), turn = 0; at < count; at += blocks()) {
            const int bh = at / NT;
            const Steps steps = steps_of(at % NT, T, bounds, sequences);
            if (steps.left <= 0) continue;
            const int left = steps.left, parity = (turn - 1) & 1;
            const long long step = (long long)(bh / H) * T + steps.first, stride = (long long)H * V,
                            own = (step * H + bh % H) * V;
            const long long key_stride = (long long)G * K, key_own = (step * G + bh % H / (H / G)) * K;
            if (turn) wait_at(GROUPS + VALUES, parity);
            copy_tile<C>(OF_DO, d_o + own, stride, left, V), copy_tile<C>(OF_Y, y + own, stride, left, V),
                copy_tile<C>(OF_DX, dx + own, stride, left, V);
            arrive_when_copied(VALUES);
            if (turn) wait_at(GROUPS + KEYS, parity);
            copy_tile<C>(OF_K, k + key_own, key_stride, left, K), copy_tile<C>(OF_Q, q + key_own, key_stride, left, K);
            if (thread() < VECTORS / 4)
                copy_16(OF_VECTORS + 16 * thread(), vectors + (long long)at * VECTORS + 4 * thread(), true);
            arrive_when_copied(KEYS);
            if (turn) wait_at(GROUPS + OWN_VALUES, parity);
            copy_tile<C>(OF_V, v + own, stride, left, V);
            arrive_when_copied(OWN_VALUES);
            if (turn) wait_at(GROUPS + STATES, parity);
            copy_tile<128>(OF_S, states + (long long)at * V * K, K, V, K);
            arrive_when_copied(STATES);
            if (turn) wait_at(GROUPS + DSTATES, parity);
            copy_tile<128>(OF_DS, dstates + (long long)at * V * K, K, V, K);
            arrive_when_copied(DSTATES);
            ++turn;
        }
        wait_for_copies();
        return;
    }
    const int own_thread = thread() - 128, warp = own_thread / 32, lane = own_thread % 32, group = lane / 4,
              pair = lane % 4, row = 16 * warp + group;
    const unsigned base = first_unit(), by_row = base | BY_ROW, by_column = base | BY_COLUMN;
    for (int at = block(), turn = 0; at < count; at += blocks()) {
        const int bh = at / NT;
        const Steps steps = steps_of(at % NT, T, bounds, sequences);
        if (steps.left <= 0) continue;
        const int left = steps.left, parity = turn++ & 1;
        const long long step = (long long)(bh / H) * T + steps.first, stride = (long long)H * V,
                        own = (step * H + bh % H) * V, key_own = (step * H + bh % H) * K;
        float o[32], x[32], alike[32], scores[32];
        wait_at(VALUES, parity);
        products_begin();
        UNROLL
        for (int i = 0; i < 8; ++i)
            square_64(o, by_row + OF_DO / 16 + along_row(i), by_row + OF_Y / 16 + along_row(i), i > 0);
        UNROLL
        for (int i = 0; i < 8; ++i)
            square_64(x, by_row + OF_DX / 16 + along_row(i), by_row + OF_Y / 16 + along_row(i), i > 0);
        products_close();
        wait_at(KEYS, parity);
        products_begin();
        UNROLL
        for (int i = 0; i < 8; ++i)
            square_64(alike, by_row + OF_K / 16 + along_row(i), by_row + OF_K / 16 + along_row(i), i > 0);
        UNROLL
        for (int i = 0; i < 8; ++i)
            square_64(scores, by_row + OF_Q / 16 + along_row(i), by_row + OF_K / 16 + along_row(i), i > 0);
        products_close();
        // dv, and dx . v of each step: 16 threads have a row
        wait_at(OWN_VALUES, parity);
        UNROLL
        for (int i = 0; i < 8; ++i) {
            int r = 8 * i + own_thread / 16, piece = own_thread % 16;
            unsigned place = piece / 8 * HALF + swizzled(r, piece % 8), a[4], b[4], out[4];
            load_four_words(a, OF_DX + place), load_four_words(b, OF_V + place);
            float rate = load_one(V_RATE + 4 * r), sum = 0;
            UNROLL
            for (int n = 0; n < 4; ++n) {
                sum += low_half(a[n]) * low_half(b[n]) + high_half(a[n]) * high_half(b[n]);
                out[n] = rounded_pair(low_half(a[n]) * rate, high_half(a[n]) * rate);
            }
            UNROLL
            for (int by = 1; by < 16; by *= 2) sum += shuffle_xor(sum, by);
            if (piece == 0) put_float(V_VALUES + 4 * r, sum);
            if (r < left && piece * 8 < V) put_four_words(dv + own + r * stride + piece * 8, out);
        }
        arrive(GROUPS + OWN_VALUES);
        const Two to[2] = {load_two(V_SUMS + 8 * row), load_two(V_SUMS + 8 * row + 64)};
        const float rate[2] = {load_one(V_RATE + 4 * row), load_one(V_RATE + 4 * row + 32)};
        const float start[2] = {load_one(V_START + 4 * row), load_one(V_START + 4 * row + 32)},
                    end[2] = {load_one(V_END + 4 * row), load_one(V_END + 4 * row + 32)};
        wait_products<0>();
        claim(o, 32), claim(x, 32), claim(alike, 32), claim(scores, 32);
        unsigned halved[16], known[16];
        float rows[2] = {}, of_rate[2] = {};
        UNROLL
        for (int n = 0; n < 8; ++n) {
            float w[4], columns[2];
            load_four(w, V_SUMS + 8 * (8 * n + 2 * pair));
            UNROLL
            for (int odd = 0; odd < 2; ++odd) {
                columns[odd] = 0;
                UNROLL
                for (int side = 0; side < 2; ++side) {
                    int i = row + 8 * side, j = 8 * n + 2 * pair + odd, e = 4 * n + 2 * side + odd;
                    Two from = {w[2 * odd], w[2 * odd + 1]};
                    float factor = decay(to[side], from, i >= j);
                    float seen = o[e] * factor, one = i > j ? -x[e] * factor : 0.0f;
                    of_rate[side] += one * alike[e];
                    one *= rate[side];
                    float both = (i > j ? seen * scores[e] : 0.0f) + one * alike[e];
                    rows[side] += both, columns[odd] += both;
                    o[e] = seen, x[e] = one;
                }
            }
            UNROLL
            for (int side = 0; side < 2; ++side) {
                halved[2 * n + side] = rounded_pair(o[4 * n + 2 * side], o[4 * n + 2 * side + 1]);
                known[2 * n + side] = rounded_pair(x[4 * n + 2 * side], x[4 * n + 2 * side + 1]);
            }
            UNROLL
            for (int odd = 0; odd < 2; ++odd) {
                UNROLL
                for (int by = 4; by < 32; by *= 2) columns[odd] += shuffle_xor(columns[odd], by);
                if (group == 0) put_float(V_COLUMNS + 256 * warp + 4 * (8 * n + 2 * pair + odd), columns[odd]);
            }
        }
        put_square(OF_HALVED, halved, warp, lane), put_square(OF_KNOWN, known, warp, lane);
        UNROLL
        for (int side = 0; side < 2; ++side) rows[side] = row_sum(rows[side]), of_rate[side] = row_sum(of_rate[side]);
        publish();  // to products, and to the other warps
        float e[64], r[64];
        wait_at(STATES, parity);
        products_begin();
        UNROLL
        for (int i = 0; i < 8; ++i)
            product_states(e, by_row + OF_DO / 16 + along_row(i), (base | OF_STATES) + OF_S / 16 + down_rows(i), i > 0);
        products_close();
        UNROLL
        for (int i = 0; i < 8; ++i)
            product_states(r, by_row + OF_DX / 16 + along_row(i), (base | OF_STATES) + OF_S / 16 + down_rows(i), i > 0);
        products_close();
        float of_query[2], along[2], of_last[2];
        wait_products<1>();
        claim(e, 64);
        UNROLL
        for (int n = 0; n < 64; ++n) e[n] *= start[n / 2 % 2];
        dot_rows(of_query, e, OF_Q, row, pair);
        claim(e, 64);
        products_begin();
        UNROLL
        for (int i = 0; i < 4; ++i) product_128(e, halved + 4 * i, by_column + OF_K / 16 + down_rows(i));
        products_close();
        wait_products<0>();
        claim(e, 64), claim(r, 64);
        put_rows(dq + key_own, (long long)H * K, left, K, e, warp, lane);
        UNROLL
        for (int n = 0; n < 64; ++n) r[n] *= start[n / 2 % 2];
        dot_rows(along, r, OF_K, row, pair);
        wait_at(DSTATES, parity);
        products_begin();
        UNROLL
        for (int i = 0; i < 8; ++i)
            product_states(e, by_row + OF_Y / 16 + along_row(i), (base | OF_STATES) + OF_DS / 16 + down_rows(i), i > 0);
        products_close();
        float carried = 0;  // S . dS'
        UNROLL
        for (int i = 0; i < 16; ++i) {
            unsigned a[4], b[4];
            load_four_words(a, OF_S + 16 * (own_thread + 128 * i)),
                load_four_words(b, OF_DS + 16 * (own_thread + 128 * i));
            UNROLL
            for (int n = 0; n < 4; ++n) carried += low_half(a[n]) * low_half(b[n]) + high_half(a[n]) * high_half(b[n]);
        }
        UNROLL
        for (int by = 1; by < 32; by *= 2) carried += shuffle_xor(carried, by);
        wait_products<0>();
        claim(e, 64);
        arrive(GROUPS + VALUES), arrive(GROUPS + STATES), arrive(GROUPS + DSTATES);
        UNROLL
        for (int n = 0; n < 64; ++n) e[n] *= end[n / 2 % 2];
        dot_rows(of_last, e, OF_K, row, pair);
        UNROLL
        for (int n = 0; n < 64; ++n) e[n] -= r[n] * rate[n / 2 % 2];
        claim(e, 64);
        products_begin();
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_turned(e, by_column + OF_HALVED / 16 + down_rows(i), by_column + OF_Q / 16 + down_rows(i));
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_turned(e, by_column + OF_KNOWN / 16 + down_rows(i), by_column + OF_K / 16 + down_rows(i));
        UNROLL
        for (int i = 0; i < 4; ++i) product_128(e, known + 4 * i, by_column + OF_K / 16 + down_rows(i));
        products_close();
        if (lane == 0) put_float(V_CARRIED + 4 * warp, carried);
        UNROLL
        for (int side = 0; side < 2; ++side)
            if (pair == 0) {
                int i = 4 * (row + 8 * side);
                put_float(V_ROWS + i, rows[side] + of_query[side] - along[side] * rate[side]);
                put_float(V_KNOWN + i, of_rate[side] - along[side]);
                put_float(V_LAST + i, of_last[side]);
            }
        wait_products<0>();
        claim(e, 64);
        publish();
        put_rows(dk + key_own, (long long)H * K, left, K, e, warp, lane);
        if (warp == 0) {  // two steps of a lane
            float add[2], last[2], resets[2], whole = load_one(V_START + 4 * 63), passed = 0;
            UNROLL
            for (int i = 0; i < 2; ++i) {
                int t = 4 * (2 * lane + i);
                add[i] = load_one(V_ROWS + t) - load_one(V_COLUMNS + t) - load_one(V_COLUMNS + 256 + t) -
                         load_one(V_COLUMNS + 512 + t) - load_one(V_COLUMNS + 768 + t);
                last[i] = load_one(V_LAST + t);
                resets[i] = load_two(V_SUMS + 2 * t).b;
            }
            UNROLL
            for (int i = 0; i < 4; ++i) passed += load_one(V_CARRIED + 4 * i);
            passed *= whole;
            float after = add[0] + add[1], before = last[0] + last[1];
            UNROLL
            for (int by = 1; by < 32; by *= 2) {
                float a = shuffle_down(after, by), b = shuffle_up(before, by);
                if (lane + by < 32) after += a;
                if (lane >= by) before += b;
            }
            before -= last[0] + last[1];
            float earlier = shuffle_up(resets[1], 1);
            const bool reset[2] = {resets[0] != (lane ? earlier : 0.0f), resets[1] != resets[0]};
            UNROLL
            for (int i = 0; i < 2; ++i) {
                int t = 2 * lane + i;
                if (t < left) {
                    long long to = (step + t) * H + bh % H;
                    dbeta[to] = load_one(V_VALUES + 4 * t) + load_one(V_KNOWN + 4 * t);
                    if (dlog_a)
                        dlog_a[to] =
                            reset[i] ? 0.0f : (i ? after - add[0] : after) + (i ? before + last[0] : before) + passed;
                }
            }
        }
        publish();
        arrive(GROUPS + KEYS);
    }
}
