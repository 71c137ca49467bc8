// A kernel on the CPU, a thread for each thread of a block. With MAIN, a program that calls it on arbitrary numbers, for
// ThreadSanitizer to watch. KERNEL: its file. NAME, OPERANDS: its name, and how many pointers it takes before the words.
// PASS: the struct that it walks with.
#include "device.h"
#include KERNEL

template <class... Arguments, size_t... I>
void call(void (*kernel)(Arguments...), const long long* arguments, std::index_sequence<I...>) {
    kernel((Arguments)arguments[I]...);
}

template <class... Arguments>
void launch(void (*kernel)(Arguments...), int grid, int bytes, const long long* arguments) {
    std::vector<std::unique_ptr<std::barrier<>>> barriers;
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<unsigned char*> arenas;
    std::vector<std::thread> threads;
    for (int block = 0; block < grid; ++block) {
        barriers.push_back(std::make_unique<std::barrier<>>(THREADS));
        arenas.push_back((unsigned char*)std::aligned_alloc(128, (bytes + 127) / 128 * 128));
        std::memset(arenas.back(), 0xff, bytes);
        for (int thread = 0; thread < THREADS; ++thread) {
            if (thread % 32 == 0) warps.push_back(std::make_unique<Warp>());
            threads.emplace_back([=, barrier = barriers.back().get(), arena = arenas.back(), warp = warps.back().get()] {
                Worker worker{thread, block, arena, barrier, warp};
                me = &worker;
                call(kernel, arguments, std::index_sequence_for<Arguments...>{});
            });
        }
    }
    for (auto& thread : threads) thread.join();
    for (auto arena : arenas) std::free(arena);
}

// Bytes of shared memory beside the slots, and of a slot.
extern "C" int fixed_bytes() { return SHARED_BYTES; }
extern "C" int slot_bytes() { return PASS::BYTES; }

extern "C" void run(int grid, const long long* arguments) {
    launch(NAME, grid, SHARED_BYTES + SLOTS * PASS::BYTES, arguments);
}

#ifdef MAIN
int main() {
    long long B = 1, T = 5 * LENGTH + 3, C = 40, count = 16 * B * T * C;
    std::vector<std::vector<float>> arrays(11, std::vector<float>(count, -0.5f));
    std::vector<Word> words(count, EMPTY);
    std::vector<long long> arguments;
    for (int i = 0; i < OPERANDS; ++i) arguments.push_back((long long)arrays[i].data());
    for (long long x : {(long long)words.data(), B, T, C, CONST_GATE ? 0 : T * C, 0ll}) arguments.push_back(x);
    run(CHAINED ? 3 : Sizes{B, T, C, 0, 0}.strands(), arguments.data());
    return arrays[OPERANDS - 1][0] == -0.5f;
}
#endif
