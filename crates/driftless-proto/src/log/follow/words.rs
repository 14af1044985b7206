//! What a reader and its shell say to each other.

use crate::log::{Chain, Fault, Lease, LogTimer, Patience, Presence, Published, Reading, Stored};
use driftless_types::{Epoch, ObjectDigest, RunId, Seq, StreamId, Version};
use std::time::Duration;
use thiserror::Error;

/// When a reader is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// At the end of the log as it is.
    Once,
    /// At this version or a later one.
    AtLeast(Version),
    /// At this version.
    Exactly(Version),
    /// Never.
    Forever,
}

/// Whether a reader pins what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leasing {
    /// It does.
    Kept,
    /// It cannot, for the store is read-only: retention may interrupt it, and it goes on from an anchor.
    None,
}

/// How a reader works.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FollowOptions {
    /// When it is done.
    pub goal: Goal,
    /// Whether it pins what it needs.
    pub leasing: Leasing,
    /// Bounds of trying again.
    pub patience: Patience,
    /// How long it rests at the end of the log.
    pub poll_after: Duration,
    /// At most so many entries are read back for an anchor.
    pub look_back_max: u64,
    /// Where the counter of its lease begins: random, so that one life's lease is not taken for another's.
    pub lease_counter: u64,
}

/// The highest place that a reader has acted on: it refuses less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Highest {
    /// The epoch in force there.
    pub epoch: Epoch,
    /// The place.
    pub seq: Seq,
    /// The digest of the object there.
    pub object: ObjectDigest,
    /// The version there.
    pub version: Option<Version>,
}

/// Where a reader is. Persisted as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The run that the stream is of.
    pub run: RunId,
    /// The last entry that it went past, and what was in force there.
    pub chain: Chain,
    /// What its weights are, bit by bit; `None` if they are of no version. Who keeps the cursor but lost the weights
    /// says `None` and begins at an anchor, with the ratchet as it was.
    pub held: Option<Published>,
    /// The highest place it has ever been at.
    pub highest: Highest,
}

/// The entry that is being written into the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dirty {
    /// Its place.
    pub seq: Seq,
    /// The digest of its object.
    pub object: ObjectDigest,
}

/// What a reader finds on its disk when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Where it was; `None` the first time.
    pub cursor: Option<Cursor>,
    /// What it was writing.
    pub dirty: Option<Dirty>,
}

/// How writing an entry into the weights ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writing {
    /// Written and synced, and the digests are those that the entry names.
    Applied,
    /// Written, and the digests are not those that the entry names.
    WrongDigest,
    /// A blob's bytes are not what its name says, or do not decode; some of the entry may be written.
    BadBlob,
    /// A blob is gone; some of the entry may be written.
    Missing,
    /// The store or the disk failed; some of the entry may be written.
    Failed(Fault),
}

/// Why a reader does not get on. It is reported once, and tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The store fails for long.
    #[error(transparent)]
    Store(Fault),
    /// The reader's own disk fails for long.
    #[error("the reader's state cannot be persisted: {0}")]
    Disk(Fault),
    /// A blob stays invisible.
    #[error("a blob of entry {0} is not there")]
    Missing(Seq),
    /// A blob has other bytes than its name says.
    #[error("a blob of entry {0} is damaged")]
    BadBlob(Seq),
    /// The weights have other digests than the entry names.
    #[error("the weights after entry {0} do not have its digests")]
    WrongDigest(Seq),
    /// An entry does not verify.
    #[error("entry {0} does not verify")]
    Invalid(Seq),
    /// An entry that is listed stays invisible.
    #[error("entry {0} is listed and cannot be read")]
    Invisible(Seq),
    /// A delta's base is not the version before it.
    #[error("entry {0} is a delta of another lineage")]
    LineageBroken(Seq),
    /// There is no anchor from which the reader could go on.
    #[error("no usable anchor is in reach")]
    NoAnchor,
}

