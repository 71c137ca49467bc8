// The walk forwards: for the output, for what the backward pass needs of it, or for the ends of segments.
#include "walks.cuh"

constexpr int OF_SEEN = OF_HELD + 2 * HELD_BYTES;  // y, steps x values
enum Mode { OUTPUT, KEEP, ENDS };
enum { HELD = OTHERS, HELD_FREE = HELD + 2, SEEN = HELD_FREE + 2, SEEN_FREE = SEEN + 2, BARRIERS = SEEN_FREE + 2 };

// Its state at the end goes to `to`.
template <Mode MODE>
FUNCTION void chain(const Strip& strip, float* state, float* to, long long which, int K, int V) {
    const int pair = thread() % 4, warp = thread() / 32 % 4;
    float r[32];
    unsigned held[32], x[16], seen[16];
    hold(held, state);
    ROLLED
    for (int chunk = 0; chunk < strip.sequence.chunks; ++chunk) {
        const int stage = chunk % STAGES, turn = chunk % 2;
        const unsigned from = stage * STAGE, at = first_unit() + from / 16, of = OF_VECTORS + stage * VECTORS_STAGE;
        wait_for_copied(FULL + stage, parity_of(chunk, STAGES));
        start_with_keys(r, held, at);
        if (MODE != ENDS) {
            wait_until_free(HELD_FREE + turn, chunk, 2);
            put_held(OF_HELD + turn * HELD_BYTES, held, warp);
            arrive(HELD + turn);
        }
        unsigned vt[16];
        load_values(vt, from + OF_X, warp);
        wait_products<0>();
        claim(r, 32);
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two start = load_two(of + V_START + (8 * j + 2 * pair) * 4),
                rate = load_two(of + V_RATE + (8 * j + 2 * pair) * 4);
            UNROLL
            for (int side = 0; side < 2; ++side) {
                unsigned value = vt[2 * j + side];
                float a = rate.a * (low_half(value) - r[4 * j + 2 * side] * start.a);
                float b = rate.b * (high_half(value) - r[4 * j + 2 * side + 1] * start.b);
                x[2 * j + side] = rounded_pair(a, b);
            }
        }
        products_begin();
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_64<true>(r, x + 4 * i, (at | PIECES_BY_ROW) + OF_HIGH / 16 + along_pieces(i), i > 0);
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_64<true>(r, x + 4 * i, (at | PIECES_BY_ROW) + OF_LOW / 16 + along_pieces(i), true);
        products_close();
        const float whole = load_one(of + V_START + 63 * 4);
        UNROLL
        for (int i = 0; i < 64; ++i) state[i] *= whole;
        wait_products<0>();
        claim(r, 32);
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two end = load_two(of + V_END + (8 * j + 2 * pair) * 4);
            UNROLL
            for (int side = 0; side < 2; ++side) {
                float a = r[4 * j + 2 * side], b = r[4 * j + 2 * side + 1];
                seen[2 * j + side] = rounded_pair(a, b);
                x[2 * j + side] = rounded_pair(a * end.a, b * end.b);
            }
        }
        claim(state, 64);
        start_adding(state, x, (at | BY_COLUMN) + OF_K / 16);
        if (MODE != ENDS) {
            wait_until_free(SEEN_FREE + turn, chunk, 2);
            put_values(OF_SEEN + turn * HALF, seen, warp);
            arrive(SEEN + turn);
        }
        wait_products<0>();
        claim(state, 64);
        arrive(EMPTY + stage);
        hold(held, state);
    }
    if (to) store_state(to, state, which, strip.first + 16 * warp, K, V);
}

// o = diag(gamma) Q S + (scores * decay) y, where v was.
FUNCTION void outputs(const Strip& strip) {
    const int lane = thread() % 32, warp = thread() / 32 % 4, row = 16 * warp + lane / 4;
    ROLLED
    for (int chunk = 0; chunk < strip.sequence.chunks; ++chunk) {
        const int stage = chunk % STAGES, turn = chunk % 2;
        const unsigned from = stage * STAGE, at = first_unit() + from / 16, of = OF_VECTORS + stage * VECTORS_STAGE;
        float scores[32], out[32];
        unsigned left[16];
        wait_for_copied(FULL + stage, parity_of(chunk, STAGES));
        start_square(scores, (at | BY_ROW) + OF_Q / 16, (at | BY_ROW) + OF_K / 16);
        wait_for_copied(HELD + turn, parity_of(chunk, 2));
        start_square(out, (at | BY_ROW) + OF_Q / 16, (first_unit() + (OF_HELD + turn * HELD_BYTES) / 16 | BY_ROW));
        wait_products<1>();
        claim(scores, 32);
        decayed(left, scores, of + V_SUMS, warp);
        const float start[2] = {load_one(of + V_START + 4 * row), load_one(of + V_START + 4 * row + 32)};
        wait_products<0>();
        claim(out, 32);
        arrive(HELD_FREE + turn);
        UNROLL
        for (int i = 0; i < 32; ++i) out[i] *= start[i / 2 % 2];
        wait_for_copied(SEEN + turn, parity_of(chunk, 2));
        claim(out, 32);
        products_begin();
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_64_turned(out, left + 4 * i,
                              (first_unit() + (OF_SEEN + turn * HALF) / 16 | BY_COLUMN) + down_rows(i), true);
        products_close();
        wait_products<0>();
        claim(out, 32);
        arrive(SEEN_FREE + turn);
        UNROLL
        for (int n = 0; n < 8; n += 2) {
            unsigned r[4];
            UNROLL
            for (int i = 0; i < 4; ++i) r[i] = rounded_pair(out[4 * n + 2 * i], out[4 * n + 2 * i + 1]);
            store_matrices(from + OF_X + swizzled(16 * warp + (lane & 7) + (lane & 8), n + lane / 16), r);
        }
        arrive(EMPTY + stage);
    }
}

