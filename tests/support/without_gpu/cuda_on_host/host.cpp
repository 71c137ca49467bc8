// The device itself: a thread for each thread of a block, its barriers, shuffles and copies.
#include <barrier>
#include <cstdlib>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace {

struct Copy {
    void* to;
    const void* from;
    bool inside;
};

// What the lanes of a warp show one another.
struct Warp {
    std::barrier<> barrier{32};
    float shown[32];
};

struct Thread : Worker {
    std::barrier<>* barrier;
    Warp* warp;
    std::vector<Copy> open = {};
    std::deque<std::vector<Copy>> closed = {};
};

Thread& mine() { return *static_cast<Thread*>(me); }

}  // namespace

void meet() { mine().barrier->arrive_and_wait(); }
void yield() { std::this_thread::yield(); }

float shuffled(float x, int from) {
    Warp& warp = *mine().warp;
    warp.shown[me->thread % 32] = x;
    warp.barrier.arrive_and_wait();
    float found = warp.shown[from];
    warp.barrier.arrive_and_wait();
    return found;
}

void copy_16(void* to, const void* from, bool inside) { mine().open.push_back({to, from, inside}); }
void close_copies() {
    mine().closed.push_back(mine().open);
    mine().open.clear();
}
void wait_copies(int pending) {
    auto& closed = mine().closed;
    for (; closed.size() > (size_t)pending; closed.pop_front()) {
        for (const Copy& copy : closed.front()) {
            if (copy.inside)
                std::memcpy(copy.to, copy.from, 16);
            else
                std::memset(copy.to, 0, 16);
        }
    }
}

void on_threads(int grid, int threads, int bytes, void (*body)(const long long*), const long long* arguments) {
    std::vector<std::unique_ptr<std::barrier<>>> barriers;
    std::vector<std::unique_ptr<Warp>> warps;
    std::vector<unsigned char*> arenas;
    std::vector<std::thread> running;
    for (int block = 0; block < grid; ++block) {
        barriers.push_back(std::make_unique<std::barrier<>>(threads));
        arenas.push_back((unsigned char*)std::aligned_alloc(128, (bytes + 127) / 128 * 128));
        std::memset(arenas.back(), 0xff, bytes);
        for (int thread = 0; thread < threads; ++thread) {
            if (thread % 32 == 0) warps.push_back(std::make_unique<Warp>());
            running.emplace_back([=, barrier = barriers.back().get(), arena = arenas.back(), warp = warps.back().get()] {
                Thread worker{{thread, block, arena}, barrier, warp};
                me = &worker;
                body(arguments);
            });
        }
    }
    for (auto& thread : running) thread.join();
    for (auto arena : arenas) std::free(arena);
}
