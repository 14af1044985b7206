//! Timers by name: machines arm them and are told when they fire; a timer that no longer matters is ignored.

use driftless_types::{Attempt, Epoch, Fence, ReplicaId};

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimerKind {
    /// Round 1 of an exchange must have moved.
    Records,
    /// Round 2 of an exchange must have moved.
    Payload,
    /// Every receiver must have staged.
    Staging,
    /// The engine must have paused.
    Pausing,
    /// Every receiver must have applied.
    Applying,
    /// Every receiver must have taken everything in place.
    Taking,
    /// A decision that is not acknowledged yet is sent again.
    Repeat,
    /// A receiver that has not said where it stands is asked again.
    AskAgain,
    /// A replica whose attempt failed is tried again.
    BackOff(ReplicaId),
    /// The coordinator must have heard how the attempt for a replica ended.
    Attempt(ReplicaId),
}

/// One armed timer: a machine that moved on to another attempt does not mistake an old timer for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerId {
    /// The epoch in which it was armed.
    pub epoch: Epoch,
    /// The attempt for which it was armed.
    pub attempt: Attempt,
    /// What it is for.
    pub kind: TimerKind,
}

impl TimerId {
    /// The timer of an attempt.
    #[must_use]
    pub const fn of(fence: &Fence, kind: TimerKind) -> Self {
        Self { epoch: fence.epoch, attempt: fence.attempt, kind }
    }
}
