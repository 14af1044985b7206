//! A bucket whose owner or other tenants lie: typed errors, bounded memory, and nothing taken from data.

use async_trait::async_trait;
use bytes::Bytes;
use driftless_store::faulty::Faulty;
use driftless_store::object_store::memory::InMemory;
use driftless_store::object_store::path::Path;
use driftless_store::object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use driftless_store::{BLOB_BYTES_MAX, ENTRY_BYTES_MAX, Lease, ReaderId, StoreError, StoreOptions, Stream};
use driftless_types::{BlobRef, ObjectDigest, Seq};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CHUNK: &[u8] = &[7; 1 << 10];

fn options() -> StoreOptions {
    StoreOptions { attempts: 2, listed_max: 1000, ..StoreOptions::default() }
}

fn stream(store: Arc<dyn ObjectStore>) -> Stream {
    Stream::new(store, Path::from("run"), options())
}

fn blob_key(epoch: u64, digest: ObjectDigest) -> Path {
    Path::from(format!("run/blob/{epoch:020}/{digest}"))
}

#[tokio::test(start_paused = true)]
async fn swapped_blobs_are_found() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let stream = stream(Arc::clone(&store));
    let one = stream.put_blob(1, "one".into()).await.expect("a blob is put");
    let two = stream.put_blob(1, "two".into()).await.expect("a blob is put");
    store.put(&blob_key(1, one.digest), "two".into()).await.expect("the bucket's owner may");
    let error = stream.get_blob(1, &one).await.expect_err("its bytes are another's");
    let StoreError::WrongDigest { found, expected, .. } = &error else { unreachable!("{error:?}") };
    assert_eq!((*found, *expected), (two.digest, one.digest));
    // Publishing it again heals it.
    stream.put_blob(1, "one".into()).await.expect("a blob is put");
    assert_eq!(stream.get_blob(1, &one).await.expect("it is healed"), "one");
    // A blob of another epoch is never taken instead.
    let error = stream.get_blob(2, &one).await.expect_err("it belongs to epoch 1");
    assert!(matches!(error, StoreError::NotVisible { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn blobs_of_another_length_are_found() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let stream = stream(Arc::clone(&store));
    let blob = stream.put_blob(1, vec![7; 100].into()).await.expect("a blob is put");
    for (stored, is_longer) in [(101, true), (1 << 20, true), (99, false), (0, false)] {
        store.put(&blob_key(1, blob.digest), vec![7; stored].into()).await.expect("the bucket's owner may");
        let read = stream.get_blob(1, &blob).await.expect_err("it has another length");
        let seen = stream.see_blobs(1, &[blob], 1).await.expect_err("it has another length");
        for error in [read, seen] {
            let is_named = match error {
                StoreError::TooLarge { found, limit: 100, .. } => is_longer && found == stored as u64,
                StoreError::Truncated { found, expected: 100, .. } => !is_longer && found == stored as u64,
                _ => false,
            };
            assert!(is_named, "{stored} bytes: {error:?}");
        }
    }
}

#[tokio::test]
async fn absurd_lengths_are_refused_before_anything_is_read() {
    let store = Arc::new(Faulty::new(Arc::new(InMemory::new()), |_| None));
    let stream = stream(store.clone());
    for stored_bytes in [BLOB_BYTES_MAX + 1, u64::MAX] {
        let blob = BlobRef { digest: ObjectDigest([1; 32]), stored_bytes, raw_bytes: 1 };
        let error = stream.get_blob(1, &blob).await.expect_err("no blob is that long");
        assert!(matches!(error, StoreError::TooLarge { limit: BLOB_BYTES_MAX, .. }), "{error:?}");
    }
    let long = Bytes::from(vec![b'x'; (1 << 20) + 1]);
    let error = stream.create_entry(Seq(0), long).await.expect_err("no entry is that long");
    assert!(matches!(error, StoreError::TooLarge { limit: ENTRY_BYTES_MAX, .. }), "{error:?}");
    assert_eq!(store.request_count(), 0);
}

/// Answers every read with chunks without end, whatever length it announced, and lists without end.
#[derive(Debug, Default)]
struct Endless {
    announced: u64,
    chunk: &'static [u8],
    chunks_taken: Arc<AtomicU64>,
    names_taken: Arc<AtomicU64>,
    /// The number of the last name, if there is one.
    last: Option<u64>,
    /// Before each name.
    pause: Duration,
}

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endless")
    }
}

