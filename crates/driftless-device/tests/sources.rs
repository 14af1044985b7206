//! Every source of changes against plain comparisons, with classes and with sets of pending changes.
#![allow(clippy::cast_possible_truncation, reason = "test data are small")]

mod support;

use driftless_device::{
    Bitset, ChangeSource, Changes, ClassedSet, Classes, CpuDevice, DetectOptions, Detected, Device,
    DeviceError, Pending, PieceDiff, PieceRule,
};
use driftless_layout::{Box2, Fragment, SourceRun};
use driftless_numerics::{
    Cast, DigestKeys, Family, GroupStep, Hyperparameters, Optimizer, Rule, StepClass, bf16,
};
use driftless_types::{Digest, Dtype, Fqn, ParamId};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use support::{RUN, Rng, State, classes, inversion, listed, masters, params, tensor, usual_rule};

static RUNNING: AtomicBool = AtomicBool::new(false);
const COMPARED: [PieceDiff; 7] = [PieceDiff::Compare; 7];

fn detect(source: ChangeSource<'_>, options: DetectOptions<'_>) -> Detected {
    let keys = DigestKeys::new(RUN);
    CpuDevice::new().detect(&tensor(), &params(), source, options, &keys, &RUNNING).expect("all fits")
}

fn plain() -> DetectOptions<'static> {
    DetectOptions::new(Cast::NearestEven)
}

fn bits_of(master: &[f32]) -> Vec<u16> {
    master.iter().map(|&x| bf16::cast(x)).collect()
}

/// Indices of elements that are listed at all: those of BF16 pieces.
fn listable() -> BTreeSet<u32> {
    let (tensor, params) = (tensor(), params());
    let served = |piece: &&driftless_layout::Piece| params[piece.param.0 as usize].dtype == Dtype::Bf16;
    let pieces = tensor.pieces.iter().filter(served);
    pieces
        .flat_map(|piece| (piece.src_offset..piece.src_offset + piece.canonical.elements()).map(|k| k as u32))
        .collect()
}

/// Weights before and after a step by 0, 1, 2, 31, 32 or very many BF16 steps.
fn stepped(state: &State, seed: u64) -> (Vec<u16>, State) {
    let mut rng = Rng(seed);
    let old = bits_of(&state.master);
    let mut next = masters(&tensor());
    for (x, &old) in next.master.iter_mut().zip(&old) {
        let steps = [0, 0, 0, 0, 0, 0, 1, 2, 31, 32, 9000][rng.below(11) as usize];
        let place = bf16::key(old);
        let moved = if rng.below(2) == 0 { place.wrapping_add(steps) } else { place.wrapping_sub(steps) };
        *x = bf16::widen(bf16::unkey(moved));
    }
    (old, next)
}

fn differing(old: &[u16], new: &[u16]) -> Vec<u32> {
    let listable = listable();
    let differs = |index: &u32| old[*index as usize] != new[*index as usize];
    listable.into_iter().filter(differs).collect()
}

#[test]
fn dv4_every_source_of_old_bits_lists_the_same_changes_with_the_same_digest() {
    let (old, next) = stepped(&masters(&tensor()), 3);
    let (new, master) = (bits_of(&next.master), &next.master[..]);
    let wanted = differing(&old, &new);
    assert!(wanted.len() > 1000);
    let mut previous = old.clone();
    let snapshot =
        ChangeSource::Snapshot { master: master.into(), previous: (&mut previous).into(), diffs: &COMPARED };
    let snapshot = detect(snapshot, plain());
    assert_eq!(listed(&snapshot).indices, wanted);
    let pre_copy = detect(
        ChangeSource::PreCopy { master: master.into(), model: (&old).into(), diffs: &COMPARED },
        plain(),
    );
    assert_eq!(pre_copy, snapshot);
    let mut changed = Bitset::new(new.len());
    changed.insert_all(&wanted);
    let in_step = detect(
        ChangeSource::InStep { master: master.into(), changed: (&changed).into(), diffs: &COMPARED },
        plain(),
    );
    assert_eq!(in_step, snapshot);
    // A piece that goes whole lists nothing, and is digested all the same.
    let mut diffs = COMPARED;
    diffs[3] = PieceDiff::Dense;
    let pieces = tensor().pieces;
    let whole = pieces[3].src_offset as u32..pieces[4].src_offset as u32;
    for source in [
        ChangeSource::PreCopy { master: master.into(), model: (&old).into(), diffs: &diffs },
        ChangeSource::InStep { master: master.into(), changed: (&changed).into(), diffs: &diffs },
    ] {
        let found = detect(source, plain());
        assert!(
            listed(&found).indices.iter().copied().eq(wanted.iter().copied().filter(|k| !whole.contains(k)))
        );
        assert_eq!(found.cells, snapshot.cells);
    }
}

