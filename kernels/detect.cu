// One pass over a source tensor: what may have changed, in order, and the digest of what is there now.
// The twin of `crates/driftless-device/src/cpu/detect.rs`.
//
// - **GP-1 (ordered without a second pass).** A change's place in the list is the number of changes before it, whatever
//   order blocks run in: see scan.cuh.
// - **GP-2 (nothing wider than a change leaves a tile).** Bits, marks and updates live in registers.
//
// Blocks take tiles by ticket until none is left. A tile lies in one part; each warp has 1024 consecutive elements of it,
// 128 at a time, each lane four of these, loaded 16 bytes at a time. A first look, without a root or a division, clears
// nearly all elements; the few that are left are read again from the cache and judged in a loop in which lanes wait for
// each other's elements, not for each vector's. All that is kept of an element is its mark.
#include "types.cuh"
#include "abi.cuh"
#include "bf16.cuh"
#include "rule.cuh"
#include "digest.cuh"
#include "scan.cuh"

constexpr u32 VECTOR = 4;
// So that the marks of a lane fill one word.
constexpr u32 DETECT_VECTORS = 8;
// Vectors between two judgments: what was read is still in the cache.
constexpr u32 JUDGED_VECTORS = 2;
constexpr u32 WARP_VECTOR = VECTOR * WARP_LANES;
constexpr u32 WARP_ELEMENTS = DETECT_VECTORS * WARP_VECTOR;
constexpr u32 ALL_VALID = (1u << VECTOR) - 1u;
constexpr u32 NO_PART = 0xffffffffu;
// Cells of a box that are summed in shared memory; those of boxes with more cuts go to global memory.
constexpr u32 SHARED_CELLS = 16;
// Blocks of 1024 words that a tile may touch: 32,768 FP32 elements, not aligned to blocks.
constexpr u32 TILE_SCALES = 66;

struct DetectShared {
    SharedFactors factors;
    Lanes scales[TILE_SCALES];
    u32 cells[SHARED_CELLS][4];
    u32 warp_counts[MAX_WARPS];
    Part part;
    u64 before;
    u32 tile;
    u32 part_index;
};

// Four consecutive elements of a lane. `offset` counts from the first element of the part, and wraps below it.
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

// What a tile's elements say of their piece.
struct Noted {
    u32 exceeded;
    bool is_unfit;
};

// ---- What says which elements may have changed. ----

template <class Family>
struct ByRule {
    static constexpr bool serves_fp32 = false;
    // Whether the first look is a guess: it clears only what `is_marked` would not mark.
    static constexpr bool judges_twice = true;
    struct State {
        float m[VECTOR];
        float v[VECTOR];
    };
    DEVICE Cast cast_by(const DetectArgs&) {
        return Family::cast;
    }
    DEVICE void load(const DetectArgs& args, const Quad& quad, State& state) {
        load_floats(args.exp_avg, quad, state.m);
        if (Family::reads_second_moments) {
            load_floats(args.exp_avg_sq, quad, state.v);
        }
    }
    // NU-6: nearly all elements end here.
    DEVICE bool may_be_marked(const DetectArgs& args, u32 k, float x, u32, const State& state) {
        return !surely<Family>(args.rule, x, state.m[k], Family::reads_second_moments ? state.v[k] : 0.0f);
    }
    DEVICE bool is_marked(const DetectArgs& args, u32 at, Noted& noted) {
        const float x = args.master[at], m = args.exp_avg[at];
        const float v = Family::reads_second_moments ? args.exp_avg_sq[at] : 0.0f;
        const float u = Family::update(args.rule, m, v);
        if (!is_within_bound(args.rule, m, v, u)) {
            const u32 magnitude = __float_as_uint(u) & ~SIGN;
            const u32 code = magnitude > INFINITE ? 1 : magnitude + 2;
            noted.exceeded = code > noted.exceeded ? code : noted.exceeded;
        }
        return !certifies<Family>(args.rule, x, m, v, u);
    }
    DEVICE u32 class_of(const DetectArgs& args, u32 at, float x, u32) {
        return step_class<Family>(args.rule, x, args.exp_avg[at], Family::reads_second_moments ? args.exp_avg_sq[at] : 0.0f);
    }
    DEVICE void settle(const DetectArgs&, const Part&, const Quad&, u32, const u32 (&)[VECTOR]) {}
};

