//! The slots in which actors live and die; what a slot holds beside `live` is the actor's binding.

use super::binding::Binding;
use super::check::Promised;
use super::engine::EngineSim;
use super::message::Address;
use driftless_proto::{Coordinator, Exchange, Lead, Participant, ReplicaOutcome};
use driftless_types::{Epoch, Fence, Incarnation, ReceiverId, ReplicaId, Version};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct CoordinatorSlot {
    pub(super) life: u32,
    pub(super) counter: u64,
    pub(super) live: Option<Coordinator>,
}

#[derive(Debug, Default)]
pub(super) struct SenderSlot {
    pub(super) life: u32,
    pub(super) live: Option<SenderActor>,
    pub(super) patch: Option<Version>,
    /// The oldest base of the patch.
    pub(super) since: Version,
    /// How the patch's version ended, per replica.
    pub(super) outcomes: BTreeMap<ReplicaId, ReplicaOutcome>,
}

#[derive(Debug, Default)]
pub(super) struct SenderActor {
    pub(super) promised: Epoch,
    pub(super) exchanges: BTreeMap<ReplicaId, (Fence, Exchange)>,
}

#[derive(Debug)]
pub(super) struct ReceiverSlot {
    pub(super) life: u32,
    pub(super) live: Option<ReceiverActor>,
    pub(super) binding: Binding,
}

#[derive(Debug)]
pub(super) struct ReceiverActor {
    pub(super) participant: Participant,
    pub(super) lead: Option<Lead>,
    pub(super) promised: Promised,
}

#[derive(Debug)]
pub(super) struct ReplicaSlot {
    pub(super) members: BTreeSet<ReceiverId>,
    pub(super) engine: EngineSim,
    /// Of the newest lead.
    pub(super) incarnation: Incarnation,
    /// Since when the lead is at work.
    pub(super) busy_since_ms: Option<u64>,
}

impl ReplicaSlot {
    pub(super) fn new(members: BTreeSet<ReceiverId>) -> Self {
        Self { members, engine: EngineSim::new(), incarnation: Incarnation(0), busy_since_ms: None }
    }
}

/// Where a handler is cut off by its actor's death: after so many of its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Never,
    After(usize),
}

impl Cut {
    pub(super) fn is_here(self, done: usize) -> bool {
        self == Self::After(done)
    }
}

/// Whether `who` is the life that a slot holds now.
pub(super) fn is_current<A>(life: u32, live: Option<&A>, who: Address) -> bool {
    live.is_some() && life == who.life
}
