//! One step of a cluster: the shells of the coordinator, the senders and the trainer around their machines.

use crate::cluster::{Cluster, Defect, Start};
use crate::part::Part;
use crate::replica;
use crate::state::{
    Binding, Breach, CoordinatorSlot, ReceiverSlot, ReplicaSlot, SenderLive, SenderSlot, Settled, State,
    Trainer,
};
use crate::words::{Action, Actor, Address, Link, Word};
use driftless_proto::{
    Coordinator, CoordinatorCommand, CoordinatorEvent, CoordinatorOptions, Engine, ExchangeEvent, LeadEvent,
    ParticipantEvent, PatchBook, ReplicaOutcome, RootCause, TimerId, Weights,
};
use driftless_types::{
    Epoch, Fence, Incarnation, Member, PlanDigest, ReceiverId, ReplicaId, RunId, SenderId, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub(crate) struct Shell<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) state: State,
    /// Words of a lead to its own receiver and back: they go through the mailbox of one actor.
    pub(crate) own: VecDeque<(usize, Own)>,
    /// After so many commands the one who handles the word dies.
    dies_after: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum Own {
    Lead(LeadEvent),
    Participant(ParticipantEvent),
}

fn options(cluster: &Cluster) -> CoordinatorOptions {
    CoordinatorOptions {
        max_attempts: cluster.max_attempts,
        first_back_off: Duration::ZERO,
        longest_back_off: Duration::ZERO,
        attempt_deadline: Duration::ZERO,
    }
}

impl<'a> Shell<'a> {
    pub(crate) fn new(cluster: &'a Cluster, state: State) -> Self {
        Self { cluster, state, own: VecDeque::new(), dies_after: None }
    }

    /// Nobody lives yet.
    pub(crate) fn boot(cluster: &Cluster) -> State {
        let ids = || (0..cluster.replicas).map(ReplicaId);
        let members = |replica| (0..cluster.receivers).map(move |rank| ReceiverId { replica, rank });
        let sender =
            |_| SenderSlot { life: 0, live: None, book: PatchBook::new(ids(), Version(0), 8), positions: 0 };
        let (binding, engine) = match cluster.start {
            Start::Current => (Binding::new(cluster.senders), Engine::Serving),
            Start::Blank => (Binding::blank(cluster.senders), Engine::Paused),
        };
        let receiver = |id| ReceiverSlot { id, life: 0, live: None, binding: binding.clone() };
        let replica = |id| ReplicaSlot {
            members: members(id).collect(),
            engine,
            calls: VecDeque::new(),
            incarnation: Incarnation(0),
            history: BTreeMap::new(),
        };
        State {
            coordinator: Part::new(CoordinatorSlot { life: 0, live: None, timers: BTreeSet::new() }),
            senders: (0..cluster.senders).map(sender).map(Part::new).collect(),
            receivers: ids().flat_map(members).map(receiver).map(Part::new).collect(),
            replicas: ids().map(replica).map(Part::new).collect(),
            links: Part::new(BTreeMap::new()),
            trainer: Part::new(Trainer { newest: Version(0), outcomes: BTreeMap::new() }),
            aborted: Part::new(BTreeSet::new()),
            budget: cluster.budget,
            breach: None,
        }
    }

    /// What an action leads to; none if there is nothing to it.
    pub(crate) fn act(mut self, action: Action) -> Option<State> {
        self.happen(action)?;
        while let Some((index, own)) = self.own.pop_front() {
            match own {
                Own::Lead(event) => self.lead(index, event),
                Own::Participant(event) => self.participant(index, event),
            }
        }
        self.publish();
        self.forget_aborted();
        replica::check(self.cluster, &mut self.state);
        Some(self.state)
    }

    fn happen(&mut self, action: Action) -> Option<()> {
        let broken = |root| ExchangeEvent::Failed(root);
        match action {
            Action::Deliver(link) => self.deliver(link)?,
            Action::DiesHandling(link, done) => {
                self.dies_after = Some(done);
                self.deliver(link)?;
                if self.dies_after.is_some() {
                    return None; // it had fewer commands
                }
                self.state.budget.deaths -= 1;
            }
            Action::Moved(index) => self.moved(index)?,
            Action::WindowMoved(index, sender) => self.window_moved(index, sender)?,
            Action::Broken(index) => self.exchange(index, broken(RootCause::Aborted))?,
            Action::TransferFails(index) => {
                self.state.budget.faults -= 1;
                self.exchange(index, broken(RootCause::Transport(String::new())))?;
            }
            Action::Scattered(index) => self.scattered(index, Ok(()))?,
            Action::ScatterFails(index) => {
                self.state.budget.faults -= 1;
                self.scattered(index, Err(RootCause::DigestMismatch { tensors: BTreeSet::from([0]) }))?;
            }
            Action::HookReturned(index) => self.hook_returned(index, Ok(()))?,
            Action::PauseFails(index) => {
                self.state.budget.faults -= 1;
                self.hook_returned(index, Err(RootCause::Pause(String::new())))?;
            }
            Action::StepDone(index) => self.step_done(index),
            Action::BackOff(id) => self.timer(Actor::Coordinator, id),
            Action::Deadline(actor, id) => self.timer(actor, id),
            Action::Early(actor, id) => {
                self.state.budget.early -= 1;
                self.timer(actor, id);
            }
            Action::Restart(actor) => self.restart(actor),
            Action::Dies(actor) => {
                self.state.budget.deaths -= 1;
                self.kill(actor);
            }
            Action::VersionDeadline => self.next_version(),
            Action::EarlyVersionDeadline => {
                self.state.budget.early -= 1;
                self.next_version();
            }
            Action::SenderFails(index, replica) => self.sender_fails(index, replica)?,
            Action::Forgets(index) => self.forgets(index),
            Action::Impatient(index) => {
                self.state.budget.early -= 1;
                self.impatient(index)?;
            }
        }
        Some(())
    }

