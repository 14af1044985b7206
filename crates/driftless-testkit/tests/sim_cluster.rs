//! Thousands of seeded runs of a simulated cluster around the machines: see `driftless_testkit::sim`.

use driftless_testkit::sim::{FaultKind, Missing, Report, Sabotage, SimOptions, run};
use std::collections::BTreeMap;

fn sweep(seeds: std::ops::Range<u64>, options: impl Fn(u64) -> SimOptions) -> Vec<Report> {
    let one = |seed| run(seed, &options(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    seeds.map(one).collect()
}

#[test]
fn cm12_a_calm_cluster_commits_every_version_in_one_attempt() {
    for report in sweep(0..300, |seed| SimOptions::calm(4, 3, 1 + seed as u32 % 4, 3)) {
        assert_eq!((report.attempts, report.commits, report.faults), (9, 9, 0));
    }
}

#[test]
fn cm1_cm2_cm3_cm4_cm10_hold_and_cm12_recovers_under_every_fault() {
    let reports = sweep(0..3_000, SimOptions::stormy);
    let faults: u64 = reports.iter().map(|report| report.faults).sum();
    assert!(faults > 10_000, "{faults} faults");
}
