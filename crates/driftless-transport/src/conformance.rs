//! What every transport must do: a suite that runs on any of them.
//!
//! Call [`all`], or each function from a test of its own, with a [`Fabric`] that makes the transport under test.
//! - **EX-1**: [`ex1_a_foreign_fence_is_refused`].
//! - **EX-3**: [`ex3_sends_do_not_wait_for_receives`], [`ex3_a_full_graph_moves_whatever_the_order`].
//! - **EX-6**: [`ex6_abort_unblocks`], [`ex6_what_is_over_stays_over`], [`ex6_a_newer_epoch_ends_older_ones`].
//! - **EX-7**: [`ex7_order_is_kept_per_pair`].
//!
//! Each panics with a sentence about what the transport did wrong.

mod fences;
mod moves;
mod stage;

pub use fences::{
    ex1_a_foreign_fence_is_refused, ex6_a_newer_epoch_ends_older_ones, ex6_abort_unblocks,
    ex6_what_is_over_stays_over, exchanges_do_not_mix,
};
pub use moves::{
    a_self_send_arrives, a_wrong_size_is_reported, empty_and_uneven_messages_arrive,
    ex3_a_full_graph_moves_whatever_the_order, ex3_sends_do_not_wait_for_receives,
    ex7_order_is_kept_per_pair, late_joiners_find_their_bytes,
};
pub use stage::{Fabric, MOVES_WITHIN, UNBLOCKS_WITHIN};

/// Runs the whole suite.
///
/// # Panics
/// If the transport breaks one of the promises.
pub async fn all(fabric: Fabric<'_>) {
    ex3_sends_do_not_wait_for_receives(fabric).await;
    ex3_a_full_graph_moves_whatever_the_order(fabric).await;
    ex7_order_is_kept_per_pair(fabric).await;
    empty_and_uneven_messages_arrive(fabric).await;
    a_self_send_arrives(fabric).await;
    late_joiners_find_their_bytes(fabric).await;
    a_wrong_size_is_reported(fabric).await;
    ex6_abort_unblocks(fabric).await;
    ex6_what_is_over_stays_over(fabric).await;
    ex6_a_newer_epoch_ends_older_ones(fabric).await;
    ex1_a_foreign_fence_is_refused(fabric).await;
    exchanges_do_not_mix(fabric).await;
}
