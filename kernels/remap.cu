// Sorted source indices into row-major positions of the fragments that hold them, for all fragments in one pass.
// The twin of `crates/driftless-device/src/cpu/remap.rs`.
//
// `driftless_remap_plan`, one block, finds where each run's changes may lie in its tensor's list, and counts tiles.
// `driftless_remap` takes tiles by ticket, drops what lies between the rows of its run, and compacts in order (GP-1).
#include "types.cuh"
#include "abi.cuh"
#include "scan.cuh"

constexpr u64 NO_ROOM = ~0ull;

// How many of rising indices are below `bound`.
DEVICE u32 count_below(const u32* indices, u32 count, u64 bound) {
    u32 low = 0, high = count;
    while (low < high) {
        const u32 half = low + (high - low) / 2;
        if (indices[half] < bound) {
            low = half + 1;
        } else {
            high = half;
        }
    }
    return low;
}

DEVICE RunRange range_of(const RemapArgs& args, const Run& run) {
    const TensorChanges& tensor = args.tensors[run.tensor];
    const u64 end = run.src_offset + u64(run.rows - 1) * run.src_row_stride.divisor + run.cols.divisor;
    const u32 count = u32(tensor.count);
    return {count_below(tensor.indices, count, run.src_offset), count_below(tensor.indices, count, end), 0, 0};
}

struct PlanShared {
    u32 warp_counts[MAX_WARPS];
    u32 done;
};

// The sum of a value over the threads before this one; all threads of the block. The sum over all in `total`.
DEVICE u32 exclusive_in_block(PlanShared& shared, u32 value, u32& total) {
    u32 warp_total;
    const u32 before = exclusive_in_warp(value, warp_total);
    if (lane_of() == 0) {
        shared.warp_counts[warp_of()] = warp_total;
    }
    __syncthreads();
    const u32 of_warp = lane_of() < blockDim.x / WARP_LANES ? shared.warp_counts[lane_of()] : 0;
    const u32 before_warp = exclusive_in_warp(of_warp, total);
    const u32 mine = __shfl_sync(WARP, before_warp, i32(warp_of()));
    __syncthreads();
    return mine + before;
}

KERNEL __launch_bounds__(MAX_THREADS) driftless_remap_plan(ARGS(RemapArgs) args) {
    SHARED(PlanShared, shared);
    u32 tiles_done = 0;
    for (u32 first = 0; first < args.run_count; first += blockDim.x) {
        const u32 run = first + threadIdx.x;
        RunRange range = {};
        u32 tiles = 0;
        if (run < args.run_count) {
            range = range_of(args, args.runs[run]);
            // An empty run has a tile too: it says where the run would begin.
            const u32 full = (range.end - range.first) / args.tile_changes;
            tiles = range.end - range.first > full * args.tile_changes || full == 0 ? full + 1 : full;
        }
        u32 total;
        range.first_tile = tiles_done + exclusive_in_block(shared, tiles, total);
        tiles_done += total;
        if (run < args.run_count) {
            args.ranges[run] = range;
        }
    }
    if (threadIdx.x == 0) {
        args.ranges[args.run_count] = {0, 0, tiles_done, 0};
        args.starts[args.run_count] = args.run_count == 0 ? 0 : NO_ROOM;
    }
}

struct RemapShared {
    u32 warp_counts[MAX_WARPS];
    u64 before;
    RunRange range;
    Run run;
    u32 run_index;
    u32 tile;
    u32 tiles;
};

// The last run that begins at or before a tile: one warp, 32 probes a round.
DEVICE u32 run_of(const RemapArgs& args, u32 tile) {
    u32 low = 0, high = args.run_count;
    while (high - low > 1) {
        const u32 step = (high - low + WARP_LANES - 1) / WARP_LANES;
        const u32 probe = low + lane_of() * step;
        const bool is_before = probe < high && args.ranges[probe].first_tile <= tile;
        const u32 last = 31 - u32(__clz(i32(__ballot_sync(WARP, is_before))));
        low += last * step;
        high = low + step < high ? low + step : high;
    }
    return low;
}

