//! What a publisher and its shell say to each other.

use crate::log::{Fault, LogTimer, Patience, Published, Reading};
use driftless_types::{
    BlobRef, Entry, Epoch, Genesis, KeyId, ObjectDigest, RunId, Seq, StreamId, Version, WriterManifest,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Whether the trainer's weights go on from what the stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lineage {
    /// They do not, or nobody knows: the first publication is an anchor.
    Diverged,
    /// They go on from the version that the entry with this object published: if it is still the stream's last, a
    /// delta may follow it.
    Continues(ObjectDigest),
}

/// Who publishes, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PublishOptions {
    /// The training run: a stream of another one is refused.
    pub run: RunId,
    /// The stream's id if it has to be founded: random.
    pub stream: StreamId,
    /// The coordinator's incarnation: random, new in every life.
    pub incarnation: u64,
    /// The least counter that the epoch may get: the cluster's own. One more than the log's highest is taken if that
    /// is higher.
    pub counter: u64,
    /// How many writers the trainer's plan has: ranks 0 to this, exclusive.
    pub writer_count: u32,
    /// Where the trainer's weights come from.
    pub lineage: Lineage,
    /// The key that the shell signs entries with; `None` if it signs none.
    pub signer: Option<KeyId>,
    /// Bounds of trying again.
    pub patience: Patience,
    /// At most so many entries are read back for the last publication.
    pub look_back_max: u64,
}

/// What the trainer would like to have published next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The version.
    pub version: Version,
    /// The version that changes could be relative to; `None` asks for an anchor.
    pub base: Option<Version>,
}

/// How a version is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// Every weight.
    Anchor,
    /// What changed after this version.
    Delta(Version),
}

/// A version that every writer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// The version.
    pub version: Version,
    /// Everything or changes.
    pub kind: TaskKind,
    /// The epoch: its counter is in the key of every blob.
    pub epoch: Epoch,
}

/// Why a version is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another version is being published, or the stream is not open: ask again when it is.
    #[error("the stream is busy")]
    Busy,
    /// The trainer's history holds this version already, or abandoned it.
    #[error("the stream is at version {0} already (publish a later one)")]
    NotAbove(Version),
    /// The publisher has stopped for good.
    #[error("the publisher has stopped")]
    Stopped,
}

/// Why a publisher stops for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum PublishStop {
    /// A newer coordinator has taken the stream over.
    #[error("fenced: epoch {by} has taken the stream over")]
    Fenced {
        /// Its epoch.
        by: Epoch,
    },
    /// An entry stands where only this publisher may write.
    #[error("entry {seq} was written by a foreign writer")]
    Foreign {
        /// Its place.
        seq: Seq,
    },
    /// The prefix holds the stream of another run.
    #[error("the prefix holds the stream of run {found}, not of {expected} (use another prefix)")]
    OtherRun {
        /// This trainer's run.
        expected: RunId,
        /// The stream's.
        found: RunId,
    },
    /// An entry does not verify.
    #[error("entry {seq} does not verify")]
    Invalid {
        /// Its place.
        seq: Seq,
    },
    /// Two entries do not fit together.
    #[error("entry {seq} is not the one that the next entry names as its parent")]
    BrokenChain {
        /// The place of the first.
        seq: Seq,
    },
    /// The store creates what exists already: no history on it would be single.
    #[error("the store ignores the condition `create if absent` (use another store)")]
    IgnoresCondition,
    /// LG-14: the newest entry is signed, and what would follow it is not: readers who trust its key would stop there.
    #[error(
        "entry {seq}, the newest, is signed by key {key}, and nothing is signed here (sign with that key)"
    )]
    Signed {
        /// Its place.
        seq: Seq,
        /// Its key.
        key: KeyId,
    },
    /// No publication was found within the bound.
    #[error("no publication within {entries} entries from the end of the log (raise `look_back_max`)")]
    LookBack {
        /// The bound.
        entries: u64,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PublishEvent {
    /// The trainer would like to publish.
    Ask(Ask),
    /// An epoch of its own is wanted, so that the blobs of the last one can be collected. Only between publications;
    /// ignored at any other time.
    Renew,
    /// The answer to `Read`.
    Read(Reading),
    /// The answer to `List`: the last place of the run of entries without a gap from the one that was named; `None`
    /// if there is none after it.
    Listed(Option<Seq>),
    /// The answer to `Probe`: the second creation was refused, as it must be.
    ProbeKept,
    /// The answer to `Probe`: the second creation succeeded.
    ProbeOverwritten,
    /// The answer to `PutGenesis`: its blobs are there.
    GenesisPut(Genesis),
    /// The answer to `Create`: the store says that it created the object; its digest.
    Created(ObjectDigest),
    /// The answer to `Create`: anything else, that the key exists included.
    CreateFailed,
    /// All blobs of one writer of this version were put, synced where there is a disk, and their lengths seen.
    Written(Version, WriterManifest),
    /// The answer to `Write`: every writer has ended, and not all of them were heard as `Written`.
    WriteFailed(Version, Fault),
    /// The values of the version that is being written are gone.
    ValuesGone(Version),
    /// The answer to `Seal`: the blob of the digests was put, and one of the manifests if they do not fit an entry.
    Sealed {
        /// The version.
        version: Version,
        /// 16 bytes per parameter.
        digests: BlobRef,
        /// The manifests, if they do not fit.
        manifests: Option<BlobRef>,
    },
    /// `List`, `Probe`, `PutGenesis` or `Seal` failed.
    Failed(Fault),
    /// A timer fired.
    TimerFired(LogTimer),
}

/// What the shell must do. One answer is awaited at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PublishCommand {
    /// Read the entry at this place.
    Read(Seq),
    /// List the log after this place.
    List {
        /// The place.
        after: Seq,
    },
    /// Create one random key twice.
    Probe,
    /// Put the blobs that genesis names, under this epoch.
    PutGenesis(Epoch),
    /// Encode and sign, the same bytes each time, and create if absent; no retries by the client.
    Create(Arc<Entry>),
    /// Have these writers write the version's blobs.
    Write {
        /// What to write.
        task: Task,
        /// The ranks that have not yet.
        ranks: BTreeSet<u32>,
    },
    /// Put the blob of digests, and one of the manifests if they do not fit.
    Seal {
        /// What was written.
        task: Task,
        /// Its manifests, in order of rank.
        writers: Vec<WriterManifest>,
    },
    /// Say when this much time has passed.
    ArmTimer {
        /// The timer.
        id: LogTimer,
        /// The time.
        after: Duration,
    },
    /// The stream is open in this epoch, and this is its last publication.
    Opened {
        /// The epoch.
        epoch: Epoch,
        /// The watermark.
        last: Option<Published>,
    },
    /// The watermark moved: the version is in the log.
    Published(Published),
    /// The version will not be published: its values are gone. Another may be asked for.
    Abandoned(Version),
    /// The version is not taken.
    Refused(Version, Refusal),
    /// The store fails for long; everything is kept and tried on.
    StoreDown(Fault),
    /// The publisher has stopped for good.
    Stopped(PublishStop),
}
