//! Detection: every rule, every source, every shape of piece.

use crate::pass::{detect, detect_within};
use crate::shim::{BLOCK_SIZES, Grid};
use crate::support::{RUN, Rng, State, inversion, masters, params, tensor, usual_rule};
use driftless_device::{
    Bitset, ChangeSource, CpuDevice, DetectOptions, Detected, Device, Pending, PieceDiff, PieceRule,
};
use driftless_layout::{Box2, ParamMeta, Piece, SourceTensor};
use driftless_numerics::conformance::{
    Element, Forward, Generator, Order, settings, special_elements, special_settings,
};
use driftless_numerics::{Cast, DigestKeys, Family, GroupStep, Hyperparameters, Moments, Optimizer, Rule};
use driftless_types::{Dtype, Fqn, ParamId};
use std::sync::atomic::AtomicBool;

static RUNNING: AtomicBool = AtomicBool::new(false);

fn on_cpu(
    tensor: &SourceTensor,
    params: &[ParamMeta],
    source: ChangeSource<'_>,
    options: DetectOptions<'_>,
) -> Detected {
    let keys = DigestKeys::new(RUN);
    CpuDevice::new().detect(tensor, params, source, options, &keys, &RUNNING).expect("all fits")
}

/// A parameter of one row, owned whole, whose first element lies at `offset` of its memory.
pub(crate) fn line(elements: usize) -> (SourceTensor, Vec<ParamMeta>) {
    let cols = elements as u64;
    let piece = Piece {
        src_offset: 0,
        param: ParamId(0),
        canonical: Box2::new(0, 1, 0, cols),
        row_cuts: vec![],
        col_cuts: vec![],
        first_cell: 0,
    };
    let tensor = SourceTensor { name: "line".into(), range: 0..cols, pieces: vec![piece] };
    (tensor, vec![crate::support::param(0, 1, cols, Dtype::Bf16)])
}

/// Checks a rule on a state of a line, with classes.
pub(crate) fn check_line(grid: Grid, state: &State, rule: &Rule, what: &str) -> usize {
    let (tensor, params) = line(state.master.len());
    let rules = [PieceRule::Rule(rule.clone())];
    let options = || DetectOptions::new(rule.family().cast()).with_classes();
    let wanted = on_cpu(&tensor, &params, inversion(state, &rules), options());
    let keys = DigestKeys::new(RUN);
    let found = detect(grid, &tensor, &params, inversion(state, &rules), options(), &keys);
    check(&found, &wanted, &format!("{what}, {grid:?}"));
    wanted.changes.count()
}

/// Equal, NaN included.
fn check(found: &Detected, wanted: &Detected, what: &str) {
    assert_eq!(found.changes, wanted.changes, "{what}");
    assert_eq!(found.first_cell, wanted.first_cell, "{what}");
    assert_eq!(found.cells, wanted.cells, "{what}");
    assert_eq!(found.audits, wanted.audits, "{what}");
    let bits = |detected: &Detected| {
        detected.bound_exceeded.iter().map(|worst| worst.map(f32::to_bits)).collect::<Vec<_>>()
    };
    assert_eq!(bits(found), bits(wanted), "{what}");
}

#[test]
fn gp1_every_family_and_shape_at_every_block_size_and_order() {
    let (tensor, params, keys) = (tensor(), params(), DigestKeys::new(RUN));
    let state = masters(&tensor);
    for (seed, family) in (0..).zip(Family::ALL) {
        let mut rules = vec![PieceRule::Rule(usual_rule(family)); 7];
        rules[2] = PieceRule::Dense;
        rules[3] = PieceRule::Untouched;
        let options = || DetectOptions::new(family.cast()).with_classes();
        let wanted = on_cpu(&tensor, &params, inversion(&state, &rules), options());
        assert!(wanted.changes.count() > 50, "the data exercise the rule");
        for (index, threads) in (0..).zip(BLOCK_SIZES) {
            let grid = Grid::new(threads, 10 * seed + index);
            let found = detect(grid, &tensor, &params, inversion(&state, &rules), options(), &keys);
            check(&found, &wanted, &format!("{family} {grid:?}"));
        }
    }
}

