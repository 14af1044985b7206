//! Detection against a plain loop over the elements, written without any of the crate's code.
#![allow(clippy::cast_possible_truncation, reason = "test data are small")]

mod support;

use driftless_device::{
    ChangeSource, Changes, CpuDevice, DetectOptions, Detected, Device, DeviceError, PieceDiff, PieceRule,
};
use driftless_layout::{Piece, SourceTensor};
use driftless_numerics::{Cast, DigestKeys, Family, MasterAudit, bf16};
use driftless_types::{Digest, Dtype, ParamId};
use std::sync::atomic::AtomicBool;
use support::{RUN, Rng, State, canonical, inversion, listed, masters, params, served, tensor, usual_rule};

static RUNNING: AtomicBool = AtomicBool::new(false);

/// Which elements of a piece to list, by index into the owned range; `None` lists nothing.
type Oracle<'a> = &'a dyn Fn(usize, usize) -> bool;

fn expected(
    tensor: &SourceTensor,
    state: &State,
    keys: &DigestKeys,
    cast: Cast,
    listed: Oracle<'_>,
) -> (Changes, Vec<Digest>) {
    let params = params();
    let mut changes = Changes::default();
    let mut cells = vec![Digest::ZERO; 32 - 10];
    for (index, piece) in tensor.pieces.iter().enumerate() {
        let meta = &params[piece.param.0 as usize];
        for k in 0..piece.canonical.elements() {
            let at = (piece.src_offset + k) as usize;
            let words = served(meta.dtype, cast, state.master[at]);
            if meta.dtype == Dtype::Bf16 && listed(index, at) {
                changes.indices.push(at as u32);
                changes.values.push(words[0]);
            }
            let band = |cuts: &[u64], at| cuts.iter().filter(|&&cut| cut <= at).count();
            let row_band = band(&piece.row_cuts, k / piece.canonical.cols);
            let col_band = band(&piece.col_cuts, k % piece.canonical.cols);
            let cell = piece.first_cell as usize + row_band * (piece.col_cuts.len() + 1) + col_band;
            let first = canonical(&piece.canonical, meta.cols(), k) * words.len() as u64;
            for (offset, &word) in (0..).zip(&words) {
                cells[cell - 10] += keys.term(piece.param, first + offset, word);
            }
        }
    }
    (changes, cells)
}

fn check(detected: &Detected, expected: (Changes, Vec<Digest>)) {
    assert_eq!(detected.first_cell, 10);
    assert_eq!(*listed(detected), expected.0);
    assert_eq!(detected.cells, expected.1);
}

#[test]
fn dv4_inversion_equals_the_scalar_loop_on_every_shape_and_family() {
    let (tensor, keys) = (tensor(), DigestKeys::new(RUN));
    let state = masters(&tensor);
    for family in Family::ALL {
        let rule = usual_rule(family);
        let mut rules = vec![PieceRule::Rule(rule.clone()); 7];
        rules[2] = PieceRule::Dense;
        rules[3] = PieceRule::Untouched;
        let oracle = |piece: usize, at: usize| {
            !matches!(piece, 2 | 3)
                && !rule.is_certified_unchanged(state.master[at], state.exp_avg[at], state.exp_avg_sq[at])
        };
        let expected = expected(&tensor, &state, &keys, family.cast(), &oracle);
        assert!(expected.0.indices.len() > 50, "the data exercise the rule");
        for device in CpuDevice::all() {
            let source = inversion(&state, &rules);
            let options = || DetectOptions::new(family.cast());
            let found =
                device.detect(&tensor, &params(), source, options(), &keys, &RUNNING).expect("all fits");
            check(&found, expected.clone());
        }
    }
}

