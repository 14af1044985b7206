//! Round trips of every mode, and what congruence does on a base that is not quite the base.

use crate::kit::{Changed, decode, parse, start};
use driftless_codec::{
    BaseWords, CodecError, CodecId, LogChanges, LogSectionPlan, LogView, StepKnowledge, ValueMode,
};
use driftless_numerics::StepClass;
use driftless_numerics::bf16::{key, unkey};
use driftless_types::Retry;
use proptest::prelude::*;

/// Old bits and a step that is small most of the time.
fn words() -> impl Strategy<Value = (u16, u16)> {
    let step = prop_oneof![8 => -1..=1_i32, 3 => -31..=31_i32, 1 => -70_000..=70_000_i32];
    let old =
        prop_oneof![3 => any::<u16>(), 1 => prop::sample::select(vec![0, 0x8000, 0xffff, 0x7fff, 0x7f80])];
    (old, step).prop_map(|(old, step)| {
        let place = (i32::from(key(old)) + step).clamp(0, 0xffff);
        (old, unkey(u16::try_from(place).expect("clamped")))
    })
}

/// A box's length and changes in it, of any density. Lengths crowd around the ends of blocks.
fn boxes() -> impl Strategy<Value = (u64, Changed)> {
    let n =
        prop_oneof![2..200_u64, 65_530..65_545_u64, 262_140..262_150_u64, (1 << 20) - 2..(1 << 20) + 3_u64];
    (n, 0..5_u32).prop_flat_map(|(n, scale)| {
        let last = u32::try_from(n - 1).expect("a few blocks");
        let position = prop_oneof![0..=last, 0..=last.min(60), (0..=last.min(9)).prop_map(move |b| last - b)];
        prop::collection::btree_map(
            position,
            words(),
            0..4_usize.pow(scale).min(usize::try_from(n - 1).expect("a few blocks")),
        )
        .prop_map(move |map| (n, Changed::of(map.into_iter().map(|(p, (old, new))| (p, old, new)))))
    })
}

