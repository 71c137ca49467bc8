// impls/scan/_cuda/device.cuh on a CPU: a thread for each thread of a block, and copies that are carried out no
// sooner than they are waited for, so that a wait for too few of them gives wrong numbers.
#define SSMPERF_DEVICE

#include "standard.h"

#define ENTRY
#define FUNCTION inline
#define UNROLL
#define UNROLL_BY(count)

typedef unsigned long long Word;

struct bfloat16 {
    unsigned short bits;
};

struct float16 {
    unsigned short bits;
};

// A thread of a block; host.cpp knows more of it.
struct Worker {
    int thread, block;
    unsigned char* arena;
};
inline thread_local Worker* me = nullptr;

inline int thread() { return me->thread; }
inline int block() { return me->block; }
inline unsigned char* arena() { return me->arena; }

// All threads of a block meet, but at the barrier whose number is left_out; 0 is none's.
inline int left_out = 0;
void meet();
inline void barrier(int number = 0) {
    if (number == 0 || number != left_out) meet();
}

// What lane `from` of the warp gives.
float shuffled(float x, int from);
inline float shuffle_up(float x, int by) {
    int lane = me->thread % 32;
    return shuffled(x, lane < by ? lane : lane - by);
}
inline float shuffle_xor(float x, int by) { return shuffled(x, me->thread % 32 ^ by); }

inline float as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline unsigned as_bits(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float power_of_two(float x) { return std::exp2(x); }
inline void cos_sin(float phase, float& cosine, float& sine) { cosine = std::cos(phase), sine = std::sin(phase); }
inline float widened(bfloat16 x) { return as_float((unsigned)x.bits << 16); }
inline unsigned rounded(float x) { return (as_bits(x) + 0x7fff + (as_bits(x) >> 16 & 1)) >> 16; }
inline unsigned packed(float low, float high, bfloat16) { return rounded(low) | rounded(high) << 16; }

inline float widened(float16 x) {
    _Float16 half;
    std::memcpy(&half, &x.bits, 2);
    return (float)half;
}
inline unsigned packed(float low, float high, float16) {
    _Float16 halves[] = {(_Float16)low, (_Float16)high};
    unsigned both;
    std::memcpy(&both, halves, 4);
    return both;
}

template <class T>
void widened(unsigned both, float& low, float& high, T) {
    low = widened(T{(unsigned short)both});
    high = widened(T{(unsigned short)(both >> 16)});
}

void copy_16(void* to, const void* from, bool inside = true);
void close_copies();
void wait_copies(int pending);
template <int PENDING>
void wait_copies() {
    wait_copies(PENDING);
}

void yield();
inline Word draw(Word* counter) { return std::atomic_ref(*counter).fetch_add(1); }
inline Word look(const Word* at) {
    yield();
    return std::atomic_ref(*const_cast<Word*>(at)).load(std::memory_order_relaxed);
}
inline void tell(Word* at, Word word) { std::atomic_ref(*at).store(word, std::memory_order_relaxed); }

// Calls the body once for each thread of a grid, with so many bytes of shared memory for a block.
void on_threads(int grid, int threads, int bytes, void (*body)(const long long*), const long long* arguments);