/// Every seventh weight is a tie between two BF16 values, where the casts differ.
#[test]
fn dv4_all_sources_serve_the_bits_of_the_trainers_own_cast() {
    let (tensor, keys, params) = (tensor(), DigestKeys::new(RUN), params());
    let mut state = masters(&tensor);
    state.master.iter_mut().step_by(7).for_each(|x| *x = f32::from_bits(x.to_bits() & 0xfffe_0000 | 0x8000));
    let rules: Vec<PieceRule> = (0..7).map(|_| PieceRule::Rule(usual_rule(Family::TeRemainder))).collect();
    let bits = |cast: Cast| state.master.iter().map(|&x| cast.bits(x)).collect::<Vec<_>>();
    assert!(bits(Cast::HalfAway) != bits(Cast::NearestEven), "the data tell the casts apart");
    for device in CpuDevice::all() {
        let options = || DetectOptions::new(Cast::HalfAway);
        let source = inversion(&state, &rules);
        let inverted = device.detect(&tensor, &params, source, options(), &keys, &RUNNING).expect("all fits");
        let of = |index: &u32| Cast::HalfAway.bits(state.master[*index as usize]);
        assert!(listed(&inverted).indices.iter().map(of).eq(listed(&inverted).values.iter().copied()));
        let mut previous = bits(Cast::NearestEven);
        let (master, diffs) = (&state.master[..], [PieceDiff::Compare; 7]);
        let source =
            ChangeSource::Snapshot { master: master.into(), previous: (&mut previous).into(), diffs: &diffs };
        let compared = device.detect(&tensor, &params, source, options(), &keys, &RUNNING).expect("all fits");
        assert_eq!(compared.cells, inverted.cells);
        assert!(!listed(&compared).indices.is_empty(), "a snapshot by the other cast differs on ties");
        assert!(listed(&compared).indices.iter().map(of).eq(listed(&compared).values.iter().copied()));
    }
}

#[test]
fn a_rule_for_bits_of_another_cast_is_refused() {
    let (tensor, keys) = (tensor(), DigestKeys::new(RUN));
    let state = masters(&tensor);
    let mut rules = vec![PieceRule::Dense; 7];
    rules[4] = PieceRule::Rule(usual_rule(Family::TeRemainder));
    let (source, options) = (inversion(&state, &rules), DetectOptions::default());
    let found = CpuDevice::new().detect(&tensor, &params(), source, options, &keys, &RUNNING);
    assert_eq!(
        found,
        Err(DeviceError::Cast { piece: 4, found: Cast::HalfAway, expected: Cast::NearestEven })
    );
}

#[test]
fn masters_are_audited_piece_by_piece() {
    let (tensor, keys) = (tensor(), DigestKeys::new(RUN));
    let mut state = masters(&tensor);
    state.master.iter_mut().for_each(|x| *x = if *x == 0.0 { 0.0 } else { x.abs().max(1e-30) });
    state.master[tensor.pieces[1].src_offset as usize + 1000] = -0.0;
    state.master[tensor.pieces[6].src_offset as usize + 1399] = 1e-39;
    // Nobody's element: it lies between two pieces.
    state.master[tensor.pieces[3].src_offset as usize - 1] = -0.0;
    let rules = vec![PieceRule::Untouched; 7];
    for device in CpuDevice::all() {
        let (source, options) = (inversion(&state, &rules), DetectOptions::default());
        let found = device.detect(&tensor, &params(), source, options, &keys, &RUNNING).expect("all fits");
        use MasterAudit::{Fit, Unfit, Unknown};
        assert_eq!(found.audits, [Fit, Unfit, Fit, Fit, Fit, Unknown, Unfit]);
    }
}

#[test]
fn snapshot_lists_what_differs_and_becomes_the_new_bits() {
    let (tensor, keys) = (tensor(), DigestKeys::new(RUN));
    let state = masters(&tensor);
    let new: Vec<u16> = state.master.iter().map(|&x| bf16::cast(x)).collect();
    let mut rng = Rng(3);
    let old: Vec<u16> = new.iter().map(|&word| if rng.below(9) == 0 { word ^ 1 } else { word }).collect();
    let mut diffs = vec![PieceDiff::Compare; 7];
    diffs[1] = PieceDiff::Dense;
    let expected =
        expected(&tensor, &state, &keys, Cast::NearestEven, &|piece, at| piece != 1 && old[at] != new[at]);
    for device in CpuDevice::all() {
        let mut previous = old.clone();
        let source = ChangeSource::Snapshot {
            master: (&state.master).into(),
            previous: (&mut previous).into(),
            diffs: &diffs,
        };
        let found = device
            .detect(&tensor, &params(), source, DetectOptions::default(), &keys, &RUNNING)
            .expect("all fits");
        check(&found, expected.clone());
        for (index, piece) in tensor.pieces.iter().enumerate() {
            let range = piece.src_offset as usize..(piece.src_offset + piece.canonical.elements()) as usize;
            // Piece 5 is served in FP32: its part of a BF16 snapshot means nothing and stays.
            let wanted = if index == 5 { &old } else { &new };
            assert_eq!(previous[range.clone()], wanted[range], "piece {index}");
        }
    }
}