impl Endless {
    fn describe(&self, location: Path) -> ObjectMeta {
        let last_modified = "2026-01-01T00:00:00Z".parse().expect("a time");
        ObjectMeta { location, last_modified, size: self.announced, e_tag: None, version: None }
    }

    fn names(&self) -> BoxStream<'static, Result<ObjectMeta>> {
        let taken = Arc::clone(&self.names_taken);
        let template = self.describe(Path::default());
        let pause = self.pause;
        let names = futures::stream::iter(0..=self.last.unwrap_or(u64::MAX)).then(move |number| {
            taken.fetch_add(1, Ordering::Relaxed);
            let location = Path::from(format!("run/log/{number:020}"));
            let name = Ok(ObjectMeta { location, ..template.clone() });
            async move {
                tokio::time::sleep(pause).await;
                name
            }
        });
        names.boxed()
    }
}

#[async_trait]
impl ObjectStore for Endless {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "multipart".to_owned(), implementer: self.to_string() })
    }

    async fn get_opts(&self, key: &Path, _: GetOptions) -> Result<GetResult> {
        let (taken, chunk) = (Arc::clone(&self.chunks_taken), self.chunk);
        let chunks = futures::stream::repeat(()).map(move |()| {
            taken.fetch_add(1, Ordering::Relaxed);
            Ok(Bytes::from_static(chunk))
        });
        Ok(GetResult {
            payload: GetResultPayload::Stream(chunks.boxed()),
            meta: self.describe(key.clone()),
            range: 0..self.announced,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        keys
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.names()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(Error::NotImplemented { operation: "list".to_owned(), implementer: self.to_string() })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotImplemented { operation: "copy".to_owned(), implementer: self.to_string() })
    }
}

/// The store says ten chunks and sends them without end: reading stops at the first byte too many.
#[tokio::test(start_paused = true)]
async fn an_over_long_object_is_read_no_further_than_its_length() {
    let stated = 10 * CHUNK.len() as u64;
    let store = Arc::new(Endless { announced: stated, chunk: CHUNK, ..Endless::default() });
    let blob = BlobRef { digest: ObjectDigest([1; 32]), stored_bytes: stated, raw_bytes: stated };
    let error = stream(store.clone()).get_blob(1, &blob).await.expect_err("it does not end");
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error:?}");
    assert_eq!(store.chunks_taken.load(Ordering::Relaxed), 11, "chunks that were taken");
    // One that announces more than stated is not read at all.
    let store = Arc::new(Endless { announced: u64::MAX, chunk: CHUNK, ..Endless::default() });
    let error = stream(store.clone()).get_blob(1, &blob).await.expect_err("it is too long");
    assert!(matches!(error, StoreError::TooLarge { found: u64::MAX, .. }), "{error:?}");
    let error = stream(store.clone()).read_entry(Seq(0), 1000).await.expect_err("it is too long");
    assert!(matches!(error, StoreError::TooLarge { limit: 1000, .. }), "{error:?}");
    assert_eq!(store.chunks_taken.load(Ordering::Relaxed), 0);
}

/// Chunks without a byte, without end.
#[tokio::test(start_paused = true)]
async fn an_object_that_never_moves_on_is_truncated() {
    let store = Arc::new(Endless { announced: 100, ..Endless::default() });
    let error = stream(store.clone()).read_entry(Seq(0), 1000).await.expect_err("it does not end");
    assert!(matches!(error, StoreError::Truncated { found: 0, expected: 100, .. }), "{error:?}");
    assert!(store.chunks_taken.load(Ordering::Relaxed) < 100);
}

#[tokio::test(start_paused = true)]
async fn an_endless_listing_ends_at_the_bound() {
    let store = Arc::new(Endless::default());
    let stream = stream(store.clone());
    let error = stream.list_entries(Seq(0)).await.expect_err("it does not end");
    assert!(matches!(error, StoreError::TooMany { limit: 1000, .. }), "{error:?}");
    assert_eq!(store.names_taken.load(Ordering::Relaxed), 1001);
    // Names that are no blobs and no leases count too.
    assert!(matches!(stream.list_blobs().await, Err(StoreError::TooMany { .. })));
    assert!(matches!(stream.read_leases().await, Err(StoreError::TooMany { .. })));
}

