//! Why a batch did not move.

use driftless_types::{Epoch, Fence, Member, Retry};
use thiserror::Error;

/// Why a batch did not move.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Somebody aborted the exchange.
    #[error("the exchange of {fence} was aborted")]
    Aborted {
        /// The exchange.
        fence: Box<Fence>,
    },
    /// The exchange was retired, or is older than the oldest that is remembered.
    #[error("the exchange of {fence} is over")]
    Over {
        /// The exchange.
        fence: Box<Fence>,
    },
    /// A batch of an older epoch than the newest one seen.
    #[error("the batch belongs to epoch {found}, expected {expected} or newer")]
    StaleEpoch {
        /// The epoch of the batch.
        found: Epoch,
        /// The newest epoch seen.
        expected: Epoch,
    },
    /// A batch names the exchange of others, but does not agree with them on what is exchanged.
    #[error("the {what} of attempt {} in epoch {} is {found}, expected {expected}", .fence.attempt, .fence.epoch)]
    ForeignFence {
        /// Which part of the fence differs.
        what: &'static str,
        /// Its value in the batch.
        found: String,
        /// The value of the members that posted before.
        expected: String,
        /// The fence of the batch.
        fence: Box<Fence>,
    },
    /// A payload has another size than its receiver announced.
    #[error("{from} sent {found} bytes, expected {expected}")]
    SizeMismatch {
        /// Who sent it.
        from: Member,
        /// Bytes that came.
        found: u64,
        /// Bytes that were announced.
        expected: u64,
    },
    /// Too many bytes wait for members that have not posted.
    #[error("{needed} bytes would wait for receivers that have not posted, expected at most {limit}")]
    EarlyBytes {
        /// Bytes that would have to be held.
        needed: u64,
        /// The most that are held for one exchange.
        limit: u64,
    },
    /// Too many exchanges are open at once.
    #[error("{limit} exchanges are open, and no more are expected at once")]
    OpenExchanges {
        /// The most that may be open.
        limit: usize,
    },
    /// The connection broke while a batch moved.
    #[error("the connection of {at} broke in the middle of a batch")]
    Reset {
        /// Whose connection.
        at: Member,
    },
}

impl TransportError {
    /// What has to change before the bytes can move.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            // Room comes back when other exchanges end.
            Self::OpenExchanges { .. } => Retry::SameAttempt,
            Self::StaleEpoch { .. } => Retry::NewEpoch,
            // The members hold different plans: no attempt makes them agree.
            Self::ForeignFence { .. } => Retry::Never,
            Self::Aborted { .. }
            | Self::Over { .. }
            | Self::SizeMismatch { .. }
            | Self::EarlyBytes { .. }
            | Self::Reset { .. } => Retry::NewAttempt,
        }
    }
}
