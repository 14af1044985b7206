//! The log as one more target of a trainer's versions: nothing in the cluster waits for it.
//!
//! When the log is free, the next step makes a second patch for it, from exactly the version that the stream holds.
//! While it is not, each rank remembers what changed: one bit per element, made only then. So an outage of any length
//! costs one delta of absolute values, or one anchor if too much has changed since.

use super::genesis::{Founding, table};
use super::io::LogIo;
use super::patch::{LogPatch, RankLog};
use super::status::PublishState;
use driftless_layout::RemapPlan;
use driftless_proto::log::{Lineage as Origin, Patience, PublishOptions as MachineOptions, Published};
use driftless_store::BLOB_BYTES_MAX;
use driftless_types::{RunId, SenderId, StreamId, Version, index_of};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What a step does for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// Nothing is published by this node.
    Absent,
    /// The log is busy with an earlier version: changes are remembered.
    Remember,
    /// The ranks make a patch for the log.
    Make(Lineage),
}

/// What a patch for the log follows on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// Nothing that a reader could be at: it holds everything.
    Anchor,
    /// The version that the stream holds. LG-5: right for exactly this one.
    After(Version),
}

/// What is under way to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The stream holds what was made last, if anything was.
    Free,
    /// A patch is made or published.
    Busy { version: Version, lineage: Lineage },
}

/// How a node publishes.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// The text of the model's `config.json`: readers build the model from it.
    pub model_config: String,
    /// After so many deltas an anchor follows; `None`: only where there must be one.
    pub anchor_every: Option<u32>,
    /// Where the values of an anchor are read from.
    pub values: WholeValues,
    /// A blob is closed before it grows beyond this, in bytes.
    pub blob_bytes: usize,
    /// Blobs that are uploaded at a time: with the one that waits and the one that is filled, they bound the memory.
    pub uploads: usize,
    /// How long a lease pins what its reader needs, in seconds; a stream keeps what it was founded with.
    pub lease_ttl_s: u64,
    /// Bounds of trying again.
    pub patience: Patience,
    /// At most so many entries are read back for the stream's last publication.
    pub look_back_max: u64,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            model_config: String::new(),
            anchor_every: None,
            values: WholeValues::Copied,
            blob_bytes: 32 << 20,
            uploads: 4,
            lease_ttl_s: 600,
            patience: Patience::default(),
            look_back_max: 1 << 16,
        }
    }
}

/// The log's place in a node that publishes: how far it is, and what each rank holds for it.
#[derive(Debug)]
pub struct LogTarget {
    plan: RemapPlan,
    io: LogIo,
    options: PublishOptions,
    ranks: BTreeMap<SenderId, Mutex<RankLog>>,
    state: Mutex<State>,
    status: watch::Sender<PublishState>,
}

#[derive(Debug)]
struct State {
    progress: Progress,
    /// The last publication of this trainer; `None` if the next one must be an anchor.
    held: Option<Published>,
    deltas_since_anchor: u32,
}

/// Where the values of an anchor are read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WholeValues {
    /// From a copy of the served bits, made before the trainer's next step: 2 bytes per parameter until they are
    /// published. The trainer never waits for the store.
    #[default]
    Copied,
    /// From the trainer's weights while they stand still: no copy, but the next step begins only after the anchor
    /// was published.
    Standing,
}

/// What a publication takes from the ranks.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    /// The version that it leads to.
    pub(crate) version: Version,
    /// What it follows on.
    pub(crate) lineage: Lineage,
    /// One patch per rank.
    pub(crate) patches: BTreeMap<SenderId, Arc<LogPatch>>,
}

impl LogTarget {
    /// A target of which nothing is known yet: the first patch is an anchor. `plan` is [`RemapPlan::compile_log`].
    #[must_use]
    pub fn new(plan: RemapPlan, io: LogIo, options: PublishOptions) -> Self {
        let ranks = plan.senders().iter().map(|sender| (sender.id, Mutex::default())).collect();
        let state = State { progress: Progress::Free, held: None, deltas_since_anchor: 0 };
        let status = watch::Sender::new(PublishState::Opening);
        Self { plan, io, options, ranks, state: Mutex::new(state), status }
    }

    /// The plan of what each rank writes.
    #[must_use]
    pub const fn plan(&self) -> &RemapPlan {
        &self.plan
    }

