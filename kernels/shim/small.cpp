// Every kernel on a small case, as a program of its own, for ThreadSanitizer and AddressSanitizer: prints a hash of all
// that the kernels wrote, which must be the same however it was compiled. `small NAME` runs one faulty kernel instead.
#include "../include/abi.cuh"
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" int shim_launch(const char*, unsigned, unsigned, unsigned, void**, unsigned long long);
extern "C" const char* shim_last_error();

namespace {

// What faulty.cuh takes.
struct FaultyArgs {
    u32* words;
    u64 count;
};

constexpr unsigned THREADS = 64, BLOCKS = 2;
constexpr unsigned ELEMENTS = 5000, PARTS = 3;

uint64_t hash = 0xcbf29ce484222325ull;

template <class T>
void add(const std::vector<T>& values) {
    for (const T value : values) {
        hash = (hash ^ uint64_t(value)) * 0x100000001b3ull;
    }
}

template <class Args>
void launch(const char* name, Args& args, unsigned blocks = BLOCKS) {
    void* places[] = {&args};
    if (shim_launch(name, blocks, THREADS, 0, places, 7) != 0) {
        std::printf("%s: %s\n", name, shim_last_error());
        std::exit(1);
    }
}

uint64_t state = 1;
uint32_t random_word() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return uint32_t(state >> 33);
}

Divisor divisor_of(u32 divisor) {
    u32 lg = 0;
    while ((1ull << lg) < divisor) {
        ++lg;
    }
    const u64 multiplier = ((1ull << lg) - divisor) * (1ull << 32) / divisor + 1;
    return {divisor, u32(multiplier), lg < 1 ? lg : 1, lg < 1 ? 0 : lg - 1};
}

DigestTable table_of() {
    DigestTable table;
    for (auto& factors : table.factors) {
        for (auto& factor : factors) {
            factor = i16(random_word() | 1);
        }
    }
    table.seeds[0] = 11;
    table.seeds[1] = 13;
    return table;
}

const DigestTable TABLE = table_of();

// A usual step of AdamW.
RuleScalars usual_rule() {
    RuleScalars rule = {};
    rule.step_size = 1.5e-5f;
    rule.inverse_root = 1.58f;
    rule.eps = 1e-8f;
    rule.rho = 3.1e-5f;
    rule.eta = 1e-29f;
    rule.keep[0] = rule.keep[1] = 0.999999f;
    rule.loss = 1e-6f;
    rule.loss_double = 1e-6;
    rule.largest_second_moment = 1e37f;
    rule.largest_update = 1e-3f;
    // Nobody passes the cheap test, so that the exact one is run.
    rule.quick_largest_quotient = -1.0f;
    return rule;
}

struct Masters {
    std::vector<float> x, m, v;
    std::vector<u16> old_bits;
    Masters() : x(ELEMENTS), m(ELEMENTS), v(ELEMENTS), old_bits(ELEMENTS) {
        for (unsigned i = 0; i < ELEMENTS; ++i) {
            x[i] = float(int(random_word() % 20001) - 10000) * 1e-5f;
            m[i] = float(int(random_word() % 2001) - 1000) * 1e-7f;
            v[i] = m[i] * m[i] * 2.0f;
            old_bits[i] = u16(random_word());
        }
    }
};

