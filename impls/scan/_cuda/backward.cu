// m_t = a_t (g_t + m_{t+1}) from the last step to the first: db_t = g_t + m_{t+1}, d log_a_t = m_t h_{t-1},
// and the initial state's gradient is m_1. Tiles lie as in forward, the last one first.
#include "walk.cuh"

struct Backward {
    static constexpr bool SUMS = CONST_GATE;
    static constexpr int ROWS_BYTES = LENGTH * CHANNELS * sizeof(DATA);
    static constexpr int GATE_BYTES = GATE_ROWS * CHANNELS * sizeof(GATE);
    static constexpr int BYTES = GATE_BYTES + 2 * ROWS_BYTES;

    const GATE* log_a;
    const DATA *g, *h;
    const float *initial, *final_grad;
    DATA* db;
    GATE* da;        // of gates that differ from step to step
    float* partial;  // of those that don't, summed over a tile: (B, tiles, C)
    float* initial_grad;
    Sizes sizes;

    FUNCTION static float after(float a, float state, float x) { return a * (state + x); }

    FUNCTION bool wants_gates() const { return CONST_GATE ? partial != nullptr : da != nullptr; }
    FUNCTION long long first(const Tile& tile) const { return (long long)(sizes.tiles() - 1 - tile.order) * LENGTH; }

    FUNCTION void load(unsigned char* slot, const Tile& tile) const {
        long long at = first(tile), whole = tile.batch * sizes.T * sizes.C;
        copy<GATE_ROWS>((GATE*)slot, log_a + tile.batch * sizes.gate_batch, CONST_GATE ? 0 : at,
                        CONST_GATE ? 1 : sizes.T, tile, sizes);
        copy<LENGTH>((DATA*)(slot + GATE_BYTES), g + whole, at, sizes.T, tile, sizes);
        if (wants_gates())
            copy<LENGTH>((DATA*)(slot + GATE_BYTES + ROWS_BYTES), h + whole, at - 1, sizes.T, tile, sizes);
    }

    FUNCTION void step(const unsigned char* slot, const Tile& tile, int place, Step& step) const {
        int row = LENGTH - 1 - place;
        const DATA* data = (const DATA*)(slot + GATE_BYTES) + row * CHANNELS + column();
        gates((const GATE*)slot, row, row < rows_from(first(tile), sizes), step.a);
        read(data, step.x);
        read(data + LENGTH * CHANNELS, step.past);
    }

    FUNCTION void entry(const Tile& tile, float (&state)[VECTOR]) const {
        fetch(final_grad == nullptr ? nullptr : final_grad + tile.batch * sizes.C, tile, sizes, state);
    }

    FUNCTION void replay(const unsigned char* slot, const Tile& tile, float (&state)[VECTOR], float* totals,
                         const Held& held) const {
        int place = run() * STEPS, row = LENGTH - 1 - place, rows = rows_from(first(tile), sizes);
        long long at = (tile.batch * sizes.T + first(tile) + row) * sizes.C;
        float total[VECTOR] = {};
        UNROLL for (int i = 0; i < STEPS; ++i, ++place, --row, at -= sizes.C) {
            Step now = held.steps[CHAINED ? 0 : i];
            if (CHAINED) step(slot, tile, place, now);
            UNROLL for (int v = 0; v < VECTOR; ++v) state[v] += now.x[v];
            if (db != nullptr && row < rows) store(db + at, tile, sizes, state);
            UNROLL for (int v = 0; v < VECTOR; ++v) state[v] *= now.a[v];
            if (!wants_gates()) continue;
            if (i == STEPS - 1 && row == 0 && first(tile) == 0)
                fetch(initial == nullptr ? nullptr : initial + tile.batch * sizes.C, tile, sizes, now.past);
            UNROLL for (int v = 0; v < VECTOR; ++v) now.past[v] *= state[v];
            if (CONST_GATE) {
                UNROLL for (int v = 0; v < VECTOR; ++v) total[v] += row < rows ? now.past[v] : 0.f;
            } else if (row < rows) {
                store(da + at, tile, sizes, now.past);
            }
        }
        if (CONST_GATE) write(totals + column(), total);
    }

    FUNCTION void sum_up(const Tile& tile, const float (*totals)[CHANNELS]) const {
        if (partial == nullptr || run() != 0) return;
        float sum[VECTOR] = {};
        UNROLL for (int r = 0; r < (SUMS ? RUNS : 1); ++r) {
            float one[VECTOR];
            read(totals[r] + column(), one);
            UNROLL for (int v = 0; v < VECTOR; ++v) sum[v] += one[v];
        }
        store(partial + (tile.batch * sizes.tiles() + tile.order) * sizes.C, tile, sizes, sum);
    }

    FUNCTION void finish(const Tile& tile, const float (&state)[VECTOR]) const {
        if (initial_grad != nullptr) store(initial_grad + tile.batch * sizes.C, tile, sizes, state);
    }
};

ENTRY void cuda_scan_backward(const GATE* log_a, const DATA* g, const DATA* h, const float* initial,
                              const float* final_grad, DATA* db, GATE* da, float* partial, float* initial_grad,
                              Word* words, long long B, long long T, long long C, long long gate_batch) {
    walk(Backward{log_a, g, h, initial, final_grad, db, da, partial, initial_grad, {B, T, C, gate_batch}}, words);
}
