//! What a reader of a log owns in one replica, and how an entry gets into its weights.

use super::apply::{NotApplied, OldWords, Writer, sections};
use super::cells::Cells;
use super::io::{LogIo, LogIoError, fault};
use super::keep::Keep;
use super::status::FollowState;
use crate::binding::{Live, LiveTensor, ReceiverBinding, ReplicaBinding};
use crate::{Shared, Site, work};
use bytes::Bytes;
use driftless_codec::{BaseWords, LogSection};
use driftless_device::DeviceError;
use driftless_layout::ReplicaPlan;
use driftless_proto::Engine;
use driftless_proto::log::{
    Fault, FollowOptions as MachineOptions, Goal, Leasing, Patience, Stored, Writing,
};
use driftless_store::{ReaderId, StoreError};
use driftless_types::{Attempt, BlobRef, Digest, EntryKind, Fence, ParamId, Publication, ReplicaId, Version};
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, watch};
use tracing::{error, warn};

/// How a replica follows a log.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// When it is done.
    pub goal: Goal,
    /// Whether it pins what it needs against retention.
    pub leasing: Leasing,
    /// Its name among the readers: random, and kept.
    pub reader: ReaderId,
    /// How long it rests at the end of the log.
    pub poll_after: Duration,
    /// Blobs that are downloaded at a time: they bound the memory of an anchor.
    pub downloads: usize,
    /// Bounds of trying again.
    pub patience: Patience,
    /// At most so many entries are read back for an anchor.
    pub look_back_max: u64,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self {
            goal: Goal::Forever,
            leasing: Leasing::Kept,
            reader: ReaderId(uuid::Uuid::new_v4().into_bytes()),
            poll_after: Duration::from_secs(1),
            downloads: 4,
            patience: Patience::default(),
            look_back_max: 1 << 16,
        }
    }
}

impl FollowOptions {
    /// The options of a reader that starts now.
    pub(crate) fn machine(&self) -> MachineOptions {
        // Half the numbers are left for renewals.
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        MachineOptions {
            lease_counter: random >> 12,
            goal: self.goal,
            leasing: self.leasing,
            patience: self.patience,
            poll_after: self.poll_after,
            look_back_max: self.look_back_max,
        }
    }
}

/// The binding of a replica that follows a log: it outlives the actor that reads.
#[derive(Debug)]
pub struct FollowBinding {
    /// The replica.
    pub replica: ReplicaId,
    pub(crate) io: LogIo,
    pub(crate) options: FollowOptions,
    pub(crate) keep: Arc<dyn Keep>,
    receivers: Vec<Arc<ReceiverBinding>>,
    cells: Cells,
    digests: Arc<tokio::sync::Mutex<CellDigests>>,
    status: watch::Sender<FollowState>,
}

/// The digests of a replica's cells, under the token of the reader.
#[derive(Debug)]
struct CellDigests {
    live: Vec<Digest>,
    /// Before the entry that is being written; `None` if none is.
    old: Option<Vec<Digest>>,
    /// Whether words may be those of an entry whose writing was cut short.
    base: BaseWords,
    weights: Weights,
}

/// Whether the weights can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weights {
    /// They are those of one version, once the log of old words was played back.
    Whole,
    /// They are being overwritten, and old words are gone.
    Torn,
}

impl FollowBinding {
    /// The binding of a replica whose receivers are bound; hashes all of its memory once. `base` says whether the
    /// memory is that of one version, if of any.
    ///
    /// # Errors
    /// [`DeviceError`] if the memory is not what the plan says.
    pub fn new(
        shared: &Shared,
        plan: &ReplicaPlan,
        receivers: Vec<Arc<ReceiverBinding>>,
        io: LogIo,
        keep: Arc<dyn Keep>,
        options: FollowOptions,
        base: BaseWords,
    ) -> Result<Self, DeviceError> {
        let cells = Cells::of(plan, shared.plan.params().len());
        let memory: Vec<&[LiveTensor]> = receivers.iter().map(|receiver| &receiver.memory[..]).collect();
        let (params, keys) = (shared.plan.params(), &shared.keys);
        let live = cells.rehash(plan, &memory, params, &*shared.device, keys)?;
        drop(memory);
        let digests =
            Arc::new(tokio::sync::Mutex::new(CellDigests { live, old: None, base, weights: Weights::Whole }));
        let status = watch::Sender::new(FollowState::default());
        Ok(Self { replica: plan.id, io, options, keep, receivers, cells, digests, status })
    }

    /// Where the reader is, and a way to wait for it to get on.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<FollowState> {
        self.status.subscribe()
    }

    pub(crate) fn tell(&self, change: impl FnOnce(&mut FollowState)) {
        self.status.send_modify(change);
    }

    /// What a node does when it stops: an entry that was not decided is taken back, and the engine let go, unless its
    /// weights are of no version.
    pub(crate) async fn rest(&self, shared: &Arc<Shared>, replica: &ReplicaBinding) {
        let mut held = self.hold().await;
        if let Err(error) = held.undo(shared, self) {
            warn!(replica = %self.replica, %error, "an entry was not taken back while the node stopped");
            return;
        }
        if held.digests.weights == Weights::Whole {
            drop(held);
            resume(shared, replica).await;
        }
    }

    /// All tokens: waits until the tasks of a dead reader have ended (CM-9).
    async fn hold(&self) -> Held {
        let digests = Arc::clone(&self.digests).lock_owned().await;
        let mut live = Vec::with_capacity(self.receivers.len());
        for receiver in &self.receivers {
            live.push(receiver.token().await);
        }
        Held { digests, live }
    }
}