    /// Where the publisher is, and a way to wait for it to get on.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<PublishState> {
        self.status.subscribe()
    }

    /// The stream.
    pub(crate) const fn io(&self) -> &LogIo {
        &self.io
    }

    /// Where the values of an anchor are read from.
    pub(crate) const fn values(&self) -> WholeValues {
        self.options.values
    }

    /// Bytes of a blob at most, within what a store takes.
    pub(crate) fn blob_bytes(&self) -> usize {
        self.options.blob_bytes.min(index_of(BLOB_BYTES_MAX))
    }

    /// Blobs that are uploaded at a time, at least one.
    pub(crate) fn uploads(&self) -> usize {
        self.options.uploads.max(1)
    }

    /// What a stream is founded with.
    pub(crate) fn founding(&self, run: RunId) -> Founding {
        let (model_config, parameters) = (self.options.model_config.clone(), table(self.plan.params()));
        Founding { run, model_config, parameters, lease_ttl_s: self.options.lease_ttl_s }
    }

    /// The options of a publisher that starts now.
    pub(crate) fn machine_options(&self, run: RunId, lineage: Origin) -> MachineOptions {
        let (incarnation, _) = uuid::Uuid::new_v4().as_u64_pair();
        MachineOptions {
            run,
            stream: StreamId(uuid::Uuid::new_v4().into_bytes()),
            incarnation,
            counter: 1,
            writer_count: u32::try_from(self.ranks.len()).expect("a plan numbers its senders in 32 bits"),
            lineage,
            signer: self.io.signer.key(),
            patience: self.options.patience,
            look_back_max: self.options.look_back_max,
        }
    }

    /// Says where the publisher is.
    pub(crate) fn tell(&self, state: PublishState) {
        self.status.send_replace(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What one rank holds for the log.
    pub(crate) fn rank(&self, id: SenderId) -> MutexGuard<'_, RankLog> {
        self.ranks[&id].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step is about to be detected by every rank: what it does for the log. Named once for all ranks, so that they
    /// cannot differ.
    pub fn name(&self, version: Version) -> LogStep {
        let mut state = self.lock();
        if state.progress != Progress::Free {
            return LogStep::Remember;
        }
        let is_due = self.options.anchor_every.is_some_and(|every| state.deltas_since_anchor >= every);
        let held = state.held.filter(|_| !is_due).map(|held| held.version);
        let lineage = held.map_or(Lineage::Anchor, Lineage::After);
        state.progress = Progress::Busy { version, lineage };
        LogStep::Make(lineage)
    }

    /// What is to be published, once every rank has made its part.
    pub(crate) fn made(&self) -> Option<Made> {
        let Progress::Busy { version, lineage } = self.lock().progress else { return None };
        let patch = |(&id, rank): (&SenderId, &Mutex<RankLog>)| {
            let rank = rank.lock().unwrap_or_else(PoisonError::into_inner);
            rank.patch().filter(|patch| patch.version == version).map(|patch| (id, patch))
        };
        let patches: BTreeMap<_, _> = self.ranks.iter().map(patch).collect::<Option<_>>()?;
        // What every rank writes whole is an anchor: it serves readers at any version at the same size.
        let all_whole = patches.values().all(|patch| patch.is_whole());
        let lineage = if all_whole { Lineage::Anchor } else { lineage };
        Some(Made { version, lineage, patches })
    }

    /// The last publication of this trainer.
    pub(crate) fn held(&self) -> Option<Published> {
        self.lock().held
    }

    /// A publication is in the stream: the log is free.
    pub(crate) fn published(&self, published: Published, lineage: Lineage) {
        self.drop_patches();
        let mut state = self.lock();
        state.deltas_since_anchor = match lineage {
            Lineage::Anchor => 0,
            Lineage::After(_) => state.deltas_since_anchor + 1,
        };
        state.held = Some(published);
        state.progress = Progress::Free;
    }

    /// The same stream for another node, of which nothing is known yet.
    pub(crate) fn anew(&self) -> Self {
        Self::new(self.plan.clone(), self.io.clone(), self.options.clone())
    }

    /// The trainer has left: nothing that it made is published, and nothing that it changed is remembered.
    pub(crate) fn trainer_left(&self) {
        for rank in self.ranks.values() {
            *rank.lock().unwrap_or_else(PoisonError::into_inner) = RankLog::default();
        }
        self.given_up();
    }

    /// What was made cannot be published: the next patch is an anchor.
    pub(crate) fn given_up(&self) {
        self.drop_patches();
        let mut state = self.lock();
        state.held = None;
        state.progress = Progress::Free;
    }

    fn drop_patches(&self) {
        for rank in self.ranks.values() {
            rank.lock().unwrap_or_else(PoisonError::into_inner).drop_patch();
        }
    }
}