// By a thread that copies nothing else, since its fence would wait for that.
FUNCTION void keep(const Strip& strip, bfloat16* states, bfloat16* y, int strips) {
    for (int chunk = 0; chunk < strip.sequence.chunks; ++chunk) {
        const int turn = chunk % 2;
        const long long tile = (strip.sequence.place + chunk) * strips + strip.first / STRIP;
        wait_at(HELD + turn, parity_of(chunk, 2));
        wait_until_stored();
        if (chunk) arrive(HELD_FREE + (turn ^ 1)), arrive(SEEN_FREE + (turn ^ 1));
        store_bytes(states + tile * (HELD_BYTES / 2), OF_HELD + turn * HELD_BYTES, HELD_BYTES);
        wait_at(SEEN + turn, parity_of(chunk, 2));
        store_bytes(y + tile * (HALF / 2), OF_SEEN + turn * HALF, HALF);
    }
    wait_until_stored();
}

// Kept are states before the chunks and, as o, y: the tiles of each chunk and strip. final_state: with segments that of
// the last, or all ends; maps: of segments.
template <Mode MODE>
FUNCTION void walk(const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* high, const bfloat16* low,
                   const float* vectors, const float* initial, const long long* bounds, bfloat16* o, bfloat16* states,
                   float* final_state, float* maps, int T, int H, int G, int K, int V, int NT, int NS, int PER) {
    const int of_values = (V + STRIP - 1) / STRIP, of_maps = MODE == ENDS ? (K + STRIP - 1) / STRIP : 0;
    Strip strip = strip_of(block(), bounds, T, H, G, of_values + of_maps, NT, NS, PER, NS - (MODE == ENDS), 0);
    const bool map = strip.first >= of_values * STRIP;
    if (map) strip.first -= of_values * STRIP;
    const int chunks = strip.sequence.chunks, values = map ? 0 : V - strip.first;
    if (thread() == 0) {
        const int freed = MODE == KEEP ? 1 : 128;
        open_barriers(FULL, EMPTY, 128), open_barriers(EMPTY, HELD, MODE == OUTPUT ? 256 : 128);
        open_barriers(HELD, HELD_FREE, 128), open_barriers(HELD_FREE, SEEN, freed);
        open_barriers(SEEN, SEEN_FREE, 128), open_barriers(SEEN_FREE, BARRIERS, freed);
    }
    barrier();
    if (thread() < 128) {
        fewer_registers<PRODUCER>();
        clear_squares();
        const long long stride = (long long)H * V;
        bfloat16* to = o + strip.row * V + strip.first;
        ROLLED
        for (int walked = 0; walked < chunks + STAGES; ++walked) {
            const int done = walked - STAGES;
            if (done >= 0) {
                wait_at(EMPTY + done % STAGES, parity_of(done, STAGES));
                if (MODE == OUTPUT)
                    store_steps(to + done * C * stride, done % STAGES * STAGE + OF_X, strip.sequence.steps - done * C,
                                stride, values);
            }
            if (walked < chunks)
                copy_in<MODE == OUTPUT>(strip, walked, walked, q, k, v, high, low, vectors, H, G, K, V, values);
        }
        wait_for_copies();
    } else if (thread() < 256) {
        more_registers<CHAIN>();
        float state[64];
        const int first = strip.first + thread() / 32 % 4 * 16, width = map ? K : V;
        load_state(state, MODE == ENDS ? nullptr : initial, strip.state, first, K, V);
        if (map) for_state(first, K, K, [&](int i, int key, int value) { state[i] = key == value; });
        float* to = map ? maps : MODE == ENDS || strip.segment == NS - 1 ? final_state : nullptr;
        chain<MODE>(strip, state, to, MODE == ENDS ? strip.state : strip.bh, K, width);
    } else if (MODE == OUTPUT) {
        more_registers<BESIDE>();
        outputs(strip);
    } else if (MODE == KEEP && thread() == 256) {
        keep(strip, states, o, of_values);
    }
}

#define WALK(name, MODE)                                                                                              \
    ENTRY(384, 1)                                                                                                     \
    name(const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* high, const bfloat16* low,          \
         const float* vectors, const float* initial, const long long* bounds, bfloat16* o, bfloat16* states,          \
         float* final_state, float* maps, int T, int H, int G, int K, int V, int NT, int NS, int PER, int) {          \
        walk<MODE>(q, k, v, high, low, vectors, initial, bounds, o, states, final_state, maps, T, H, G, K, V, NT, NS, \
                   PER);                                                                                              \
    }
WALK(cuda_delta_walk, OUTPUT)
WALK(cuda_delta_walk_keep, KEEP)
WALK(cuda_delta_walk_ends, ENDS)
