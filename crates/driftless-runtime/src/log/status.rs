//! What a publisher and a reader say of how far they are.

use super::target::Made;
use driftless_proto::log::{Done, Fault, FollowStop, PublishStop, Published, Task, TaskKind, Trouble};
use driftless_types::{Version, WriterManifest};
use std::time::{Duration, Instant};

/// Where a publisher is.
#[derive(Clone, Debug, PartialEq)]
pub enum PublishState {
    /// It reads the log, and takes the stream over.
    Opening,
    /// The stream is open.
    Open {
        /// Its last publication, if this trainer's weights are that or come from it: the watermark.
        last: Option<Published>,
        /// What that took, if this publisher wrote it.
        took: Option<Publication>,
    },
    /// A version is written, and its entry is to be appended.
    Publishing(Publication),
    /// The store fails for long; nothing is lost, and it is tried on.
    Down(Fault),
    /// It has stopped for good.
    Stopped(PublishStop),
}

/// What a version takes in the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Publication {
    /// The version.
    pub version: Version,
    /// The base of a delta; `None` for an anchor.
    pub base: Option<Version>,
    /// Elements that were written.
    pub nnz: u64,
    /// Blobs.
    pub blobs: usize,
    /// Their bytes as they are stored.
    pub stored_bytes: u64,
    /// How long encoding and uploading took.
    pub took: Duration,
}

impl Publication {
    pub(super) fn of(made: &Made, task: &Task, writers: &[WriterManifest], since: Instant) -> Self {
        let blobs = || writers.iter().flat_map(|writer| &writer.blobs);
        Self {
            version: made.version,
            base: match task.kind {
                TaskKind::Anchor => None,
                TaskKind::Delta(base) => Some(base),
            },
            nnz: writers.iter().map(|writer| writer.nnz).sum(),
            blobs: blobs().count(),
            stored_bytes: blobs().map(|blob| blob.stored_bytes).sum(),
            took: since.elapsed(),
        }
    }
}

/// Where a reader is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FollowState {
    /// What the weights are; `None` until the first version is proven.
    pub serving: Option<Published>,
    /// Bytes of blobs that were read and checked.
    pub read_bytes: u64,
    /// Why it does not get on, until it does.
    pub trouble: Option<Trouble>,
    /// Whether and how it has ended.
    pub ended: Option<FollowEnd>,
}

/// How a reader ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowEnd {
    /// It has reached what it was to reach.
    Done(Done),
    /// It stopped for good.
    Stopped(FollowStop),
    /// The replica was detached, or the node was stopped.
    Left,
}
