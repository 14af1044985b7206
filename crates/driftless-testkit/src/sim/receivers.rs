//! The shell of a receiver: a participant, and in receiver 0 the replica's lead.

use super::actors::ReceiverActor;
use super::check::{Breach, Promised, ignored};
use super::engine::{Call, Hook};
use super::message::{Actor, Address, Happening, Message, Work};
use super::options::{FaultKind, Sabotage};
use super::senders::{limits, receiver_shape};
use super::world::{STALL_MS, World};
use driftless_proto::{
    CoordinatorEvent, Decision, FromLead, Lead, LeadCommand, LeadEvent, LeadOptions, Participant,
    ParticipantCommand, ParticipantEvent, RootCause, TimerKind, ToLead, Verdict, Weights,
};
use driftless_types::{Fence, Incarnation, Member, ReceiverId, ReplicaId};
use std::time::Duration;

const fn lead_options() -> LeadOptions {
    LeadOptions {
        staging_deadline: Duration::from_millis(4_000),
        pause_deadline: Duration::from_millis(1_000),
        apply_deadline: Duration::from_millis(1_500),
        taking_deadline: Duration::from_millis(4_000),
        repeat_after: Duration::from_millis(150),
    }
}

impl World {
    pub(super) fn restart_receiver(&mut self, id: ReceiverId) -> Result<(), Breach> {
        let shape = receiver_shape(self, id);
        let Some(slot) = self.receivers.get_mut(&id) else { return Ok(()) };
        if self.options.sabotage == Sabotage::ForgetApplied && slot.binding.applied.take().is_some() {
            slot.binding.undo = None;
        }
        // An interrupted scatter is taken back before the receiver says a word.
        if let Some(fence) = slot.binding.recover() {
            self.checks.rolled_back(fence, id, &slot.binding)?;
        }
        slot.life += 1;
        if self.options.sabotage == Sabotage::ForgetTorn {
            slot.binding.weights = Weights::Whole;
        }
        let binding = &slot.binding;
        let participant =
            Participant::restore(shape, limits(), binding.committed, binding.applied, binding.weights);
        let phase = participant.phase();
        slot.live = Some(ReceiverActor { participant, lead: None, promised: Promised::default() });
        let me = Address { actor: Actor::Receiver(id), life: slot.life };
        self.say(me, Actor::Coordinator, Message::ToCoordinator(CoordinatorEvent::ReceiverUp(id)));
        if id.is_lead() {
            return self.recover_lead(me, id);
        }
        let word = Message::ToLead(LeadEvent::Member(id, ToLead::Phase(phase)));
        self.say(me, lead_of(id), word);
        Ok(())
    }

    fn recover_lead(&mut self, me: Address, id: ReceiverId) -> Result<(), Breach> {
        let Some(replica) = self.replicas.get_mut(&id.replica) else { return Ok(()) };
        replica.incarnation.0 += 1;
        replica.busy_since_ms = Some(self.now_ms);
        let assumed = replica.engine.assumed();
        let (lead, commands) = Lead::recover(replica.members.clone(), lead_options(), assumed);
        self.hold_lead(id, lead);
        self.lead_commands(me, id, commands)
    }

    fn hold_lead(&mut self, id: ReceiverId, lead: Lead) {
        if let Some(actor) = self.receivers.get_mut(&id).and_then(|slot| slot.live.as_mut()) {
            actor.lead = Some(lead);
        }
    }

    // The participant.

