//! One step of a replica's lead and of its engine.

use crate::cluster::Defect;
use crate::shell::{Own, Shell};
use crate::state::ReceiverLive;
use crate::words::{Actor, Address, Word};
use driftless_proto::{
    CoordinatorEvent, Engine, ExchangeEvent, FromLead, LeadCommand, LeadEvent, Needs, ParticipantEvent,
    RootCause, TimerKind, ToLead,
};

impl Shell<'_> {
    pub(crate) fn lead(&mut self, index: usize, event: LeadEvent) {
        let (_, Some(me)) = self.receiver(index) else { return };
        let event = self.lead_without_tags(index, event);
        let Some(live) = &self.state.receivers[index].live else { return };
        let Some(before) = live.lead.clone() else { return };
        let epoch = match &event {
            LeadEvent::Begin(fence, _) | LeadEvent::Abort(fence, _) => fence.epoch,
            LeadEvent::NewEpoch(epoch) => *epoch,
            _ => live.promised,
        };
        let is_older = epoch < live.promised;
        let (after, commands) = before.clone().handle(event);
        if is_older && (after != before || !commands.is_empty()) {
            self.breach("CM-5", "a lead obeys an older coordinator");
        }
        self.change_live(index, |live| {
            live.promised = live.promised.max(epoch);
            live.lead = Some(after);
        });
        self.lead_commands(index, me, commands);
    }

    fn lead_without_tags(&mut self, index: usize, event: LeadEvent) -> LeadEvent {
        if self.cluster.defect != Defect::NoTags {
            return event;
        }
        let current = self.change_live(index, |live| {
            if let LeadEvent::Begin(fence, _) = &event {
                live.current[1] = Some(*fence);
            }
            live.current[1]
        });
        let mine = |fence| current.flatten().unwrap_or(fence);
        match event {
            LeadEvent::Member(member, ToLead::Staged(fence)) => {
                LeadEvent::Member(member, ToLead::Staged(mine(fence)))
            }
            LeadEvent::Member(member, ToLead::Applied(fence)) => {
                LeadEvent::Member(member, ToLead::Applied(mine(fence)))
            }
            LeadEvent::Member(member, ToLead::Done(fence, decision)) => {
                LeadEvent::Member(member, ToLead::Done(mine(fence), decision))
            }
            LeadEvent::Abort(fence, cause) => LeadEvent::Abort(mine(fence), cause),
            event => event,
        }
    }

    pub(crate) fn lead_commands(&mut self, index: usize, me: Address, commands: Vec<LeadCommand>) {
        for (done, command) in commands.into_iter().enumerate() {
            if done > 0 && self.is_cut(done, me.actor) {
                return;
            }
            self.lead_command(index, me, command);
        }
        self.forget_timers(index);
    }

    fn lead_command(&mut self, index: usize, me: Address, command: LeadCommand) {
        let (id, _) = self.receiver(index);
        let replica = id.replica.0 as usize;
        match command {
            LeadCommand::Tell(member, word) => {
                if let FromLead::Begin(fence, _) = &word {
                    // What became of older attempts was checked when it happened.
                    self.state.replicas[replica].change(|slot| slot.history.retain(|of, _| of >= fence));
                }
                let incarnation = self.state.replicas[replica].incarnation;
                if member == id {
                    let event = ParticipantEvent::Lead(incarnation, word);
                    return self.own.push_back((index, Own::Participant(event)));
                }
                self.say(me, Actor::Receiver(member), Word::FromLead(incarnation, word));
            }
            LeadCommand::Pause(fence) => {
                self.state.replicas[replica].change(|slot| slot.calls.push_back((me.life, Some(fence))));
            }
            LeadCommand::Resume => {
                self.state.replicas[replica].change(|slot| slot.calls.push_back((me.life, None)));
            }
            LeadCommand::ArmTimer { id, .. } => {
                self.change_live(index, |live| live.timers.insert(id));
            }
            LeadCommand::Report(outcome) => {
                let version = self.state.receivers[index].binding.version;
                let event = CoordinatorEvent::Ended(id.replica, outcome, version);
                self.say(me, Actor::Coordinator, Word::ToCoordinator(event));
            }
            LeadCommand::ReportServing => {
                let slot = &self.state.receivers[index];
                let lead = slot.live.as_ref().and_then(|live| live.lead.as_ref());
                let needs = lead.map_or_else(Needs::default, |lead| lead.needs(slot.binding.version));
                let event = CoordinatorEvent::Serving(id.replica, needs);
                self.say(me, Actor::Coordinator, Word::ToCoordinator(event));
            }
        }
    }

    /// A timer that changes nothing now changes nothing later.
    pub(crate) fn forget_timers(&mut self, index: usize) {
        self.change_live(index, |live| {
            let ReceiverLive { participant, lead, posted, timers, .. } = live;
            timers.retain(|&id| {
                if matches!(id.kind, TimerKind::Records | TimerKind::Payload) {
                    let Some((fence, _)) = *posted else { return false };
                    let event = ParticipantEvent::Exchange(fence, ExchangeEvent::TimerFired(id));
                    return participant.clone().handle(event).is_ok_and(|(_, commands)| !commands.is_empty());
                }
                lead.as_ref().is_some_and(|lead| {
                    let (after, commands) = lead.clone().handle(LeadEvent::TimerFired(id));
                    !commands.is_empty() || after != *lead
                })
            });
        });
    }

    // The engine.

    pub(crate) fn hook_returned(&mut self, replica: usize, result: Result<(), RootCause>) -> Option<()> {
        let (life, pauses) = self.state.replicas[replica].change(|slot| {
            let call = slot.calls.pop_front()?;
            match (call.1, &result) {
                (Some(_), Ok(())) => slot.engine = Engine::Paused,
                (Some(_), Err(_)) => {}
                (None, _) => slot.engine = Engine::Serving,
            }
            Some(call)
        })?;
        let lead = *self.state.replicas[replica].members.first()?;
        let index = self.state.index(lead);
        if self.state.address(Actor::Receiver(lead)) == Some(Address { actor: Actor::Receiver(lead), life }) {
            let event = pauses.map_or(LeadEvent::Resumed, |fence| LeadEvent::Paused(fence, result));
            self.lead(index, event);
        }
        Some(())
    }
}
