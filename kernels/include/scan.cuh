// Ordered compaction in one pass: where the marked elements of a tile go in the list of all.
//
// Tiles are handed out by tickets, so a tile's predecessors have been started when it is: waiting for them ends. A tile
// first says how many it has (AGGREGATE), then looks back over its predecessors until one knows how many came before
// (PREFIX), and says so itself.
#pragma once
#include "threads.cuh"

constexpr u64 STATE_AGGREGATE = 1ull << 62;
constexpr u64 STATE_PREFIX = 2ull << 62;
constexpr u64 STATE_VALUE = (1ull << 62) - 1;

DEVICE u64 read_state(u64* place) {
    return atomicAdd(place, u64(0));
}

DEVICE void write_state(u64* place, u64 state) {
    // What this thread wrote before is seen by whoever sees the state.
    __threadfence();
    atomicExch(place, state);
}

// The sum of a value over the lanes below this one; the sum over all lanes in `total`.
DEVICE u32 exclusive_in_warp(u32 value, u32& total) {
    const u32 lane = lane_of();
    u32 inclusive = value;
#pragma unroll
    for (u32 distance = 1; distance < WARP_LANES; distance <<= 1) {
        const u32 below = __shfl_up_sync(WARP, inclusive, distance);
        inclusive += lane >= distance ? below : 0;
    }
    total = __shfl_sync(WARP, inclusive, 31);
    return inclusive - value;
}

// How many elements the tiles before this one have; one whole warp calls it once per tile.
DEVICE u64 look_back(u64* states, u32 tile, u32 aggregate) {
    const u32 lane = lane_of();
    if (tile == 0) {
        if (lane == 0) {
            write_state(states, STATE_PREFIX | aggregate);
        }
        return 0;
    }
    if (lane == 0) {
        write_state(states + tile, STATE_AGGREGATE | aggregate);
    }
    u64 before = 0;
    for (u32 next = tile;;) {
        // Lane 0 looks at the nearest predecessor. Before tile 0 lies a prefix of nothing.
        const bool exists = lane < next;
        const u64 state = exists ? read_state(states + (next - 1 - lane)) : STATE_PREFIX;
        const u32 prefixes = __ballot_sync(WARP, (state & STATE_PREFIX) != 0);
        // The nearest prefix and all between it and this tile: its lowest bit, and the bits below.
        const u32 needed = prefixes ? 2u * (prefixes & (0u - prefixes)) - 1u : WARP;
        // One of them has not said anything yet: ask again.
        if (needed & ~__ballot_sync(WARP, state >> 62 != 0)) {
            PAUSE();
            continue;
        }
        u64 sum = needed >> lane & 1u ? state & STATE_VALUE : 0;
#pragma unroll
        for (u32 distance = 16; distance > 0; distance >>= 1) {
            sum += __shfl_xor_sync(WARP, sum, i32(distance));
        }
        before += sum;
        if (prefixes) {
            break;
        }
        next -= WARP_LANES;
    }
    if (lane == 0) {
        write_state(states + tile, STATE_PREFIX | (before + aggregate));
    }
    return before;
}

// The next tile of a launch: one whole warp. Tickets rise in the order in which blocks ask, which is why whoever is
// waited for has been started.
DEVICE u32 take_ticket(u32* ticket) {
    u32 taken = 0;
    if (lane_of() == 0) {
        taken = atomicAdd(ticket, 1u);
    }
    return __shfl_sync(WARP, taken, 0);
}

// GP-1: how many changes of all tiles lie before those of this warp, which has `of_this_warp`. All threads of the block
// come here, once per tile. One thread calls `note(before_tile, tile_total)`.
// `shared` has `warp_counts`, a word per warp, and `before`.
template <class Shared, class Note>
DEVICE u64 place_of_warp(Shared& shared, u64* tile_states, u32 tile, u32 of_this_warp, const Note& note) {
    if (lane_of() == 0) {
        shared.warp_counts[warp_of()] = of_this_warp;
    }
    __syncthreads();
    if (warp_of() == 0) {
        u32 tile_total;
        const u32 of_warp = lane_of() < blockDim.x / WARP_LANES ? shared.warp_counts[lane_of()] : 0;
        const u32 before_warp = exclusive_in_warp(of_warp, tile_total);
        const u64 before_tile = look_back(tile_states, tile, tile_total);
        shared.warp_counts[lane_of()] = before_warp;
        if (lane_of() == 0) {
            shared.before = before_tile;
            note(before_tile, tile_total);
        }
    }
    __syncthreads();
    return shared.before + shared.warp_counts[warp_of()];
}