    pub(super) fn participant(&mut self, id: ReceiverId, event: ParticipantEvent) -> Result<(), Breach> {
        let Some(slot) = self.receivers.get_mut(&id) else { return Ok(()) };
        let Some(actor) = &mut slot.live else { return Ok(()) };
        let me = Address { actor: Actor::Receiver(id), life: slot.life };
        let heard = match &event {
            ParticipantEvent::Lead(incarnation, _) => Some(incarnation.0),
            _ => None,
        };
        let event = match event {
            ParticipantEvent::Lead(_, word) if self.options.sabotage == Sabotage::ObeyOldLead => {
                ParticipantEvent::Lead(Incarnation(u64::MAX), word)
            }
            event => event,
        };
        let (after, commands) = actor
            .participant
            .clone()
            .handle(event)
            .map_err(|violation| Breach::new("EX", format!("{id}: {violation}")))?;
        if heard.is_some_and(|heard| heard < actor.promised.incarnation) {
            ignored(format!("{id} obeys an older lead"), &actor.participant, &after, &commands)?;
        }
        actor.promised.incarnation = actor.promised.incarnation.max(heard.unwrap_or_default());
        actor.participant = after;
        let kind = if id.is_lead() { FaultKind::KillLead } else { FaultKind::KillReceiver };
        let cut = self.cut(kind, commands.len());
        let all = commands.len();
        for (done, command) in commands.into_iter().enumerate() {
            if cut.is_here(done) {
                self.kill(me.actor);
                return Ok(());
            }
            self.participant_command(me, id, command)?;
        }
        if cut.is_here(all) {
            self.kill(me.actor);
        }
        Ok(())
    }

    fn participant_command(
        &mut self,
        me: Address,
        id: ReceiverId,
        command: ParticipantCommand,
    ) -> Result<(), Breach> {
        let sabotage = self.options.sabotage;
        let Some(slot) = self.receivers.get_mut(&id) else { return Ok(()) };
        match command {
            ParticipantCommand::Exchange(fence, command) => {
                return self.exchange_command(me, Member::Receiver(id), fence, command);
            }
            ParticipantCommand::Check(fence) => {
                if sabotage == Sabotage::ApplyOnArrival {
                    slot.binding.begin_scatter(fence);
                }
                self.work(me, fence, Work::Check);
            }
            ParticipantCommand::Scatter(fence) => {
                slot.binding.begin_scatter(fence);
                self.work(me, fence, Work::Scatter);
            }
            ParticipantCommand::Prove(fence) => self.work(me, fence, Work::Prove),
            ParticipantCommand::Undo(fence) => {
                if sabotage == Sabotage::AcknowledgeWithoutUndo {
                    slot.binding.undo = None;
                }
                slot.binding.begin_undo(fence);
                self.work(me, fence, Work::Undo);
            }
            ParticipantCommand::Seal(fence) => {
                let members = self.replicas.get(&id.replica).map(|replica| replica.members.clone());
                self.checks.sealing(&fence, id, &members.unwrap_or_default())?;
                self.work(me, fence, Work::Seal);
            }
            ParticipantCommand::Discard(_) => {}
            ParticipantCommand::Tell(word) => {
                if let ToLead::Done(fence, Decision::Rollback) = &word {
                    self.checks.rolled_back(*fence, id, &slot.binding)?;
                }
                if let ToLead::Torn(fence) = &word {
                    self.checks.torn(*fence, id)?;
                }
                self.say(me, lead_of(id), Message::ToLead(LeadEvent::Member(id, word)));
            }
        }
        Ok(())
    }

    fn work(&mut self, me: Address, fence: Fence, work: Work) {
        let stalls = matches!(work, Work::Scatter | Work::Prove) && self.fault(FaultKind::ScatterStalls);
        let after_ms = if stalls { STALL_MS } else { self.rng.between(1, 40) };
        self.after(after_ms, Happening::Worked(me, fence, work));
    }

    /// A task of a receiver ended; a task of a life that is over was canceled with it.
    pub(super) fn worked(&mut self, who: Address, fence: Fence, work: Work) -> Result<(), Breach> {
        let Actor::Receiver(id) = who.actor else { return Ok(()) };
        if !self.is_current_receiver(id, who) {
            return Ok(());
        }
        let event = match work {
            Work::Check if self.fault(FaultKind::PayloadDamaged) => {
                ParticipantEvent::Checked(fence, Err(RootCause::Damaged("a section".into())))
            }
            Work::Check => ParticipantEvent::Checked(fence, Ok(())),
            Work::Scatter => ParticipantEvent::Scattered(fence, self.scattered(id, fence)?),
            Work::Prove => ParticipantEvent::Scattered(fence, self.proven(id, fence)?),
            Work::Undo => {
                if let Some(slot) = self.receivers.get_mut(&id) {
                    slot.binding.end_undo();
                }
                ParticipantEvent::Undone(fence)
            }
            Work::Seal => {
                if let Some(slot) = self.receivers.get_mut(&id) {
                    let before = slot.binding.version;
                    slot.binding.seal(fence);
                    self.checks.sealed(fence, id, before, &slot.binding)?;
                }
                ParticipantEvent::Sealed(fence)
            }
        };
        self.participant(id, event)
    }

