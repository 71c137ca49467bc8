// A tile is LENGTH steps of CHANNELS channels, in shared memory in the operands' own types. LANES lanes of a warp
// hold a run, STEPS steps in a row, of VECTOR channels each; a warp has RUNS_A_WARP runs side by side, a tile RUNS.
//
// STEPS, WARPS, VECTOR, LANES, SLOTS, GROUP: sizes. GATE, DATA: types. COMPLEX: there is a phase. CONST_GATE,
// CONST_PHASE: the same at every step. ALIGNED: rows and pointers are multiples of 16 bytes. CHAINED: see walk.cuh.
#include "number.cuh"

constexpr int CHANNELS = LANES * VECTOR;
constexpr int RUNS_A_WARP = 32 / LANES;
constexpr int RUNS = WARPS * RUNS_A_WARP;
constexpr int LENGTH = STEPS * RUNS;
constexpr int THREADS = 32 * WARPS;
// Steps. A strand keeps all of them in registers, and a real chain gains by having them all under way.
constexpr int UNROLLED = !(COMPLEX && CHAINED) ? STEPS : STEPS % 8 == 0 ? 8 : STEPS % 5 == 0 ? 5 : STEPS;
constexpr float LOG2_E = 1.4426950408889634f;
static_assert(THREADS % CHANNELS == 0, "threads share the channels evenly");

struct Sizes {
    long long B, T, C, gate_batch, phase_batch;  // elements from a batch element's gates to the next one's
    FUNCTION int tiles() const { return (int)((T + LENGTH - 1) / LENGTH); }
    FUNCTION int groups() const { return (tiles() + GROUP - 1) / GROUP; }
    FUNCTION int blocks() const { return (int)((C + CHANNELS - 1) / CHANNELS); }
    FUNCTION int strands() const { return (int)B * blocks(); }
};

// Rows that a tile from step `first` on has.
FUNCTION int rows_from(long long first, const Sizes& sizes) {
    return sizes.T - first < LENGTH ? (int)(sizes.T - first) : LENGTH;
}

// Tile `order` of a strand (a block of channels of a batch element), in the order of the scan.
struct Tile {
    bool there;
    int order;
    long long batch, channel;

    FUNCTION Tile(const Sizes& sizes, unsigned ticket) {
        unsigned strands = sizes.strands(), blocks = sizes.blocks(), strand = ticket % strands;
        order = (int)(ticket / strands);
        there = order < sizes.tiles();
        batch = strand / blocks;
        channel = (long long)(strand % blocks) * CHANNELS;
    }

    // Another tile of the strand.
    FUNCTION Tile at(int other, const Sizes& sizes) const {
        Tile tile = *this;
        tile.order = other;
        tile.there = other < sizes.tiles();
        return tile;
    }
};

FUNCTION int warp() { return thread() / 32; }
FUNCTION int run() { return thread() / LANES; }
FUNCTION int run_of_warp() { return thread() % 32 / LANES; }
FUNCTION int column() { return thread() % LANES * VECTOR; }

// The rows of an operand in a slot. A row narrower than the banks leaves one row free after each run, so that the
// runs that a warp reads together lie in different banks.
template <class T, bool CONST = false>
struct Rows {
    static constexpr int ROW = CHANNELS * sizeof(T);
    static constexpr int RUN = STEPS * ROW + (ROW < 128 ? ROW : 0);
    static constexpr int BYTES = CONST ? ROW : RUNS * RUN;

    FUNCTION static int at(int row) { return CONST ? 0 : row / STEPS * RUN + row % STEPS * ROW; }
    // This thread's channels of a row.
    FUNCTION static T* of(unsigned char* slot, int row) { return (T*)(slot + at(row)) + column(); }
};

// This thread's channels of a row, which starts at channel 0.
template <class T, class X>
FUNCTION void store(T* row, const Tile& tile, const Sizes& sizes, const X (&x)[VECTOR]) {
    long long c = tile.channel + column();
    if (ALIGNED) {
        if (c < sizes.C) write(row + c, x);
    } else {
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            if (c + v < sizes.C) write_one(row + c + v, x[v]);
        }
    }
}

