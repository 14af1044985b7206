//! Why an attempt ended without a commit, as data: who failed, at which step, and what was found.

use driftless_types::{Member, ReceiverId, Retry, Version};
use std::collections::BTreeSet;
use std::fmt;
use thiserror::Error;

/// The root of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum RootCause {
    /// A wait of the protocol passed its deadline.
    #[error("{step} took longer than its deadline")]
    Deadline {
        /// The step that did not end.
        step: &'static str,
    },
    /// The member's actor ended in the middle of the attempt.
    #[error("the actor ended in the middle of the attempt")]
    Died,
    /// The node was stopped.
    #[error("the node was stopped")]
    Stopped,
    /// The trainer was detached.
    #[error("the trainer was detached")]
    Detached,
    /// The actor died so often that it is left alone for a while.
    #[error("the actor died too often and rests before it is started again")]
    Exhausted,
    /// The attempt was aborted because another member of its exchange failed.
    #[error("the attempt was aborted")]
    Aborted,
    /// The announced payload does not fit the receiver's staging memory.
    #[error("{bytes} bytes were announced, {limit} are allowed (raise `staging_max_bytes`)")]
    Refused {
        /// What the records announced.
        bytes: u64,
        /// What the receiver accepts.
        limit: u64,
    },
    /// The weights are of no version: what was written into them in place did not come to its end.
    #[error("the weights are of no version until everything is sent")]
    OutOfService,
    /// A sender's patch does not lead from what the replica serves.
    #[error("the patch leads from version {since} on, the replica serves {base}: everything must be sent")]
    Uncovered {
        /// What the replica serves.
        base: Version,
        /// The oldest base of the patch.
        since: Version,
    },
    /// The transport failed.
    #[error("transport: {0}")]
    Transport(String),
    /// Bytes that arrived were not what the plan and the records promise.
    #[error("hostile or damaged bytes: {0}")]
    Damaged(String),
    /// The live weights do not have the digests that the senders state.
    #[error("the digests of {} tensors differ from the trainer's", tensors.len())]
    DigestMismatch {
        /// The receiver's tensors that differ.
        tensors: BTreeSet<u32>,
    },
    /// The values of the version are gone: the optimizer has moved on.
    #[error("dense values were needed after the trainer had begun its next step")]
    WeightsMoved,
    /// The engine's hook did not pause it.
    #[error("the engine did not pause: {0}")]
    Pause(String),
    /// A task of this program failed.
    #[error("a task failed: {0}")]
    Task(String),
    /// Another member broke the protocol.
    #[error("protocol violation: {0}")]
    Violation(String),
}

impl RootCause {
    /// Whether it is how the failure of another member looks from here.
    const fn is_effect(&self) -> bool {
        matches!(self, Self::Aborted | Self::Transport(_))
    }

    /// What has to change before the version can be committed after all.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Refused { .. } | Self::OutOfService | Self::Uncovered { .. } => Retry::NeedsAnchor,
            // Values that are gone do not come back: only the next version can serve this replica.
            Self::WeightsMoved | Self::Stopped | Self::Detached => Retry::Never,
            Self::Deadline { .. }
            | Self::Died
            | Self::Exhausted
            | Self::Aborted
            | Self::Transport(_)
            | Self::Damaged(_)
            | Self::DigestMismatch { .. }
            | Self::Pause(_)
            | Self::Task(_)
            | Self::Violation(_) => Retry::NewAttempt,
        }
    }
}

/// Where an attempt was when something went wrong, as its lead saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttemptStep {
    /// The receivers were to receive, check and stage.
    Staging,
    /// The engine was to stand still.
    Pausing,
    /// The receivers were to take everything in place.
    Taking,
    /// The receivers were to write what was staged.
    Applying,
    /// The lead itself had died: its successor found the attempt open.
    Recovering,
}

impl fmt::Display for AttemptStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Staging => "staging",
            Self::Pausing => "pausing",
            Self::Taking => "taking everything in place",
            Self::Applying => "applying",
            Self::Recovering => "recovering",
        })
    }
}

/// What the first failure of an attempt led to at another member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Effect {
    /// The member.
    pub member: Member,
    /// What it met.
    pub root: RootCause,
}

/// Why an attempt failed, as a chain: who failed first, at which step, and what that led to elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub struct Cause {
    /// The member that failed first.
    pub member: Member,
    /// What happened to it.
    #[source]
    pub root: RootCause,
    /// Where the attempt was; `None` if no lead had a part in it.
    pub step: Option<AttemptStep>,
    /// What was heard of others afterwards, in that order.
    pub effects: Vec<Effect>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.member, self.root)?;
        if let Some(step) = self.step {
            write!(f, " (while {step})")?;
        }
        self.effects.iter().try_for_each(|effect| write!(f, "; then {}: {}", effect.member, effect.root))
    }
}

impl Cause {
    /// A failure of a member, of which no lead has heard yet.
    #[must_use]
    pub const fn new(member: Member, root: RootCause) -> Self {
        Self { member, root, step: None, effects: Vec::new() }
    }

    /// A failure of a receiver.
    #[must_use]
    pub const fn at(receiver: ReceiverId, root: RootCause) -> Self {
        Self::new(Member::Receiver(receiver), root)
    }

    /// The same, with the step at which the attempt was, if that was not said before.
    pub(crate) fn during(self, step: Option<AttemptStep>) -> Self {
        Self { step: self.step.or(step), ..self }
    }

    /// Another member failed after it, in the same attempt. One that only met the other's end was no cause: the order in
    /// which a lead hears of failures is not the order in which they happened.
    pub(crate) fn then(mut self, later: Self) -> Self {
        if self.member == later.member || self.effects.iter().any(|effect| effect.member == later.member) {
            return self; // CM-10
        }
        if self.root.is_effect() && !later.root.is_effect() {
            let (step, effects) = (self.step, self.effects);
            let mut first = later.during(step);
            first.effects.push(Effect { member: self.member, root: self.root });
            first.effects.extend(effects);
            return first;
        }
        self.effects.push(Effect { member: later.member, root: later.root });
        self
    }

    /// What has to change before the version can be committed after all.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        self.root.retry()
    }
}

/// An event that no correct peer sends in this state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
#[error("{event} arrived in state {state}")]
pub struct ProtocolViolation {
    /// The state that received it.
    pub state: &'static str,
    /// The event.
    pub event: &'static str,
}

impl ProtocolViolation {
    /// The actor that meets one starts afresh: the attempt is lost, the version is not.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        Retry::NewAttempt
    }
}
