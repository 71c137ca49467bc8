// Gradients of all operands of the delta rule, chunk by chunk. Blocks stay and take chunk after chunk, and have three
// groups of four warps: one copies ahead, set of operands by set, into the room that the others have left, and finds
// dv; one finds dq, one dk, dbeta and d log_a.
#include "gradients.cuh"

// dv = diag(beta) dx, and dx . v of each step, by the group that copies.
FUNCTION void of_values(int turn, bfloat16* dv, long long stride, int left, int V) {
    const int parity = turn & 1, piece = thread() % 16;
    const Keys keys = keys_of(turn);
    wait_at(keys.set, keys.parity), wait_at(VALUES, parity), wait_at(OWN_VALUES, parity);
    ROLLED
    for (int r = thread() / 16; r < C; r += 8) {  // 16 threads have a row
        unsigned place = piece / 8 * HALF + swizzled(r, piece % 8), a[4], b[4];
        load_four_words(a, OF_DX + place), load_four_words(b, OF_V + place);
        float rate = load_one(keys.vectors + V_RATE + 4 * r), sum = 0;
        UNROLL
        for (int n = 0; n < 4; ++n) {
            sum += low_half(a[n]) * low_half(b[n]) + high_half(a[n]) * high_half(b[n]);
            a[n] = rounded_pair(low_half(a[n]) * rate, high_half(a[n]) * rate);
        }
        UNROLL
        for (int by = 1; by < 16; by *= 2) sum += shuffle_xor(sum, by);
        if (piece == 0) put_float(V_VALUES + parity * 4 * C + 4 * r, sum);
        if (r < left && piece * 8 < V) put_four_words(dv + r * stride + piece * 8, a);
    }
    if (turn) wait_at(FREE, parity ^ 1);  // or those who wait for READ could miss a turn
    arrive(READ);
    meet();  // nobody reads what the next copies overwrite
}

// Stores the sum over the heads that share keys, and begins the next.
FUNCTION void put_sum(bfloat16* to, unsigned tile, float* sum, const Chunk& chunk, int G, int K, const Lane& me) {
    to += (chunk.step * G + chunk.key_head) * K;
    put_rows(to, tile, (long long)G * K, chunk.left, K, sum, me.warp, me.lane);
    UNROLL
    for (int n = 0; n < 64; ++n) sum[n] = 0;
}

