// The walks: a producer warpgroup copies chunks ahead, three deep; a consumer warpgroup has a strip of 64 values of the
// state, V x K, in its registers. A chunk's products are issued so that those which nothing of the chain waits for run
// beside it.
#include "parts.cuh"

constexpr int STRIP = 64, STAGES = 3;  // values of a block, chunks in shared memory
constexpr int OF_K = 0, OF_Q = 2 * HALF, OF_V = 4 * HALF, OF_HIGH = 5 * HALF, OF_LOW = 6 * HALF, OF_SCORES = 7 * HALF,
              OF_VECTORS = 8 * HALF;
constexpr int V_START = OF_VECTORS, V_END = V_START + 4 * C, V_RATE = V_END + 4 * C;
constexpr int STAGE = 8 * HALF + 1024, OF_OUT = STAGES * STAGE, OF_STATE = OF_OUT + HALF;
enum { FULL = 0, EMPTY = STAGES };  // barriers of each stage

// A warp's 16 values of 64 steps, turned in its shared memory.
FUNCTION void put_output(bfloat16* to, unsigned own, const unsigned* kept, int left, long long stride, int values) {
    int lane = thread() % 32, step = (lane & 7) + (lane & 16) / 2, side = lane / 8 & 1;
    UNROLL
    for (int i = 0; i < 4; ++i) store_turned(own + (16 * i + step) * 32 + ((side ^ (step / 4 & 1)) << 4), kept + 4 * i);
    warp_sync();
    UNROLL
    for (int i = 0; i < 4; ++i) {
        int at = 16 * i + lane / 2, half = lane % 2;
        if (at < left && 8 * half + 8 <= values)
            store_16(to + at * stride + 8 * half, own + at * 32 + ((half ^ (at / 4 & 1)) << 4));
    }
    warp_sync();
}

// A warp's 16 values of a state, V x K, as bfloat16.
FUNCTION void put_state(bfloat16* to, unsigned own, const unsigned* held, int values, int K) {
    int lane = thread() % 32, row = (lane & 7) + (lane & 8);
    UNROLL
    for (int i = 0; i < 8; ++i)
        store_matrices(own + row * 256 + (((2 * i + lane / 16) ^ (row & 7)) << 4), held + 4 * i);
    warp_sync();
    UNROLL
    for (int i = 0; i < 8; ++i) {
        int value = 2 * i + lane / 16, piece = lane % 16;
        if (value < values && piece * 8 < K)
            store_16(to + value * K + piece * 8, own + value * 256 + ((piece ^ (value & 7)) << 4));
    }
    warp_sync();
}

// A strip of values of a head of a sequence, which a block walks through. bh: of the head among all; first: value.
struct Strip {
    Sequence sequence;
    int bh, first;
    long long row, key_row;  // of its first step, among those of v and of k
};
FUNCTION Strip strip_of(const long long* bounds, int T, int H, int G, int V, int NT) {
    int strips = (V + STRIP - 1) / STRIP, bh = block() / strips, head = bh % H;
    Sequence sequence = sequence_of(bh / H, head, T, H, NT, bounds);
    return {sequence, bh, block() % strips * STRIP, sequence.first * H + head, sequence.first * G + head / (H / G)};
}
FUNCTION int chunk_of(const Sequence& sequence, int walked, bool back) {
    return back ? sequence.chunks - 1 - walked : walked;
}

// The producer: copies what the walk needs of chunk after chunk, and waits for the consumer where no stage is free.
// x: v or do. READ: q and the scores, too.
template <bool BACK, bool READ>
FUNCTION void copy_ahead(const Strip& strip, const bfloat16* q, const bfloat16* k, const bfloat16* x,
                         const bfloat16* high, const bfloat16* low, const bfloat16* scores, const float* vectors, int H,
                         int G, int K, int V) {
    for (int walked = 0; walked < strip.sequence.chunks; ++walked) {
        int stage = walked % STAGES, chunk = chunk_of(strip.sequence, walked, BACK);
        if (walked >= STAGES) wait_at(EMPTY + stage, (walked / STAGES - 1) & 1);
        unsigned to = stage * STAGE;
        int left = strip.sequence.steps - chunk * C;
        long long at = strip.sequence.place + chunk, key_row = (strip.key_row + (long long)chunk * C * G) * K;
        copy_tile<C>(to + OF_K, k + key_row, (long long)G * K, left, K);
        copy_half<C>(to + OF_V, x + (strip.row + (long long)chunk * C * H) * V + strip.first, (long long)H * V, left,
                     V - strip.first);
        copy_square(to + OF_HIGH, high + at * C * C);
        copy_square(to + OF_LOW, low + at * C * C);
        if (READ) {
            copy_tile<C>(to + OF_Q, q + key_row, (long long)G * K, left, K);
            copy_square(to + OF_SCORES, scores + at * C * C);
        }
        if (thread() < 3 * C / 4) copy_16(to + OF_VECTORS + thread() * 16, vectors + at * VECTORS + thread() * 4, true);
        arrive_when_copied(FULL + stage);
    }
    wait_for_copies();
}

