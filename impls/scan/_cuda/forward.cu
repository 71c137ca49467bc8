// h_t = a_t h_{t-1} + b_t
#include "walk.cuh"

struct Forward {
    static constexpr bool SUMS = false;  // over the steps of a tile
    static constexpr int GATE_BYTES = GATE_ROWS * CHANNELS * sizeof(GATE);
    static constexpr int BYTES = GATE_BYTES + LENGTH * CHANNELS * sizeof(DATA);

    const GATE* log_a;
    const DATA* b;
    const float* initial;
    DATA* h;
    float* final_state;
    Sizes sizes;

    FUNCTION static float after(float a, float state, float x) { return a * state + x; }

    FUNCTION void load(unsigned char* slot, const Tile& tile) const {
        long long first = (long long)tile.order * LENGTH;
        copy<GATE_ROWS>((GATE*)slot, log_a + tile.batch * sizes.gate_batch, CONST_GATE ? 0 : first,
                        CONST_GATE ? 1 : sizes.T, tile, sizes);
        copy<LENGTH>((DATA*)(slot + GATE_BYTES), b + tile.batch * sizes.T * sizes.C, first, sizes.T, tile, sizes);
    }

    FUNCTION void step(const unsigned char* slot, const Tile& tile, int row, Step& step) const {
        gates((const GATE*)slot, row, row < rows_from((long long)tile.order * LENGTH, sizes), step.a);
        read((const DATA*)(slot + GATE_BYTES) + row * CHANNELS + column(), step.x);
    }

    FUNCTION void entry(const Tile& tile, float (&state)[VECTOR]) const {
        fetch(initial == nullptr ? nullptr : initial + tile.batch * sizes.C, tile, sizes, state);
    }

    FUNCTION void replay(const unsigned char* slot, const Tile& tile, float (&state)[VECTOR], float*,
                         const Held& held) const {
        long long first = (long long)tile.order * LENGTH;
        int row = run() * STEPS, rows = rows_from(first, sizes);
        DATA* to = h + (tile.batch * sizes.T + first + row) * sizes.C;
        UNROLL for (int i = 0; i < STEPS; ++i, ++row, to += sizes.C) {
            Step now = held.steps[CHAINED ? 0 : i];
            if (CHAINED) step(slot, tile, row, now);
            UNROLL for (int v = 0; v < VECTOR; ++v) state[v] = after(now.a[v], state[v], now.x[v]);
            if (row < rows) store(to, tile, sizes, state);
        }
    }

    FUNCTION void sum_up(const Tile&, const float (*)[CHANNELS]) const {}

    FUNCTION void finish(const Tile& tile, const float (&state)[VECTOR]) const {
        store(final_state + tile.batch * sizes.C, tile, sizes, state);
    }
};

ENTRY void cuda_scan_forward(const GATE* log_a, const DATA* b, const float* initial, DATA* h, float* final_state,
                             Word* words, long long B, long long T, long long C, long long gate_batch) {
    walk(Forward{log_a, b, initial, h, final_state, {B, T, C, gate_batch}}, words);
}