#[test]
fn gp1_every_rule_form_on_usual_steps() {
    let hyper = Hyperparameters { lr: 1e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let step = GroupStep::new(10, hyper);
    let state = State::random(5000, &mut Rng(5));
    let mut forms = std::collections::BTreeSet::new();
    for family in Family::ALL {
        for optimizer in Optimizer::ALL {
            for moments in Moments::ALL {
                let step = step.clone().with_optimizer(optimizer).with_moments(moments);
                let Ok(rule) = Rule::new(&Fqn::from("w"), family, &step) else { continue };
                for (seed, rule) in [(1, rule.clone()), (2, rule.with_audited_masters())] {
                    forms.insert(rule.form());
                    check_line(Grid::new(128, seed), &state, &rule, &format!("{family} {step:?}"));
                }
            }
        }
    }
    assert_eq!(forms.len(), 11, "every form has been run: {forms:?}");
}

/// The state that a step in some order leaves.
fn stepped(elements: impl Iterator<Item = Element>, forward: &Forward) -> State {
    let mut state = State { master: vec![], exp_avg: vec![], exp_avg_sq: vec![] };
    for element in elements {
        state.master.push(forward.step(element, 0));
        state.exp_avg.push(element.exp_avg);
        state.exp_avg_sq.push(element.exp_avg_sq);
    }
    state
}

#[test]
fn gp1_adversarial_elements_of_every_family() {
    let mut listed = 0;
    for (seed, step) in (1..).zip(settings()) {
        let family = Family::ALL[seed as usize % Family::ALL.len()];
        let Ok(rule) = Rule::new(&Fqn::from("w"), family, &step) else { continue };
        for &order in Order::of(family) {
            let mut generator = Generator::new(&step, seed);
            let mut next =
                |k: u32| if k.is_multiple_of(2) { generator.adversarial() } else { generator.bulk() };
            let state = stepped((0..600).map(&mut next), &Forward::new(order, &step));
            let grid = Grid::new(BLOCK_SIZES[seed as usize % 4], seed);
            listed += check_line(grid, &state, &rule, &format!("{order:?} {step:?}"));
        }
    }
    assert!(listed > 10_000, "{listed}");
}

#[test]
fn gp1_special_values_of_every_family() {
    let special: Vec<Element> = special_elements().collect();
    for (seed, step) in (1..).zip(special_settings()) {
        let family = Family::ALL[seed as usize % Family::ALL.len()];
        for family in [family, Family::Agnostic] {
            let Ok(rule) = Rule::new(&Fqn::from("w"), family, &step) else { continue };
            // Every element meets some settings of each family; their product would take minutes.
            let some = special.iter().copied().skip(seed as usize % 5).step_by(5);
            let state = stepped(some, &Forward::new(Order::of(family)[0], &step));
            for rule in [rule.clone(), rule.with_audited_masters()] {
                check_line(Grid::new(256, seed), &state, &rule, &format!("{family} {step:?}"));
            }
        }
    }
}

/// The bits of a state before a step: some of them other than after it, by one or by many.
fn older(state: &State, cast: Cast, seed: u64) -> Vec<u16> {
    let mut rng = Rng(seed);
    let bits = state.master.iter().map(|&x| cast.bits(x));
    bits.map(|bits| match rng.below(12) {
        0 => bits ^ 1,
        1 => bits.wrapping_add(20),
        // The last near one, and the first far one.
        3 => bits.wrapping_add(31),
        4 => bits.wrapping_add(32),
        2 => rng.word(),
        _ => bits,
    })
    .collect()
}

#[test]
fn gp1_sources_that_know_old_bits() {
    let (tensor, params, keys) = (tensor(), params(), DigestKeys::new(RUN));
    let state = masters(&tensor);
    let mut diffs = vec![PieceDiff::Compare; 7];
    diffs[4] = PieceDiff::Dense;
    for (seed, cast) in [(1, Cast::NearestEven), (2, Cast::HalfAway)] {
        let old = older(&state, cast, seed);
        let mut changed = Bitset::new(old.len());
        changed.insert_all(&(0..old.len() as u32).filter(|k| k % 7 == 3 || k % 64 < 2).collect::<Vec<_>>());
        for (index, threads) in (0..).zip(BLOCK_SIZES) {
            let grid = Grid::new(threads, seed + 2 * index);
            let options = || DetectOptions::new(cast).with_classes();
            let master = &state.master;
            let pre_copy =
                || ChangeSource::PreCopy { master: master.into(), model: (&old).into(), diffs: &diffs };
            let found = detect(grid, &tensor, &params, pre_copy(), options(), &keys);
            check(&found, &on_cpu(&tensor, &params, pre_copy(), options()), "pre-copy");
            let in_step =
                || ChangeSource::InStep { master: master.into(), changed: (&changed).into(), diffs: &diffs };
            let found = detect(grid, &tensor, &params, in_step(), options(), &keys);
            check(&found, &on_cpu(&tensor, &params, in_step(), options()), "in-step");
            let [mut ours, mut theirs] = [old.clone(), old.clone()];
            let snapshot = |previous: &mut Vec<u16>, run: &dyn Fn(ChangeSource<'_>) -> Detected| {
                run(ChangeSource::Snapshot {
                    master: master.into(),
                    previous: previous.into(),
                    diffs: &diffs,
                })
            };
            let found =
                snapshot(&mut ours, &|source| detect(grid, &tensor, &params, source, options(), &keys));
            let wanted = snapshot(&mut theirs, &|source| on_cpu(&tensor, &params, source, options()));
            check(&found, &wanted, "snapshot");
            assert!(wanted.changes.count() > 500);
            assert_eq!(ours, theirs, "the snapshot holds the new bits");
        }
    }
}

fn collect(set: &mut Bitset) -> DetectOptions<'_> {
    DetectOptions::default().with_pending(Pending::Collect(set.into()))
}

