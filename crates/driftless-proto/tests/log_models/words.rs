//! What the models are made of: bits, entries and blobs that say what they hold.

use driftless_proto::log::{BlobKey, Patience, Stored};
use driftless_types::{
    BlobRef, Entry, EntryKind, Epoch, Genesis, ObjectDigest, RunId, StreamId, Version, WriterManifest,
    Writers,
};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const RUN: RunId = RunId([1; 16]);

pub(crate) const PATIENCE: Patience =
    Patience { tries: 3, first: Duration::from_secs(1), longest: Duration::from_secs(1) };

/// The weights of a version in one history of a trainer: another history has other bits at the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bits {
    pub(crate) history: u8,
    pub(crate) version: u8,
}

impl Bits {
    pub(crate) fn of(history: u8, version: Version) -> Self {
        Self { history, version: u8::try_from(version.0).expect("small") }
    }
}

/// What a blob holds: the bits that it leads to, and the base that it needs, if it is a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Values {
    pub(crate) to: Bits,
    pub(crate) base: Option<Bits>,
}

impl Values {
    /// Equal values are equal bytes, whoever writes them.
    pub(crate) fn blob(self, rank: u8) -> BlobRef {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&[1, rank, self.to.history, self.to.version]);
        if let Some(base) = self.base {
            bytes[4..7].copy_from_slice(&[1, base.history, base.version]);
        }
        named(bytes)
    }

    fn read(bytes: &[u8; 32]) -> Self {
        let bits = |at: usize| Bits { history: bytes[at], version: bytes[at + 1] };
        Self { to: bits(2), base: (bytes[4] == 1).then(|| bits(5)) }
    }
}

const fn named(bytes: [u8; 32]) -> BlobRef {
    BlobRef { digest: ObjectDigest(bytes), stored_bytes: 1, raw_bytes: 1 }
}

pub(crate) fn digests_blob(bits: Bits) -> BlobRef {
    let mut bytes = [0; 32];
    bytes[..3].copy_from_slice(&[2, bits.history, bits.version]);
    named(bytes)
}

pub(crate) const fn genesis() -> Genesis {
    let blob = named([3; 32]);
    Genesis { run: RUN, digest_key: [0; 16], lease_ttl_s: 600, parameters: blob, model_config: blob }
}

pub(crate) const fn stream(of: u64) -> StreamId {
    StreamId([if of == 0 { 0 } else { 1 }; 16])
}

pub(crate) fn stored(entry: Arc<Entry>) -> Stored {
    let object = object(&entry);
    Stored { entry, object, signer: None }
}

pub(crate) fn object(entry: &Entry) -> ObjectDigest {
    let mut hasher = DefaultHasher::new();
    entry.hash(&mut hasher);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&hasher.finish().to_le_bytes());
    ObjectDigest(bytes)
}

/// The keys of all blobs that an entry names.
pub(crate) fn names(entry: &Entry) -> BTreeSet<BlobKey> {
    let key = |blob: &BlobRef| BlobKey { epoch: entry.epoch, digest: blob.digest };
    if let EntryKind::Genesis(genesis) = &entry.kind {
        return [key(&genesis.parameters), key(&genesis.model_config)].into();
    }
    let Some(publication) = entry.kind.publication() else { return BTreeSet::new() };
    let mut keys = BTreeSet::from([key(&publication.digests)]);
    match &publication.writers {
        Writers::Inline(writers) => keys.extend(writers.iter().flat_map(|writer| &writer.blobs).map(key)),
        Writers::Blob(blob) => {
            keys.insert(key(blob));
        }
    }
    keys
}

/// What an entry's blobs hold.
pub(crate) fn values(entry: &Entry) -> Option<Values> {
    let Writers::Inline(writers) = &entry.kind.publication()?.writers else { return None };
    Some(Values::read(&writers.first()?.blobs.first()?.digest.0))
}

pub(crate) fn manifest(rank: u32, values: Values) -> WriterManifest {
    let blob = values.blob(u8::try_from(rank).expect("small"));
    WriterManifest { rank, blobs: vec![blob], nnz: 1 }
}

/// The epoch in force after these entries.
pub(crate) fn epoch_after(log: &[Stored]) -> Epoch {
    let begins = |stored: &&Stored| matches!(stored.entry.kind, EntryKind::Epoch | EntryKind::Genesis(_));
    log.iter().filter(begins).map(|stored| stored.entry.fence()).max().unwrap_or_default()
}