void detect(const char* name, Masters& masters, u32 flags, const std::vector<u32>& part_flags) {
    const u32 tile = THREADS * 32;
    std::vector<Part> parts;
    const u32 starts[] = {5, 1700, 4000}, counts[] = {1600, 2200, 990};
    u32 tiles = 0;
    for (u32 index = 0; index < PARTS; ++index) {
        const u32 count = counts[index], cols = index == 1 ? 44 : count;
        Part part = {};
        part.origin = 1000 * index + 3;
        part.row_stride = 100;
        part.start = starts[index];
        part.count = count;
        part.first_tile = tiles;
        part.param = index;
        part.first_cell = 2 * index;
        part.cut_count = index == 1;
        part.piece = index;
        part.flags = part_flags[index];
        part.cols = divisor_of(cols);
        parts.push_back(part);
        tiles += (part.start + count - part.start / 128 * 128 + tile - 1) / tile;
    }
    std::vector<u32> cuts = {20}, pending(ELEMENTS / 32 + 1), indices(ELEMENTS), cells(4 * 6), exceeded(PARTS), unfit(PARTS);
    std::vector<u32> changed(ELEMENTS / 32 + 1);
    for (u32& word : changed) {
        word = random_word() & random_word();
    }
    pending[3] = 0x00ff00ff;
    std::vector<u64> states(tiles), count(1);
    std::vector<u16> values(ELEMENTS);
    std::vector<u8> classes(ELEMENTS);
    u32 ticket = 0;
    DetectArgs args = {};
    args.master = masters.x.data();
    args.exp_avg = masters.m.data();
    args.exp_avg_sq = masters.v.data();
    args.previous = masters.old_bits.data();
    args.changed = changed.data();
    args.pending = pending.data();
    args.parts = parts.data();
    args.cuts = cuts.data();
    args.table = &TABLE;
    args.tile_state = states.data();
    args.ticket = &ticket;
    args.count = count.data();
    args.indices = indices.data();
    args.values = values.data();
    args.classes = classes.data();
    args.cells = cells.data();
    args.exceeded = exceeded.data();
    args.unfit = unfit.data();
    args.capacity = ELEMENTS;
    args.part_count = PARTS;
    args.tile_count = args.tensor_tiles = tiles;
    args.flags = flags;
    args.rule = usual_rule();
    launch(name, args);
    add(indices);
    add(values);
    add(classes);
    add(cells);
    add(exceeded);
    add(unfit);
    add(pending);
    add(count);
    add(masters.old_bits);
}

void detect_all() {
    Masters masters;
    const u32 drain = DETECT_LIST | DETECT_DIGEST | DETECT_DRAIN, collect = DETECT_COLLECT | DETECT_UPDATE;
    for (const char* name : {"driftless_detect_agnostic", "driftless_detect_torch_fused_cuda", "driftless_detect_sgd",
                             "driftless_detect_compare", "driftless_detect_marked"}) {
        detect(name, masters, drain, {0, 0, 0});
    }
    detect("driftless_detect_compare", masters, collect, {0, 0, 0});
    detect("driftless_detect_rest", masters, drain, {PART_FP32 | PART_WHOLE, PART_WHOLE | PART_REPLACE, 0});
    detect("driftless_detect_rest", masters, drain, {0, PART_FP32 | PART_WHOLE, PART_REPLACE | PART_WHOLE});
}

std::vector<u32> sorted(u32 below, u32 every) {
    std::vector<u32> indices;
    for (u32 index = 0; index < below; ++index) {
        if (random_word() % every == 0) {
            indices.push_back(index);
        }
    }
    return indices;
}

void remap_and_gather() {
    const std::vector<u32> indices = sorted(3000, 3);
    const std::vector<u16> values(indices.begin(), indices.end());
    const std::vector<u8> classes(indices.size(), 1);
    const TensorChanges tensor = {indices.data(), values.data(), classes.data(), indices.size()};
    const Run runs[] = {{0, 10, 20, 0, divisor_of(30), divisor_of(100)}, {0, 2100, 1, 600, divisor_of(810), divisor_of(810)}};
    const u32 tile = THREADS * REMAP_ITEMS, tiles = 2 * (u32(indices.size()) / tile + 1);
    std::vector<RunRange> ranges(3);
    std::vector<u64> states(tiles), starts(3);
    std::vector<u32> positions(3000);
    std::vector<u16> out(3000);
    std::vector<u8> out_classes(3000);
    u32 ticket = 0;
    RemapArgs args = {&tensor, runs, ranges.data(), states.data(), &ticket, starts.data(), positions.data(), out.data(),
                      out_classes.data(), 3000, 2, tile, tiles, 0};
    launch("driftless_remap_plan", args, 1);
    launch("driftless_remap", args);
    add(positions);
    add(out);
    add(out_classes);
    add(starts);
    const Masters masters;
    const float* const places[] = {masters.x.data()};
    std::vector<u16> words(2 * 1410);
    for (const u32 form : {0u, GATHER_HALF_AWAY, GATHER_FP32}) {
        GatherArgs gather = {places, runs, words.data(), 1410, 2, form};
        launch("driftless_gather", gather);
        add(words);
    }
}