fn decoded(changed: &Changed) -> (Vec<u32>, Vec<u16>) {
    (changed.positions.clone(), changed.new.clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn congruence_is_right_on_base_new_and_any_mix((n, changed) in boxes(), mix in any::<u64>()) {
        let section = parse(n, &changed.congruence(n)).unwrap();
        let base = |position| changed.base(position);
        let new = |position| changed.new_at(position);
        let mixed = |position| if mix >> (position % 64) & 1 == 0 { base(position) } else { new(position) };
        prop_assert_eq!(decode(&section, BaseWords::Exact, &base).unwrap(), decoded(&changed));
        prop_assert_eq!(decode(&section, BaseWords::Mixed, &new).unwrap(), decoded(&changed), "applied twice");
        prop_assert_eq!(decode(&section, BaseWords::Mixed, &mixed).unwrap(), decoded(&changed));
    }

    #[test]
    fn absolute_values_need_no_base((n, changed) in boxes()) {
        let section = parse(n, &changed.encode(n, StepKnowledge::Nothing)).unwrap();
        prop_assert_eq!(section.header().value_mode, ValueMode::Absolute);
        let LogView::Sparse(blocks) = section.view() else { panic!("some elements are left out") };
        prop_assert!(!blocks.needs_base());
        let never = |_| panic!("no word is asked for");
        prop_assert_eq!(blocks.decode_all(BaseWords::Mixed, &never).unwrap(), decoded(&changed));
    }

    #[test]
    fn signs_are_right_on_the_base_alone((n, changed) in boxes()) {
        let section = parse(n, &changed.encode(n, StepKnowledge::Old(&changed.old))).unwrap();
        let base = |position| changed.base(position);
        prop_assert_eq!(decode(&section, BaseWords::Exact, &base).unwrap(), decoded(&changed));
        if section.header().value_mode == ValueMode::Sign {
            let refused = decode(&section, BaseWords::Mixed, &base).unwrap_err();
            prop_assert_eq!((refused.retry(), refused), (Retry::NeedsAnchor, CodecError::DirtyBase));
        }
    }

    #[test]
    fn a_looser_bound_than_the_step_is_as_right((n, changed) in boxes(), loose in any::<u64>()) {
        let mut classes = changed.classes();
        for (i, class) in classes.iter_mut().enumerate().filter(|(i, _)| loose >> (i % 64) & 1 == 1) {
            *class = if i % 3 == 0 { StepClass::Far } else { (*class).max(StepClass::Near) };
        }
        let section = parse(n, &changed.encode(n, StepKnowledge::Classes(&classes))).unwrap();
        let base = |position| changed.base(position);
        prop_assert_eq!(decode(&section, BaseWords::Exact, &base).unwrap(), decoded(&changed));
    }

    #[test]
    fn no_codec_that_was_left_out_is_smaller((n, changed) in boxes()) {
        let start = start(n);
        let changes = |knowledge| LogChanges::Sparse { positions: &changed.positions, values: &changed.new, knowledge };
        let classes = changed.classes();
        let [absolute, bounded] = [StepKnowledge::Nothing, StepKnowledge::Classes(&classes)]
            .map(|knowledge| LogSectionPlan::new(&start, changes(knowledge)));
        let nnz = changed.positions.len() as u64;
        let block16 = if nnz == 0 { 0 } else { 4 * (n.div_ceil(1 << 16) + 1 + nnz) };
        prop_assert!(absolute.header().body_bytes <= block16);
        prop_assert!(bounded.header().body_bytes <= absolute.header().body_bytes);
        prop_assert_eq!(bounded.dense_is_smaller(), (2 * n).next_multiple_of(4) <= bounded.header().body_bytes);
        // A mode that leans on a base is only taken where it wins.
        let ties = bounded.header().body_bytes == absolute.header().body_bytes;
        prop_assert!(!ties || bounded.header().value_mode == ValueMode::Absolute);
    }
}

/// Many changes by one, so that the section is coded with congruence.
fn units() -> (u64, Changed) {
    (100_000, Changed::of((0..1000).map(|i| (90 * i, 0x3c00, 0x3c01))))
}

#[test]
fn a_wrong_base_shows_where_no_word_gives_the_code() {
    let (n, changed) = units();
    let section = parse(n, &changed.congruence(n)).unwrap();
    // Two steps beside the new bits: as far up as down.
    let wrong = |position| if position == 180 { 0x3bff } else { 0x3c00 };
    let error = decode(&section, BaseWords::Exact, &wrong).unwrap_err();
    assert_eq!(error.to_string(), "the word 3bff at position 180 is not that of the base: re-anchor");
    assert_eq!(error.retry(), Retry::NeedsAnchor);
}

#[test]
fn several_steps_would_decode_wrongly_without_a_trace() {
    // Why classes of several steps must not be claimed: +3 looks like -1.
    let (n, changed) = units();
    let section = parse(n, &changed.congruence(n)).unwrap();
    let (_, values) = decode(&section, BaseWords::Exact, &|_| 0x3bfe).unwrap();
    assert!(values.iter().all(|&value| value == 0x3bfd));
}

#[test]
fn nan_payloads_zeros_of_both_signs_and_flips_of_sign_survive() {
    let odd =
        [(0x7fc1, 0x7fc2), (0xffff, 0x7fff), (0x8000, 0), (0, 0x8000), (0x3f80, 0xbf80), (0x7f80, 0xff80)];
    let (n, mut changed) = units();
    for (i, (old, new)) in odd.into_iter().enumerate() {
        (changed.old[i], changed.new[i]) = (old, new);
    }
    let section = parse(n, &changed.congruence(n)).unwrap();
    assert_eq!(section.header().value_mode, ValueMode::Congruence);
    assert_eq!(decode(&section, BaseWords::Exact, &|p| changed.base(p)).unwrap(), decoded(&changed));
}

#[test]
fn more_escapes_than_a_block_can_say_make_it_absolute() {
    // One crowded block in a long box, so that blocks have 2^20 elements; the other is coded with congruence.
    let n = 1 << 27;
    let crowd = (0..70_000).map(|i| (i, 1, 0x4000));
    let others = (0..2000).map(|i| ((1 << 20) + 500 * i, 0x3c00, 0x3c01));
    let changed = Changed::of(crowd.chain(others));
    let bytes = changed.congruence(n);
    let section = parse(n, &bytes).unwrap();
    assert_eq!((section.header().lg_block, section.header().value_mode), (20, ValueMode::Congruence));
    let directory = 88 + 24;
    let first_block = directory + 4 * (usize::try_from(n >> 20).unwrap() + 1);
    assert_eq!(bytes[first_block + 7], 0, "mode of the crowded block");
    let second = u32::from_le_bytes(*bytes[directory + 4..].first_chunk().unwrap());
    assert_eq!(bytes[first_block + 4 * usize::try_from(second).unwrap() + 7], 1, "mode of the other");
    assert_eq!(decode(&section, BaseWords::Exact, &|p| changed.base(p)).unwrap(), decoded(&changed));
}

#[test]
fn block_sizes_follow_the_density() {
    for (nnz, n, lg_block) in
        [(1000, 100_000, 16), (999, 100_000, 18), (1000, 500_000, 18), (999, 500_000, 20)]
    {
        let step = n / nnz;
        let changed = Changed::of((0..nnz).map(|i| (i * step, 0x3c00, 0x3c01)));
        let section = parse(n.into(), &changed.congruence(n.into())).unwrap();
        assert_eq!(section.header().codec, CodecId::Rice);
        assert_eq!(section.header().lg_block, lg_block, "{nnz} of {n}");
    }
}

#[test]
fn blocks_decode_on_their_own() {
    let (n, changed) = units();
    let section = parse(n, &changed.congruence(n)).unwrap();
    let LogView::Sparse(blocks) = section.view() else { panic!("some elements are left out") };
    assert_eq!(blocks.len(), 2);
    let (mut positions, mut values) = (Vec::new(), Vec::new());
    blocks.decode(1, BaseWords::Exact, &|_| 0x3c00, &mut positions, &mut values).unwrap();
    let second = changed.positions.partition_point(|&position| position < 1 << 16);
    assert_eq!((&positions[..], &values[..]), (&changed.positions[second..], &changed.new[second..]));
}
