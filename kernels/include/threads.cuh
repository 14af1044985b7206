// Who a thread is: in its warp, in its block, and in a grid whose threads share items one by one.
#pragma once
#include "types.cuh"

DEVICE u32 lane_of() {
    return threadIdx.x & 31u;
}
DEVICE u32 warp_of() {
    return threadIdx.x >> 5;
}
DEVICE u32 lanes_below(u32 lane) {
    return (1u << lane) - 1u;
}

// A thread that takes every `item_stride()`-th item from `first_item()` on: neighbors take neighbors.
DEVICE u64 first_item() {
    return u64(blockIdx.x) * blockDim.x + threadIdx.x;
}
DEVICE u64 item_stride() {
    return u64(gridDim.x) * blockDim.x;
}