// A thread's part of a state (K, V) in float32: of two values and 32 keys each.
template <class Use>
FUNCTION void for_state(int first, int K, int V, Use use) {
    int lane = thread() % 32, value = first + lane / 4, key = 2 * (lane % 4);
    UNROLL
    for (int i = 0; i < 64; ++i) {
        int down = i / 4 * 8 + i % 2, side = i % 4 / 2 * 8;
        if (value + side < V && key + down < K) use(i, (key + down) * V + value + side);
    }
}
FUNCTION void load_state(float* state, unsigned* held, const float* from, int bh, int first, int K, int V) {
    UNROLL
    for (int i = 0; i < 64; ++i) state[i] = 0.0f;
    if (from) for_state(first, K, V, [&](int i, int place) { state[i] = from[(long long)bh * K * V + place]; });
    UNROLL
    for (int i = 0; i < 32; ++i) held[i] = rounded_pair(state[2 * i], state[2 * i + 1]);
}
FUNCTION void store_state(float* to, const float* state, int bh, int first, int K, int V) {
    for_state(first, K, V, [&](int i, int place) { to[(long long)bh * K * V + place] = state[i]; });
}
// A warp's 16 values of 64 steps, turned, as the left side of products.
FUNCTION void load_values(unsigned* r, unsigned tile, int warp) {
    int lane = thread() % 32;
    UNROLL
    for (int i = 0; i < 4; ++i) {
        int step = 16 * i + (lane & 7) + (lane & 16) / 2, side = lane / 8 & 1;
        load_turned(r + 4 * i, tile + swizzled(step, 2 * warp + side));
    }
}

