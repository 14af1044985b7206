// Integer types and the few words that differ between NVRTC, nvcc and the host shim.
#pragma once

#ifdef DRIFTLESS_SHIM
#include "shim.h"
#endif

// NVRTC has no <stdint.h>; these are the same types on every target of these kernels.
typedef unsigned char u8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

static_assert(sizeof(u8) == 1 && sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "sizes of the ABI");

#ifndef DRIFTLESS_SHIM
// A kernel's arguments: one structure, read in place from the constant bank.
#define ARGS(Type) const __grid_constant__ Type
// A block's shared memory: one structure per kernel.
#define SHARED(Type, name) __shared__ Type name
// A pause in a loop that waits for another block.
#define PAUSE() __nanosleep(40)
#endif

#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void

// All lanes of a warp.
constexpr u32 WARP = 0xffffffffu;
constexpr u32 WARP_LANES = 32;
// The largest block that a kernel may be launched with, and its warps.
constexpr u32 MAX_THREADS = 1024;
constexpr u32 MAX_WARPS = MAX_THREADS / WARP_LANES;
