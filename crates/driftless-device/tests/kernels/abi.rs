//! The structures of `kernels/include/abi.cuh`, field by field.

use driftless_numerics::{DigestTable, RuleScalars};

/// See `Divisor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    pub(crate) divisor: u32,
    multiplier: u32,
    shift_one: u32,
    shift_two: u32,
}

impl Divisor {
    /// A divisor of at least 1, by Granlund and Montgomery.
    pub(crate) fn new(divisor: u64) -> Self {
        let divisor = u32::try_from(divisor.max(1)).expect("a divisor of 32 bits");
        let lg = u64::from(divisor).next_power_of_two().trailing_zeros();
        let multiplier = ((1_u64 << lg) - u64::from(divisor)) * (1 << 32) / u64::from(divisor) + 1;
        Self { divisor, multiplier: multiplier as u32, shift_one: lg.min(1), shift_two: lg.max(1) - 1 }
    }

    /// What kernels compute.
    fn divide(self, n: u32) -> u32 {
        let high = ((u64::from(n) * u64::from(self.multiplier)) >> 32) as u32;
        (high + ((n - high) >> self.shift_one)) >> self.shift_two
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) origin: u64,
    pub(crate) row_stride: u64,
    pub(crate) start: u32,
    pub(crate) count: u32,
    pub(crate) first_tile: u32,
    pub(crate) param: u32,
    pub(crate) first_cell: u32,
    pub(crate) first_cut: u32,
    pub(crate) cut_count: u32,
    pub(crate) piece: u32,
    pub(crate) flags: u32,
    pub(crate) unused: u32,
    pub(crate) cols: Divisor,
}

pub(crate) const PART_FP32: u32 = 1;
pub(crate) const PART_WHOLE: u32 = 2;
pub(crate) const PART_REPLACE: u32 = 4;

#[repr(C)]
pub(crate) struct DetectArgs {
    pub(crate) master: *const f32,
    pub(crate) exp_avg: *const f32,
    pub(crate) exp_avg_sq: *const f32,
    pub(crate) previous: *mut u16,
    pub(crate) changed: *const u64,
    pub(crate) pending: *mut u64,
    pub(crate) parts: *const Part,
    pub(crate) cuts: *const u32,
    pub(crate) table: *const DigestTable,
    pub(crate) tile_state: *mut u64,
    pub(crate) ticket: *mut u32,
    pub(crate) count: *mut u64,
    pub(crate) indices: *mut u32,
    pub(crate) values: *mut u16,
    pub(crate) classes: *mut u8,
    pub(crate) cells: *mut u32,
    pub(crate) exceeded: *mut u32,
    pub(crate) unfit: *mut u32,
    pub(crate) capacity: u64,
    pub(crate) part_count: u32,
    pub(crate) first_tile: u32,
    pub(crate) tile_count: u32,
    pub(crate) tensor_tiles: u32,
    pub(crate) flags: u32,
    pub(crate) unused: u32,
    pub(crate) rule: RuleScalars,
}

pub(crate) const DETECT_LIST: u32 = 1;
pub(crate) const DETECT_DIGEST: u32 = 2;
pub(crate) const DETECT_DRAIN: u32 = 4;
pub(crate) const DETECT_COLLECT: u32 = 8;
pub(crate) const DETECT_UPDATE: u32 = 16;
pub(crate) const DETECT_HALF_AWAY: u32 = 32;

