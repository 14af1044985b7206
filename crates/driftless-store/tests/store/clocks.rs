//! Streams on a store whose clock is wrong.

use async_trait::async_trait;
use driftless_store::object_store::memory::InMemory;
use driftless_store::object_store::path::Path;
use driftless_store::object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use driftless_store::{Lease, ReaderId, StoreOptions, Stream, conformance};
use driftless_types::Seq;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Says of each object that it was made at another time, far in the past or the future, in no order.
#[derive(Debug, Default)]
struct Skewed {
    inner: InMemory,
    told: Arc<AtomicU32>,
}

impl fmt::Display for Skewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Skewed")
    }
}

fn skewed(told: &AtomicU32, meta: ObjectMeta) -> ObjectMeta {
    let year = 1970 + told.fetch_add(7, Ordering::Relaxed) % 100;
    let last_modified = format!("{year}-06-01T00:00:00Z").parse().expect("a time");
    ObjectMeta { last_modified, ..meta }
}

impl Skewed {
    fn all(&self, objects: BoxStream<'static, Result<ObjectMeta>>) -> BoxStream<'static, Result<ObjectMeta>> {
        let told = Arc::clone(&self.told);
        objects.map(move |object| object.map(|meta| skewed(&told, meta))).boxed()
    }
}

#[async_trait]
impl ObjectStore for Skewed {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        let answer = self.inner.get_opts(key, options).await?;
        Ok(GetResult { meta: skewed(&self.told, answer.meta.clone()), ..answer })
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.all(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        after: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.all(self.inner.list_with_offset(prefix, after))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lg10_the_times_of_a_store_are_never_read() {
    let store = Arc::new(Skewed::default());
    conformance::all(store.clone(), Path::default()).await;
    assert!(store.told.load(Ordering::Relaxed) > 7 * 100, "times were told");
}

/// What is stored of a lease tells nothing about when it was written.
#[tokio::test(start_paused = true)]
async fn lg10_a_lease_has_no_time() {
    let stream = Stream::new(Arc::new(InMemory::new()), Path::default(), StoreOptions::default());
    let lease = Lease { reader: ReaderId([0xab; 16]), counter: 3, pinned: Seq(17) };
    let key = Path::from(format!("lease/{}", "ab".repeat(16)));
    for _ in 0..2 {
        stream.put_lease(&lease).await.expect("a lease is written");
        let stored = stream.object_store().get_opts(&key, GetOptions::default()).await.expect("it is there");
        assert_eq!(stored.bytes().await.expect("its bytes"), r#"{"counter":3,"pinned":17}"#);
        tokio::time::advance(std::time::Duration::from_secs(1000)).await;
    }
}
