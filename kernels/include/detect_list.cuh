// What becomes of a tile's marks: they are added to what is pending, or listed in order.
//
// GP-1: within a warp changes are listed quad by quad, 128 elements at a time, so that indices rise; where a warp's
// changes begin says `place_of_warp` (scan.cuh). A lane's marks are one word, four bits per quad.
#pragma once
#include "detect_judges.cuh"
#include "scan.cuh"

// Adds the marks of a warp's 128 elements to what is pending: eight lanes share a word.
DEVICE void collect(const DetectArgs& args, u32 at, u32 marks) {
    u32 word = marks << (4 * (lane_of() & 7u));
#pragma unroll
    for (u32 distance = 1; distance < 8; distance <<= 1) {
        word |= __shfl_xor_sync(WARP, word, i32(distance));
    }
    if ((lane_of() & 7u) == 0 && word != 0) {
        atomicOr(args.pending + (at >> 5), word);
    }
}

// What is pending of a lane's elements, as marks.
DEVICE u32 pending_of(const DetectArgs& args, const Part& part, u32 first) {
    u32 older = 0;
#pragma unroll
    for (u32 vector = 0; vector < DETECT_VECTORS; ++vector) {
        older |= bits_of_set(args.pending, quad_of(part, first + vector * WARP_VECTOR)) << (vector * VECTOR);
    }
    return older;
}

// Lists the marked ones of a lane's four elements from `place` on; what has no room is cut (and was counted).
// Values are read again, from the cache: GP-2.
template <class Judge>
DEVICE void list(const DetectArgs& args, u32 at, u32 marks, u32 older, u64 place) {
#pragma unroll 1
    for (; marks != 0 && place < args.capacity; marks &= marks - 1, ++place) {
        const u32 k = u32(__ffs(i32(marks))) - 1;
        const float x = args.master[at + k];
        const u32 bits = bf16_bits(Judge::cast_by(args), x);
        args.indices[place] = at + k;
        args.values[place] = u16(bits);
        if (args.classes != nullptr) {
            // Of one that is pending nothing is known: bounds of several steps do not add up.
            args.classes[place] = u8(older >> k & 1u ? 2 : Judge::class_of(args, at + k, x, bits));
        }
    }
}

// Lists what a warp marked, 128 elements at a time.
template <class Judge>
DEVICE void list_warp(const DetectArgs& args, u32 first, u32 marks, u32 older, u64 place) {
#pragma unroll 1
    for (u32 vector = 0; vector < DETECT_VECTORS; ++vector, marks >>= VECTOR, older >>= VECTOR) {
        const u32 mine = marks & ALL_VALID;
        if (!__any_sync(WARP, mine != 0)) {
            continue;
        }
        u32 total;
        const u32 before = exclusive_in_warp(u32(__popc(mine)), total);
        list<Judge>(args, first + vector * WARP_VECTOR, mine, older & ALL_VALID, place + before);
        place += total;
    }
}
