// The walk backwards, with the gradient of the state: for what gradients need of it, or for the ends of segments. The
// map of the last segment is found here, from I and turned, since the walk forwards has no use for it.
#include "walks.cuh"

constexpr int OF_DX = OF_HELD + HELD_BYTES, OF_SCORES = OF_DX + HALF, OF_LENT = OF_SCORES + HALF;
enum { HELD = OTHERS, HELD_FREE, LENT, LENT_FREE, DX, DX_FREE, BARRIERS };

// state: the gradient of the state. ENDS: nothing else is found.
template <bool ENDS>
FUNCTION void chain(const Strip& strip, float* state) {
    const int pair = thread() % 4, warp = thread() / 32 % 4;
    float r[32];
    unsigned held[32], x[16], seen[16];
    hold(held, state);
    ROLLED
    for (int walked = 0; walked < strip.sequence.chunks; ++walked) {
        const int stage = walked % STAGES;
        const unsigned from = stage * STAGE, at = first_unit() + from / 16, of = OF_VECTORS + stage * VECTORS_STAGE;
        wait_for_copied(FULL + stage, parity_of(walked, STAGES));
        start_with_keys(r, held, at);
        unsigned turned[16];  // do
        load_values(turned, from + OF_X, warp);
        const float whole = load_one(of + V_START + 63 * 4);
        UNROLL
        for (int i = 0; i < 64; ++i) state[i] *= whole;
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two start = load_two(of + V_START + (8 * j + 2 * pair) * 4);
            UNROLL
            for (int side = 0; side < 2; ++side) {
                unsigned both = turned[2 * j + side];
                seen[2 * j + side] = rounded_pair(low_half(both) * start.a, high_half(both) * start.b);
            }
        }
        claim(state, 64);
        start_adding(state, seen, (at | BY_COLUMN) + OF_Q / 16);
        if (!ENDS) {
            wait_until_free(HELD_FREE, walked, 1);
            put_held(OF_HELD, held, warp);
            arrive(HELD);
        }
        wait_at(LENT, parity_of(walked, 1));
        wait_products<1>();
        claim(r, 32);
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two end = load_two(of + V_END + (8 * j + 2 * pair) * 4);
            float lent[4];
            load_four(lent, OF_LENT + 2048 * j + thread() % 128 * 16);
            UNROLL
            for (int side = 0; side < 2; ++side)
                x[2 * j + side] = rounded_pair(r[4 * j + 2 * side] * end.a + lent[2 * side],
                                               r[4 * j + 2 * side + 1] * end.b + lent[2 * side + 1]);
        }
        arrive(LENT_FREE);
        products_begin();
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_64_turned<true>(r, x + 4 * i, (at | PIECES_BY_COLUMN) + OF_HIGH / 16 + down_pieces(i), i > 0);
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_64_turned<true>(r, x + 4 * i, (at | PIECES_BY_COLUMN) + OF_LOW / 16 + down_pieces(i), true);
        products_close();
        wait_products<0>();
        claim(r, 32);
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two start = load_two(of + V_START + (8 * j + 2 * pair) * 4),
                rate = load_two(of + V_RATE + (8 * j + 2 * pair) * 4);
            float a = -start.a * rate.a, b = -start.b * rate.b;
            UNROLL
            for (int side = 0; side < 2; ++side) {
                seen[2 * j + side] = rounded_pair(r[4 * j + 2 * side], r[4 * j + 2 * side + 1]);
                x[2 * j + side] = rounded_pair(r[4 * j + 2 * side] * a, r[4 * j + 2 * side + 1] * b);
            }
        }
        claim(state, 64);
        start_adding(state, x, (at | BY_COLUMN) + OF_K / 16);
        if (!ENDS) {
            wait_until_free(DX_FREE, walked, 1);
            put_values(OF_DX, seen, warp);
            arrive(DX);
        }
        wait_products<0>();
        claim(state, 64);
        arrive(EMPTY + stage);
        hold(held, state);
    }
}

// Lends the chain do (scores * decay) of a chunk, values x steps.
FUNCTION void lend(int walked) {
    const int lane = thread() % 32, warp = thread() / 32 % 4, stage = walked % STAGES;
    const unsigned at = first_unit() + stage * STAGE / 16;
    float r[32];
    unsigned rounded[16];
    wait_for_copied(FULL + stage, parity_of(walked, STAGES));
    start_square(r, (at | BY_ROW) + OF_Q / 16, (at | BY_ROW) + OF_K / 16);
    wait_products<0>();
    claim(r, 32);
    decayed(rounded, r, OF_VECTORS + stage * VECTORS_STAGE + V_SUMS, warp);
    UNROLL
    for (int i = 0; i < 4; ++i)
        store_matrices(OF_SCORES + swizzled(16 * warp + (lane & 7) + (lane & 8), 2 * i + lane / 16), rounded + 4 * i);
    publish();
    products_begin();
    UNROLL
    for (int i = 0; i < 4; ++i)
        square_64_turned(r, (at | BY_COLUMN) + OF_X / 16 + down_rows(i),
                         (first_unit() + OF_SCORES / 16 | BY_COLUMN) + down_rows(i), i > 0);
    products_close();
    wait_products<0>();
    claim(r, 32);
    wait_until_free(LENT_FREE, walked, 1);
    UNROLL
    for (int j = 0; j < 8; ++j) put_four(OF_LENT + 2048 * j + thread() % 128 * 16, r + 4 * j);
    arrive(LENT), arrive(EMPTY + stage);
    publish();  // nobody reads the scores any more
}

