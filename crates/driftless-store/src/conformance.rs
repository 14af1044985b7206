//! What every store must do: a suite that runs on any of them.
//!
//! Call [`all`], or each function from a test of its own, with a store and a prefix that nobody else uses; on a
//! multi-threaded runtime, so that racing requests race.
//! - **LG-1**: [`lg1_racing_creators_have_one_winner`].
//! - **LG-2**: [`lg2_a_place_keeps_its_first_value`].
//! - **LG-3**: [`lg3_the_length_of_a_blob_is_seen`].
//!
//! Each panics with a sentence about what the store did wrong. [`s3`] tells tests where a real S3 server is.

mod objects;
mod s3;
mod streams;

pub use objects::{
    deletes_delete, listings_are_complete_and_honor_offsets, missing_is_missing, overwrites_are_whole,
    ranges_are_what_was_asked,
};
pub use s3::s3;
pub use streams::{
    leases_are_overwritten, lg1_racing_creators_have_one_winner, lg2_a_place_keeps_its_first_value,
    lg3_the_length_of_a_blob_is_seen, the_probe_passes, the_tail_is_found,
};

use object_store::ObjectStore;
use object_store::path::Path;
use std::sync::Arc;

/// Runs the whole suite below a prefix, and leaves what it wrote.
///
/// # Panics
/// If the store breaks one of the promises.
pub async fn all(store: Arc<dyn ObjectStore>, prefix: Path) {
    let place = |name: &str| (Arc::clone(&store), prefix.clone().join(name));
    let (s, p) = place("probe");
    the_probe_passes(s, p).await;
    let (s, p) = place("race");
    lg1_racing_creators_have_one_winner(s, p).await;
    let (s, p) = place("first");
    lg2_a_place_keeps_its_first_value(s, p).await;
    let (s, p) = place("blobs");
    lg3_the_length_of_a_blob_is_seen(s, p).await;
    let (s, p) = place("tail");
    the_tail_is_found(s, p).await;
    let (s, p) = place("leases");
    leases_are_overwritten(s, p).await;
    let (s, p) = place("missing");
    missing_is_missing(s, p).await;
    let (s, p) = place("lists");
    listings_are_complete_and_honor_offsets(s, p).await;
    let (s, p) = place("ranges");
    ranges_are_what_was_asked(s, p).await;
    let (s, p) = place("deletes");
    deletes_delete(s, p).await;
    let (s, p) = place("overwrites");
    overwrites_are_whole(s, p).await;
}
