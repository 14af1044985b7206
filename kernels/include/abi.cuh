// What host and kernels exchange. Every kernel takes one structure by value; fields are in the order of their size, so
// that no structure has hidden padding but at its end. Pointers are device pointers of 8 bytes.
#pragma once
#include "types.cuh"

// A divisor known on the host: n / divisor = (t + ((n - t) >> shift_one)) >> shift_two, t = high half of n * multiplier.
struct Divisor {
    u32 divisor;
    u32 multiplier;
    u32 shift_one;
    u32 shift_two;
};

// The keys of a run: a word's factors of all four lanes, by its place in a block of 1024; all odd.
struct DigestTable {
    i16 factors[1024][4];
    u64 seeds[2];
};

// The scalars of the certified rule of one step, computed on the host in double precision and rounded once.
struct RuleScalars {
    double loss_double;
    float step_size;
    float inverse_root;
    float eps;
    float rho;
    float eta;
    float keep[2];
    float loss;
    float unknown_update;
    float unknown_weight;
    float largest_second_moment;
    float largest_update;
    // The cheap test.
    float quick_root;
    float quick_inverse_eps;
    float quick_largest_quotient;
    u32 quick_second_moment_bits;
    float quick_along;
    float quick_either;
    float quick_weight;
    float quick_always;
    // 0 or 1.
    u32 certifies_idle_zeros;
    u32 certifies_idle_weights;
};
static_assert(sizeof(RuleScalars) == 96, "RuleScalars");

// Consecutive elements of a source tensor that are one box of one parameter, without cuts between its rows.
// A box whose rows follow each other in the parameter, or that has a single row, is given as one row without cuts.
struct Part {
    // Canonical flat index of its first element, and the distance of its rows there.
    u64 origin;
    u64 row_stride;
    // Where its elements lie in the owned range: start .. start + count.
    u32 start;
    u32 count;
    // The number of its first tile among those of the tensor.
    u32 first_tile;
    u32 param;
    // Its first digest cell, from the first one of the tensor; cell = first_cell + cuts at or before the column.
    u32 first_cell;
    u32 first_cut;
    u32 cut_count;
    // The piece that it belongs to: where `exceeded` and `unfit` are noted.
    u32 piece;
    // PART_* below.
    u32 flags;
    u32 unused;
    // The width of its box.
    Divisor cols;
};
static_assert(sizeof(Part) == 72, "Part");

// The parameter is served in FP32: two words per element, digested and never listed.
constexpr u32 PART_FP32 = 1;
// Sent whole: nothing is listed, not even what is pending.
constexpr u32 PART_WHOLE = 2;
// `previous` is brought up to date everywhere.
constexpr u32 PART_REPLACE = 4;

struct DetectArgs {
    const float* master;
    // Null where no rule reads them.
    const float* exp_avg;
    const float* exp_avg_sq;
    // Older bits, one per element: compared with, or replaced.
    u16* previous;
    // The optimizer's own marks, one bit per element.
    const u32* changed;
    // Null, or one bit per element: see DETECT_DRAIN and DETECT_COLLECT.
    u32* pending;
    const Part* parts;
    // Interior cuts of all parts, columns of their boxes, rising within a part.
    const u32* cuts;
    const DigestTable* table;
    // Zeroed once per tensor: one word per tile, and one ticket per launch.
    u64* tile_state;
    u32* ticket;
    // Written by the tensor's last tile: how many elements were marked, listed or not.
    u64* count;
    u32* indices;
    u16* values;
    // Null, or one step class per change: 0 unit, 1 near, 2 far.
    u8* classes;
    // Four lanes per digest cell; zeroed once per tensor.
    u32* cells;
    // Per piece, zeroed once per tensor: 0 none, 1 an update that is no number, else 2 + the bits of the largest.
    u32* exceeded;
    // Per piece, zeroed once per tensor: 1 if a master is -0.0 or below 2^-124.
    u32* unfit;
    // Room in the lists.
    u64 capacity;
    u32 part_count;
    // The tiles of this launch, and those of the tensor.
    u32 first_tile;
    u32 tile_count;
    u32 tensor_tiles;
    // DETECT_* below.
    u32 flags;
    u32 unused;
    RuleScalars rule;
};

// Changes are listed. Without it nothing is listed nor counted.
constexpr u32 DETECT_LIST = 1;
// Cells are digested.
constexpr u32 DETECT_DIGEST = 2;
// What is pending is listed too.
constexpr u32 DETECT_DRAIN = 4;
// What is marked is added to what is pending.
constexpr u32 DETECT_COLLECT = 8;
// Where older bits differ they are brought up to date.
constexpr u32 DETECT_UPDATE = 16;
// Served bits are cast half away from zero. A rule knows its own cast.
constexpr u32 DETECT_HALF_AWAY = 32;

