//! What host and kernels exchange: the twin of `kernels/include/abi.cuh`, field by field.
#![expect(unsafe_code, reason = "structures cross to the device as bytes")]

use driftless_numerics::{DigestTable, RuleScalars, StepClass};
use std::slice;

/// An address on the device; 0 is none.
pub(super) type Address = u64;

/// Data that cross to the device as bytes.
///
/// # Safety
/// The type is `repr(C)`, has no padding, and every bit pattern is a value.
pub(super) unsafe trait Plain: Copy + 'static {}
// SAFETY: plain numbers.
unsafe impl Plain for u8 {}
// SAFETY: plain numbers.
unsafe impl Plain for u16 {}
// SAFETY: plain numbers.
unsafe impl Plain for u32 {}
// SAFETY: plain numbers.
unsafe impl Plain for u64 {}
// SAFETY: `repr(C)`; 10 words of 4 bytes after 2 of 8, and a divisor of 4 words of 4.
unsafe impl Plain for Part {}
// SAFETY: `repr(C)`, 4 words of 4 bytes and two divisors.
unsafe impl Plain for Run {}
// SAFETY: `repr(C)`, 4 words of 8 bytes.
unsafe impl Plain for TensorChanges {}
// SAFETY: `repr(C)`, a word of 8 bytes and 6 of 4.
unsafe impl Plain for ScatterResult {}
// SAFETY: `repr(C)`, 8 KiB of 2-byte numbers and two words of 8 bytes.
unsafe impl Plain for DigestTable {}

