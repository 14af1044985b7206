//! Promises that a stream builds on.

use crate::{ENTRY_BYTES_MAX, Lease, ReaderId, StoreError, StoreOptions, Stream};
use bytes::Bytes;
use driftless_types::Seq;
use futures::TryStreamExt;
use futures::future::join_all;
use object_store::ObjectStore;
use object_store::path::Path;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Creators of one place.
const CREATORS: u8 = 32;
/// Places that they race for.
const RACES: u64 = 8;

fn stream(store: Arc<dyn ObjectStore>, prefix: Path) -> Stream {
    Stream::new(store, prefix, StoreOptions::default())
}

/// The probe of a new stream finds that the store creates only what is absent.
///
/// # Panics
/// If it does not.
pub async fn the_probe_passes(store: Arc<dyn ObjectStore>, prefix: Path) {
    stream(store, prefix).probe_create_if_absent().await.expect("the store honors create-if-absent");
}

/// LG-1: of 32 creators of one place, exactly one succeeds, and its bytes are there.
///
/// # Panics
/// If none succeeds, or two, or another one's bytes are found.
pub async fn lg1_racing_creators_have_one_winner(store: Arc<dyn ObjectStore>, prefix: Path) {
    let stream = stream(store, prefix);
    for seq in (0..RACES).map(Seq) {
        let creators = (0..CREATORS).map(|creator| {
            let stream = stream.clone();
            tokio::spawn(async move { stream.create_entry(seq, Bytes::from(vec![creator; 100])).await })
        });
        let ended = join_all(creators).await.into_iter().map(|ended| ended.expect("a creator ends"));
        let mut winners = Vec::new();
        for (creator, ended) in (0..CREATORS).zip(ended) {
            match ended {
                Ok(()) => winners.push(creator),
                Err(error) => {
                    assert!(matches!(error, StoreError::AlreadyExists { .. }), "a creator lost by {error:?}");
                }
            }
        }
        assert_eq!(winners.len(), 1, "creators {winners:?} all created {seq}");
        let found = stream.read_entry(seq, ENTRY_BYTES_MAX).await.expect("the place is read");
        assert_eq!(found, vec![winners[0]; 100], "the winner of {seq} finds other bytes there");
    }
}

/// LG-2: a place keeps its first value, the same bytes again are refused too, and a reader of a next place is told
/// that it is empty.
///
/// # Panics
/// If a value changes, or a creator is not refused.
pub async fn lg2_a_place_keeps_its_first_value(store: Arc<dyn ObjectStore>, prefix: Path) {
    let stream = stream(store, prefix);
    stream.create_entry(Seq(3), "first".into()).await.expect("the place is free");
    for bytes in ["second", "first", ""] {
        let refused = stream.create_entry(Seq(3), bytes.into()).await;
        assert!(matches!(refused, Err(StoreError::AlreadyExists { .. })), "created again: {refused:?}");
        let found = stream.read_entry(Seq(3), ENTRY_BYTES_MAX).await.expect("the place is read");
        assert_eq!(found, "first", "the first value changed");
    }
    let next = stream.read_entry(Seq(4), ENTRY_BYTES_MAX).await;
    assert!(matches!(next, Err(StoreError::Missing { .. })), "an empty place: {next:?}");
}

/// LG-3: a blob that was put is there with its length, under its own epoch alone, and comes back whole.
///
/// # Panics
/// If it is not, or does not.
pub async fn lg3_the_length_of_a_blob_is_seen(store: Arc<dyn ObjectStore>, prefix: Path) {
    let stream = stream(store, prefix);
    let bytes: Vec<Bytes> = [0, 1, 5 << 20].map(|length| Bytes::from(vec![7; length])).to_vec();
    let puts = stream.put_blobs(9, futures::stream::iter(bytes.clone()), 2);
    let blobs: Vec<_> = puts.try_collect().await.expect("blobs are put");
    stream.see_blobs(9, &blobs, 2).await.expect("lengths are seen");
    let found: Vec<_> = stream.get_blobs(9, blobs.clone(), 2).try_collect().await.expect("blobs are read");
    assert_eq!(found, bytes, "blobs come back as they were put");
    let elsewhere = stream.blob_bytes(8, &blobs[1].digest).await.expect("a head request succeeds");
    assert_eq!(elsewhere, None, "a blob is there under another epoch");
    let listed = stream.list_blobs().await.expect("blobs are listed");
    let listed: BTreeSet<_> = listed.into_iter().map(|blob| (blob.digest, blob.stored_bytes)).collect();
    assert_eq!(listed, blobs.iter().map(|blob| (blob.digest, blob.stored_bytes)).collect(), "listed blobs");
    stream.delete_blob(9, &blobs[1].digest).await.expect("a blob is deleted");
    stream.delete_blob(9, &blobs[1].digest).await.expect("a missing blob is deleted already");
    assert_eq!(stream.blob_bytes(9, &blobs[1].digest).await.expect("a head request succeeds"), None);
}

/// The tail is found with any hint: none, one that is right, stale, or of a place that is empty.
///
/// # Panics
/// If another is found.
pub async fn the_tail_is_found(store: Arc<dyn ObjectStore>, prefix: Path) {
    let stream = stream(store, prefix);
    assert_eq!(stream.tail(Seq::GENESIS).await.expect("an empty log is listed"), None);
    for seq in (0..12).map(Seq) {
        stream.create_entry(seq, "entry".into()).await.expect("the place is free");
    }
    // Behind a gap: nobody has created the place before it.
    stream.create_entry(Seq(20), "stray".into()).await.expect("the place is free");
    for hint in [None, Some(11), Some(4), Some(15), Some(12)] {
        if let Some(hint) = hint {
            stream.write_head(Seq(hint)).await.expect("the hint is written");
        }
        for from in [0, 7, 11] {
            let tail = stream.tail(Seq(from)).await.expect("the log is listed");
            assert_eq!(tail, Some(Seq(11)), "the tail from {from} with hint {hint:?}");
        }
        assert_eq!(stream.tail(Seq(12)).await.expect("the log is listed"), None, "from behind the tail");
    }
}

/// A lease is what its reader wrote last, and gone once it is given up.
///
/// # Panics
/// If it is anything else.
pub async fn leases_are_overwritten(store: Arc<dyn ObjectStore>, prefix: Path) {
    let stream = stream(store, prefix);
    let [one, other] = [1, 2].map(|byte| ReaderId([byte; 16]));
    let lease = |reader, counter| Lease { reader, counter, pinned: Seq(counter + 5) };
    assert_eq!(stream.read_leases().await.expect("no leases are listed"), []);
    for counter in 0..4 {
        stream.put_lease(&lease(one, counter)).await.expect("a lease is written");
    }
    stream.put_lease(&lease(other, 9)).await.expect("a lease is written");
    let leases = stream.read_leases().await.expect("leases are read");
    assert_eq!(leases, [lease(one, 3), lease(other, 9)], "leases as they were written last");
    stream.delete_lease(one).await.expect("a lease is given up");
    assert_eq!(stream.read_leases().await.expect("leases are read"), [lease(other, 9)]);
}
