//! Scatter, undo and digests over random destinations.
#![allow(clippy::cast_possible_truncation, reason = "test data are small")]

mod support;

use driftless_device::{CpuDevice, Device, UndoLog};
use driftless_layout::{Box2, DestBox, DestTensor, Fragment, ParamMeta};
use driftless_numerics::DigestKeys;
use driftless_types::{ChangeSet, Dtype, ParamId, Shape};
use proptest::prelude::*;
use support::{RUN, Rng, param};

/// A fragment in a destination tensor that has `gap` foreign elements between its rows, and some at both ends.
#[derive(Clone, Debug)]
struct Place {
    canonical: Box2,
    param_cols: u64,
    gap: u64,
    offset: u64,
    dtype: Dtype,
}

fn places() -> impl Strategy<Value = Place> {
    let sides = (1_u64..40, 1_u64..120, 0_u64..4, 0_u64..4);
    (sides, 0_u64..3, 0_u64..9, any::<bool>()).prop_map(|((rows, cols, left, right), gap, offset, wide)| {
        Place {
            canonical: Box2::new(5, rows, left, cols),
            param_cols: left + cols + right,
            gap,
            offset,
            dtype: if wide { Dtype::Fp32 } else { Dtype::Bf16 },
        }
    })
}

impl Place {
    fn stride(&self) -> u64 {
        self.canonical.cols + self.gap
    }

    fn elements(&self) -> usize {
        (self.offset + self.canonical.rows * self.stride() + 3) as usize
    }

    fn fragment(&self) -> Fragment {
        Fragment {
            index: 0,
            param: ParamId(0),
            dtype: self.dtype,
            canonical: self.canonical,
            dst_tensor: 0,
            dst_offset: self.offset,
            dst_row_stride: self.stride(),
            sources: Vec::new(),
            cells: Vec::new(),
            first_in_replica: true,
        }
    }

    fn tensor(&self) -> DestTensor {
        let dest = DestBox {
            param: ParamId(0),
            canonical: self.canonical,
            dst_offset: self.offset,
            dst_row_stride: self.stride(),
        };
        DestTensor {
            name: "t".into(),
            shape: Shape::new([self.elements() as u64]),
            dtype: self.dtype,
            boxes: vec![dest],
        }
    }

    fn params(&self) -> [ParamMeta; 1] {
        [param(0, 60, self.param_cols, self.dtype)]
    }

    /// The first word of row-major element `k` in the destination.
    fn word(&self, k: u64) -> usize {
        let (row, col) = (k / self.canonical.cols, k % self.canonical.cols);
        (self.offset + row * self.stride() + col) as usize * self.dtype.words()
    }
}

/// Random words, a NaN pattern among every few.
fn words(count: usize, rng: &mut Rng) -> Vec<u16> {
    (0..count).map(|_| if rng.below(5) == 0 { 0x7f80 | rng.word() } else { rng.word() }).collect()
}

/// Changes of a fragment: about half of the written words equal those that stand there.
fn changes(place: &Place, dst: &[u16], whole: bool, rng: &mut Rng) -> ChangeSet {
    let elements = place.canonical.elements();
    let each = place.dtype.words();
    let mut new = |k: u64| {
        let old = &dst[place.word(k)..place.word(k) + each];
        if rng.below(2) == 0 { old.to_vec() } else { words(each, rng) }
    };
    if whole || place.dtype == Dtype::Fp32 {
        return ChangeSet::All((0..elements).flat_map(new).collect());
    }
    let positions: Vec<u32> = (0..elements as u32).filter(|k| k % 3 != 1).collect();
    let values = positions.iter().flat_map(|&k| new(k.into())).collect();
    ChangeSet::Sparse { positions, values }
}

/// What a scatter must leave behind, and how many elements it changes.
fn written(place: &Place, dst: &[u16], changes: &ChangeSet) -> (Vec<u16>, u64) {
    let each = place.dtype.words();
    let mut after = dst.to_vec();
    let mut put = |k: u64, new: &[u16]| after[place.word(k)..place.word(k) + each].copy_from_slice(new);
    match changes {
        ChangeSet::All(words) => words.chunks(each).zip(0..).for_each(|(new, k)| put(k, new)),
        ChangeSet::Sparse { positions, values } => {
            values.chunks(1).zip(positions).for_each(|(new, &k)| put(k.into(), new));
        }
    }
    let changed = after.chunks(each).zip(dst.chunks(each)).filter(|(new, old)| new != old).count();
    (after, changed as u64)
}

