// What the kernels share: where chunks lie, and how their tiles lie in shared memory.
#ifndef SSMPERF_DELTA_PARTS
#define SSMPERF_DELTA_PARTS
#include "device.cuh"

constexpr int C = 64;        // steps of a chunk
constexpr int WIDEST = 128;  // keys; a program has all of them
constexpr int HALF = 8192;   // bytes of 64 rows of 64 numbers
constexpr int VECTORS =
    5 * C;  // of a chunk: gamma, gamma_C / gamma, beta, and pairs of a sum of log gates and a number of resets
// Registers that a thread of each of three or four groups may have together, or they wait for ever.
constexpr int THIRDS = 3 * 168, QUARTERS = 4 * 128;
constexpr float RESET = -104.0f;  // float32 exp of anything below is 0

// Low words of descriptors of the sides of products, in units of 16 bytes: tiles of 8 rows lie 1,024 bytes apart.
// BY_ROW: contiguous along what is summed over. BY_COLUMN: along the other axis, with the next 64 numbers a tile of 64
// rows away.
constexpr unsigned BY_ROW = 1 << 16, BY_COLUMN = HALF / 16 << 16;

// In the same units, where step i of a sum over 16 numbers at a time begins: in a tile of two halves, along its rows or
// down.
FUNCTION unsigned along_row(int i) { return (i / 4 * HALF + i % 4 * 32) / 16; }
FUNCTION unsigned down_rows(int i) { return i * 16 * 128 / 16; }

// Products whose sums over keys or values, 128 of them, or over 64 steps begin and are closed here; they run on.
FUNCTION void start_square(float* d, unsigned left, unsigned right) {  // 64 x 64, both BY_ROW from shared memory
    products_begin();
    UNROLL
    for (int i = 0; i < 8; ++i) square_64(d, left + along_row(i), right + along_row(i), i > 0);
    products_close();
}
FUNCTION void start_adding(float* d, const unsigned* left, unsigned right) {  // 64 x 128, the right side BY_COLUMN
    products_begin();
    UNROLL
    for (int i = 0; i < 4; ++i) product_128(d, left + 4 * i, right + down_rows(i));
    products_close();
}

// Where 16 bytes of a row of 128 bytes lie, so that neither rows nor columns of eight share banks.
FUNCTION unsigned swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) << 4); }

// ROWS rows of 64 numbers; 0 from row `left` on and from column `width` on. The 128 threads of a warpgroup do it.
template <int ROWS>
FUNCTION void copy_half(unsigned to, const bfloat16* from, long long stride, int left, int width) {
    const int first = thread() % 128 / 8, piece = thread() % 8;
    const bfloat16* at = from + first * stride + piece * 8;
    to += swizzled(first, piece);
    if (piece * 8 >= width) left = 0;
    UNROLL
    for (int row = 0; row < ROWS; row += 16, at += 16 * stride)
        copy_16(to + row * 128, first + row < left ? at : from, first + row < left);
}
template <int ROWS>
FUNCTION void copy_tile(unsigned to, const bfloat16* from, long long stride, int left, int width) {
    copy_half<ROWS>(to, from, stride, left, width);
    copy_half<ROWS>(to + ROWS * 128, width > 64 ? from + 64 : from, stride, left, width - 64);
}
// A C x C matrix of which no block of 16 above the diagonal is stored: 8 columns after 8 columns, in global memory from
// the first row that is stored. Where the number at a row and the first of 8 columns lies there.
constexpr int SQUARE = 16 * (64 + 48 + 32 + 16);  // numbers
FUNCTION int stored_at(int row, int column) {
    int across = column / 16;
    return 16 * across * (64 - 8 * (across - 1)) + column % 16 * (C - 16 * across) + (row - 16 * across) * 8;
}
// In shared memory 8 columns have 64 rows of 16 bytes: the descriptors of sums along rows and down.
constexpr unsigned PIECES_BY_ROW = 1024 / 16 << 16, PIECES_BY_COLUMN = 128 / 16 << 16;
FUNCTION unsigned along_pieces(int i) { return i * 2 * 1024 / 16; }
FUNCTION unsigned down_pieces(int i) { return i * 16 * 16 / 16; }
constexpr int SQUARE_BYTES = 2 * SQUARE;
// PACKED: the last four pieces of 8 columns begin with row 32, so that they are 512 bytes apart, the others 1,024. In
// bytes, where a row of a piece lies.
constexpr int PACKED_BYTES = 4 * 1024 + 4 * 512;
template <bool PACKED>
FUNCTION unsigned place_of(int piece, int row) {
    return PACKED && piece > 3 ? 4096 + (piece - 4) * 512 + (row - 32) * 16 : piece * 1024 + row * 16;
}
template <bool PACKED = false>
FUNCTION void copy_square(unsigned to, const bfloat16* from, int i) {
    UNROLL
    for (int piece = 0; piece < 8; ++piece) {
        int row = piece / 2 * 16;
        copy_bytes(to + place_of<PACKED>(piece, row), from + stored_at(row, piece * 8), (C - row) * 16, i);
    }
}
// The rest of it, by the threads of a warpgroup.
template <bool PACKED = false>
FUNCTION void clear_square(unsigned to) {
    const float zeros[4] = {};
    for (int each = thread() % 128; each < 8 * C; each += 128) {
        int piece = each / C, row = each % C, first = PACKED && piece > 3 ? 32 : 0;
        if (row >= first && row < piece / 2 * 16) put_four(to + place_of<PACKED>(piece, row), zeros);
    }
}

