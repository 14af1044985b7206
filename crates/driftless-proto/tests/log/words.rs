//! Entries that tests speak of.

use driftless_proto::log::{Patience, Stored};
use driftless_types::{
    BlobRef, Entry, EntryKind, Epoch, Genesis, ObjectDigest, Publication, RunId, Seq, StreamId, Version,
    WriterManifest, Writers,
};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const STREAM: StreamId = StreamId([7; 16]);
pub(crate) const RUN: RunId = RunId([9; 16]);

pub(crate) const fn epoch(counter: u64) -> Epoch {
    Epoch { counter, incarnation: counter + 100 }
}

pub(crate) const fn patience() -> Patience {
    Patience { tries: 3, first: Duration::from_secs(1), longest: Duration::from_secs(3) }
}

pub(crate) fn blob(name: impl Hash) -> BlobRef {
    BlobRef { digest: ObjectDigest(digest(name)), stored_bytes: 1, raw_bytes: 1 }
}

fn digest(of: impl Hash) -> [u8; 32] {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&hasher.finish().to_le_bytes());
    bytes
}

/// The entry as the store would hold it.
pub(crate) fn stored(entry: Entry) -> Stored {
    let object = ObjectDigest(digest(&entry));
    Stored { entry: Arc::new(entry), object, signer: None }
}

pub(crate) fn manifest(rank: u32, version: u64) -> WriterManifest {
    WriterManifest { rank, blobs: vec![blob((rank, version))], nnz: version }
}

/// What two writers publish.
pub(crate) fn publication(version: u64) -> Publication {
    Publication {
        version: Version(version),
        writer_count: 2,
        writers: Writers::Inline(vec![manifest(0, version), manifest(1, version)]),
        digests: blob(("digests", version)),
    }
}

pub(crate) fn anchor(version: u64) -> EntryKind {
    EntryKind::Anchor(publication(version))
}

pub(crate) fn delta(base: u64, version: u64) -> EntryKind {
    EntryKind::Delta { base_version: Version(base), publication: publication(version) }
}

pub(crate) const fn reset(below: u64) -> EntryKind {
    EntryKind::Reset { version_below: Version(below) }
}

pub(crate) fn genesis_kind(run: RunId) -> Genesis {
    Genesis {
        run,
        digest_key: [1; 16],
        lease_ttl_s: 600,
        parameters: blob("parameters"),
        model_config: blob("config"),
    }
}

/// A log that grows by correct writers.
#[derive(Clone, Debug)]
pub(crate) struct Log(pub(crate) Vec<Stored>);

impl Log {
    pub(crate) fn founded() -> Self {
        Self(Vec::new()).then(1, EntryKind::Genesis(genesis_kind(RUN)))
    }

    /// One more entry of the epoch with this counter.
    pub(crate) fn then(mut self, counter: u64, kind: EntryKind) -> Self {
        let next = self.next(counter, kind);
        self.0.push(stored(next));
        self
    }

    /// The entry that would come next.
    pub(crate) fn next(&self, counter: u64, kind: EntryKind) -> Entry {
        let Epoch { counter, incarnation } = epoch(counter);
        Entry {
            stream: STREAM,
            seq: Seq(self.0.len() as u64),
            epoch: counter,
            created_by: incarnation,
            parent: self.0.last().map_or(ObjectDigest::ZERO, |last| last.object),
            kind,
        }
    }

    pub(crate) fn at(&self, seq: u64) -> Stored {
        self.0[usize::try_from(seq).expect("small")].clone()
    }
}
