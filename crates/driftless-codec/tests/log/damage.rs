//! Every flip of one bit and every cut is an error, even where nothing is expected.

use crate::kit::{Changed, parse_any, start};
use driftless_codec::{LogChanges, LogSectionPlan, StepKnowledge};

fn assert_every_damage_is_found(bytes: &[u8]) {
    let mut damaged = bytes.to_vec();
    for bit in 0..8 * bytes.len() {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(parse_any(&damaged).is_err(), "bit {bit} was flipped");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    for length in 0..bytes.len() {
        assert!(parse_any(&bytes[..length]).is_err(), "cut to {length} bytes");
    }
    assert!(parse_any(&damaged).is_ok());
}

/// Two blocks and all lists.
fn changed() -> Changed {
    let step = |i: u32| [1, 1, 1, 1, 20, 1, 1, 400][i as usize % 8];
    Changed::of((0..160).map(|i| (5 * i * i, 0x3c00, 0x3c00 + step(i))))
}

#[test]
fn every_damage_to_a_section_of_a_log_is_found() {
    let changed = changed();
    let n = 130_000;
    assert_every_damage_is_found(&changed.congruence(n));
    assert_every_damage_is_found(&changed.encode(n, StepKnowledge::Nothing));
    assert_every_damage_is_found(&changed.encode(n, StepKnowledge::Old(&changed.old)));
    let words = [1, 2, 3, 4, 5];
    let start = start(5);
    let mut out = Vec::new();
    LogSectionPlan::new(&start, LogChanges::All(&words)).write(&mut out);
    assert_every_damage_is_found(&out);
}