/// Why a reader stops for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum FollowStop {
    /// The log has another entry at a place where the reader has been.
    #[error("the log was forked: entry {seq} is {found}, the reader went past {mine}")]
    Forked {
        /// The place.
        seq: Seq,
        /// The object there as the reader knows it.
        mine: ObjectDigest,
        /// The object that is there now.
        found: ObjectDigest,
    },
    /// An entry goes back behind what the reader has seen without a `reset` directly before it.
    #[error("entry {seq} goes back to version {version} from {highest}")]
    WentBack {
        /// Its place.
        seq: Seq,
        /// Its version.
        version: Version,
        /// The highest that the reader knows.
        highest: Version,
    },
    /// The prefix holds another stream than the one that the reader follows.
    #[error("the prefix holds stream {found}, not {expected}")]
    OtherStream {
        /// The reader's.
        expected: StreamId,
        /// The stream that is there.
        found: StreamId,
    },
    /// The first entry is no genesis.
    #[error("the log does not begin with a genesis")]
    NoGenesis,
    /// The wanted version is not in the log, and will not be.
    #[error("version {wanted} is not in the log: the next one is {next}")]
    NotPublished {
        /// The wanted version.
        wanted: Version,
        /// The first one above it.
        next: Version,
    },
    /// The log is past the wanted version, and nothing in reach leads to it: that was retired, or is damaged.
    #[error(
        "version {wanted} is out of reach: the log is at {newest}, and no usable anchor leads there any more"
    )]
    OutOfReach {
        /// The wanted version.
        wanted: Version,
        /// The last one that was published.
        newest: Version,
    },
    /// Nothing is published yet.
    #[error("nothing is published yet")]
    Empty,
    /// A reader that was to go to the end once cannot.
    #[error(transparent)]
    Trouble(Trouble),
}

/// What was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Done {
    /// What the weights are.
    pub held: Published,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FollowEvent {
    /// The answer to `Read`.
    Read(Reading),
    /// The answer to `List`: the last place of the run of entries without a gap; `None` if none follows.
    Listed(Option<Seq>),
    /// The answer to `List`: no answer of the store.
    ListFailed(Fault),
    /// The answer to `CheckBlobs`.
    Blobs(Presence),
    /// The answer to `Apply`.
    Written(Writing),
    /// The answer to `PersistDirty` or `PersistCursor`: it is durable.
    Persisted,
    /// The answer to `PersistDirty` or `PersistCursor`: it may not be.
    PersistFailed(Fault),
    /// The answer to `PutLease`; it may come at any time between the others.
    LeasePut,
    /// The answer to `PutLease`: it may not be there.
    LeaseFailed(Fault),
    /// A timer fired.
    TimerFired(LogTimer),
}

/// What the shell must do. One answer is awaited at a time, that of `PutLease` aside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FollowCommand {
    /// Read the entry at this place.
    Read(Seq),
    /// List the log after this place.
    List {
        /// The place.
        after: Seq,
    },
    /// Say whether every blob that the entry names is there; nothing is changed.
    CheckBlobs(Stored),
    /// Make it durable that the weights are about to be written.
    PersistDirty(Dirty),
    /// Write the entry's values into the weights, sync them and compare digests.
    Apply(Stored),
    /// Make the cursor durable and remove the dirty mark, as one.
    PersistCursor(Box<Cursor>),
    /// Put the reader's lease.
    PutLease(Lease),
    /// Say when this much time has passed.
    ArmTimer {
        /// The timer.
        id: LogTimer,
        /// The time.
        after: Duration,
    },
    /// The weights are of this version now: after they were written, and once after the start if they are whole and
    /// nothing in the log contradicts them.
    Serve(Published),
    /// The reader does not get on, and tries on.
    Report(Trouble),
    /// The reader is done; its lease may go.
    Done(Done),
    /// The reader stops for good.
    Stopped(FollowStop),
}