DEVICE Cast cast_of(const DetectArgs& args) {
    return args.flags & DETECT_HALF_AWAY ? Cast::HalfAway : Cast::NearestEven;
}

// By comparison with older bits.
struct ByOldBits {
    static constexpr bool serves_fp32 = false;
    static constexpr bool judges_twice = false;
    struct State {
        u32 old_bits[VECTOR];
    };
    DEVICE Cast cast_by(const DetectArgs& args) {
        return cast_of(args);
    }
    DEVICE void load(const DetectArgs& args, const Quad& quad, State& state) {
        load_words(args.previous, quad, state.old_bits);
    }
    DEVICE bool may_be_marked(const DetectArgs&, u32 k, float, u32 bits, const State& state) {
        return bits != state.old_bits[k];
    }
    DEVICE bool is_marked(const DetectArgs&, u32, Noted&) {
        return true;
    }
    DEVICE u32 class_of(const DetectArgs& args, u32 at, float, u32 bits) {
        return class_between(args.previous[at], bits);
    }
    DEVICE void settle(const DetectArgs& args, const Part&, const Quad& quad, u32 marks, const u32 (&bits)[VECTOR]) {
        if (!(args.flags & DETECT_UPDATE)) {
            return;
        }
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            if (marks >> k & 1u) {
                args.previous[quad.at + k] = u16(bits[k]);
            }
        }
    }
};

// By the bits that an optimizer wrote in the step.
struct ByMarks {
    static constexpr bool serves_fp32 = false;
    static constexpr bool judges_twice = false;
    struct State {
        u32 marks;
    };
    DEVICE Cast cast_by(const DetectArgs& args) {
        return cast_of(args);
    }
    DEVICE void load(const DetectArgs& args, const Quad& quad, State& state) {
        state.marks = bits_of_set(args.changed, quad);
    }
    DEVICE bool may_be_marked(const DetectArgs&, u32 k, float, u32, const State& state) {
        return state.marks >> k & 1u;
    }
    DEVICE bool is_marked(const DetectArgs&, u32, Noted&) {
        return true;
    }
    DEVICE u32 class_of(const DetectArgs&, u32, float, u32) {
        return 2;
    }
    DEVICE void settle(const DetectArgs&, const Part&, const Quad&, u32, const u32 (&)[VECTOR]) {}
};

// By nobody: the part goes whole, or was not touched.
struct ByNobody {
    static constexpr bool serves_fp32 = true;
    static constexpr bool judges_twice = false;
    struct State {};
    DEVICE Cast cast_by(const DetectArgs& args) {
        return cast_of(args);
    }
    DEVICE void load(const DetectArgs&, const Quad&, State&) {}
    DEVICE bool may_be_marked(const DetectArgs&, u32, float, u32, const State&) {
        return false;
    }
    DEVICE bool is_marked(const DetectArgs&, u32, Noted&) {
        return false;
    }
    DEVICE u32 class_of(const DetectArgs&, u32, float, u32) {
        return 2;
    }
    DEVICE void settle(const DetectArgs& args, const Part& part, const Quad& quad, u32, const u32 (&bits)[VECTOR]) {
        if (!(part.flags & PART_REPLACE)) {
            return;
        }
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            if (is_valid(quad, k)) {
                args.previous[quad.at + k] = u16(bits[k]);
            }
        }
    }
};

// ---- Digests. ----

// A part whose elements follow each other in the parameter: it lies in one cell.
DEVICE bool is_flat(const Part& part) {
    return part.cols.divisor >= part.count;
}

// The canonical flat index of a tile's first element.
DEVICE u64 first_of_tile(const Part& part, u32 base) {
    return part.origin + (base > part.start ? base - part.start : 0);
}

