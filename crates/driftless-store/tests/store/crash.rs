//! What is left of a stream when a publisher dies at any moment and its machine crashes with it.

use bytes::Bytes;
use driftless_store::faulty::{Syncing, Unsynced};
use driftless_store::object_store::path::Path;
use driftless_store::{ENTRY_BYTES_MAX, StoreError, StoreOptions, Stream};
use driftless_types::{BlobRef, Seq};
use futures::future::poll_immediate;
use std::pin::pin;
use std::sync::Arc;

/// Versions that a publisher writes, if nothing stops it.
const VERSIONS: u64 = 3;
/// More turns than a publisher needs.
const TURNS_MAX: usize = 200;

fn weights(seq: Seq, part: u64) -> Bytes {
    Bytes::from(format!("part {part} of the weights at {seq}"))
}

/// Two blobs, their lengths, then the entry, at each place.
async fn publish(stream: Stream) -> Result<(), StoreError> {
    for seq in (0..VERSIONS).map(Seq) {
        let mut blobs = Vec::new();
        for part in 0..2 {
            blobs.push(stream.put_blob(1, weights(seq, part)).await?);
        }
        stream.see_blobs(1, &blobs, 2).await?;
        stream.create_entry(seq, entry(&blobs)).await?;
    }
    Ok(())
}

fn entry(blobs: &[BlobRef]) -> Bytes {
    let digests: Vec<_> = blobs.iter().map(|blob| blob.digest.to_string()).collect();
    Bytes::from(digests.join(" "))
}

fn blob_refs(seq: Seq) -> [BlobRef; 2] {
    [0, 1].map(|part| {
        let bytes = weights(seq, part);
        let stored_bytes = bytes.len() as u64;
        let digest = driftless_types::ObjectDigest(*blake3::hash(&bytes).as_bytes());
        BlobRef { digest, stored_bytes, raw_bytes: stored_bytes }
    })
}

/// Lets a publisher run for some turns, kills it and crashes the machine. Says how many turns it took, and what is
/// wrong with what is left.
async fn crash_after(turns: usize, syncing: Syncing, seed: u64) -> (usize, Option<String>) {
    let disk = Unsynced::new(syncing, seed);
    let options = StoreOptions { attempts: 1, ..StoreOptions::default() };
    let stream = Stream::new(Arc::new(disk.clone()), Path::from("run"), options);
    let taken = {
        let mut publisher = pin!(publish(stream.clone()));
        let mut taken = 0;
        while taken < turns {
            taken += 1;
            if let Some(ended) = poll_immediate(publisher.as_mut()).await {
                ended.expect("this disk has no faults while its machine runs");
                break;
            }
        }
        taken
    };
    disk.crash().await.expect("memory has no faults");
    (taken, damage(&stream).await)
}

async fn damage(stream: &Stream) -> Option<String> {
    for seq in (0..VERSIONS).map(Seq) {
        let found = match stream.read_entry(seq, ENTRY_BYTES_MAX).await {
            Ok(found) => found,
            Err(StoreError::Missing { .. }) => continue,
            Err(error) => return Some(format!("{seq}: {error}")),
        };
        let blobs = blob_refs(seq);
        if found != entry(&blobs) {
            return Some(format!("{seq} is torn"));
        }
        for blob in blobs {
            if let Err(error) = stream.get_blob(1, &blob).await {
                return Some(format!("{seq} names what is lost: {error}"));
            }
        }
    }
    None
}

#[tokio::test]
async fn lg3_no_entry_names_a_blob_that_a_crash_takes_back() {
    for seed in 0..30 {
        for turns in 0..TURNS_MAX {
            let (taken, damage) = crash_after(turns, Syncing::BeforeReport, seed).await;
            assert_eq!(damage, None, "after {turns} turns, seed {seed}");
            if taken < turns {
                assert!(
                    turns > 10,
                    "a publisher that is polled {turns} times is not killed at enough moments"
                );
                break;
            }
        }
    }
}

/// The check above can fail: without syncing it does.
#[tokio::test]
async fn without_syncing_a_crash_is_found_to_damage() {
    let mut damaged = 0;
    for seed in 0..30 {
        damaged += usize::from(crash_after(TURNS_MAX, Syncing::Never, seed).await.1.is_some());
    }
    assert!(damaged > 10, "{damaged} of 30 crashes without syncing were found");
}

/// What was reported stays, whatever happens to the rest.
#[tokio::test]
async fn lg2_lg3_what_was_reported_outlives_a_crash() {
    for seed in 0..10 {
        let disk = Unsynced::new(Syncing::BeforeReport, seed);
        let stream = Stream::new(Arc::new(disk.clone()), Path::from("run"), StoreOptions::default());
        publish(stream.clone()).await.expect("this disk has no faults");
        for _ in 0..3 {
            disk.crash().await.expect("memory has no faults");
            assert_eq!(stream.tail(Seq(0)).await.expect("a listing"), Some(Seq(VERSIONS - 1)));
            assert_eq!(damage(&stream).await, None);
        }
    }
}
