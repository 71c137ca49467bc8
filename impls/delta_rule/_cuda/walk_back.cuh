// The walk backwards, with the gradient of the state: for what gradients need of it, or for the ends of segments. The
// map of the last segment is found here, from I and turned, since the walk forwards has no use for it.
#ifndef SSMPERF_DELTA_WALK_BACK
#define SSMPERF_DELTA_WALK_BACK
#include "walks.cuh"

template <class Layout>
constexpr int OF_DX = Layout::HELD + Layout::CHAINS * HELD_BYTES;
template <class Layout>
constexpr int OF_SCORES = OF_DX<Layout> + Layout::CHAINS * HALF;
template <class Layout>
constexpr int OF_LENT = OF_SCORES<Layout> + HALF;
// Of each chain.
enum { HELD = OTHERS, HELD_FREE = HELD + 2, LENT = HELD_FREE + 2, LENT_FREE = LENT + 2 };
enum { DX = LENT_FREE + 2, DX_FREE = DX + 2, BARRIERS = DX_FREE + 2 };

// own: the number of the chain among those of the block. state: the gradient of the state. ENDS: nothing else is found.
template <bool ENDS, class Layout>
FUNCTION void chain(const Strip& strip, int own, float* state) {
    const int pair = thread() % 4, warp = thread() / 32 % 4, lent_at = OF_LENT<Layout> + own * 2 * HALF;
    float r[32];
    unsigned held[32], x[16], seen[16];
    hold(held, state);
    ROLLED
    for (int walked = 0; walked < strip.sequence.chunks; ++walked) {
        const int stage = walked % Layout::STAGES;
        const unsigned from = stage * Layout::SIZE, at = first_unit() + from / 16;
        const unsigned of = Layout::OF_VECTORS + stage * VECTORS_STAGE;
        wait_for_copied(FULL + stage, parity_of(walked, Layout::STAGES));
        start_with_keys(r, held, at);
        unsigned turned[16];  // do
        load_values(turned, from + OF_X + own * HALF, warp);
        const float whole = load_one(of + V_START + 63 * 4);
        UNROLL
        for (int i = 0; i < 64; ++i) state[i] *= whole;
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two start = load_steps(of + V_START, j, pair);
            UNROLL
            for (int side = 0; side < 2; ++side) {
                unsigned both = turned[2 * j + side];
                seen[2 * j + side] = rounded_pair(low_half(both) * start.a, high_half(both) * start.b);
            }
        }
        claim(state, 64);
        start_adding(state, seen, (at | BY_COLUMN) + OF_Q / 16);
        if (!ENDS) {
            wait_until_free(HELD_FREE + own, walked, 1);
            put_held(Layout::HELD + own * HELD_BYTES, held, warp);
            arrive(HELD + own);
        }
        wait_at(LENT + own, parity_of(walked, 1));
        wait_products<1>();
        claim(r, 32);
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two end = load_steps(of + V_END, j, pair);
            float lent[4];
            load_four(lent, lent_at + 2048 * j + thread() % 128 * 16);
            UNROLL
            for (int side = 0; side < 2; ++side)
                x[2 * j + side] = rounded_pair(r[4 * j + 2 * side] * end.a + lent[2 * side],
                                               r[4 * j + 2 * side + 1] * end.b + lent[2 * side + 1]);
        }
        arrive(LENT_FREE + own);
        products_begin();
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_64_turned<true>(r, x + 4 * i, (at | PIECES_BY_COLUMN) + Layout::HIGH / 16 + down_pieces(i), i > 0);
        UNROLL
        for (int i = 0; i < 4; ++i)
            product_64_turned<true>(r, x + 4 * i, (at | PIECES_BY_COLUMN) + Layout::LOW / 16 + down_pieces(i), true);
        products_close();
        wait_products<0>();
        claim(r, 32);
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two start = load_steps(of + V_START, j, pair), rate = load_steps(of + V_RATE, j, pair);
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
            wait_until_free(DX_FREE + own, walked, 1);
            put_values(OF_DX<Layout> + own * HALF, seen, warp);
            arrive(DX + own);
        }
        wait_products<0>();
        claim(state, 64);
        arrive(EMPTY + stage);
        hold(held, state);
    }
}

// Lends each chain do (scores * decay) of a chunk, values x steps.
template <class Layout>
FUNCTION void lend(int walked) {
    const int lane = thread() % 32, warp = thread() / 32 % 4, stage = walked % Layout::STAGES;
    const unsigned at = first_unit() + stage * Layout::SIZE / 16;
    float r[32];
    unsigned rounded[16];
    wait_for_copied(FULL + stage, parity_of(walked, Layout::STAGES));
    start_square(r, (at | BY_ROW) + OF_Q / 16, (at | BY_ROW) + OF_K / 16);
    wait_products<0>();
    claim(r, 32);
    decayed(rounded, r, Layout::OF_VECTORS + stage * VECTORS_STAGE + V_SUMS, warp);
    UNROLL
    for (int i = 0; i < 4; ++i)
        store_matrices(OF_SCORES<Layout> + swizzled(16 * warp + (lane & 7) + (lane & 8), 2 * i + lane / 16),
                       rounded + 4 * i);
    publish();
    UNROLL
    for (int own = 0; own < Layout::CHAINS; ++own) {
        products_begin();
        UNROLL
        for (int i = 0; i < 4; ++i)
            square_64_turned(r, (at | BY_COLUMN) + (OF_X + own * HALF) / 16 + down_rows(i),
                             (first_unit() + OF_SCORES<Layout> / 16 | BY_COLUMN) + down_rows(i), i > 0);
        products_close();
        wait_products<0>();
        claim(r, 32);
        wait_until_free(LENT_FREE + own, walked, 1);
        UNROLL
        for (int j = 0; j < 8; ++j)
            put_four(OF_LENT<Layout> + own * 2 * HALF + 2048 * j + thread() % 128 * 16, r + 4 * j);
        arrive(LENT + own);
    }
    arrive(EMPTY + stage);
    publish();  // nobody reads the scores any more
}

