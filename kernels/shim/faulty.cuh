// Kernels that are wrong, each in one way: what the shim and the sanitizers must find.
#pragma once
#include "../include/scan.cuh"

struct FaultyArgs {
    u32* words;
    u64 count;
};

KERNEL faulty_divergent_barrier(ARGS(FaultyArgs) args) {
    if (threadIdx.x % 2 == 0) {
        __syncthreads();
        args.words[threadIdx.x] = 1;
    } else {
        __syncthreads();
        args.words[threadIdx.x] = 2;
    }
}

KERNEL faulty_barrier_of_some(ARGS(FaultyArgs) args) {
    if (threadIdx.x == 3) {
        __syncwarp(1u << 3);
        __syncwarp(3u << 3);
    }
    __syncthreads();
    args.words[threadIdx.x] = 1;
}

KERNEL faulty_exit_before_barrier(ARGS(FaultyArgs) args) {
    if (threadIdx.x == 5) {
        return;
    }
    __syncthreads();
    args.words[threadIdx.x] = 1;
}

KERNEL faulty_own_lane_missing(ARGS(FaultyArgs) args) {
    args.words[threadIdx.x] = __ballot_sync(0x0000ffffu, 1);
}

KERNEL faulty_masks_overlap(ARGS(FaultyArgs) args) {
    args.words[threadIdx.x] = threadIdx.x % 32 == 0 ? __ballot_sync(0xffffffffu, 1) : __ballot_sync(0xfffffffeu, 1);
}

KERNEL faulty_operations_differ(ARGS(FaultyArgs) args) {
    args.words[threadIdx.x] = threadIdx.x % 2 == 0 ? __ballot_sync(WARP, 1) : __reduce_add_sync(WARP, 1);
}

KERNEL faulty_lane_never_comes(ARGS(FaultyArgs) args) {
    if (threadIdx.x % 32 != 7) {
        args.words[threadIdx.x] = __ballot_sync(WARP, 1);
    }
}

KERNEL faulty_shuffle_outside(ARGS(FaultyArgs) args) {
    if (threadIdx.x % 32 < 16) {
        args.words[threadIdx.x] = __shfl_sync(0x0000ffffu, threadIdx.x, 20);
    }
}

// Waits for a block that comes later and may never be started.
KERNEL faulty_waits_for_ever(ARGS(FaultyArgs) args) {
    while (atomicAdd(args.words, 0u) == 0) {
        PAUSE();
    }
}

struct FaultyShared {
    u32 words[MAX_THREADS];
};

// A neighbor's word without a barrier between writing and reading.
KERNEL faulty_race(ARGS(FaultyArgs) args) {
    SHARED(FaultyShared, shared);
    shared.words[threadIdx.x] = threadIdx.x;
    args.words[threadIdx.x] = shared.words[(threadIdx.x + 1) % blockDim.x];
}

// The same behind a ballot, which hands over no memory.
KERNEL faulty_race_behind_a_ballot(ARGS(FaultyArgs) args) {
    SHARED(FaultyShared, shared);
    shared.words[threadIdx.x] = threadIdx.x;
    __ballot_sync(WARP, 1);
    args.words[threadIdx.x] = shared.words[threadIdx.x ^ 1u];
}

KERNEL faulty_beyond_the_end(ARGS(FaultyArgs) args) {
    args.words[args.count + threadIdx.x] = 1;
}

#define FAULTY_ENTRIES                                       \
    ENTRY(faulty_divergent_barrier, FaultyArgs),             \
        ENTRY(faulty_barrier_of_some, FaultyArgs),           \
        ENTRY(faulty_exit_before_barrier, FaultyArgs),       \
        ENTRY(faulty_own_lane_missing, FaultyArgs),          \
        ENTRY(faulty_masks_overlap, FaultyArgs),             \
        ENTRY(faulty_operations_differ, FaultyArgs),         \
        ENTRY(faulty_lane_never_comes, FaultyArgs),          \
        ENTRY(faulty_shuffle_outside, FaultyArgs),           \
        ENTRY(faulty_waits_for_ever, FaultyArgs),            \
        ENTRY(faulty_race, FaultyArgs),                      \
        ENTRY(faulty_race_behind_a_ballot, FaultyArgs),      \
        ENTRY(faulty_beyond_the_end, FaultyArgs),