// The scales of the blocks that a flat tile touches; one warp computes them.
DEVICE void load_scales(DetectShared& shared, const DigestTable* table, u32 base) {
    const Part& part = shared.part;
    const u32 lg_words = part.flags & PART_FP32 ? 1 : 0;
    const u64 first = first_of_tile(part, base) << lg_words;
    const u32 words = (blockDim.x * VECTOR * DETECT_VECTORS) << lg_words;
    const u32 blocks = words / BLOCK_WORDS + 2;
    for (u32 block = lane_of(); block < blocks; block += WARP_LANES) {
        shared.scales[block] = scale_of(table->seeds, part.param, (first >> LG_BLOCK_WORDS) + block);
    }
}

// Four words of a flat part from canonical word `first` on, those that are valid.
DEVICE void digest_flat(const DetectShared& shared, u64 first_block, u64 first, u32 valid, const u32 (&words)[VECTOR],
                        Lanes& sums) {
    const u32 place = u32(first) & (BLOCK_WORDS - 1);
    if (valid == ALL_VALID && place <= BLOCK_WORDS - VECTOR) {
        Lanes unscaled = {};
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            add_shared_product(unscaled, shared.factors, place + k, sext(words[k]));
        }
        add_scaled(sums, shared.scales[u32((first >> LG_BLOCK_WORDS) - first_block)], unscaled);
        return;
    }
#pragma unroll
    for (u32 k = 0; k < VECTOR; ++k) {
        if (valid >> k & 1u) {
            Lanes unscaled = {};
            add_shared_product(unscaled, shared.factors, (place + k) & (BLOCK_WORDS - 1), sext(words[k]));
            add_scaled(sums, shared.scales[u32(((first + k) >> LG_BLOCK_WORDS) - first_block)], unscaled);
        }
    }
}

// The number of a cell of the part, by column.
DEVICE u32 cell_of(const DetectArgs& args, const Part& part, u32 col) {
    u32 cell = 0;
    for (u32 cut = 0; cut < part.cut_count; ++cut) {
        cell += __ldg(args.cuts + part.first_cut + cut) <= col ? 1 : 0;
    }
    return cell;
}

DEVICE u32* cell_sums(const DetectArgs& args, DetectShared& shared, u32 cell) {
    return cell < SHARED_CELLS ? shared.cells[cell] : args.cells + 4 * u64(shared.part.first_cell + cell);
}

// One word of a box, straight into its cell: where four elements are not alike.
DEVICE void digest_word(const DetectArgs& args, DetectShared& shared, u64 word_index, u32 cell, u32 word) {
    Lanes sums = {};
    add_word(sums, args.table, args.table->seeds, shared.part.param, word_index, sext(word));
    u32* const digest = cell_sums(args, shared, cell);
#pragma unroll
    for (u32 l = 0; l < 4; ++l) {
        atomicAdd(digest + l, sums.lane[l]);
    }
}

// Four elements of a box, one by one: read again, for few are not alike.
DEVICE void digest_mixed(const DetectArgs& args, DetectShared& shared, Cast cast, const Quad& quad) {
    const Part& part = shared.part;
#pragma unroll 1
    for (u32 k = 0; k < VECTOR; ++k) {
        if (!is_valid(quad, k)) {
            continue;
        }
        const u32 row = divided(quad.offset + k, part.cols), col = quad.offset + k - row * part.cols.divisor;
        const u64 element = part.origin + row * part.row_stride + col;
        const u32 cell = cell_of(args, part, col), x = __float_as_uint(args.master[quad.at + k]);
        const bool is_fp32 = part.flags & PART_FP32;
        u32 words = is_fp32 ? x : bf16_bits(cast, __uint_as_float(x));
#pragma unroll 1
        for (u32 half = 0; half < (is_fp32 ? 2 : 1); ++half) {
            digest_word(args, shared, (is_fp32 ? 2 * element : element) + half, cell, words & 0xffffu);
            words >>= 16;
        }
    }
}

// Adds the sums of the lanes that have some to their cells, one cell of the warp after the other.
DEVICE void add_by_cell(const DetectArgs& args, DetectShared& shared, bool has, u32 cell, const Lanes& sums) {
    for (u32 left = __ballot_sync(WARP, has); left != 0;) {
        const u32 chosen = __shfl_sync(WARP, cell, __ffs(i32(left)) - 1);
        const bool is_mine = has && cell == chosen;
        u32* const digest = cell_sums(args, shared, chosen);
#pragma unroll
        for (u32 l = 0; l < 4; ++l) {
            const u32 sum = __reduce_add_sync(WARP, is_mine ? sums.lane[l] : 0);
            if (lane_of() == l) {
                atomicAdd(digest + l, sum);
            }
        }
        left &= ~__ballot_sync(WARP, is_mine);
    }
}

