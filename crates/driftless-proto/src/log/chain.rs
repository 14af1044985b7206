//! What is in force at a place of the log.

use super::words::Published;
use driftless_types::{Epoch, ObjectDigest, Seq, StreamId, Version};

/// Whether the next version may be lower than the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fall {
    /// It may not.
    Refused,
    /// An `epoch` entry came last: a `reset` may follow.
    AfterEpoch,
    /// A `reset` came last: an anchor below this version may follow.
    Below(Version),
}

/// A place in the log, and what is in force there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The stream.
    pub stream: StreamId,
    /// The place.
    pub seq: Seq,
    /// The digest of the object there.
    pub object: ObjectDigest,
    /// The epoch in force.
    pub epoch: Epoch,
    /// The last publication that has effect.
    pub last: Option<Published>,
    /// Whether the next version may be lower.
    pub fall: Fall,
}
