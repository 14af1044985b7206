//! Who speaks to whom in a simulation, and what can happen next.

use driftless_proto::{
    CoordinatorEvent, Decision, ExchangeEvent, FromLead, LeadEvent, Needs, ParticipantEvent, Phase,
    ReplicaOutcome, ToLead,
};
use driftless_types::{Epoch, Fence, Member, ReceiverId, ReplicaId, Round, SenderId, Version};
use std::fmt;

/// An actor by its role: receiver 0 of a replica holds the lead as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Actor {
    Coordinator,
    Sender(SenderId),
    Receiver(ReceiverId),
}

/// One life of an actor: what is mailed to a life that is over is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) actor: Actor,
    pub(super) life: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    ToCoordinator(CoordinatorEvent),
    ToLead(LeadEvent),
    ToParticipant(ParticipantEvent),
    /// To a sender: take part in this attempt for this replica.
    Begin(Fence, ReplicaId, Needs),
    /// To a sender: leave this attempt.
    Abort(Fence, ReplicaId),
    /// To a sender: a version has ended for a replica.
    Settle(ReplicaId, Version, ReplicaOutcome),
    /// To a sender: its exchange moved.
    Exchange(Fence, ExchangeEvent),
    /// A coordinator of this epoch is there: announce yourself.
    NewCoordinator(Epoch),
}

/// A task of a receiver that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Check,
    Scatter,
    Prove,
    Undo,
    Seal,
}

/// One transfer of a round: an ordered pair of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Transfer {
    pub(super) fence: Fence,
    pub(super) round: Round,
    pub(super) from: Member,
    pub(super) to: Member,
}

/// A window that a sender hands to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Window {
    pub(super) fence: Fence,
    pub(super) from: SenderId,
    pub(super) to: ReceiverId,
    pub(super) index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Moved {
    Whole,
    Broken,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Happening {
    Deliver(Address, Message),
    Worked(Address, Fence, Work),
    Transferred(Transfer, Moved),
    WindowMoved(Window, Moved),
    HookReturned(ReplicaId),
    Restart(Actor),
    StepDone(SenderId, Version),
    VersionDeadline(Version),
    /// Every member says where it stands, because what it said before may be lost.
    KeepAlive,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.actor, self.life)
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("coordinator"),
            Self::Sender(id) => write!(f, "trainer/{id}"),
            Self::Receiver(id) => write!(f, "{id}"),
        }
    }
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deliver(to, message) => write!(f, "{to} <- {}", described(message)),
            Self::Worked(who, fence, work) => write!(f, "{who} worked: {work:?} of {fence}"),
            Self::Transferred(Transfer { fence, round, from, to }, moved) => {
                write!(f, "{round:?} {from} -> {to} {moved:?} of {fence}")
            }
            Self::WindowMoved(Window { fence, from, to, index }, moved) => {
                write!(f, "window {index} trainer/{from} -> {to} {moved:?} of {fence}")
            }
            Self::HookReturned(replica) => write!(f, "a hook of replica {replica} returned"),
            Self::Restart(actor) => write!(f, "{actor} restarts"),
            Self::StepDone(sender, version) => write!(f, "trainer/{sender} step_done({version})"),
            Self::KeepAlive => f.write_str("everyone says where it stands"),
            Self::VersionDeadline(version) => write!(f, "the deadline of version {version} passed"),
        }
    }
}

fn described(message: &Message) -> String {
    match message {
        Message::ToCoordinator(CoordinatorEvent::Ended(replica, outcome, serving)) => {
            format!("replica {replica} ended {} as {:?}, serving {serving}", outcome.fence, outcome.verdict)
        }
        Message::ToCoordinator(CoordinatorEvent::TimerFired(id)) => format!("timer {:?}", id.kind),
        Message::ToCoordinator(event) => format!("{event:?}"),
        Message::ToLead(LeadEvent::Begin(fence, intake)) => format!("lead: begin {fence} {intake:?}"),
        Message::ToLead(LeadEvent::Abort(fence, cause)) => format!("lead: abort {fence}: {cause}"),
        Message::ToLead(LeadEvent::Member(member, word)) => format!("lead: {member} says {}", to_lead(word)),
        Message::ToLead(LeadEvent::Paused(fence, result)) => format!("lead: paused {result:?} for {fence}"),
        Message::ToLead(LeadEvent::TimerFired(id)) => format!("lead: timer {:?} {}", id.kind, id.attempt),
        Message::ToLead(event) => format!("lead: {event:?}"),
        Message::ToParticipant(event) => participant(event),
        Message::Begin(fence, replica, needs) => {
            format!("begin {fence} for replica {replica} from base {}", needs.base)
        }
        Message::Abort(fence, _) => format!("abort {fence}"),
        Message::Settle(replica, version, outcome) => {
            format!("version {version} ended for replica {replica}: {outcome:?}")
        }
        Message::Exchange(fence, event) => format!("{} of {fence}", exchange(event)),
        Message::NewCoordinator(epoch) => format!("new coordinator {epoch}"),
    }
}

fn participant(event: &ParticipantEvent) -> String {
    match event {
        ParticipantEvent::Lead(incarnation, word) => {
            let word = match word {
                FromLead::Begin(fence, intake) => format!("begin {fence} {intake:?}"),
                FromLead::Apply(fence) => format!("apply {fence}"),
                FromLead::Decide(fence, Decision::Commit) => format!("commit {fence}"),
                FromLead::Decide(fence, Decision::Rollback) => format!("roll back {fence}"),
                FromLead::AskPhase => "which phase?".into(),
            };
            format!("lead {incarnation} says {word}")
        }
        ParticipantEvent::Exchange(fence, event) => format!("{} of {fence}", exchange(event)),
        ParticipantEvent::Checked(fence, result) => format!("checked {result:?} {fence}"),
        ParticipantEvent::Scattered(fence, result) => format!("scattered {result:?} {fence}"),
        ParticipantEvent::Undone(fence) => format!("undone {fence}"),
        ParticipantEvent::Sealed(fence) => format!("sealed {fence}"),
    }
}

fn exchange(event: &ExchangeEvent) -> String {
    match event {
        ExchangeEvent::RecordsMoved { .. } => "records moved".into(),
        ExchangeEvent::PayloadMoved => "payload moved".into(),
        ExchangeEvent::WindowMoved(peer) => format!("window of {peer} moved"),
        ExchangeEvent::Failed(root) => format!("exchange failed ({root})"),
        ExchangeEvent::TimerFired(id) => format!("exchange timer {:?}", id.kind),
    }
}

fn to_lead(word: &ToLead) -> String {
    match word {
        ToLead::Staged(fence) => format!("staged {fence}"),
        ToLead::Applied(fence) => format!("applied {fence}"),
        ToLead::Done(fence, decision) => format!("done {decision:?} {fence}"),
        ToLead::Torn(fence) => format!("of no version after {fence}"),
        ToLead::Failed(fence, root) => format!("failed {fence}: {root}"),
        ToLead::Phase(phase) => format!("it is back, {}", described_phase(phase)),
        ToLead::Answer(phase) => format!("it is {}", described_phase(phase)),
    }
}

fn described_phase(phase: &Phase) -> String {
    match phase {
        Phase::Serving(None) => "serving".into(),
        Phase::Serving(Some(fence)) => format!("serving {fence}"),
        Phase::Open(fence) => format!("open for {fence}"),
        Phase::Torn(_) => "of no version".into(),
        Phase::Applied(fence) => format!("applied to {fence}"),
    }
}
