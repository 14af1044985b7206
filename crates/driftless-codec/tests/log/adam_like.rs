//! What changes of an optimizer's step take: the figures that the format is for.

use crate::kit::{Changed, SplitMix, decode, parse};
use driftless_codec::{BaseWords, CodecId, StepKnowledge, ValueMode};
use driftless_numerics::bf16::{cast, key, unkey};

const N: u32 = 1 << 22;

/// An FP32 number with this distribution.
#[expect(clippy::cast_possible_truncation, reason = "the nearest one is meant")]
fn single(value: f64) -> f32 {
    value as f32
}

/// Geometric gaps of this density; 95 % of the steps are by one, the rest by up to 31, up and down alike.
fn geometric(density: f64, seed: u64) -> Changed {
    let mut random = SplitMix(seed);
    let positions: Vec<u32> = (0..N).filter(|_| random.unit() < density).collect();
    let change = |position: u32| {
        let old = cast(single(0.02 * random.normal()));
        let far = u16::try_from(2 + random.next() % 30).expect("at most 31");
        let steps = if random.unit() < 0.95 { 1 } else { far };
        let place = if random.unit() < 0.5 { key(old) + steps } else { key(old) - steps };
        (position, old, unkey(place))
    };
    Changed::of(positions.into_iter().map(change))
}

/// One step of Adam over normally distributed weights of FP32 precision, from which about 1 % of the served bits change.
fn stepped(seed: u64) -> Changed {
    let mut random = SplitMix(seed);
    let change = |position| {
        let master = single(0.02 * random.normal());
        let update = single(1e-6 * (0.3 * random.normal()).clamp(-1.0, 1.0));
        (position, cast(master), cast(master - update))
    };
    Changed::of((0..N).map(change).filter(|(_, old, new)| old != new))
}

fn bits_per_change(bytes: &[u8], changed: &Changed) -> f64 {
    8.0 * bytes.len() as f64 / changed.positions.len() as f64
}

/// Encodes, checks that it comes back, and gives the bits per change.
fn congruence(changed: &Changed) -> f64 {
    let bytes = changed.congruence(N.into());
    let section = parse(N.into(), &bytes).expect("a whole section");
    assert_eq!((section.header().codec, section.header().value_mode), (CodecId::Rice, ValueMode::Congruence));
    let found = decode(&section, BaseWords::Exact, &|position| changed.base(position)).expect("the base");
    assert_eq!(found, (changed.positions.clone(), changed.new.clone()));
    bits_per_change(&bytes, changed)
}

#[test]
fn one_per_cent_takes_at_most_twelve_bits_per_change() {
    for (name, changed) in [("geometric", geometric(0.01, 1)), ("stepped", stepped(2))] {
        let density = changed.positions.len() as f64 / f64::from(N);
        let units = changed.classes().iter().filter(|class| class.steps() == 1).count();
        let share = units as f64 / changed.positions.len() as f64;
        let bits = congruence(&changed);
        println!(
            "{name}: {:.2} % changed, {:.1} % by one, {bits:.2} bits per change",
            100.0 * density,
            100.0 * share
        );
        assert!((0.005..0.02).contains(&density), "{name}: density {density}");
        assert!((0.8..0.999).contains(&share), "{name}: {share} by one");
        assert!(bits <= 12.0, "{name}: {bits} bits per change");
    }
}

#[test]
fn sparser_changes_cost_what_their_gaps_do() {
    // At the lowest density two headers of 16 bytes and two of the section are spread over few changes.
    for (density, most) in [(0.05, 8.7), (0.01, 10.8), (0.003, 13.1), (0.001, 14.6), (0.0002, 19.0)] {
        let bits = congruence(&geometric(density, 3));
        println!("{density}: {bits:.2} bits per change");
        assert!(bits <= most, "{density}: {bits} bits per change");
    }
}

#[test]
fn absolute_values_and_signs_cost_what_they_hold() {
    let changed = geometric(0.01, 4);
    for (knowledge, mode, most) in [
        (StepKnowledge::Nothing, ValueMode::Absolute, 24.6),
        (StepKnowledge::Old(&changed.old), ValueMode::Sign, 11.1),
    ] {
        let bytes = changed.encode(N.into(), knowledge);
        let section = parse(N.into(), &bytes).unwrap();
        assert_eq!((section.header().codec, section.header().value_mode), (CodecId::Rice, mode));
        let bits = bits_per_change(&bytes, &changed);
        println!("{mode}: {bits:.2} bits per change");
        assert!(bits <= most, "{mode}: {bits} bits per change");
    }
}
