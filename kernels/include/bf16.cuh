// BF16 bit patterns: the twin of `crates/driftless-numerics/src/bf16.rs`, line by line.
// `middle`, `bf16_bits`, `edges_of`, `widen`, `key_of` and `unkey` are its `middle`, `bits`, `edges`, `widen`, `key` and `unkey`.
#pragma once
#include "types.cuh"

constexpr u32 SIGN = 0x80000000u;
// The least magnitude that a cast maps to infinity.
constexpr u32 INFINITY_CELL = 0x7f7f8000u;
// The largest finite magnitude, and infinity.
constexpr u32 LARGEST = 0x7f7fffffu;
constexpr u32 INFINITE = 0x7f800000u;

enum class Cast { NearestEven, HalfAway };

struct CellEdges {
    float above;
    float below;
};

// The magnitude of the BF16 value that `magnitude` rounds to, as FP32 bits.
DEVICE u32 middle(Cast cast, u32 magnitude) {
    const u32 half = cast == Cast::NearestEven ? 0x7fffu + ((magnitude >> 16) & 1u) : 0x8000u;
    return (magnitude + half) & 0xffff0000u;
}

// The BF16 bits of a float; every NaN becomes 0xffff.
DEVICE u32 bf16_bits(Cast cast, float x) {
    const u32 bits = __float_as_uint(x);
    const u32 magnitude = bits & ~SIGN;
    const u32 rounded = ((bits & SIGN) | middle(cast, magnitude)) >> 16;
    return magnitude > INFINITE ? 0xffffu : rounded;
}

// The first floats outside the cell of `x`; for NaN, and in the cells of the infinities, they mean nothing.
DEVICE CellEdges edges_of(Cast cast, float x) {
    const u32 sign = __float_as_uint(x) & SIGN;
    const u32 mid = middle(cast, __float_as_uint(x) & ~SIGN);
    const u32 reach = 0x8001u - ((mid >> 16) & 1u);
    const u32 far_reach = cast == Cast::NearestEven ? reach : 0x8000u;
    const u32 near_reach = cast == Cast::NearestEven ? reach : 0x8001u;
    const float far = __uint_as_float(sign | (mid + far_reach));
    // BF-1: toward zero from a zero lies the zero of the other sign.
    const float near = __uint_as_float(mid == 0 ? sign ^ SIGN : sign | (mid - near_reach));
    return sign == 0 ? CellEdges{far, near} : CellEdges{near, far};
}

// The FP32 value of a BF16 pattern, exactly.
DEVICE float widen(u32 bits) {
    return __uint_as_float(bits << 16);
}

// The place of a BF16 pattern on the line of all patterns, and the pattern at a place.
DEVICE u32 key_of(u32 bits) {
    return bits & 0x8000u ? bits ^ 0xffffu : bits ^ 0x8000u;
}
DEVICE u32 unkey(u32 place) {
    return place & 0x8000u ? place ^ 0x8000u : place ^ 0xffffu;
}

// Edges of the cells of all patterns within `steps` of that of `x`; false if that runs into an infinity.
DEVICE bool edges_around(Cast cast, float x, u32 steps, CellEdges& edges) {
    const u32 place = key_of(bf16_bits(cast, x));
    if (place < steps || place + steps > 0xffffu) {
        return false;
    }
    const u32 low = unkey(place - steps), high = unkey(place + steps);
    // The cell of an infinity, and NaN beyond it, have no float outside.
    if ((low & 0x7fffu) >= 0x7f80u || (high & 0x7fffu) >= 0x7f80u) {
        return false;
    }
    edges = {edges_of(cast, widen(high)).above, edges_of(cast, widen(low)).below};
    return true;
}

// Whether a master is +0.0 or at least 2^-124 in magnitude: the twin of `is_fit` in `crates/driftless-numerics/src/audit.rs`.
DEVICE bool is_fit(float x) {
    const u32 bits = __float_as_uint(x);
    return (bits == 0) | ((bits & ~SIGN) >= (3u << 23));
}
