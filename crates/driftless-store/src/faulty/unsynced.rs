//! A disk in memory that loses what was not synced when its machine crashes.

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// When what was put is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncing {
    /// The data before it has a name, and the name before the put is reported, like a local disk with fsync.
    BeforeReport,
    /// Not at all, like a local disk without.
    Never,
}

/// A disk in memory. What was put is seen at once, and outlives [`crash`](Self::crash) only if it was synced: of the
/// rest some is lost, some kept, and without syncing some has lost its end. A put that is dropped half-way, as by the
/// death of its process, was seen and not synced. Deletes are never synced: some come undone.
#[derive(Clone)]
pub struct Unsynced {
    syncing: Syncing,
    /// What readers see.
    seen: Arc<InMemory>,
    /// What is on the disk.
    disk: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

struct State {
    seed: u64,
    unsynced: BTreeSet<Path>,
}

impl fmt::Debug for Unsynced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsynced").field("syncing", &self.syncing).finish_non_exhaustive()
    }
}

impl fmt::Display for Unsynced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unsynced")
    }
}

impl Unsynced {
    /// An empty disk; the seed decides what crashes do to what is not synced.
    #[must_use]
    pub fn new(syncing: Syncing, seed: u64) -> Self {
        let state = Arc::new(Mutex::new(State { seed, unsynced: BTreeSet::new() }));
        Self { syncing, seen: Arc::default(), disk: Arc::default(), state }
    }

    /// The machine crashes and comes back.
    ///
    /// # Errors
    /// None that the memory below does not have.
    pub async fn crash(&self) -> Result<()> {
        let (seed, unsynced) = {
            let mut state = self.state();
            state.seed = state.seed.wrapping_add(1);
            (state.seed, std::mem::take(&mut state.unsynced))
        };
        for key in unsynced {
            let draw = blake3::hash(&[&seed.to_le_bytes(), key.as_ref().as_bytes()].concat());
            match (draw.as_bytes()[0] % 3, self.syncing) {
                (0, _) => copy(&self.disk, &self.seen, &key).await?,
                (1, Syncing::Never) => self.tear(&key).await?,
                _ => copy(&self.seen, &self.disk, &key).await?,
            }
        }
        Ok(())
    }

    /// The name is on the disk, half of the data is not.
    async fn tear(&self, key: &Path) -> Result<()> {
        if let Some(bytes) = read(&self.seen, key).await? {
            let half = bytes.slice(..bytes.len() / 2);
            self.seen.put(key, half.into()).await?;
        }
        copy(&self.seen, &self.disk, key).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(store: &InMemory, key: &Path) -> Result<Option<bytes::Bytes>> {
    match store.get(key).await {
        Ok(answer) => answer.bytes().await.map(Some),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a key of `to` what it is in `from`, absent or not.
async fn copy(from: &InMemory, to: &InMemory, key: &Path) -> Result<()> {
    match read(from, key).await? {
        Some(bytes) => to.put(key, bytes.into()).await.map(|_| ()),
        None => to.delete(key).await,
    }
}

#[async_trait]
impl ObjectStore for Unsynced {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let put = self.seen.put_opts(key, payload, options).await?;
        self.state().unsynced.insert(key.clone());
        // Here a process may die: the name is seen, and nothing is synced.
        tokio::task::yield_now().await;
        if self.syncing == Syncing::BeforeReport {
            copy(&self.seen, &self.disk, key).await?;
            self.state().unsynced.remove(key);
        }
        Ok(put)
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let (operation, implementer) = ("put_multipart_opts".to_owned(), self.to_string());
        Err(Error::NotImplemented { operation, implementer })
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        self.seen.get_opts(key, options).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let disk = self.clone();
        let keys = keys.inspect(move |key| {
            if let Ok(key) = key {
                disk.state().unsynced.insert(key.clone());
            }
        });
        self.seen.delete_stream(keys.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.seen.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        after: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.seen.list_with_offset(prefix, after)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.seen.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        let (operation, implementer) = ("copy_opts".to_owned(), self.to_string());
        Err(Error::NotImplemented { operation, implementer })
    }
}
