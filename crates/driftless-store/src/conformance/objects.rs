//! Promises about single objects and folders.

use crate::{StoreOptions, Stream};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode};
use std::collections::BTreeSet;
use std::sync::Arc;

/// More than one page of a service that lists a thousand at a time.
const LISTED: usize = 1_100;
/// Large enough to be sent in many pieces.
const LARGE_BYTES: usize = 1 << 20;

/// Reading, describing and listing what was never put says just that.
///
/// # Panics
/// If the store says anything else.
pub async fn missing_is_missing(store: Arc<dyn ObjectStore>, prefix: Path) {
    let key = prefix.clone().join("nothing");
    let read = store.get(&key).await.map(|_| ());
    assert!(matches!(read, Err(Error::NotFound { .. })), "reading a missing key: {read:?}");
    let described = store.head(&key).await.map(|_| ());
    assert!(matches!(described, Err(Error::NotFound { .. })), "describing a missing key: {described:?}");
    let listed: Vec<_> = store.list(Some(&prefix)).try_collect().await.expect("an empty folder is listed");
    assert!(listed.is_empty(), "an empty folder lists {listed:?}");
}

/// A listing shows every key below its folder once, with its length, and none besides; an offset leaves out the keys
/// up to it.
///
/// # Panics
/// If a listing shows anything else.
pub async fn listings_are_complete_and_honor_offsets(store: Arc<dyn ObjectStore>, prefix: Path) {
    let folder = prefix.clone().join("folder");
    let key = |index: usize| folder.clone().join(format!("{index:05}"));
    let puts = (0..LISTED).map(|index| {
        let (store, key) = (Arc::clone(&store), key(index));
        async move { store.put(&key, vec![1; index % 7].into()).await }
    });
    let mut puts = futures::stream::iter(puts.map(Ok)).try_buffer_unordered(16);
    while puts.try_next().await.expect("a put succeeds").is_some() {}
    // A name that begins like the folder's is not in it.
    store.put(&prefix.clone().join("folder2"), Bytes::new().into()).await.expect("a put succeeds");

    let listed: Vec<_> = store.list(Some(&folder)).try_collect().await.expect("the folder is listed");
    let found: BTreeSet<_> = listed.iter().map(|object| (object.location.clone(), object.size)).collect();
    assert_eq!(listed.len(), found.len(), "a key is listed twice");
    let expected: BTreeSet<_> = (0..LISTED).map(|index| (key(index), (index % 7) as u64)).collect();
    assert_eq!(found, expected, "a listing is not what was put");

    let after = LISTED - 3;
    let rest = store.list_with_offset(Some(&folder), &key(after)).map_ok(|object| object.location);
    let rest: BTreeSet<_> = rest.try_collect().await.expect("the folder is listed from an offset");
    assert_eq!(rest, BTreeSet::from([key(LISTED - 2), key(LISTED - 1)]), "keys after an offset");
}

/// A range of an object has the bytes of that range.
///
/// # Panics
/// If it has others.
pub async fn ranges_are_what_was_asked(store: Arc<dyn ObjectStore>, prefix: Path) {
    let key = prefix.join("object");
    let bytes: Bytes = (0..LARGE_BYTES).map(|at| at.to_le_bytes()[at % 3]).collect();
    store.put(&key, bytes.clone().into()).await.expect("a put succeeds");
    let end = LARGE_BYTES as u64;
    for (start, stop) in [(0, 1), (1, 4), (65_535, 65_538), (end - 1, end), (0, end)] {
        let range = store.get_range(&key, start..stop).await.expect("a range is read");
        let [from, to] = [start, stop].map(|at| usize::try_from(at).expect("a place in memory"));
        assert_eq!(range, bytes.slice(from..to), "bytes {start}..{stop}");
    }
}

/// A deleted object is gone, from listings too, and its neighbors stay.
///
/// # Panics
/// If it is still there, or a neighbor is not.
pub async fn deletes_delete(store: Arc<dyn ObjectStore>, prefix: Path) {
    let [gone, stays] = ["a", "b"].map(|name| prefix.clone().join(name));
    for key in [&gone, &stays] {
        store.put(key, "x".into()).await.expect("a put succeeds");
    }
    store.delete(&gone).await.expect("a delete succeeds");
    let read = store.get(&gone).await.map(|_| ());
    assert!(matches!(read, Err(Error::NotFound { .. })), "reading a deleted key: {read:?}");
    let listed: Vec<_> = store.list(Some(&prefix)).try_collect().await.expect("the folder is listed");
    let listed: Vec<_> = listed.into_iter().map(|object| object.location).collect();
    assert_eq!(listed, [stays], "what is listed after a delete");
    // Services do not tell whether there was something to delete; a missing file may be an error of the local disk.
    let again = store.delete(&gone).await;
    assert!(matches!(again, Ok(()) | Err(Error::NotFound { .. })), "deleting twice: {again:?}");
}

/// A reader of an object that is overwritten all the time sees one whole value or another, never parts of two. Errors
/// that pass are repeated, as a stream does: some servers fail a read that meets an overwrite.
///
/// # Panics
/// If a value is torn.
pub async fn overwrites_are_whole(store: Arc<dyn ObjectStore>, prefix: Path) {
    let stream = Stream::new(store, prefix.clone(), StoreOptions::default());
    let key = prefix.join("object");
    overwrite(&stream, &key, 0).await;
    let (writer, written) = (stream.clone(), key.clone());
    let writer = tokio::spawn(async move {
        for value in 1..40 {
            overwrite(&writer, &written, value).await;
        }
    });
    while !writer.is_finished() {
        let read = stream.shared.caller.repeated(|| stream.read_bounded(&key, LARGE_BYTES as u64)).await;
        let bytes = read.expect("the object is always there");
        let is_whole = bytes.len() == LARGE_BYTES && bytes.iter().all(|byte| *byte == bytes[0]);
        assert!(is_whole, "a read during overwrites saw a torn value of {} bytes", bytes.len());
    }
    writer.await.expect("the writer ends");
}

async fn overwrite(stream: &Stream, key: &Path, value: u8) {
    let bytes = Bytes::from(vec![value; LARGE_BYTES]);
    let put = stream.shared.caller.repeated(|| stream.put(key, bytes.clone(), PutMode::Overwrite)).await;
    put.expect("an overwrite succeeds");
}
