// Sorted source indices into row-major positions of the fragments that hold them, for all fragments in one pass.
// The twin of `crates/driftless-device/src/cpu/remap.rs`.
//
// In: per tensor the list that `detect` made; runs, the rows of a fragment in a tensor, fragment by fragment and by rising
// position. Out: one list of positions, values and classes, run after run, and where each run begins in it (`starts`).
//
// `driftless_remap_plan`, one block, finds where each run's changes may lie in its tensor's list, and counts tiles.
// `driftless_remap` takes tiles by ticket, drops what lies between the rows of its run, and compacts in order (GP-1).
#include "types.cuh"
#include "abi.cuh"
#include "threads.cuh"
#include "box.cuh"
#include "search.cuh"
#include "scan.cuh"

// What `starts` says at its end until the last tile has been remapped: if `tile_state` has no room for all, for ever.
constexpr u64 NO_ROOM = ~0ull;

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

// A thread per run. Launched as one block: the tiles of all runs before one are a single running sum.
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

// Takes a ticket and finds its run: one warp.
DEVICE void take_run_tile(const RemapArgs& args, RemapShared& shared) {
    const u32 tile = take_ticket(args.ticket);
    const u32 tiles = args.ranges[args.run_count].first_tile;
    const bool exists = tile < tiles && tiles <= args.tile_capacity;
    const u32 run = exists ? owner_of_tile(args.ranges, args.run_count, tile) : 0;
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
    const auto note_starts = [&](u64 before_tile, u32 tile_total) {
        if (shared.tile == shared.range.first_tile) {
            args.starts[shared.run_index] = before_tile;
        }
        if (shared.tile == shared.tiles - 1) {
            args.starts[args.run_count] = before_tile + tile_total;
        }
    };
    u64 place = place_of_warp(shared, args.tile_state, shared.tile, count, note_starts);
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

// Blocks take tiles of runs by ticket until none is left, or at once if they are more than `tile_state` has room for.
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
