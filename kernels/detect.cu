// One pass over a source tensor: what may have changed, in order, and the digest of what is there now.
// The twin of `crates/driftless-device/src/cpu/detect.rs`.
//
// In: masters, and what the source of changes reads beside them: moments, older bits, marks, or nothing (`Judge`, one of
// detect_judges.cuh); the tensor's parts and cuts; the pending set. Out: index, value and step class of every marked
// element, in order; the digest of each cell; what is noted per piece; the pending set or older bits brought up to date.
//
// - **GP-1 (ordered without a second pass).** A change's place in the list is the number of changes before it, whatever
//   order blocks run in: see scan.cuh.
// - **GP-2 (nothing wider than a change leaves a tile).** Bits, marks and updates live in registers.
//
// Blocks take tiles by ticket until none is left. A tile lies in one part; each warp has 1024 consecutive elements of it,
// 128 at a time, each lane four of these, loaded 16 bytes at a time (detect_tile.cuh). A first look, without a root or a
// division, clears nearly all elements; the few that are left are read again from the cache and judged in a loop in which
// lanes wait for each other's elements, not for each vector's. All that is kept of an element is its mark.
// The steps below are numbered in the order in which a tile goes through them.
#include "types.cuh"
#include "abi.cuh"
#include "threads.cuh"
#include "search.cuh"
#include "scan.cuh"
#include "detect_tile.cuh"
#include "detect_judges.cuh"
#include "detect_digest.cuh"
#include "detect_list.cuh"

// Vectors between two judgments: what was read is still in the cache.
constexpr u32 JUDGED_VECTORS = 2;

// Written by the first warp between two barriers, read by all behind them.
struct DetectShared {
    DigestShared digest;
    u32 warp_counts[MAX_WARPS];
    Part part;
    u64 before;
    u32 tile;
    u32 part_index;
};

// 1. Takes a tile by ticket and finds its part: one warp. Without a tile left there is no part.
DEVICE void take_tile(const DetectArgs& args, DetectShared& shared) {
    const u32 ticket = take_ticket(args.ticket);
    if (ticket < args.tile_count) {
        const u32 tile = args.first_tile + ticket, index = owner_of_tile(args.parts, args.part_count, tile);
        constexpr u32 words = sizeof(Part) / 4;
        if (lane_of() < words) {
            reinterpret_cast<u32*>(&shared.part)[lane_of()] = reinterpret_cast<const u32*>(args.parts + index)[lane_of()];
        }
        if (lane_of() == 0) {
            shared.tile = tile;
            shared.part_index = index;
        }
        __syncwarp();
        if (args.flags & DETECT_DIGEST && is_flat(shared.part)) {
            load_scales(shared.digest, shared.part, args.table, base_of(shared.part, tile));
        }
    } else if (lane_of() == 0) {
        shared.part_index = NO_PART;
    }
}

// 2. Looks at the four elements of a lane: which of them may be marked.
template <class Judge>
DEVICE u32 look(const DetectArgs& args, const Part& part, const Quad& quad, const float (&x)[VECTOR],
                u32 (&bits)[VECTOR], Noted& noted) {
    typename Judge::State state;
    Judge::load(args, quad, state);
    const bool is_bf16 = !(Judge::serves_fp32 && part.flags & PART_FP32);
    u32 found = 0;
#pragma unroll
    for (u32 k = 0; k < VECTOR; ++k) {
        bits[k] = bf16_bits(Judge::cast_by(args), x[k]);
        const bool counts = is_bf16 & is_valid(quad, k);
        noted.is_unfit |= counts & !is_fit(x[k]);
        found |= counts & Judge::may_be_marked(args, k, x[k], bits[k], state) ? 1u << k : 0;
    }
    Judge::settle(args, part, quad, found, bits);
    return found;
}

// 3. Which of a lane's elements are marked, of those that may be: bit 4 * vector + k is element k of that vector.
template <class Judge>
DEVICE u32 judged(const DetectArgs& args, u32 first, u32 candidates, Noted& noted) {
    if (!Judge::judges_twice) {
        return candidates;
    }
    u32 marks = 0;
#pragma unroll 1
    for (; candidates != 0; candidates &= candidates - 1) {
        const u32 bit = u32(__ffs(i32(candidates))) - 1;
        const u32 at = first + bit / VECTOR * WARP_VECTOR + bit % VECTOR;
        marks |= Judge::is_marked(args, at, noted) ? 1u << bit : 0;
    }
    return marks;
}