    fn scattered(&mut self, id: ReceiverId, fence: Fence) -> Result<Result<(), RootCause>, Breach> {
        let parts = self.transport.parts(&fence, id);
        let tensor = self.fault(FaultKind::DigestMismatch).then_some(id.rank);
        let Some(slot) = self.receivers.get_mut(&id) else { return Ok(Ok(())) };
        slot.binding.corrupt.extend(tensor);
        let result = slot.binding.end_scatter(fence, &parts)?;
        if result.is_ok() {
            self.checks.applied(fence, id);
        }
        Ok(result)
    }

    fn proven(&mut self, id: ReceiverId, fence: Fence) -> Result<Result<(), RootCause>, Breach> {
        if self.fault(FaultKind::DigestMismatch) {
            return Ok(Err(RootCause::DigestMismatch { tensors: [id.rank].into() }));
        }
        let Some(slot) = self.receivers.get_mut(&id) else { return Ok(Ok(())) };
        slot.binding.prove(fence)?;
        self.checks.applied(fence, id);
        Ok(Ok(()))
    }

    // The lead.

    pub(super) fn lead(&mut self, id: ReceiverId, event: LeadEvent) -> Result<(), Breach> {
        let others = self.forged(id, &event);
        self.lead_event(id, event)?;
        others.into_iter().try_for_each(|event| self.lead_event(id, event))
    }

    /// With [`Sabotage::CommitWhenSomeApplied`], what the others have not said.
    fn forged(&self, id: ReceiverId, event: &LeadEvent) -> Vec<LeadEvent> {
        let LeadEvent::Member(_, ToLead::Applied(fence)) = event else { return Vec::new() };
        if self.options.sabotage != Sabotage::CommitWhenSomeApplied {
            return Vec::new();
        }
        let members = self.replicas.get(&id.replica).map(|replica| replica.members.clone());
        let applied = |member| LeadEvent::Member(member, ToLead::Applied(*fence));
        members.unwrap_or_default().into_iter().map(applied).collect()
    }

    fn lead_event(&mut self, id: ReceiverId, event: LeadEvent) -> Result<(), Breach> {
        let Some(slot) = self.receivers.get_mut(&id) else { return Ok(()) };
        let Some(actor) = &mut slot.live else { return Ok(()) };
        let Some(before) = actor.lead.clone() else { return Ok(()) };
        let me = Address { actor: Actor::Receiver(id), life: slot.life };
        let epoch = match &event {
            LeadEvent::Begin(fence, _) | LeadEvent::Abort(fence, _) => Some(fence.epoch),
            LeadEvent::NewEpoch(epoch) => Some(*epoch),
            _ => None,
        };
        let begins = matches!(event, LeadEvent::Begin(..));
        let (after, commands) = before.clone().handle(event);
        if epoch.is_some_and(|epoch| epoch < actor.promised.epoch) {
            ignored(format!("the lead {id} obeys an older coordinator"), &before, &after, &commands)?;
        }
        actor.promised.epoch = actor.promised.epoch.max(epoch.unwrap_or_default());
        actor.lead = Some(after);
        if let Some(replica) = self.replicas.get_mut(&id.replica)
            && begins
            && !commands.is_empty()
        {
            replica.busy_since_ms = Some(self.now_ms);
        }
        self.lead_commands(me, id, commands)
    }

    fn lead_commands(
        &mut self,
        me: Address,
        id: ReceiverId,
        commands: Vec<LeadCommand>,
    ) -> Result<(), Breach> {
        let cut = self.cut(FaultKind::KillLead, commands.len());
        let all = commands.len();
        for (done, command) in commands.into_iter().enumerate() {
            if cut.is_here(done) {
                self.kill(me.actor);
                return Ok(());
            }
            self.lead_command(me, id, command);
        }
        if cut.is_here(all) {
            self.kill(me.actor);
        }
        Ok(())
    }

