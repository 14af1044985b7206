// Lanes as threads of the operating system, for ThreadSanitizer and AddressSanitizer: small launches only.
//
// A barrier and `__syncwarp` order memory, so ThreadSanitizer sees their locks. Ballots, shuffles and reductions hand
// over values and order nothing: their locks are hidden from it, and what relies on them is reported as a race.
#ifdef SHIM_THREADS
#include "launch.h"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
void AnnotateIgnoreSyncBegin(const char*, int);
void AnnotateIgnoreSyncEnd(const char*, int);
}
#endif

namespace shim {
namespace {

constexpr auto LONGEST_WAIT = std::chrono::seconds(20);

// Ends a thread: somewhere something went wrong.
struct Stop {};

struct Block {
    std::vector<Warp> warps;
    std::vector<unsigned char> shared;
    std::mutex mutex;
    std::condition_variable changed;
    unsigned at_barrier = 0, barrier_line = 0, alive = 0;
    uint64_t barriers = 0;
};

struct Lane {
    Place place{};
    Block* block = nullptr;
};

struct Shared {
    std::mutex mutex;
    std::string error;
    std::atomic<bool> failed{false};
} state;

thread_local Lane current;

// Hides what this thread does from ThreadSanitizer.
struct Hidden {
    bool is_hidden;
    explicit Hidden(bool hide) : is_hidden(hide) {
#if defined(__SANITIZE_THREAD__)
        if (is_hidden) {
            AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
            AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
            AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
        }
#endif
    }
    ~Hidden() {
#if defined(__SANITIZE_THREAD__)
        if (is_hidden) {
            AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
            AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
            AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
        }
#endif
    }
};

void complain(const char* what) {
    std::lock_guard<std::mutex> lock(state.mutex);
    if (state.error.empty()) {
        state.error = std::string(what) + " (block " + std::to_string(current.place.block.x) + ", thread " +
                      std::to_string(current.place.thread.x) + ")";
    }
    state.failed = true;
}

// Waits until `is_over`; somebody who fails ends the wait of all.
template <class Condition>
void wait(Block& block, std::unique_lock<std::mutex>& lock, const char* what, Condition is_over) {
    const auto end = std::chrono::steady_clock::now() + LONGEST_WAIT;
    while (!is_over()) {
        block.changed.wait_for(lock, std::chrono::milliseconds(20));
        if (std::chrono::steady_clock::now() > end) {
            complain(what);
        }
        if (state.failed) {
            throw Stop{};
        }
    }
}

void exit_lane() {
    Block& block = *current.block;
    const unsigned number = current.place.thread.x;
    std::lock_guard<std::mutex> lock(block.mutex);
    --block.alive;
    block.warps[number / WARP_LANES].exited |= 1u << number % WARP_LANES;
    if (block.at_barrier && !state.failed) {
        complain("divergent barrier: a thread exits while others wait for it");
    }
    block.changed.notify_all();
}

void run_block(const Config& config, unsigned index) {
    Block block;
    Random random{config.seed + index};
    block.warps.assign((config.block + WARP_LANES - 1) / WARP_LANES, Warp{});
    block.shared.resize(SHARED_BYTES + 16);
    poison(block.shared, random);
    block.alive = config.block;
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < config.block; ++thread) {
        threads.emplace_back([&block, &config, index, thread] {
            current = {{{thread, 0, 0}, {index, 0, 0}, {config.block, 1, 1}, {config.grid, 1, 1}}, &block};
            try {
                config.body(config.args);
            } catch (const Stop&) {
            }
            exit_lane();
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

}  // namespace

std::string run(const Config& config) {
    state.error.clear();
    state.failed = false;
    std::vector<std::thread> blocks;
    // All at once: launches are small.
    for (unsigned index = 0; index < config.grid; ++index) {
        blocks.emplace_back([&config, index] { run_block(config, index); });
    }
    for (std::thread& block : blocks) {
        block.join();
    }
    return state.error;
}

const Place& place() {
    return current.place;
}

Met meet(Op op, uint32_t mask, uint64_t value) {
    const unsigned number = current.place.thread.x, lane = number % WARP_LANES;
    Block& block = *current.block;
    const Hidden hidden(op != Op::Sync);
    std::unique_lock<std::mutex> lock(block.mutex);
    const char* wrong;
    Meeting* meeting = join(block.warps[number / WARP_LANES], lane, op, mask, value, &wrong);
    if (wrong) {
        fail(wrong);
    }
    if (meeting->arrived == mask) {
        block.changed.notify_all();
    } else {
        wait(block, lock, "deadlock: waits in a warp operation that not all lanes of its mask reach",
             [&] { return meeting->arrived == mask; });
    }
    return leave(*meeting, lane);
}

void barrier(unsigned line) {
    Block& block = *current.block;
    std::unique_lock<std::mutex> lock(block.mutex);
    const uint64_t now = block.barriers;
    if (block.at_barrier && block.barrier_line != line) {
        fail("divergent barrier: threads of one block wait in different lines");
    }
    block.barrier_line = line;
    if (++block.at_barrier == block.warps.size() * WARP_LANES) {
        block.at_barrier = 0;
        ++block.barriers;
        block.changed.notify_all();
        return;
    }
    wait(block, lock, "deadlock: waits in a barrier that not all threads reach", [&] { return block.barriers != now; });
}

void pause() {
    if (state.failed) {
        throw Stop{};
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void* shared_memory(size_t bytes) {
    if (bytes > SHARED_BYTES) {
        fail("more shared memory than a block has");
    }
    const uintptr_t start = reinterpret_cast<uintptr_t>(current.block->shared.data());
    return reinterpret_cast<void*>((start + 15) & ~uintptr_t(15));
}

void fail(const char* what) {
    complain(what);
    throw Stop{};
}

}  // namespace shim
#endif
