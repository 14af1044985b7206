//! Remap and gather against brute force over random boxes.
#![allow(clippy::cast_possible_truncation, reason = "test data are small")]

mod support;

use driftless_device::{ChangeList, Changes, CpuDevice, Device, DeviceError, Elements};
use driftless_layout::{Box2, Fragment, SourceRun};
use driftless_numerics::Cast;
use driftless_types::{ChangeSet, Dtype, ParamId};
use proptest::prelude::*;
use support::{Rng, State, served};

/// Some rows of a fragment in a source tensor of their own: rows, extra width of the source, offset.
#[derive(Clone, Debug)]
struct RunShape {
    rows: u64,
    gap: u64,
    offset: u64,
}

fn run_shapes() -> impl Strategy<Value = Vec<RunShape>> {
    let shape =
        (0_u64..9, 0_u64..5, 0_u64..40).prop_map(|(rows, gap, offset)| RunShape { rows, gap, offset });
    proptest::collection::vec(shape, 0..5)
}

fn fragment(shapes: &[RunShape], cols: u64, dtype: Dtype) -> Fragment {
    let mut rows = 0;
    let sources = (0..).zip(shapes).map(|(tensor, shape)| {
        let box_row = rows;
        rows += shape.rows;
        let src_row_stride = cols + shape.gap;
        SourceRun { tensor, src_offset: shape.offset, src_row_stride, box_row, rows: shape.rows }
    });
    let sources = sources.collect();
    Fragment {
        index: 3,
        param: ParamId(0),
        dtype,
        canonical: Box2::new(2, rows, 1, cols),
        dst_tensor: 0,
        dst_offset: 0,
        dst_row_stride: cols,
        sources,
        cells: Vec::new(),
        first_in_replica: true,
    }
}

/// For every position of the box, in order: tensor and index there.
fn origins(fragment: &Fragment) -> Vec<(usize, usize)> {
    let mut origins = Vec::new();
    for run in &fragment.sources {
        for row in 0..run.rows {
            for col in 0..fragment.canonical.cols {
                origins
                    .push((run.tensor as usize, (run.src_offset + row * run.src_row_stride + col) as usize));
            }
        }
    }
    origins
}

const TENSOR_ELEMENTS: usize = 40 + 9 * 17;

fn random_changes(tensors: usize, one_in: u64, rng: &mut Rng) -> Vec<Changes> {
    let one = |rng: &mut Rng| {
        let indices: Vec<u32> = (0..TENSOR_ELEMENTS as u32).filter(|_| rng.below(one_in) == 0).collect();
        let values = indices.iter().map(|_| rng.word()).collect();
        Changes { indices, values, classes: None }
    };
    (0..tensors).map(|_| one(rng)).collect()
}

fn lists(changes: &[Changes]) -> Vec<ChangeList> {
    changes.iter().cloned().map(ChangeList::from).collect()
}

proptest! {
    #[test]
    fn remap_equals_brute_force(
        shapes in run_shapes(), cols in 1_u64..13, one_in in 1_u64..20, seed in any::<u64>()
    ) {
        let fragment = fragment(&shapes, cols, Dtype::Bf16);
        let changes = random_changes(shapes.len(), one_in, &mut Rng(seed));
        let mut wanted = (Vec::new(), Vec::new());
        for (position, (tensor, index)) in (0..).zip(origins(&fragment)) {
            if let Ok(found) = changes[tensor].indices.binary_search(&(index as u32)) {
                wanted.0.push(position);
                wanted.1.push(changes[tensor].values[found]);
            }
        }
        let wanted = ChangeSet::Sparse { positions: wanted.0, values: wanted.1 };
        prop_assert_eq!(CpuDevice::new().remap(&lists(&changes), &fragment), Ok(wanted));
    }

    #[test]
    fn gather_equals_brute_force(
        shapes in run_shapes(), cols in 1_u64..13, wide in any::<bool>(), seed in any::<u64>()
    ) {
        let dtype = if wide { Dtype::Fp32 } else { Dtype::Bf16 };
        let cast = if seed % 2 == 0 { Cast::NearestEven } else { Cast::HalfAway };
        let fragment = fragment(&shapes, cols, dtype);
        let mut rng = Rng(seed);
        let masters: Vec<Vec<f32>> =
            shapes.iter().map(|_| State::random(TENSOR_ELEMENTS, &mut rng).master).collect();
        let words = origins(&fragment).into_iter().flat_map(|(tensor, index)| served(dtype, cast, masters[tensor][index]));
        let wanted = ChangeSet::All(words.collect());
        let slices: Vec<Elements<'_, f32>> = masters.iter().map(Elements::from).collect();
        prop_assert_eq!(CpuDevice::new().gather(&slices, &fragment, cast), Ok(wanted));
    }
}

#[test]
fn runs_that_contradict_the_fragment_are_refused() {
    let shapes = [RunShape { rows: 3, gap: 2, offset: 4 }, RunShape { rows: 2, gap: 0, offset: 0 }];
    let changes = random_changes(2, 2, &mut Rng(1));
    let masters = [vec![0.0; 23], vec![0.0; 10]];
    let outcomes = |change: &dyn Fn(&mut Fragment)| {
        let mut fragment = fragment(&shapes, 5, Dtype::Bf16);
        change(&mut fragment);
        let slices: Vec<Elements<'_, f32>> = masters.iter().map(Elements::from).collect();
        let device = CpuDevice::new();
        (
            device.remap(&lists(&changes), &fragment).is_ok(),
            device.gather(&slices, &fragment, Cast::NearestEven).is_ok(),
        )
    };
    assert_eq!(outcomes(&|_| ()), (true, true));
    assert_eq!(outcomes(&|fragment| fragment.sources[1].tensor = 2), (false, false));
    assert_eq!(outcomes(&|fragment| fragment.sources[1].box_row = 2), (false, false));
    assert_eq!(outcomes(&|fragment| fragment.sources[1].rows = 3), (false, false));
    assert_eq!(outcomes(&|fragment| fragment.canonical.rows = 6), (false, false));
    assert_eq!(outcomes(&|fragment| fragment.canonical.rows = u64::MAX), (false, false));
    assert_eq!(outcomes(&|fragment| fragment.sources[0].src_row_stride = 4), (false, false));
    assert_eq!(outcomes(&|fragment| fragment.sources[0].src_offset = u64::MAX), (false, false));
    // Only a gather knows how long the tensors are.
    assert_eq!(outcomes(&|fragment| fragment.sources[0].src_offset = 5), (true, false));
}

#[test]
fn an_fp32_fragment_has_no_single_changes() {
    let fragment = fragment(&[RunShape { rows: 1, gap: 0, offset: 0 }], 4, Dtype::Fp32);
    let changes = random_changes(1, 2, &mut Rng(1));
    assert!(matches!(
        CpuDevice::new().remap(&lists(&changes), &fragment),
        Err(DeviceError::ChangeSet { .. })
    ));
}
