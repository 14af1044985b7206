// The digest of a box of live weights, from nothing but its words. The twin of
// `crates/driftless-device/src/cpu/rehash.rs`; the digests of a tensor's boxes add up.
//
// A warp takes what one row of the box has of one block of 1024 words of the parameter, so that its sum is scaled once.
// Each lane has four words of 128, in eight rounds, loaded 8 bytes at a time: wider loads would meet in the banks of
// the factors.
#include "types.cuh"
#include "abi.cuh"
#include "digest.cuh"
#include "threads.cuh"

constexpr u32 ROUND_WORDS = 128;
constexpr u32 LANE_WORDS = 4;

struct RehashShared {
    SharedFactors factors;
};

// The words of one row in one block of 1024: [first, end) by canonical index, word `first` at words[source].
struct Stripe {
    u64 block;
    u64 first;
    u64 end;
    u64 source;
};

DEVICE Stripe stripe_of(const RehashArgs& args, u64 stripe, u32 per_row) {
    const Box& box = args.box;
    const u64 row = stripe / per_row, each = args.words_each;
    const u64 row_first = (box.origin + row * box.row_stride) * each, row_end = row_first + box.cols.divisor * each;
    const u64 block = (row_first >> LG_BLOCK_WORDS) + (stripe - row * per_row);
    const u64 low = block << LG_BLOCK_WORDS, high = low + BLOCK_WORDS;
    const u64 first = low < row_first ? row_first : low, end = high < row_end ? high : row_end;
    return {block, first, end, (box.dst_offset + row * box.dst_row_stride) * each + (first - row_first)};
}

// The sum of a lane's words of a stripe, not scaled.
DEVICE Lanes lane_sum(const RehashArgs& args, const SharedFactors& factors, const Stripe& stripe) {
    Lanes sums = {};
    // May lie before the tensor, and is read only from `first` on.
    const u64 base = stripe.source - (stripe.first - (stripe.block << LG_BLOCK_WORDS));
    const bool is_aligned = (u64(args.words + base) & 7u) == 0;
#pragma unroll 4
    for (u32 round = 0; round < BLOCK_WORDS / ROUND_WORDS; ++round) {
        const u32 place = round * ROUND_WORDS + lane_of() * LANE_WORDS;
        const u64 word_index = (stripe.block << LG_BLOCK_WORDS) + place;
        u32 words[LANE_WORDS] = {};
        if (is_aligned && word_index >= stripe.first && word_index + LANE_WORDS <= stripe.end) {
            const uint2 all = *reinterpret_cast<const uint2*>(args.words + base + place);
            words[0] = all.x & 0xffffu;
            words[1] = all.x >> 16;
            words[2] = all.y & 0xffffu;
            words[3] = all.y >> 16;
        } else {
#pragma unroll
            for (u32 k = 0; k < LANE_WORDS; ++k) {
                const bool exists = word_index + k >= stripe.first && word_index + k < stripe.end;
                words[k] = exists ? args.words[base + place + k] : 0;
            }
        }
#pragma unroll
        for (u32 k = 0; k < LANE_WORDS; ++k) {
            add_shared_product(sums, factors, place + k, sext(words[k]));
        }
    }
    return sums;
}

// Stripes go to warps a grid apart. A row of c words that begins anywhere in a block lies in at most c / 1024, rounded up,
// and one block; stripes beyond its end are empty.
KERNEL __launch_bounds__(MAX_THREADS) driftless_rehash(ARGS(RehashArgs) args) {
    SHARED(RehashShared, shared);
    load_factors(shared.factors, args.table);
    __syncthreads();
    const u32 per_row = u32((u64(args.box.cols.divisor) * args.words_each + BLOCK_WORDS - 1) >> LG_BLOCK_WORDS) + 1;
    const u64 stripes = args.box.rows * u64(per_row), warps = u64(gridDim.x) * (blockDim.x / WARP_LANES);
    Lanes sums = {};
    for (u64 stripe = u64(blockIdx.x) * (blockDim.x / WARP_LANES) + warp_of(); stripe < stripes; stripe += warps) {
        const Stripe mine = stripe_of(args, stripe, per_row);
        if (mine.first < mine.end) {
            const Lanes scale = scale_of(args.table->seeds, args.box.param, mine.block);
            add_scaled(sums, scale, lane_sum(args, shared.factors, mine));
        }
    }
    add_warp(args.digest, sums);
}
