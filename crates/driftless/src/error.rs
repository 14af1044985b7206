//! What can be wrong with what a caller hands to a node.

use driftless_runtime::HostError;
use driftless_runtime::device::DeviceError;
use driftless_runtime::layout::LayoutError;
use driftless_runtime::types::{Digest, ReplicaId, Version};
use thiserror::Error;

/// Why a node did not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The actors could not be started.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The plan has no such replica.
    #[error("the plan has no replica {found}, expected one below {replicas}")]
    NoReplica {
        /// The replica that was named.
        found: ReplicaId,
        /// How many the plan has.
        replicas: usize,
    },
    /// A trainer or a replica was attached twice.
    #[error("{what} is attached already")]
    AttachedTwice {
        /// What was attached.
        what: String,
    },
    /// The number of ranks or tensors is not the plan's.
    #[error("{what}: found {found}, expected {expected}")]
    Count {
        /// What was counted, and where.
        what: String,
        /// How many the caller gave.
        found: usize,
        /// How many the plan has.
        expected: usize,
    },
    /// A buffer is not as long as the plan says.
    #[error("{tensor}: the buffer has {found} values, expected {expected}")]
    BufferLength {
        /// Rank and name of the tensor.
        tensor: String,
        /// Its length.
        found: u64,
        /// The plan's.
        expected: u64,
    },
    /// The strides of a tensor are not supported, or do not fit it: the source names it.
    #[error("{rank}: memory that the layout has no rule for")]
    Strides {
        /// The rank.
        rank: String,
        /// The tensor, and what was expected of it.
        source: LayoutError,
    },
    /// What is in a rank's memory is not the version that it says, read through the layout that it claims.
    #[error(
        "{receiver}: {tensor} does not hold version {version} in the claimed layout: its digest is {found}, expected \
         {expected}; load that version, or claim the layout that the engine uses (`LayoutClaim::Trusted` skips this proof)"
    )]
    LayoutNotProven {
        /// The rank.
        receiver: String,
        /// Its tensor.
        tensor: String,
        /// The version that was claimed.
        version: Version,
        /// The digest of what is there.
        found: Digest,
        /// The trainer's digest.
        expected: Digest,
    },
    /// Nobody knows what the claimed version should be.
    #[error(
        "version {version} cannot be proven: the trainer knows its first version and its newest, and must be attached \
         first (`LayoutClaim::Trusted` skips this proof)"
    )]
    NothingToProveAgainst {
        /// The version that was claimed.
        version: Version,
    },
    /// The handle of another node, such as the one before a re-plan.
    #[error("{what} belongs to another node; use the handle that this node gave when it was attached")]
    OtherNode {
        /// Whose handle it is.
        what: String,
    },
    /// The log that a node publishes to is planned for another trainer or other parameters.
    #[error(
        "the log that this node publishes to is planned for another trainer layout or model than the new plan's; start          another node, and publish there with the log's plan of that layout"
    )]
    LogOfAnotherPlan,
    /// The node was stopped.
    #[error("the node was stopped")]
    Stopped,
    /// Versions only grow.
    #[error("version {found} was reported, expected one above {last}")]
    VersionNotGrowing {
        /// The version that was reported.
        found: Version,
        /// The one before it.
        last: Version,
    },
    /// A task of this program failed.
    #[error("a task failed: {0}")]
    Task(String),
    /// The device refused the memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
