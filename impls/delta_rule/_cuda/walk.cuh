// The walk forwards: for the output, for what the backward pass needs of it, or for the ends of segments.
#ifndef SSMPERF_DELTA_WALK
#define SSMPERF_DELTA_WALK
#include "walks.cuh"

enum Mode { OUTPUT, KEEP, ENDS };
enum { HELD = OTHERS, HELD_FREE = HELD + 2, SEEN = HELD_FREE + 2, SEEN_FREE = SEEN + 2, BARRIERS = SEEN_FREE + 2 };

// y = x times part of the inverse, or y plus that; it runs on. Packed, y is of two halves of 32 columns: sums of
// products that run side by side must not be parts of one another, or they wait for each other.
template <class Layout>
FUNCTION void with_inverse(float* y, const unsigned* x, unsigned at, bool more) {
    UNROLL
    for (int i = 0; i < 4; ++i) {
        if (!Layout::PACKED) {
            product_64<true>(y, x + 4 * i, (at | PIECES_BY_ROW) + along_pieces(i), more || i > 0);
            continue;
        }
        const unsigned apart = (i < 2 ? 1024 : 512) / 16 << 16;
        if (i < 2) product_32(y, x + 4 * i, at + place_of<true>(2 * i, 0) / 16 | apart, more || i > 0);
        product_32(y + 16, x + 4 * i, at + place_of<true>(2 * i, 32) / 16 | apart, more || i > 0);
    }
}

// own: the number of the chain among those of the block. Its state at the end goes to `to`.
template <Mode MODE, class Layout>
FUNCTION void chain(const Strip& strip, int own, float* state, float* to, long long which, int K, int V) {
    const int pair = thread() % 4, warp = thread() / 32 % 4, turns = Layout::TURNS;
    float r[32];
    unsigned held[32], x[16], seen[16];
    hold(held, state);
    ROLLED
    for (int chunk = 0; chunk < strip.sequence.chunks; ++chunk) {
        const int stage = chunk % STAGES, slot = slot_of<Layout>(chunk, own);
        const unsigned from = stage * Layout::SIZE, at = first_unit() + from / 16;
        const unsigned of = Layout::OF_VECTORS + stage * VECTORS_STAGE;
        wait_for_copied(FULL + stage, parity_of(chunk, STAGES));
        start_with_keys(r, held, at);
        if (MODE != ENDS) {
            wait_until_free(HELD_FREE + slot, chunk, turns);
            put_held(Layout::HELD + slot * HELD_BYTES, held, warp);
            arrive(HELD + slot);
        }
        unsigned vt[16];
        load_values(vt, from + OF_X + own * HALF, warp);
        wait_products<0>();
        claim(r, 32);
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two start = load_steps(of + V_START, j, pair), rate = load_steps(of + V_RATE, j, pair);
            UNROLL
            for (int side = 0; side < 2; ++side) {
                unsigned value = vt[2 * j + side];
                float a = rate.a * (low_half(value) - r[4 * j + 2 * side] * start.a);
                float b = rate.b * (high_half(value) - r[4 * j + 2 * side + 1] * start.b);
                x[2 * j + side] = rounded_pair(a, b);
            }
        }
        products_begin();
        float halves[32], *y = Layout::PACKED ? halves : r;
        with_inverse<Layout>(y, x, at + Layout::HIGH / 16, false);
        with_inverse<Layout>(y, x, at + Layout::LOW / 16, true);
        products_close();
        const float whole = load_one(of + V_START + 63 * 4);
        UNROLL
        for (int i = 0; i < 64; ++i) state[i] *= whole;
        wait_products<0>();
        claim(y, 32);
        UNROLL
        for (int j = 0; j < 8; ++j) {
            Two end = load_steps(of + V_END, j, pair);
            UNROLL
            for (int side = 0; side < 2; ++side) {
                float a = y[4 * j + 2 * side], b = y[4 * j + 2 * side + 1];
                seen[2 * j + side] = rounded_pair(a, b);
                x[2 * j + side] = rounded_pair(a * end.a, b * end.b);
            }
        }
        claim(state, 64);
        start_adding(state, x, (at | BY_COLUMN) + OF_K / 16);
        if (MODE != ENDS) {
            wait_until_free(SEEN_FREE + slot, chunk, turns);
            put_values(seen_at<Layout>(stage, slot), seen, warp);
            arrive(SEEN + slot);
        }
        wait_products<0>();
        claim(state, 64);
        arrive(EMPTY + stage);
        hold(held, state);
    }
    if (to) store_state(to, state, which, strip.first + own * STRIP + 16 * warp, K, V);
}

