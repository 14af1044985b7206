//! The event loop: time, links, deaths, restarts, the trainer's steps.

use super::Report;
use super::actors::{CoordinatorSlot, Cut, ReceiverSlot, ReplicaSlot, SenderSlot, is_current};
use super::binding::Binding;
use super::check::{Breach, Checks};
use super::message::{Actor, Address, Happening, Message};
use super::options::{FaultKind, Missing, Sabotage, SimOptions};
use super::rng::Rng;
use super::trace::Trace;
use super::transport::Transport;
use driftless_proto::{CoordinatorEvent, Engine, LeadEvent, ReplicaOutcome, Weights};
use driftless_types::{Member, ReceiverId, ReplicaId, SenderId, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// After the last disturbance everything must have come to rest within this time (CM-12).
const RECOVERY_BOUND_MS: u64 = 120_000;
/// The longest that a lead may be at work on one attempt: all its deadlines, one stall and the repeats (CM-11).
const ATTEMPT_BOUND_MS: u64 = 20_000;
/// How long something takes that was chosen to miss its deadline.
pub(super) const STALL_MS: u64 = 6_000;
const LONGEST_DOWN_MS: u64 = 1_500;
/// How long a repeated word may come after the first.
const LATEST_REPEAT_MS: u64 = 4_000;
/// How often members say where they stand, where words may be lost.
const KEEP_ALIVE_MS: u64 = 500;

#[derive(Debug)]
pub(super) struct World {
    pub(super) now_ms: u64,
    pub(super) rng: Rng,
    pub(super) options: SimOptions,
    pub(super) edges: BTreeSet<(SenderId, ReceiverId)>,
    pub(super) coordinator: CoordinatorSlot,
    pub(super) senders: BTreeMap<SenderId, SenderSlot>,
    pub(super) receivers: BTreeMap<ReceiverId, ReceiverSlot>,
    pub(super) replicas: BTreeMap<ReplicaId, ReplicaSlot>,
    pub(super) transport: Transport,
    pub(super) checks: Checks,
    pub(super) commits: u64,
    trace: Trace,
    queue: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
    links: BTreeMap<(Address, Address), u64>,
    newest: Version,
    faults_left: u32,
    faults: u64,
    pub(super) attempts: u64,
    disturbed_ms: u64,
}

impl World {
    pub(super) fn new(seed: u64, options: &SimOptions) -> Self {
        let mut rng = Rng::new(seed);
        let senders: Vec<_> = (0..options.senders).map(SenderId).collect();
        let replicas: BTreeMap<_, _> = (0..options.replicas)
            .map(|id| {
                let replica = ReplicaId(id);
                let members = (0..options.receivers).map(|rank| ReceiverId { replica, rank }).collect();
                (replica, ReplicaSlot::new(members))
            })
            .collect();
        let receivers: Vec<_> = replicas.values().flat_map(|slot| slot.members.iter().copied()).collect();
        let pairs = receivers.iter().flat_map(|&to| senders.iter().map(move |&from| (from, to)));
        let edges: BTreeSet<_> = pairs.filter(|_| !rng.one_in(5)).collect();
        let slot = |&id: &ReceiverId| {
            let from = edges.iter().filter(|(_, to)| *to == id).map(|(from, _)| *from);
            (id, ReceiverSlot { life: 0, live: None, binding: Binding::new(from) })
        };
        Self {
            now_ms: 0,
            coordinator: CoordinatorSlot::default(),
            senders: senders.iter().map(|&id| (id, SenderSlot::default())).collect(),
            receivers: receivers.iter().map(slot).collect(),
            replicas,
            edges,
            transport: Transport::default(),
            checks: Checks::default(),
            commits: 0,
            trace: Trace::default(),
            queue: BTreeMap::new(),
            sequence: 0,
            links: BTreeMap::new(),
            newest: Version(0),
            faults_left: options.fault_budget,
            faults: 0,
            attempts: 0,
            disturbed_ms: 0,
            options: options.clone(),
            rng,
        }
    }

    pub(super) fn report(&self) -> Report {
        Report {
            events: self.trace.events,
            trace_digest: self.trace.digest(),
            attempts: self.attempts,
            commits: self.commits,
            faults: self.faults,
            ended_at_ms: self.now_ms,
        }
    }

    pub(super) fn tail(&self) -> Vec<String> {
        self.trace.tail()
    }

    pub(super) fn run(&mut self) -> Result<(), Breach> {
        self.start();
        while let Some(((at_ms, _), happening)) = self.queue.pop_first() {
            self.now_ms = at_ms;
            self.trace.happened(at_ms, &happening);
            self.happen(happening)?;
            self.check()?;
        }
        self.check_end()
    }

    fn start(&mut self) {
        let mut everyone: Vec<Actor> = vec![Actor::Coordinator];
        everyone.extend(self.senders.keys().map(|&id| Actor::Sender(id)));
        everyone.extend(self.receivers.keys().map(|&id| Actor::Receiver(id)));
        if self.options.missing == Missing::OneReceiver {
            let rank = self.options.receivers - 1;
            let missing = Actor::Receiver(ReceiverId { replica: ReplicaId(0), rank });
            everyone.retain(|&actor| actor != missing);
        }
        for actor in everyone {
            let after_ms = self.rng.between(0, 50);
            self.after(after_ms, Happening::Restart(actor));
        }
        let may_lose = self.options.faults.contains(&FaultKind::LoseWord);
        if may_lose && self.options.sabotage != Sabotage::SayOnce {
            self.after(KEEP_ALIVE_MS, Happening::KeepAlive);
        }
        self.publish(Version(1));
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Breach> {
        match happening {
            Happening::Deliver(to, message) => self.deliver(to, message),
            Happening::Worked(who, fence, work) => self.worked(who, fence, work),
            Happening::Transferred(transfer, moved) => {
                let notices = self.transport.transferred(transfer, moved);
                self.notify(notices);
                Ok(())
            }
            Happening::WindowMoved(window, moved) => {
                self.window_moved(window, moved);
                Ok(())
            }
            Happening::HookReturned(replica) => {
                self.hook_returned(replica);
                Ok(())
            }
            Happening::Restart(actor) => self.restart(actor),
            Happening::StepDone(sender, version) => self.step_done(sender, version),
            Happening::KeepAlive => self.keep_alive(),
            Happening::VersionDeadline(version) => {
                self.version_ended(version);
                Ok(())
            }
        }
    }

    fn deliver(&mut self, to: Address, message: Message) -> Result<(), Breach> {
        if self.address(to.actor) != Some(to) {
            return Ok(()); // lost with the life it was meant for
        }
        match (to.actor, message) {
            (Actor::Coordinator, Message::ToCoordinator(event)) => self.coordinate(event),
            (Actor::Sender(id), message) => self.sender(id, message),
            (Actor::Receiver(id), Message::ToParticipant(event)) => self.participant(id, event),
            (Actor::Receiver(id), Message::ToLead(event)) => self.lead(id, event),
            (Actor::Receiver(id), Message::NewCoordinator(_)) => {
                self.say(to, Actor::Coordinator, Message::ToCoordinator(CoordinatorEvent::ReceiverUp(id)));
                Ok(())
            }
            (actor, message) => Err(Breach::new("simulation", format!("{actor} cannot hear {message:?}"))),
        }
    }

    /// The actor's address, if it lives.
    pub(super) fn address(&self, actor: Actor) -> Option<Address> {
        let (life, is_live) = match actor {
            Actor::Coordinator => (self.coordinator.life, self.coordinator.live.is_some()),
            Actor::Sender(id) => self.senders.get(&id).map(|slot| (slot.life, slot.live.is_some()))?,
            Actor::Receiver(id) => self.receivers.get(&id).map(|slot| (slot.life, slot.live.is_some()))?,
        };
        is_live.then_some(Address { actor, life })
    }

    /// A word over a link: in order for one pair of lives, lost if nobody lives there.
    pub(super) fn say(&mut self, from: Address, to: Actor, message: Message) {
        let Some(to) = self.address(to) else { return };
        // Neither a mailbox within an actor nor a supervisor loses a word.
        let is_local = from.actor == to.actor
            || matches!(message, Message::ToCoordinator(CoordinatorEvent::MemberDown(_)));
        if !is_local && self.fault(FaultKind::LoseWord) {
            return;
        }
        // What a supervisor says of a death comes before the next life's first word.
        let life = if to.actor == Actor::Coordinator { 0 } else { from.life };
        let delay_ms = if self.rng.one_in(20) { self.rng.between(20, 300) } else { self.rng.between(0, 12) };
        let last = self.links.entry((Address { life, ..from }, to)).or_default();
        let at_ms = (self.now_ms + delay_ms).max(*last);
        *last = at_ms;
        if !is_local && self.fault(FaultKind::RepeatWord) {
            let later_ms = self.rng.between(0, LATEST_REPEAT_MS);
            self.at(at_ms + later_ms, Happening::Deliver(to, message.clone()));
        }
        self.at(at_ms, Happening::Deliver(to, message));
    }

    /// Goes on until nothing else happens and everybody is where it should be.
    fn keep_alive(&mut self) -> Result<(), Breach> {
        if !self.queue.is_empty() || self.check_end().is_err() {
            self.after(KEEP_ALIVE_MS, Happening::KeepAlive);
        }
        let senders: Vec<_> = self.senders.keys().copied().collect();
        senders.into_iter().for_each(|id| self.announce_sender(id));
        let receivers: Vec<_> = self.receivers.keys().copied().collect();
        for id in receivers {
            let Some(me) = self.address(Actor::Receiver(id)) else { continue };
            self.say(me, Actor::Coordinator, Message::ToCoordinator(CoordinatorEvent::ReceiverUp(id)));
            self.lead(id, LeadEvent::KeepAlive)?;
        }
        Ok(())
    }

    pub(super) fn after(&mut self, delay_ms: u64, happening: Happening) {
        self.at(self.now_ms + delay_ms, happening);
    }

    fn at(&mut self, at_ms: u64, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((at_ms, self.sequence), happening);
    }

    pub(super) fn arm(&mut self, who: Address, after: Duration, message: Message) {
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        self.after(after_ms, Happening::Deliver(who, message));
    }

    /// Whether a fault of this kind happens now.
    pub(super) fn fault(&mut self, kind: FaultKind) -> bool {
        let may = self.faults_left > 0 && self.options.faults.contains(&kind);
        if !may || !self.rng.one_in(self.options.fault_one_in) {
            return false;
        }
        self.faults_left -= 1;
        self.faults += 1;
        self.disturbed_ms = self.now_ms;
        self.trace.note(self.now_ms, format!("fault: {kind:?}"));
        true
    }

    /// Whether the actor dies in this handler, and after how many of its commands.
    pub(super) fn cut(&mut self, kind: FaultKind, commands: usize) -> Cut {
        if !self.fault(kind) {
            return Cut::Never;
        }
        let most = u64::try_from(commands).unwrap_or_default();
        Cut::After(usize::try_from(self.rng.between(0, most)).unwrap_or_default())
    }

    pub(super) fn kill(&mut self, actor: Actor) {
        let Some(who) = self.address(actor) else { return };
        self.trace.note(self.now_ms, format!("{who} dies"));
        match actor {
            Actor::Coordinator => self.coordinator.live = None,
            Actor::Sender(id) => {
                self.senders.entry(id).or_default().live = None;
                self.bury(who, Member::Sender(id));
            }
            Actor::Receiver(id) => {
                if let Some(slot) = self.receivers.get_mut(&id) {
                    slot.live = None;
                }
                self.bury(who, Member::Receiver(id));
            }
        }
        let down_ms = self.rng.between(1, LONGEST_DOWN_MS);
        self.disturbed_ms = self.now_ms + down_ms;
        self.after(down_ms, Happening::Restart(actor));
    }

    /// What the supervisor does about a death; whether the transport notices is left to chance.
    fn bury(&mut self, who: Address, member: Member) {
        let word = Message::ToCoordinator(CoordinatorEvent::MemberDown(member));
        self.say(who, Actor::Coordinator, word);
        if self.rng.one_in(2) {
            for fence in self.transport.waiting(who) {
                self.abort_transfers(fence);
            }
        }
    }

    fn restart(&mut self, actor: Actor) -> Result<(), Breach> {
        match actor {
            Actor::Coordinator => {
                self.restart_coordinator();
                Ok(())
            }
            Actor::Sender(id) => {
                self.restart_sender(id);
                Ok(())
            }
            Actor::Receiver(id) => self.restart_receiver(id),
        }
    }

    // The trainer.

    fn publish(&mut self, version: Version) {
        self.newest = version;
        self.disturbed_ms = self.now_ms;
        let senders: Vec<_> = self.senders.keys().copied().collect();
        for sender in senders {
            let after_ms = self.rng.between(1, 400);
            self.after(after_ms, Happening::StepDone(sender, version));
        }
        if version.0 < self.options.versions {
            self.after(self.options.version_deadline_ms, Happening::VersionDeadline(version));
        }
    }

    /// A version has ended everywhere, or the trainer's patience has.
    fn version_ended(&mut self, version: Version) {
        if version == self.newest && version.0 < self.options.versions {
            self.publish(Version(version.0 + 1));
        }
    }

    pub(super) fn note_outcomes(&mut self) {
        let newest = self.newest;
        let all = self.replicas.len();
        let heard = |slot: &SenderSlot| slot.patch == Some(newest) && slot.outcomes.len() == all;
        if self.senders.values().all(heard) {
            self.version_ended(newest);
        }
    }

    // The promises.

    fn check(&self) -> Result<(), Breach> {
        for (&id, replica) in &self.replicas {
            let bindings = replica.members.iter().filter_map(|id| self.receivers.get(id));
            Checks::serving(id, replica.engine.real, bindings.map(|slot| &slot.binding))?;
            let Some(since_ms) = replica.busy_since_ms else { continue };
            let busy_ms = self.now_ms.saturating_sub(since_ms.max(self.disturbed_ms));
            if busy_ms > ATTEMPT_BOUND_MS && self.takes_part(id) {
                return Err(Breach::new(
                    "CM-11",
                    format!("the lead of replica {id} is busy for {busy_ms} ms"),
                ));
            }
        }
        if self.now_ms > self.disturbed_ms.saturating_add(RECOVERY_BOUND_MS) {
            return Err(Breach::new("CM-12", "the cluster does not come to rest".into()));
        }
        Ok(())
    }

    pub(super) fn takes_part(&self, id: ReplicaId) -> bool {
        self.options.missing == Missing::Nobody || id != ReplicaId(0)
    }

    /// Nothing is left to happen: everybody must be at the last version and know it.
    fn check_end(&self) -> Result<(), Breach> {
        let last = Version(self.options.versions);
        for (&id, replica) in self.replicas.iter().filter(|(id, _)| self.takes_part(**id)) {
            let lagging = self.senders.values().all(|slot| {
                matches!(slot.outcomes.get(&id), Some(ReplicaOutcome::Lagging { .. }))
                    && self.options.max_attempts < u32::MAX
            });
            let mut members = replica.members.iter().filter_map(|id| self.receivers.get(id));
            let is_out = lagging && members.any(|slot| slot.binding.weights == Weights::Torn);
            if replica.engine.real == Engine::Paused && !is_out || replica.engine.is_busy() {
                return Err(Breach::new("CM-11", format!("the engine of replica {id} is left paused")));
            }
            let mut receivers = replica.members.iter().filter_map(|id| self.receivers.get(id));
            if !lagging && !receivers.all(|slot| slot.live.is_some() && slot.binding.version == last) {
                return Err(Breach::new("CM-12", format!("replica {id} does not reach version {last}")));
            }
            for (sender, slot) in &self.senders {
                let heard = slot.outcomes.get(&id);
                if slot.patch != Some(last) || (heard != Some(&ReplicaOutcome::Committed) && !lagging) {
                    let found = format!("trainer/{sender} waits for replica {id}: {heard:?}");
                    return Err(Breach::new("CM-12", found));
                }
            }
        }
        Ok(())
    }

    pub(super) fn is_current_receiver(&self, id: ReceiverId, who: Address) -> bool {
        self.receivers.get(&id).is_some_and(|slot| is_current(slot.life, slot.live.as_ref(), who))
    }
}
