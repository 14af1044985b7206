//! What a collector and its shell say to each other.

use crate::log::{Fault, Lease, LogTimer, Patience, Reading, Stored};
use driftless_types::{Entry, Epoch, KeyId, ObjectDigest, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Whether anything is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetireMode {
    /// Append, wait and delete.
    Retire,
    /// Say what would be deleted if every lease that is there moved: nothing is written.
    Rehearse,
}

/// How a collector works.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RetireOptions {
    /// Whether anything is changed.
    pub mode: RetireMode,
    /// Bounds of trying again.
    pub patience: Patience,
    /// The key that the shell signs entries with; `None` if it signs none.
    pub signer: Option<KeyId>,
    /// At most so many entries are read back for the anchors that are kept.
    pub look_back_max: u64,
}

/// A blob's key as two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobKey {
    /// The counter of the epoch that wrote it.
    pub epoch: u64,
    /// The digest of its bytes.
    pub digest: ObjectDigest,
}

/// Why a collector stops without having deleted all that it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum RetireStop {
    /// There are not two anchors to keep.
    #[error("there are fewer than two anchors: nothing is retired (publish another anchor first)")]
    TooFewAnchors,
    /// An anchor that would be kept does not verify.
    #[error("the anchor at entry {seq} is damaged: nothing is retired (publish another anchor first)")]
    DamagedAnchor {
        /// Its place.
        seq: Seq,
    },
    /// A newer coordinator took the stream over in between.
    #[error("epoch {by} has taken the stream over (start again)")]
    Fenced {
        /// Its epoch.
        by: Epoch,
    },
    /// An entry is absent, does not verify, or does not fit its neighbors.
    #[error("entry {seq} is not what its neighbors say")]
    BrokenChain {
        /// Its place.
        seq: Seq,
    },
    /// LG-14: the newest entry is signed, and the one that would follow it is not.
    #[error(
        "entry {seq}, the newest, is signed by key {key}, and nothing is signed here (sign with that key)"
    )]
    Signed {
        /// Its place.
        seq: Seq,
        /// Its key.
        key: KeyId,
    },
    /// The anchors were not found within the bound.
    #[error("no two anchors within {entries} entries from the end of the log (raise `look_back_max`)")]
    LookBack {
        /// The bound.
        entries: u64,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RetireEvent {
    /// The answer to `Read`.
    Read(Reading),
    /// The answer to `List`: the last place of the run of entries without a gap; `None` if none follows.
    Listed(Option<Seq>),
    /// The answer to `Verify`: every blob was read again, and the bits have the digests that are named.
    Verified,
    /// The answer to `Verify`: a blob is absent or has other bytes.
    Damaged,
    /// The answer to `Create`.
    Created(ObjectDigest),
    /// The answer to `Create`: anything else.
    CreateFailed,
    /// The answer to `ReadLeases`: every lease that is there, by its reader's name.
    Leases(BTreeMap<String, Lease>),
    /// The answer to `NameBlobs`: all blobs that the entry names, those in its manifests included.
    Named(BTreeSet<ObjectDigest>),
    /// The answer to `ListBlobs`: a page of keys in order; empty after the last.
    Blobs(BTreeSet<BlobKey>),
    /// The answer to `Delete`.
    Deleted,
    /// A command failed.
    Failed(Fault),
    /// A timer fired.
    TimerFired(LogTimer),
}

/// What the shell must do. One answer is awaited at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RetireCommand {
    /// Read the entry at this place.
    Read(Seq),
    /// List the log after this place.
    List {
        /// The place.
        after: Seq,
    },
    /// Read every blob of this anchor again and compare digests.
    Verify(Stored),
    /// Encode and sign, the same bytes each time, and create if absent; no retries by the client.
    Create(Arc<Entry>),
    /// Read all leases.
    ReadLeases,
    /// Say which blobs this entry names.
    NameBlobs(Stored),
    /// List a page of blobs after this key.
    ListBlobs {
        /// The last key of the page before.
        after: Option<BlobKey>,
    },
    /// Delete these blobs.
    Delete(BTreeSet<BlobKey>),
    /// These blobs would be deleted.
    WouldDelete(BTreeSet<BlobKey>),
    /// Say when this much time has passed.
    ArmTimer {
        /// The timer.
        id: LogTimer,
        /// The time.
        after: Duration,
    },
    /// The entry is in the log.
    Retired(Stored),
    /// The store fails for long; it is tried on.
    StoreDown(Fault),
    /// Everything that nothing pins is deleted: blobs of entries before this place.
    Done {
        /// The first entry whose blobs are kept.
        keep_from: Seq,
    },
    /// The collector stops.
    Stopped(RetireStop),
}