// 4. Steps 2 and 3 for all of a lane's elements of a tile: their marks, four bits per vector. The digest goes along.
template <class Judge>
DEVICE u32 sweep(const DetectArgs& args, DetectShared& shared, u32 base, u32 first, Noted& noted, Lanes& sums) {
    const Part& part = shared.part;
    u32 marks = 0, candidates = 0;
#pragma unroll 1
    for (u32 vector = 0; vector < DETECT_VECTORS; ++vector) {
        const Quad quad = quad_of(part, first + vector * WARP_VECTOR);
        float x[VECTOR];
        u32 bits[VECTOR];
        load_floats(args.master, quad, x);
        candidates |= look<Judge>(args, part, quad, x, bits, noted) << (vector * VECTOR);
        if (args.flags & DETECT_DIGEST) {
            digest_quad<Judge>(args, shared.digest, part, base, quad, x, bits, sums);
        }
        if (vector % JUDGED_VECTORS == JUDGED_VECTORS - 1) {
            marks |= judged<Judge>(args, first, candidates, noted);
            candidates = 0;
        }
    }
    return marks;
}

// 5. Notes what a tile says of its piece: whole warps.
DEVICE void note(const DetectArgs& args, u32 piece, const Noted& noted) {
    const u32 exceeded = __reduce_max_sync(WARP, noted.exceeded);
    const bool is_unfit = __any_sync(WARP, noted.is_unfit);
    if (lane_of() == 0 && exceeded != 0) {
        atomicMax(args.exceeded + piece, exceeded);
    }
    if (lane_of() == 0 && is_unfit) {
        atomicOr(args.unfit + piece, 1u);
    }
}

// 6. One tile: steps 2 to 5, then its marks go to what is pending, or in order into the list.
template <class Judge>
DEVICE void detect_tile(const DetectArgs& args, DetectShared& shared, Lanes& sums) {
    const Part& part = shared.part;
    const u32 tile = shared.tile, base = base_of(part, tile);
    const u32 first = base + warp_of() * WARP_ELEMENTS + lane_of() * VECTOR;
    Noted noted = {0, false};
    u32 marks = sweep<Judge>(args, shared, base, first, noted, sums);
    note(args, part.piece, noted);
    if (args.flags & DETECT_COLLECT) {
#pragma unroll 1
        for (u32 vector = 0; vector < DETECT_VECTORS; ++vector) {
            collect(args, first + vector * WARP_VECTOR, marks >> (vector * VECTOR) & ALL_VALID);
        }
    }
    if (args.flags & DETECT_LIST) {
        const bool drains = args.flags & DETECT_DRAIN && !(part.flags & PART_WHOLE);
        const u32 older = drains ? pending_of(args, part, first) : 0;
        marks |= older;
        const u32 of_this_warp = __reduce_add_sync(WARP, u32(__popc(marks)));
        const auto note_count = [&](u64 before_tile, u32 tile_total) {
            if (tile == args.tensor_tiles - 1) {
                *args.count = before_tile + tile_total;
            }
        };
        const u64 place = place_of_warp(shared, args.tile_state, tile, of_this_warp, note_count);
        list_warp<Judge>(args, first, marks, older, place);
    }
}

// The pass: a block's threads go from tile to tile together. Sums of the digest stay in registers and shared memory for
// as long as tiles are of one part.
template <class Judge>
DEVICE void detect(const DetectArgs& args) {
    SHARED(DetectShared, shared);
    Lanes sums = {};
    u32 part_index = NO_PART;
    if (args.flags & DETECT_DIGEST) {
        load_factors(shared.digest.factors, args.table);
    }
    flush(args, shared.digest, part_index, sums);
    for (;;) {
        // All threads have left the last tile, and its part.
        __syncthreads();
        if (warp_of() == 0) {
            take_tile(args, shared);
        }
        __syncthreads();
        if (shared.part_index != part_index) {
            flush(args, shared.digest, part_index, sums);
            part_index = shared.part_index;
            __syncthreads();
        }
        if (part_index == NO_PART) {
            return;
        }
        detect_tile<Judge>(args, shared, sums);
    }
}

// The instantiations, a row each in variants.tsv: eleven forms of the rule, and three sources that need none.
#define DETECT(name, Judge)                                             \
    KERNEL __launch_bounds__(MAX_THREADS) name(ARGS(DetectArgs) args) { \
        detect<Judge>(args);                                            \
    }

DETECT(driftless_detect_agnostic, ByRule<Agnostic>)
DETECT(driftless_detect_torch, ByRule<Torch>)
DETECT(driftless_detect_torch_fused_cuda, ByRule<TorchFusedCuda>)
DETECT(driftless_detect_apex, ByRule<Apex>)
DETECT(driftless_detect_te_remainder, ByRule<TeRemainder>)
DETECT(driftless_detect_deepspeed_cpu, ByRule<DeepspeedCpu>)
DETECT(driftless_detect_bitsandbytes, ByRule<Bitsandbytes>)
DETECT(driftless_detect_undecayed, ByRule<Undecayed>)
DETECT(driftless_detect_undecayed_half_away, ByRule<UndecayedHalfAway>)
DETECT(driftless_detect_sgd, ByRule<Sgd>)
DETECT(driftless_detect_sgd_half_away, ByRule<SgdHalfAway>)
DETECT(driftless_detect_compare, ByOldBits)
DETECT(driftless_detect_marked, ByMarks)
DETECT(driftless_detect_rest, ByNobody)
