//! The entries of a log as data: what a publisher says once and for all, and what readers believe after checking it.
//!
//! Their bytes, signatures and caps are the codec's; what follows from them is decided by the state machines.

use crate::{Epoch, Hex, RunId, Version};
use derive_more::Display;
use std::fmt;

/// An entry's place in its log: genesis is 0, and every place is taken exactly once.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seq(pub u64);

impl Seq {
    /// The place of genesis.
    pub const GENESIS: Self = Self(0);

    /// The place after this one.
    ///
    /// # Panics
    /// After 2^64 - 1 entries: formats refuse places from 2^53 on long before.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a log has fewer than 2^64 entries"))
    }
}

/// A log under one prefix of an object store, as 16 random bytes that genesis fixes: an entry of one stream is
/// never taken for one of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub [u8; 16]);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.0), f)
    }
}

/// The name of a public key that signs entries: the first 8 bytes of its BLAKE3 digest, printed as 16 hexadecimal
/// digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.0), f)
    }
}

/// The BLAKE3 digest of a whole stored object: an entry with its signature, or a blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectDigest(pub [u8; 32]);

impl ObjectDigest {
    /// What genesis names as its parent.
    pub const ZERO: Self = Self([0; 32]);
}

impl fmt::Display for ObjectDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.0), f)
    }
}

/// A blob that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobRef {
    /// The digest of its bytes as they are stored.
    pub digest: ObjectDigest,
    /// Its length as it is stored, in bytes.
    pub stored_bytes: u64,
    /// Its length once it is decompressed, in bytes; the same if it is stored as it is.
    pub raw_bytes: u64,
}

/// What one rank of the trainer wrote for a version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterManifest {
    /// The rank.
    pub rank: u32,
    /// Its blobs in order: sections back to back; none if nothing of its part changed.
    pub blobs: Vec<BlobRef>,
    /// The elements that they carry.
    pub nnz: u64,
}

/// The manifests of all writers of a version, in order of rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Writers {
    /// In the entry itself.
    Inline(Vec<WriterManifest>),
    /// In a blob, because they do not fit the cap of an entry.
    Blob(BlobRef),
}

/// What an anchor and a delta have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Publication {
    /// The version that it leads to.
    pub version: Version,
    /// How many writers the trainer's plan has: each is present exactly once, those without changes included.
    pub writer_count: u32,
    /// What they wrote.
    pub writers: Writers,
    /// A blob of 16 bytes per parameter in order of id: the digest of its bits at this version.
    pub digests: BlobRef,
}

/// An anchor that a `retire` keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AnchorRef {
    /// Its place in the log.
    pub seq: Seq,
    /// The digest of its entry, signature included.
    pub object: ObjectDigest,
}

/// The first entry of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Genesis {
    /// The training run.
    pub run: RunId,
    /// The bytes that the keys of the element digest are derived from.
    pub digest_key: [u8; 16],
    /// How long a lease pins what its reader needs after it was last renewed, in seconds.
    pub lease_ttl_s: u64,
    /// The table of parameters: name, shape and dtype of each.
    pub parameters: BlobRef,
    /// The model's `config.json`, as it is.
    pub model_config: BlobRef,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// The stream begins. Only at place 0.
    Genesis(Genesis),
    /// A coordinator takes over: entries of older epochs have no effect from here on.
    Epoch,
    /// A complete set of weights.
    Anchor(Publication),
    /// The changes between two versions.
    Delta {
        /// The version that a reader must be at, exactly.
        base_version: Version,
        /// What was written, and the version that it leads to.
        publication: Publication,
    },
    /// Blobs of entries before `keep_from` may be deleted once no lease pins them.
    Retire {
        /// The first entry whose blobs are kept.
        keep_from: Seq,
        /// The anchors that stay, which the writer has read again and verified.
        anchors: Vec<AnchorRef>,
    },
    /// The next anchor may have a lower version than was published before, if it is below this one.
    Reset {
        /// The bound.
        version_below: Version,
    },
}

impl EntryKind {
    /// The kind's name in formats.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Genesis(_) => "genesis",
            Self::Epoch => "epoch",
            Self::Anchor(_) => "anchor",
            Self::Delta { .. } => "delta",
            Self::Retire { .. } => "retire",
            Self::Reset { .. } => "reset",
        }
    }

    /// The version that a delta is relative to; `None` for every other kind.
    #[must_use]
    pub const fn base_version(&self) -> Option<Version> {
        match self {
            Self::Delta { base_version, .. } => Some(*base_version),
            _ => None,
        }
    }

    /// What an anchor or a delta publishes; `None` for every other kind.
    #[must_use]
    pub const fn publication(&self) -> Option<&Publication> {
        match self {
            Self::Anchor(publication) | Self::Delta { publication, .. } => Some(publication),
            Self::Genesis(_) | Self::Epoch | Self::Retire { .. } | Self::Reset { .. } => None,
        }
    }
}

/// One entry of a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The stream that it belongs to.
    pub stream: StreamId,
    /// Its place there.
    pub seq: Seq,
    /// The counter of its writer's epoch.
    pub epoch: u64,
    /// The incarnation of the coordinator that wrote it: the other half of its epoch.
    pub created_by: u64,
    /// The digest of the whole object at the place before; zero for genesis.
    pub parent: ObjectDigest,
    /// What it says.
    pub kind: EntryKind,
}

impl Entry {
    /// The generation of the coordinator that wrote it.
    #[must_use]
    pub const fn fence(&self) -> Epoch {
        Epoch { counter: self.epoch, incarnation: self.created_by }
    }
}
