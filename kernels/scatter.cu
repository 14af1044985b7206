// Change sets into live weights, the old words kept aside, the digest carried along.
// The twin of `crates/driftless-device/src/cpu/scatter.rs` and `src/undo.rs`.
//
// - **GP-3 (no write on a fault).** `driftless_scatter_check` looks at every position first and notes a fault in the
//   result; the writers, behind it on the same stream, then do nothing. A bad position never becomes a device assert.
// In: a change set (positions in the box and new words), or all words of a box. Out: the weights; the old words, by
// which `undo` and `undo_all` bring them back; how many elements changed, and the digest of the new words less the old.
// Threads take changes a grid apart, or eight words that one load and store move where all is aligned.
//
// Positions of a change set are distinct, so threads write in any order, and old words need no order either (DV-2).
#include "types.cuh"
#include "abi.cuh"
#include "box.cuh"
#include "digest.cuh"
#include "threads.cuh"

constexpr u32 WORDS_PER_LOAD = 8;

// The worst that is wrong with any position, as a number: all threads may be the one that finds it.
KERNEL __launch_bounds__(MAX_THREADS) driftless_scatter_check(ARGS(ScatterArgs) args) {
    const u64 elements = elements_of(args.box);
    u32 fault = 0;
    for (u64 i = first_item(); i < args.count; i += item_stride()) {
        const u32 position = args.positions[i];
        if (position >= elements) {
            fault = FAULT_OUT_OF_RANGE;
        } else if (i > 0 && args.positions[i - 1] >= position && fault == 0) {
            fault = FAULT_NOT_RISING;
        }
    }
    if (fault != 0) {
        atomicMax(&args.result->fault, fault);
    }
}

// What the threads of a block add up.
struct Sums {
    Lanes delta;
    u32 changed;
};

struct ScatterShared {
    u32 sums[MAX_WARPS][5];
};