proptest! {
    #[test]
    fn dv2_scatter_then_undo_is_identity_and_the_delta_equals_a_rehash(
        place in places(), whole in any::<bool>(), seed in any::<u64>()
    ) {
        let (device, keys, mut rng) = (CpuDevice::new(), DigestKeys::new(RUN), Rng(seed));
        let before = words(place.elements() * place.dtype.words(), &mut rng);
        let (tensor, params) = (place.tensor(), place.params());
        let rehash = |dst: &[u16]| device.digest(dst.into(), &tensor, &params, &keys).expect("the box fits");
        let mut dst = before.clone();
        let mut undo = UndoLog::new();
        // Two attempts at the same words, the second over the first: undo must unwind both.
        for _ in 0..2 {
            let changes = changes(&place, &dst, whole, &mut rng);
            let (wanted, changed) = written(&place, &dst, &changes);
            let digest = rehash(&dst);
            let done = device
                .scatter((&mut dst).into(), &place.fragment(), place.param_cols, &changes, &keys, &mut undo)
                .expect("all fits");
            prop_assert_eq!(&dst, &wanted);
            prop_assert_eq!(done.changed, changed);
            prop_assert_eq!(digest + done.delta, rehash(&dst));
        }
        device.undo((&mut dst).into(), &mut undo).expect("the same tensor");
        prop_assert_eq!(&dst, &before);
        prop_assert!(undo.is_empty());
    }

    #[test]
    fn a_rehash_is_the_sum_of_its_terms(place in places(), seed in any::<u64>()) {
        let (keys, mut rng) = (DigestKeys::new(RUN), Rng(seed));
        let each = place.dtype.words();
        let dst = words(place.elements() * each, &mut rng);
        let terms = (0..place.canonical.elements()).flat_map(|k| {
            let first = support::canonical(&place.canonical, place.param_cols, k) * each as u64;
            let dst = &dst[place.word(k)..place.word(k) + each];
            dst.iter().zip(first..).map(|(&word, at)| keys.term(ParamId(0), at, word)).collect::<Vec<_>>()
        });
        let found = CpuDevice::new().digest((&dst).into(), &place.tensor(), &place.params(), &keys);
        prop_assert_eq!(found, Ok(terms.sum()));
    }
}

#[test]
fn dv3_bad_change_sets_write_nothing() {
    let place =
        Place { canonical: Box2::new(0, 40, 0, 100), param_cols: 100, gap: 1, offset: 2, dtype: Dtype::Bf16 };
    let before = words(place.elements(), &mut Rng(5));
    let good = |positions: Vec<u32>| {
        let values = vec![9; positions.len()];
        ChangeSet::Sparse { positions, values }
    };
    let refused = |fragment: &Fragment, cols: u64, changes: &ChangeSet| {
        let (mut dst, mut undo) = (before.clone(), UndoLog::new());
        let keys = DigestKeys::new(RUN);
        let found = CpuDevice::new().scatter((&mut dst).into(), fragment, cols, changes, &keys, &mut undo);
        assert_eq!(found.is_err(), dst == before);
        assert_eq!(found.is_err(), undo.is_empty());
        found.is_err()
    };
    let fragment = place.fragment();
    // The bad position comes a whole block after the first good one.
    let mut far: Vec<u32> = (0..2000).collect();
    assert!(!refused(&fragment, 100, &good(far.clone())));
    far.push(4000);
    assert!(refused(&fragment, 100, &good(far)));
    assert!(refused(&fragment, 100, &good(vec![3, 3])));
    assert!(refused(&fragment, 100, &good(vec![3, 2])));
    assert!(refused(&fragment, 100, &ChangeSet::Sparse { positions: vec![1, 2], values: vec![1] }));
    assert!(refused(&fragment, 100, &ChangeSet::All(vec![0; 3999])));
    assert!(refused(&fragment, 99, &good(vec![0])));
    let moved = |change: &dyn Fn(&mut Fragment)| {
        let mut fragment = place.fragment();
        change(&mut fragment);
        refused(&fragment, 100, &good(vec![0]))
    };
    assert!(moved(&|fragment| fragment.dst_offset = 7));
    assert!(moved(&|fragment| fragment.dst_offset = u64::MAX));
    assert!(moved(&|fragment| fragment.dst_row_stride = 99));
    assert!(moved(&|fragment| fragment.dst_row_stride = u64::MAX));
    assert!(moved(&|fragment| fragment.canonical.rows = u64::MAX));
    assert!(moved(&|fragment| fragment.dtype = Dtype::Fp32));
}

#[test]
fn dv2_an_interrupted_scatter_is_undone_from_what_was_recorded() {
    let place =
        Place { canonical: Box2::new(0, 50, 0, 100), param_cols: 100, gap: 0, offset: 0, dtype: Dtype::Bf16 };
    let keys = DigestKeys::new(RUN);
    let mut rng = Rng(8);
    let before = words(place.elements(), &mut rng);
    let changes = changes(&place, &before, false, &mut rng);
    let (mut dst, mut undo) = (before.clone(), UndoLog::new());
    let device = CpuDevice::new();
    device.scatter((&mut dst).into(), &place.fragment(), 100, &changes, &keys, &mut undo).expect("all fits");
    // A task that died after any number of writes leaves a mix of old and new words under the same log.
    for (word, &old) in dst.iter_mut().zip(&before) {
        if rng.below(2) == 0 {
            *word = old;
        }
    }
    device.undo((&mut dst).into(), &mut undo).expect("the same tensor");
    assert_eq!(dst, before);
}