// o = diag(gamma) Q S + (scores * decay) y, where v was.
template <class Layout>
FUNCTION void outputs(const Strip& strip) {
    const int lane = thread() % 32, warp = thread() / 32 % 4, row = 16 * warp + lane / 4;
    constexpr int sides = Layout::CHAINS, turns = Layout::TURNS;
    ROLLED
    for (int chunk = 0; chunk < strip.sequence.chunks; ++chunk) {
        const int stage = chunk % STAGES, parity = parity_of(chunk, turns);
        const unsigned from = stage * Layout::SIZE, at = first_unit() + from / 16;
        const unsigned of = Layout::OF_VECTORS + stage * VECTORS_STAGE;
        float scores[32], out[sides][32];
        unsigned left[16];
        wait_for_copied(FULL + stage, parity_of(chunk, STAGES));
        start_square(scores, (at | BY_ROW) + OF_Q / 16, (at | BY_ROW) + OF_K / 16);
        UNROLL
        for (int own = 0; own < sides; ++own) {
            const int slot = slot_of<Layout>(chunk, own);
            wait_for_copied(HELD + slot, parity);
            start_square(out[own], (at | BY_ROW) + OF_Q / 16,
                         first_unit() + (Layout::HELD + slot * HELD_BYTES) / 16 | BY_ROW);
        }
        wait_products<sides>();
        claim(scores, 32);
        decayed(left, scores, of + V_SUMS, warp);
        const float start[2] = {load_one(of + V_START + 4 * row), load_one(of + V_START + 4 * row + 32)};
        wait_products<0>();
        UNROLL
        for (int own = 0; own < sides; ++own) {
            const int slot = slot_of<Layout>(chunk, own);
            claim(out[own], 32);
            arrive(HELD_FREE + slot);
            UNROLL
            for (int i = 0; i < 32; ++i) out[own][i] *= start[i / 2 % 2];
            wait_for_copied(SEEN + slot, parity);
            claim(out[own], 32);
            products_begin();
            UNROLL
            for (int i = 0; i < 4; ++i)
                product_64_turned(out[own], left + 4 * i,
                                  (first_unit() + seen_at<Layout>(stage, slot) / 16 | BY_COLUMN) + down_rows(i), true);
            products_close();
            wait_products<0>();
            claim(out[own], 32);
            arrive(SEEN_FREE + slot);
            if (Layout::CHAINS == 2) meet();  // o goes where y is
            UNROLL
            for (int n = 0; n < 8; n += 2) {
                unsigned r[4];
                UNROLL
                for (int i = 0; i < 4; ++i) r[i] = rounded_pair(out[own][4 * n + 2 * i], out[own][4 * n + 2 * i + 1]);
                store_matrices(
                    from + OF_X + own * HALF + swizzled(16 * warp + (lane & 7) + (lane & 8), n + lane / 16), r);
            }
        }
        arrive(EMPTY + stage);
    }
}

// By a thread that copies nothing else, since its fence would wait for that.
template <class Layout>
FUNCTION void keep(const Strip& strip, bfloat16* states, bfloat16* y, int strips) {
    constexpr int chains = Layout::CHAINS;
    for (int use = 0; use < strip.sequence.chunks * chains; ++use) {
        const int chunk = use / chains, slot = use % 2, parity = parity_of(chunk, Layout::TURNS);
        const long long tile = (strip.kept + chunk) * strips + strip.first / STRIP + use % chains;
        wait_at(HELD + slot, parity);
        wait_until_stored();
        if (use) arrive(HELD_FREE + (slot ^ 1)), arrive(SEEN_FREE + (slot ^ 1));
        if (chains == 2 && use && !slot) arrive(EMPTY + (chunk - 1) % STAGES);
        store_bytes(states + tile * (HELD_BYTES / 2), Layout::HELD + slot * HELD_BYTES, HELD_BYTES);
        wait_at(SEEN + slot, parity);
        store_bytes(y + tile * (HALF / 2), seen_at<Layout>(chunk % STAGES, slot), HALF);
    }
    wait_until_stored();
    if (chains == 2 && strip.sequence.chunks) arrive(EMPTY + (strip.sequence.chunks - 1) % STAGES);
}