#[test]
fn nu5_classes_are_exact_where_old_bits_are_known() {
    let (old, next) = stepped(&masters(&tensor()), 4);
    let (new, master) = (bits_of(&next.master), &next.master[..]);
    let exact = |index: &u32| StepClass::between(old[*index as usize], new[*index as usize]);
    let mut previous = old.clone();
    let snapshot =
        ChangeSource::Snapshot { master: master.into(), previous: (&mut previous).into(), diffs: &COMPARED };
    for source in
        [snapshot, ChangeSource::PreCopy { master: master.into(), model: (&old).into(), diffs: &COMPARED }]
    {
        let found = detect(source, plain().with_classes());
        assert!(classes(&found).iter().copied().eq(listed(&found).indices.iter().map(exact)));
        for class in [StepClass::Unit, StepClass::Near, StepClass::Far] {
            assert!(classes(&found).iter().filter(|&&found| found == class).count() > 100, "{class:?}");
        }
    }
    let mut changed = Bitset::new(new.len());
    changed.insert_all(&[7, 12]);
    let found = detect(
        ChangeSource::InStep { master: master.into(), changed: (&changed).into(), diffs: &COMPARED },
        plain().with_classes(),
    );
    assert_eq!(classes(&found), [StepClass::Far; 2]);
}

#[test]
fn nu5_inversion_lists_the_class_of_the_scalar_rule() {
    let state = masters(&tensor());
    for family in [Family::Torch, Family::TeRemainder] {
        let rule = usual_rule(family);
        let rules = vec![PieceRule::Rule(rule.clone()); 7];
        let options = || DetectOptions::new(family.cast());
        let without = detect(inversion(&state, &rules), options());
        let found = detect(inversion(&state, &rules), options().with_classes());
        let of = |found: &Detected| (listed(found).indices.clone(), listed(found).values.clone());
        assert_eq!((of(&found), &found.cells), (of(&without), &without.cells));
        assert_eq!(without.changes.classes(), Classes::LeftOut);
        let class = |&index: &u32| {
            let at = index as usize;
            rule.step_class(state.master[at], state.exp_avg[at], state.exp_avg_sq[at])
        };
        assert!(classes(&found).iter().copied().eq(listed(&found).indices.iter().map(class)));
        assert!(classes(&found).contains(&StepClass::Unit) && classes(&found).contains(&StepClass::Far));
    }
}