template <bool ENDS>
FUNCTION void walk_back(const bfloat16* q, const bfloat16* k, const bfloat16* high, const bfloat16* low,
                        const float* vectors, const bfloat16* d_o, const float* dfinal, const long long* bounds,
                        bfloat16* dx, bfloat16* dstates, float* dinitial, float* maps, int T, int H, int G, int K,
                        int V, int NT, int NS, int PER, int heads) {
    const int of_values = (V + STRIP - 1) / STRIP, others = heads * (NS - 1) * of_values;
    const bool map = ENDS && block() >= others;
    const Strip strip =
        map ? strip_of(block() - others, bounds, T, H, G, (K + STRIP - 1) / STRIP, NT, NS, PER, 1, NS - 1)
            : strip_of(block(), bounds, T, H, G, of_values, NT, NS, PER, NS - ENDS, ENDS);
    const int chunks = strip.sequence.chunks, values = map ? 0 : V - strip.first;
    if (thread() == 0) {
        open_barriers(FULL, EMPTY, 128), open_barriers(EMPTY, HELD, 256);
        open_barriers(HELD, HELD_FREE, 128), open_barriers(HELD_FREE, LENT, 1);
        open_barriers(LENT, DX_FREE, 128), open_barriers(DX_FREE, BARRIERS, 1);
    }
    barrier();
    if (thread() < 128) {
        fewer_registers<PRODUCER>();
        clear_squares();
        ROLLED
        for (int walked = 0; walked < chunks; ++walked) {
            wait_until_free(EMPTY + walked % STAGES, walked, STAGES);
            copy_in<true>(strip, walked, chunks - 1 - walked, q, k, d_o, high, low, vectors, H, G, K, V, values);
        }
        wait_for_copies();
    } else if (thread() < 256) {
        more_registers<CHAIN>();
        float state[64];
        const int first = strip.first + thread() / 32 % 4 * 16;
        load_state(state, ENDS ? nullptr : dfinal, strip.state, first, K, V);
        if (map) for_state(first, K, K, [&](int i, int key, int value) { state[i] = key == value; });
        chain<ENDS>(strip, state);
        if (map)
            for_state(first, K, K,
                      [&](int i, int key, int value) { maps[(strip.state * K + value) * K + key] = state[i]; });
        else if (dinitial && (ENDS || strip.segment == 0))
            store_state(dinitial, state, ENDS ? strip.state : strip.bh, first, K, V);
    } else {
        more_registers<BESIDE>();
        ROLLED
        for (int walked = 0; walked <= chunks; ++walked) {
            if (walked < chunks) lend(walked);
            if (!ENDS && thread() == 256 && walked) {
                const int done = walked - 1;
                const long long tile = (strip.sequence.place + chunks - walked) * of_values + strip.first / STRIP;
                wait_at(HELD, parity_of(done, 1));
                store_bytes(dstates + tile * (HELD_BYTES / 2), OF_HELD, HELD_BYTES);
                wait_until_stored();
                arrive(HELD_FREE);
                wait_at(DX, parity_of(done, 1));
                store_bytes(dx + tile * (HALF / 2), OF_DX, HALF);
                wait_until_stored();
                arrive(DX_FREE);
            }
        }
    }
}

#define WALK(name, ENDS)                                                                                               \
    ENTRY(384, 1)                                                                                                      \
    name(const bfloat16* q, const bfloat16* k, const bfloat16* high, const bfloat16* low, const float* vectors,        \
         const bfloat16* d_o, const float* dfinal, const long long* bounds, bfloat16* dx, bfloat16* dstates,           \
         float* dinitial, float* maps, int T, int H, int G, int K, int V, int NT, int NS, int PER, int heads) {        \
        walk_back<ENDS>(q, k, high, low, vectors, d_o, dfinal, bounds, dx, dstates, dinitial, maps, T, H, G, K, V, NT, \
                        NS, PER, heads);                                                                               \
    }
WALK(cuda_delta_walk_back, false)
WALK(cuda_delta_walk_back_ends, true)