/// Lists one name that object_store takes for no key.
#[tokio::test(start_paused = true)]
async fn traversal_in_listed_names_is_an_error_or_none_of_ours() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let stream = stream(Arc::clone(&store));
    stream.create_entry(Seq(0), "entry".into()).await.expect("the place is free");
    for name in ["%2E%2E", "..%2F..%2Fetc", "00000000000000000001%2F..", "99999999999999999999", "~"] {
        let key = Path::from_url_path(format!("run/log/{name}"));
        let key = key.unwrap_or_else(|_| Path::from(format!("run/log/{name}")));
        store.put(&key, "stray".into()).await.expect("the bucket's owner may");
    }
    store.put(&Path::from("run/blob/../../x"), "stray".into()).await.expect("the bucket's owner may");
    store.put(&Path::from("run/lease/.."), "stray".into()).await.expect("the bucket's owner may");
    assert_eq!(stream.list_entries(Seq(0)).await.expect("a listing"), [Seq(0)]);
    assert_eq!(stream.tail(Seq(0)).await.expect("a listing"), Some(Seq(0)));
    assert_eq!(stream.list_blobs().await.expect("a listing"), []);
    assert_eq!(stream.read_leases().await.expect("a listing"), []);
}

#[tokio::test(start_paused = true)]
async fn a_hint_is_never_believed() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let stream = stream(Arc::clone(&store));
    for seq in (0..3).map(Seq) {
        stream.create_entry(seq, "entry".into()).await.expect("the place is free");
    }
    let long = "9".repeat(1 << 20);
    let hints: [&[u8]; 8] =
        [b"", b"x", b"-1", b"18446744073709551615", b"9007199254740992", b"7", b"\xff\xfe", long.as_bytes()];
    for hint in hints {
        store.put(&Path::from("run/head"), hint.to_vec().into()).await.expect("the bucket's owner may");
        assert_eq!(stream.tail(Seq(0)).await.expect("a listing"), Some(Seq(2)));
    }
    // Not even where it leads to a name that a stranger left at the last number there is.
    store.put(&Path::from(format!("run/log/{:020}", u64::MAX)), "x".into()).await.expect("the owner may");
    assert_eq!(stream.tail(Seq(0)).await.expect("a listing"), Some(Seq(2)));
}

/// What cannot be read may pin anything, so it stops retirement instead of being skipped.
#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_read_is_an_error() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let stream = stream(Arc::clone(&store));
    let lease = Lease { reader: ReaderId([1; 16]), counter: 1, pinned: Seq(4) };
    stream.put_lease(&lease).await.expect("a lease is written");
    let key = Path::from(format!("run/lease/{}", ReaderId([2; 16])));
    let long = " ".repeat(1000);
    for text in [
        "",
        "{}",
        r#"{"counter":1,"pinned":-1}"#,
        r#"{"counter":1,"pinned":2,"x":3}"#,
        "[1,2]",
        r#"{"pinned":2,"counter":1}"#,
    ] {
        store.put(&key, text.into()).await.expect("the bucket's owner may");
        let read = stream.read_leases().await;
        assert!(matches!(read, Err(StoreError::Malformed { .. })), "{text}: {read:?}");
    }
    store.put(&key, long.into()).await.expect("the bucket's owner may");
    let read = stream.read_leases().await;
    assert!(matches!(read, Err(StoreError::TooLarge { .. })), "{read:?}");
    store.delete(&key).await.expect("the bucket's owner may");
    assert_eq!(stream.read_leases().await.expect("leases are read"), [lease]);
}

/// Accepts every create, as many stores do that ignore the condition.
#[tokio::test(start_paused = true)]
async fn a_store_that_ignores_conditions_is_refused() {
    let probe = stream(Arc::new(Careless(InMemory::new()))).probe_create_if_absent().await;
    assert!(matches!(probe, Err(StoreError::NoCreateIfAbsent { .. })), "{probe:?}");
    stream(Arc::new(InMemory::new())).probe_create_if_absent().await.expect("memory honors them");
}

#[derive(Debug)]
struct Careless(InMemory);

impl fmt::Display for Careless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Careless")
    }
}

#[async_trait]
impl ObjectStore for Careless {
    async fn put_opts(&self, key: &Path, payload: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.0.put(key, payload).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(key, options).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

/// A listing that shows names slowly, but on and on, is read to its end; one that stops is given up.
#[tokio::test(start_paused = true)]
async fn a_listing_that_stands_still_is_given_up() {
    let slow = |pause| Arc::new(Endless { last: Some(899), pause, ..Endless::default() });
    let stream = Stream::new(slow(Duration::from_millis(30)), Path::from("run"), options());
    let listed = stream.list_entries(Seq(0)).await.expect("it goes on all the time");
    assert_eq!(listed.len(), 900);
    let stream = Stream::new(slow(Duration::from_secs(1)), Path::from("run"), options());
    let error = stream.list_entries(Seq(0)).await.expect_err("it takes 900 seconds");
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
}