/// The tokens of a replica.
struct Held {
    digests: OwnedMutexGuard<CellDigests>,
    live: Vec<OwnedMutexGuard<Live>>,
}

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
            Cut::Io(LogIoError::Store(StoreError::NotVisible { .. } | StoreError::Missing { .. })) => {
                Writing::Missing
            }
            Cut::Io(LogIoError::Store(
                error @ (StoreError::WrongDigest { .. }
                | StoreError::TooLarge { .. }
                | StoreError::Truncated { .. }),
            )) => {
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
        let bytes: u64 = blobs.iter().map(|blob| blob.stored_bytes).sum();
        let base = match self.stored.entry.kind {
            EntryKind::Delta { base_version, .. } => Some(base_version),
            _ => None,
        };
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
        drop(held);
        // Only a replica that served before has a version to go back to.
        if before == Engine::Serving {
            resume(&self.shared, &self.replica).await;
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
        (held.digests.base, held.digests.weights) = (BaseWords::Mixed, Weights::Torn);
        for live in &mut held.live {
            live.changed = 0;
        }
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
        let wrong = self.binding.cells.differing(&held.digests.live, stated);
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
        let keep = Arc::clone(&self.binding.keep);
        let kept = blocking(move || keep.weights(version)).await?;
        kept.map_err(|error| {
            warn!(%version, %error, "the weights were not kept");
            Cut::Keep(error.fault())
        })
    }
}

/// Puts a replica back into service.
pub(crate) async fn resume(shared: &Shared, replica: &ReplicaBinding) {
    if replica.engine() == Engine::Serving {
        return;
    }
    let deadline = shared.options.lead.pause_deadline;
    if let Err(root) = work::call(replica.on_resume(), replica.version(), deadline).await {
        warn!(replica = %replica.id, %root, "the resume hook failed; the engine counts as resumed");
    }
    replica.set_engine(Engine::Serving);
    shared.ledger.wake();
}

/// What a reader does before it reads: whatever its predecessor left half-written is taken back, if it can be.
pub(crate) async fn recover(shared: &Arc<Shared>, binding: &Arc<FollowBinding>) -> Result<(), DeviceError> {
    let mut held = binding.hold().await;
    held.undo(shared, binding)
}

impl Held {
    /// Remembers digests as they are before an entry is written; what a task that failed has left is taken back first.
    fn open(&mut self, shared: &Shared, binding: &FollowBinding) -> Result<(), DeviceError> {
        self.undo(shared, binding)?;
        self.digests.old = Some(self.digests.live.clone());
        for live in &mut self.live {
            live.old_digests = Some(live.digests.clone());
            live.changed = 0;
        }
        Ok(())
    }

    fn write(
        &mut self,
        shared: &Shared,
        binding: &FollowBinding,
        sections: &[LogSection],
        old_words: OldWords,
        cancel: &AtomicBool,
    ) -> Result<(), NotApplied> {
        let base = self.digests.base;
        let mut writer = Writer {
            shared,
            cells: &binding.cells,
            receivers: &binding.receivers,
            live: &mut self.live,
            digests: &mut self.digests.live,
            base,
            old_words,
        };
        for section in sections {
            if cancel.load(Ordering::Acquire) {
                return Err(NotApplied::Canceled);
            }
            shared.options.failpoints.pass_process(Site::FollowerWrites);
            writer.section(section)?;
        }
        Ok(())
    }

    fn undo(&mut self, shared: &Shared, binding: &FollowBinding) -> Result<(), DeviceError> {
        for (receiver, live) in binding.receivers.iter().zip(&mut self.live) {
            for (memory, log) in receiver.memory.iter().zip(&mut live.undo) {
                shared.device.undo(memory.words.lend_mut().elements(), log)?;
            }
            if let Some(digests) = live.old_digests.take() {
                live.digests = digests;
            }
        }
        if let Some(old) = self.digests.old.take() {
            self.digests.live = old;
        }
        Ok(())
    }

    /// The version is proven: old words are dropped.
    fn seal(&mut self, shared: &Shared, binding: &FollowBinding, fence: Fence) {
        for (receiver, live) in binding.receivers.iter().zip(&mut self.live) {
            work::seal(shared, receiver, live, &fence);
        }
        self.digests.old = None;
        (self.digests.base, self.digests.weights) = (BaseWords::Exact, Weights::Whole);
    }
}

/// Runs a blocking loop; its panic is an outcome like any other.
async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, Cut> {
    tokio::task::spawn_blocking(run).await.map_err(|panicked| Cut::Task(panicked.to_string()))
}

fn device(error: DeviceError) -> Cut {
    Cut::Task(error.to_string())
}
