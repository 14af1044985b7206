//! Everything, in place: a replica that joins blank or lags too far leaves service, takes windows, and serves again only
//! when its digests matched, whoever dies meanwhile.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::{
    Dtype, Failpoints, Fault, Fqn, LayoutClaim, Member, Model, ModelConfig, NodeOptions, ReceiverId,
    RemapPlan, ReplicaId, ReplicaOutcome, SenderId, ServedDtypes, Site, Version,
};
use driftless_chaos::Fleet;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const TRAINER: &str = "megatron:tp=2,pp=2,dp=2";
const ROLLOUTS: [&str; 2] = ["hf", "vllm:tp=4"];

/// Windows so small that an attempt in place has hundreds of them.
fn options(failpoints: &Failpoints) -> NodeOptions {
    let mut options = NodeOptions { failpoints: failpoints.clone(), ..NodeOptions::default() };
    options.limits.window_bytes = 2048;
    options.version_deadline = Duration::from_secs(40);
    options
}

const fn receiver(rank: u32) -> Option<Member> {
    Some(Member::Receiver(ReceiverId { replica: ReplicaId(1), rank }))
}

/// A fleet of which replica 1 joins blank, and the number of its resumes.
async fn joined(failpoints: &Failpoints, options: NodeOptions) -> (Fleet, Arc<AtomicU64>) {
    let mut fleet = Fleet::start_only(TRAINER, &ROLLOUTS, 1, options).await.unwrap();
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    assert_eq!(failpoints.pending(), 0);
    let resumes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&resumes);
    let memory = fleet.memory_for(1, LayoutClaim::Blank).unwrap();
    let memory = memory.with_on_resume(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(()))
    });
    fleet.join_with(memory).await.unwrap();
    (fleet, resumes)
}

#[tokio::test(flavor = "multi_thread")]
async fn cm14_a_blank_joiner_takes_the_newest_version_and_then_follows_by_changes() {
    let failpoints = Failpoints::default();
    let (mut fleet, resumes) = joined(&failpoints, options(&failpoints)).await;
    // No step is needed: the trainer stands still at the newest version.
    fleet.rollouts[1].wait_for(Version(1)).await;
    fleet.settled().await;
    fleet.ensure_identical().unwrap();
    assert_eq!(resumes.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        let outcome = fleet.step().await.unwrap();
        assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
        assert!(outcome.report.sent < outcome.report.elements / 4 && outcome.report.repaired == 0);
        fleet.ensure_identical().unwrap();
    }
    fleet.stop().await;
}