// One channel of a row of states, or 0.
FUNCTION Number fetch(const Number* row, long long channel, const Sizes& sizes) {
    return row != nullptr && channel < sizes.C ? row[channel] : ZERO;
}

// A tile's rows from row `first` on, of `rows` that there are, into shared memory; 0 beyond. Constant: row 0.
template <class T, bool CONST = false>
FUNCTION void copy(unsigned char* slot, const T* from, long long first, long long rows, const Tile& tile,
                   const Sizes& sizes) {
    using Place = Rows<T, CONST>;
    constexpr int COUNT = CONST ? 1 : LENGTH;
    constexpr int WIDTH = ALIGNED ? 16 / sizeof(T) : 1;
    constexpr int PIECES = CHANNELS / WIDTH, STRIDE = THREADS / PIECES, TURNS = (COUNT + STRIDE - 1) / STRIDE;
    static_assert(THREADS % PIECES == 0, "a thread copies the same channels of every row");
    if (CONST) first = 0, rows = 1;
    int row = thread() / PIECES, at = thread() % PIECES * WIDTH;
    int begin = first < 0 ? (int)-first : 0, end = rows - first < COUNT ? (int)(rows - first) : COUNT;
    bool whole = begin == 0 && end == COUNT && tile.channel + CHANNELS <= sizes.C && COUNT % STRIDE == 0;
    if (tile.channel + at >= sizes.C) end = 0;
    from += (first + row) * sizes.C + tile.channel + at;
    auto to = [&](int i) {
        // With powers of two only the first row has a quotient that is not known.
        int there = STRIDE % STEPS == 0   ? Place::at(row) + i * (STRIDE / STEPS) * Place::RUN
                    : STEPS % STRIDE == 0 ? row * Place::ROW + Place::at(i * STRIDE)
                                          : Place::at(row + i * STRIDE);
        return (T*)(slot + (CONST ? 0 : there)) + at;
    };
    if constexpr (ALIGNED) {
        if (whole) {
            UNROLL for (int i = 0; i < TURNS; ++i, from += STRIDE * sizes.C) copy_16(to(i), from);
        } else {
            UNROLL_BY(2) for (int i = 0; i < TURNS; ++i, from += STRIDE * sizes.C) {
                int r = row + i * STRIDE;
                if (r < COUNT) copy_16(to(i), from, r >= begin && r < end);
            }
        }
    } else {
        UNROLL_BY(2) for (int i = 0; i < TURNS; ++i, from += STRIDE * sizes.C) {
            int r = row + i * STRIDE;
            T zero{};
            if (r < COUNT) *to(i) = r >= begin && r < end ? *from : zero;
        }
    }
}

// Whether composing leaves the gates in place of their logs (of phases: real and imaginary part), for replaying. Half
// types could not hold them.
constexpr bool LEAVES_GATES = CHAINED && COMPLEX && sizeof(GATE) == 4 && !CONST_GATE && !CONST_PHASE;

// The gates of a row, with phases where there are; 1 beyond the last step. AGAIN: after composing.
template <bool AGAIN>
FUNCTION void gates(unsigned char* log_a, unsigned char* phase, int row, bool inside, Number (&a)[VECTOR]) {
    float x[VECTOR], y[VECTOR];
    read(Rows<GATE, CONST_GATE>::of(log_a, row), x);
    if (COMPLEX) read(Rows<GATE, CONST_PHASE>::of(phase, row), y);
    if (!(AGAIN && LEAVES_GATES)) {
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            x[v] = power_of_two(x[v] * LOG2_E);
            if (!COMPLEX) continue;
            float cosine, sine;
            cos_sin(y[v], cosine, sine);
            y[v] = x[v] * sine;
            x[v] *= cosine;
        }
        if (LEAVES_GATES) {
            write(Rows<GATE>::of(log_a, row), x);
            if (COMPLEX) write(Rows<GATE>::of(phase, row), y);
        }
    }
    UNROLL for (int v = 0; v < VECTOR; ++v) {
        a[v].re = x[v];
#if COMPLEX
        a[v].im = y[v];
#endif
        if ((CONST_GATE || CONST_PHASE) && !inside) a[v] = ONE;
    }
}
