// The element digest: the twin of `crates/driftless-numerics/src/digest.rs`.
//
// D_l = sum over words i of s_l(p, i / 1024) * k_l[i % 1024] * sext(word_i) mod 2^32, l = 0..3.
#pragma once
#include "abi.cuh"

constexpr u32 LG_BLOCK_WORDS = 10;
constexpr u32 BLOCK_WORDS = 1u << LG_BLOCK_WORDS;

struct Lanes {
    u32 lane[4];
};

// The finalizer of splitmix64.
DEVICE u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// The scale factors of a block of 1024 words of a parameter.
DEVICE Lanes scale_of(const u64 seeds[2], u32 param, u64 block) {
    const u64 position = ((u64(param) << 32) | block) * 0x9E3779B97F4A7C15ull;
    const u64 first = mix(seeds[0] + position), second = mix(seeds[1] + position);
    return {{u32(first) | 1u, u32(first >> 32) | 1u, u32(second) | 1u, u32(second >> 32) | 1u}};
}

// The four factors of a word, from global memory: two 32-bit loads' worth at once.
DEVICE Lanes factors_of(const DigestTable* table, u32 place) {
    const uint2 packed = __ldg(reinterpret_cast<const uint2*>(table->factors) + place);
    return {{u32(i32(packed.x << 16) >> 16), u32(i32(packed.x) >> 16), u32(i32(packed.y << 16) >> 16),
             u32(i32(packed.y) >> 16)}};
}

// A word as a signed number.
DEVICE u32 sext(u32 word) {
    return u32(i32(word << 16) >> 16);
}

DEVICE void add_product(Lanes& sums, const Lanes& factors, u32 value) {
#pragma unroll
    for (u32 l = 0; l < 4; ++l) {
        sums.lane[l] += factors.lane[l] * value;
    }
}

DEVICE void add_scaled(Lanes& sums, const Lanes& scale, const Lanes& unscaled) {
#pragma unroll
    for (u32 l = 0; l < 4; ++l) {
        sums.lane[l] += scale.lane[l] * unscaled.lane[l];
    }
}

// One word at any place of a parameter, or the difference that a word makes.
DEVICE void add_word(Lanes& sums, const DigestTable* table, const u64 seeds[2], u32 param, u64 word_index, u32 value) {
    Lanes unscaled = {};
    add_product(unscaled, factors_of(table, u32(word_index) & (BLOCK_WORDS - 1)), value);
    add_scaled(sums, scale_of(seeds, param, word_index >> LG_BLOCK_WORDS), unscaled);
}

// The sum over a warp into memory: all lanes of the warp must come here.
DEVICE void add_warp(u32* digest, const Lanes& sums) {
#pragma unroll
    for (u32 l = 0; l < 4; ++l) {
        const u32 sum = __reduce_add_sync(WARP, sums.lane[l]);
        // Not `lane_of() == l`: for that NVRTC 13.0 writes 24 instructions more.
        if ((threadIdx.x & 31u) == l && sum != 0) {
            atomicAdd(digest + l, sum);
        }
    }
}

// The factors of all places in shared memory, one 16-byte load each. Places that are four apart lie side by side, so
// that lanes with four consecutive words each meet in no bank.
struct SharedFactors {
    int4 by_quarter[4][BLOCK_WORDS / 4];
};

DEVICE void load_factors(SharedFactors& shared, const DigestTable* table) {
    for (u32 place = threadIdx.x; place < BLOCK_WORDS; place += blockDim.x) {
        const Lanes factors = factors_of(table, place);
        shared.by_quarter[place & 3u][place >> 2] = {i32(factors.lane[0]), i32(factors.lane[1]), i32(factors.lane[2]),
                                                     i32(factors.lane[3])};
    }
}

DEVICE void add_shared_product(Lanes& sums, const SharedFactors& shared, u32 place, u32 value) {
    const int4 factors = shared.by_quarter[place & 3u][place >> 2];
    sums.lane[0] += u32(factors.x) * value;
    sums.lane[1] += u32(factors.y) * value;
    sums.lane[2] += u32(factors.z) * value;
    sums.lane[3] += u32(factors.w) * value;
}
