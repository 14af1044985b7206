//! One step of a replica: the shells of its receivers, its lead and its engine.

use crate::cluster::{Cluster, Defect};
use crate::shell::{Own, Shell};
use crate::state::{Binding, Breach, History, Offered, ReceiverLive, State};
use crate::words::{Actor, Address, Word};
use driftless_proto::{
    CoordinatorEvent, Decision, Engine, ExchangeCommand, ExchangeEvent, FromLead, Lead, LeadEvent,
    LeadOptions, Limits, Participant, ParticipantCommand, ParticipantEvent, RootCause, Shape, TimerId,
    TimerKind, ToLead, Weights,
};

use driftless_types::{Epoch, Fence, Incarnation, Member, ReceiverId, Round, SenderId, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Of each sender, when everything is taken in place: one for each of its elements.
const WINDOWS: u32 = 2;

const fn lead_options() -> LeadOptions {
    let zero = Duration::ZERO;
    LeadOptions {
        staging_deadline: zero,
        pause_deadline: zero,
        apply_deadline: zero,
        taking_deadline: zero,
        repeat_after: zero,
    }
}

const fn limits() -> Limits {
    Limits {
        staging_max_bytes: 100,
        round_deadline: Duration::ZERO,
        bandwidth_bytes_per_s: 1,
        window_bytes: 1,
    }
}

fn lead_of(id: ReceiverId) -> Actor {
    Actor::Receiver(ReceiverId { rank: 0, ..id })
}

/// CM-1 and CM-2 of every replica.
pub(crate) fn check(cluster: &Cluster, state: &mut State) {
    let mut found = None;
    for index in 0..cluster.replicas as usize {
        if state.replicas[index].engine == Engine::Paused {
            continue;
        }
        let mut versions = BTreeSet::new();
        for slot in state.members(index) {
            let binding = &slot.binding;
            versions.insert(binding.version);
            if binding.is_writing || binding.undo.is_some() || versions.len() > 1 {
                let what = "an engine serves what is half written or of two versions";
                found = Some(Breach { id: "CM-1", found: what });
            } else if binding.weights == Weights::Torn {
                found = Some(Breach { id: "CM-14", found: "an engine serves weights of no version" });
            } else if !is_true(binding, binding.version) {
                found = Some(Breach { id: "CM-2", found: "a version is served with other bits" });
            }
        }
    }
    if let Some(found) = found {
        state.breach.get_or_insert(found);
    }
}

fn is_true(binding: &Binding, version: Version) -> bool {
    binding.content.iter().enumerate().all(|(sender, bits)| *bits == Cluster::truth(sender, version))
}

impl Shell<'_> {
    pub(crate) fn receiver(&self, index: usize) -> (ReceiverId, Option<Address>) {
        let id = self.state.receivers[index].id;
        (id, self.state.address(Actor::Receiver(id)))
    }

    pub(crate) fn restart_receiver(&mut self, index: usize) {
        let sends = BTreeMap::new();
        let senders = || (0..self.cluster.senders).map(|id| Member::Sender(SenderId(id)));
        let windows = senders().map(|sender| (sender, WINDOWS)).collect();
        let shape = Shape { sends, receives: senders().map(|sender| (sender, 1)).collect(), windows };
        let id = self.state.receivers[index].id;
        let phase = self.state.receivers[index].change(|slot| {
            if slot.binding.applied.is_none() {
                slot.binding.undo(); // an interrupted scatter is taken back before the first word
            }
            slot.life += 1;
            let (committed, applied) = (slot.binding.committed, slot.binding.applied);
            let participant = Participant::restore(shape, limits(), committed, applied, slot.binding.weights);
            let phase = participant.phase();
            slot.live = Some(ReceiverLive {
                participant,
                lead: None,
                timers: BTreeSet::new(),
                posted: None,
                windows: BTreeMap::new(),
                staged: None,
                scattering: None,
                promised: Epoch::default(),
                heard: Incarnation(0),
                current: [None; 2],
            });
            phase
        });
        let me = Address { actor: Actor::Receiver(id), life: self.state.receivers[index].life };
        let up = Word::ToCoordinator(CoordinatorEvent::ReceiverUp(id));
        self.say(me, Actor::Coordinator, up);
        if !id.is_lead() {
            let word = Word::ToLead(LeadEvent::Member(id, ToLead::Phase(phase)));
            return self.say(me, lead_of(id), word);
        }
        let replica = id.replica.0 as usize;
        let (members, engine) = self.state.replicas[replica].change(|slot| {
            slot.incarnation.0 += 1;
            let pausing = slot.calls.iter().any(|(_, pauses)| pauses.is_some());
            (slot.members.clone(), if pausing { Engine::Paused } else { slot.engine })
        });
        let (lead, commands) = Lead::recover(members, lead_options(), engine);
        self.change_live(index, |live| live.lead = Some(lead));
        self.lead_commands(index, me, commands);
    }

    pub(crate) fn change_live<R>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut ReceiverLive) -> R,
    ) -> Option<R> {
        self.state.receivers[index].change(|slot| slot.live.as_mut().map(change))
    }

    pub(crate) fn receiver_timer(&mut self, index: usize, id: TimerId) {
        self.change_live(index, |live| live.timers.remove(&id));
        if !matches!(id.kind, TimerKind::Records | TimerKind::Payload) {
            return self.lead(index, LeadEvent::TimerFired(id));
        }
        let _ = self.exchange(index, ExchangeEvent::TimerFired(id));
    }

    // The exchange.

    pub(crate) fn exchange(&mut self, index: usize, event: ExchangeEvent) -> Option<()> {
        let (fence, _) = self.state.receivers[index].live.as_ref()?.posted?;
        self.participant(index, ParticipantEvent::Exchange(fence, event));
        Some(())
    }

    pub(crate) fn moved(&mut self, index: usize) -> Option<()> {
        let (_, round) = self.state.receivers[index].live.as_ref()?.posted?;
        let event = match round {
            Round::Payload => ExchangeEvent::PayloadMoved,
            Round::Records => {
                let offers = (0u32..).zip(self.offers(index)?);
                let bytes = |offer: Offered| u64::from(offer.positions.count_ones());
                let announced = offers.map(|(id, offer)| (Member::Sender(SenderId(id)), bytes(offer)));
                ExchangeEvent::RecordsMoved { announced: announced.collect() }
            }
        };
        self.change_live(index, |live| live.timers.retain(|id| id.kind != TimerKind::Records));
        self.exchange(index, event)
    }

    /// A window holds one element of one sender: it is written in place, whatever stands there.
    pub(crate) fn window_moved(&mut self, index: usize, sender: u32) -> Option<()> {
        let version = self.offers(index)?[sender as usize].version;
        let bits = Cluster::truth(sender as usize, version);
        self.state.receivers[index].change(|slot| {
            let element = slot.live.as_mut()?.windows.remove(&sender)? as usize;
            slot.binding.weights = Weights::Torn;
            slot.binding.content[sender as usize][element] = bits[element];
            Some(())
        })?;
        self.exchange(index, ExchangeEvent::WindowMoved(Member::Sender(SenderId(sender))))
    }

    fn offers(&self, index: usize) -> Option<Vec<Offered>> {
        let replica = self.state.receivers[index].id.replica;
        let offer = |live: &crate::state::SenderLive| live.open.get(&replica).map(|(_, offer)| *offer);
        self.state.senders.iter().map(|slot| offer(slot.live.as_ref()?)).collect()
    }

    // The receiver.

    pub(crate) fn participant(&mut self, index: usize, event: ParticipantEvent) {
        let (id, Some(me)) = self.receiver(index) else { return };
        let event = self.without_tags(index, event);
        let slot = &self.state.receivers[index];
        let Some(live) = &slot.live else { return };
        let Ok((after, commands)) = live.participant.clone().handle(event.clone()) else {
            if self.cluster.defect != Defect::NoTags {
                self.breach("violation", "a receiver was told what no correct lead says");
            }
            return;
        };
        if let ParticipantEvent::Lead(incarnation, _) = event {
            if incarnation < live.heard && (after != live.participant || !commands.is_empty()) {
                self.breach("CM-5", "a receiver obeys an older lead");
            }
            self.change_live(index, |live| live.heard = live.heard.max(incarnation));
        }
        self.change_live(index, |live| live.participant = after);
        for (done, command) in commands.into_iter().enumerate() {
            if done > 0 && self.is_cut(done, me.actor) {
                return;
            }
            self.participant_command(index, id, me, command);
        }
        self.forget_timers(index);
    }

    /// With [`Defect::NoTags`] a word means the attempt that its hearer is in.
    fn without_tags(&mut self, index: usize, event: ParticipantEvent) -> ParticipantEvent {
        let ParticipantEvent::Lead(_, word) = &event else { return event };
        if self.cluster.defect != Defect::NoTags {
            return event;
        }
        let word = word.clone();
        let current = self.change_live(index, |live| {
            if let FromLead::Begin(fence, _) = &word {
                live.current[0] = Some(*fence);
            }
            live.current[0]
        });
        let mine = |fence| current.flatten().unwrap_or(fence);
        let word = match word {
            FromLead::Apply(fence) => FromLead::Apply(mine(fence)),
            FromLead::Decide(fence, decision) => FromLead::Decide(mine(fence), decision),
            word => word,
        };
        ParticipantEvent::Lead(Incarnation(1), word)
    }

    fn participant_command(
        &mut self,
        index: usize,
        id: ReceiverId,
        me: Address,
        command: ParticipantCommand,
    ) {
        match command {
            ParticipantCommand::Exchange(fence, ExchangeCommand::Post { round, .. }) => {
                self.change_live(index, |live| live.posted = Some((fence, round)));
            }
            ParticipantCommand::Exchange(fence, ExchangeCommand::Window { peer, index: window }) => {
                let Member::Sender(SenderId(sender)) = peer else { unreachable!("{peer} sends nothing") };
                self.change_live(index, |live| {
                    live.posted = Some((fence, Round::Payload));
                    live.windows.insert(sender, window);
                });
            }
            ParticipantCommand::Exchange(_, ExchangeCommand::ArmTimer { id, .. }) => {
                self.change_live(index, |live| live.timers.insert(id));
            }
            ParticipantCommand::Exchange(fence, ExchangeCommand::AbortTransfers) => self.abort(fence),
            ParticipantCommand::Check(fence) => {
                let offers = self.offers(index).unwrap_or_default();
                self.change_live(index, |live| {
                    live.posted = None;
                    live.staged = Some((fence, offers));
                });
                self.own.push_back((index, Own::Participant(ParticipantEvent::Checked(fence, Ok(())))));
            }
            ParticipantCommand::Prove(fence) => self.prove(index, id, fence),
            ParticipantCommand::Scatter(fence) => self.state.receivers[index].change(|slot| {
                slot.binding.undo = Some((fence, slot.binding.content.clone()));
                slot.binding.is_writing = true;
                slot.live.iter_mut().for_each(|live| live.scattering = Some(fence));
            }),
            ParticipantCommand::Undo(fence) => {
                self.state.receivers[index].change(|slot| slot.binding.undo());
                self.own.push_back((index, Own::Participant(ParticipantEvent::Undone(fence))));
            }
            ParticipantCommand::Seal(fence) => self.seal(index, id, fence),
            ParticipantCommand::Discard(fence) => {
                self.change_live(index, |live| {
                    live.staged = None;
                    live.posted = live.posted.filter(|(posted, _)| *posted != fence);
                    if live.posted.is_none() {
                        live.windows.clear();
                    }
                });
            }
            ParticipantCommand::Tell(word) => self.tell_lead(index, id, me, word),
        }
    }

    fn tell_lead(&mut self, index: usize, id: ReceiverId, me: Address, word: ToLead) {
        match &word {
            ToLead::Done(fence, Decision::Rollback) => {
                let slot = &self.state.receivers[index];
                if slot.binding.is_writing || !is_true(&slot.binding, slot.binding.version) {
                    self.breach("CM-3", "a rollback does not restore the old bits");
                }
                self.note(id, *fence, |history, rank| history.undone |= rank);
            }
            ToLead::Torn(fence) => self.note(id, *fence, |history, rank| history.undone |= rank),
            ToLead::Staged(fence) if self.cluster.defect == Defect::ApplyOnArrival => {
                let apply = ParticipantEvent::Lead(Incarnation(u64::MAX), FromLead::Apply(*fence));
                self.own.push_back((index, Own::Participant(apply)));
            }
            _ => {}
        }
        let event = LeadEvent::Member(id, word);
        if id.is_lead() {
            return self.own.push_back((index, Own::Lead(event)));
        }
        self.say(me, lead_of(id), Word::ToLead(event));
    }

    fn note(&mut self, id: ReceiverId, fence: Fence, note: impl FnOnce(&mut History, u8)) {
        let history = self.state.replicas[id.replica.0 as usize].change(|slot| {
            let history = slot.history.entry(fence).or_default();
            note(history, 1 << id.rank);
            *history
        });
        if history.sealed != 0 && history.undone != 0 {
            self.breach("CM-3", "an attempt is sealed here and taken back there");
        }
    }

    pub(crate) fn scattered(&mut self, index: usize, result: Result<(), RootCause>) -> Option<()> {
        let (id, _) = self.receiver(index);
        let (fence, is_complete) = self.state.receivers[index].change(|slot| {
            let live = slot.live.as_mut()?;
            let fence = live.scattering.take()?;
            let (_, staged) = live.staged.take()?;
            for (sender, offer) in staged.iter().enumerate() {
                let bits = Cluster::truth(sender, offer.version);
                for (element, target) in slot.binding.content[sender].iter_mut().enumerate() {
                    if offer.positions >> element & 1 == 1 {
                        *target = bits[element];
                    }
                }
            }
            slot.binding.is_writing = false;
            if result.is_ok() {
                slot.binding.applied = Some(fence);
            }
            Some((fence, is_true(&slot.binding, fence.version)))
        })?;
        if !is_complete {
            self.breach("CM-6", "a changed element did not reach a receiver");
        }
        if result.is_ok() {
            self.note(id, fence, |history, rank| history.applied |= rank);
        }
        self.participant(index, ParticipantEvent::Scattered(fence, result));
        Some(())
    }

    /// Everything was written in place: its digests are compared.
    fn prove(&mut self, index: usize, id: ReceiverId, fence: Fence) {
        let is_complete = self.state.receivers[index].change(|slot| {
            slot.live.iter_mut().for_each(|live| live.posted = None);
            slot.binding.applied = Some(fence);
            is_true(&slot.binding, fence.version)
        });
        if !is_complete {
            self.breach("CM-6", "an element did not reach a receiver that took everything");
        }
        self.note(id, fence, |history, rank| history.applied |= rank);
        self.own.push_back((index, Own::Participant(ParticipantEvent::Scattered(fence, Ok(())))));
    }

    fn seal(&mut self, index: usize, id: ReceiverId, fence: Fence) {
        let replica = &self.state.replicas[id.replica.0 as usize];
        let history = replica.history.get(&fence).copied().unwrap_or_default();
        if history.applied.count_ones() != self.cluster.receivers {
            self.breach("CM-4", "an attempt is sealed that not everyone has applied");
        }
        if history.sealed >> id.rank & 1 == 1 {
            self.breach("CM-10", "an attempt is sealed twice");
        }
        let before = self.state.receivers[index].change(|slot| {
            let binding = &mut slot.binding;
            binding.undo = None;
            binding.applied = None;
            binding.committed = Some(fence);
            binding.weights = Weights::Whole;
            std::mem::replace(&mut binding.version, fence.version)
        });
        if fence.version < before {
            self.breach("CM-5", "a version falls");
        }
        self.note(id, fence, |history, rank| history.sealed |= rank);
        self.own.push_back((index, Own::Participant(ParticipantEvent::Sealed(fence))));
    }

    pub(crate) fn impatient(&mut self, index: usize) -> Option<()> {
        let slot = &self.state.receivers[index];
        let fence = slot.binding.applied?;
        let word = FromLead::Decide(fence, Decision::Rollback);
        let heard = slot.live.as_ref()?.heard;
        self.participant(index, ParticipantEvent::Lead(heard, word));
        Some(())
    }
}