/// The bytes of some data.
pub(super) fn bytes_of<T: Plain>(data: &[T]) -> &[u8] {
    // SAFETY: the data have no padding, so all their bytes are initialized; a byte has no alignment.
    unsafe { slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

/// The bytes of some data, to be written.
pub(super) fn bytes_of_mut<T: Plain>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`, and every bit pattern is a value; the borrow is exclusive.
    unsafe { slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// The one argument of a kernel.
pub(super) trait KernelArgs: Copy {}
impl KernelArgs for DetectArgs {}
impl KernelArgs for FillArgs {}
impl KernelArgs for PutArgs {}
impl KernelArgs for MarkArgs {}
impl KernelArgs for CountArgs {}
impl KernelArgs for RemapArgs {}
impl KernelArgs for GatherArgs {}
impl KernelArgs for ScatterArgs {}
impl KernelArgs for RehashArgs {}
impl KernelArgs for Block16Args {}

/// A divisor, and what makes a division by it a multiplication.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Divisor {
    pub(super) divisor: u32,
    pub(super) multiplier: u32,
    pub(super) shift_one: u32,
    pub(super) shift_two: u32,
}

impl Divisor {
    /// The divisor `d`, at least 1 (Granlund and Montgomery, 1994).
    pub(super) fn new(d: u32) -> Self {
        let log = u32::BITS - d.saturating_sub(1).leading_zeros();
        let wide = (1_u64 << 32) * ((1_u64 << log) - u64::from(d)) / u64::from(d.max(1)) + 1;
        let multiplier = u32::try_from(wide & u64::from(u32::MAX)).unwrap_or_default();
        Self { divisor: d, multiplier, shift_one: log.min(1), shift_two: log.saturating_sub(1) }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) origin: u64,
    pub(super) row_stride: u64,
    pub(super) start: u32,
    pub(super) count: u32,
    pub(super) first_tile: u32,
    pub(super) param: u32,
    pub(super) first_cell: u32,
    pub(super) first_cut: u32,
    pub(super) cut_count: u32,
    pub(super) piece: u32,
    pub(super) flags: u32,
    pub(super) unused: u32,
    pub(super) cols: Divisor,
}

pub(super) const PART_FP32: u32 = 1;
pub(super) const PART_WHOLE: u32 = 2;
pub(super) const PART_REPLACE: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct DetectArgs {
    pub(super) master: Address,
    pub(super) exp_avg: Address,
    pub(super) exp_avg_sq: Address,
    pub(super) previous: Address,
    pub(super) changed: Address,
    pub(super) pending: Address,
    pub(super) parts: Address,
    pub(super) cuts: Address,
    pub(super) table: Address,
    pub(super) tile_state: Address,
    pub(super) ticket: Address,
    pub(super) count: Address,
    pub(super) indices: Address,
    pub(super) values: Address,
    pub(super) classes: Address,
    pub(super) cells: Address,
    pub(super) exceeded: Address,
    pub(super) unfit: Address,
    pub(super) capacity: u64,
    pub(super) part_count: u32,
    pub(super) first_tile: u32,
    pub(super) tile_count: u32,
    pub(super) tensor_tiles: u32,
    pub(super) flags: u32,
    pub(super) unused: u32,
    pub(super) rule: RuleScalars,
}

pub(super) const DETECT_LIST: u32 = 1;
pub(super) const DETECT_DIGEST: u32 = 2;
pub(super) const DETECT_DRAIN: u32 = 4;
pub(super) const DETECT_COLLECT: u32 = 8;
pub(super) const DETECT_UPDATE: u32 = 16;
pub(super) const DETECT_HALF_AWAY: u32 = 32;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct FillArgs {
    pub(super) bits: Address,
    pub(super) first: u64,
    pub(super) count: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MarkArgs {
    pub(super) bits: Address,
    pub(super) indices: Address,
    pub(super) count: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CountArgs {
    pub(super) bits: Address,
    pub(super) count: Address,
    pub(super) words: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PutArgs {
    pub(super) words: Address,
    pub(super) indices: Address,
    pub(super) values: Address,
    pub(super) count: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorChanges {
    pub(super) indices: Address,
    pub(super) values: Address,
    pub(super) classes: Address,
    pub(super) count: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) tensor: u32,
    pub(super) src_offset: u32,
    pub(super) rows: u32,
    pub(super) position: u32,
    pub(super) cols: Divisor,
    pub(super) src_row_stride: Divisor,
}

/// Bytes of a run's range, which only kernels read.
pub(super) const RUN_RANGE_BYTES: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RemapArgs {
    pub(super) tensors: Address,
    pub(super) runs: Address,
    pub(super) ranges: Address,
    pub(super) tile_state: Address,
    pub(super) ticket: Address,
    pub(super) starts: Address,
    pub(super) positions: Address,
    pub(super) values: Address,
    pub(super) classes: Address,
    pub(super) capacity: u64,
    pub(super) run_count: u32,
    pub(super) tile_changes: u32,
    pub(super) tile_capacity: u32,
    pub(super) unused: u32,
}

/// Changes per thread of a remap.
pub(super) const REMAP_ITEMS: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct GatherArgs {
    pub(super) masters: Address,
    pub(super) runs: Address,
    pub(super) words: Address,
    pub(super) count: u64,
    pub(super) run_count: u32,
    pub(super) form: u32,
}

pub(super) const GATHER_HALF_AWAY: u32 = 1;
pub(super) const GATHER_FP32: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Box {
    pub(super) origin: u64,
    pub(super) row_stride: u64,
    pub(super) dst_offset: u64,
    pub(super) dst_row_stride: u64,
    pub(super) rows: u32,
    pub(super) param: u32,
    pub(super) cols: Divisor,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ScatterArgs {
    pub(super) words: Address,
    pub(super) positions: Address,
    pub(super) values: Address,
    pub(super) undo: Address,
    pub(super) table: Address,
    pub(super) result: Address,
    pub(super) count: u64,
    pub(super) words_each: u32,
    pub(super) unused: u32,
    pub(super) place: Box,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScatterResult {
    pub(super) changed: u64,
    pub(super) delta: [u32; 4],
    pub(super) fault: u32,
    pub(super) unused: u32,
}

pub(super) const FAULT_NOT_RISING: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RehashArgs {
    pub(super) words: Address,
    pub(super) table: Address,
    pub(super) digest: Address,
    pub(super) words_each: u32,
    pub(super) unused: u32,
    pub(super) place: Box,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Block16Args {
    pub(super) body: Address,
    pub(super) positions: Address,
    pub(super) values: Address,
    pub(super) fault: Address,
    pub(super) n: u64,
    pub(super) nnz: u64,
}

const _: () = assert!(size_of::<RuleScalars>() == 96);
const _: () = assert!(size_of::<DigestTable>() == 8 * 1024 + 16);
const _: () = assert!(size_of::<Part>() == 72);
const _: () = assert!(size_of::<Run>() == 48);
const _: () = assert!(size_of::<Box>() == 56);
const _: () = assert!(size_of::<ScatterResult>() == 32);
const _: () = assert!(size_of::<DetectArgs>() == 19 * 8 + 6 * 4 + 96);

/// A class as kernels write it.
pub(super) const fn class_of(class: &u8) -> StepClass {
    match class {
        0 => StepClass::Unit,
        1 => StepClass::Near,
        _ => StepClass::Far,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divisor_divides_as_the_kernels_do() {
        let divide = |n: u32, by: Divisor| {
            let high = u32::try_from((u64::from(n) * u64::from(by.multiplier)) >> 32).expect("a high half");
            (high.wrapping_add(n.wrapping_sub(high) >> by.shift_one)) >> by.shift_two
        };
        for d in (1..3000).chain([1 << 20, (1 << 20) + 1, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, u32::MAX]) {
            let by = Divisor::new(d);
            let edges =
                [0, 1, d - 1, d, d.wrapping_add(1), d.wrapping_mul(7), 0x8000_0000, u32::MAX - 1, u32::MAX];
            for n in edges {
                assert_eq!(divide(n, by), n / d, "{n} / {d}");
            }
        }
    }
}
