//! The loopback keeps every promise of a transport.

use driftless_transport::{Loopback, Transport, conformance};
use driftless_types::Member;
use std::sync::Arc;

/// One loopback that all members share.
fn loopback(members: &[Member]) -> Vec<Arc<dyn Transport>> {
    let shared: Arc<dyn Transport> = Arc::new(Loopback::default());
    members.iter().map(|_| Arc::clone(&shared)).collect()
}

#[tokio::test]
async fn ex3_sends_do_not_wait_for_receives() {
    conformance::ex3_sends_do_not_wait_for_receives(&loopback).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ex3_a_full_graph_moves_whatever_the_order() {
    conformance::ex3_a_full_graph_moves_whatever_the_order(&loopback).await;
}

#[tokio::test]
async fn ex7_order_is_kept_per_pair() {
    conformance::ex7_order_is_kept_per_pair(&loopback).await;
}

#[tokio::test]
async fn empty_and_uneven_messages_arrive() {
    conformance::empty_and_uneven_messages_arrive(&loopback).await;
}

#[tokio::test]
async fn a_self_send_arrives() {
    conformance::a_self_send_arrives(&loopback).await;
}

#[tokio::test]
async fn late_joiners_find_their_bytes() {
    conformance::late_joiners_find_their_bytes(&loopback).await;
}

#[tokio::test]
async fn a_wrong_size_is_reported() {
    conformance::a_wrong_size_is_reported(&loopback).await;
}

#[tokio::test]
async fn ex6_abort_unblocks() {
    conformance::ex6_abort_unblocks(&loopback).await;
}

#[tokio::test]
async fn ex6_what_is_over_stays_over() {
    conformance::ex6_what_is_over_stays_over(&loopback).await;
}

#[tokio::test]
async fn ex6_a_newer_epoch_ends_older_ones() {
    conformance::ex6_a_newer_epoch_ends_older_ones(&loopback).await;
}

#[tokio::test]
async fn ex1_a_foreign_fence_is_refused() {
    conformance::ex1_a_foreign_fence_is_refused(&loopback).await;
}

#[tokio::test]
async fn exchanges_do_not_mix() {
    conformance::exchanges_do_not_mix(&loopback).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_suite_runs_as_one() {
    conformance::all(&loopback).await;
}