    pub(crate) fn breach(&mut self, id: &'static str, found: &'static str) {
        self.state.breach.get_or_insert(Breach { id, found });
    }

    /// Whether the one who carries out its commands dies now.
    pub(crate) fn is_cut(&mut self, done: usize, actor: Actor) -> bool {
        if self.dies_after != Some(done) {
            return false;
        }
        self.dies_after = None;
        self.kill(actor);
        true
    }

    // Links.

    pub(crate) fn say(&mut self, from: Address, to: Actor, word: Word) {
        let Some(to) = self.state.address(to) else { return };
        // What a supervisor says of a death comes before the first word of the next life.
        let life = if to.actor == Actor::Coordinator { 0 } else { from.life };
        let link = Link { from: Address { life, ..from }, to };
        self.state.links.change(|links| links.entry(link).or_default().push_back(word));
    }

    fn deliver(&mut self, link: Link) -> Option<()> {
        let word = self.state.links.change(|links| {
            let queue = links.get_mut(&link)?;
            let word = queue.pop_front();
            if queue.is_empty() {
                links.remove(&link);
            }
            word
        })?;
        match (link.to.actor, word) {
            (Actor::Coordinator, Word::ToCoordinator(event)) => self.coordinate(event),
            (Actor::Sender(id), word) => self.sender(id, word),
            (Actor::Receiver(id), word) => {
                let index = self.state.index(id);
                match word {
                    Word::ToLead(event) => self.lead(index, event),
                    Word::FromLead(incarnation, word) => {
                        self.participant(index, ParticipantEvent::Lead(incarnation, word));
                    }
                    Word::Announce(epoch) => {
                        let up = CoordinatorEvent::ReceiverUp(id);
                        self.say(link.to, Actor::Coordinator, Word::ToCoordinator(up));
                        self.lead(index, LeadEvent::NewEpoch(epoch));
                    }
                    word => unreachable!("{id} cannot hear {word:?}"),
                }
            }
            (actor, word) => unreachable!("{actor:?} cannot hear {word:?}"),
        }
        Some(())
    }

    pub(crate) fn kill(&mut self, actor: Actor) {
        let Some(who) = self.state.address(actor) else { return };
        let member = match actor {
            Actor::Coordinator => {
                self.state.coordinator.change(|slot| {
                    slot.live = None;
                    slot.timers.clear();
                });
                None
            }
            Actor::Sender(id) => {
                self.state.senders[id as usize].change(|slot| slot.live = None);
                Some(Member::Sender(SenderId(id)))
            }
            Actor::Receiver(id) => {
                let index = self.state.index(id);
                let forgets = self.cluster.defect == Defect::ForgetBinding;
                let forgets_torn = self.cluster.defect == Defect::ForgetTorn;
                self.state.receivers[index].change(|slot| {
                    slot.live = None;
                    if forgets && slot.binding.applied.take().is_some() {
                        slot.binding.undo = None;
                    }
                    if forgets_torn {
                        slot.binding.weights = Weights::Whole;
                    }
                });
                self.own.clear();
                Some(Member::Receiver(id))
            }
        };
        self.state.links.change(|links| links.retain(|link, _| link.to != who));
        if let Some(member) = member {
            let down = CoordinatorEvent::MemberDown(member);
            self.say(who, Actor::Coordinator, Word::ToCoordinator(down));
        }
    }

    fn restart(&mut self, actor: Actor) {
        match actor {
            Actor::Coordinator => self.restart_coordinator(),
            Actor::Sender(id) => {
                self.state.senders[id as usize].change(|slot| {
                    slot.life += 1;
                    slot.live = Some(SenderLive::default());
                });
                self.announce(id);
            }
            Actor::Receiver(id) => self.restart_receiver(self.state.index(id)),
        }
    }

    fn timer(&mut self, actor: Actor, id: TimerId) {
        match actor {
            Actor::Coordinator => {
                self.state.coordinator.change(|slot| slot.timers.remove(&id));
                self.coordinate(CoordinatorEvent::TimerFired(id));
            }
            Actor::Receiver(receiver) => self.receiver_timer(self.state.index(receiver), id),
            Actor::Sender(_) => {}
        }
    }