// Four elements of each lane of a warp, of a box with gaps between its rows in the parameter.
DEVICE void digest_box(const DetectArgs& args, DetectShared& shared, Cast cast, const Quad& quad,
                       const u32 (&bits)[VECTOR]) {
    const Part& part = shared.part;
    const u32 row = divided(quad.offset, part.cols), col = quad.offset - row * part.cols.divisor;
    const u64 first = part.origin + row * part.row_stride + col;
    const u32 place = u32(first) & (BLOCK_WORDS - 1);
    const u32 cell = cell_of(args, part, col);
    const bool is_alike = quad.valid == ALL_VALID && !(part.flags & PART_FP32) && place <= BLOCK_WORDS - VECTOR &&
                          col + VECTOR <= part.cols.divisor && cell == cell_of(args, part, col + VECTOR - 1);
    Lanes sums = {};
    if (is_alike) {
        Lanes unscaled = {};
#pragma unroll
        for (u32 k = 0; k < VECTOR; ++k) {
            add_shared_product(unscaled, shared.factors, place + k, sext(bits[k]));
        }
        add_scaled(sums, scale_of(args.table->seeds, part.param, first >> LG_BLOCK_WORDS), unscaled);
    } else {
        digest_mixed(args, shared, cast, quad);
    }
    add_by_cell(args, shared, is_alike, cell, sums);
}

template <class Judge>
DEVICE void digest_quad(const DetectArgs& args, DetectShared& shared, u32 base, const Quad& quad,
                        const float (&x)[VECTOR], const u32 (&bits)[VECTOR], Lanes& sums) {
    const Part& part = shared.part;
    if (!is_flat(part)) {
        digest_box(args, shared, Judge::cast_by(args), quad, bits);
        return;
    }
    const u64 first = part.origin + signed_offset(quad.offset);
    if (!(Judge::serves_fp32 && part.flags & PART_FP32)) {
        digest_flat(shared, first_of_tile(part, base) >> LG_BLOCK_WORDS, first, quad.valid, bits, sums);
        return;
    }
    const u64 first_block = 2 * first_of_tile(part, base) >> LG_BLOCK_WORDS;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 one = __float_as_uint(x[2 * half]), other = __float_as_uint(x[2 * half + 1]);
        const u32 words[VECTOR] = {one & 0xffffu, one >> 16, other & 0xffffu, other >> 16};
        const u32 valid = quad.valid >> (2 * half);
        const u32 valid_words = (valid & 1u ? 3u : 0) | (valid & 2u ? 12u : 0);
        digest_flat(shared, first_block, 2 * first + 4 * half, valid_words, words, sums);
    }
}

// Brings the sums of a part to its cells: all threads of a block come here, none adds to a cell meanwhile.
DEVICE void flush(const DetectArgs& args, DetectShared& shared, u32 part_index, Lanes& sums) {
    if (part_index != NO_PART && args.flags & DETECT_DIGEST) {
        u32* const cells = args.cells + 4 * u64(args.parts[part_index].first_cell);
        add_warp(cells, sums);
        for (u32 slot = threadIdx.x; slot < 4 * SHARED_CELLS; slot += blockDim.x) {
            const u32 sum = shared.cells[slot / 4][slot % 4];
            if (sum != 0) {
                atomicAdd(cells + slot, sum);
            }
        }
    }
    for (u32 slot = threadIdx.x; slot < 4 * SHARED_CELLS; slot += blockDim.x) {
        shared.cells[slot / 4][slot % 4] = 0;
    }
    sums = {};
}

// ---- Tiles. ----

// The last of `count` parts that begins at or before a tile: one warp, 32 probes a round.
DEVICE u32 part_of(const Part* parts, u32 count, u32 tile) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 step = (high - low + WARP_LANES - 1) / WARP_LANES;
        const u32 probe = low + lane_of() * step;
        const bool is_before = probe < high && parts[probe].first_tile <= tile;
        const u32 last = 31 - u32(__clz(i32(__ballot_sync(WARP, is_before))));
        low += last * step;
        high = low + step < high ? low + step : high;
    }
    return low;
}

