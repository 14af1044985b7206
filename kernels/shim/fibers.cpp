// Lanes as fibers of one OS thread, in an order that follows from the seed.
#ifndef SHIM_THREADS
#include "launch.h"
#include <csetjmp>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>

namespace shim {
namespace {

constexpr size_t STACK_BYTES = 64 << 10;
// Pauses between two barriers or exits: more of them, and the blocks wait for each other without end.
constexpr uint64_t MOST_PAUSES = 4'000'000;

struct Block;

struct Lane {
    Place place{};
    Block* block = nullptr;
    char* stack = nullptr;
    jmp_buf context;
    bool is_started = false;
    const char* waits_for = nullptr;
};

struct Block {
    std::vector<Lane> lanes;
    std::vector<Warp> warps;
    std::vector<unsigned char> shared;
    unsigned at_barrier = 0;
    unsigned barrier_line = 0;
    unsigned alive = 0;
};

struct Launch {
    const Config& config;
    Random random;
    std::vector<std::unique_ptr<Block>> resident;
    std::vector<Lane*> ready;
    unsigned next_block = 0;
    unsigned done_blocks = 0;
    uint64_t pauses = 0;
    std::string error;
    jmp_buf scheduler;
    ucontext_t boot;

    explicit Launch(const Config& all) : config(all), random{all.seed} {}
};

thread_local Launch* launch = nullptr;
thread_local Lane* current = nullptr;

void complain(const Lane& lane, const char* what) {
    if (launch->error.empty()) {
        launch->error = std::string(what) + " (block " + std::to_string(lane.place.block.x) + ", thread " +
                        std::to_string(lane.place.thread.x) + ")";
    }
}

// Back to the scheduler, until somebody makes this lane ready.
void wait(const char* what) {
    Lane* me = current;
    me->waits_for = what;
    if (!_setjmp(me->context)) {
        _longjmp(launch->scheduler, 1);
    }
    me->waits_for = nullptr;
}

void exit_lane(Lane& lane) {
    Block& block = *lane.block;
    const unsigned number = lane.place.thread.x;
    Warp& warp = block.warps[number / WARP_LANES];
    warp.exited |= 1u << number % WARP_LANES;
    --block.alive;
    launch->pauses = 0;
    if (block.at_barrier) {
        complain(lane, "divergent barrier: a thread exits while others wait for it");
    }
    for (const Meeting& meeting : warp.meetings) {
        if (meeting.mask >> (number % WARP_LANES) & 1 && meeting.arrived != meeting.mask) {
            complain(lane, "wrong mask: a lane exits while others wait for it");
        }
    }
    launch->done_blocks += block.alive == 0;
}

void enter() {
    launch->config.body(launch->config.args);
    exit_lane(*current);
    _longjmp(launch->scheduler, 1);
}

void resume(Lane& lane) {
    current = &lane;
    if (_setjmp(launch->scheduler)) {
        return;
    }
    if (lane.is_started) {
        _longjmp(lane.context, 1);
    }
    lane.is_started = true;
    getcontext(&launch->boot);
    launch->boot.uc_stack.ss_sp = lane.stack;
    launch->boot.uc_stack.ss_size = STACK_BYTES;
    launch->boot.uc_link = nullptr;
    makecontext(&launch->boot, enter, 0);
    setcontext(&launch->boot);
}

void start_block(Block& block) {
    const unsigned index = launch->next_block++, threads = launch->config.block;
    poison(block.shared, launch->random);
    block.warps.assign((threads + WARP_LANES - 1) / WARP_LANES, Warp{});
    block.at_barrier = 0;
    block.alive = threads;
    for (unsigned thread = 0; thread < threads; ++thread) {
        Lane& lane = block.lanes[thread];
        lane.place = {{thread, 0, 0}, {index, 0, 0}, {threads, 1, 1}, {launch->config.grid, 1, 1}};
        lane.block = &block;
        lane.is_started = false;
        lane.waits_for = nullptr;
        launch->ready.push_back(&lane);
    }
}

// Fills the places of blocks that are done.
void start_blocks() {
    for (auto& block : launch->resident) {
        if (block->alive == 0 && launch->next_block < launch->config.grid) {
            start_block(*block);
        }
    }
}

void report_deadlock() {
    for (const auto& block : launch->resident) {
        for (const Lane& lane : block->lanes) {
            if (block->alive && lane.waits_for) {
                return complain(lane, (std::string("deadlock: waits in ") + lane.waits_for).c_str());
            }
        }
    }
}

void schedule() {
    while (launch->done_blocks < launch->config.grid && launch->error.empty()) {
        start_blocks();
        if (launch->ready.empty()) {
            return report_deadlock();
        }
        std::vector<Lane*>& ready = launch->ready;
        std::swap(ready[launch->random.below(ready.size())], ready.back());
        Lane* lane = ready.back();
        ready.pop_back();
        resume(*lane);
    }
}

}  // namespace

std::string run(const Config& config) {
    Launch own(config);
    launch = &own;
    const unsigned most = 1 + own.random.below(MOST_RESIDENT);
    const unsigned blocks = config.grid < most ? config.grid : most;
    const size_t bytes = size_t(blocks) * config.block * STACK_BYTES;
    void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        return "no memory for the stacks of the threads";
    }
    for (unsigned at = 0; at < blocks; ++at) {
        auto block = std::make_unique<Block>();
        block->lanes = std::vector<Lane>(config.block);
        block->shared.resize(SHARED_BYTES + 16);
        for (unsigned thread = 0; thread < config.block; ++thread) {
            block->lanes[thread].stack = static_cast<char*>(stacks) + STACK_BYTES * (size_t(at) * config.block + thread);
        }
        own.resident.push_back(std::move(block));
    }
    schedule();
    munmap(stacks, bytes);
    launch = nullptr;
    return own.error;
}