// Bits first .. first + count become ones.
struct FillArgs {
    u32* bits;
    u64 first;
    u64 count;
};

// Bits `indices[i]` become ones.
struct MarkArgs {
    u32* bits;
    const u32* indices;
    u64 count;
};

// `*count += ones of bits[0 .. words]`; zeroed by the caller.
struct CountArgs {
    const u32* bits;
    u64* count;
    u64 words;
};

// `words[indices[i]] = values[i]`.
struct PutArgs {
    u16* words;
    const u32* indices;
    const u16* values;
    u64 count;
};

// Changes of one source tensor, as `detect` lists them.
struct TensorChanges {
    const u32* indices;
    const u16* values;
    // Null if nobody asks for them.
    const u8* classes;
    u64 count;
};

// Rows of a fragment in a source tensor. One whose rows follow each other there is given as one row.
struct Run {
    u32 tensor;
    u32 src_offset;
    u32 rows;
    // Row-major position of its first element in the fragment's box.
    u32 position;
    Divisor cols;
    Divisor src_row_stride;
};
static_assert(sizeof(Run) == 48, "Run");

// Scratch: where a run's changes may lie in its tensor's list, and its first tile.
struct RunRange {
    u32 first;
    u32 end;
    u32 first_tile;
    u32 unused;
};

struct RemapArgs {
    const TensorChanges* tensors;
    const Run* runs;
    // One per run, and one more.
    RunRange* ranges;
    // Zeroed: one word per tile, and a ticket.
    u64* tile_state;
    u32* ticket;
    // One per run, and one more: where its changes begin in the lists below, and their number at the end.
    u64* starts;
    u32* positions;
    u16* values;
    // Null if nobody asks for them.
    u8* classes;
    u64 capacity;
    u32 run_count;
    // Changes per tile: the threads of the launch of `remap` times REMAP_ITEMS.
    u32 tile_changes;
    // Room in `tile_state`.
    u32 tile_capacity;
    u32 unused;
};
constexpr u32 REMAP_ITEMS = 4;

struct GatherArgs {
    // By `Run::tensor`.
    const float* const* masters;
    // Of one fragment, by rising position.
    const Run* runs;
    u16* words;
    // Elements of the fragment.
    u64 count;
    u32 run_count;
    // 1: BF16 half away from zero, 2: FP32, else BF16 to nearest even.
    u32 form;
};
constexpr u32 GATHER_HALF_AWAY = 1;
constexpr u32 GATHER_FP32 = 2;

// A box of a destination tensor, of at most 2^31 elements.
struct Box {
    // Canonical flat index of its first element, and the distance of its rows there.
    u64 origin;
    u64 row_stride;
    // The same in the destination tensor.
    u64 dst_offset;
    u64 dst_row_stride;
    u32 rows;
    u32 param;
    Divisor cols;
};
static_assert(sizeof(Box) == 56, "Box");

struct ScatterArgs {
    u16* words;
    // Null for `scatter_all`.
    const u32* positions;
    const u16* values;
    // Old words: one per position, or all words of the box in order; those that `peek` reads.
    u16* undo;
    const DigestTable* table;
    // Zeroed by the caller, read by it afterwards.
    struct ScatterResult* result;
    // Changes, or elements of the box.
    u64 count;
    // Words per element: 1 or 2 (`scatter_all` only).
    u32 words_each;
    u32 unused;
    Box box;
};

struct ScatterResult {
    u64 changed;
    // The digest of the new words less that of the old ones.
    u32 delta[4];
    // 0, or FAULT_*: then nothing was written.
    u32 fault;
    u32 unused;
};
static_assert(sizeof(ScatterResult) == 32, "ScatterResult");
constexpr u32 FAULT_NOT_RISING = 1;
constexpr u32 FAULT_OUT_OF_RANGE = 2;
constexpr u32 FAULT_DIRECTORY = 3;
constexpr u32 FAULT_ROOM = 4;

struct RehashArgs {
    const u16* words;
    const DigestTable* table;
    // Four lanes, zeroed by the caller.
    u32* digest;
    u32 words_each;
    u32 unused;
    Box box;
};

struct Block16Args {
    // Directory and blocks of a section: 4-byte aligned.
    u8* body;
    u32* positions;
    u16* values;
    // Zeroed by the caller: 0, or FAULT_*, and then the lists mean nothing.
    u32* fault;
    // Elements of the fragment, and changes.
    u64 n;
    u64 nnz;
};