// Takes a ticket and finds its run: one warp.
DEVICE void take_run_tile(const RemapArgs& args, RemapShared& shared) {
    u32 tile = 0;
    if (lane_of() == 0) {
        tile = atomicAdd(args.ticket, 1u);
    }
    tile = __shfl_sync(WARP, tile, 0);
    const u32 tiles = args.ranges[args.run_count].first_tile;
    const bool exists = tile < tiles && tiles <= args.tile_capacity;
    const u32 run = exists ? run_of(args, tile) : 0;
    if (lane_of() == 0) {
        shared.tiles = exists ? tiles : 0;
        shared.tile = tile;
        shared.run_index = run;
        if (exists) {
            shared.run = args.runs[run];
            shared.range = args.ranges[run];
        }
    }
}

// The position of a source index in its fragment; false if it lies between two rows of the run.
DEVICE bool position_of(const Run& run, u32 index, u32& position) {
    const u32 offset = index - run.src_offset;
    const u32 row = divided(offset, run.src_row_stride), col = offset - row * run.src_row_stride.divisor;
    position = run.position + row * run.cols.divisor + col;
    return col < run.cols.divisor;
}

// How many changes lie before those of this warp: all threads of the block.
DEVICE u64 place_of_warp_in_lists(const RemapArgs& args, RemapShared& shared, u32 of_this_warp) {
    if (lane_of() == 0) {
        shared.warp_counts[warp_of()] = of_this_warp;
    }
    __syncthreads();
    if (warp_of() == 0) {
        u32 tile_total;
        const u32 of_warp = lane_of() < blockDim.x / WARP_LANES ? shared.warp_counts[lane_of()] : 0;
        const u32 before_warp = exclusive_in_warp(of_warp, tile_total);
        const u64 before = look_back(args.tile_state, shared.tile, tile_total);
        shared.warp_counts[lane_of()] = before_warp;
        if (lane_of() == 0) {
            shared.before = before;
            if (shared.tile == shared.range.first_tile) {
                args.starts[shared.run_index] = before;
            }
            if (shared.tile == shared.tiles - 1) {
                args.starts[args.run_count] = before + tile_total;
            }
        }
    }
    __syncthreads();
    return shared.before + shared.warp_counts[warp_of()];
}

// A warp has 128 consecutive changes, each lane one of 32 at a time.
DEVICE void remap_tile(const RemapArgs& args, RemapShared& shared) {
    const TensorChanges& tensor = args.tensors[shared.run.tensor];
    const u32 tile = shared.tile - shared.range.first_tile;
    const u32 first = shared.range.first + tile * args.tile_changes + warp_of() * (REMAP_ITEMS * WARP_LANES) + lane_of();
    u32 positions[REMAP_ITEMS], inside[REMAP_ITEMS], count = 0;
#pragma unroll
    for (u32 item = 0; item < REMAP_ITEMS; ++item) {
        const u32 at = first + item * WARP_LANES;
        const bool is_inside =
            at < shared.range.end && position_of(shared.run, tensor.indices[at], positions[item]);
        inside[item] = __ballot_sync(WARP, is_inside);
        count += u32(__popc(inside[item]));
    }
    u64 place = place_of_warp_in_lists(args, shared, count);
#pragma unroll
    for (u32 item = 0; item < REMAP_ITEMS; ++item) {
        const u64 mine = place + u32(__popc(inside[item] & lanes_below(lane_of())));
        if (inside[item] >> lane_of() & 1u && mine < args.capacity) {
            const u32 at = first + item * WARP_LANES;
            args.positions[mine] = positions[item];
            args.values[mine] = tensor.values[at];
            if (args.classes != nullptr) {
                args.classes[mine] = tensor.classes[at];
            }
        }
        place += u32(__popc(inside[item]));
    }
}

KERNEL __launch_bounds__(MAX_THREADS) driftless_remap(ARGS(RemapArgs) args) {
    SHARED(RemapShared, shared);
    for (;;) {
        // All threads have left the last tile.
        __syncthreads();
        if (warp_of() == 0) {
            take_run_tile(args, shared);
        }
        __syncthreads();
        if (shared.tiles == 0) {
            return;
        }
        remap_tile(args, shared);
    }
}
