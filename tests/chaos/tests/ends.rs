//! Everything ends: nodes that stop in mid-sync, replicas that hang or rest, waits of those who are left.

use driftless::{
    Failpoints, Fault, Member, NodeError, NodeOptions, Phase, ReceiverId, ReplicaId, ReplicaOutcome, Site,
    Version,
};
use driftless_chaos::Fleet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

const TRAINER: &str = "megatron:tp=2,pp=2,dp=2";

#[tokio::test(flavor = "multi_thread")]
async fn cm1_a_node_that_stops_in_mid_sync_leaves_one_version_and_no_paused_engine() {
    for microseconds in (0..2_000).step_by(50) {
        let mut fleet = Fleet::start(TRAINER, &["vllm:tp=4"], NodeOptions::default()).await.unwrap();
        let old = fleet.words();
        let paused = Arc::new(AtomicI64::new(0));
        let (pauses, resumes) = (Arc::clone(&paused), Arc::clone(&paused));
        fleet.rollouts[0].on_pause(move |_| {
            pauses.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        });
        fleet.rollouts[0].on_resume(move |_| {
            resumes.fetch_sub(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        });
        let sync = fleet.step_ahead().await.unwrap();
        sync.detected().await;
        tokio::time::sleep(Duration::from_micros(microseconds)).await;
        let (rollout, left) = fleet.stop_and_look().await;
        let expected = if rollout.version().version == Version(1) { left.expected } else { old };
        assert!(left.words == expected, "after {microseconds} us: a mix of two versions");
        assert_eq!(paused.load(Ordering::SeqCst), 0, "after {microseconds} us: the engine stands still");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_answers_everyone_who_waits() {
    let mut fleet = Fleet::start(TRAINER, &["hf"], NodeOptions::default()).await.unwrap();
    fleet.rollouts[0].on_pause(|_| std::future::pending());
    let sync = fleet.step_ahead().await.unwrap();
    let guard = fleet.trainer.step_begin().await;
    let params = fleet.policy.step();
    let started = Instant::now();
    fleet.node.stop().await;
    assert!(!sync.committed().await.is_committed_everywhere());
    assert!(matches!(fleet.trainer.step_done(guard, Version(2), params), Err(NodeError::Stopped)));
    assert!(fleet.rollouts[0].wait_for(Version(9)).await.version < Version(9));
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[tokio::test(flavor = "multi_thread")]
async fn cm15_a_hung_hook_delays_the_others_by_one_deadline_once() {
    let mut options = NodeOptions::default();
    options.lead.pause_deadline = Duration::from_millis(1_500);
    let mut fleet = Fleet::start(TRAINER, &["vllm:tp=2", "hf"], options).await.unwrap();
    fleet.rollouts[1].on_pause(|_| std::future::pending());
    let started = Instant::now();
    for version in 1..=6 {
        fleet.step_ahead().await.unwrap();
        fleet.rollouts[0].wait_for(Version(version)).await;
    }
    // Six versions, each of which would have waited for the hook if the first had not taught better.
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    fleet.rollouts[1].on_pause(|_| std::future::ready(Ok(())));
    fleet.rollouts[1].wait_for(Version(6)).await;
    fleet.ensure_identical().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cm15_a_receiver_that_died_too_often_rests_and_stops_nobody_else() {
    let failpoints = Failpoints::default();
    let mut options =
        NodeOptions { failpoints: failpoints.clone(), restarts_max: 0, ..NodeOptions::default() };
    let rest = Duration::from_secs(6);
    options.restart_window = rest;
    let mut fleet = Fleet::start(TRAINER, &["vllm:tp=2", "vllm:tp=4"], options).await.unwrap();
    let victim = Member::Receiver(ReceiverId { replica: ReplicaId(1), rank: 1 });
    failpoints.arm(Site::ReceiverStages, Some(victim), Fault::Kill, 0);
    let started = Instant::now();
    for _ in 1..=3 {
        let outcome = fleet.step().await.unwrap();
        assert_eq!(outcome.replicas[&ReplicaId(0)], ReplicaOutcome::Committed);
        assert!(matches!(outcome.replicas[&ReplicaId(1)], ReplicaOutcome::Lagging { .. }));
    }
    // Nobody waited for its rest to be over.
    assert!(started.elapsed() < rest - Duration::from_millis(500), "{:?}", started.elapsed());
    assert_eq!(fleet.node.unhealthy(), ["rollout1/1"]);
    // It has rested: its replica catches up.
    fleet.rollouts[1].wait_for(Version(3)).await;
    assert!(fleet.node.unhealthy().is_empty());
    fleet.ensure_identical().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_counts_as_committed_when_the_engine_serves_it() {
    let mut fleet = Fleet::start(TRAINER, &["vllm:tp=2", "hf"], NodeOptions::default()).await.unwrap();
    for rollout in &fleet.rollouts {
        rollout.on_resume(|_| async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            Ok(())
        });
    }
    for _ in 0..10 {
        let report = fleet.step().await.unwrap().report;
        assert!(report.phases[&Phase::Pause] >= report.phases[&Phase::Apply] + Duration::from_millis(30));
    }
}

#[test]
fn steps_are_reported_from_any_thread() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut fleet = runtime.block_on(Fleet::start(TRAINER, &["hf"], NodeOptions::default())).unwrap();
    let guard = runtime.block_on(fleet.trainer.step_begin());
    let params = fleet.policy.step();
    // No runtime is entered here, as in the thread of a training loop.
    let sync = fleet.trainer.step_done(guard, Version(1), params).unwrap();
    assert!(runtime.block_on(sync.committed()).is_committed_everywhere());
    runtime.block_on(fleet.node.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_repaired_although_the_optimizer_never_waits() {
    let mut fleet = Fleet::start(TRAINER, &["vllm:tp=8", "hf"], NodeOptions::default()).await.unwrap();
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    for rank in 0..8 {
        fleet.live(0, rank, 0).write().iter_mut().for_each(|word| *word ^= 1);
    }
    for _ in 0..12 {
        fleet.step_ahead().await.unwrap();
    }
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    fleet.ensure_identical().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cm4_damage_of_many_ranks_costs_one_rollback() {
    let mut options = NodeOptions::default();
    options.coordinator.max_attempts = 2;
    let mut fleet = Fleet::start(TRAINER, &["vllm:tp=8"], options).await.unwrap();
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    for rank in 0..8 {
        fleet.live(0, rank, 0).write().iter_mut().for_each(|word| *word ^= 1);
    }
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    fleet.ensure_identical().unwrap();
}
