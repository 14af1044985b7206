//! A corpus that is made here, replayed against every target: good inputs, and each of them damaged in many ways.

mod corpus;
mod targets;

use corpus::{Damage, seeds};
use targets::{fuzz_entry, fuzz_log_section, fuzz_records, fuzz_section, fuzz_tables};

const TARGETS: [fn(&[u8]); 5] = [fuzz_section, fuzz_log_section, fuzz_entry, fuzz_tables, fuzz_records];
/// Damaged inputs per seed: a second or two in all.
const ROUNDS: u64 = 3_000;

#[test]
fn every_target_takes_every_seed() {
    for target in TARGETS {
        target(&[]);
        seeds().iter().for_each(|seed| target(seed));
    }
}

#[test]
fn every_target_takes_every_cut() {
    for seed in seeds() {
        for length in 0..seed.len().min(2_000) {
            TARGETS.iter().for_each(|target| target(&seed[..length]));
        }
    }
}

#[test]
fn every_target_takes_every_damage() {
    for (index, seed) in (0..).zip(seeds()) {
        let mut damage = Damage::new(index);
        for _ in 0..ROUNDS {
            let bytes = damage.of(&seed);
            TARGETS.iter().for_each(|target| target(&bytes));
        }
    }
}