DEVICE u32 base_of(const Part& part, u32 tile) {
    return (part.start & ~(WARP_VECTOR - 1)) + (tile - part.first_tile) * (blockDim.x * VECTOR * DETECT_VECTORS);
}

// Takes a ticket and finds its part: one warp.
DEVICE void take_tile(const DetectArgs& args, DetectShared& shared) {
    u32 ticket = 0;
    if (lane_of() == 0) {
        ticket = atomicAdd(args.ticket, 1u);
    }
    ticket = __shfl_sync(WARP, ticket, 0);
    if (ticket < args.tile_count) {
        const u32 tile = args.first_tile + ticket, index = part_of(args.parts, args.part_count, tile);
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
            load_scales(shared, args.table, base_of(shared.part, tile));
        }
    } else if (lane_of() == 0) {
        shared.part_index = NO_PART;
    }
}

// Notes what a tile says of its piece: whole warps.
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

// How many changes lie before those of this warp: all threads of the block.
DEVICE u64 place_of_warp(const DetectArgs& args, DetectShared& shared, u32 tile, u32 marks) {
    const u32 of_this_warp = __reduce_add_sync(WARP, u32(__popc(marks)));
    if (lane_of() == 0) {
        shared.warp_counts[warp_of()] = of_this_warp;
    }
    __syncthreads();
    if (warp_of() == 0) {
        u32 tile_total;
        const u32 of_warp = lane_of() < blockDim.x / WARP_LANES ? shared.warp_counts[lane_of()] : 0;
        const u32 before_warp = exclusive_in_warp(of_warp, tile_total);
        const u64 before_tile = look_back(args.tile_state, tile, tile_total);
        shared.warp_counts[lane_of()] = before_warp;
        if (lane_of() == 0) {
            shared.before = before_tile;
            if (tile == args.tensor_tiles - 1) {
                *args.count = before_tile + tile_total;
            }
        }
    }
    __syncthreads();
    return shared.before + shared.warp_counts[warp_of()];
}

// Lists the marked ones of a lane's four elements from `place` on.
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

// Looks at the four elements of a lane: which of them may be marked.
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

// Which of a lane's elements are marked, of those that may be.
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

// What is pending of a lane's elements.
DEVICE u32 pending_of(const DetectArgs& args, const Part& part, u32 first) {
    u32 older = 0;
#pragma unroll
    for (u32 vector = 0; vector < DETECT_VECTORS; ++vector) {
        older |= bits_of_set(args.pending, quad_of(part, first + vector * WARP_VECTOR)) << (vector * VECTOR);
    }
    return older;
}

// Judges a tile: the marks of a lane's elements, four bits per vector.
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
            digest_quad<Judge>(args, shared, base, quad, x, bits, sums);
        }
        if (vector % JUDGED_VECTORS == JUDGED_VECTORS - 1) {
            marks |= judged<Judge>(args, first, candidates, noted);
            candidates = 0;
        }
    }
    return marks;
}

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
        list_warp<Judge>(args, first, marks, older, place_of_warp(args, shared, tile, marks));
    }
}

template <class Judge>
DEVICE void detect(const DetectArgs& args) {
    SHARED(DetectShared, shared);
    Lanes sums = {};
    u32 part_index = NO_PART;
    if (args.flags & DETECT_DIGEST) {
        load_factors(shared.factors, args.table);
    }
    flush(args, shared, part_index, sums);
    for (;;) {
        // All threads have left the last tile, and its part.
        __syncthreads();
        if (warp_of() == 0) {
            take_tile(args, shared);
        }
        __syncthreads();
        if (shared.part_index != part_index) {
            flush(args, shared, part_index, sums);
            part_index = shared.part_index;
            __syncthreads();
        }
        if (part_index == NO_PART) {
            return;
        }
        detect_tile<Judge>(args, shared, sums);
    }
}

#define DETECT(name, Judge)                                                       \
    KERNEL __launch_bounds__(MAX_THREADS) name(ARGS(DetectArgs) args) { \
        detect<Judge>(args);                                                      \
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