// dq = sum over heads diag(gamma) dO S^T + halved K, with halved = decay * dO y^T; parts of the rest. sum: over
// the heads before.
FUNCTION void of_queries(float* sum, const Chunk& chunk, int turn, bfloat16* dq, int G, int K) {
    const Lane me = my_lane_of_group();
    const int parity = turn & 1;
    const Keys keys = keys_of(turn);
    const unsigned sums = keys.vectors + V_SUMS;
    const unsigned base = first_unit(), by_row = base | BY_ROW, by_column = base | BY_COLUMN;
    float o[32], scores[32], e[64];
    wait_for_copied(VALUES, parity);
    start_square(o, by_row + OF_DO / 16, by_row + OF_Y / 16);
    wait_for_copied(keys.set, keys.parity);
    start_square(scores, by_row + keys.queries / 16, by_row + keys.at / 16);
    const Two to[2] = {load_two(sums + 8 * me.row), load_two(sums + 8 * me.row + 64)};
    float start[2];
    load_rows(start, keys.vectors + V_START, me);
    wait_for_copied(STATES, parity);
    start_states(e, by_row + OF_DO / 16, (base | OF_STATES) + OF_S / 16);
    wait_products<1>();
    claim(o, 32), claim(scores, 32);
    if (turn) wait_at(FREE, parity ^ 1);
    unsigned halved[16];
    float rows[2] = {};
    UNROLL
    for (int n = 0; n < 8; ++n) {
        float w[4], columns[2];
        load_four(w, sums + 8 * (8 * n + 2 * me.pair));
        UNROLL
        for (int odd = 0; odd < 2; ++odd) {
            columns[odd] = 0;
            UNROLL
            for (int side = 0; side < 2; ++side) {
                int i = me.row + 8 * side, j = 8 * n + 2 * me.pair + odd, at = 4 * n + 2 * side + odd;
                o[at] *= decay(to[side], {w[2 * odd], w[2 * odd + 1]}, i >= j);
                if (side == n % 2 && i == j) scores[at] = 0;  // in both sums, and 1e5 times what gates may leave
                rows[side] += o[at] * scores[at], columns[odd] += o[at] * scores[at];
            }
        }
        UNROLL
        for (int side = 0; side < 2; ++side)
            halved[2 * n + side] = rounded_pair(o[4 * n + 2 * side], o[4 * n + 2 * side + 1]);
        put_columns(V_COLUMNS, me, n, columns);
    }
    put_square(OF_HALVED, halved, me.warp, me.lane);
    publish_at(HALVED);
    wait_products<0>();
    claim(e, 64);
    arrive(SETS + VALUES);
    float of_query[2];
    UNROLL
    for (int n = 0; n < 64; ++n) sum[n] += e[n] *= start[n / 2 % 2];
    dot_rows(of_query, e, keys.queries, me.row, me.pair);
    claim(sum, 64);
    start_adding(sum, halved, by_column + keys.at / 16);
    wait_for_copied(DSTATES, parity);
    float carried = 0;  // S . dS'
    TWICE
    for (int at = thread() % 128 * 16; at < STATE; at += 128 * 16) {
        unsigned a[4], b[4];
        load_four_words(a, OF_S + at), load_four_words(b, OF_DS + at);
        UNROLL
        for (int n = 0; n < 4; ++n) carried += low_half(a[n]) * low_half(b[n]) + high_half(a[n]) * high_half(b[n]);
    }
    arrive(SETS + STATES), arrive(SETS + DSTATES);
    UNROLL
    for (int by = 1; by < 32; by *= 2) carried += shuffle_xor(carried, by);
    if (me.lane == 0) put_float(V_CARRIED + 4 * me.warp, carried);
    UNROLL
    for (int side = 0; side < 2; ++side) {
        rows[side] = row_sum(rows[side]);
        if (me.pair == 0) put_float(V_ROWS + 4 * (me.row + 8 * side), rows[side] + of_query[side]);
    }
    arrive(FOUND);
    wait_products<0>();
    claim(sum, 64);
    arrive(SETS + keys.set);
    if (chunk.last) put_sum(dq, OF_DQ, sum, chunk, G, K, me);
}

