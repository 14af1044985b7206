//! All that a model's state is.

use crate::words::Bits;
use driftless_proto::log::{
    Ask, BlobKey, Follow, FollowCommand, Lease, Memory, Publish, PublishCommand, Published, Retire,
    RetireCommand, Stored,
};
use driftless_types::{Entry, ObjectDigest, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Breach {
    pub(crate) id: &'static str,
    pub(crate) found: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) log: Vec<Stored>,
    pub(crate) blobs: BTreeSet<BlobKey>,
    /// Creations whose sender was told of an error, and which may still be carried out.
    pub(crate) on_the_way: Vec<Arc<Entry>>,
    pub(crate) writers: Vec<Writer>,
    pub(crate) readers: Vec<Reader>,
    pub(crate) leases: BTreeMap<String, Lease>,
    pub(crate) collector: Collector,
    pub(crate) faults: Faults,
    pub(crate) breach: Option<Breach>,
}

/// How much may still go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    pub(crate) writer_deaths: u8,
    pub(crate) reader_deaths: u8,
    /// Creations that are carried out, and their sender is told of an error.
    pub(crate) lost_replies: u8,
    /// Creations whose sender is told of an error, and which are carried out later.
    pub(crate) delays: u8,
    /// Blobs or weights that fail to be written once.
    pub(crate) io: u8,
    /// Readers that stand still for longer than a lease holds.
    pub(crate) stalls: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    /// The trainer's history: its own bits at every version.
    pub(crate) history: u8,
    pub(crate) asks: Vec<Ask>,
    pub(crate) life: u64,
    /// The last object that it was told to be published.
    pub(crate) published: Option<ObjectDigest>,
    pub(crate) machine: Option<Publish>,
    pub(crate) todo: Option<PublishCommand>,
    /// The bodies of this life, by place.
    pub(crate) bodies: BTreeMap<Seq, ObjectDigest>,
    /// Blobs that this life put or found.
    pub(crate) put: BTreeSet<BlobKey>,
}

/// What is in a reader's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Weights {
    Nothing,
    Whole(Bits),
    /// A delta was written in part over its base.
    Mixed(Bits, Seq),
    Torn,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reader {
    pub(crate) life: u64,
    pub(crate) machine: Follow,
    pub(crate) todo: Option<FollowCommand>,
    pub(crate) lease: Option<Lease>,
    pub(crate) is_lease_armed: bool,
    /// How long the log was when it began to wait for more.
    pub(crate) waits: Option<usize>,
    pub(crate) disk: Memory,
    pub(crate) weights: Weights,
    /// The entry whose blobs it found to be there.
    pub(crate) checked: Option<Seq>,
    pub(crate) served: Option<Published>,
    /// It put its lease in this life.
    pub(crate) has_lease: bool,
    /// It renewed its lease since the collector waits.
    pub(crate) has_renewed: bool,
    pub(crate) has_stalled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Collector {
    None,
    Due,
    Running(Box<Retire>, Option<RetireCommand>),
}

impl State {
    pub(crate) fn breach(&mut self, id: &'static str, found: &'static str) {
        self.breach.get_or_insert(Breach { id, found });
    }

    /// The state in a few lines.
    pub(crate) fn seen(&self) -> String {
        let entry = |stored: &Stored| {
            let version = stored.published().map(|held| held.version.0);
            format!("{} {} {version:?}", stored.entry.kind.name(), stored.entry.epoch)
        };
        let log: Vec<String> = self.log.iter().map(entry).collect();
        let readers: Vec<_> =
            self.readers.iter().map(|reader| (reader.weights, &reader.todo, &reader.machine)).collect();
        let writers: Vec<_> =
            self.writers.iter().map(|writer| (&writer.asks, &writer.todo, &writer.machine)).collect();
        let blobs = self.blobs.len();
        format!(
            "log {log:?}\n{blobs} blobs, leases {:?}\nreaders {readers:?}\nwriters {writers:?}",
            self.leases
        )
    }

    pub(crate) fn at(&self, seq: Seq) -> Option<&Stored> {
        self.log.get(usize::try_from(seq.0).expect("small"))
    }
}