#[test]
fn dv5_steps_that_were_not_published_are_listed_with_the_one_that_is() {
    let (first_old, first) = stepped(&masters(&tensor()), 5);
    let (second_old, second) = stepped(&first, 6);
    let (middle, new) = (bits_of(&first.master), bits_of(&second.master));
    assert_eq!(middle, second_old);
    let mut pending = Bitset::new(new.len());
    let source = ChangeSource::PreCopy {
        master: (&first.master).into(),
        model: (&first_old).into(),
        diffs: &COMPARED,
    };
    let collected = detect(source, plain().with_pending(Pending::Collect((&mut pending).into())));
    assert!(listed(&collected).indices.is_empty());
    assert!(collected.cells.iter().all(|cell| *cell == Digest::ZERO), "nothing is published");
    let of_first: BTreeSet<u32> = differing(&first_old, &middle).into_iter().collect();
    assert!(pending.indices().eq(of_first.iter().copied()));
    let source = || ChangeSource::PreCopy {
        master: (&second.master).into(),
        model: (&second_old).into(),
        diffs: &COMPARED,
    };
    let alone = detect(source(), plain());
    let drained =
        detect(source(), plain().with_classes().with_pending(Pending::Drain((&mut pending).into())));
    assert!(pending.is_empty(), "what was listed is no longer pending");
    let union: BTreeSet<u32> = listed(&alone).indices.iter().chain(&of_first).copied().collect();
    assert!(listed(&drained).indices.iter().eq(&union));
    assert!(
        listed(&drained).indices.iter().map(|&k| new[k as usize]).eq(listed(&drained).values.iter().copied())
    );
    assert_eq!(drained.cells, alone.cells);
    // NU-5: bounds of several steps do not add up.
    for (index, class) in listed(&drained).indices.iter().zip(classes(&drained)) {
        let known = StepClass::between(second_old[*index as usize], new[*index as usize]);
        assert_eq!(*class, if of_first.contains(index) { StepClass::Far } else { known });
    }
}

#[test]
fn dv5_pieces_whose_changes_are_unknown_are_pending_whole() {
    let tensor = tensor();
    let mut state = masters(&tensor);
    let range = |piece: usize| {
        let piece = &tensor.pieces[piece];
        piece.src_offset as u32..(piece.src_offset + piece.canonical.elements()) as u32
    };
    // Piece 0 goes whole, 1 was not touched, 4 has moments that no Adam makes, 5 is served in FP32.
    let mut rules = vec![PieceRule::Rule(usual_rule(Family::Torch)); 7];
    (rules[0], rules[1], rules[2]) = (PieceRule::Dense, PieceRule::Untouched, PieceRule::Untouched);
    let at = range(4).start as usize + 2000;
    (state.exp_avg[at], state.exp_avg_sq[at]) = (1.0, 1e-12);
    let mut pending = Bitset::new(state.master.len());
    let old = range(2).start + 5;
    pending.insert_all(&[old, range(0).end - 1]);
    let found =
        detect(inversion(&state, &rules), plain().with_pending(Pending::Collect((&mut pending).into())));
    assert!(found.bound_exceeded[4].is_some());
    let set: BTreeSet<u32> = pending.indices().collect();
    assert!(range(0).chain(range(4)).chain([old]).all(|index| set.contains(&index)));
    assert!(!range(1).chain(range(5)).any(|index| set.contains(&index)));
    // What goes whole at the next step lists nothing; what was not touched lists what was pending.
    rules[4] = PieceRule::Dense;
    let found =
        detect(inversion(&state, &rules), plain().with_pending(Pending::Drain((&mut pending).into())));
    let listed: BTreeSet<u32> = listed(&found).indices.iter().copied().collect();
    assert!(listed.contains(&old) && !range(0).chain(range(4)).any(|index| listed.contains(&index)));
    assert!(pending.is_empty());
}

#[test]
fn dv5_a_pass_that_is_cut_short_keeps_what_is_pending() {
    let state = masters(&tensor());
    let (rules, keys, stopped) = (vec![PieceRule::Untouched; 7], DigestKeys::new(RUN), AtomicBool::new(true));
    let mut pending = Bitset::new(state.master.len());
    pending.insert_all(&[5, 3100]);
    let before = pending.clone();
    let options = plain().with_pending(Pending::Drain((&mut pending).into()));
    let source = inversion(&state, &rules);
    let found = CpuDevice::new().detect(&tensor(), &params(), source, options, &keys, &stopped);
    assert_eq!(found, Err(DeviceError::Canceled));
    assert_eq!(pending, before);
    let mut short = Bitset::new(state.master.len() - 1);
    for pending in [Pending::Collect((&mut short.clone()).into()), Pending::Drain((&mut short).into())] {
        let options = plain().with_pending(pending);
        let source = inversion(&state, &rules);
        let found = CpuDevice::new().detect(&tensor(), &params(), source, options, &keys, &RUNNING);
        assert!(matches!(found, Err(DeviceError::Length { what: "pending", .. })));
    }
}

