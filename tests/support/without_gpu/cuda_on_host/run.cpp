// A kernel on the CPU. With MAIN, a program that calls it on arbitrary numbers, for ThreadSanitizer to watch; its argument
// is the number of a barrier to leave out.
// KERNEL: its file. FUNCTION_NAME, OPERANDS: its name, and how many pointers it takes before the words. PASS: the
// struct that it walks with. device.h is included by the compiler's command.
#include KERNEL

template <class... Arguments, size_t... I>
void call(void (*kernel)(Arguments...), const long long* arguments, std::index_sequence<I...>) {
    kernel((Arguments)arguments[I]...);
}

template <class... Arguments>
void call(void (*kernel)(Arguments...), const long long* arguments) {
    call(kernel, arguments, std::index_sequence_for<Arguments...>{});
}

// Bytes of shared memory beside the slots, and of a slot.
extern "C" int fixed_bytes() { return SHARED_BYTES; }
extern "C" int slot_bytes() { return PASS::BYTES; }

extern "C" void run(int grid, const long long* arguments) {
    auto body = [](const long long* arguments) { call(FUNCTION_NAME, arguments); };
    on_threads(grid, THREADS, SHARED_BYTES + SLOTS * PASS::BYTES, body, arguments);
}

#ifdef MAIN
#include <cstdlib>
#include <vector>

int main(int count_of_texts, char** texts) {
    left_out = std::atoi(texts[1]);
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
