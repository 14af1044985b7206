// The launch of one kernel on the host: its blocks, warps and lanes, apart from how lanes take turns.
#pragma once
#include "shim.h"
#include <string>
#include <vector>

namespace shim {

using Body = void (*)(const void* args);

constexpr unsigned WARP_LANES = 32;
// More blocks are alive together than one, so that they wait for each other as on a device.
constexpr unsigned MOST_RESIDENT = 3;
constexpr size_t SHARED_BYTES = 48 << 10;

// Lanes that come together for one operation.
struct Meeting {
    uint32_t mask = 0;
    uint32_t arrived = 0;
    uint32_t left = 0;
    Op op = Op::Sync;
    Met met{};
};

struct Warp {
    // A lane waits in one meeting at a time; another may begin before all have left the last.
    Meeting meetings[2 * WARP_LANES];
    uint32_t exited = 0;
};

// splitmix64: the order of a launch follows from its seed alone.
struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    unsigned below(size_t bound) {
        return unsigned(next() % bound);
    }
};

struct Config {
    Body body;
    const void* args;
    unsigned grid, block;
    uint64_t seed;
};

// Finds the meeting that a lane joins, or begins one; a name for what is wrong if it may not.
inline Meeting* join(Warp& warp, unsigned lane, Op op, uint32_t mask, uint64_t value, const char** wrong) {
    *wrong = nullptr;
    if (!(mask >> lane & 1)) {
        *wrong = "wrong mask: a lane is not in its own mask";
        return nullptr;
    }
    if (mask & warp.exited) {
        *wrong = "wrong mask: it names a lane that has exited";
        return nullptr;
    }
    Meeting *found = nullptr, *room = nullptr;
    for (Meeting& meeting : warp.meetings) {
        if (!meeting.mask) {
            room = room ? room : &meeting;
            continue;
        }
        if (meeting.arrived == meeting.mask) {
            continue;
        }
        if (meeting.mask != mask && (meeting.mask & mask)) {
            *wrong = "wrong mask: lanes of one warp wait with masks that overlap and differ";
            return nullptr;
        }
        found = meeting.mask == mask ? &meeting : found;
    }
    if (found && found->op != op) {
        *wrong = "divergence: lanes of one mask wait in different operations";
        return nullptr;
    }
    if (!found) {
        found = room;
        *found = Meeting{};
        found->mask = mask;
        found->op = op;
    }
    found->arrived |= 1u << lane;
    found->met.values[lane] = value;
    return found;
}

// What a lane takes from a meeting that is complete.
inline Met leave(Meeting& meeting, unsigned lane) {
    const Met met = meeting.met;
    meeting.left |= 1u << lane;
    if (meeting.left == meeting.mask) {
        meeting.mask = 0;
    }
    return met;
}

// Shared memory is never zero at first, and never the same twice.
inline void poison(std::vector<unsigned char>& memory, Random& random) {
    for (unsigned char& byte : memory) {
        byte = (unsigned char)random.next();
    }
}

// Runs all blocks; an empty string, or what went wrong.
std::string run(const Config& config);

}  // namespace shim
