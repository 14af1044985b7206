//! Who is in the fleet changes: replicas leave and join again, trainers are set back, plans change.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::{
    Cause, Failpoints, Fault, LayoutClaim, Member, NodeError, NodeOptions, ReceiverId, ReplicaId,
    ReplicaOutcome, RootCause, Site, Version,
};
use driftless_chaos::Fleet;
use driftless_testkit::TinyTrainer;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

const TRAINER: &str = "megatron:tp=2,pp=2,dp=2";

async fn committed(fleet: &mut Fleet) -> driftless::SyncReport {
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    fleet.settled().await;
    fleet.ensure_identical().unwrap();
    outcome.report
}

#[tokio::test(flavor = "multi_thread")]
async fn cm14_a_replica_leaves_and_joins_again_by_proof_or_blank() {
    let mut fleet = Fleet::start(TRAINER, &["hf", "vllm:tp=4"], NodeOptions::default()).await.unwrap();
    committed(&mut fleet).await;
    assert_eq!(fleet.leave().await.unwrap(), Some(Version(1)));
    committed(&mut fleet).await;
    // With the newest version in its memory, which it proves: it follows by changes.
    fleet.join(LayoutClaim::Proven).await.unwrap();
    let report = committed(&mut fleet).await;
    assert!(report.sent < report.elements / 4 && report.repaired == 0, "{report:?}");
    assert_eq!(fleet.leave().await.unwrap(), Some(Version(3)));
    fleet.join(LayoutClaim::Blank).await.unwrap();
    fleet.rollouts[1].wait_for(Version(3)).await;
    committed(&mut fleet).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm1_a_replica_that_leaves_in_mid_sync_holds_one_version_and_stops_nobody() {
    for microseconds in (0..2_000).step_by(100) {
        let mut fleet = Fleet::start(TRAINER, &["hf", "vllm:tp=4"], NodeOptions::default()).await.unwrap();
        let paused = Arc::new(AtomicI64::new(0));
        let (pauses, resumes) = (Arc::clone(&paused), Arc::clone(&paused));
        fleet.rollouts[1].on_pause(move |_| {
            pauses.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        });
        fleet.rollouts[1].on_resume(move |_| {
            resumes.fetch_sub(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        });
        let sync = fleet.step_ahead().await.unwrap();
        sync.detected().await;
        tokio::time::sleep(Duration::from_micros(microseconds)).await;
        let left = fleet.leave().await.unwrap();
        assert!(left <= Some(Version(1)) && left.is_some());
        assert_eq!(paused.load(Ordering::SeqCst), 0, "after {microseconds} us: the engine stands still");
        let outcome = sync.committed().await;
        assert_eq!(outcome.replicas.len(), 1);
        assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
        fleet.ensure_identical().unwrap();
        fleet.stop().await;
    }
}

/// A trainer whose every step is the same as that of another with this seed.
fn trainer_after(fleet: &Fleet, seed: u64, steps: u64) -> TinyTrainer {
    let mut policy = TinyTrainer::new(fleet.node.plan(), seed);
    (0..steps).for_each(|_| drop(policy.step()));
    policy
}

#[tokio::test(flavor = "multi_thread")]
async fn cm5_a_restarted_trainer_that_proves_itself_goes_on_by_changes() {
    let mut fleet = Fleet::start(TRAINER, &["hf", "vllm:tp=4"], NodeOptions::default()).await.unwrap();
    committed(&mut fleet).await;
    committed(&mut fleet).await;
    let policy = trainer_after(&fleet, 7, 2);
    let mut fleet = fleet.restart_trainer(policy, 2).await.unwrap();
    for _ in 0..2 {
        let report = committed(&mut fleet).await;
        assert!(report.sent < report.elements / 4 && report.repaired == 0, "{report:?}");
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm5_cm6_a_restarted_trainer_that_differs_sends_all_at_a_higher_version() {
    // Set back, ahead under a number that nobody serves, and another history under the same number.
    for (seed, steps, version) in [(7, 1, 1), (7, 5, 5), (8, 3, 3)] {
        let mut fleet = Fleet::start(TRAINER, &["hf", "vllm:tp=4"], NodeOptions::default()).await.unwrap();
        for _ in 0..3 {
            committed(&mut fleet).await;
        }
        let policy = trainer_after(&fleet, seed, steps);
        let mut fleet = fleet.restart_trainer(policy, version).await.unwrap();
        // Versions only grow, whoever reports them.
        if version < 3 {
            let guard = fleet.trainer.step_begin().await;
            let params = fleet.policy.step();
            let refused = fleet.trainer.step_done(guard, Version(3), params);
            assert!(matches!(
                refused.map(|_| ()),
                Err(NodeError::VersionNotGrowing { found: Version(3), last: Version(3) })
            ));
        }
        let report = committed(&mut fleet).await;
        assert_eq!(report.sent, report.elements, "seed {seed}, step {steps}");
        let report = committed(&mut fleet).await;
        assert!(report.sent < report.elements / 4, "{report:?}");
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_of_a_trainer_that_is_detached_ends_as_lagging() {
    let mut fleet = Fleet::start(TRAINER, &["hf", "vllm:tp=4"], NodeOptions::default()).await.unwrap();
    committed(&mut fleet).await;
    fleet.rollouts[1].on_pause(|_| async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Err("not now".into())
    });
    let sync = fleet.step_ahead().await.unwrap();
    sync.detected().await;
    let started = Instant::now();
    let policy = trainer_after(&fleet, 7, 2);
    fleet.rollouts[0].wait_for(Version(2)).await;
    let mut fleet = fleet.restart_trainer(policy, 2).await.unwrap();
    let outcome = sync.committed().await;
    assert!(started.elapsed() < Duration::from_secs(20));
    let ReplicaOutcome::Lagging { at: Version(1), cause } = &outcome.replicas[&ReplicaId(1)] else {
        unreachable!("{:?}", outcome.replicas)
    };
    assert!(matches!(cause.root, RootCause::Detached | RootCause::Died | RootCause::Pause(_)), "{cause}");
    fleet.rollouts[1].on_pause(|_| std::future::ready(Ok(())));
    committed(&mut fleet).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ex1_a_fleet_is_planned_anew_between_versions() {
    let mut fleet = Fleet::start(TRAINER, &["hf", "vllm:tp=4"], NodeOptions::default()).await.unwrap();
    let digest = fleet.node.plan().digest();
    committed(&mut fleet).await;
    let epoch = fleet.rollouts[0].version().epoch;
    let (mut fleet, memory) = fleet.replan(TRAINER, &["hf", "vllm:tp=2", "sglang:tp=8"]).await.unwrap();
    assert_ne!(fleet.node.plan().digest(), digest);
    // The first replica proves that it holds the newest version, the second has another layout now.
    fleet.join_again(memory.into_iter().next().unwrap()).await.unwrap();
    fleet.join(LayoutClaim::Blank).await.unwrap();
    fleet.join(LayoutClaim::Proven).await.unwrap();
    committed(&mut fleet).await;
    assert!(fleet.rollouts[0].version().epoch > epoch, "epochs only grow");
    let report = committed(&mut fleet).await;
    assert!(report.sent < report.elements / 4 && report.repaired == 0, "{report:?}");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm15_an_engine_does_not_stand_still_while_a_receiver_of_its_replica_rests() {
    for site in [Site::ReceiverScatters, Site::ReceiverDecides, Site::LeadHearsApplied] {
        let failpoints = Failpoints::default();
        let mut options =
            NodeOptions { failpoints: failpoints.clone(), restarts_max: 0, ..NodeOptions::default() };
        options.restart_window = Duration::from_secs(4);
        let mut fleet = Fleet::start(TRAINER, &["hf", "vllm:tp=4"], options).await.unwrap();
        committed(&mut fleet).await;
        let rank = if site == Site::LeadHearsApplied { 0 } else { 1 };
        let victim = Member::Receiver(ReceiverId { replica: ReplicaId(1), rank });
        failpoints.arm(site, Some(victim), Fault::Kill, 0);
        let started = Instant::now();
        fleet.step_ahead().await.unwrap().committed().await;
        while fleet.node.unhealthy().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // It has died between pause and resume, and its budget is spent.
        fleet.rollouts[1].settled().await;
        assert!(started.elapsed() < Duration::from_secs(3), "{site:?}: {:?}", started.elapsed());
        assert!(fleet.rollouts[1].is_in_service());
        // All or nothing: what it serves is one version, by the bindings alone.
        let served = fleet.rollouts[1].version().version;
        assert!(served == Version(1) || served == Version(2), "{served}");
        // It has rested: its replica follows again.
        while !fleet.node.unhealthy().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fleet.rollouts[1].wait_for(Version(2)).await;
        fleet.settled().await;
        fleet.ensure_identical().unwrap();
        committed(&mut fleet).await;
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chain_of_causes_says_who_failed_first_at_which_step() {
    let mut options = NodeOptions::default();
    options.coordinator.max_attempts = 1;
    let mut fleet = Fleet::start(TRAINER, &["hf", "vllm:tp=4"], options).await.unwrap();
    fleet.rollouts[1].on_pause(|_| std::future::ready(Err("requests do not drain".into())));
    let outcome = fleet.step().await.unwrap();
    let ReplicaOutcome::Lagging { cause: Cause { member, root, step, effects }, .. } =
        &outcome.replicas[&ReplicaId(1)]
    else {
        unreachable!("{:?}", outcome.replicas)
    };
    assert_eq!(*member, Member::Receiver(ReceiverId { replica: ReplicaId(1), rank: 0 }));
    assert!(matches!(root, RootCause::Pause(_)));
    assert_eq!((*step, effects.len()), (Some(driftless::AttemptStep::Pausing), 0));
    fleet.stop().await;
}