/// A small policy of which a matrix and a norm are served in FP32.
fn mixed_plan() -> RemapPlan {
    let config = r#"{"model_type": "qwen3", "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false}"#;
    let trainer = "megatron:tp=2,pp=2,dp=2".parse().unwrap();
    let rollouts = ROLLOUTS.map(|text| text.parse().unwrap());
    let fp32 = ["model.norm.weight", "model.layers.1.mlp.down_proj.weight"];
    let policy = fp32.map(|name| (Fqn::from(name), Dtype::Fp32)).into();
    let served = ServedDtypes::new(policy, &trainer, &rollouts).unwrap();
    let model = Model::new(ModelConfig::from_json(config).unwrap(), &served).unwrap();
    RemapPlan::compile(&model, &trainer, &rollouts).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cm8_every_dtype_arrives_exactly_by_changes_and_in_place() {
    let failpoints = Failpoints::default();
    let mut fleet = Fleet::of_plan(mixed_plan(), 1, options(&failpoints)).await.unwrap();
    let tensors = fleet.node.plan().replicas().iter().flat_map(|r| &r.receivers).flat_map(|r| &r.tensors);
    let dtypes: BTreeSet<usize> = tensors.map(|tensor| tensor.dtype.words()).collect();
    assert_eq!(dtypes, BTreeSet::from([1, 2]));
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    fleet.join(LayoutClaim::Blank).await.unwrap();
    fleet.rollouts[1].wait_for(Version(1)).await;
    for _ in 0..3 {
        fleet.settled().await;
        fleet.ensure_identical().unwrap();
        let outcome = fleet.step().await.unwrap();
        assert!(outcome.is_committed_everywhere() && outcome.report.repaired == 0, "{outcome:?}");
    }
    fleet.ensure_identical().unwrap();
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ex5_no_more_than_a_window_of_each_pair_is_in_memory() {
    let failpoints = Failpoints::default();
    let mut options = options(&failpoints);
    options.limits.window_bytes = 512;
    // What waits in the transport for a receiver that has not asked is bounded by this, too.
    options.limits.staging_max_bytes = 16 << 10;
    // All of it is sent at the first version, as nothing is known of the trainer's history.
    let mut fleet = Fleet::start_only(TRAINER, &ROLLOUTS, 1, options).await.unwrap();
    fleet.step_unpublished().await;
    fleet.join(LayoutClaim::Blank).await.unwrap();
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    fleet.ensure_identical().unwrap();
    let pairs: usize = fleet.node.plan().senders().iter().map(|sender| sender.edges.len()).sum();
    // A row may be longer than so small a window; every section has a header and a checksum.
    let most = pairs as u64 * 2048;
    let report = outcome.report;
    assert!(report.window_bytes_peak > 0 && report.window_bytes_peak <= most, "{report:?}");
    assert!(report.wire_bytes > 4 * most, "{} bytes moved, at most {most} at once", report.wire_bytes);
    fleet.stop().await;
}

/// Whoever dies while windows move: the engine is not resumed before everything was proven.
async fn survives(site: Site, member: Option<Member>, fault: Fault, passes: u32) {
    let what = format!("{site:?} {member:?} {fault:?} after {passes}");
    let failpoints = Failpoints::default();
    let mut fleet = Fleet::start_only(TRAINER, &ROLLOUTS, 1, options(&failpoints)).await.unwrap();
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    failpoints.arm(site, member, fault, passes);
    let resumes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&resumes);
    let memory = fleet.memory_for(1, LayoutClaim::Blank).unwrap();
    let memory = memory.with_on_resume(move |version| {
        assert!(version >= Version(1), "resumed at {version}");
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(()))
    });
    fleet.join_with(memory).await.unwrap();
    fleet.rollouts[1].wait_for(Version(1)).await;
    fleet.settled().await;
    fleet.ensure_identical().unwrap();
    assert_eq!(failpoints.pending(), 0, "{what}: never reached");
    assert!(resumes.load(Ordering::SeqCst) >= 1, "{what}");
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{what}: {:?}", outcome.replicas);
    fleet.ensure_identical().unwrap();
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm14_receivers_and_leads_die_in_mid_window() {
    for rank in [0, 2] {
        for fault in [Fault::Kill, Fault::Panic, Fault::Error] {
            survives(Site::ReceiverTakes, receiver(rank), fault, 0).await;
        }
        survives(Site::ReceiverTakes, receiver(rank), Fault::Kill, 9).await;
        survives(Site::ReceiverBegins, receiver(rank), Fault::Kill, 0).await;
        survives(Site::ReceiverDecides, receiver(rank), Fault::Kill, 0).await;
    }
    for site in [Site::LeadHearsApplied, Site::LeadResumes] {
        survives(site, receiver(0), Fault::Kill, 0).await;
        survives(site, receiver(0), Fault::Panic, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm14_senders_die_in_mid_window() {
    for fault in [Fault::Kill, Fault::Panic, Fault::Error] {
        survives(Site::ShardLends, Some(Member::Sender(SenderId(1))), fault, 3).await;
    }
    survives(Site::ShardEncodes, Some(Member::Sender(SenderId(1))), Fault::Kill, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm14_coordinators_die_in_mid_window() {
    let failpoints = Failpoints::default();
    let mut options = options(&failpoints);
    options.limits.window_bytes = 64;
    options.keep_alive = Duration::from_millis(1);
    for _ in 0..5 {
        let (mut fleet, resumes) = joined(&failpoints, options.clone()).await;
        // The next keep-alive of a sender, while windows move.
        failpoints.arm(Site::CoordinatorHearsReady, None, Fault::Kill, 2);
        fleet.rollouts[1].wait_for(Version(1)).await;
        fleet.settled().await;
        fleet.ensure_identical().unwrap();
        assert!(resumes.load(Ordering::SeqCst) >= 1);
        assert!(fleet.step().await.unwrap().is_committed_everywhere());
        fleet.ensure_identical().unwrap();
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cm14_a_node_that_stops_in_mid_window_resumes_no_torn_engine() {
    for microseconds in (0..6_000).step_by(600) {
        let failpoints = Failpoints::default();
        let mut options = options(&failpoints);
        options.limits.window_bytes = 64;
        let (mut fleet, resumes) = joined(&failpoints, options).await;
        tokio::time::sleep(Duration::from_micros(microseconds)).await;
        let left = fleet.leave().await.unwrap();
        let resumed = resumes.load(Ordering::SeqCst);
        assert_eq!(left.is_some(), resumed > 0, "after {microseconds} us: {left:?}, {resumed} resumes");
        assert!(fleet.step().await.unwrap().is_committed_everywhere());
        fleet.ensure_identical().unwrap();
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_optimizer_waits_for_memory_while_windows_move() {
    let failpoints = Failpoints::default();
    let mut options = options(&failpoints);
    options.limits.window_bytes = 64;
    let (mut fleet, _) = joined(&failpoints, options).await;
    // It steps ahead at once, again and again: the values that are still to be sent are kept for the receivers.
    let mut last = None;
    for _ in 0..6 {
        last = Some(fleet.step_ahead().await.unwrap());
    }
    let outcome = last.unwrap().committed().await;
    fleet.rollouts[1].wait_for(Version(7)).await;
    fleet.settled().await;
    fleet.ensure_identical().unwrap();
    assert_eq!(outcome.replicas[&ReplicaId(0)], ReplicaOutcome::Committed);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ex5_a_patch_that_nobody_can_stage_is_taken_in_place() {
    let failpoints = Failpoints::default();
    let mut options = options(&failpoints);
    options.limits.staging_max_bytes = 4096;
    let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await.unwrap();
    let paused = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&paused);
    fleet.rollouts[1].on_pause(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(()))
    });
    for _ in 0..2 {
        let outcome = fleet.step().await.unwrap();
        assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
        fleet.settled().await;
        fleet.ensure_identical().unwrap();
    }
    assert_eq!(paused.load(Ordering::SeqCst), 2, "once for each version");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cm14_damage_in_place_is_never_served() {
    let failpoints = Failpoints::default();
    let mut options = options(&failpoints);
    options.coordinator.max_attempts = 2;
    let (mut fleet, resumes) = joined(&failpoints, options).await;
    fleet.rollouts[1].wait_for(Version(1)).await;
    fleet.settled().await;
    // A trainer whose weights were edited after detection cannot prove what it sends whole.
    assert_eq!(fleet.leave().await.unwrap(), Some(Version(1)));
    fleet.join(LayoutClaim::Blank).await.unwrap();
    let memory = fleet.policy.memory();
    let edited = memory[0].iter().find(|tensor| !tensor.master.is_empty()).unwrap();
    edited.master.write().iter_mut().for_each(|weight| *weight += 0.5);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = resumes.load(Ordering::SeqCst);
    edited.master.write().iter_mut().for_each(|weight| *weight -= 0.5);
    assert_eq!(before, 1);
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    assert!(fleet.rollouts[1].is_in_service());
    fleet.stop().await;
}