fn drain(set: &mut Bitset) -> DetectOptions<'_> {
    DetectOptions::default().with_classes().with_pending(Pending::Drain(set.into()))
}

fn snapshot<'a>(state: &'a State, previous: &'a mut Vec<u16>) -> ChangeSource<'a> {
    const COMPARED: [PieceDiff; 7] = [PieceDiff::Compare; 7];
    ChangeSource::Snapshot { master: (&state.master).into(), previous: previous.into(), diffs: &COMPARED }
}

#[test]
fn gp1_dv5_pending_changes_are_collected_and_drained() {
    let (tensor, params, keys) = (tensor(), params(), DigestKeys::new(RUN));
    let state = masters(&tensor);
    let mut rules = vec![PieceRule::Rule(usual_rule(Family::Torch)); 7];
    rules[1] = PieceRule::Untouched;
    rules[4] = PieceRule::Dense;
    let marked: Vec<u32> = (0..8000).filter(|k| k % 31 == 4 || k / 40 == 77).collect();
    let old = older(&state, Cast::NearestEven, 9);
    for (seed, threads) in (1..).zip(BLOCK_SIZES) {
        let grid = Grid::new(threads, seed);
        let mut before = Bitset::new(tensor.elements() as usize);
        before.insert_all(&marked);
        let [mut ours, mut theirs] = [before.clone(), before.clone()];
        let [mut our_bits, mut their_bits] = [old.clone(), old.clone()];
        // Twice collected, by two sources; then drained.
        let found = detect(grid, &tensor, &params, inversion(&state, &rules), collect(&mut ours), &keys);
        let wanted = on_cpu(&tensor, &params, inversion(&state, &rules), collect(&mut theirs));
        check(&found, &wanted, "collect");
        assert!(wanted.changes.count() == 0 && theirs.count() > before.count() + 4000);
        assert_eq!(ours, theirs, "{grid:?}");
        detect(grid, &tensor, &params, snapshot(&state, &mut our_bits), collect(&mut ours), &keys);
        on_cpu(&tensor, &params, snapshot(&state, &mut their_bits), collect(&mut theirs));
        assert_eq!((&ours, &our_bits), (&theirs, &their_bits), "{grid:?}");
        let found = detect(grid, &tensor, &params, inversion(&state, &rules), drain(&mut ours), &keys);
        let wanted = on_cpu(&tensor, &params, inversion(&state, &rules), drain(&mut theirs));
        check(&found, &wanted, "drain");
        assert!(ours.is_empty() && theirs.is_empty());
    }
}

#[test]
fn gp1_a_list_without_room_is_cut_and_counted() {
    let (tensor, params, keys) = (tensor(), params(), DigestKeys::new(RUN));
    let state = masters(&tensor);
    let old = older(&state, Cast::NearestEven, 4);
    let diffs = [PieceDiff::Compare; 7];
    let whole = ChangeSource::PreCopy { master: (&state.master).into(), model: (&old).into(), diffs: &diffs };
    let wanted = on_cpu(&tensor, &params, whole, DetectOptions::default());
    let wanted = wanted.changes.on_host().expect("a list on the host");
    for capacity in [0, 1, 63, 500] {
        let mut previous = old.clone();
        let source = ChangeSource::Snapshot {
            master: (&state.master).into(),
            previous: (&mut previous).into(),
            diffs: &diffs,
        };
        let options = DetectOptions::default().with_classes();
        let (found, count) =
            detect_within(capacity, Grid::new(64, 3), &tensor, &params, source, options, &keys);
        let found = found.changes.on_host().expect("a list on the host");
        assert_eq!(count, wanted.indices.len());
        assert_eq!(
            (&found.indices[..], &found.values[..]),
            (&wanted.indices[..capacity], &wanted.values[..capacity])
        );
        assert_eq!(previous, old, "a snapshot is brought up to date with a list that is whole");
    }
}

