// Where the elements of a box lie, in its tensor and in its parameter: the twin of `Target` and `Area` in
// `crates/driftless-device/src/fit`.
#pragma once
#include "abi.cuh"

// n / by.divisor: a multiplication and shifts, for a divisor that is known on the host.
DEVICE u32 divided(u32 n, const Divisor& by) {
    const u32 high = __umulhi(n, by.multiplier);
    return (high + ((n - high) >> by.shift_one)) >> by.shift_two;
}

struct Spot {
    // Element of the tensor, and canonical flat index.
    u64 target;
    u64 element;
    // How many elements of the row follow, this one included.
    u32 reach;
};

DEVICE Spot spot_of(const Box& box, u32 position) {
    const u32 row = divided(position, box.cols), col = position - row * box.cols.divisor;
    return {box.dst_offset + row * box.dst_row_stride + col, box.origin + row * box.row_stride + col,
            box.cols.divisor - col};
}

DEVICE u64 elements_of(const Box& box) {
    return u64(box.rows) * box.cols.divisor;
}
