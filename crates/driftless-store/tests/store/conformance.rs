//! The suite of stores on memory, the local disk and a real S3 server, plain and behind decorators.

use driftless_store::faulty::{Faulty, Syncing, Unsynced};
use driftless_store::object_store::ObjectStore;
use driftless_store::object_store::memory::InMemory;
use driftless_store::object_store::path::Path;
use driftless_store::{ENTRY_BYTES_MAX, StoreError, StoreOptions, StreamUrl, conformance, create, open};
use driftless_types::Seq;
use futures::TryStreamExt;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    conformance::all(Arc::new(InMemory::new()), Path::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_disk_conforms() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let url: StreamUrl = format!("file://{}/a/stream", folder.path().display()).parse().expect("an address");
    let stream = create(&url, &StoreOptions::default()).expect("the folder is made");
    conformance::all(Arc::clone(stream.object_store()), Path::from("below")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_conforms() {
    let Some(url) = conformance::s3() else { return };
    let stream = open(&url, &StoreOptions::default()).expect("the environment has all options");
    conformance::all(Arc::clone(stream.object_store()), stream.prefix().clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decorators_without_faults_conform() {
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    conformance::all(Arc::new(Faulty::new(inner, |_| None)), Path::from("a")).await;
    conformance::all(Arc::new(Unsynced::new(Syncing::BeforeReport, 1)), Path::from("b")).await;
}

/// A bucket that is not there is not an empty stream.
#[tokio::test]
async fn a_missing_bucket_is_no_empty_stream() {
    if conformance::s3().is_none() {
        return;
    }
    let url: StreamUrl = "s3://driftless-of-another-name/a".parse().expect("an address");
    let stream = open(&url, &StoreOptions::default()).expect("the environment has all options");
    let listed = stream.list_entries(Seq(0)).await;
    assert!(matches!(listed, Err(StoreError::BucketMissing { .. })), "{listed:?}");
    let read = stream.read_entry(Seq(0), ENTRY_BYTES_MAX).await;
    assert!(matches!(read, Err(StoreError::BucketMissing { .. })), "{read:?}");
    let put = stream.put_blob(1, "x".into()).await;
    assert!(matches!(put, Err(StoreError::BucketMissing { .. })), "{put:?}");
    // What is shown of errors and streams tells no secrets.
    let secret = std::env::var("AWS_SECRET_ACCESS_KEY").expect("the environment has credentials");
    assert!(!format!("{listed:?} {read:?} {put:?} {stream:?}").contains(&secret));
}

/// Blobs at the bound are one request each, and their order is kept whatever comes first.
#[tokio::test(flavor = "multi_thread")]
async fn blobs_at_the_bound_move_in_order() {
    let Some(url) = conformance::s3() else { return };
    let stream = open(&url, &StoreOptions::default()).expect("the environment has all options");
    let bytes: Vec<_> = [64 << 20, 1, 3 << 20]
        .map(|length: usize| bytes::Bytes::from(vec![length.to_le_bytes()[0]; length]))
        .into();
    let blobs: Vec<_> = stream
        .put_blobs(1, futures::stream::iter(bytes.clone()), 3)
        .try_collect()
        .await
        .expect("blobs are put");
    let lengths: Vec<_> = blobs.iter().map(|blob| blob.stored_bytes).collect();
    assert_eq!(lengths, [64 << 20, 1, 3 << 20]);
    let found: Vec<_> = stream.get_blobs(1, blobs, 3).try_collect().await.expect("blobs are read");
    assert!(found == bytes, "blobs come back as they were put");
    let above = stream.put_blob(1, vec![0; (64 << 20) + 1].into()).await;
    assert!(matches!(above, Err(StoreError::TooLarge { .. })), "{above:?}");
}
