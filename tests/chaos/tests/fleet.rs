//! Whole fleets without faults, with damage, and with every kind of actor killed or panicked in mid-sync.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::{
    Detector, Failpoints, Fault, GroupStep, Member, NodeOptions, ReceiverId, ReplicaId, ReplicaOutcome,
    SenderId, Site, StepParams, Version,
};
use driftless_chaos::Fleet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const TRAINER: &str = "megatron:tp=2,pp=2,dp=2";
const ROLLOUTS: [&str; 2] = ["vllm:tp=4", "hf"];

/// Two versions, the first of which meets the fault: both commit everywhere, and every bit is the trainer's.
async fn survives(site: Site, member: Option<Member>, fault: Fault) {
    let failpoints = Failpoints::default();
    let options = NodeOptions {
        failpoints: failpoints.clone(),
        version_deadline: Duration::from_secs(30),
        ..NodeOptions::default()
    };
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await.unwrap();
    failpoints.arm(site, member, fault, 0);
    for version in 1..=2 {
        let outcome = fleet.step().await.unwrap();
        assert!(outcome.is_committed_everywhere(), "{site:?} {fault:?} v{version}: {:?}", outcome.replicas);
        fleet.ensure_identical().unwrap();
    }
    assert_eq!(failpoints.pending(), 0, "{site:?} {fault:?} was never reached");
    fleet.node.stop().await;
}

const fn receiver(rank: u32) -> Option<Member> {
    Some(Member::Receiver(ReceiverId { replica: ReplicaId(0), rank }))
}