// Packed sequences lie in one batch element; sequence n begins at bounds[n]. What there is per chunk has a place for
// chunk i of a sequence that begins at step b: b / C + n + i.
FUNCTION long long bound(const long long* bounds, int n, int T) {
    long long step = bounds[n];
    return step < 0 ? 0 : step > T ? T : step;
}

// First step of a chunk, counted from the first of its batch element, and how many steps it has: none at an empty
// place.
struct Steps {
    long long first;
    int left;
};
FUNCTION Steps steps_of(int place, int T, const long long* bounds, int sequences) {
    long long first = (long long)place * C, stop = T;
    if (bounds) {
        int number = 0, most = sequences - 1;
        while (number < most) {
            int middle = (number + most + 1) / 2;
            if (bound(bounds, middle, T) / C + middle <= place)
                number = middle;
            else
                most = middle - 1;
        }
        long long begin = bound(bounds, number, T), chunk = place - begin / C - number;
        stop = bound(bounds, number + 1, T);
        first = chunk < 0 ? stop : begin + chunk * C;
    }
    return {first, stop - first < C ? (int)(stop - first) : C};
}

struct Sequence {
    long long first;  // row of its first step, among those of all batch elements
    int steps, chunks;
    long long place;  // of its first chunk
};
FUNCTION Sequence sequence_of(int number, int head, int T, int H, int NT, const long long* bounds) {
    if (!bounds) return {(long long)number * T, T, NT, ((long long)number * H + head) * NT};
    long long first = bound(bounds, number, T), end = bound(bounds, number + 1, T);
    int steps = end > first ? (int)(end - first) : 0;
    return {first, steps, (steps + C - 1) / C, (long long)head * NT + first / C + number};
}

// Products take the first 11 binary digits of each number. With what is left of a in others, and of b: d += a b, to 20
// digits. rest: a sum for the small products, or d.
FUNCTION void split_product(float* d, float* rest, const float* a, const float* left, Two b) {
    fine_product(rest, left, b.a, b.b);
    fine_product(rest, a, b.a - upper(b.a), b.b - upper(b.b));
    fine_product(d, a, b.a, b.b);
}
FUNCTION void left_of(float* left, const float* a) {  // of eight numbers
    UNROLL
    for (int i = 0; i < 8; ++i) left[i] = a[i] - upper(a[i]);
}

// The gates after step j up to step i, from their sums (a) and numbers of resets (b).
FUNCTION float decay(Two i, Two j, bool below) {
    float factor = exponential(i.a - j.a);
    return below && i.b == j.b ? factor : 0.0f;
}
#endif