const Place& place() {
    return current->place;
}

Met meet(Op op, uint32_t mask, uint64_t value) {
    const unsigned number = current->place.thread.x, lane = number % WARP_LANES;
    Block& block = *current->block;
    const char* wrong;
    Meeting* meeting = join(block.warps[number / WARP_LANES], lane, op, mask, value, &wrong);
    if (wrong) {
        fail(wrong);
    }
    if (meeting->arrived != mask) {
        wait("a warp operation that not all lanes of its mask reach");
    } else {
        for (unsigned other = 0; other < WARP_LANES; ++other) {
            if (other != lane && mask >> other & 1) {
                launch->ready.push_back(&block.lanes[number - lane + other]);
            }
        }
    }
    return leave(*meeting, lane);
}

void barrier(unsigned line) {
    Block& block = *current->block;
    if (block.alive != block.lanes.size()) {
        fail("divergent barrier: a thread waits for others that have exited");
    }
    if (block.at_barrier && block.barrier_line != line) {
        fail("divergent barrier: threads of one block wait in different lines");
    }
    block.barrier_line = line;
    if (++block.at_barrier < block.alive) {
        return wait("a barrier that not all threads reach");
    }
    block.at_barrier = 0;
    launch->pauses = 0;
    for (Lane& lane : block.lanes) {
        if (&lane != current) {
            launch->ready.push_back(&lane);
        }
    }
}

void pause() {
    if (++launch->pauses > MOST_PAUSES) {
        fail("deadlock: blocks wait for each other without end");
    }
    launch->ready.push_back(current);
    wait("a pause");
}

void* shared_memory(size_t bytes) {
    if (bytes > SHARED_BYTES) {
        fail("more shared memory than a block has");
    }
    const uintptr_t start = reinterpret_cast<uintptr_t>(current->block->shared.data());
    return reinterpret_cast<void*>((start + 15) & ~uintptr_t(15));
}

void fail(const char* what) {
    complain(*current, what);
    // The launch ends here, and with it every fiber.
    _longjmp(launch->scheduler, 1);
}

}  // namespace shim
#endif