#[tokio::test(flavor = "multi_thread")]
async fn cm2_replicas_of_different_layouts_stay_identical_for_ten_versions() {
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, NodeOptions::default()).await.unwrap();
    for version in 1..=10 {
        let outcome = fleet.step().await.unwrap();
        assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
        let report = &outcome.report;
        assert!(
            report.changed > 0 && report.changed <= report.sent && report.sent < report.elements / 5,
            "{report:?}"
        );
        assert!(report.wire_bytes < report.dense_bytes, "{report:?}");
        assert_eq!((report.repaired, report.dense.len()), (0, 0));
        assert_eq!(fleet.rollouts[1].wait_for(Version(version)).await.version, Version(version));
        fleet.ensure_identical().unwrap();
    }
    fleet.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn detectors_that_see_old_bits_send_exactly_what_changed() {
    for detector in [Detector::Snapshot, Detector::PreCopy, Detector::InStep] {
        let options = NodeOptions { detector, ..NodeOptions::default() };
        let mut fleet = Fleet::start("megatron:tp=2,dp=3", &["vllm:tp=8"], options).await.unwrap();
        for _ in 1..=3 {
            let report = fleet.step().await.unwrap().report;
            assert_eq!(report.changed, report.sent, "{detector:?}");
            fleet.ensure_identical().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm4_a_memory_fault_rolls_back_and_the_retry_repairs() {
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, NodeOptions::default()).await.unwrap();
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    // Every word of one tensor is damaged, so that the next step overwrites some: the digest sees that.
    fleet.live(0, 2, 0).write().iter_mut().for_each(|word| *word ^= 0x0040);
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    assert!(outcome.report.repaired > 0, "{:?}", outcome.report);
    fleet.ensure_identical().unwrap();
    assert_eq!(fleet.step().await.unwrap().report.repaired, 0);
    fleet.ensure_identical().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cm4_an_edit_outside_the_optimizer_is_caught_by_the_digest_and_repaired() {
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, NodeOptions::default()).await.unwrap();
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    // No detector that inverts the optimizer's step can see this.
    let memory = fleet.policy.memory();
    let edited = memory[0].iter().find(|tensor| !tensor.master.is_empty()).unwrap();
    edited.master.write().iter_mut().for_each(|weight| *weight += 0.5);
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    assert!(outcome.report.repaired > 0, "{:?}", outcome.report);
    fleet.ensure_identical().unwrap();
}

/// Every group of a step, the default's and each override's.
fn groups(params: &mut StepParams) -> impl Iterator<Item = &mut GroupStep> {
    std::iter::once(&mut params.default).chain(params.overrides.values_mut())
}

/// A step that is reported wrongly in a way that no gate can see: the digest does, at that very version.
async fn is_caught(steps: u64, lie: impl Fn(&mut StepParams)) {
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, NodeOptions::default()).await.unwrap();
    // Early on, the bound of an update gives some lies away; here only the digest is left.
    for _ in 0..60 {
        fleet.step_unpublished().await;
    }
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    let outcome = fleet.steps_misreported(steps, lie).await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    assert!(outcome.report.dense.is_empty() && outcome.report.repaired > 0, "{:?}", outcome.report);
    fleet.ensure_identical().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cm4_a_wrong_learning_rate_is_caught_by_the_digest_and_repaired() {
    is_caught(1, |params| groups(params).for_each(|group| group.hyper.lr *= 0.25)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm4_two_steps_reported_as_one_are_caught_by_the_digest_and_repaired() {
    is_caught(2, |params| groups(params).for_each(|group| group.step -= 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_enclose_every_switch() {
    let mut fleet = Fleet::start("hf", &["hf"], NodeOptions::default()).await.unwrap();
    let depth = Arc::new(AtomicU64::new(0));
    let (paused, resumed) = (Arc::clone(&depth), Arc::clone(&depth));
    fleet.rollouts[0].on_pause(move |_| {
        assert_eq!(paused.fetch_add(1, Ordering::SeqCst), 0);
        std::future::ready(Ok(()))
    });
    fleet.rollouts[0].on_resume(move |_| {
        assert_eq!(resumed.fetch_sub(1, Ordering::SeqCst), 1);
        std::future::ready(Ok(()))
    });
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    assert_eq!(depth.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ex0_cm15_a_replica_that_cannot_pause_is_left_behind_alone() {
    let mut options = NodeOptions::default();
    options.coordinator.max_attempts = 2;
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await.unwrap();
    fleet.rollouts[0].on_pause(|_| std::future::ready(Err("requests do not drain".into())));
    let outcome = fleet.step().await.unwrap();
    assert_eq!(outcome.replicas[&ReplicaId(1)], ReplicaOutcome::Committed);
    let ReplicaOutcome::Lagging { at, cause } = &outcome.replicas[&ReplicaId(0)] else { unreachable!() };
    assert_eq!(*at, Version(0));
    assert!(cause.root.to_string().contains("requests do not drain"), "{cause}");
    // Once it can pause again, the next version brings it up although its base is older than the patch.
    fleet.rollouts[0].on_pause(|_| std::future::ready(Ok(())));
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    fleet.ensure_identical().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cm7_a_step_that_touches_nothing_commits_on_records_alone() {
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, NodeOptions::default()).await.unwrap();
    let report = fleet.step().await.unwrap().report;
    let idle = fleet.report_again().await.unwrap();
    assert!(idle.is_committed_everywhere(), "{:?}", idle.replicas);
    assert_eq!((idle.report.sent, idle.report.changed, idle.report.repaired), (0, 0, 0));
    assert!(idle.report.wire_bytes > 0 && idle.report.wire_bytes < report.wire_bytes);
    fleet.ensure_identical().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cm9_a_receiver_killed_in_mid_scatter_is_undone_before_it_speaks_again() {
    for rank in 0..4 {
        survives(Site::ReceiverScatters, receiver(rank), Fault::Kill).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm13_a_hook_that_hangs_ends_at_its_deadline_because_its_mailbox_is_free() {
    let mut options = NodeOptions::default();
    options.coordinator.max_attempts = 1;
    options.lead.pause_deadline = Duration::from_millis(200);
    let mut fleet = Fleet::start("hf", &["hf", "vllm:tp=2"], options).await.unwrap();
    fleet.rollouts[0].on_pause(|_| std::future::pending());
    let outcome = fleet.step().await.unwrap();
    assert_eq!(outcome.replicas[&ReplicaId(1)], ReplicaOutcome::Committed);
    let ReplicaOutcome::Lagging { cause, .. } = &outcome.replicas[&ReplicaId(0)] else { unreachable!() };
    assert!(cause.root.to_string().contains("deadline"), "{cause}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_panics_costs_its_replica_the_version_and_nothing_else() {
    let mut options = NodeOptions::default();
    options.coordinator.max_attempts = 2;
    let mut fleet = Fleet::start("hf", &["hf"], options).await.unwrap();
    fleet.rollouts[0].on_pause(|_| async { unreachable!("a hook of a test") });
    assert!(!fleet.step().await.unwrap().is_committed_everywhere());
    fleet.rollouts[0].on_pause(|_| std::future::ready(Ok(())));
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    fleet.ensure_identical().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cm12_a_sender_dies_and_the_version_commits() {
    for (site, fault) in [
        (Site::ShardDetects, Fault::Panic),
        (Site::ShardDetects, Fault::Kill),
        (Site::ShardEncodes, Fault::Kill),
        (Site::ShardSends, Fault::Panic),
        (Site::ShardSends, Fault::Kill),
    ] {
        survives(site, Some(Member::Sender(SenderId(3))), fault).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm12_a_receiver_dies_and_the_version_commits() {
    for site in [
        Site::ReceiverBegins,
        Site::ReceiverStages,
        Site::ReceiverApplies,
        Site::ReceiverScatters,
        Site::ReceiverDecides,
    ] {
        for fault in [Fault::Panic, Fault::Kill] {
            survives(site, receiver(2), fault).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm1_a_lead_dies_and_its_successor_decides_once() {
    for site in [Site::LeadPauses, Site::LeadHearsApplied, Site::ReceiverDecides, Site::LeadResumes] {
        for fault in [Fault::Panic, Fault::Kill] {
            survives(site, receiver(0), fault).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm5_a_coordinator_dies_and_a_higher_epoch_goes_on() {
    for site in [Site::CoordinatorBegins, Site::CoordinatorHearsEnd] {
        for fault in [Fault::Panic, Fault::Kill, Fault::Error] {
            survives(site, None, fault).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm12_the_supervisor_dies_with_a_receiver_and_the_version_commits() {
    for fault in [Fault::Panic, Fault::Kill] {
        let failpoints = Failpoints::default();
        let options = NodeOptions { failpoints: failpoints.clone(), ..NodeOptions::default() };
        let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await.unwrap();
        // Starting children is heard as well: the fault waits for a death in mid-sync.
        failpoints.arm(Site::SupervisorHears, None, fault, 0);
        failpoints.arm(Site::ReceiverApplies, receiver(1), Fault::Kill, 0);
        for _ in 1..=2 {
            assert!(fleet.step().await.unwrap().is_committed_everywhere());
            fleet.ensure_identical().unwrap();
        }
        assert_eq!(failpoints.pending(), 0);
        fleet.node.stop().await;
    }
}
