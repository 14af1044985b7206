//! A stream: one prefix of an object store.

use crate::call::Caller;
use crate::error::StoreError;
use crate::key::Keys;
use crate::local::{self, LocalFolder};
use crate::options::StoreOptions;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetResultPayload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::fmt;
use std::sync::Arc;
use tokio::time::Instant;
use uuid::Uuid;

/// How many chunks without a byte are taken in a row: an object that never moves on is not waited for.
const EMPTY_CHUNKS_MAX: u32 = 16;
/// How many names a listing must show within each deadline: half of what services put on a page.
const PAGE_NAMES: usize = 500;

/// One prefix of an object store, with the log and the blobs of one stream below it.
///
/// Cheap to clone. Methods say which requests are repeated; every request has a deadline.
///
/// ```
/// use driftless_store::{Stream, StoreOptions, object_store};
/// use driftless_types::Seq;
/// use std::sync::Arc;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store = Arc::new(object_store::memory::InMemory::new());
/// let stream = Stream::new(store, "runs/7".into(), StoreOptions::default());
/// let blob = stream.put_blob(1, "weights".into()).await?;
/// stream.create_entry(Seq::GENESIS, "an entry that names the blob".into()).await?;
/// assert_eq!(stream.tail(Seq::GENESIS).await?, Some(Seq::GENESIS));
/// assert_eq!(stream.get_blob(1, &blob).await?, "weights");
/// # Ok::<(), driftless_store::StoreError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) keys: Keys,
    pub(crate) caller: Caller,
    pub(crate) local: Option<LocalFolder>,
    pub(crate) discovery: Discovery,
}

/// How it is found out what the log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discovery {
    /// By listing its folder.
    ByListing,
    /// By asking for single places: a plain web server lists nothing, and takes nothing either.
    ByProbing,
}