#[test]
fn gp1_updates_beyond_their_bound_are_noted_per_piece() {
    let (tensor, params, keys) = (tensor(), params(), DigestKeys::new(RUN));
    let mut state = masters(&tensor);
    let at = |piece: usize, k: u64| (tensor.pieces[piece].src_offset + k) as usize;
    // Too large by much and by more; a root of a negative number, alone and beside a number; an infinite one.
    for (place, m, v) in [(at(4, 2000), 1.0, 1e-12), (at(4, 3999), 2.0, 1e-12), (at(1, 7), 1.0, -1.0)] {
        (state.exp_avg[place], state.exp_avg_sq[place]) = (m, v);
    }
    for (place, m, v) in [(at(6, 1), 1.0, -1e-3), (at(6, 900), -3.0, 1e-9), (at(3, 20), f32::MAX, 0.0)] {
        (state.exp_avg[place], state.exp_avg_sq[place]) = (m, v);
    }
    let rules = vec![PieceRule::Rule(usual_rule(Family::Apex)); 7];
    let wanted = on_cpu(&tensor, &params, inversion(&state, &rules), DetectOptions::default());
    assert_eq!(wanted.bound_exceeded.iter().flatten().count(), 4);
    for (seed, threads) in (0..).zip(BLOCK_SIZES) {
        let (grid, options) = (Grid::new(threads, seed), DetectOptions::default());
        check(&detect(grid, &tensor, &params, inversion(&state, &rules), options, &keys), &wanted, "bounds");
    }
}

/// Parts by the hundred, cells by the dozen, parameters longer than a block count of 32 bits, and memory that begins
/// anywhere.
#[test]
fn gp1_many_parts_many_cells_far_origins_and_crooked_memory() {
    let params: Vec<ParamMeta> = [(1 << 34, Dtype::Bf16), (1 << 33, Dtype::Fp32)]
        .into_iter()
        .zip(0..)
        .map(|((cols, dtype), id)| crate::support::param(id, 1 << 20, cols, dtype))
        .collect();
    let mut rng = Rng(8);
    let (mut pieces, mut offset, mut cell) = (Vec::new(), 3, 5_u32);
    for index in 0..150_u64 {
        let (rows, cols) = (1 + rng.below(4), 1 + rng.below(if index % 40 == 7 { 900 } else { 40 }));
        let canonical = Box2::new(rng.below(1 << 19), rows, rng.below(1 << 32), cols);
        let cuts = |extent: u64, rng: &mut Rng| {
            (1..extent).filter(|_| rng.below(if index % 5 == 0 { 2 } else { 30 }) == 0).collect::<Vec<_>>()
        };
        let (row_cuts, col_cuts) = (cuts(rows, &mut rng), cuts(cols, &mut rng));
        let cells = ((row_cuts.len() + 1) * (col_cuts.len() + 1)) as u32;
        let param = ParamId(u32::from(index % 9 == 4));
        pieces.push(Piece { src_offset: offset, param, canonical, row_cuts, col_cuts, first_cell: cell });
        offset += rows * cols + rng.below(3);
        cell += cells;
    }
    let tensor = SourceTensor { name: "many".into(), range: 0..offset + 2, pieces };
    assert!(tensor.pieces.iter().any(|piece| piece.col_cuts.len() > 20));
    let keys = DigestKeys::new(RUN);
    let n = tensor.elements() as usize;
    let padded = State::random(n + 8, &mut Rng(77));
    let rules: Vec<PieceRule> = (0..150)
        .map(|k| if k % 11 == 10 { PieceRule::Dense } else { PieceRule::Rule(usual_rule(Family::Agnostic)) })
        .collect();
    for (seed, threads) in (0..).zip(BLOCK_SIZES) {
        let crooked = seed as usize % 5;
        let of = |values: &[f32], more: usize| values[crooked + more..crooked + more + n].to_vec();
        // One allocation for each, of which the tensor is a part that begins anywhere.
        let (m, v) = (&padded.exp_avg[crooked..crooked + n], &padded.exp_avg_sq[crooked..crooked + n]);
        let master = of(&padded.master, 1);
        let source = || ChangeSource::Inversion {
            master: (&master).into(),
            exp_avg: m.into(),
            exp_avg_sq: v.into(),
            rules: &rules,
        };
        let wanted = on_cpu(&tensor, &params, source(), DetectOptions::default());
        let found =
            detect(Grid::new(threads, seed), &tensor, &params, source(), DetectOptions::default(), &keys);
        check(&found, &wanted, &format!("{threads} threads, {crooked} elements off"));
    }
}
