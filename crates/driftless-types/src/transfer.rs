//! What machines and backends say to each other about bytes in flight.

use crate::{Attempt, Epoch, Member, PlanDigest, RunId, Version};
use bytes::Bytes;
use std::fmt;

/// What an exchange belongs to: bytes and messages that carry another fence are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence {
    /// The training run.
    pub run: RunId,
    /// The coordinator's generation.
    pub epoch: Epoch,
    /// The try within the epoch; unique there, over all replicas.
    pub attempt: Attempt,
    /// The version that the attempt wants to commit.
    pub version: Version,
    /// The plan that both ends hold.
    pub plan: PlanDigest,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{} epoch {} attempt {}", self.version, self.epoch, self.attempt)
    }
}

/// A round of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Round {
    /// Round 1: one record per fragment of the pair; its size follows from the plan alone.
    Records,
    /// Round 2: exactly the bytes that round 1 announced.
    Payload,
}

/// An ordered pair of members between which the plan has fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId {
    /// Who sends.
    pub from: Member,
    /// Who receives.
    pub to: Member,
}

/// The name of a buffer: machines speak of bytes without holding any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId {
    /// The edge whose bytes it holds.
    pub edge: EdgeId,
    /// The round in which it moves.
    pub round: Round,
}

/// Bytes to move, wherever they live.
#[derive(Clone, Debug)]
pub enum Payload {
    /// In host memory, shared without a copy.
    Host(Bytes),
}

impl Payload {
    /// How many bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The elements of one fragment whose served bits may differ, in ascending order of position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeSet {
    /// Every element, in order: 16-bit words, as many per element as the dtype says.
    All(Vec<u16>),
    /// Some elements of a BF16 fragment: positions strictly rising, one value each.
    Sparse {
        /// Positions, row-major in the fragment's box.
        positions: Vec<u32>,
        /// The bits at the new version.
        values: Vec<u16>,
    },
}

impl ChangeSet {
    /// How many elements of a fragment of `elements` this set carries.
    #[must_use]
    pub const fn nnz(&self, elements: u64) -> u64 {
        match self {
            Self::All(_) => elements,
            Self::Sparse { positions, .. } => positions.len() as u64,
        }
    }
}
