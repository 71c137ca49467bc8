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

// KEEP: write the states before the chunks, (n, V, K), and y as o, in place of the output.
template <bool KEEP>
FUNCTION void walk(const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* high, const bfloat16* low,
                   const bfloat16* scores, const float* vectors, const float* initial, const long long* bounds,
                   bfloat16* o, bfloat16* states, float* final_state, int T, int H, int G, int K, int V, int NT) {
    int strips = (V + STRIP - 1) / STRIP, strip = block() % strips, bh = block() / strips, head = bh % H;
    Sequence sequence = sequence_of(bh / H, head, T, H, NT, bounds);
    long long row = sequence.first * H + head, key_row = sequence.first * G + head / (H / G);
    if (thread() == 0) open_barriers(2 * STAGES);
    barrier();
    if (thread() < 128) {  // the producer
        for (int chunk = 0; chunk < sequence.chunks; ++chunk) {
            int stage = chunk % STAGES;
            if (chunk >= STAGES) wait_at(EMPTY + stage, (chunk / STAGES - 1) & 1);
            unsigned to = stage * STAGE;
            int left = sequence.steps - chunk * C;
            long long at = sequence.place + chunk;
            const bfloat16* k_rows = k + (key_row + (long long)chunk * C * G) * K;
            const bfloat16* q_rows = q + (key_row + (long long)chunk * C * G) * K;
            copy_tile<C>(to + OF_K, k_rows, (long long)G * K, left, K);
            copy_half<C>(to + OF_V, v + (row + (long long)chunk * C * H) * V + strip * STRIP, (long long)H * V, left,
                         V - strip * STRIP);
            copy_square(to + OF_HIGH, high + at * C * C);
            copy_square(to + OF_LOW, low + at * C * C);
            if (!KEEP) {
                copy_tile<C>(to + OF_Q, q_rows, (long long)G * K, left, K);
                copy_square(to + OF_SCORES, scores + at * C * C);
            }
            if (thread() < 3 * C / 4)
                copy_16(to + OF_VECTORS + thread() * 16, vectors + at * VECTORS + thread() * 4, true);
            arrive_when_copied(FULL + stage);
        }
        wait_for_copies();
    } else {
        int lane = thread() % 32, warp = thread() / 32 - 4, group = lane / 4, pair = lane % 4;
        int first = strip * STRIP + 16 * warp;
        float state[64], r[32], out[32];
        unsigned held[32], x[16], seen[16], kept[16];
        UNROLL
        for (int i = 0; i < 64; ++i) {
            int value = first + group + 8 * (i % 4 / 2), key = i / 4 * 8 + 2 * pair + i % 2;
            state[i] = initial && value < V && key < K ? initial[((long long)bh * K + key) * V + value] : 0.0f;
        }
        UNROLL
        for (int i = 0; i < 32; ++i) held[i] = rounded_pair(state[2 * i], state[2 * i + 1]);
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
            UNROLL
            for (int i = 0; i < 4; ++i) {  // v, turned: 16 steps of the warp's 16 values each
                int step = 16 * i + (lane & 7) + (lane & 16) / 2, side = lane / 8 & 1;
                load_turned(vt + 4 * i, from + OF_V + swizzled(step, 2 * warp + side));
            }
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
        UNROLL
        for (int i = 0; i < 64; ++i) {
            int value = first + group + 8 * (i % 4 / 2), key = i / 4 * 8 + 2 * pair + i % 2;
            if (value < V && key < K) final_state[((long long)bh * K + key) * V + value] = state[i];
        }
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
    int strips = (V + STRIP - 1) / STRIP, strip = block() % strips, bh = block() / strips, head = bh % H;
    Sequence sequence = sequence_of(bh / H, head, T, H, NT, bounds);
    long long row = sequence.first * H + head, key_row = sequence.first * G + head / (H / G);
    if (thread() == 0) open_barriers(2 * STAGES);
    barrier();
    if (thread() < 128) {  // the producer
        for (int walked = 0; walked < sequence.chunks; ++walked) {
            int stage = walked % STAGES, chunk = sequence.chunks - 1 - walked;
            if (walked >= STAGES) wait_at(EMPTY + stage, (walked / STAGES - 1) & 1);
            unsigned to = stage * STAGE;
            int left = sequence.steps - chunk * C;
            long long at = sequence.place + chunk;
            const bfloat16* k_rows = k + (key_row + (long long)chunk * C * G) * K;
            const bfloat16* q_rows = q + (key_row + (long long)chunk * C * G) * K;
            copy_tile<C>(to + OF_K, k_rows, (long long)G * K, left, K);
            copy_half<C>(to + OF_V, d_o + (row + (long long)chunk * C * H) * V + strip * STRIP, (long long)H * V, left,
                         V - strip * STRIP);
            copy_square(to + OF_SCORES, scores + at * C * C);
            copy_square(to + OF_HIGH, high + at * C * C);
            copy_square(to + OF_LOW, low + at * C * C);
            copy_tile<C>(to + OF_Q, q_rows, (long long)G * K, left, K);
            if (thread() < 3 * C / 4)
                copy_16(to + OF_VECTORS + thread() * 16, vectors + at * VECTORS + thread() * 4, true);
            arrive_when_copied(FULL + stage);
        }
        wait_for_copies();
    } else {
        int lane = thread() % 32, warp = thread() / 32 - 4, group = lane / 4, pair = lane % 4;
        int first = strip * STRIP + 16 * warp;
        float state[64], r[32];  // the gradient of the state
        unsigned held[32], x[16], seen[16], kept[16];
        UNROLL
        for (int i = 0; i < 64; ++i) {
            int value = first + group + 8 * (i % 4 / 2), key = i / 4 * 8 + 2 * pair + i % 2;
            state[i] = dfinal && value < V && key < K ? dfinal[((long long)bh * K + key) * V + value] : 0.0f;
        }
        UNROLL
        for (int i = 0; i < 32; ++i) held[i] = rounded_pair(state[2 * i], state[2 * i + 1]);
        UNROLL
        for (int i = 0; i < 16; ++i) kept[i] = 0;
        for (int walked = 0; walked < sequence.chunks; ++walked) {
            int stage = walked % STAGES, chunk = sequence.chunks - 1 - walked;
            unsigned from = stage * STAGE, at = first_unit() + from / 16;
            wait_at(FULL + stage, walked / STAGES & 1);
            products_begin();
            UNROLL
            for (int i = 0; i < 8; ++i) product_64(r, held + 4 * i, (at | BY_ROW) + OF_K / 16 + along_row(i), i > 0);
            products_close();
            put_output(dx + (row + (long long)(chunk + 1) * C * H) * V + first, OF_OUT + 2048 * warp, kept,
                       walked ? sequence.steps - (chunk + 1) * C : 0, (long long)H * V, V - first);
            put_state(dstates + ((sequence.place + chunk) * V + first) * K, OF_STATE + 4096 * warp, held, V - first, K);
            unsigned turned[16];  // of do
            UNROLL
            for (int i = 0; i < 4; ++i) {
                int step = 16 * i + (lane & 7) + (lane & 16) / 2, side = lane / 8 & 1;
                load_turned(turned + 4 * i, from + OF_V + swizzled(step, 2 * warp + side));
            }
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
        if (dinitial) {
            UNROLL
            for (int i = 0; i < 64; ++i) {
                int value = first + group + 8 * (i % 4 / 2), key = i / 4 * 8 + 2 * pair + i % 2;
                if (value < V && key < K) dinitial[((long long)bh * K + key) * V + value] = state[i];
            }
        }
    }
}