    // The coordinator.

    fn restart_coordinator(&mut self) {
        let cluster = self.cluster;
        let senders = (0..cluster.senders).map(SenderId);
        let receivers: Vec<_> = self.state.receivers.iter().map(|slot| slot.id).collect();
        let epoch = self.state.coordinator.change(|slot| {
            slot.life += 1;
            let epoch = Epoch { counter: slot.life.into(), incarnation: slot.life.into() };
            let (run, plan) = (RunId::default(), PlanDigest::default());
            slot.live = Some(Coordinator::new(run, plan, epoch, senders, receivers, options(cluster)));
            epoch
        });
        let me = self.state.address(Actor::Coordinator).expect("it has just come up");
        for actor in self.state.actors().into_iter().filter(|&actor| actor != Actor::Coordinator) {
            self.say(me, actor, Word::Announce(epoch));
        }
    }

    fn coordinate(&mut self, event: CoordinatorEvent) {
        let Some(me) = self.state.address(Actor::Coordinator) else { return };
        let commands = self.state.coordinator.change(|slot| {
            let commands = slot.live.as_mut().map(|machine| machine.handle(event)).unwrap_or_default();
            let armed = commands.iter().filter_map(|command| match command {
                CoordinatorCommand::ArmTimer { id, .. } => Some(*id),
                _ => None,
            });
            slot.timers.extend(armed);
            // A timer that changes nothing now changes nothing later.
            let machine = slot.live.clone().expect("it lives");
            slot.timers.retain(|&id| {
                let mut after = machine.clone();
                !after.handle(CoordinatorEvent::TimerFired(id)).is_empty() || after != machine
            });
            commands
        });
        for (done, command) in commands.into_iter().enumerate() {
            if done > 0 && self.is_cut(done, Actor::Coordinator) {
                return;
            }
            self.coordinator_command(me, command);
        }
    }

    fn coordinator_command(&mut self, me: Address, command: CoordinatorCommand) {
        let lead = |replica| Actor::Receiver(ReceiverId { replica, rank: 0 });
        match command {
            CoordinatorCommand::Begin { fence, replica, needs } => {
                self.say(me, lead(replica), Word::ToLead(LeadEvent::Begin(fence, needs.intake)));
                self.tell_senders(me, &Word::Begin(fence, replica, needs));
            }
            CoordinatorCommand::Abort { fence, replica, cause } => {
                self.abort(fence);
                self.say(me, lead(replica), Word::ToLead(LeadEvent::Abort(fence, cause)));
                self.tell_senders(me, &Word::Abort(fence));
            }
            CoordinatorCommand::ArmTimer { .. } => {}
            CoordinatorCommand::Settle { replica, version, outcome } => {
                self.settle(replica, version, &outcome);
            }
        }
    }

    fn tell_senders(&mut self, me: Address, word: &Word) {
        (0..self.cluster.senders).for_each(|id| self.say(me, Actor::Sender(id), word.clone()));
    }

    pub(crate) fn abort(&mut self, fence: Fence) {
        self.state.aborted.change(|aborted| aborted.insert(fence));
    }

    /// Aborts that nobody can run into any more.
    fn forget_aborted(&mut self) {
        if self.state.aborted.is_empty() {
            return;
        }
        let posted = self.state.receivers.iter().filter_map(|slot| slot.live.as_ref()?.posted);
        let mut needed: BTreeSet<Fence> = posted.map(|(fence, _)| fence).collect();
        for word in self.state.links.values().flatten() {
            match word {
                Word::ToLead(LeadEvent::Begin(fence, _)) | Word::Begin(fence, ..) => {
                    needed.insert(*fence);
                }
                Word::FromLead(_, driftless_proto::FromLead::Begin(fence, _)) => {
                    needed.insert(*fence);
                }
                _ => {}
            }
        }
        if !self.state.aborted.is_subset(&needed) {
            self.state.aborted.change(|aborted| aborted.retain(|fence| needed.contains(fence)));
        }
    }

    fn settle(&mut self, replica: ReplicaId, version: Version, outcome: &ReplicaOutcome) {
        let settled = match outcome {
            ReplicaOutcome::Committed => Settled::Committed,
            ReplicaOutcome::Lagging { at, .. } => Settled::Lagging(*at),
        };
        let serves = |slot: &ReceiverSlot| slot.binding.version >= version;
        if settled == Settled::Committed && !self.state.members(replica.0 as usize).all(serves) {
            self.breach("CM-4", "a version counts as committed that not every receiver serves");
        }
        let before =
            self.state.trainer.change(|trainer| trainer.outcomes.insert((version, replica), settled));
        if before == Some(Settled::Committed) && settled != Settled::Committed {
            self.breach("CM-3", "a version that was committed is said to lag");
        }
    }
}