impl fmt::Debug for Stream {
    /// Without the store: what its client shows may include credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { keys, discovery, .. } = &*self.shared;
        f.debug_struct("Stream")
            .field("prefix", keys.prefix())
            .field("discovery", discovery)
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// A stream below a prefix of any store. Its client's own retries should be off (as [`open`](crate::open) sets
    /// them), and a local disk's fsync on.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, options: StoreOptions) -> Self {
        Self::build(store, prefix, options, None, Discovery::ByListing)
    }

    pub(crate) fn build(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        options: StoreOptions,
        local: Option<LocalFolder>,
        discovery: Discovery,
    ) -> Self {
        let (keys, caller) = (Keys::new(prefix), Caller::new(options));
        Self { shared: Arc::new(Shared { store, keys, caller, local, discovery }) }
    }

    /// The options that it was opened with.
    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.shared.caller.options
    }

    /// The store below, such as to put a decorator around it.
    #[must_use]
    pub fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.shared.store
    }

    /// The prefix in the store.
    #[must_use]
    pub fn prefix(&self) -> &Path {
        self.shared.keys.prefix()
    }

    /// Proves that the store creates only what is absent: creates a key of random name twice, expects the second
    /// to be refused and the first value to stay, and removes it.
    ///
    /// # Errors
    /// [`StoreError::NoCreateIfAbsent`] if the second value was accepted; whatever else a put or get meets.
    pub async fn probe_create_if_absent(&self) -> Result<(), StoreError> {
        let Shared { keys, store, caller, .. } = &*self.shared;
        let key = keys.probe(Uuid::new_v4().as_bytes());
        self.put(&key, Bytes::from_static(b"first"), PutMode::Create).await?;
        let second = self.put(&key, Bytes::from_static(b"second"), PutMode::Create).await;
        let kept = caller.repeated(|| self.read_bounded(&key, 16)).await;
        // Only a courtesy: a probe that stays costs a few bytes.
        let _ = caller.once(&key, 0, store.delete(&key)).await;
        match (second, kept?) {
            (Err(StoreError::AlreadyExists { .. }), kept) if kept == "first" => Ok(()),
            (Err(StoreError::AlreadyExists { .. }) | Ok(()), _) => {
                Err(StoreError::NoCreateIfAbsent { key: key.to_string() })
            }
            (Err(error), _) => Err(error),
        }
    }

    /// One put, durable on a local disk once it is reported.
    pub(crate) async fn put(&self, key: &Path, bytes: Bytes, mode: PutMode) -> Result<(), StoreError> {
        let Shared { store, caller, local, discovery, .. } = &*self.shared;
        if *discovery == Discovery::ByProbing {
            return Err(StoreError::ReadOnly { key: key.to_string(), source: None });
        }
        let payload_bytes = length(&bytes);
        let request = store.put_opts(key, PutPayload::from(bytes), PutOptions::from(mode));
        let put = caller.once(key, payload_bytes, request).await;
        if let Some(local) = local {
            // LG-3: after a failure too, because the name may be there, and who reads it back builds on it.
            let synced = local.sync_above(key, caller).await;
            put?;
            return synced;
        }
        put.map(|_| ())
    }

    /// Reads an object of at most `limit` bytes; stops there, whatever the store goes on to send.
    pub(crate) async fn read_bounded(&self, key: &Path, limit: u64) -> Result<Bytes, StoreError> {
        let Shared { store, caller, .. } = &*self.shared;
        let answer = caller.once(key, 0, store.get(key)).await?;
        let announced = answer.meta.size;
        if announced > limit {
            return Err(StoreError::TooLarge { key: key.to_string(), found: announced, limit });
        }
        caller.within(key, announced, self.take(key, answer, limit)).await
    }

    async fn take(
        &self,
        key: &Path,
        answer: object_store::GetResult,
        limit: u64,
    ) -> Result<Bytes, StoreError> {
        let expected = answer.meta.size;
        let taken = match answer.payload {
            // In one piece: object_store would read it in thousands of small ones.
            GetResultPayload::File(file, _) => {
                let deadline = self.options().deadline_of(expected);
                local::read(key, file, expected, limit, deadline).await?
            }
            GetResultPayload::Stream(chunks) => self.take_chunks(key, chunks, expected, limit).await?,
        };
        let found = length(&taken);
        if found < expected {
            return Err(StoreError::Truncated { key: key.to_string(), found, expected });
        }
        Ok(taken)
    }

    async fn take_chunks(
        &self,
        key: &Path,
        mut chunks: BoxStream<'static, object_store::Result<Bytes>>,
        expected: u64,
        limit: u64,
    ) -> Result<Bytes, StoreError> {
        let mut taken = BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0));
        let mut empty = 0;
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| self.shared.caller.classify(key, expected, error))?;
            let found = length(&taken) + length(&chunk);
            if found > limit {
                return Err(StoreError::TooLarge { key: key.to_string(), found, limit });
            }
            empty = if chunk.is_empty() { empty + 1 } else { 0 };
            if empty > EMPTY_CHUNKS_MAX {
                break;
            }
            taken.extend_from_slice(&chunk);
        }
        Ok(taken.freeze())
    }

    /// The length of an object, or `None` if it is not there.
    pub(crate) async fn stored_bytes(&self, key: &Path) -> Result<Option<u64>, StoreError> {
        let Shared { store, caller, .. } = &*self.shared;
        let head = caller.repeated(|| caller.once(key, 0, store.head(key))).await;
        match head {
            Ok(meta) => Ok(Some(meta.size)),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The keys in a folder that `parse` takes; the others are none of ours. With `after`, only keys after it.
    pub(crate) async fn list<T: Send>(
        &self,
        folder: &Path,
        after: Option<&Path>,
        parse: impl Fn(&object_store::ObjectMeta) -> Option<T> + Send + Sync,
    ) -> Result<Vec<T>, StoreError> {
        self.shared.caller.repeated(|| self.list_once(folder, after, &parse)).await
    }

    async fn list_once<T: Send>(
        &self,
        folder: &Path,
        after: Option<&Path>,
        parse: &(impl Fn(&object_store::ObjectMeta) -> Option<T> + Send + Sync),
    ) -> Result<Vec<T>, StoreError> {
        let Shared { store, caller, .. } = &*self.shared;
        let mut objects = match after {
            Some(after) => store.list_with_offset(Some(folder), after),
            None => store.list(Some(folder)),
        };
        let (limit, deadline, began) = (caller.options.listed_max, caller.options.deadline, Instant::now());
        let (mut found, mut seen) = (Vec::new(), 0);
        loop {
            // A long listing takes longer, and must go on all the time.
            let pages = u32::try_from(1 + seen / PAGE_NAMES).unwrap_or(u32::MAX);
            let next = tokio::time::timeout_at(began + deadline.saturating_mul(pages), objects.next()).await;
            let Some(object) = next.map_err(|_| caller.given_up(folder, 0))? else { break };
            let object = object.map_err(|error| caller.classify(folder, 0, error))?;
            seen += 1;
            if seen > limit {
                return Err(StoreError::TooMany { folder: folder.to_string(), limit });
            }
            found.extend(parse(&object));
        }
        Ok(found)
    }
}

/// A length of bytes in memory, in the unit of lengths in stores.
pub(crate) const fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lease, ReaderId};
    use driftless_types::{BlobRef, ObjectDigest, Seq};

    /// Callers spawn these, also where the compiler cannot prove it of closures by itself.
    #[test]
    fn every_call_can_move_between_threads() {
        fn check(_: impl Send) {}
        let store = Arc::new(object_store::memory::InMemory::new());
        let stream = Stream::new(store, Path::default(), StoreOptions::default());
        let blob = BlobRef { digest: ObjectDigest::ZERO, stored_bytes: 0, raw_bytes: 0 };
        let lease = Lease { reader: ReaderId([0; 16]), counter: 0, pinned: Seq(0) };
        check(stream.probe_create_if_absent());
        check(stream.create_entry(Seq(0), Bytes::new()));
        check(stream.read_entry(Seq(0), 0));
        check(stream.list_entries(Seq(0)));
        check(stream.tail(Seq(0)));
        check(stream.write_head(Seq(0)));
        check(stream.read_head());
        check(stream.put_blob(0, Bytes::new()));
        check(stream.put_blobs(0, futures::stream::empty(), 1));
        check(stream.get_blob(0, &blob));
        check(stream.get_blobs(0, [blob], 1));
        check(stream.see_blobs(0, &[blob], 1));
        check(stream.blob_bytes(0, &blob.digest));
        check(stream.list_blobs());
        check(stream.delete_blob(0, &blob.digest));
        check(stream.delete_staged(0));
        check(stream.put_lease(&lease));
        check(stream.read_leases());
        check(stream.delete_lease(lease.reader));
    }
}