// dk = sum over heads -diag(beta gamma) dx S^T + diag(gamma_C / gamma) y dS'^T + halved^T Q + (known + known^T) K, with
// known = -diag(beta) tril(decay * dx y^T, -1); dbeta and d log_a. sum: over the heads before.
FUNCTION void of_keys(float* sum, const Chunk& chunk, int turn, bfloat16* dk, float* dbeta, float* dlog_a, int H, int G,
                      int K) {
    const Lane me = my_lane_of_group();
    const int parity = turn & 1;
    const Keys keys = keys_of(turn);
    const unsigned sums = keys.vectors + V_SUMS;
    const unsigned base = first_unit(), by_row = base | BY_ROW, by_column = base | BY_COLUMN;
    float x[32], alike[32], r[64];
    wait_for_copied(VALUES, parity);
    start_square(x, by_row + OF_DX / 16, by_row + OF_Y / 16);
    wait_for_copied(keys.set, keys.parity);
    start_square(alike, by_row + keys.at / 16, by_row + keys.at / 16);
    const Two to[2] = {load_two(sums + 8 * me.row), load_two(sums + 8 * me.row + 64)};
    float rate[2], start[2], end[2];
    load_rows(rate, keys.vectors + V_RATE, me), load_rows(start, keys.vectors + V_START, me);
    load_rows(end, keys.vectors + V_END, me);
    wait_for_copied(STATES, parity);
    start_states(r, by_row + OF_DX / 16, (base | OF_STATES) + OF_S / 16);
    wait_products<1>();
    claim(x, 32), claim(alike, 32);
    unsigned known[16];
    float of_rate[2] = {};
    UNROLL
    for (int n = 0; n < 8; ++n) {
        float w[4], columns[2];
        load_four(w, sums + 8 * (8 * n + 2 * me.pair));
        UNROLL
        for (int odd = 0; odd < 2; ++odd) {
            columns[odd] = 0;
            UNROLL
            for (int side = 0; side < 2; ++side) {
                int i = me.row + 8 * side, j = 8 * n + 2 * me.pair + odd, at = 4 * n + 2 * side + odd;
                float one = -x[at] * decay(to[side], {w[2 * odd], w[2 * odd + 1]}, i > j);
                of_rate[side] += one * alike[at];
                x[at] = one *= rate[side];
                columns[odd] += one * alike[at];
            }
        }
        UNROLL
        for (int side = 0; side < 2; ++side)
            known[2 * n + side] = rounded_pair(x[4 * n + 2 * side], x[4 * n + 2 * side + 1]);
        put_columns(V_COLUMNS + 16 * C, me, n, columns);
    }
    put_square(OF_KNOWN, known, me.warp, me.lane);
    publish();  // to products, and to the other warps
    const float less[2] = {start[0] * rate[0], start[1] * rate[1]};
    float along[2], of_last[2];
    wait_products<0>();
    claim(r, 64);
    dot_rows(along, r, keys.at, me.row, me.pair);
    UNROLL
    for (int n = 0; n < 64; ++n) sum[n] -= r[n] * less[n / 2 % 2];
    claim(r, 64);
    wait_for_copied(DSTATES, parity);
    start_states(r, by_row + OF_Y / 16, (base | OF_STATES) + OF_DS / 16);
    wait_products<0>();
    claim(r, 64);
    arrive(SETS + VALUES), arrive(SETS + STATES), arrive(SETS + DSTATES);
    dot_rows(of_last, r, keys.at, me.row, me.pair);
    UNROLL
    for (int n = 0; n < 64; ++n) sum[n] += r[n] * end[n / 2 % 2];
    wait_at(HALVED, parity);
    claim(sum, 64);
    products_begin();
    UNROLL
    for (int i = 0; i < 4; ++i)
        product_turned(sum, by_column + OF_HALVED / 16 + down_rows(i), by_column + keys.queries / 16 + down_rows(i));
    UNROLL
    for (int i = 0; i < 4; ++i)
        product_turned(sum, by_column + OF_KNOWN / 16 + down_rows(i), by_column + keys.at / 16 + down_rows(i));
    UNROLL
    for (int i = 0; i < 4; ++i) product_128(sum, known + 4 * i, by_column + keys.at / 16 + down_rows(i));
    products_close();
    UNROLL
    for (int side = 0; side < 2; ++side) {
        const float known = row_sum(of_rate[side]) - along[side] * start[side];
        const int i = 4 * (me.row + 8 * side);
        if (me.pair == 0) {
            put_float(V_ROWS + 4 * C + i, known * rate[side]);
            put_float(V_KNOWN + i, known);
            put_float(V_LAST + i, of_last[side] * end[side]);
        }
    }
    publish();
    wait_at(FOUND, parity), wait_at(READ, parity);
    if (me.warp == 0) {  // two steps of a lane
        float add[2], last[2], resets[2], whole = load_one(keys.vectors + V_START + 4 * 63), passed = 0;
        UNROLL
        for (int i = 0; i < 2; ++i) {
            int t = 4 * (2 * me.lane + i);
            add[i] = load_one(V_ROWS + t) + load_one(V_ROWS + 4 * C + t);
            ROLLED
            for (int each = 0; each < 8; ++each) add[i] -= load_one(V_COLUMNS + 256 * each + t);
            last[i] = load_one(V_LAST + t);
            resets[i] = load_two(sums + 2 * t).b;
        }
        UNROLL
        for (int i = 0; i < 4; ++i) passed += load_one(V_CARRIED + 4 * i);
        passed *= whole;
        float after = add[0] + add[1], before = last[0] + last[1];
        UNROLL
        for (int by = 1; by < 32; by *= 2) {
            float a = shuffle_down(after, by), b = shuffle_up(before, by);
            if (me.lane + by < 32) after += a;
            if (me.lane >= by) before += b;
        }
        before = shuffle_up(before, 1);  // not less its own, which is none of it and may be 1e5 times as much
        if (me.lane == 0) before = 0;
        float earlier = shuffle_up(resets[1], 1);
        const bool reset[2] = {resets[0] != (me.lane ? earlier : 0.0f), resets[1] != resets[0]};
        UNROLL
        for (int i = 0; i < 2; ++i) {
            int t = 2 * me.lane + i;
            if (t < chunk.left) {
                long long to = (chunk.step + t) * H + chunk.head;
                dbeta[to] = load_one(V_VALUES + parity * 4 * C + 4 * t) + load_one(V_KNOWN + 4 * t);
                if (dlog_a)
                    dlog_a[to] =
                        reset[i] ? 0.0f : (i ? after - add[0] : after) + (i ? before + last[0] : before) + passed;
            }
        }
    }
    wait_products<0>();
    claim(sum, 64);
    arrive(SETS + keys.set);
    publish();  // nobody reads what the groups found any more
    if (chunk.last) put_sum(dk, OF_DK, sum, chunk, G, K, me);
    arrive(FREE);
}

