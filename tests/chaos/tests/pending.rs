//! What earlier steps left over is carried along: several steps per version, and replicas that lag.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::{Detector, NodeOptions, Outcome, ReplicaId, ReplicaOutcome, Version};
use driftless_chaos::Fleet;

const TRAINER: &str = "megatron:tp=2,pp=2,dp=2";
const ROLLOUTS: [&str; 2] = ["vllm:tp=4", "hf"];

fn lags(outcome: &Outcome, at: u64) {
    let ReplicaOutcome::Lagging { at: served, .. } = outcome.replicas[&ReplicaId(0)] else { unreachable!() };
    assert_eq!(served, Version(at));
    assert_eq!(outcome.replicas[&ReplicaId(1)], ReplicaOutcome::Committed);
}

/// A fleet whose first replica misses `missed` versions and then comes back.
async fn behind(missed: u64, mut options: NodeOptions) -> (Fleet, Outcome) {
    options.coordinator.max_attempts = 1;
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await.unwrap();
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    fleet.rollouts[0].on_pause(|_| std::future::ready(Err("not now".into())));
    for _ in 0..missed {
        lags(&fleet.step().await.unwrap(), 1);
    }
    fleet.rollouts[0].on_pause(|_| std::future::ready(Ok(())));
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    fleet.ensure_identical().unwrap();
    (fleet, outcome)
}

#[tokio::test(flavor = "multi_thread")]
async fn several_steps_per_version_are_one_change_set() {
    for detector in [Detector::Inversion, Detector::Snapshot, Detector::PreCopy, Detector::InStep] {
        let options = NodeOptions { detector, ..NodeOptions::default() };
        let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await.unwrap();
        for _ in 0..3 {
            for _ in 0..4 {
                fleet.step_unpublished().await;
            }
            let outcome = fleet.step().await.unwrap();
            assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
            assert!(outcome.report.dense.is_empty() && outcome.report.repaired == 0, "{:?}", outcome.report);
            assert!(outcome.report.sent < outcome.report.elements / 4, "{:?}", outcome.report);
            fleet.ensure_identical().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm6_a_lagging_replica_catches_up_by_what_the_patches_carried() {
    for missed in [1, 3] {
        let (mut fleet, outcome) = behind(missed, NodeOptions::default()).await;
        let report = outcome.report;
        assert!(report.sent < report.elements / 4, "nothing goes whole: {report:?}");
        assert!(report.changed <= report.sent);
        assert!(fleet.step().await.unwrap().is_committed_everywhere());
        fleet.ensure_identical().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lags_beyond_the_bound_is_sent_everything() {
    let options = NodeOptions { max_lag_versions: 1, ..NodeOptions::default() };
    let (_fleet, outcome) = behind(4, options).await;
    assert_eq!(outcome.report.sent, outcome.report.elements);
    let options = NodeOptions { max_pending_density: 0.0, ..NodeOptions::default() };
    let (_fleet, outcome) = behind(1, options).await;
    assert_eq!(outcome.report.sent, outcome.report.elements);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_optimizer_may_run_ahead_of_the_versions() {
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, NodeOptions::default()).await.unwrap();
    let mut last = None;
    for _ in 0..10 {
        last = Some(fleet.step_ahead().await.unwrap());
    }
    assert!(last.unwrap().committed().await.is_committed_everywhere());
    fleet.ensure_identical().unwrap();
}