void scatter(u32 words_each) {
    const Box box = {77, 50, 3, 47, 30, 2, divisor_of(41)};
    std::vector<u16> words((3 + 47 * 30) * words_each), values(1230 * words_each), undo(1230 * words_each);
    for (u16& value : values) {
        value = u16(random_word());
    }
    const std::vector<u32> positions = sorted(1230, 4);
    ScatterResult result = {};
    ScatterArgs args = {words.data(), positions.data(), values.data(), undo.data(), &TABLE, &result, positions.size(),
                        words_each, 0, box};
    if (words_each == 1) {
        launch("driftless_scatter_check", args);
        launch("driftless_scatter", args);
        add(words);
        std::vector<u16> peeked(positions.size());
        ScatterArgs peek = args;
        peek.undo = peeked.data();
        launch("driftless_peek", peek);
        add(peeked);
        launch("driftless_undo", args);
        add(words);
    }
    args.count = 1230;
    launch("driftless_scatter_all", args);
    add(words);
    std::vector<u32> digest(4);
    RehashArgs rehash = {words.data(), &TABLE, digest.data(), words_each, 0, box};
    launch("driftless_rehash", rehash);
    add(digest);
    launch("driftless_undo_all", args);
    add(words);
    add(undo);
    add(std::vector<u32>(result.delta, result.delta + 4));
}

void bits() {
    const std::vector<u32> indices = sorted(2000, 5);
    std::vector<u32> bits(64);
    std::vector<u64> count(1);
    std::vector<u16> words(2000), values(indices.size(), 7);
    FillArgs fill = {bits.data(), 37, 100};
    launch("driftless_fill_bits", fill);
    MarkArgs mark = {bits.data(), indices.data(), indices.size()};
    launch("driftless_mark", mark);
    CountArgs counting = {bits.data(), count.data(), bits.size()};
    launch("driftless_count_bits", counting);
    PutArgs put = {words.data(), indices.data(), values.data(), indices.size()};
    launch("driftless_put", put);
    add(bits);
    add(count);
    add(words);
}

void block16() {
    std::vector<u32> positions = sorted(140000, 60);
    std::vector<u16> values(positions.begin(), positions.end());
    std::vector<u32> body(3 + 1 + positions.size()), fault(1), found(positions.size());
    std::vector<u16> found_values(positions.size());
    Block16Args encode = {reinterpret_cast<u8*>(body.data()), positions.data(), values.data(), nullptr, 140000,
                          positions.size()};
    launch("driftless_block16_directory", encode);
    launch("driftless_block16_encode", encode);
    Block16Args decode = {reinterpret_cast<u8*>(body.data()), found.data(), found_values.data(), fault.data(), 140000,
                          positions.size()};
    launch("driftless_block16_decode", decode);
    add(body);
    add(found);
    add(found_values);
    add(fault);
    // Noise: faults, and nothing outside of the body and the lists.
    for (u32& word : body) {
        word = random_word();
    }
    launch("driftless_block16_decode", decode);
    if (found != positions && fault[0] == 0) {
        std::printf("noise is no section\n");
        std::exit(1);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1) {
        std::vector<u32> words(THREADS);
        FaultyArgs args = {words.data(), THREADS};
        launch(argv[1], args, 1);
        std::printf("%s ran to its end\n", argv[1]);
        return 0;
    }
    detect_all();
    remap_and_gather();
    scatter(1);
    scatter(2);
    bits();
    block16();
    std::printf("%016llx\n", (unsigned long long)hash);
    return 0;
}
