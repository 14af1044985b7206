// The digest of what a tile's elements are served as, fused into the pass of `detect`: the twin of `cpu/detect.rs` where it
// hashes, and of `DigestKeys::words`.
//
// D_l of a cell is the sum over its words of scale * factor * word (digest.cuh). Factors of all 1024 places are in shared
// memory. In a flat part the tile's few scales are there too and each thread sums up in registers, over as many tiles as
// its block takes of the part. In a box, whose rows lie apart in the parameter, each quad has a scale of its own, and
// columns belong to cells: sums go to shared memory, cell by cell, or one word at a time where a quad's words are not
// alike. Sums of either kind reach the part's cells in `flush`, when the block goes on to another part.
#pragma once
#include "box.cuh"
#include "detect_judges.cuh"
#include "digest.cuh"

constexpr u32 NO_PART = 0xffffffffu;
// Cells of a box that are summed in shared memory; those of boxes with more cuts go to global memory.
constexpr u32 SHARED_CELLS = 16;
// Blocks of 1024 words that a tile may touch: 32,768 FP32 elements, not aligned to blocks.
constexpr u32 TILE_SCALES = 66;

struct DigestShared {
    SharedFactors factors;
    Lanes scales[TILE_SCALES];
    u32 cells[SHARED_CELLS][4];
};

// A part whose elements follow each other in the parameter: it lies in one cell.
DEVICE bool is_flat(const Part& part) {
    return part.cols.divisor >= part.count;
}

// The canonical flat index of a tile's first element.
DEVICE u64 first_of_tile(const Part& part, u32 base) {
    return part.origin + (base > part.start ? base - part.start : 0);
}

// The scales of the blocks that a flat tile touches; one warp computes them.
DEVICE void load_scales(DigestShared& shared, const Part& part, const DigestTable* table, u32 base) {
    const u32 lg_words = part.flags & PART_FP32 ? 1 : 0;
    const u64 first = first_of_tile(part, base) << lg_words;
    const u32 words = tile_elements() << lg_words;
    const u32 blocks = words / BLOCK_WORDS + 2;
    for (u32 block = lane_of(); block < blocks; block += WARP_LANES) {
        shared.scales[block] = scale_of(table->seeds, part.param, (first >> LG_BLOCK_WORDS) + block);
    }
}

// Four words of a flat part from canonical word `first` on, those that are valid; the tile's scales begin with that of
// `first_block`.
DEVICE void digest_flat(const DigestShared& shared, u64 first_block, u64 first, u32 valid, const u32 (&words)[VECTOR],
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

DEVICE u32* cell_sums(const DetectArgs& args, DigestShared& shared, const Part& part, u32 cell) {
    return cell < SHARED_CELLS ? shared.cells[cell] : args.cells + 4 * u64(part.first_cell + cell);
}

// One word of a box, straight into its cell: where four elements are not alike.
DEVICE void digest_word(const DetectArgs& args, DigestShared& shared, const Part& part, u64 word_index, u32 cell,
                        u32 word) {
    Lanes sums = {};
    add_word(sums, args.table, args.table->seeds, part.param, word_index, sext(word));
    u32* const digest = cell_sums(args, shared, part, cell);
#pragma unroll
    for (u32 l = 0; l < 4; ++l) {
        atomicAdd(digest + l, sums.lane[l]);
    }
}

// Four elements of a box, one by one: read again, for few are not alike.
DEVICE void digest_mixed(const DetectArgs& args, DigestShared& shared, const Part& part, Cast cast, const Quad& quad) {
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
            digest_word(args, shared, part, (is_fp32 ? 2 * element : element) + half, cell, words & 0xffffu);
            words >>= 16;
        }
    }
}

// Adds the sums of the lanes that have some to their cells, one cell of the warp after the other.
DEVICE void add_by_cell(const DetectArgs& args, DigestShared& shared, const Part& part, bool has, u32 cell,
                        const Lanes& sums) {
    for (u32 left = __ballot_sync(WARP, has); left != 0;) {
        const u32 chosen = __shfl_sync(WARP, cell, __ffs(i32(left)) - 1);
        const bool is_mine = has && cell == chosen;
        u32* const digest = cell_sums(args, shared, part, chosen);
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
// They are alike if they are BF16 words of one row, one block of 1024 and one cell.
DEVICE void digest_box(const DetectArgs& args, DigestShared& shared, const Part& part, Cast cast, const Quad& quad,
                       const u32 (&bits)[VECTOR]) {
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
        digest_mixed(args, shared, part, cast, quad);
    }
    add_by_cell(args, shared, part, is_alike, cell, sums);
}

// Digests a lane's four elements of a tile that begins at `base`: whole warps. Words of a flat part add up in `sums`,
// which `flush` brings to the part's cell; those of a box go to its cells at once.
template <class Judge>
DEVICE void digest_quad(const DetectArgs& args, DigestShared& shared, const Part& part, u32 base, const Quad& quad,
                        const float (&x)[VECTOR], const u32 (&bits)[VECTOR], Lanes& sums) {
    if (!is_flat(part)) {
        digest_box(args, shared, part, Judge::cast_by(args), quad, bits);
        return;
    }
    const u64 first = part.origin + signed_offset(quad.offset);
    if (!(Judge::serves_fp32 && part.flags & PART_FP32)) {
        digest_flat(shared, first_of_tile(part, base) >> LG_BLOCK_WORDS, first, quad.valid, bits, sums);
        return;
    }
    // An FP32 element is two words, the low half first: a quad is two times four words.
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
DEVICE void flush(const DetectArgs& args, DigestShared& shared, u32 part_index, Lanes& sums) {
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
