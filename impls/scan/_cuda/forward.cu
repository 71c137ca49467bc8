// h_t = a_t h_{t-1} + b_t
#include "walk.cuh"

struct Forward {
    static constexpr bool READS_AGAIN = false;
    static constexpr int GATE_BYTES = Rows<GATE, CONST_GATE>::BYTES;
    static constexpr int PHASE_BYTES = COMPLEX ? Rows<GATE, CONST_PHASE>::BYTES : 0;
    static constexpr int BYTES = (GATE_BYTES + PHASE_BYTES + Rows<DATA>::BYTES + 127) / 128 * 128;

    const GATE *log_a, *phase;
    const DATA* b;
    const Number* initial;
    DATA* h;
    Number* final_state;
    Sizes sizes;

    FUNCTION static Number after(Number a, Number state, Number x) { return times_plus(a, state, x); }
    FUNCTION static long long first(const Tile& tile) { return (long long)tile.order * LENGTH; }

    FUNCTION void load(unsigned char* slot, const Tile& tile) const {
        copy<GATE, CONST_GATE>(slot, log_a + tile.batch * sizes.gate_batch, first(tile), sizes.T, tile, sizes);
        if (COMPLEX)
            copy<GATE, CONST_PHASE>(slot + GATE_BYTES, phase + tile.batch * sizes.phase_batch, first(tile), sizes.T,
                                    tile, sizes);
        copy(slot + GATE_BYTES + PHASE_BYTES, b + tile.batch * sizes.T * sizes.C, first(tile), sizes.T, tile, sizes);
    }

    template <bool AGAIN>
    FUNCTION void step(unsigned char* slot, const Tile& tile, int row, Number (&a)[VECTOR],
                       Number (&x)[VECTOR]) const {
        gates<AGAIN>(slot, slot + GATE_BYTES, row, row < rows_from(first(tile), sizes), a);
        read(Rows<DATA>::of(slot + GATE_BYTES + PHASE_BYTES, row), x);
    }

    FUNCTION const Number* entry(const Tile& tile) const {
        return initial == nullptr ? nullptr : initial + tile.batch * sizes.C;
    }

    FUNCTION void replay(unsigned char* slot, const Tile& tile, const Number (&state)[VECTOR], const Held& held,
                         Shared&) const {
        int row = run() * STEPS, rows = rows_from(first(tile), sizes);
        DATA* to = h + (tile.batch * sizes.T + first(tile) + row) * sizes.C;
        Number now[VECTOR];
        UNROLL for (int v = 0; v < VECTOR; ++v) now[v] = state[v];
        UNROLL_BY(UNROLLED) for (int i = 0; i < STEPS; ++i, ++row, to += sizes.C) {
            if (CHAINED) {
                Number a[VECTOR], x[VECTOR];
                step<true>(slot, tile, row, a, x);
                UNROLL for (int v = 0; v < VECTOR; ++v) now[v] = after(a[v], now[v], x[v]);
            } else {
                UNROLL for (int v = 0; v < VECTOR; ++v)
                    now[v] = times_plus(held.product[i][v], state[v], held.from_zero[i][v]);
            }
            if (row < rows) store(to, tile, sizes, now);
        }
    }

    FUNCTION void finish(const Tile& tile, const Number (&state)[VECTOR]) const {
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            long long c = tile.channel + column() + v;
            if (c < sizes.C) final_state[tile.batch * sizes.C + c] = state[v];
        }
    }
};

ENTRY void cuda_scan_forward(const GATE* log_a, const GATE* phase, const DATA* b, const Number* initial, DATA* h,
                             Number* final_state, Word* words, long long B, long long T, long long C,
                             long long gate_batch, long long phase_batch) {
    walk(Forward{log_a, phase, b, initial, h, final_state, {B, T, C, gate_batch, phase_batch}}, words);
}
