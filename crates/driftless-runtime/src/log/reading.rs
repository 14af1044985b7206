//! What a reader of a log owns in one replica: weights, their digests, and how to take a half-written entry back.

use super::apply::{NotApplied, OldWords, Writer};
use super::cells::Cells;
use super::io::LogIo;
use super::keep::Keep;
use super::status::{FollowEnd, FollowState};
use crate::binding::{Live, LiveTensor, ReceiverBinding, ReplicaBinding};
use crate::{Shared, Site, work};
use driftless_codec::{BaseWords, LogSection};
use driftless_device::DeviceError;
use driftless_layout::ReplicaPlan;
use driftless_proto::log::{FollowOptions as MachineOptions, Goal, Leasing, Patience};
use driftless_proto::{Engine, Weights};
use driftless_store::ReaderId;
use driftless_types::{Digest, Fence, ParamId, ReplicaId, Version};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, watch};
use tracing::warn;

/// How a replica follows a log.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// When it is done.
    pub goal: Goal,
    /// Whether it pins what it needs against retention.
    pub leasing: Leasing,
    /// Its name among the readers: random. One that is kept gets its own lease back after a restart.
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
    pub(super) keep: Arc<dyn Keep>,
    /// Held while `keep` is called: what a dead reader left under way ends before its successor reads or writes.
    keeping: Arc<tokio::sync::Mutex<()>>,
    /// Whether the weights that were there when this process attached them are proven, or written over.
    is_proven: AtomicBool,
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
        // CM-14: what was of no version when it was attached is not let go before it is one.
        let is_version = base == BaseWords::Exact
            && keep.load().is_ok_and(|kept| {
                kept.dirty.is_none() && kept.cursor.is_some_and(|cursor| cursor.held.is_some())
            });
        let weights = if is_version { Weights::Whole } else { Weights::Torn };
        let digests = Arc::new(tokio::sync::Mutex::new(CellDigests { live, old: None, base, weights }));
        let status = watch::Sender::new(FollowState::default());
        let (replica, keeping, is_proven) = (plan.id, Arc::default(), AtomicBool::new(false));
        Ok(Self { replica, io, options, keep, keeping, is_proven, receivers, cells, digests, status })
    }

    /// Where the reader is, and a way to wait for it to get on.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<FollowState> {
        self.status.subscribe()
    }

    pub(crate) fn tell(&self, change: impl FnOnce(&mut FollowState)) {
        self.status.send_modify(change);
    }

    /// What is done when its reader has ended: an entry that was not decided is taken back, and the engine let go.
    /// `None`: its weights are of no version, and the engine stays out of service.
    pub(crate) async fn rest(&self, shared: &Arc<Shared>, replica: &ReplicaBinding) -> Option<Version> {
        self.tell(|state| state.ended = state.ended.or(Some(FollowEnd::Left)));
        let mut held = self.hold().await;
        if let Err(error) = held.undo(shared, self) {
            warn!(replica = %self.replica, %error, "an entry was not taken back at rest");
            return None;
        }
        // CM-14: what nobody has proven yet is not let go either.
        let may_serve = self.is_proven() || replica.engine() == Engine::Serving;
        if !held.is_whole() || !may_serve {
            return None;
        }
        if let Some(sealed) = held.live.first().and_then(|live| live.committed) {
            replica.serve(sealed.epoch, sealed.version);
        }
        drop(held);
        work::resume(shared, replica).await;
        Some(replica.version())
    }

    /// The token of `keep`.
    pub(super) async fn keeping(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.keeping).lock_owned().await
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Acquire)
    }

    pub(super) fn set_proven(&self) {
        self.is_proven.store(true, Ordering::Release);
    }

    /// All tokens: waits until the tasks of a dead reader have ended (CM-9).
    pub(super) async fn hold(&self) -> Held {
        let digests = Arc::clone(&self.digests).lock_owned().await;
        let mut live = Vec::with_capacity(self.receivers.len());
        for receiver in &self.receivers {
            live.push(receiver.token().await);
        }
        Held { digests, live }
    }
}

/// The tokens of a replica.
pub(super) struct Held {
    digests: OwnedMutexGuard<CellDigests>,
    live: Vec<OwnedMutexGuard<Live>>,
}

/// What a reader does before it reads: whatever its predecessor left half-written is taken back, if it can be.
pub(crate) async fn recover(shared: &Arc<Shared>, binding: &Arc<FollowBinding>) -> Result<(), DeviceError> {
    let mut held = binding.hold().await;
    held.undo(shared, binding)
}

impl Held {
    /// Remembers digests as they are before an entry is written; what a task that failed has left is taken back first.
    pub(super) fn open(&mut self, shared: &Shared, binding: &FollowBinding) -> Result<(), DeviceError> {
        self.undo(shared, binding)?;
        self.digests.old = Some(self.digests.live.clone());
        for live in &mut self.live {
            live.old_digests = Some(live.digests.clone());
            live.changed = 0;
        }
        Ok(())
    }

    pub(super) fn write(
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

    pub(super) fn undo(&mut self, shared: &Shared, binding: &FollowBinding) -> Result<(), DeviceError> {
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

    /// Whether the weights are of one version.
    pub(super) fn is_whole(&self) -> bool {
        self.digests.weights == Weights::Whole
    }

    /// Old words are given up from here on: the replica is out of service until a digest proves it.
    pub(super) fn tear(&mut self) {
        (self.digests.base, self.digests.weights) = (BaseWords::Mixed, Weights::Torn);
        for live in &mut self.live {
            live.changed = 0;
        }
    }

    /// The parameters that are not what an entry states.
    pub(super) fn differing(&self, binding: &FollowBinding, stated: &[Digest]) -> Vec<ParamId> {
        binding.cells.differing(&self.digests.live, stated)
    }

    /// The version is proven: old words are dropped.
    pub(super) fn seal(&mut self, shared: &Shared, binding: &FollowBinding, fence: Fence) {
        for (receiver, live) in binding.receivers.iter().zip(&mut self.live) {
            work::seal(shared, receiver, live, &fence);
        }
        self.digests.old = None;
        (self.digests.base, self.digests.weights) = (BaseWords::Exact, Weights::Whole);
    }
}
