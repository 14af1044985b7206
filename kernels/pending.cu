// What belongs to a detection and is done per bit or per change: sets of pending elements, and a snapshot brought up to
// date. The twins of `insert_range`, `insert_all` and `count` in `crates/driftless-device/src/bitset.rs`, and of the
// comparison in `cpu/kernels.rs`, which replaces older bits while it compares them: here that waits until the list is
// complete.
#include "types.cuh"
#include "abi.cuh"
#include "threads.cuh"

// Bits first .. first + count become ones: a thread per word.
KERNEL __launch_bounds__(MAX_THREADS) driftless_fill_bits(ARGS(FillArgs) args) {
    const u64 end = args.first + args.count;
    const u64 stride = item_stride(), words_end = (end + 31) >> 5;
    for (u64 word = (args.first >> 5) + first_item(); word < words_end; word += stride) {
        const u64 low = word << 5;
        const u32 from_first = low < args.first ? WARP << u32(args.first - low) : WARP;
        const u32 to_end = low + 32 > end ? WARP >> u32(low + 32 - end) : WARP;
        if ((from_first & to_end) != 0) {
            atomicOr(args.bits + word, from_first & to_end);
        }
    }
}

// `words[indices[i]] = values[i]`: indices are those of a list of changes, each below the tensor's length.
KERNEL __launch_bounds__(MAX_THREADS) driftless_put(ARGS(PutArgs) args) {
    const u64 stride = item_stride();
    for (u64 i = first_item(); i < args.count; i += stride) {
        args.words[args.indices[i]] = args.values[i];
    }
}

// Bits `indices[i]` become ones: indices are below the tensor's length.
KERNEL __launch_bounds__(MAX_THREADS) driftless_mark(ARGS(MarkArgs) args) {
    const u64 stride = item_stride();
    for (u64 i = first_item(); i < args.count; i += stride) {
        const u32 index = args.indices[i];
        atomicOr(args.bits + (index >> 5), 1u << (index & 31u));
    }
}

// How many bits are ones.
KERNEL __launch_bounds__(MAX_THREADS) driftless_count_bits(ARGS(CountArgs) args) {
    u32 ones = 0;
    const u64 stride = item_stride();
    for (u64 word = first_item(); word < args.words; word += stride) {
        ones += u32(__popc(args.bits[word]));
    }
    const u32 of_warp = __reduce_add_sync(WARP, ones);
    if (lane_of() == 0 && of_warp != 0) {
        atomicAdd(args.count, u64(of_warp));
    }
}