ENTRY(384, 1)
cuda_delta_gradients(const bfloat16* q, const bfloat16* k, const bfloat16* v, const float* vectors,
                     const long long* bounds, const bfloat16* d_o, const bfloat16* dx, const bfloat16* y,
                     const bfloat16* states, const bfloat16* dstates, bfloat16* dq, bfloat16* dk, bfloat16* dv,
                     float* dbeta, float* dlog_a, int T, int H, int G, int K, int V, int NT, int sequences, int count,
                     int SHARE) {
    if (thread() == 0)
        open_barriers(0, SETS, 128), open_barriers(SETS, HALVED, 256), open_barriers(HALVED, BARRIERS, 128);
    barrier();
    Chunks all = {T, H, G, NT, bounds, sequences, count, SHARE, block(), 0};
    Chunk chunk;
    if (thread() < 128) {
        take_registers<PRODUCER, THIRDS / 3>();
        const int strips = (V + 63) / 64;
        const long long stride = (long long)H * V, key_stride = (long long)G * K;
        bfloat16* dv_before = nullptr;
        if (strips == 1) clear_tiles();
        for (int turn = 0, left_before = 0;; ++turn) {
            const bool more = next_chunk(all, chunk);
            const Keys keys = keys_of(turn);
            if (more) {
                const long long own = (chunk.step * G + chunk.key_head) * K;
                if (turn > 1) wait_at(SETS + keys.set, keys.parity ^ 1);
                if (thread() == 0) {
                    expect_bytes(keys.set, 4 * VECTORS);
                    copy_bytes(keys.vectors, vectors + (long long)chunk.place * VECTORS, 4 * VECTORS, keys.set);
                }
                copy_rows(keys.at, k + own, key_stride, chunk.left, K);
                copy_rows(keys.queries, q + own, key_stride, chunk.left, K);
                arrive_when_copied(keys.set);
            }
            if (turn) of_values(turn - 1, dv_before, stride, left_before, V);  // while both groups are at it
            if (!more) break;
            const long long own = (chunk.step * H + chunk.head) * V, tile = (long long)chunk.at * strips;
            dv_before = dv + own, left_before = chunk.left;
            copy_rows(OF_V, v + own, stride, chunk.left, V);
            arrive_when_copied(OWN_VALUES);
            wait_for_room(VALUES, turn);
            if (thread() == 0) {
                expect_bytes(VALUES, 2 * strips * HALF);
                copy_bytes(OF_Y, y + tile * (HALF / 2), strips * HALF, VALUES);
                copy_bytes(OF_DX, dx + tile * (HALF / 2), strips * HALF, VALUES);
            }
            copy_rows(OF_DO, d_o + own, stride, chunk.left, V);
            arrive_when_copied(VALUES);
            wait_for_room(STATES, turn);
            copy_states(OF_S, states + tile * (STATE / 4), strips, STATES);
            wait_for_room(DSTATES, turn);
            copy_states(OF_DS, dstates + tile * (STATE / 4), strips, DSTATES);
        }
        wait_for_copies();
    } else if (thread() < 256) {
        take_registers<CONSUMER, THIRDS / 3>();
        float sum[64] = {};
        for (int turn = 0; next_chunk(all, chunk); ++turn) of_queries(sum, chunk, turn, dq, G, K);
    } else {
        take_registers<CONSUMER, THIRDS / 3>();
        float sum[64] = {};
        for (int turn = 0; next_chunk(all, chunk); ++turn) of_keys(sum, chunk, turn, dk, dbeta, dlog_a, H, G, K);
    }
}