// A thread of the group that lends stores what the chains have left of a chunk. tile: of the first chain.
template <class Layout>
FUNCTION void keep(bfloat16* dstates, bfloat16* dx, long long tile, int done) {
    UNROLL
    for (int own = 0; own < Layout::CHAINS; ++own) {
        wait_at(HELD + own, parity_of(done, 1));
        store_bytes(dstates + (tile + own) * (HELD_BYTES / 2), Layout::HELD + own * HELD_BYTES, HELD_BYTES);
    }
    wait_until_stored();
    UNROLL
    for (int own = 0; own < Layout::CHAINS; ++own) arrive(HELD_FREE + own);
    UNROLL
    for (int own = 0; own < Layout::CHAINS; ++own) {
        wait_at(DX + own, parity_of(done, 1));
        store_bytes(dx + (tile + own) * (HALF / 2), OF_DX<Layout> + own * HALF, HALF);
    }
    wait_until_stored();
    UNROLL
    for (int own = 0; own < Layout::CHAINS; ++own) arrive(DX_FREE + own);
}

template <bool ENDS, class Layout>
FUNCTION void walk_back(const bfloat16* q, const bfloat16* k, const bfloat16* high, const bfloat16* low,
                        const float* vectors, const bfloat16* d_o, const float* dfinal, const long long* bounds,
                        bfloat16* dx, bfloat16* dstates, float* dinitial, float* maps, int T, int H, int G, int K,
                        int V, int NT, int NS, int PER, int SHARE, int segments, int skipped) {
    constexpr int of_block = Layout::CHAINS * STRIP;
    const int of_values = (V + of_block - 1) / of_block, of_maps = (K + of_block - 1) / of_block;
    const int others = blocks() / (segments * of_values + of_maps) * segments * of_values;
    const bool map = ENDS && block() >= others;
    const Strip strip =
        map ? strip_of(block() - others, of_block, bounds, T, H, G, of_maps, NT, NS, PER, SHARE, 1, NS - 1)
            : strip_of(block(), of_block, bounds, T, H, G, of_values, NT, NS, PER, SHARE, segments, skipped);
    const int chunks = strip.sequence.chunks, values = map ? 0 : V - strip.first, group = thread() / 128;
    if (thread() == 0) {
        open_barriers(FULL, EMPTY, 128), open_barriers(EMPTY, HELD, 128 * Layout::CHAINS + 128);
        open_barriers(HELD, HELD_FREE, 128), open_barriers(HELD_FREE, LENT, 1);
        open_barriers(LENT, DX_FREE, 128), open_barriers(DX_FREE, BARRIERS, 1);
    }
    barrier();
    if (group == 0) {
        take_registers<Layout::PRODUCER, Layout::BEGUN>();
        clear_squares<Layout>();
        ROLLED
        for (int walked = 0; walked < chunks; ++walked) {
            wait_until_free(EMPTY + walked % Layout::STAGES, walked, Layout::STAGES);
            copy_in<true, Layout>(strip, walked, chunks - 1 - walked, q, k, d_o, high, low, vectors, H, G, K, V,
                                  values);
        }
        wait_for_copies();
    } else if (group <= Layout::CHAINS) {
        take_registers<Layout::CHAIN, Layout::BEGUN>();
        float state[64];
        const int first = strip.first + (thread() / 32 - 4) * 16;
        load_state(state, ENDS ? nullptr : dfinal, strip.state, first, K, V);
        if (map) for_state(first, K, K, [&](int i, int key, int value) { state[i] = key == value; });
        chain<ENDS, Layout>(strip, group - 1, state);
        if (map)
            for_state(first, K, K,
                      [&](int i, int key, int value) { maps[(strip.state * K + value) * K + key] = state[i]; });
        else if (dinitial && (ENDS || strip.segment == 0))
            store_state(dinitial, state, ENDS ? strip.state : strip.bh, first, K, V);
    } else {
        take_registers<Layout::BESIDE, Layout::BEGUN>();
        const int strips = (V + STRIP - 1) / STRIP;
        ROLLED
        for (int walked = 0; walked <= chunks; ++walked) {
            if (walked < chunks) lend<Layout>(walked);
            if (!ENDS && thread() % 128 == 0 && walked)
                keep<Layout>(dstates, dx, (strip.kept + chunks - walked) * strips + strip.first / STRIP, walked - 1);
        }
    }
}

#define WALK(name, THREADS, ENDS, Layout)                                                                      \
    ENTRY(THREADS, 1)                                                                                          \
    name(const bfloat16* q, const bfloat16* k, const bfloat16* high, const bfloat16* low,                      \
         const float* vectors, const bfloat16* d_o, const float* dfinal, const long long* bounds,              \
         bfloat16* dx, bfloat16* dstates, float* dinitial, float* maps, int T, int H, int G, int K, int V,     \
         int NT, int NS, int PER, int SHARE, int segments, int skipped) {                                      \
        walk_back<ENDS, Layout>(q, k, high, low, vectors, d_o, dfinal, bounds, dx, dstates, dinitial, maps, T, \
                                H, G, K, V, NT, NS, PER, SHARE, segments, skipped);                            \
    }
#endif
