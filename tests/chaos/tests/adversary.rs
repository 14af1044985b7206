//! Faults at random moments while replicas come and go, trainers are exchanged, and steps do not wait.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::{
    Failpoints, Fault, LayoutClaim, NodeError, NodeOptions, ReplicaId, ReplicaOutcome, Site, Version,
};
use driftless_chaos::Fleet;
use driftless_testkit::TinyTrainer;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

const TRAINER: &str = "megatron:tp=2,dp=2";
const ROLLOUTS: [&str; 2] = ["hf", "vllm:tp=2"];
/// Nothing here takes that long unless it waits for somebody who is gone.
const SOON: Duration = Duration::from_secs(40);

/// A stream of numbers that its seed determines.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn options(failpoints: &Failpoints) -> NodeOptions {
    let mut options = NodeOptions { failpoints: failpoints.clone(), ..NodeOptions::default() };
    options.limits.window_bytes = 512;
    options.keep_alive = Duration::from_millis(1);
    options.restarts_max = 1000;
    options.version_deadline = SOON;
    options
}

/// The same trainer, as a process that starts again from its last checkpoint would have it.
fn trainer_of(fleet: &Fleet) -> TinyTrainer {
    let mut policy = TinyTrainer::new(fleet.node.plan(), 7);
    (0..fleet.policy.steps_taken()).for_each(|_| drop(policy.step()));
    policy
}

async fn catches_up(fleet: &mut Fleet, what: &str) {
    let started = Instant::now();
    loop {
        let outcome = fleet.step().await.unwrap();
        if outcome.is_committed_everywhere() {
            break;
        }
        assert!(started.elapsed() < SOON, "{what}: {:?}", outcome.replicas);
    }
    fleet.settled().await;
    fleet.ensure_identical().unwrap();
    assert!(fleet.rollouts.iter().all(|rollout| rollout.is_in_service()), "{what}");
}

