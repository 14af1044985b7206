// Searches in rising lists.
#pragma once
#include "threads.cuh"

// How many of `count` rising numbers are below `bound`: one thread.
DEVICE u32 count_below(const u32* rising, u32 count, u64 bound) {
    u32 low = 0, high = count;
    while (low < high) {
        const u32 half = low + (high - low) / 2;
        if (rising[half] < bound) {
            low = half + 1;
        } else {
            high = half;
        }
    }
    return low;
}

// The last of `count` items (parts, runs) whose first tile is `tile` or one before it: one whole warp, 32 probes a round.
// Lane 0 probes `low`, which begins at or before the tile always, so that a ballot is never empty.
template <class Item>
DEVICE u32 owner_of_tile(const Item* items, u32 count, u32 tile) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 step = (high - low + WARP_LANES - 1) / WARP_LANES;
        const u32 probe = low + lane_of() * step;
        const bool is_before = probe < high && items[probe].first_tile <= tile;
        const u32 last = 31 - u32(__clz(i32(__ballot_sync(WARP, is_before))));
        low += last * step;
        high = low + step < high ? low + step : high;
    }
    return low;
}
