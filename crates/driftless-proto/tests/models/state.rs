//! All that a simulated cluster consists of at one moment.

use crate::part::Part;
use crate::words::{Actor, Address, Link, Word};
use driftless_proto::{Coordinator, Engine, Lead, Participant, PatchBook, TimerId, Weights};
use driftless_types::{Epoch, Fence, Incarnation, ReceiverId, ReplicaId, Round, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The elements of one sender.
pub(crate) const ELEMENTS: usize = 2;

/// For each element the version that wrote it last.
pub(crate) type Content = Vec<[u64; ELEMENTS]>;

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct State {
    pub(crate) coordinator: Part<CoordinatorSlot>,
    pub(crate) senders: Vec<Part<SenderSlot>>,
    pub(crate) receivers: Vec<Part<ReceiverSlot>>,
    pub(crate) replicas: Vec<Part<ReplicaSlot>>,
    pub(crate) links: Part<BTreeMap<Link, VecDeque<Word>>>,
    pub(crate) trainer: Part<Trainer>,
    pub(crate) aborted: Part<BTreeSet<Fence>>,
    pub(crate) budget: Budget,
    pub(crate) breach: Option<Breach>,
}

/// How often something may still go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) deaths: u8,
    pub(crate) faults: u8,
    pub(crate) early: u8,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Breach {
    pub(crate) id: &'static str,
    pub(crate) found: &'static str,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct CoordinatorSlot {
    pub(crate) life: u8,
    pub(crate) live: Option<Coordinator>,
    pub(crate) timers: BTreeSet<TimerId>,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct SenderSlot {
    pub(crate) life: u8,
    pub(crate) live: Option<SenderLive>,
    /// The binding: which bases the patch is right for, and its positions, one bit an element.
    pub(crate) book: PatchBook,
    pub(crate) positions: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Hash)]
pub(crate) struct SenderLive {
    pub(crate) promised: Epoch,
    pub(crate) open: BTreeMap<ReplicaId, (Fence, Offered)>,
}

/// What a sender sends to the receivers of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Offered {
    pub(crate) version: Version,
    pub(crate) positions: u8,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct ReceiverSlot {
    pub(crate) id: ReceiverId,
    pub(crate) life: u8,
    pub(crate) live: Option<ReceiverLive>,
    pub(crate) binding: Binding,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct ReceiverLive {
    pub(crate) participant: Participant,
    pub(crate) lead: Option<Lead>,
    pub(crate) timers: BTreeSet<TimerId>,
    /// The round that its exchange waits for.
    pub(crate) posted: Option<(Fence, Round)>,
    /// The window that it waits for from each sender.
    pub(crate) windows: BTreeMap<u32, u32>,
    pub(crate) staged: Option<(Fence, Vec<Offered>)>,
    pub(crate) scattering: Option<Fence>,
    /// The newest authorities heard of, seen from outside the machines.
    pub(crate) promised: Epoch,
    pub(crate) heard: Incarnation,
    /// With a defect: the attempt that this actor takes every word for, as a receiver and as a lead.
    pub(crate) current: [Option<Fence>; 2],
}

/// What outlives a receiver's actor.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Binding {
    pub(crate) content: Content,
    /// While it is written the content is neither old nor new.
    pub(crate) is_writing: bool,
    pub(crate) undo: Option<(Fence, Content)>,
    pub(crate) applied: Option<Fence>,
    pub(crate) committed: Option<Fence>,
    pub(crate) version: Version,
    pub(crate) weights: Weights,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct ReplicaSlot {
    pub(crate) members: BTreeSet<ReceiverId>,
    pub(crate) engine: Engine,
    /// Hooks that were called, oldest first: by which life of the lead, and for which attempt it pauses.
    pub(crate) calls: VecDeque<(u8, Option<Fence>)>,
    pub(crate) incarnation: Incarnation,
    /// What happened to the newest attempts, one bit a rank.
    pub(crate) history: BTreeMap<Fence, History>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    pub(crate) applied: u8,
    pub(crate) sealed: u8,
    pub(crate) undone: u8,
}

/// The training loop, and the ledger of how versions ended.
#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct Trainer {
    pub(crate) newest: Version,
    pub(crate) outcomes: BTreeMap<(Version, ReplicaId), Settled>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Settled {
    Committed,
    Lagging(Version),
}

impl State {
    pub(crate) fn index(&self, id: ReceiverId) -> usize {
        self.receivers.iter().position(|slot| slot.id == id).expect("a receiver of the cluster")
    }

    pub(crate) fn life(&self, actor: Actor) -> u8 {
        match actor {
            Actor::Coordinator => self.coordinator.life,
            Actor::Sender(id) => self.senders[id as usize].life,
            Actor::Receiver(id) => self.receivers[self.index(id)].life,
        }
    }

    /// The actor's address, if it lives.
    pub(crate) fn address(&self, actor: Actor) -> Option<Address> {
        let is_live = match actor {
            Actor::Coordinator => self.coordinator.live.is_some(),
            Actor::Sender(id) => self.senders[id as usize].live.is_some(),
            Actor::Receiver(id) => self.receivers[self.index(id)].live.is_some(),
        };
        is_live.then(|| Address { actor, life: self.life(actor) })
    }

    pub(crate) fn actors(&self) -> Vec<Actor> {
        let mut actors = vec![Actor::Coordinator];
        actors.extend((0u32..).take(self.senders.len()).map(Actor::Sender));
        actors.extend(self.receivers.iter().map(|slot| Actor::Receiver(slot.id)));
        actors
    }

    pub(crate) fn members(&self, replica: usize) -> impl Iterator<Item = &ReceiverSlot> {
        let members = &self.replicas[replica].members;
        self.receivers.iter().map(|slot| &**slot).filter(|slot| members.contains(&slot.id))
    }

    pub(crate) fn has_ended(&self, version: Version) -> bool {
        (0u32..).take(self.replicas.len()).all(|id| self.outcome(version, id).is_some())
    }

    pub(crate) fn outcome(&self, version: Version, replica: u32) -> Option<Settled> {
        self.trainer.outcomes.get(&(version, ReplicaId(replica))).copied()
    }
}

impl Binding {
    pub(crate) fn new(senders: u32) -> Self {
        Self {
            content: vec![[0; ELEMENTS]; senders as usize],
            is_writing: false,
            undo: None,
            applied: None,
            committed: None,
            version: Version(0),
            weights: Weights::Whole,
        }
    }

    /// Memory that holds nothing.
    pub(crate) fn blank(senders: u32) -> Self {
        let content = vec![[u64::MAX; ELEMENTS]; senders as usize];
        Self { content, weights: Weights::Torn, ..Self::new(senders) }
    }

    pub(crate) fn undo(&mut self) {
        self.is_writing = false;
        self.applied = None;
        if let Some((_, old)) = self.undo.take() {
            self.content = old;
        }
    }
}