// Adds the sums of a block to the result: all its threads, once.
DEVICE void add_block(ScatterShared& shared, ScatterResult* result, const Sums& sums) {
#pragma unroll
    for (u32 l = 0; l < 5; ++l) {
        const u32 sum = __reduce_add_sync(WARP, l < 4 ? sums.delta.lane[l] : sums.changed);
        if (lane_of() == 0) {
            shared.sums[warp_of()][l] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < 5) {
        u32 sum = 0;
        for (u32 warp = 0; warp < blockDim.x / WARP_LANES; ++warp) {
            sum += shared.sums[warp][threadIdx.x];
        }
        if (threadIdx.x < 4) {
            atomicAdd(result->delta + threadIdx.x, sum);
        } else {
            atomicAdd(&result->changed, u64(sum));
        }
    }
}

// Writes the changes. Only words that differ change the digest and the count.
KERNEL __launch_bounds__(MAX_THREADS) driftless_scatter(ARGS(ScatterArgs) args) {
    SHARED(ScatterShared, shared);
    // GP-3: the check has run to its end.
    if (args.result->fault != 0) {
        return;
    }
    Sums sums = {};
    for (u64 i = first_item(); i < args.count; i += item_stride()) {
        const u32 value = args.values[i];
        const Spot spot = spot_of(args.box, args.positions[i]);
        const u32 old = args.words[spot.target];
        // DV-2: in the log before it is overwritten.
        args.undo[i] = u16(old);
        args.words[spot.target] = u16(value);
        if (old != value) {
            ++sums.changed;
            add_word(sums.delta, args.table, args.table->seeds, args.box.param, spot.element, sext(value) - sext(old));
        }
    }
    add_block(shared, args.result, sums);
}

// The words at some positions, where `driftless_scatter` would keep them: what values relative to a base need of it.
KERNEL __launch_bounds__(MAX_THREADS) driftless_peek(ARGS(ScatterArgs) args) {
    if (args.result->fault != 0) {
        return;
    }
    for (u64 i = first_item(); i < args.count; i += item_stride()) {
        args.undo[i] = args.words[spot_of(args.box, args.positions[i]).target];
    }
}

// Brings back what `driftless_scatter` kept: each position has one old word, so that the order is anybody's.
KERNEL __launch_bounds__(MAX_THREADS) driftless_undo(ARGS(ScatterArgs) args) {
    if (args.result->fault != 0) {
        return;
    }
    for (u64 i = first_item(); i < args.count; i += item_stride()) {
        args.words[spot_of(args.box, args.positions[i]).target] = args.undo[i];
    }
}

// ---- Whole boxes. ----

// Words of a row that lie side by side everywhere: where they lie, and how many.
struct Stretch {
    u64 target;
    u64 word_index;
    u32 count;
};

// The words from word `k` of the box on, at most eight, up to the next multiple of eight or the end of the row.
DEVICE Stretch stretch_of(const ScatterArgs& args, u64 k) {
    const u32 each = args.words_each, half = u32(k) & (each - 1);
    const Spot spot = spot_of(args.box, u32(k / each));
    const u32 in_row = spot.reach * each - half, in_load = WORDS_PER_LOAD - (u32(k) & (WORDS_PER_LOAD - 1));
    return {spot.target * each + half, spot.element * each + half, in_row < in_load ? in_row : in_load};
}

DEVICE void replace_word(const ScatterArgs& args, u64 word_index, u32 old, u32 value, Sums& sums) {
    if (old != value) {
        add_word(sums.delta, args.table, args.table->seeds, args.box.param, word_index, sext(value) - sext(old));
    }
}

// Changed elements are counted where their last word is.
DEVICE void write_words(const ScatterArgs& args, u64 k, const Stretch& stretch, Sums& sums) {
    u32 differs = 0;
    for (u32 i = 0; i < stretch.count; ++i) {
        const u32 old = args.words[stretch.target + i], value = args.values[k + i];
        // DV-2: in the log before it is overwritten.
        args.undo[k + i] = u16(old);
        args.words[stretch.target + i] = u16(value);
        replace_word(args, stretch.word_index + i, old, value, sums);
        const bool is_last = ((k + i) & (args.words_each - 1)) == args.words_each - 1;
        differs |= old != value;
        sums.changed += is_last && differs ? 1 : 0;
        differs = is_last ? 0 : differs;
    }
}

// Whether eight words can be moved at once.
DEVICE bool is_whole(const ScatterArgs& args, u64 k, const Stretch& stretch) {
    const u64 places = u64(args.words + stretch.target) | u64(args.values + k) | u64(args.undo + k);
    return stretch.count == WORDS_PER_LOAD && (places & 15u) == 0;
}

DEVICE void write_whole(const ScatterArgs& args, u64 k, const Stretch& stretch, Sums& sums) {
    uint4* const target = reinterpret_cast<uint4*>(args.words + stretch.target);
    const uint4 old = *target, value = *reinterpret_cast<const uint4*>(args.values + k);
    // DV-2: in the log before it is overwritten.
    *reinterpret_cast<uint4*>(args.undo + k) = old;
    *target = value;
    const u32 olds[4] = {old.x, old.y, old.z, old.w}, values[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (u32 pair = 0; pair < 4; ++pair) {
        const u32 difference = olds[pair] ^ values[pair];
        if (difference == 0) {
            continue;
        }
        replace_word(args, stretch.word_index + 2 * pair, olds[pair] & 0xffffu, values[pair] & 0xffffu, sums);
        replace_word(args, stretch.word_index + 2 * pair + 1, olds[pair] >> 16, values[pair] >> 16, sums);
        sums.changed += args.words_each == 2 ? 1 : ((difference & 0xffffu) != 0) + (difference >> 16 != 0);
    }
}

// All elements of a box; its count of words may not exceed 2^32.
KERNEL __launch_bounds__(MAX_THREADS) driftless_scatter_all(ARGS(ScatterArgs) args) {
    SHARED(ScatterShared, shared);
    const u64 words = args.count * args.words_each;
    Sums sums = {};
    for (u64 first = first_item() * WORDS_PER_LOAD; first < words; first += item_stride() * WORDS_PER_LOAD) {
        const u64 end = first + WORDS_PER_LOAD < words ? first + WORDS_PER_LOAD : words;
        for (u64 k = first; k < end;) {
            const Stretch stretch = stretch_of(args, k);
            if (is_whole(args, k, stretch)) {
                write_whole(args, k, stretch, sums);
            } else {
                write_words(args, k, stretch, sums);
            }
            k += stretch.count;
        }
    }
    add_block(shared, args.result, sums);
}

// Brings back what `driftless_scatter_all` kept, word by word.
KERNEL __launch_bounds__(MAX_THREADS) driftless_undo_all(ARGS(ScatterArgs) args) {
    const u64 words = args.count * args.words_each;
    for (u64 k = first_item(); k < words; k += item_stride()) {
        args.words[stretch_of(args, k).target] = args.undo[k];
    }
}
