//! How an entry of a log gets into one replica's weights.

use super::apply::{NotApplied, OldWords, sections};
use super::io::{LogIoError, fault};
use super::keep::keeping;
use super::reading::{FollowBinding, Held};
use crate::binding::ReplicaBinding;
use crate::{Shared, work};
use bytes::Bytes;
use driftless_codec::LogSection;
use driftless_device::DeviceError;
use driftless_proto::Engine;
use driftless_proto::log::{Fault, Stored, Writing};
use driftless_store::StoreError;
use driftless_types::{Attempt, BlobRef, Digest, Fence, ParamId, Publication, Version};
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tracing::{error, warn};

/// One entry on its way into one replica's weights.
pub(crate) struct Applying {
    pub(crate) shared: Arc<Shared>,
    pub(crate) binding: Arc<FollowBinding>,
    pub(crate) replica: Arc<ReplicaBinding>,
    pub(crate) stored: Stored,
    pub(crate) cancel: Arc<AtomicBool>,
}

/// What ends an application early.
enum Cut {
    Blob(NotApplied),
    Io(LogIoError),
    Pause(String),
    Keep(Fault),
    Task(String),
    WrongDigest(Vec<ParamId>),
}

impl Applying {
    /// Writes the entry into the weights and compares digests. What was written of an entry that is not applied was
    /// taken back, unless it was an anchor: then the replica stays out of service.
    pub(crate) async fn run(&self) -> Writing {
        let Some(publication) = self.stored.entry.kind.publication() else { return Writing::BadBlob };
        match self.try_run(publication).await {
            Ok(()) => Writing::Applied,
            Err(cut) => self.explain(publication, cut),
        }
    }

    fn explain(&self, publication: &Publication, cut: Cut) -> Writing {
        let (seq, version) = (self.stored.seq(), publication.version);
        match cut {
            Cut::Blob(error) => {
                error!(%seq, %version, %error, "alarm: a blob is not what its entry says");
                Writing::BadBlob
            }
            Cut::Io(LogIoError::Store(error)) if error.is_absence() => Writing::Missing,
            Cut::Io(LogIoError::Store(error)) if error.is_damage() => {
                error!(%seq, %version, %error, "alarm: a blob is not what its name says");
                Writing::BadBlob
            }
            Cut::Io(LogIoError::Store(error)) => {
                warn!(%seq, %version, %error, "an entry's blobs were not read");
                Writing::Failed(fault(&error))
            }
            Cut::Io(error) => {
                error!(%seq, %version, %error, "alarm: what an entry names is not what it says");
                Writing::BadBlob
            }
            Cut::WrongDigest(params) => {
                let names = params.iter().take(8).map(|&param| self.shared.plan.param(param).fqn.as_str());
                let names: Vec<&str> = names.collect();
                error!(%seq, %version, differing = params.len(), ?names, "alarm: digests differ from the entry's");
                Writing::WrongDigest
            }
            Cut::Keep(fault) => Writing::Failed(fault),
            Cut::Pause(error) | Cut::Task(error) => {
                warn!(%seq, %version, error, "an entry was not applied");
                Writing::Failed(Fault::Unavailable)
            }
        }
    }

    async fn try_run(&self, publication: &Publication) -> Result<(), Cut> {
        let epoch = self.stored.entry.epoch;
        let (io, params) = (&self.binding.io, self.shared.plan.params().len());
        let writers = io.writers(epoch, publication).await.map_err(Cut::Io)?;
        let stated = io.digests(epoch, publication, params).await.map_err(Cut::Io)?;
        let blobs: Vec<BlobRef> = writers.into_iter().flat_map(|writer| writer.blobs).collect();
        let bytes = blobs.iter().fold(0, |sum: u64, blob| sum.saturating_add(blob.stored_bytes));
        let base = self.stored.entry.kind.base_version();
        let is_staged = base.is_some() && bytes <= self.shared.options.limits.staging_max_bytes;
        let written = if is_staged {
            self.staged(publication, base, blobs, &stated).await
        } else {
            self.streamed(publication, base, blobs, &stated).await
        };
        written?;
        self.keep(publication.version).await
    }

    /// Every byte is here and checked before the engine is paused; old words are kept until the digests matched.
    async fn staged(
        &self,
        publication: &Publication,
        base: Option<Version>,
        blobs: Vec<BlobRef>,
        stated: &[Digest],
    ) -> Result<(), Cut> {
        let version = publication.version;
        let mut fetched = self.fetched(blobs);
        let mut staged: Vec<LogSection> = Vec::new();
        while let Some(blob) = fetched.try_next().await.map_err(|error| Cut::Io(error.into()))? {
            staged.extend(self.checked(blob, base, version).await?);
        }
        drop(fetched);
        let before = self.pause().await?;
        let mut held = self.binding.hold().await;
        held.open(&self.shared, &self.binding).map_err(device)?;
        let (mut held, written) = self.write(held, staged, OldWords::Logged).await?;
        let cut = match written.map_err(Cut::Blob).and_then(|()| self.compare(&held, stated)) {
            Ok(()) => {
                held.seal(&self.shared, &self.binding, self.fence(version));
                return Ok(());
            }
            Err(cut) => cut,
        };
        held.undo(&self.shared, &self.binding).map_err(device)?;
        let is_whole = held.is_whole();
        drop(held);
        // Only a replica that served before, and that holds a version, has one to go back to.
        if before == Engine::Serving && is_whole {
            work::resume(&self.shared, &self.replica).await;
        }
        Err(cut)
    }