// KEEP: write the states before the chunks, (n, V, K), and y as o, in place of the output.
template <bool KEEP>
FUNCTION void walk(const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* high, const bfloat16* low,
                   const bfloat16* scores, const float* vectors, const float* initial, const long long* bounds,
                   bfloat16* o, bfloat16* states, float* final_state, int T, int H, int G, int K, int V, int NT) {
    const Strip strip = strip_of(bounds, T, H, G, V, NT);
    const Sequence sequence = strip.sequence;
    if (thread() == 0) open_barriers(2 * STAGES);
    barrier();
    if (thread() < 128) {
        copy_ahead<false, !KEEP>(strip, q, k, v, high, low, scores, vectors, H, G, K, V);
    } else {
        const int pair = thread() % 4, warp = thread() / 32 - 4, first = strip.first + 16 * warp;
        const long long row = strip.row;
        float state[64], r[32], out[32];
        unsigned held[32], x[16], seen[16], kept[16];
        load_state(state, held, initial, strip.bh, first, K, V);
        UNROLL
        for (int i = 0; i < 16; ++i) kept[i] = 0;
        for (int chunk = 0; chunk < sequence.chunks; ++chunk) {
            int stage = chunk % STAGES;
            unsigned from = stage * STAGE, at = first_unit() + from / 16;
            wait_at(FULL + stage, chunk / STAGES & 1);
            products_begin();
            UNROLL
            for (int i = 0; i < 8; ++i) product_64(r, held + 4 * i, (at | BY_ROW) + OF_K / 16 + along_row(i), i > 0);
            products_close();
            if (!KEEP) {
                UNROLL
                for (int i = 0; i < 8; ++i)
                    product_64(out, held + 4 * i, (at | BY_ROW) + OF_Q / 16 + along_row(i), i > 0);
            }
            products_close();
            put_output(o + (row + (long long)(chunk - 1) * C * H) * V + first, OF_OUT + 2048 * warp, kept,
                       chunk ? sequence.steps - (chunk - 1) * C : 0, (long long)H * V, V - first);
            if (KEEP)
                put_state(states + ((sequence.place + chunk) * V + first) * K, OF_STATE + 4096 * warp, held, V - first,
                          K);
            unsigned vt[16];
            load_values(vt, from + OF_V, warp);
            wait_products<1>();
            claim(r, 32);
            UNROLL
            for (int j = 0; j < 8; ++j) {
                Two start = load_two(from + V_START + (8 * j + 2 * pair) * 4),
                    rate = load_two(from + V_RATE + (8 * j + 2 * pair) * 4);
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
            for (int i = 0; i < 4; ++i) product_64(r, x + 4 * i, (at | BY_ROW) + OF_HIGH / 16 + along_row(i), i > 0);
            UNROLL
            for (int i = 0; i < 4; ++i) product_64(r, x + 4 * i, (at | BY_ROW) + OF_LOW / 16 + along_row(i), true);
            products_close();
            float whole = load_one(from + V_START + 63 * 4);
            UNROLL
            for (int i = 0; i < 64; ++i) state[i] *= whole;
            wait_products<1>();
            if (!KEEP) {
                claim(out, 32);
                UNROLL
                for (int j = 0; j < 8; ++j) {
                    Two start = load_two(from + V_START + (8 * j + 2 * pair) * 4);
                    out[4 * j] *= start.a, out[4 * j + 1] *= start.b, out[4 * j + 2] *= start.a,
                        out[4 * j + 3] *= start.b;
                }
            }
            wait_products<0>();
            claim(r, 32);
            UNROLL
            for (int j = 0; j < 8; ++j) {
                Two end = load_two(from + V_END + (8 * j + 2 * pair) * 4);
                UNROLL
                for (int side = 0; side < 2; ++side) {
                    float a = r[4 * j + 2 * side], b = r[4 * j + 2 * side + 1];
                    seen[2 * j + side] = rounded_pair(a, b);
                    x[2 * j + side] = rounded_pair(a * end.a, b * end.b);
                }
            }
            claim(state, 64);
            if (!KEEP) claim(out, 32);
            products_begin();
            UNROLL
            for (int i = 0; i < 4; ++i) product_128(state, x + 4 * i, (at | BY_COLUMN) + OF_K / 16 + down_rows(i));
            products_close();
            if (!KEEP) {
                UNROLL
                for (int i = 0; i < 4; ++i)
                    product_64(out, seen + 4 * i, (at | BY_ROW) + OF_SCORES / 16 + along_row(i), true);
            }
            products_close();
            wait_products<1>();
            claim(state, 64);
            UNROLL
            for (int i = 0; i < 32; ++i) held[i] = rounded_pair(state[2 * i], state[2 * i + 1]);
            wait_products<0>();
            if (!KEEP) claim(out, 32);
            arrive(EMPTY + stage);
            UNROLL
            for (int i = 0; i < 16; ++i) kept[i] = KEEP ? seen[i] : rounded_pair(out[2 * i], out[2 * i + 1]);
        }
        put_output(o + (row + (long long)(sequence.chunks - 1) * C * H) * V + first, OF_OUT + 2048 * warp, kept,
                   sequence.chunks ? sequence.steps - (sequence.chunks - 1) * C : 0, (long long)H * V, V - first);
        store_state(final_state, state, strip.bh, first, K, V);
    }
}

ENTRY(256, 1)
cuda_delta_walk(const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* high, const bfloat16* low,
                const bfloat16* scores, const float* vectors, const float* initial, const long long* bounds,
                bfloat16* o, bfloat16* states, float* final_state, int T, int H, int G, int K, int V, int NT) {
    walk<false>(q, k, v, high, low, scores, vectors, initial, bounds, o, states, final_state, T, H, G, K, V, NT);
}

ENTRY(256, 1)
cuda_delta_walk_keep(const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* high, const bfloat16* low,
                     const bfloat16* scores, const float* vectors, const float* initial, const long long* bounds,
                     bfloat16* o, bfloat16* states, float* final_state, int T, int H, int G, int K, int V, int NT) {
    walk<true>(q, k, v, high, low, scores, vectors, initial, bounds, o, states, final_state, T, H, G, K, V, NT);
}

ENTRY(256, 1)
cuda_delta_walk_back(const bfloat16* q, const bfloat16* k, const bfloat16* high, const bfloat16* low,
                     const bfloat16* scores, const float* vectors, const bfloat16* d_o, const float* dfinal,
                     const long long* bounds, bfloat16* dx, bfloat16* dstates, float* dinitial, int T, int H, int G,
                     int K, int V, int NT) {
    const Strip strip = strip_of(bounds, T, H, G, V, NT);
    const Sequence sequence = strip.sequence;
    if (thread() == 0) open_barriers(2 * STAGES);
    barrier();
    if (thread() < 128) {
        copy_ahead<true, true>(strip, q, k, d_o, high, low, scores, vectors, H, G, K, V);
    } else {
        const int pair = thread() % 4, warp = thread() / 32 - 4, first = strip.first + 16 * warp;
        const long long row = strip.row;
        float state[64], r[32];  // the gradient of the state
        unsigned held[32], x[16], seen[16], kept[16];
        load_state(state, held, dfinal, strip.bh, first, K, V);
        UNROLL
        for (int i = 0; i < 16; ++i) kept[i] = 0;
        for (int walked = 0; walked < sequence.chunks; ++walked) {
            int stage = walked % STAGES, chunk = chunk_of(sequence, walked, true);
            unsigned from = stage * STAGE, at = first_unit() + from / 16;
            wait_at(FULL + stage, walked / STAGES & 1);
            products_begin();
            UNROLL
            for (int i = 0; i < 8; ++i) product_64(r, held + 4 * i, (at | BY_ROW) + OF_K / 16 + along_row(i), i > 0);
            products_close();
            put_output(dx + (row + (long long)(chunk + 1) * C * H) * V + first, OF_OUT + 2048 * warp, kept,
                       walked ? sequence.steps - (chunk + 1) * C : 0, (long long)H * V, V - first);
            put_state(dstates + ((sequence.place + chunk) * V + first) * K, OF_STATE + 4096 * warp, held, V - first, K);
            unsigned turned[16];  // do
            load_values(turned, from + OF_V, warp);
            float whole = load_one(from + V_START + 63 * 4);
            UNROLL
            for (int i = 0; i < 64; ++i) state[i] *= whole;
            UNROLL
            for (int j = 0; j < 8; ++j) {
                Two start = load_two(from + V_START + (8 * j + 2 * pair) * 4);
                UNROLL
                for (int side = 0; side < 2; ++side) {
                    unsigned both = turned[2 * j + side];
                    seen[2 * j + side] = rounded_pair(low_half(both) * start.a, high_half(both) * start.b);
                }
            }
            wait_products<0>();
            claim(r, 32);
            UNROLL
            for (int j = 0; j < 8; ++j) {
                Two end = load_two(from + V_END + (8 * j + 2 * pair) * 4);
                r[4 * j] *= end.a, r[4 * j + 1] *= end.b, r[4 * j + 2] *= end.a, r[4 * j + 3] *= end.b;
            }
            claim(r, 32), claim(state, 64);
            products_begin();
            UNROLL
            for (int i = 0; i < 4; ++i)
                product_64_turned(r, turned + 4 * i, (at | BY_COLUMN) + OF_SCORES / 16 + down_rows(i), true);
            products_close();
            UNROLL
            for (int i = 0; i < 4; ++i) product_128(state, seen + 4 * i, (at | BY_COLUMN) + OF_Q / 16 + down_rows(i));
            products_close();
            wait_products<1>();
            claim(r, 32);
            UNROLL
            for (int i = 0; i < 16; ++i) x[i] = rounded_pair(r[2 * i], r[2 * i + 1]);
            products_begin();
            UNROLL
            for (int i = 0; i < 4; ++i)
                product_64_turned(r, x + 4 * i, (at | BY_COLUMN) + OF_HIGH / 16 + down_rows(i), i > 0);
            UNROLL
            for (int i = 0; i < 4; ++i)
                product_64_turned(r, x + 4 * i, (at | BY_COLUMN) + OF_LOW / 16 + down_rows(i), true);
            products_close();
            wait_products<0>();
            claim(r, 32);
            UNROLL
            for (int j = 0; j < 8; ++j) {
                Two start = load_two(from + V_START + (8 * j + 2 * pair) * 4),
                    rate = load_two(from + V_RATE + (8 * j + 2 * pair) * 4);
                float a = -start.a * rate.a, b = -start.b * rate.b;
                UNROLL
                for (int side = 0; side < 2; ++side) {
                    kept[2 * j + side] = rounded_pair(r[4 * j + 2 * side], r[4 * j + 2 * side + 1]);
                    x[2 * j + side] = rounded_pair(r[4 * j + 2 * side] * a, r[4 * j + 2 * side + 1] * b);
                }
            }
            claim(state, 64);
            products_begin();
            UNROLL
            for (int i = 0; i < 4; ++i) product_128(state, x + 4 * i, (at | BY_COLUMN) + OF_K / 16 + down_rows(i));
            products_close();
            wait_products<0>();
            claim(state, 64);
            arrive(EMPTY + stage);
            UNROLL
            for (int i = 0; i < 32; ++i) held[i] = rounded_pair(state[2 * i], state[2 * i + 1]);
        }
        put_output(dx + row * V + first, OF_OUT + 2048 * warp, kept, sequence.steps, (long long)H * V, V - first);
        if (dinitial) store_state(dinitial, state, strip.bh, first, K, V);
    }
}
