// A tile is LENGTH steps of CHANNELS channels, in shared memory in the operands' own types. Lane l of warp r
// holds run r, STEPS steps in a row, of VECTOR channels from l * VECTOR on.
//
// STEPS, RUNS, VECTOR, SLOTS, GROUP: sizes. GATE, DATA: types. CONST_GATE: the gate is the same at every
// step. ALIGNED: rows and pointers are multiples of 16 bytes. CHAINED: see walk.cuh.
#include "device.cuh"

constexpr int CHANNELS = 32 * VECTOR;
constexpr int LENGTH = STEPS * RUNS;
constexpr int THREADS = 32 * RUNS;
constexpr int GATE_ROWS = CONST_GATE ? 1 : LENGTH;
constexpr float LOG2_E = 1.4426950408889634f;

template <int N>
struct alignas(4 * N) Bits {
    unsigned word[N];
};

// After a span of steps the state is a * (state before) + x.
struct Map {
    float a, x;
};
struct alignas(8 * VECTOR) Maps {
    Map of[VECTOR];
};

struct Sizes {
    long long B, T, C, gate_batch;  // elements from a batch element's gates to the next one's
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

// One step of this thread's channels; past: the state of the step before, in backward.
struct Step {
    float a[VECTOR], x[VECTOR], past[VECTOR];
};

FUNCTION int run() { return thread() / 32; }
FUNCTION int column() { return thread() % 32 * VECTOR; }

FUNCTION void identity(Maps& maps) {
    UNROLL for (int v = 0; v < VECTOR; ++v) maps.of[v] = {1.f, 0.f};
}

// `first`, and then `second`.
FUNCTION void follow(Maps& first, const Maps& second) {
    UNROLL for (int v = 0; v < VECTOR; ++v) {
        first.of[v].x = second.of[v].a * first.of[v].x + second.of[v].x;
        first.of[v].a *= second.of[v].a;
    }
}

FUNCTION void apply(const Maps& maps, const float (&state)[VECTOR], float (&after)[VECTOR]) {
    UNROLL for (int v = 0; v < VECTOR; ++v) after[v] = maps.of[v].a * state[v] + maps.of[v].x;
}

FUNCTION void read(const float* from, float (&x)[VECTOR]) {
    Bits<VECTOR> bits = *reinterpret_cast<const Bits<VECTOR>*>(from);
    UNROLL for (int v = 0; v < VECTOR; ++v) x[v] = as_float(bits.word[v]);
}

template <class T>
FUNCTION void read(const T* from, float (&x)[VECTOR]) {
    if constexpr (VECTOR == 1) {
        x[0] = widened(*from);
    } else {
        const auto bits = *reinterpret_cast<const Bits<sizeof(T) * VECTOR / 4>*>(from);
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            x[v] = widened(T{(unsigned short)(bits.word[v / 2] >> (v % 2 * 16))});
        }
    }
}

FUNCTION void write(float* to, const float (&x)[VECTOR]) {
    Bits<VECTOR> bits;
    UNROLL for (int v = 0; v < VECTOR; ++v) bits.word[v] = as_bits(x[v]);
    *reinterpret_cast<Bits<VECTOR>*>(to) = bits;
}

FUNCTION void write_one(float* to, float x) { *to = x; }
template <class T>
FUNCTION void write_one(T* to, float x) {
    to->bits = (unsigned short)packed(x, 0.f, T{});
}

template <class T>
FUNCTION void write(T* to, const float (&x)[VECTOR]) {
    if constexpr (VECTOR == 1) {
        write_one(to, x[0]);
    } else {
        Bits<sizeof(T) * VECTOR / 4> bits;
        UNROLL for (int v = 0; v < VECTOR; v += 2) bits.word[v / 2] = packed(x[v], x[v + 1], T{});
        *reinterpret_cast<decltype(bits)*>(to) = bits;
    }
}

// This thread's channels of a row, which starts at channel 0.
template <class T>
FUNCTION void store(T* row, const Tile& tile, const Sizes& sizes, const float (&x)[VECTOR]) {
    long long c = tile.channel + column();
    if (ALIGNED) {
        if (c < sizes.C) write(row + c, x);
    } else {
        UNROLL for (int v = 0; v < VECTOR; ++v) {
            if (c + v < sizes.C) write_one(row + c + v, x[v]);
        }
    }
}

FUNCTION void fetch(const float* row, const Tile& tile, const Sizes& sizes, float (&x)[VECTOR]) {
    long long c = tile.channel + column();
    UNROLL for (int v = 0; v < VECTOR; ++v) x[v] = row != nullptr && c + v < sizes.C ? row[c + v] : 0.f;
}

// ROWS rows of a tile from row `first` on, of `rows` that there are, into shared memory; 0 beyond.
template <int ROWS, class T>
FUNCTION void copy(T* to, const T* from, long long first, long long rows, const Tile& tile, const Sizes& sizes) {
    constexpr int WIDTH = ALIGNED ? 16 / sizeof(T) : 1;
    constexpr int PIECES = CHANNELS / WIDTH, STRIDE = THREADS / PIECES, TURNS = (ROWS + STRIDE - 1) / STRIDE;
    static_assert(THREADS % PIECES == 0, "a thread copies the same channels of every row");
    int row = thread() / PIECES, at = thread() % PIECES * WIDTH;
    int begin = first < 0 ? (int)-first : 0, end = rows - first < ROWS ? (int)(rows - first) : ROWS;
    if (tile.channel + at >= sizes.C) end = 0;
    from += (first + row) * sizes.C + tile.channel + at;
    to += row * CHANNELS + at;
    UNROLL_BY(ALIGNED ? TURNS : 4) for (int i = 0; i < TURNS; ++i) {
        bool inside = row >= begin && row < end;
        if (ROWS % STRIDE == 0 || row < ROWS) {
            if constexpr (ALIGNED) {
                copy_16(to, from, inside);
            } else {
                T zero{};
                *to = inside ? *from : zero;
            }
        }
        row += STRIDE;
        from += STRIDE * sizes.C;
        to += STRIDE * CHANNELS;
    }
}

// The gates of a row; 1 beyond the last step.
FUNCTION void gates(const GATE* slot, int row, bool inside, float (&a)[VECTOR]) {
    float log_a[VECTOR];
    read(slot + (CONST_GATE ? 0 : row * CHANNELS) + column(), log_a);
    UNROLL for (int v = 0; v < VECTOR; ++v) a[v] = power_of_two(log_a[v] * LOG2_E);
    UNROLL for (int v = 0; v < VECTOR; ++v) a[v] = CONST_GATE && !inside ? 1.f : a[v];
}