    /// Blob by blob straight into the weights of a replica that is out of service.
    async fn streamed(
        &self,
        publication: &Publication,
        base: Option<Version>,
        blobs: Vec<BlobRef>,
        stated: &[Digest],
    ) -> Result<(), Cut> {
        let version = publication.version;
        self.pause().await?;
        let mut held = self.binding.hold().await;
        // What a task that failed has left half-written: digests follow words only from one end to the other.
        held.undo(&self.shared, &self.binding).map_err(device)?;
        held.tear();
        let mut fetched = self.fetched(blobs);
        while let Some(blob) = fetched.try_next().await.map_err(|error| Cut::Io(error.into()))? {
            let sections = self.checked(blob, base, version).await?;
            let written;
            (held, written) = self.write(held, sections, OldWords::Dropped).await?;
            written.map_err(Cut::Blob)?;
        }
        self.compare(&held, stated)?;
        held.seal(&self.shared, &self.binding, self.fence(version));
        Ok(())
    }

    fn fetched(&self, blobs: Vec<BlobRef>) -> futures::stream::BoxStream<'_, Result<Bytes, StoreError>> {
        let (stream, epoch) = (&self.binding.io.stream, self.stored.entry.epoch);
        stream.get_blobs(epoch, blobs, self.binding.options.downloads).boxed()
    }

    async fn checked(
        &self,
        blob: Bytes,
        base: Option<Version>,
        version: Version,
    ) -> Result<Vec<LogSection>, Cut> {
        let bytes = blob.len();
        let shared = Arc::clone(&self.shared);
        let checked = blocking(move || sections(shared.plan.params(), blob, base, version)).await?;
        self.binding.tell(|state| state.read_bytes += bytes as u64);
        checked.map_err(Cut::Blob)
    }

    /// Writes sections on a blocking thread, until the first that cannot be written.
    async fn write(
        &self,
        mut held: Held,
        sections: Vec<LogSection>,
        old_words: OldWords,
    ) -> Result<(Held, Result<(), NotApplied>), Cut> {
        let (shared, binding) = (Arc::clone(&self.shared), Arc::clone(&self.binding));
        let cancel = Arc::clone(&self.cancel);
        blocking(move || {
            let written = held.write(&shared, &binding, &sections, old_words, &cancel);
            (held, written)
        })
        .await
    }

    fn compare(&self, held: &Held, stated: &[Digest]) -> Result<(), Cut> {
        let wrong = held.differing(&self.binding, stated);
        if wrong.is_empty() { Ok(()) } else { Err(Cut::WrongDigest(wrong)) }
    }

    fn fence(&self, version: Version) -> Fence {
        Fence {
            run: self.shared.options.run,
            epoch: self.stored.entry.fence(),
            // The place of an entry, as far as it fits: it only tells one entry from the one before.
            attempt: Attempt(u32::try_from(self.stored.seq().0 & u64::from(u32::MAX)).unwrap_or_default()),
            version,
            plan: self.shared.plan.digest(),
        }
    }

    /// Takes the replica out of service; says whether it was in service.
    async fn pause(&self) -> Result<Engine, Cut> {
        let before = self.replica.engine();
        if before == Engine::Paused {
            return Ok(before);
        }
        // Noted before the call: if the reader dies in between, its successor goes on from here.
        self.replica.set_engine(Engine::Paused);
        let deadline = self.shared.options.lead.pause_deadline;
        match work::call(self.replica.on_pause(), self.replica.version(), deadline).await {
            Ok(()) => Ok(before),
            Err(root) => {
                self.replica.set_engine(Engine::Serving);
                Err(Cut::Pause(root.to_string()))
            }
        }
    }

    async fn keep(&self, version: Version) -> Result<(), Cut> {
        let kept = keeping(&self.binding, &self.cancel, move |keep| keep.weights(version)).await;
        kept.map_err(Cut::Keep)
    }
}

/// Runs a blocking loop; its panic is an outcome like any other.
async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, Cut> {
    tokio::task::spawn_blocking(run).await.map_err(|panicked| Cut::Task(panicked.to_string()))
}

fn device(error: DeviceError) -> Cut {
    Cut::Task(error.to_string())
}