// Kept are states before the chunks and, as o, y: the tiles of each chunk and strip. final_state: with segments that of
// the last, or all ends. maps: of segments.
template <Mode MODE, class Layout>
FUNCTION void walk(const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* high, const bfloat16* low,
                   const float* vectors, const float* initial, const long long* bounds, bfloat16* o, bfloat16* states,
                   float* final_state, float* maps, int T, int H, int G, int K, int V, int NT, int NS, int PER,
                   int SHARE, int segments, int skipped) {
    constexpr int of_block = Layout::CHAINS * STRIP;
    const int of_values = (V + of_block - 1) / of_block, of_maps = MODE == ENDS ? (K + of_block - 1) / of_block : 0;
    Strip strip = strip_of(block(), of_block, bounds, T, H, G, of_values + of_maps, NT, NS, PER, SHARE, segments,
                           skipped);
    const bool map = strip.first >= of_values * of_block;
    if (map) strip.first -= of_values * of_block;
    const int chunks = strip.sequence.chunks, values = map ? 0 : V - strip.first, group = thread() / 128;
    if (thread() == 0) {
        const int freed = MODE == KEEP ? 1 : 128;
        const int reading_stages = MODE == OUTPUT ? 128 : MODE == KEEP ? Layout::CHAINS - 1 : 0;
        open_barriers(FULL, EMPTY, 128), open_barriers(EMPTY, HELD, 128 * Layout::CHAINS + reading_stages);
        open_barriers(HELD, HELD_FREE, 128), open_barriers(HELD_FREE, SEEN, freed);
        open_barriers(SEEN, SEEN_FREE, 128), open_barriers(SEEN_FREE, BARRIERS, freed);
    }
    barrier();
    if (group == 0) {
        take_registers<Layout::PRODUCER, Layout::BEGUN>();
        clear_squares<Layout>();
        const long long stride = (long long)H * V;
        bfloat16* to = o + strip.row * V + strip.first;
        ROLLED
        for (int walked = 0; walked < chunks + STAGES; ++walked) {
            const int done = walked - STAGES;
            if (done >= 0) {
                wait_at(EMPTY + done % STAGES, parity_of(done, STAGES));
                if (MODE == OUTPUT)
                    for (int own = 0; own < Layout::CHAINS; ++own)
                        store_steps(to + done * C * stride + own * STRIP,
                                    done % STAGES * Layout::SIZE + OF_X + own * HALF,
                                    strip.sequence.steps - done * C, stride, values - own * STRIP);
            }
            if (walked < chunks)
                copy_in<MODE == OUTPUT, Layout>(strip, walked, walked, q, k, v, high, low, vectors, H, G, K, V, values);
        }
        wait_for_copies();
    } else if (group <= Layout::CHAINS) {
        take_registers<Layout::CHAIN, Layout::BEGUN>();
        float state[64];
        const int first = strip.first + (thread() / 32 - 4) * 16, width = map ? K : V;
        load_state(state, MODE == ENDS ? nullptr : initial, strip.state, first, K, V);
        if (map) for_state(first, K, K, [&](int i, int key, int value) { state[i] = key == value; });
        float* to = map ? maps : MODE == ENDS || strip.segment == NS - 1 ? final_state : nullptr;
        chain<MODE, Layout>(strip, group - 1, state, to, MODE == ENDS ? strip.state : strip.bh, K, width);
    } else if (MODE == OUTPUT) {
        take_registers<Layout::BESIDE, Layout::BEGUN>();
        outputs<Layout>(strip);
    } else if (MODE == KEEP && thread() % 128 == 0) {
        keep<Layout>(strip, states, o, (V + STRIP - 1) / STRIP);
    }
}

#define WALK(name, THREADS, MODE, Layout)                                                                             \
    ENTRY(THREADS, 1)                                                                                                 \
    name(const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* high, const bfloat16* low,          \
         const float* vectors, const float* initial, const long long* bounds, bfloat16* o, bfloat16* states,          \
         float* final_state, float* maps, int T, int H, int G, int K, int V, int NT, int NS, int PER, int SHARE,      \
         int segments, int skipped) {                                                                                 \
        walk<MODE, Layout>(q, k, v, high, low, vectors, initial, bounds, o, states, final_state, maps, T, H, G, K, V, \
                           NT, NS, PER, SHARE, segments, skipped);                                                    \
    }
#endif
