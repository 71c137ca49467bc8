// The numbers that states and gates are: real or, where COMPLEX, complex. Maps of them, and vectors of a thread's
// channels.
#ifndef SSMPERF_NUMBER
#define SSMPERF_NUMBER
#include "device.cuh"

struct complex64 {
    float re, im;
};

#if COMPLEX
struct alignas(8) Number {
    float re, im;
};
constexpr Number ZERO = {0.f, 0.f}, ONE = {1.f, 0.f};

FUNCTION Number times(Number a, Number x) { return {a.re * x.re - a.im * x.im, a.re * x.im + a.im * x.re}; }
FUNCTION Number times_plus(Number a, Number x, Number y) {
    return {a.re * x.re - a.im * x.im + y.re, a.re * x.im + a.im * x.re + y.im};
}
FUNCTION Number plus(Number x, Number y) { return {x.re + y.re, x.im + y.im}; }
FUNCTION Number conjugate(Number x) { return {x.re, -x.im}; }
FUNCTION Number shuffle_up(Number x, int by) { return {shuffle_up(x.re, by), shuffle_up(x.im, by)}; }
FUNCTION Number shuffle_xor(Number x, int by) { return {shuffle_xor(x.re, by), shuffle_xor(x.im, by)}; }
#else
struct Number {
    float re;
};
constexpr Number ZERO = {0.f}, ONE = {1.f};

FUNCTION Number times(Number a, Number x) { return {a.re * x.re}; }
FUNCTION Number times_plus(Number a, Number x, Number y) { return {a.re * x.re + y.re}; }
FUNCTION Number plus(Number x, Number y) { return {x.re + y.re}; }
FUNCTION Number conjugate(Number x) { return x; }
FUNCTION Number shuffle_up(Number x, int by) { return {shuffle_up(x.re, by)}; }
FUNCTION Number shuffle_xor(Number x, int by) { return {shuffle_xor(x.re, by)}; }
#endif

// After a span of steps the state is a * (state before) + x.
struct alignas(2 * sizeof(Number)) Map {
    Number a, x;
};
constexpr Map IDENTITY = {ONE, ZERO};

// `first`, and then `second`.
FUNCTION Map follow(const Map& first, const Map& second) {
    return {times(second.a, first.a), times_plus(second.a, first.x, second.x)};
}
FUNCTION Number apply(const Map& map, Number state) { return times_plus(map.a, state, map.x); }

// 4 * N bytes, in pieces of at most 16.
template <int N>
struct alignas(N % 4 == 0 ? 16 : N % 2 == 0 ? 8 : 4) Bits {
    unsigned word[N];
};

FUNCTION void read(const float* from, float (&x)[VECTOR]) {
    auto bits = *reinterpret_cast<const Bits<VECTOR>*>(from);
    UNROLL for (int v = 0; v < VECTOR; ++v) x[v] = as_float(bits.word[v]);
}

template <class T>
FUNCTION void read(const T* from, float (&x)[VECTOR]) {
    if constexpr (VECTOR == 1) {
        x[0] = widened(*from);
    } else {
        auto bits = *reinterpret_cast<const Bits<sizeof(T) * VECTOR / 4>*>(from);
        UNROLL for (int v = 0; v < VECTOR; v += 2) widened(bits.word[v / 2], x[v], x[v + 1], T{});
    }
}

#if COMPLEX
FUNCTION void read(const complex64* from, Number (&x)[VECTOR]) {
    auto bits = *reinterpret_cast<const Bits<2 * VECTOR>*>(from);
    UNROLL for (int v = 0; v < VECTOR; ++v) x[v] = {as_float(bits.word[2 * v]), as_float(bits.word[2 * v + 1])};
}
FUNCTION void write(complex64* to, const Number (&x)[VECTOR]) {
    Bits<2 * VECTOR> bits;
    UNROLL for (int v = 0; v < VECTOR; ++v) {
        bits.word[2 * v] = as_bits(x[v].re);
        bits.word[2 * v + 1] = as_bits(x[v].im);
    }
    *reinterpret_cast<Bits<2 * VECTOR>*>(to) = bits;
}
FUNCTION void write_one(complex64* to, Number x) { *to = {x.re, x.im}; }
#else
template <class T>
FUNCTION void read(const T* from, Number (&x)[VECTOR]) {
    float real[VECTOR];
    read(from, real);
    UNROLL for (int v = 0; v < VECTOR; ++v) x[v] = {real[v]};
}
#endif

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
        *reinterpret_cast<Bits<sizeof(T) * VECTOR / 4>*>(to) = bits;
    }
}

#if !COMPLEX
template <class T>
FUNCTION void write(T* to, const Number (&x)[VECTOR]) {
    float real[VECTOR];
    UNROLL for (int v = 0; v < VECTOR; ++v) real[v] = x[v].re;
    write(to, real);
}
template <class T>
FUNCTION void write_one(T* to, Number x) {
    write_one(to, x.re);
}
#endif

#endif
