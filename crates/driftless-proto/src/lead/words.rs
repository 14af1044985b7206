//! What a lead hears, what it asks for, and what it reports.

use crate::{Cause, FromLead, Intake, RootCause, TimerId, ToLead};
use driftless_types::{Epoch, Fence, ReceiverId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Deadlines of a lead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeadOptions {
    /// From `Begin` until every receiver has staged.
    pub staging_deadline: Duration,
    /// For the engine's pause hook.
    pub pause_deadline: Duration,
    /// From `Apply` until every receiver has applied.
    pub apply_deadline: Duration,
    /// Until every receiver has taken everything in place.
    pub taking_deadline: Duration,
    /// After this time an unacknowledged decision is sent again, and an unanswered question asked again.
    pub repeat_after: Duration,
}

/// How an attempt ended for the whole replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Every receiver serves the new version.
    Committed,
    /// Every receiver serves the old version; after an attempt in place, some may be of no version instead.
    RolledBack(Cause),
}

impl Verdict {
    /// What was heard after it: it changes no decision, and belongs to the chain of causes.
    pub(super) fn then(self, later: Cause) -> Self {
        match self {
            Self::Committed => Self::Committed,
            Self::RolledBack(first) => Self::RolledBack(first.then(later)),
        }
    }
}

/// The lead's word to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// The attempt.
    pub fence: Fence,
    /// How it ended.
    pub verdict: Verdict,
    /// Tensors to be sent whole by the next attempt.
    pub repair: BTreeMap<ReceiverId, BTreeSet<u32>>,
    /// How the replica takes the next attempt.
    pub intake: Intake,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The coordinator opens an attempt.
    Begin(Fence, Intake),
    /// The coordinator gives an attempt up.
    Abort(Fence, Cause),
    /// A word from a receiver of this replica.
    Member(ReceiverId, ToLead),
    /// The engine is paused.
    Paused(Fence, Result<(), RootCause>),
    /// The engine serves again.
    Resumed,
    /// A coordinator of this epoch is there: it must learn what the replica serves.
    NewEpoch(Epoch),
    /// It is time to say again where the replica stands: what was said last may have been lost.
    KeepAlive,
    /// A timer fired.
    TimerFired(TimerId),
}

/// What the actor must do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Say this to a receiver of the replica.
    Tell(ReceiverId, FromLead),
    /// Call the engine's pause hook.
    Pause(Fence),
    /// Call the engine's resume hook.
    Resume,
    /// Tell the machine when this much time has passed.
    ArmTimer {
        /// The timer's name.
        id: TimerId,
        /// The time to wait.
        after: Duration,
    },
    /// The attempt is over: tell the coordinator.
    Report(Outcome),
    /// No attempt is open, and every receiver is accounted for: tell the coordinator what the replica serves.
    ReportServing,
}

/// Whether the engine's hooks say that it is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// It serves.
    Serving,
    /// It stands still until it is resumed.
    Paused,
}
