//! Thousands of seeded runs of a simulated cluster around the machines: see `driftless_testkit::sim`.

use driftless_testkit::sim::{FaultKind, Missing, Report, Sabotage, SimOptions, run};
use std::collections::BTreeMap;

#[expect(clippy::panic, reason = "the message is the seed and the tail of its trace, line by line")]
fn sweep(seeds: std::ops::Range<u64>, options: impl Fn(u64) -> SimOptions) -> Vec<Report> {
    let one = |seed| run(seed, &options(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    seeds.map(one).collect()
}

#[test]
fn cm12_a_calm_cluster_commits_every_version_in_one_attempt() {
    for report in sweep(0..300, |seed| SimOptions::calm(4, 3, 1 + u32::try_from(seed % 4).unwrap(), 3)) {
        assert_eq!((report.attempts, report.commits, report.faults), (9, 9, 0));
    }
}

#[test]
fn cm1_cm2_cm3_cm4_cm10_hold_and_cm12_recovers_under_every_fault() {
    let reports = sweep(0..3_000, SimOptions::stormy);
    let faults: u64 = reports.iter().map(|report| report.faults).sum();
    assert!(faults > 10_000, "{faults} faults");
}

#[test]
fn cm10_cm11_cm12_hold_where_links_lose_and_repeat_words() {
    let reports = sweep(70_000..73_000, SimOptions::lossy);
    let faults: u64 = reports.iter().map(|report| report.faults).sum();
    assert!(faults > 20_000, "{faults} faults");
    let links = sweep(80_000..81_000, |seed| SimOptions::lossy(seed).with_faults(FaultKind::LINKS));
    assert!(links.iter().any(|report| report.attempts > report.commits));
}

#[test]
fn cm12_recovers_with_up_to_16_senders_and_16_receivers() {
    let reports = sweep(90_000..90_400, SimOptions::large);
    assert!(reports.iter().any(|report| report.faults > 20));
}

#[test]
fn cm5_older_leads_and_coordinators_are_never_obeyed() {
    let kinds = [FaultKind::KillLead, FaultKind::KillCoordinator];
    let reports = sweep(10_000..10_800, |seed| SimOptions::stormy(seed).with_faults(kinds));
    assert!(reports.iter().filter(|report| report.faults >= 3).count() > 300);
}

#[test]
fn cm11_slow_members_run_into_deadlines_and_no_engine_stays_paused() {
    let kinds = [
        FaultKind::TransferStalls,
        FaultKind::HookStalls,
        FaultKind::ScatterStalls,
        FaultKind::PauseFails,
        FaultKind::KillLead,
    ];
    let reports = sweep(20_000..20_800, |seed| SimOptions::stormy(seed).with_faults(kinds));
    assert!(reports.iter().any(|report| report.attempts > report.commits));
}

#[test]
fn cm12_a_wrong_digest_is_repaired_by_a_later_attempt() {
    let kinds = [FaultKind::DigestMismatch, FaultKind::KillReceiver];
    let reports = sweep(30_000..30_500, |seed| SimOptions::stormy(seed).with_faults(kinds));
    assert!(reports.iter().any(|report| report.attempts > report.commits));
}

#[test]
fn cm3_a_version_ends_once_even_where_attempts_are_used_up() {
    let options = |seed| SimOptions { max_attempts: 2, ..SimOptions::stormy(seed) };
    sweep(40_000..40_800, options);
}

#[test]
fn cm15_a_replica_that_lacks_a_receiver_stops_no_other() {
    let options = |seed| SimOptions {
        replicas: 3,
        missing: Missing::OneReceiver,
        version_deadline_ms: 3_000,
        ..SimOptions::stormy(seed)
    };
    let reports = sweep(50_000..50_300, options);
    assert!(reports.iter().all(|report| report.commits >= 2));
}

#[test]
fn ex4_payload_announced_or_not_both_ends_post_the_same() {
    let kinds = [FaultKind::Oversized, FaultKind::TransferFails, FaultKind::KillSender];
    sweep(60_000..60_500, |seed| SimOptions::stormy(seed).with_faults(kinds));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let one = |seed| run(seed, &SimOptions::stormy(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    let digests: BTreeMap<u64, u64> = (0..100).map(|seed| (one(seed).trace_digest, seed)).collect();
    assert_eq!(digests.len(), 100, "different seeds give different runs");
    for (digest, seed) in digests {
        assert_eq!(one(seed).trace_digest, digest);
    }
}

#[test]
fn cm12_can_fail_a_word_that_is_never_said_again_is_found() {
    let options = |seed| SimOptions::lossy(seed).with_faults(FaultKind::LINKS);
    let breaches = caught_in(options, Sabotage::SayOnce);
    assert!(breaches.contains_key("CM-12") || breaches.contains_key("CM-11"));
}

/// Which promises a planted defect breaks, with how many of the seeds.
fn caught(sabotage: Sabotage) -> BTreeMap<&'static str, u32> {
    caught_in(SimOptions::stormy, sabotage)
}

fn caught_in(options: impl Fn(u64) -> SimOptions, sabotage: Sabotage) -> BTreeMap<&'static str, u32> {
    let mut breaches = BTreeMap::new();
    for seed in 0..200 {
        let options = options(seed).with_sabotage(sabotage);
        if let Err(failure) = run(seed, &options) {
            assert_eq!(run(seed, &options), Err(failure.clone()), "a seed replays its failure");
            assert!(failure.to_string().starts_with(&format!("seed {seed}: ")));
            assert!(!failure.tail.is_empty());
            *breaches.entry(failure.breach.invariant).or_default() += 1;
        }
    }
    eprintln!("{sabotage:?}: {breaches:?}");
    breaches
}

#[test]
fn cm1_can_fail_a_receiver_that_applies_on_arrival_is_found() {
    assert!(caught(Sabotage::ApplyOnArrival).contains_key("CM-1"));
}

#[test]
fn cm1_can_fail_a_lead_that_resumes_too_early_is_found() {
    assert!(caught(Sabotage::ResumeBeforeAcknowledged).contains_key("CM-1"));
}

#[test]
fn cm2_can_fail_a_sender_that_sends_old_bits_is_found() {
    assert!(caught(Sabotage::SendOldBits).contains_key("CM-2"));
}

#[test]
fn cm3_can_fail_a_rollback_without_undo_is_found() {
    assert!(caught(Sabotage::AcknowledgeWithoutUndo).contains_key("CM-3"));
}

#[test]
fn cm3_can_fail_an_applied_attempt_that_is_forgotten_is_found() {
    assert!(caught(Sabotage::ForgetApplied).contains_key("CM-3"));
}

#[test]
fn cm4_can_fail_a_lead_that_commits_when_some_applied_is_found() {
    assert!(caught(Sabotage::CommitWhenSomeApplied).contains_key("CM-4"));
}

#[test]
fn cm5_can_fail_a_receiver_that_obeys_an_old_lead_is_found() {
    let options = |seed| SimOptions {
        receivers: 4,
        fault_budget: 20,
        fault_one_in: 12,
        ..SimOptions::stormy(seed).with_faults([FaultKind::KillLead])
    };
    assert!(caught_in(options, Sabotage::ObeyOldLead).contains_key("CM-5"));
}

#[test]
fn cm14_replicas_that_take_everything_in_place_serve_nothing_half_written() {
    let mut kinds = FaultKind::ALL.to_vec();
    kinds.retain(|kind| !matches!(kind, FaultKind::PauseFails | FaultKind::HookStalls));
    // Patches are lost so often that most attempts are in place.
    let options = |seed| {
        let stormy = SimOptions::stormy(seed).with_faults(kinds.clone());
        SimOptions { fault_budget: 2 * stormy.fault_budget, fault_one_in: 6, ..stormy }
    };
    sweep(100_000..101_000, options);
    sweep(110_000..110_500, |seed| SimOptions { max_attempts: 2, ..options(seed) });
}

#[test]
fn cm14_can_fail_torn_weights_that_are_forgotten_are_found() {
    let kinds = [FaultKind::PatchLost, FaultKind::KillReceiver, FaultKind::KillLead];
    let options = |seed| SimOptions { fault_one_in: 5, ..SimOptions::stormy(seed).with_faults(kinds) };
    let breaches = caught_in(options, Sabotage::ForgetTorn);
    assert!(["CM-2", "CM-3", "CM-14"].iter().any(|id| breaches.contains_key(id)), "{breaches:?}");
}

#[test]
fn cm12_can_fail_a_coordinator_that_never_retries_is_found() {
    assert!(caught(Sabotage::NeverRetry).contains_key("CM-12"));
}

#[test]
fn cm12_can_fail_a_repair_that_is_forgotten_is_found() {
    let options = |seed| SimOptions::stormy(seed).with_faults([FaultKind::DigestMismatch]);
    assert!(caught_in(options, Sabotage::ForgetRepair).contains_key("CM-12"));
}

#[test]
fn cm11_can_fail_an_engine_that_is_left_paused_is_found() {
    assert!(caught(Sabotage::NeverResume).contains_key("CM-11"));
}

#[test]
fn ex4_can_fail_a_sender_that_posts_another_size_is_found() {
    assert!(caught(Sabotage::PostAnotherSize).contains_key("EX-4"));
}

#[test]
fn cm6_can_fail_a_sender_that_leaves_changes_out_is_found() {
    assert!(caught(Sabotage::AssumeNewerBase).contains_key("CM-6"));
}
