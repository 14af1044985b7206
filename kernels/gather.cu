// A whole fragment out of the masters, as served words. The twin of `crates/driftless-device/src/cpu/gather.rs`.
//
// Each thread takes one element after the other, a grid apart: reads and writes of a warp are consecutive wherever the
// rows of the source are.
#include "types.cuh"
#include "abi.cuh"
#include "bf16.cuh"
#include "box.cuh"
#include "threads.cuh"

// The last run that begins at or before a position.
DEVICE u32 run_at(const GatherArgs& args, u32 position) {
    u32 low = 0, high = args.run_count;
    while (high - low > 1) {
        const u32 half = low + (high - low) / 2;
        if (args.runs[half].position <= position) {
            low = half;
        } else {
            high = half;
        }
    }
    return low;
}

KERNEL __launch_bounds__(MAX_THREADS) driftless_gather(ARGS(GatherArgs) args) {
    const u64 stride = item_stride();
    for (u64 position = first_item(); position < args.count; position += stride) {
        const Run& run = args.runs[run_at(args, u32(position))];
        const u32 offset = u32(position) - run.position;
        const u32 row = divided(offset, run.cols), col = offset - row * run.cols.divisor;
        const u64 source = run.src_offset + u64(row) * run.src_row_stride.divisor + col;
        const float x = args.masters[run.tensor][source];
        if (args.form == GATHER_FP32) {
            // Low half first.
            reinterpret_cast<u32*>(args.words)[position] = __float_as_uint(x);
        } else {
            const Cast cast = args.form == GATHER_HALF_AWAY ? Cast::HalfAway : Cast::NearestEven;
            args.words[position] = u16(bf16_bits(cast, x));
        }
    }
}
