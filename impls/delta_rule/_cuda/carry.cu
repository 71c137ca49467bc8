// The state in which each segment of a head begins, from what each makes of any state: S -> M S + U. Backward, the
// gradient of the state in which each ends: dS -> M^T dS + dU, from the last segment on. A block has 16 values of a
// head, and a warp 16 keys of them.
#include "parts.cuh"

constexpr int STRIP = 16, LINE = WIDEST + 16;  // a pitch without conflicts

// A warp's rows of a map, as the left sides of products: 8 numbers of each 16 columns, four of a row and of the eighth
// after it.
FUNCTION void load_columns(float* m, const float* map, int row, int column, int K, bool back) {
    UNROLL
    for (int side = 0; side < 2; ++side) {
        const int own = row + 8 * side;
        float x[4] = {};
        if (own < K && column < K) {
            if (back) {
                UNROLL
                for (int i = 0; i < 4; ++i) x[i] = map[(column + i) * K + own];
            } else
                take_four(x, map + own * K + column);
        }
        UNROLL
        for (int i = 0; i < 4; ++i) m[i / 2 * 4 + 2 * side + i % 2] = x[i];
    }
}

struct Place {
    int row, first, K, V;
};  // of a thread's numbers in a state: two rows, and two of each eight values
template <class Use>
FUNCTION void for_each(const Place& place, Use use) {
    UNROLL
    for (int i = 0; i < 8; ++i) {
        int row = place.row + i / 2 % 2 * 8, value = place.first + i / 4 * 8 + i % 2;
        if (row < place.K && value < place.V) use(i, (long long)row * place.V + value);
    }
}

// edges (heads, NS, K, V) from maps (heads, NS, K, K) and ends (heads, NS, K, V). given: the first edge, (heads, K, V),
// or none for 0. Maps and ends are loaded an edge ahead.
ENTRY(256, 1)
cuda_delta_carry(const float* maps, const float* ends, const float* given, float* edges, int NS, int K, int V,
                 int back) {
    const int strips = (V + STRIP - 1) / STRIP, lane = thread() % 32, group = lane / 4, pair = lane % 4;
    const int row = thread() / 32 * 16 + group, move = back ? -1 : 1;
    const long long head = block() / strips, map = (long long)K * K, state = (long long)K * V;
    const Place place = {row, block() % strips * STRIP + 2 * pair, K, V};
    long long segment = head * NS + (back ? NS - 1 : 0);
    float x[8] = {}, u[8] = {}, m[8][8];
    if (given) for_each(place, [&](int i, long long at) { x[i] = given[head * state + at]; });
    const float* own_map = maps + segment * map;
    if (NS > 1) {
        for_each(place, [&](int i, long long at) { u[i] = ends[segment * state + at]; });
        UNROLL
        for (int part = 0; part < 8; ++part) load_columns(m[part], own_map, row, 16 * part + 4 * pair, K, back);
    }
    for (int moved = 0;; ++moved) {
        for_each(place, [&](int i, long long at) { edges[segment * state + at] = x[i]; });
        if (moved == NS - 1) break;
        const unsigned own = moved % 2 * STRIP * LINE * 4;  // x, turned
        UNROLL
        for (int i = 0; i < 8; ++i)
            put_float(own + ((i / 4 * 8 + 2 * pair + i % 2) * LINE + row + i / 2 % 2 * 8) * 4, x[i]);
        barrier();
        float rest[8] = {};
        UNROLL
        for (int i = 0; i < 8; ++i) x[i] = u[i];
        segment += move, own_map += move * map;
        const bool more = moved < NS - 2;
        if (more) for_each(place, [&](int i, long long at) { u[i] = ends[segment * state + at]; });
        UNROLL
        for (int part = 0; part < 8; ++part) {
            float left[8], b[2][4];
            left_of(left, m[part]);
            UNROLL
            for (int n = 0; n < 2; ++n)
                load_four(b[n], own + ((8 * n + group) * LINE + 16 * part + 4 * pair) * 4);
            UNROLL
            for (int i = 0; i < 4; ++i) {
                const int n = i % 2, k = i / 2;
                split_product(x + 4 * n, rest + 4 * n, m[part] + 4 * k, left + 4 * k, {b[n][2 * k], b[n][2 * k + 1]});
            }
            if (more) load_columns(m[part], own_map, row, 16 * part + 4 * pair, K, back);
        }
        UNROLL
        for (int i = 0; i < 8; ++i) x[i] += rest[i];
    }
}
