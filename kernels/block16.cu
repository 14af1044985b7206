// `block16` sections: blocks of 2^16 elements; a directory of offsets in changes, then in each block 16-bit offsets, then
// absolute 16-bit values. The twin of `crates/driftless-codec/src/delta/block16.rs`.
//
// Decoding checks as the twin does and reports through a flag: the directory begins at 0, never falls, gives no block
// more changes than it has elements and ends at `nnz`; offsets rise strictly and lie in the fragment. It reads nothing
// outside of the body and writes nothing outside of the lists, whatever the body says.
#include "types.cuh"
#include "abi.cuh"
#include "threads.cuh"
#include "search.cuh"

constexpr u32 LG_ELEMENTS = 16;
constexpr u64 ELEMENTS = 1u << LG_ELEMENTS;

DEVICE u64 blocks_of(u64 n) {
    return (n + ELEMENTS - 1) >> LG_ELEMENTS;
}

DEVICE u32* directory_of(const Block16Args& args) {
    return reinterpret_cast<u32*>(args.body);
}

// The offsets of a block that begins at change `first`; its values follow them.
DEVICE u16* offsets_of(const Block16Args& args, u32 first) {
    return reinterpret_cast<u16*>(args.body + 4 * (blocks_of(args.n) + 1)) + 2 * u64(first);
}

// What is wrong with a block's place in the directory, if anything.
DEVICE u32 directory_fault(const Block16Args& args, u64 block, u32 first, u32 end) {
    const u64 left = args.n - (block << LG_ELEMENTS), room = left < ELEMENTS ? left : ELEMENTS;
    const bool is_right = first <= end && end <= args.nnz && end - first <= room && (block > 0 || first == 0) &&
                          (block + 1 < blocks_of(args.n) || end == args.nnz);
    return is_right ? 0 : FAULT_DIRECTORY;
}

// The threads of a block of threads share the changes of one block of elements after the other.
KERNEL __launch_bounds__(MAX_THREADS) driftless_block16_decode(ARGS(Block16Args) args) {
    u32 fault = 0;
    for (u64 block = blockIdx.x; block < blocks_of(args.n); block += gridDim.x) {
        const u32 first = directory_of(args)[block], end = directory_of(args)[block + 1];
        const u32 directory = directory_fault(args, block, first, end);
        if (directory != 0) {
            fault = directory;
            continue;
        }
        const u32 count = end - first;
        const u16* const offsets = offsets_of(args, first);
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            const u32 offset = offsets[i];
            const u64 position = (block << LG_ELEMENTS) + offset;
            if (position >= args.n) {
                fault = FAULT_OUT_OF_RANGE;
            } else if (i > 0 && offsets[i - 1] >= offset && fault == 0) {
                fault = FAULT_NOT_RISING;
            }
            args.positions[first + i] = u32(position);
            args.values[first + i] = offsets[count + i];
        }
    }
    if (fault != 0) {
        atomicMax(args.fault, fault);
    }
}

// The directory of a body that is to be written, a thread per entry: positions rise strictly and lie below `n`.
KERNEL __launch_bounds__(MAX_THREADS) driftless_block16_directory(ARGS(Block16Args) args) {
    const u64 stride = item_stride();
    for (u64 block = first_item(); block <= blocks_of(args.n); block += stride) {
        directory_of(args)[block] = count_below(args.positions, u32(args.nnz), block << LG_ELEMENTS);
    }
}

// The blocks of the body, behind its directory, a thread per change: its block's directory entry says where it goes.
KERNEL __launch_bounds__(MAX_THREADS) driftless_block16_encode(ARGS(Block16Args) args) {
    const u64 stride = item_stride();
    for (u64 i = first_item(); i < args.nnz; i += stride) {
        const u32 position = args.positions[i];
        const u32* const place = directory_of(args) + (position >> LG_ELEMENTS);
        const u32 first = place[0], count = place[1] - first;
        u16* const offsets = offsets_of(args, first);
        offsets[i - first] = u16(position);
        offsets[count + (i - first)] = args.values[i];
    }
}
