// The shape of a tile of `detect`, and how a lane reads its part of it.
//
// A tile lies in one part (abi.cuh). Each warp has 1024 consecutive elements of it, 128 at a time; of these each lane has
// four in a row, a quad. Tiles begin at multiples of 128 elements of the owned range, so that a quad's elements lie in
// one word of a bitset and, where the memory is aligned, in one load; a part's first tile may begin before the part.
#pragma once
#include "abi.cuh"
#include "threads.cuh"

// Elements of a quad.
constexpr u32 VECTOR = 4;
// Vectors of a lane in a tile: so that the marks of a lane fill one word.
constexpr u32 DETECT_VECTORS = 8;
constexpr u32 WARP_VECTOR = VECTOR * WARP_LANES;
constexpr u32 WARP_ELEMENTS = DETECT_VECTORS * WARP_VECTOR;
constexpr u32 ALL_VALID = (1u << VECTOR) - 1u;

// The elements of a tile: of all warps of a block.
DEVICE u32 tile_elements() {
    return blockDim.x * VECTOR * DETECT_VECTORS;
}

// Where a tile begins in the owned range: at or, for the first tile of a part, before what it has of the part.
DEVICE u32 base_of(const Part& part, u32 tile) {
    return (part.start & ~(WARP_VECTOR - 1)) + (tile - part.first_tile) * tile_elements();
}

// Four consecutive elements of a lane, from owned element `at` on; bit k of `valid`: element k lies in the part.
// `offset` counts from the first element of the part, and wraps below it.
struct Quad {
    u32 at;
    u32 offset;
    u32 valid;
};

DEVICE Quad quad_of(const Part& part, u32 at) {
    const u32 offset = at - part.start;
    u32 valid = 0;
#pragma unroll
    for (u32 k = 0; k < VECTOR; ++k) {
        valid |= offset + k < part.count ? 1u << k : 0;
    }
    return {at, offset, valid};
}

DEVICE bool is_valid(const Quad& quad, u32 k) {
    return quad.valid >> k & 1u;
}

DEVICE bool is_aligned(const void* place, u32 bytes) {
    return (u64(place) & (bytes - 1)) == 0;
}

// Reads what is valid; the rest is zero.
DEVICE void load_floats(const float* from, const Quad& quad, float (&values)[VECTOR]) {
    if (quad.valid == ALL_VALID && is_aligned(from, 16)) {
        const float4 all = *reinterpret_cast<const float4*>(from + quad.at);
        values[0] = all.x;
        values[1] = all.y;
        values[2] = all.z;
        values[3] = all.w;
        return;
    }
#pragma unroll
    for (u32 k = 0; k < VECTOR; ++k) {
        values[k] = is_valid(quad, k) ? from[quad.at + k] : 0.0f;
    }
}

DEVICE void load_words(const u16* from, const Quad& quad, u32 (&words)[VECTOR]) {
    if (quad.valid == ALL_VALID && is_aligned(from, 8)) {
        const uint2 all = *reinterpret_cast<const uint2*>(from + quad.at);
        words[0] = all.x & 0xffffu;
        words[1] = all.x >> 16;
        words[2] = all.y & 0xffffu;
        words[3] = all.y >> 16;
        return;
    }
#pragma unroll
    for (u32 k = 0; k < VECTOR; ++k) {
        words[k] = is_valid(quad, k) ? from[quad.at + k] : 0;
    }
}

// An offset as a number that may be below zero: a tile begins less than 128 elements before its part.
DEVICE u64 signed_offset(u32 offset) {
    return u64(offset + WARP_VECTOR) - WARP_VECTOR;
}

// The bits of a set of elements: tiles begin at multiples of 128, so that four of a lane lie in one word.
DEVICE u32 bits_of_set(const u32* set, const Quad& quad) {
    return quad.valid ? set[quad.at >> 5] >> (quad.at & 31u) & quad.valid : 0;
}