async fn adventure(seed: u64) {
    let mut random = Random(seed);
    let failpoints = Failpoints::default();
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options(&failpoints)).await.unwrap();
    let mut version = 0;
    for turn in 0..5 {
        let site = Site::ALL[usize::try_from(random.below(17)).unwrap()];
        let fault = [Fault::Kill, Fault::Panic, Fault::Error][usize::try_from(random.below(3)).unwrap()];
        failpoints.arm(site, None, fault, u32::try_from(random.below(6)).unwrap());
        let act = random.below(5);
        let what = format!("seed {seed}, turn {turn}: {fault:?} at {site:?}, act {act}");
        match act {
            0 => {
                fleet.step_ahead().await.unwrap();
                version += 1;
            }
            1 | 2 => {
                fleet.leave().await.unwrap();
                fleet.join(LayoutClaim::Blank).await.unwrap();
            }
            3 => {
                fleet.leave().await.unwrap();
                fleet.join(LayoutClaim::Blank).await.unwrap();
                fleet.step_ahead().await.unwrap();
                version += 1;
                let policy = trainer_of(&fleet);
                fleet = fleet.restart_trainer(policy, version).await.unwrap();
            }
            _ => fleet.step_unpublished().await,
        }
        tokio::time::sleep(Duration::from_micros(random.below(3_000))).await;
        if random.below(3) == 0 {
            let before = fleet.rollouts[0].version();
            catches_up(&mut fleet, &what).await;
            version = fleet.rollouts[0].version().version.0;
            assert!(fleet.rollouts[0].version() > before, "{what}: versions only grow");
        }
    }
    catches_up(&mut fleet, &format!("seed {seed}, the end")).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm11_cm12_cm14_two_hundred_faults_while_members_come_and_go() {
    for seed in 0..40 {
        let ends = tokio::time::timeout(3 * SOON, adventure(seed)).await;
        assert!(ends.is_ok(), "seed {seed} does not end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm15_what_a_replica_said_while_it_left_opens_no_attempt_for_it() {
    for round in 0..15 {
        let failpoints = Failpoints::default();
        let mut options = options(&failpoints);
        options.coordinator.max_attempts = 1000;
        options.coordinator.longest_back_off = Duration::from_millis(1);
        let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await.unwrap();
        // It lags, and so an attempt is due whenever it says that it is there.
        fleet.rollouts[1].on_pause(|_| std::future::ready(Err("not now".into())));
        fleet.step_ahead().await.unwrap().detected().await;
        tokio::time::sleep(Duration::from_millis(round)).await;
        fleet.leave().await.unwrap();
        fleet.join(LayoutClaim::Blank).await.unwrap();
        let started = Instant::now();
        fleet.rollouts[1].wait_for(Version(1)).await;
        assert!(started.elapsed() < Duration::from_secs(8), "round {round}: {:?}", started.elapsed());
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm6_steps_of_a_trainer_that_left_are_none_of_the_next_ones() {
    let failpoints = Failpoints::default();
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options(&failpoints)).await.unwrap();
    fleet.rollouts[1].on_pause(|_| async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        Ok(())
    });
    // The second version waits for the end of the first, and its trainer does not.
    fleet.step_ahead().await.unwrap();
    fleet.step_ahead().await.unwrap();
    let policy = TinyTrainer::new(fleet.node.plan(), 8);
    let mut fleet = fleet.restart_trainer(policy, 0).await.unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(fleet.rollouts.iter().all(|rollout| rollout.version().version <= Version(1)));
    catches_up(&mut fleet, "another trainer").await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm1_a_replica_leaves_to_the_end_although_nobody_waits_for_it() {
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, NodeOptions::default()).await.unwrap();
    let paused = Arc::new(AtomicI64::new(0));
    let (pauses, resumes) = (Arc::clone(&paused), Arc::clone(&paused));
    fleet.rollouts[1].on_pause(move |_| {
        pauses.store(1, Ordering::SeqCst);
        std::future::pending()
    });
    fleet.rollouts[1].on_resume(move |_| {
        resumes.store(0, Ordering::SeqCst);
        std::future::ready(Ok(()))
    });
    let sync = fleet.step_ahead().await.unwrap();
    while paused.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rollout = fleet.rollouts.pop().unwrap();
    let _ = tokio::time::timeout(Duration::from_micros(1), fleet.node.detach_rollout(rollout)).await;
    assert!(sync.committed().await.is_committed_everywhere());
    let started = Instant::now();
    while paused.load(Ordering::SeqCst) == 1 {
        assert!(started.elapsed() < Duration::from_secs(5), "the engine stands still");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_of_the_node_before_a_replan_change_nothing_in_the_next() {
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, NodeOptions::default()).await.unwrap();
    fleet.step().await.unwrap();
    let stale = fleet.rollouts.remove(0);
    let (mut fleet, memory) = fleet.replan(TRAINER, &ROLLOUTS).await.unwrap();
    for ranks in memory {
        fleet.join_again(ranks).await.unwrap();
    }
    let refused = fleet.node.detach_rollout(stale).await;
    assert!(matches!(refused, Err(NodeError::OtherNode { .. })), "{refused:?}");
    // A second one, while an attempt is open: all or nothing again.
    let sync = fleet.step_ahead().await.unwrap();
    sync.detected().await;
    let (mut fleet, memory) = fleet.replan(TRAINER, &ROLLOUTS).await.unwrap();
    assert!(sync.committed().await.replicas.values().all(|outcome| match outcome {
        ReplicaOutcome::Committed => true,
        ReplicaOutcome::Lagging { at, .. } => *at == Version(1),
    }));
    for _ in memory {
        fleet.join(LayoutClaim::Blank).await.unwrap();
    }
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere() && outcome.replicas.contains_key(&ReplicaId(1)), "{outcome:?}");
    fleet.stop().await;
}