#[repr(C)]
pub(crate) struct FillArgs {
    pub(crate) bits: *mut u64,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

#[repr(C)]
pub(crate) struct MarkArgs {
    pub(crate) bits: *mut u64,
    pub(crate) indices: *const u32,
    pub(crate) count: u64,
}

#[repr(C)]
pub(crate) struct CountArgs {
    pub(crate) bits: *const u64,
    pub(crate) count: *mut u64,
    pub(crate) words: u64,
}

#[repr(C)]
pub(crate) struct PutArgs {
    pub(crate) words: *mut u16,
    pub(crate) indices: *const u32,
    pub(crate) values: *const u16,
    pub(crate) count: u64,
}

#[repr(C)]
pub(crate) struct TensorChanges {
    pub(crate) indices: *const u32,
    pub(crate) values: *const u16,
    pub(crate) classes: *const u8,
    pub(crate) count: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) tensor: u32,
    pub(crate) src_offset: u32,
    pub(crate) rows: u32,
    pub(crate) position: u32,
    pub(crate) cols: Divisor,
    pub(crate) src_row_stride: Divisor,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunRange {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) first_tile: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
pub(crate) struct RemapArgs {
    pub(crate) tensors: *const TensorChanges,
    pub(crate) runs: *const Run,
    pub(crate) ranges: *mut RunRange,
    pub(crate) tile_state: *mut u64,
    pub(crate) ticket: *mut u32,
    pub(crate) starts: *mut u64,
    pub(crate) positions: *mut u32,
    pub(crate) values: *mut u16,
    pub(crate) classes: *mut u8,
    pub(crate) capacity: u64,
    pub(crate) run_count: u32,
    pub(crate) tile_changes: u32,
    pub(crate) tile_capacity: u32,
    pub(crate) unused: u32,
}

pub(crate) const REMAP_ITEMS: u32 = 4;

#[repr(C)]
pub(crate) struct GatherArgs {
    pub(crate) masters: *const *const f32,
    pub(crate) runs: *const Run,
    pub(crate) words: *mut u16,
    pub(crate) count: u64,
    pub(crate) run_count: u32,
    pub(crate) form: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Box {
    pub(crate) origin: u64,
    pub(crate) row_stride: u64,
    pub(crate) dst_offset: u64,
    pub(crate) dst_row_stride: u64,
    pub(crate) rows: u32,
    pub(crate) param: u32,
    pub(crate) cols: Divisor,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScatterResult {
    pub(crate) changed: u64,
    pub(crate) delta: [u32; 4],
    pub(crate) fault: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
pub(crate) struct ScatterArgs {
    pub(crate) words: *mut u16,
    pub(crate) positions: *const u32,
    pub(crate) values: *const u16,
    pub(crate) undo: *mut u16,
    pub(crate) table: *const DigestTable,
    pub(crate) result: *mut ScatterResult,
    pub(crate) count: u64,
    pub(crate) words_each: u32,
    pub(crate) unused: u32,
    pub(crate) area: Box,
}

#[repr(C)]
pub(crate) struct RehashArgs {
    pub(crate) words: *const u16,
    pub(crate) table: *const DigestTable,
    pub(crate) digest: *mut u32,
    pub(crate) words_each: u32,
    pub(crate) unused: u32,
    pub(crate) area: Box,
}

#[repr(C)]
pub(crate) struct Block16Args {
    pub(crate) body: *mut u8,
    pub(crate) positions: *mut u32,
    pub(crate) values: *mut u16,
    pub(crate) fault: *mut u32,
    pub(crate) n: u64,
    pub(crate) nnz: u64,
}

pub(crate) const FAULT_NOT_RISING: u32 = 1;
pub(crate) const FAULT_OUT_OF_RANGE: u32 = 2;
pub(crate) const FAULT_DIRECTORY: u32 = 3;

#[test]
fn structures_have_the_sizes_of_the_header() {
    assert_eq!(size_of::<RuleScalars>(), 96);
    assert_eq!(size_of::<DigestTable>(), 8208);
    assert_eq!([size_of::<Part>(), size_of::<Run>(), size_of::<Box>()], [72, 48, 56]);
    assert_eq!(size_of::<ScatterResult>(), 32);
}

#[test]
fn divisors_divide_every_number() {
    let divisors = [1, 2, 3, 5, 7, 10, 64, 641, 4096, 65_537, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 31) + 1];
    for divisor in divisors.into_iter().chain([u64::from(u32::MAX) - 1, u64::from(u32::MAX)]) {
        let by = Divisor::new(divisor);
        for multiple in [0, 1, 2, 77, u64::from(u32::MAX) / divisor] {
            for near in [-2_i64, -1, 0, 1, 2] {
                let Ok(n) = u32::try_from((multiple * divisor).cast_signed() + near) else { continue };
                assert_eq!(by.divide(n), n / divisor as u32, "{n} / {divisor}");
            }
        }
        assert_eq!(by.divide(u32::MAX), u32::MAX / divisor as u32);
    }
}
