//! A stream: one prefix of an object store.

use crate::call::Caller;
use crate::error::StoreError;
use crate::key::Keys;
use crate::local::LocalFolder;
use crate::options::StoreOptions;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

/// How many chunks without a byte are taken in a row: a file that shrinks while it is read yields them forever.
const EMPTY_CHUNKS_MAX: u32 = 16;

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
            let synced = local.sync_above(key, caller.options.deadline).await;
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
        let mut chunks = answer.into_stream();
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
        let found = length(&taken);
        if found < expected {
            return Err(StoreError::Truncated { key: key.to_string(), found, expected });
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
        let caller = &self.shared.caller;
        caller.repeated(|| caller.within(folder, 0, self.list_once(folder, after, &parse))).await
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
        let limit = caller.options.listed_max;
        let (mut found, mut seen) = (Vec::new(), 0);
        while let Some(object) = objects.next().await {
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
