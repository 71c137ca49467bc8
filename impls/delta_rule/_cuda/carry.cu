// The state in which each segment of a head begins, from what each makes of any state: S -> M S + U. Backward, the
// gradient of the state in which each ends: dS -> M^T dS + dU, from the last segment on. A block has 16 values of a
// head.
#include "parts.cuh"

constexpr int STRIP = 16, LINE = WIDEST + 4, MAP = WIDEST * LINE * 4, OF_STATE = 2 * MAP;  // a pitch without conflicts

FUNCTION void copy_map(unsigned to, const float* from, int K) {
    for (int i = thread(); i < WIDEST * WIDEST / 4; i += 256) {
        int row = i / (WIDEST / 4), piece = i % (WIDEST / 4);
        bool inside = row < K && 4 * piece < K;
        copy_16(to + (row * LINE + 4 * piece) * 4, inside ? from + row * K + 4 * piece : from, inside);
    }
}

// edges (heads, NS, K, V) from maps (heads, NS, K, K) and ends (heads, NS, K, V). given: the first edge, (heads, K, V),
// or none for 0. A thread has 8 values of a row.
ENTRY(256, 1)
cuda_delta_carry(const float* maps, const float* ends, const float* given, float* edges, int NS, int K, int V,
                 int back) {
    const int strips = (V + STRIP - 1) / STRIP, row = thread() % WIDEST, part = thread() / WIDEST * 8;
    const int first = block() % strips * STRIP + part, move = back ? -1 : 1;
    const long long head = block() / strips, map = (long long)K * K, place = (long long)row * V + first;
    const bool inside = row < K && first < V;  // V is a multiple of 8
    long long segment = head * NS + (back ? NS - 1 : 0);
    float x[8];
    UNROLL
    for (int i = 0; i < 8; ++i) x[i] = given && inside ? given[head * K * V + place + i] : 0.0f;
    copy_map(0, maps + segment * map, K);
    for (int moved = 0;; ++moved, segment += move) {
        if (inside) {
            UNROLL
            for (int i = 0; i < 8; ++i) edges[segment * K * V + place + i] = x[i];
        }
        if (moved == NS - 1) break;
        const unsigned state = OF_STATE + moved % 2 * (WIDEST * STRIP * 4), own = moved % 2 * MAP;
        put_four(state + (row * STRIP + part) * 4, x), put_four(state + (row * STRIP + part) * 4 + 16, x + 4);
        UNROLL
        for (int i = 0; i < 8; ++i) x[i] = inside ? ends[segment * K * V + place + i] : 0.0f;
        wait_for_copies();
        barrier();
        if (moved < NS - 2) copy_map(MAP - own, maps + (segment + move) * map, K);
        for (int c = 0; c < K; c += 4) {
            float m[4];
            if (back) {
                UNROLL
                for (int j = 0; j < 4; ++j) m[j] = load_one(own + ((c + j) * LINE + row) * 4);
            } else
                load_four(m, own + (row * LINE + c) * 4);
            UNROLL
            for (int j = 0; j < 4; ++j) {
                float s[8];
                load_four(s, state + ((c + j) * STRIP + part) * 4),
                    load_four(s + 4, state + ((c + j) * STRIP + part) * 4 + 16);
                UNROLL
                for (int i = 0; i < 8; ++i) x[i] += m[j] * s[i];
            }
        }
    }
}