    fn lead_command(&mut self, me: Address, id: ReceiverId, command: LeadCommand) {
        let replica = id.replica;
        match command {
            LeadCommand::Tell(member, word) => {
                let Some(slot) = self.replicas.get_mut(&replica) else { return };
                let decided = matches!(word, FromLead::Decide(..));
                if decided && self.options.sabotage == Sabotage::ResumeBeforeAcknowledged {
                    slot.engine.real = driftless_proto::Engine::Serving;
                }
                let word = ParticipantEvent::Lead(slot.incarnation, word);
                self.say(me, Actor::Receiver(member), Message::ToParticipant(word));
            }
            LeadCommand::Pause(fence) => {
                let fails = self.fault(FaultKind::PauseFails);
                let result = if fails { Err(RootCause::Pause("busy".into())) } else { Ok(()) };
                self.call_hook(replica, Call { by: me, hook: Hook::Pause(fence, result) });
            }
            LeadCommand::Resume if self.options.sabotage == Sabotage::NeverResume => {}
            LeadCommand::Resume => self.call_hook(replica, Call { by: me, hook: Hook::Resume }),
            // Nobody will ever answer there, and the simulation is to come to its end.
            LeadCommand::ArmTimer { id: timer, .. }
                if timer.kind == TimerKind::AskAgain && !self.takes_part(replica) => {}
            LeadCommand::ArmTimer { id, after } => {
                self.arm(me, after, Message::ToLead(LeadEvent::TimerFired(id)));
            }
            LeadCommand::Report(outcome) => {
                if outcome.verdict == Verdict::Committed {
                    self.commits += 1;
                }
                let version = self.lead_version(id);
                let event = CoordinatorEvent::Ended(replica, outcome, version);
                self.rest(me, replica, event);
            }
            LeadCommand::ReportServing => {
                let version = self.lead_version(id);
                let lead = self.receivers.get(&id).and_then(|slot| slot.live.as_ref()?.lead.as_ref());
                let needs = lead.map(|lead| lead.needs(version)).unwrap_or_default();
                self.rest(me, replica, CoordinatorEvent::Serving(replica, needs));
            }
        }
    }

    fn lead_version(&self, id: ReceiverId) -> driftless_types::Version {
        self.receivers.get(&id).map(|slot| slot.binding.version).unwrap_or_default()
    }

    fn rest(&mut self, me: Address, replica: ReplicaId, event: CoordinatorEvent) {
        if let Some(slot) = self.replicas.get_mut(&replica) {
            slot.busy_since_ms = None;
        }
        self.say(me, Actor::Coordinator, Message::ToCoordinator(event));
    }

    // The engine.

    fn call_hook(&mut self, replica: ReplicaId, call: Call) {
        let starts = self.replicas.get_mut(&replica).is_some_and(|slot| slot.engine.call(call));
        if starts {
            self.run_hook(replica);
        }
    }

    fn run_hook(&mut self, replica: ReplicaId) {
        let stalls = self.fault(FaultKind::HookStalls);
        let after_ms = if stalls { STALL_MS } else { self.rng.between(1, 80) };
        self.after(after_ms, Happening::HookReturned(replica));
    }

    pub(super) fn hook_returned(&mut self, replica: ReplicaId) {
        let Some(slot) = self.replicas.get_mut(&replica) else { return };
        let Some(call) = slot.engine.returned() else { return };
        let more = slot.engine.is_busy();
        let event = match call.hook {
            Hook::Pause(fence, result) => LeadEvent::Paused(fence, result),
            Hook::Resume => LeadEvent::Resumed,
        };
        self.after(0, Happening::Deliver(call.by, Message::ToLead(event)));
        if more {
            self.run_hook(replica);
        }
    }
}

const fn lead_of(id: ReceiverId) -> Actor {
    Actor::Receiver(ReceiverId { replica: id.replica, rank: 0 })
}
