//! The matrix: every failpoint x {kill, panic, error} x {first, second passage}, each in a fleet of its own.
//!
//! The oracle: every version ends committed within its deadline, every bit is the trainer's at each of them, versions
//! only grow, the engines do not stay paused, and when the node has stopped no task and no binding is left.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::{Failpoints, Fault, Member, NodeOptions, ReceiverId, ReplicaId, SenderId, Site, Version};
use driftless_chaos::Fleet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const VERSIONS: u64 = 3;

/// Whom a fault may meet at a site.
fn members(site: Site) -> Vec<Option<Member>> {
    let receiver = |rank| Some(Member::Receiver(ReceiverId { replica: ReplicaId(0), rank }));
    match site {
        Site::ShardDetects | Site::ShardEncodes | Site::ShardSends => vec![Some(Member::Sender(SenderId(1)))],
        Site::LeadPauses | Site::LeadHearsApplied | Site::LeadResumes => vec![receiver(0)],
        Site::ReceiverBegins
        | Site::ReceiverStages
        | Site::ReceiverApplies
        | Site::ReceiverScatters
        | Site::ReceiverDecides => vec![receiver(0), receiver(1)],
        _ => vec![None],
    }
}

async fn survives(site: Site, member: Option<Member>, fault: Fault, passes: u32) {
    let what = format!("{site:?} {member:?} {fault:?} after {passes} passes");
    let failpoints = Failpoints::default();
    let deadline = Duration::from_secs(20);
    let options =
        NodeOptions { failpoints: failpoints.clone(), version_deadline: deadline, ..NodeOptions::default() };
    let mut fleet = Fleet::start("megatron:tp=2,dp=2", &["vllm:tp=2", "hf"], options).await.unwrap();
    let paused = Arc::new(AtomicI64::new(0));
    let (pauses, resumes) = (Arc::clone(&paused), Arc::clone(&paused));
    fleet.rollouts[0].on_pause(move |_| {
        pauses.store(1, Ordering::SeqCst);
        std::future::ready(Ok(()))
    });
    fleet.rollouts[0].on_resume(move |_| {
        resumes.store(0, Ordering::SeqCst);
        std::future::ready(Ok(()))
    });
    failpoints.arm(site, member, fault, passes);
    if site == Site::SupervisorHears {
        // It hears of deaths: here is one.
        failpoints.arm(
            Site::ReceiverApplies,
            Some(Member::Receiver(ReceiverId { replica: ReplicaId(1), rank: 0 })),
            Fault::Kill,
            0,
        );
    }
    let mut served = Version(0);
    for version in 1..=VERSIONS {
        let outcome = fleet.step().await.unwrap();
        assert!(outcome.is_committed_everywhere(), "{what}, version {version}: {:?}", outcome.replicas);
        fleet.ensure_identical().unwrap();
        // A death is no reason for an alarm: the digests must match at the first try.
        assert_eq!(outcome.report.repaired, 0, "{what}, version {version}");
        let now = fleet.rollouts[0].version().version;
        assert!(now > served, "{what}: version {now} after {served}");
        served = now;
    }
    assert_eq!(failpoints.pending(), 0, "{what}: never reached");
    fleet.settled().await;
    assert_eq!(paused.load(Ordering::SeqCst), 0, "{what}: the engine stayed paused");
    fleet.stop().await;
    // The hooks lie in the replica's binding, and that in what all actors share.
    let free = comes_true(|| Arc::strong_count(&paused) == 1).await;
    assert!(free, "{what}: a binding is left");
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

async fn all_survive(sites: &[Site]) {
    let tasks = alive_tasks();
    for &site in sites {
        for member in members(site) {
            for fault in [Fault::Kill, Fault::Panic, Fault::Error] {
                // A supervisor hears more than deaths, so its second passage may be no passage of this fleet.
                let passages = if site == Site::SupervisorHears { 0..=0 } else { 0..=1 };
                for passes in passages {
                    survives(site, member, fault, passes).await;
                }
            }
        }
    }
    assert!(comes_true(|| alive_tasks() <= tasks).await, "{} tasks are alive, {tasks} were", alive_tasks());
}

/// What was aborted is gone at the runtime's next turn: not at once.
async fn comes_true(condition: impl Fn() -> bool) -> bool {
    for _ in 0..200 {
        if condition() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    condition()
}

#[tokio::test(flavor = "multi_thread")]
async fn cm11_cm12_senders_die_at_every_point() {
    all_survive(&[Site::ShardDetects, Site::ShardEncodes, Site::ShardSends]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm3_cm12_receivers_die_at_every_point() {
    let sites = [
        Site::ReceiverBegins,
        Site::ReceiverStages,
        Site::ReceiverApplies,
        Site::ReceiverScatters,
        Site::ReceiverDecides,
    ];
    all_survive(&sites).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm1_cm12_leads_die_at_every_point() {
    all_survive(&[Site::LeadPauses, Site::LeadHearsApplied, Site::LeadResumes]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm5_cm12_coordinators_and_supervisors_die_at_every_point() {
    all_survive(&[
        Site::CoordinatorBegins,
        Site::CoordinatorHearsReady,
        Site::CoordinatorHearsEnd,
        Site::SupervisorHears,
    ])
    .await;
}
