//! Each fault of a store leads to a bounded number of repetitions or to its own error, and nothing is skipped.

use bytes::Bytes;
use driftless_store::faulty::{Fault, Faulty, Operation, Request, seeded};
use driftless_store::object_store::ObjectStore;
use driftless_store::object_store::memory::InMemory;
use driftless_store::object_store::path::Path;
use driftless_store::{ENTRY_BYTES_MAX, Lease, ReaderId, StoreError, StoreOptions, Stream};
use driftless_types::{BlobRef, Retry, Seq};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

const ATTEMPTS: u32 = 4;

/// Faults after which the same request may succeed.
const PASSING: [Fault; 7] = [
    Fault::ReplyLost,
    Fault::Conflict,
    Fault::Precondition,
    Fault::TooManyRequests,
    Fault::Unavailable,
    Fault::TimedOut,
    Fault::Hang,
];
/// Faults that a program does not cure.
const LASTING: [Fault; 3] = [Fault::DiskFull, Fault::ReadOnly, Fault::PermissionDenied];

struct Stand {
    store: Arc<Faulty>,
    stream: Stream,
    /// Without faults, on the same objects.
    truth: Stream,
}

fn options() -> StoreOptions {
    StoreOptions { attempts: ATTEMPTS, jitter_seed: 7, ..StoreOptions::default() }
}

fn stand(plan: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static) -> Stand {
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let store = Arc::new(Faulty::new(Arc::clone(&inner), plan));
    let stream = Stream::new(store.clone(), Path::from("run"), options());
    Stand { store, stream, truth: Stream::new(inner, Path::from("run"), options()) }
}

/// Strikes the first `times` requests of an operation.
fn first(
    operation: Operation,
    times: u64,
    fault: Fault,
) -> impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static {
    let struck = AtomicU64::new(0);
    move |request| {
        let is_struck = request.operation == operation && struck.fetch_add(1, Ordering::Relaxed) < times;
        is_struck.then_some(fault)
    }
}