#[test]
fn an_update_that_no_adam_can_make_is_reported_for_its_piece_alone() {
    let (tensor, keys) = (tensor(), DigestKeys::new(RUN));
    let mut state = masters(&tensor);
    let at = tensor.pieces[4].src_offset as usize + 2000;
    (state.exp_avg[at], state.exp_avg_sq[at]) = (1.0, 1e-12);
    let rule = usual_rule(Family::Torch);
    let rules = vec![PieceRule::Rule(rule.clone()); 7];
    let found = CpuDevice::new()
        .detect(&tensor, &params(), inversion(&state, &rules), DetectOptions::default(), &keys, &RUNNING)
        .expect("all fits");
    for (index, worst) in found.bound_exceeded.iter().enumerate() {
        assert_eq!(worst.is_some(), index == 4);
    }
    assert_eq!(found.bound_exceeded[4], Some(rule.update(1.0, 1e-12).abs()));
}

#[test]
fn a_raised_flag_stops_the_pass() {
    let (tensor, keys) = (tensor(), DigestKeys::new(RUN));
    let state = masters(&tensor);
    let rules = vec![PieceRule::Dense; 7];
    let stopped = AtomicBool::new(true);
    let found = CpuDevice::new().detect(
        &tensor,
        &params(),
        inversion(&state, &rules),
        DetectOptions::default(),
        &keys,
        &stopped,
    );
    assert_eq!(found, Err(DeviceError::Canceled));
}

#[test]
fn arguments_that_disagree_with_the_plan_are_refused() {
    let keys = DigestKeys::new(RUN);
    let rules = vec![PieceRule::Dense; 7];
    let state = masters(&tensor());
    let refused = |tensor: &SourceTensor, state: &State, rules: &[PieceRule]| {
        let source = inversion(state, rules);
        CpuDevice::new().detect(tensor, &params(), source, DetectOptions::default(), &keys, &RUNNING).is_err()
    };
    assert!(!refused(&tensor(), &state, &rules));
    assert!(refused(&tensor(), &state, &rules[1..]));
    let short = State { exp_avg: state.exp_avg[1..].to_vec(), ..masters(&tensor()) };
    assert!(refused(&tensor(), &short, &rules));
    let broken = |change: &dyn Fn(&mut Piece)| {
        let mut tensor = tensor();
        change(&mut tensor.pieces[3]);
        refused(&tensor, &state, &rules)
    };
    assert!(broken(&|piece| piece.param = ParamId(4)));
    assert!(broken(&|piece| piece.src_offset = 1940));
    assert!(broken(&|piece| piece.canonical.cols = 87));
    assert!(broken(&|piece| piece.canonical.rows = u64::MAX / 2));
    assert!(broken(&|piece| piece.row_cuts = vec![15]));
    assert!(broken(&|piece| piece.first_cell += 1));
}

#[test]
fn a_tensor_of_which_nothing_is_owned_is_no_work() {
    let tensor = SourceTensor { name: "none".into(), range: 7..7, pieces: Vec::new() };
    let state = State::random(0, &mut Rng(0));
    let found = CpuDevice::new().detect(
        &tensor,
        &params(),
        inversion(&state, &[]),
        DetectOptions::default(),
        &DigestKeys::new(RUN),
        &RUNNING,
    );
    assert_eq!(found, Ok(Detected::default()));
}
