// m_t = conj(a_t) (g_t + m_{t+1}) from the last step to the first: db_t = g_t + m_{t+1}, with w_t = m_t conj(h_{t-1})
// d log_a_t = Re w_t and d phase_t = Im w_t, and the initial state's gradient is m_1. Tiles lie as in forward, the last
// one first.
#include "walk.cuh"

struct Backward {
    static constexpr bool READS_AGAIN = true;
    static constexpr bool SUMS = CONST_GATE || CONST_PHASE;
    static constexpr int GATE_BYTES = Rows<GATE, CONST_GATE>::BYTES;
    static constexpr int PHASE_BYTES = COMPLEX ? Rows<GATE, CONST_PHASE>::BYTES : 0;
    static constexpr int G = GATE_BYTES + PHASE_BYTES, H = G + Rows<DATA>::BYTES;  // where they start
    static constexpr int BYTES = (H + Rows<DATA>::BYTES + 127) / 128 * 128;

    const GATE *log_a, *phase;
    const DATA *g, *h;
    const Number *initial, *final_grad;
    DATA* db;
    GATE *da, *dphase;  // of gates that differ from step to step
    Number* partial;    // of those that don't, w summed over a tile: (B, tiles, C)
    Number* initial_grad;
    Sizes sizes;

    FUNCTION static Number after(Number a, Number state, Number x) { return times(a, plus(state, x)); }
    FUNCTION bool wants_gates() const { return da != nullptr || dphase != nullptr || partial != nullptr; }
    FUNCTION long long first(const Tile& tile) const { return (long long)(sizes.tiles() - 1 - tile.order) * LENGTH; }

    FUNCTION void load(unsigned char* slot, const Tile& tile) const {
        long long at = first(tile), whole = tile.batch * sizes.T * sizes.C;
        copy<GATE, CONST_GATE>(slot, log_a + tile.batch * sizes.gate_batch, at, sizes.T, tile, sizes);
        if (COMPLEX)
            copy<GATE, CONST_PHASE>(slot + GATE_BYTES, phase + tile.batch * sizes.phase_batch, at, sizes.T, tile,
                                    sizes);
        copy(slot + G, g + whole, at, sizes.T, tile, sizes);
        if (wants_gates()) copy(slot + H, h + whole, at - 1, sizes.T, tile, sizes);
    }

    template <bool AGAIN>
    FUNCTION void step(unsigned char* slot, const Tile& tile, int place, Number (&a)[VECTOR],
                       Number (&x)[VECTOR]) const {
        int row = LENGTH - 1 - place;
        gates<AGAIN>(slot, slot + GATE_BYTES, row, row < rows_from(first(tile), sizes), a);
        UNROLL for (int v = 0; v < VECTOR; ++v) a[v] = conjugate(a[v]);
        read(Rows<DATA>::of(slot + G, row), x);
    }

    FUNCTION const Number* entry(const Tile& tile) const {
        return final_grad == nullptr ? nullptr : final_grad + tile.batch * sizes.C;
    }

    FUNCTION void replay(unsigned char* slot, const Tile& tile, const Number (&state)[VECTOR], const Held& held,
                         Shared& shared) const {
        int row = LENGTH - 1 - run() * STEPS, rows = rows_from(first(tile), sizes);
        long long at = (tile.batch * sizes.T + first(tile) + row) * sizes.C;
        Number m[VECTOR], total[VECTOR];
        UNROLL for (int v = 0; v < VECTOR; ++v) m[v] = state[v], total[v] = ZERO;
        UNROLL_BY(UNROLLED) for (int i = 0; i < STEPS; ++i, --row, at -= sizes.C) {
            bool inside = row < rows;
            Number a[VECTOR], x[VECTOR], w[VECTOR];
            if (CHAINED) {
                step<true>(slot, tile, LENGTH - 1 - row, a, x);
            } else {
                read(Rows<DATA>::of(slot + G, row), x);
            }
            UNROLL for (int v = 0; v < VECTOR; ++v) {
                x[v] = plus(x[v], m[v]);
                m[v] = CHAINED ? times(a[v], x[v])
                               : times_plus(held.product[CHAINED ? 0 : i][v], state[v],
                                            held.from_zero[CHAINED ? 0 : i][v]);
            }
            if (db != nullptr && inside) store(db + at, tile, sizes, x);
            if (!wants_gates()) continue;
            read(Rows<DATA>::of(slot + H, row), w);
            if (i == STEPS - 1 && row == 0 && first(tile) == 0) {
                const Number* before = initial == nullptr ? nullptr : initial + tile.batch * sizes.C;
                UNROLL for (int v = 0; v < VECTOR; ++v) w[v] = fetch(before, tile.channel + column() + v, sizes);
            }
            UNROLL for (int v = 0; v < VECTOR; ++v) {
                w[v] = times(m[v], conjugate(w[v]));
                if (SUMS && inside) total[v] = plus(total[v], w[v]);
            }
            float part[VECTOR];
            UNROLL for (int v = 0; v < VECTOR; ++v) part[v] = w[v].re;
            if (!CONST_GATE && da != nullptr && inside) store(da + at, tile, sizes, part);
#if COMPLEX
            UNROLL for (int v = 0; v < VECTOR; ++v) part[v] = w[v].im;
            if (!CONST_PHASE && dphase != nullptr && inside) store(dphase + at, tile, sizes, part);
#endif
        }
        if (SUMS && partial != nullptr) sum_up(tile, total, shared);
    }

    // Over the runs of a warp, then over the warps.
    FUNCTION void sum_up(const Tile& tile, Number (&total)[VECTOR], Shared& shared) const {
        UNROLL for (int by = LANES; by < 32; by *= 2) {
            UNROLL for (int v = 0; v < VECTOR; ++v) total[v] = plus(total[v], shuffle_xor(total[v], by));
        }
        if (run_of_warp() == 0) {
            UNROLL for (int v = 0; v < VECTOR; ++v) shared.totals[SUMS ? warp() : 0][column() + v] = total[v];
        }
        barrier();
        long long channel = tile.channel + thread();
        if (thread() >= CHANNELS || channel >= sizes.C) return;
        Number sum = ZERO;
        UNROLL for (int w = 0; w < (SUMS ? WARPS : 1); ++w) sum = plus(sum, shared.totals[w][thread()]);
        partial[(tile.batch * sizes.tiles() + tile.order) * sizes.C + channel] = sum;
    }

    FUNCTION void finish(const Tile& tile, const Number (&state)[VECTOR]) const {
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            long long c = tile.channel + column() + v;
            if (initial_grad != nullptr && c < sizes.C) initial_grad[tile.batch * sizes.C + c] = state[v];
        }
    }
};

ENTRY void cuda_scan_backward(const GATE* log_a, const GATE* phase, const DATA* g, const DATA* h,
                              const Number* initial, const Number* final_grad, DATA* db, GATE* da, GATE* dphase,
                              Number* partial, Number* initial_grad, Word* words, long long B, long long T,
                              long long C, long long gate_batch, long long phase_batch) {
    walk(Backward{log_a, phase, g, h, initial, final_grad, db, da, dphase, partial, initial_grad,
                  {B, T, C, gate_batch, phase_batch}}, words);
}
