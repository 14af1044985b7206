//! What the machines of the log and their shells say to each other alike.

use driftless_types::{Entry, Epoch, KeyId, ObjectDigest, Seq, Version};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// An entry as it is stored, its signature and its encoding verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What it says.
    pub entry: Arc<Entry>,
    /// The digest of its whole object: the next entry names it as its parent.
    pub object: ObjectDigest,
    /// The key that its signature names, as it was read; `None` if it is unsigned, or was just written here.
    pub signer: Option<KeyId>,
}

/// Equal objects have equal digests, and different ones do not.
impl Hash for Stored {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.object.hash(state);
    }
}

impl Stored {
    /// Its place in the log.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.entry.seq
    }

    /// What it publishes: `None` for an entry that is neither anchor nor delta.
    #[must_use]
    pub fn published(&self) -> Option<Published> {
        let version = self.entry.kind.publication()?.version;
        Some(Published { seq: self.entry.seq, version, epoch: self.entry.fence(), object: self.object })
    }
}

/// A version as it stands in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Published {
    /// The place of its entry.
    pub seq: Seq,
    /// The version.
    pub version: Version,
    /// The epoch of its entry.
    pub epoch: Epoch,
    /// The digest of its entry's object.
    pub object: ObjectDigest,
}

/// Why a store, or the disk beside it, did not do as it was told. Details are the shell's to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Error)]
#[non_exhaustive]
pub enum Fault {
    /// It cannot be reached, is busy, or was too slow.
    #[error("the store cannot be reached or is too slow")]
    Unavailable,
    /// It can be reached and does not permit this.
    #[error("the store does not permit this (check credentials and permissions)")]
    Denied,
    /// Nothing more fits on it.
    #[error("there is no room left")]
    Full,
}

/// What a read of an entry's key gave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reading {
    /// An entry that verified.
    Found(Stored),
    /// Nothing: neither a read nor, after it, a listing of the folder shows the key.
    Absent,
    /// Bytes that do not verify: too many, unsigned, by an unknown key, not canonical, of another place or stream.
    Invalid,
    /// No answer.
    Failed(Fault),
}

/// Whether every blob that an entry names is there, with the length that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Presence {
    /// All of them are.
    All,
    /// At least one is not, or not yet.
    Missing,
    /// No answer.
    Failed(Fault),
}

/// What a reader pins. Overwritten under the reader's own key for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// Grows with every renewal: a lease that does not move pins nothing.
    pub counter: u64,
    /// The lowest place whose blobs the reader may need.
    pub pinned: Seq,
}

/// What a timer is for. Arming one again replaces the one that was armed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogTimer {
    /// What failed is tried again.
    Retry,
    /// A reader at the end of the log looks again.
    Poll,
    /// A reader's lease is renewed.
    Lease,
    /// Leases that did not move in this time pin nothing.
    LeaseTtl,
}

/// How often and how long something is tried before it is reported. It is tried after that too, at the longest pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patience {
    /// So many failures in a row are reported.
    pub tries: u32,
    /// The pause after the first failure; it doubles with each. The shell adds jitter.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { tries: 8, first: Duration::from_millis(100), longest: Duration::from_secs(10) }
    }
}

impl Patience {
    /// The pause after this many failures in a row.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// Failures in a row, up to the number that is reported, and whether the next try waits for its timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Failures {
    count: u32,
    is_pausing: bool,
}

impl Failures {
    /// One more: the pause before the next try, and whether this is the one that is reported. Beyond that they are
    /// not counted, so that an outage of any length is one state.
    pub(crate) fn add(&mut self, patience: &Patience) -> (Duration, bool) {
        let was_spent = self.is_spent(patience);
        self.count = (self.count + 1).min(patience.tries);
        self.is_pausing = true;
        let after = if was_spent { patience.longest } else { patience.pause(self.count) };
        (after, !was_spent && self.is_spent(patience))
    }

    pub(crate) const fn is_spent(&self, patience: &Patience) -> bool {
        self.count >= patience.tries
    }

    /// A timer fired: whether it is the one that is waited for.
    pub(crate) const fn resume(&mut self) -> bool {
        std::mem::replace(&mut self.is_pausing, false)
    }
}
