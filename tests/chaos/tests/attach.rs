//! Whoever attaches proves its layout at the version it loaded, before a byte of it is written.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use driftless::{LayoutClaim, NodeError, NodeOptions, ReplicaId, RolloutMemory, Version, WordBuffer};
use driftless_chaos::Fleet;

const TRAINER: &str = "megatron:tp=2,pp=2,dp=2";

/// A fleet whose replica 0 serves; replica 1 attaches later, with these ranks of words per tensor.
async fn attach(
    spoil: impl Fn(&mut Vec<Vec<Vec<u16>>>, &dyn Fn(&str) -> usize),
    layout: LayoutClaim,
    version: u64,
) -> (Fleet, Result<(), NodeError>, Vec<Vec<WordBuffer>>) {
    let fleet = Fleet::start_only(TRAINER, &["hf", "vllm:tp=4"], 1, NodeOptions::default()).await.unwrap();
    let plan = &fleet.node.plan().replicas()[1];
    let mut words: Vec<Vec<Vec<u16>>> =
        plan.receivers.iter().map(|receiver| fleet.policy.expected_words(receiver)).collect();
    let named = |name: &str| plan.receivers[0].tensors.iter().position(|t| t.name.contains(name)).unwrap();
    spoil(&mut words, &named);
    let ranks: Vec<Vec<WordBuffer>> =
        words.into_iter().map(|rank| rank.into_iter().map(WordBuffer::new).collect()).collect();
    let memory = RolloutMemory::new(ranks.clone(), layout);
    let attached = fleet.node.attach_rollout(ReplicaId(1), memory, Version(version)).await.map(|_| ());
    (fleet, attached, ranks)
}

async fn is_refused(tensor: &str, spoil: impl Fn(&mut Vec<Vec<Vec<u16>>>, &dyn Fn(&str) -> usize)) {
    let (fleet, attached, ranks) = attach(spoil, LayoutClaim::Proven, 0).await;
    let before: Vec<Vec<u16>> = ranks.iter().flatten().map(|buffer| buffer.read().to_vec()).collect();
    let error = attached.unwrap_err().to_string();
    assert!(error.contains(tensor) && error.contains("claimed layout"), "{error}");
    let after: Vec<Vec<u16>> = ranks.iter().flatten().map(|buffer| buffer.read().to_vec()).collect();
    assert!(before == after, "a refused engine is not written");
    fleet.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_claim_is_proven_and_served() {
    let (mut fleet, attached, ranks) = attach(|_, _| {}, LayoutClaim::Proven, 0).await;
    attached.unwrap();
    assert!(fleet.step().await.unwrap().is_committed_everywhere());
    let expected: Vec<Vec<u16>> = fleet.node.plan().replicas()[1]
        .receivers
        .iter()
        .flat_map(|receiver| fleet.policy.expected_words(receiver))
        .collect();
    let found: Vec<Vec<u16>> = ranks.iter().flatten().map(|buffer| buffer.read().to_vec()).collect();
    assert!(expected == found);
}

#[tokio::test(flavor = "multi_thread")]
async fn swapped_gate_and_up_are_refused() {
    is_refused("gate_up_proj", |ranks, named| {
        let words = &mut ranks[0][named("gate_up_proj")];
        let half = words.len() / 2;
        words.rotate_left(half);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transposed_permuted_and_shifted_weights_are_refused() {
    is_refused("o_proj", |ranks, named| ranks[1][named("o_proj")].reverse()).await;
    is_refused("qkv_proj", |ranks, named| ranks[2][named("qkv_proj")].rotate_right(64)).await;
    is_refused("down_proj", |ranks, named| ranks[0][named("down_proj")].swap(3, 4_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exchanged_ranks_are_refused() {
    is_refused("rollout1/tp", |ranks, _| ranks.swap(1, 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_nobody_knows_cannot_be_proven() {
    let (_fleet, attached, _) = attach(|_, _| {}, LayoutClaim::Proven, 77).await;
    assert!(matches!(attached, Err(NodeError::NothingToProveAgainst { version: Version(77) })));
}

#[tokio::test(flavor = "multi_thread")]
async fn dummy_weights_are_trusted_on_request_and_brought_up() {
    let zero = |ranks: &mut Vec<Vec<Vec<u16>>>, _: &dyn Fn(&str) -> usize| {
        ranks.iter_mut().flatten().for_each(|words| words.fill(0));
    };
    let (mut fleet, attached, _) = attach(zero, LayoutClaim::Trusted, 0).await;
    attached.unwrap();
    let outcome = fleet.step().await.unwrap();
    assert!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    assert!(outcome.report.repaired > 0);
}
