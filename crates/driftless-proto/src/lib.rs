//! The state machines of Driftless: exchange, commit, coordination.
//!
#![doc = include_str!("../PROTOCOL.md")]
#![forbid(unsafe_code)]

mod cause;
mod coordinator;
mod exchange;
mod lead;
pub mod log;
mod needs;
mod participant;
mod patch;
mod timer;

pub use cause::{AttemptStep, Cause, Effect, ProtocolViolation, RootCause};
pub use coordinator::{
    Command as CoordinatorCommand, Coordinator, CoordinatorOptions, Event as CoordinatorEvent, ReplicaOutcome,
};
pub use exchange::{
    Command as ExchangeCommand, Counting, End as ExchangeEnd, Event as ExchangeEvent, Exchange, Limits,
    Moving, Shape, Streaming,
};
pub use lead::{Command as LeadCommand, Engine, Event as LeadEvent, Lead, LeadOptions, Outcome, Verdict};
pub use needs::{Intake, Needs, Weights};
pub use participant::{
    Command as ParticipantCommand, Decision, Event as ParticipantEvent, FromLead, Participant, Phase, ToLead,
};
pub use patch::{Offer, PatchBook, PatchRange, Pending};
pub use timer::{TimerId, TimerKind};