#[test]
fn sgd_needs_no_second_moments() {
    let state = masters(&tensor());
    let hyper = Hyperparameters { lr: 0.01, beta1: 0.9, beta2: 0.0, eps: 0.0, weight_decay: 0.1 };
    let step = GroupStep::new(4, hyper).with_optimizer(Optimizer::Sgd);
    let rule = Rule::new(&Fqn::from("w"), Family::Agnostic, &step).expect("a usual step");
    let rules = vec![PieceRule::Rule(rule.clone()); 7];
    let (master, exp_avg) = (&state.master[..], &state.exp_avg[..]);
    let found = detect(
        ChangeSource::Inversion {
            master: master.into(),
            exp_avg: exp_avg.into(),
            exp_avg_sq: (&[][..]).into(),
            rules: &rules,
        },
        plain(),
    );
    let sent = |k: &u32| !rule.is_certified_unchanged(master[*k as usize], exp_avg[*k as usize], f32::NAN);
    assert!(listed(&found).indices.iter().copied().eq(listable().into_iter().filter(sent)));
    assert!(listed(&found).indices.len() > 50 && listed(&found).indices.len() < 4000);
    let keys = DigestKeys::new(RUN);
    let rules = vec![PieceRule::Rule(usual_rule(Family::Torch)); 7];
    let source = ChangeSource::Inversion {
        master: master.into(),
        exp_avg: exp_avg.into(),
        exp_avg_sq: (&[][..]).into(),
        rules: &rules,
    };
    let refused = CpuDevice::new().detect(&tensor(), &params(), source, plain(), &keys, &RUNNING);
    assert!(matches!(refused, Err(DeviceError::Length { what: "exp_avg_sq", .. })));
}

#[test]
fn classes_go_where_their_changes_go() {
    let (old, next) = stepped(&masters(&tensor()), 8);
    let source =
        ChangeSource::PreCopy { master: (&next.master).into(), model: (&old).into(), diffs: &COMPARED };
    let found = detect(source, plain().with_classes());
    // Columns 20..60 of piece 3, which is 70 wide, and all of piece 4.
    let fragment = |cols: u64, rows: u64, run: SourceRun| Fragment {
        index: 0,
        param: ParamId(0),
        dtype: Dtype::Bf16,
        canonical: Box2::new(0, rows, 0, cols),
        dst_tensor: 0,
        dst_offset: 0,
        dst_row_stride: cols,
        sources: vec![run],
        cells: vec![],
        first_in_replica: true,
    };
    let narrow = SourceRun { tensor: 0, src_offset: 2020, src_row_stride: 70, box_row: 0, rows: 15 };
    let flat = SourceRun { tensor: 0, src_offset: 3050, src_row_stride: 4000, box_row: 0, rows: 1 };
    for (fragment, first, stride) in
        [(fragment(40, 15, narrow), 2020, 70), (fragment(4000, 1, flat), 3050, 4000)]
    {
        let device = CpuDevice::new();
        let changes = vec![found.changes.clone()];
        let set = device.remap(&changes, &fragment).expect("the fragment fits");
        let mapped = device.remap_classed(&changes, &[&fragment]).expect("the fragment fits");
        assert_eq!(set, mapped[0].clone().into());
        let ClassedSet { positions, classes: mapped, .. } = &mapped[0];
        let source = |position: u32| {
            first
                + position / fragment.canonical.cols as u32 * stride
                + position % fragment.canonical.cols as u32
        };
        let class = |&position: &u32| {
            let index = listed(&found).indices.binary_search(&source(position)).expect("a change");
            classes(&found)[index]
        };
        assert!(mapped.len() > 100 && mapped.iter().copied().eq(positions.iter().map(class)));
        for short in [None, Some(classes(&found)[1..].to_vec())] {
            let short = Changes { classes: short, ..listed(&found).clone() };
            let refused = device.remap_classed(&[short.into()], &[&fragment]);
            assert!(matches!(refused, Err(DeviceError::Length { what: "the classes of a list", .. })));
        }
    }
}
