//! Who speaks to whom, and what can happen next.

use driftless_proto::{CoordinatorEvent, FromLead, LeadEvent, Needs, TimerId};
use driftless_types::{Epoch, Fence, Incarnation, ReceiverId, ReplicaId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Actor {
    Coordinator,
    Sender(u32),
    Receiver(ReceiverId),
}

/// One life of an actor: a word to a life that is over is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) actor: Actor,
    pub(crate) life: u8,
}

/// Words keep their order on a link, and only there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) from: Address,
    pub(crate) to: Address,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    ToCoordinator(CoordinatorEvent),
    ToLead(LeadEvent),
    FromLead(Incarnation, FromLead),
    /// To a sender: take part in this attempt.
    Begin(Fence, ReplicaId, Needs),
    /// To a sender: leave this attempt.
    Abort(Fence),
    /// A coordinator of this epoch is there.
    Announce(Epoch),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    // What happens by itself, sooner or later.
    Deliver(Link),
    /// A round of a receiver has moved.
    Moved(usize),
    /// A window of a sender has moved, and is written.
    WindowMoved(usize, u32),
    /// A receiver's exchange was aborted under it.
    Broken(usize),
    /// A scatter has ended.
    Scattered(usize),
    HookReturned(usize),
    StepDone(usize),
    BackOff(TimerId),
    Restart(Actor),
    // What happens when nothing else does.
    Deadline(Actor, TimerId),
    VersionDeadline,
    // What may go wrong, within a budget.
    /// An actor dies while it handles a word, after so many of its commands.
    DiesHandling(Link, usize),
    Dies(Actor),
    TransferFails(usize),
    ScatterFails(usize),
    PauseFails(usize),
    SenderFails(usize, ReplicaId),
    /// A sender loses the positions of its patch.
    Forgets(usize),
    /// A deadline passes although something would still have happened.
    Early(Actor, TimerId),
    EarlyVersionDeadline,
    /// With a defect: an applied receiver gives up by itself.
    Impatient(usize),
}