/// Whether an error is the one that a fault leads to.
fn is_of(error: &StoreError, fault: Fault) -> bool {
    match fault {
        Fault::ReplyLost => matches!(error, StoreError::Unavailable { .. }),
        // object_store takes 409 for a key that exists, whatever the request.
        Fault::Conflict => matches!(error, StoreError::AlreadyExists { .. }),
        Fault::Precondition => {
            matches!(error, StoreError::Precondition { .. } | StoreError::AlreadyExists { .. })
        }
        Fault::TooManyRequests | Fault::Unavailable => matches!(error, StoreError::Throttled { .. }),
        Fault::TimedOut | Fault::Hang => matches!(error, StoreError::Timeout { .. }),
        Fault::Truncated => matches!(error, StoreError::Truncated { .. }),
        Fault::FlippedBit => matches!(error, StoreError::WrongDigest { .. }),
        Fault::NotVisible => matches!(error, StoreError::NotVisible { .. }),
        Fault::DiskFull => matches!(error, StoreError::DiskFull { .. }),
        Fault::ReadOnly => matches!(error, StoreError::ReadOnly { source: Some(_), .. }),
        Fault::PermissionDenied => matches!(error, StoreError::PermissionDenied { .. }),
        Fault::StaleListing => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_of_a_blob_is_repeated_while_faults_pass() {
    for fault in PASSING {
        let Stand { store, stream, truth } = stand(first(Operation::Put, u64::from(ATTEMPTS) - 1, fault));
        let blob = stream.put_blob(1, "weights".into()).await.expect("the last attempt succeeds");
        assert_eq!(store.struck().len(), 3, "{fault:?}");
        assert_eq!(truth.get_blob(1, &blob).await.expect("it is there"), "weights");
    }
}

#[tokio::test(start_paused = true)]
async fn repetitions_of_a_put_are_bounded_in_number_and_time() {
    for fault in PASSING {
        let Stand { store, stream, .. } = stand(first(Operation::Put, u64::MAX, fault));
        let began = Instant::now();
        let error = stream.put_blob(1, "weights".into()).await.expect_err("the fault stays");
        assert!(is_of(&error, fault), "{fault:?} led to {error:?}");
        assert_eq!(store.request_count(), u64::from(ATTEMPTS), "{fault:?}");
        let bound = (options().deadline + options().backoff_max) * ATTEMPTS;
        assert!(began.elapsed() <= bound, "{fault:?} took {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_is_not_repeated_where_that_is_vain() {
    for fault in LASTING {
        let Stand { store, stream, truth } = stand(first(Operation::Put, u64::MAX, fault));
        let error = stream.put_blob(1, "weights".into()).await.expect_err("the fault stays");
        assert!(is_of(&error, fault), "{fault:?} led to {error:?}");
        assert_eq!(store.request_count(), 1, "{fault:?}");
        assert_ne!(error.retry(), Retry::SameAttempt, "{fault:?}");
        assert_eq!(truth.list_blobs().await.expect("a listing"), []);
    }
}

/// Whose bytes are at a place is for the publisher to find out: the store asks once, and says truly what it heard.
#[tokio::test(start_paused = true)]
async fn lg12_an_entry_is_sent_once() {
    for fault in PASSING.into_iter().chain(LASTING) {
        let Stand { store, stream, truth } = stand(first(Operation::Put, u64::MAX, fault));
        let error = stream.create_entry(Seq(0), "entry".into()).await.expect_err("the fault stays");
        assert!(is_of(&error, fault), "{fault:?} led to {error:?}");
        assert_eq!(store.request_count(), 1, "{fault:?}");
        let there = truth.read_entry(Seq(0), ENTRY_BYTES_MAX).await;
        if fault == Fault::ReplyLost {
            assert_eq!(there.expect("it was carried out"), "entry");
        } else {
            assert!(matches!(there, Err(StoreError::Missing { .. })), "{fault:?}: {there:?}");
        }
    }
}

/// A blob, and a stream that meets the fault on reading it.
async fn stand_with_blob(operation: Operation, times: u64, fault: Fault) -> (Stand, BlobRef) {
    let stand = stand(first(operation, times, fault));
    let blob = stand.truth.put_blob(1, Bytes::from(vec![7; 1000])).await.expect("no fault strikes the truth");
    (stand, blob)
}

const OF_READS: [Fault; 8] = [
    Fault::ReplyLost,
    Fault::TooManyRequests,
    Fault::Unavailable,
    Fault::TimedOut,
    Fault::Hang,
    Fault::Truncated,
    Fault::FlippedBit,
    Fault::NotVisible,
];

#[tokio::test(start_paused = true)]
async fn a_read_of_a_blob_is_repeated_while_faults_pass() {
    for fault in OF_READS {
        let (Stand { stream, store, .. }, blob) = stand_with_blob(Operation::Get, 3, fault).await;
        assert_eq!(stream.get_blob(1, &blob).await.expect("the last attempt succeeds"), vec![7; 1000]);
        assert_eq!(store.request_count(), 4, "{fault:?}");

        let (Stand { stream, store, .. }, blob) = stand_with_blob(Operation::Get, u64::MAX, fault).await;
        let error = stream.get_blob(1, &blob).await.expect_err("the fault stays");
        assert!(is_of(&error, fault), "{fault:?} led to {error:?}");
        assert_eq!(store.request_count(), u64::from(ATTEMPTS), "{fault:?}");
        assert_eq!(error.retry(), Retry::SameAttempt, "{fault:?}");
    }
}

/// A store that refuses access says nothing about what is there, and is not taken as if it did.
#[tokio::test(start_paused = true)]
async fn refused_is_not_missing() {
    let denied = |request: &Request| (request.operation != Operation::Put).then_some(Fault::PermissionDenied);
    let Stand { stream, .. } = stand(denied);
    let blob = stream.put_blob(1, "weights".into()).await.expect_err("its length is not seen");
    let entry = stream.read_entry(Seq(0), ENTRY_BYTES_MAX).await.map(|_| ()).expect_err("an entry");
    let tail = stream.tail(Seq(0)).await.map(|_| ()).expect_err("a tail");
    let leases = stream.read_leases().await.map(|_| ()).expect_err("leases");
    let blobs = stream.list_blobs().await.map(|_| ()).expect_err("blobs");
    for error in [blob, entry, tail, leases, blobs] {
        assert!(matches!(error, StoreError::PermissionDenied { .. }), "{error:?}");
        assert_eq!(error.retry(), Retry::Never);
    }
}

#[tokio::test(start_paused = true)]
async fn lg3_a_length_that_is_not_seen_is_an_error() {
    for fault in [Fault::NotVisible, Fault::PermissionDenied, Fault::Unavailable, Fault::Hang] {
        let Stand { stream, .. } = stand(first(Operation::Head, u64::MAX, fault));
        let error = stream.put_blob(1, "weights".into()).await.expect_err("the length is never seen");
        assert!(is_of(&error, fault), "{fault:?} led to {error:?}");
        let (Stand { stream, .. }, blob) = stand_with_blob(Operation::Head, u64::MAX, fault).await;
        let error = stream.see_blobs(1, &[blob], 4).await.expect_err("the length is never seen");
        assert!(is_of(&error, fault), "{fault:?} led to {error:?}");
    }
    let (Stand { stream, .. }, blob) = stand_with_blob(Operation::Head, 2, Fault::NotVisible).await;
    stream.see_blobs(1, &[blob], 4).await.expect("it becomes visible");
    let longer = BlobRef { stored_bytes: 1001, ..blob };
    let error = stream.see_blobs(1, &[blob, longer], 1).await.expect_err("it is shorter than stated");
    assert!(matches!(error, StoreError::Truncated { found: 1000, expected: 1001, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stale_listing_hides_no_entry() {
    let stale = |request: &Request| (request.operation == Operation::List).then_some(Fault::StaleListing);
    let Stand { stream, .. } = stand(stale);
    for seq in (0..5).map(Seq) {
        stream.create_entry(seq, "entry".into()).await.expect("the place is free");
        assert_eq!(stream.tail(Seq(0)).await.expect("a listing"), Some(seq));
    }
    assert_eq!(stream.list_entries(Seq(0)).await.expect("a listing").last(), Some(&Seq(3)), "it was stale");
}

/// Some file systems remember for a while that a name was not there.
#[tokio::test(start_paused = true)]
async fn a_listed_entry_is_not_missing() {
    let plan = first(Operation::Get, 2, Fault::NotVisible);
    let Stand { stream, truth, .. } = stand(plan);
    truth.create_entry(Seq(0), "entry".into()).await.expect("the place is free");
    assert_eq!(stream.read_entry(Seq(0), ENTRY_BYTES_MAX).await.expect("it becomes visible"), "entry");

    let Stand { stream, truth, store } = stand(first(Operation::Get, u64::MAX, Fault::NotVisible));
    truth.create_entry(Seq(0), "entry".into()).await.expect("the place is free");
    let error = stream.read_entry(Seq(0), ENTRY_BYTES_MAX).await.expect_err("it stays invisible");
    assert!(matches!(error, StoreError::NotVisible { .. }), "{error:?}");
    assert_eq!(store.request_count(), 2 * u64::from(ATTEMPTS), "a read and a listing each");
}

#[tokio::test(start_paused = true)]
async fn leases_and_deletes_survive_passing_faults() {
    for fault in [Fault::ReplyLost, Fault::TooManyRequests, Fault::Unavailable, Fault::TimedOut, Fault::Hang]
    {
        // Every other request fails.
        let Stand { stream, truth, .. } = stand(move |request| (request.index % 2 == 0).then_some(fault));
        let lease = Lease { reader: ReaderId([3; 16]), counter: 5, pinned: Seq(9) };
        stream.put_lease(&lease).await.expect("the second attempt succeeds");
        assert_eq!(truth.read_leases().await.expect("a listing"), [lease]);
        let blob = stream.put_blob(1, "weights".into()).await.expect("the second attempt succeeds");
        stream.delete_blob(1, &blob.digest).await.expect("the second attempt succeeds");
        assert_eq!(truth.list_blobs().await.expect("a listing"), []);
        stream.delete_lease(lease.reader).await.expect("the second attempt succeeds");
        assert_eq!(stream.read_leases().await.expect("the second attempt succeeds"), []);
    }
}

/// Publishes as a publisher does: after any error it reads back, and sends the same bytes again if nothing is there.
async fn append(stream: &Stream, seq: Seq, body: &Bytes) {
    let mut tries = 0;
    while stream.create_entry(seq, body.clone()).await.is_err() {
        if stream.read_entry(seq, ENTRY_BYTES_MAX).await.is_ok_and(|found| found == body) {
            return;
        }
        tries += 1;
        assert!(tries < 200, "{seq} is never settled");
    }
}

/// Up to every other request goes wrong, in every way that passes: what is published is complete, and in order.
#[tokio::test(start_paused = true)]
async fn nothing_is_skipped_under_a_seeded_storm() {
    let faults: Vec<_> = PASSING.into_iter().chain(OF_READS).chain([Fault::StaleListing]).collect();
    for seed in 0..20 {
        let Stand { store, stream, truth } = stand(seeded(seed, 2, faults.clone()));
        let mut published = Vec::new();
        for seq in (0..10).map(Seq) {
            let bytes = Bytes::from(format!("weights {seq}"));
            let blob = loop {
                if let Ok(blob) = stream.put_blob(1, bytes.clone()).await {
                    break blob;
                }
            };
            append(&stream, seq, &Bytes::from(format!("entry {seq} names {}", blob.digest))).await;
            published.push((blob, bytes));
        }
        assert!(store.struck().len() > 10, "seed {seed} struck {} times", store.struck().len());
        assert_eq!(
            truth.tail(Seq(0)).await.expect("no fault strikes the truth"),
            Some(Seq(9)),
            "seed {seed}"
        );
        for (seq, (blob, bytes)) in (0..).map(Seq).zip(&published) {
            let entry = truth.read_entry(seq, ENTRY_BYTES_MAX).await.expect("the entry is there");
            assert_eq!(entry, format!("entry {seq} names {}", blob.digest), "seed {seed}");
            assert_eq!(truth.get_blob(1, blob).await.expect("its blob is there"), bytes, "seed {seed}");
        }
    }
}

#[test]
fn a_seeded_plan_is_the_same_again() {
    let request = |index| Request { operation: Operation::Get, key: Path::from("a"), index };
    let strikes = |seed| {
        let plan = seeded(seed, 3, vec![Fault::Truncated, Fault::Hang]);
        (0..300).map(|index| plan(&request(index))).collect::<Vec<_>>()
    };
    assert_eq!(strikes(1), strikes(1));
    assert_ne!(strikes(1), strikes(2));
    let count = strikes(1).iter().flatten().count();
    assert!((60..140).contains(&count), "{count} of 300");
}
