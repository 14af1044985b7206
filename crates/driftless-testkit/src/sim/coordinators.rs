//! The shell of the coordinator, and what a new one hears.

use super::actors::Cut;
use super::check::Breach;
use super::message::{Actor, Address, Message};
use super::options::{FaultKind, Sabotage};
use super::world::World;
use driftless_proto::{
    Coordinator, CoordinatorCommand, CoordinatorEvent, CoordinatorOptions, LeadEvent, TimerKind,
};
use driftless_types::{Epoch, PlanDigest, ReceiverId, RunId};
use std::time::Duration;

impl World {
    pub(super) fn restart_coordinator(&mut self) {
        self.coordinator.life += 1;
        self.coordinator.counter += 1;
        let epoch = Epoch { counter: self.coordinator.counter, incarnation: self.rng.next() };
        let options = CoordinatorOptions {
            max_attempts: self.options.max_attempts,
            first_back_off: Duration::from_millis(50),
            longest_back_off: Duration::from_millis(1000),
            attempt_deadline: Duration::from_millis(15_000),
        };
        let (senders, receivers) = (self.senders.keys().copied(), self.receivers.keys().copied());
        let (run, plan) = (RunId::default(), PlanDigest::default());
        let machine = Coordinator::new(run, plan, epoch, senders, receivers, options);
        self.coordinator.live = Some(machine);
        let me = Address { actor: Actor::Coordinator, life: self.coordinator.life };
        let senders: Vec<_> = self.senders.keys().map(|&id| Actor::Sender(id)).collect();
        let receivers: Vec<_> = self.receivers.keys().map(|&id| Actor::Receiver(id)).collect();
        for actor in senders.into_iter().chain(receivers) {
            self.say(me, actor, Message::NewCoordinator(epoch));
            if matches!(actor, Actor::Receiver(id) if id.is_lead()) {
                self.say(me, actor, Message::ToLead(LeadEvent::NewEpoch(epoch)));
            }
        }
    }

    pub(super) fn coordinate(&mut self, event: CoordinatorEvent) -> Result<(), Breach> {
        let Some(machine) = &mut self.coordinator.live else { return Ok(()) };
        let commands = machine.handle(event);
        let cut = self.cut(FaultKind::KillCoordinator, commands.len());
        let me = Address { actor: Actor::Coordinator, life: self.coordinator.life };
        for (done, command) in commands.into_iter().enumerate() {
            if cut.is_here(done) {
                break;
            }
            self.coordinator_command(me, command);
        }
        if cut != Cut::Never {
            self.kill(Actor::Coordinator);
        }
        Ok(())
    }

    fn coordinator_command(&mut self, me: Address, command: CoordinatorCommand) {
        let lead = |replica| Actor::Receiver(ReceiverId { replica, rank: 0 });
        match command {
            CoordinatorCommand::Begin { fence, replica, needs } => {
                self.attempts += 1;
                self.say(me, lead(replica), Message::ToLead(LeadEvent::Begin(fence, needs.intake)));
                self.tell_senders(me, &Message::Begin(fence, replica, needs));
            }
            CoordinatorCommand::Abort { fence, replica, cause } => {
                self.abort_transfers(fence);
                self.say(me, lead(replica), Message::ToLead(LeadEvent::Abort(fence, cause)));
                self.tell_senders(me, &Message::Abort(fence, replica));
            }
            CoordinatorCommand::ArmTimer { id, .. }
                if self.options.sabotage == Sabotage::SayOnce && matches!(id.kind, TimerKind::Attempt(_)) => {
            }
            CoordinatorCommand::ArmTimer { id, after } => {
                if self.options.sabotage != Sabotage::NeverRetry {
                    self.arm(me, after, Message::ToCoordinator(CoordinatorEvent::TimerFired(id)));
                }
            }
            CoordinatorCommand::Settle { replica, version, outcome } => {
                self.tell_senders(me, &Message::Settle(replica, version, outcome));
            }
        }
    }

    fn tell_senders(&mut self, from: Address, message: &Message) {
        let senders: Vec<_> = self.senders.keys().copied().collect();
        for sender in senders {
            self.say(from, Actor::Sender(sender), message.clone());
        }
    }
}
