//! The lead's part: the engine's hooks, the decision, the word to the coordinator.

use super::{CoordinatorMsg, Leading, ReceiverMsg, ReceiverState};
use crate::{Phase, Site, Step, work};
use driftless_proto::{CoordinatorEvent, Engine, Lead, LeadCommand, LeadEvent, Outcome, Verdict};
use driftless_types::{Epoch, Fence, Member, ReceiverId};
use ractor::{ActorProcessingErr, ActorRef};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use tracing::{info, warn};

impl ReceiverState {
    /// A lead starts or comes back: it takes a higher incarnation and asks everyone.
    pub(super) fn start_leading(&mut self, me: &ActorRef<ReceiverMsg>) -> Result<(), ActorProcessingErr> {
        let id = self.binding.id;
        let replica = self.shared.registry.replica(id.replica).ok_or("the replica has no binding")?;
        let members = self.members();
        let incarnation = replica.next_incarnation();
        let (machine, commands) = Lead::recover(members, self.shared.options.lead.clone(), replica.engine());
        self.leading = Some(Leading { machine, incarnation, replica, paused: None, deciding: None });
        for command in commands {
            self.execute_lead(me, command);
        }
        Ok(())
    }

    fn members(&self) -> BTreeSet<ReceiverId> {
        let replica = self.binding.id.replica;
        let plans = self.shared.plan.replicas().iter().filter(|plan| plan.id == replica);
        plans.flat_map(|plan| &plan.receivers).map(|receiver| receiver.id).collect()
    }

    /// Feeds the lead and starts what it commands; a rank that does not lead has nothing to feed.
    pub(super) fn lead(&mut self, me: &ActorRef<ReceiverMsg>, event: LeadEvent) {
        let Some(mut leading) = self.leading.take() else { return };
        let (machine, commands) = leading.machine.handle(event);
        leading.machine = machine;
        self.leading = Some(leading);
        for command in commands {
            self.execute_lead(me, command);
        }
    }

    fn execute_lead(&mut self, me: &ActorRef<ReceiverMsg>, command: LeadCommand) {
        let Some(leading) = &mut self.leading else { return };
        match command {
            LeadCommand::Tell(to, word) => {
                let message = ReceiverMsg::FromLead(leading.incarnation, word);
                self.shared.registry.tell_receiver(to, message);
            }
            LeadCommand::ArmTimer { id, after } => {
                let me = me.clone();
                self.tasks.arm(id, after, move || drop(me.cast(ReceiverMsg::Timer(id))));
            }
            LeadCommand::Pause(fence) => {
                leading.paused = Some((Instant::now(), fence.version));
                let id = self.binding.id.replica;
                leading.deciding = Some(Step::Decide.span(&self.shared, fence.version, id));
                self.pause(me.clone(), fence);
            }
            LeadCommand::Resume => self.resume(me.clone()),
            LeadCommand::Report(outcome) => self.report(outcome),
            LeadCommand::ReportServing => self.report_serving(),
        }
    }

    fn pause(&mut self, me: ActorRef<ReceiverMsg>, fence: Fence) {
        let Some(leading) = &self.leading else { return };
        let replica = Arc::clone(&leading.replica);
        let failpoints = self.shared.options.failpoints.clone();
        let member = Some(Member::Receiver(self.binding.id));
        let deadline = self.shared.options.lead.pause_deadline;
        // Noted before the call: if this actor dies in between, its successor resumes.
        replica.set_engine(Engine::Paused);
        self.tasks.spawn(async move {
            if failpoints.pass(Site::LeadPauses, member, me.get_cell()).await.is_err() {
                me.kill();
                return;
            }
            let outcome = work::call(replica.on_pause(), replica.version(), deadline).await;
            let _ = me.cast(ReceiverMsg::Paused(fence, outcome));
        });
    }

    fn resume(&mut self, me: ActorRef<ReceiverMsg>) {
        let Some(leading) = &mut self.leading else { return };
        let paused = leading.paused.take();
        let replica = Arc::clone(&leading.replica);
        let shared = Arc::clone(&self.shared);
        let failpoints = self.shared.options.failpoints.clone();
        let member = Some(Member::Receiver(self.binding.id));
        let deadline = self.shared.options.lead.pause_deadline;
        let version = self.binding.version();
        let epoch = self.serving_epoch();
        let moves = Step::Watermark.span(&self.shared, version, self.binding.id.replica);
        self.tasks.spawn(async move {
            if failpoints.pass(Site::LeadResumes, member, me.get_cell()).await.is_err() {
                me.kill();
                return;
            }
            // Every receiver has acknowledged: what the lead holds, all hold (CM-1).
            moves.in_scope(|| replica.serve(epoch, version));
            if let Err(root) = work::call(replica.on_resume(), version, deadline).await {
                warn!(replica = %replica.id, %root, "the resume hook failed; the engine counts as resumed");
            }
            if let Some((paused_at, attempted)) = paused {
                shared.ledger.took(attempted, Phase::Pause, paused_at.elapsed());
            }
            replica.set_engine(Engine::Serving);
            shared.ledger.wake();
            let _ = me.cast(ReceiverMsg::Resumed);
        });
    }

    fn serving_epoch(&self) -> Epoch {
        self.participant.as_ref().map_or_else(Epoch::default, |participant| match participant.phase() {
            driftless_proto::Phase::Serving(Some(fence)) => fence.epoch,
            _ => Epoch::default(),
        })
    }

    fn report(&mut self, outcome: Outcome) {
        let Some(leading) = &mut self.leading else { return };
        let fence = outcome.fence;
        leading.deciding = None;
        let serving = self.binding.version();
        match &outcome.verdict {
            Verdict::Committed => info!(%fence, replica = %leading.replica.id, "committed"),
            Verdict::RolledBack(cause) => {
                warn!(%fence, replica = %leading.replica.id, %cause, root = %cause.root, "rolled back");
                self.shared.ledger.failed(fence.version, leading.replica.id);
            }
        }
        let replica = leading.replica.id;
        self.tell_end(CoordinatorEvent::Ended(replica, outcome, serving));
        self.retire(&fence);
        self.tasks.disarm(&fence);
        self.shared.ledger.wake();
    }

    fn report_serving(&self) {
        let Some(leading) = &self.leading else { return };
        let needs = leading.machine.needs(self.binding.version());
        self.tell_end(CoordinatorEvent::Serving(leading.replica.id, needs));
        self.shared.ledger.wake();
    }

    fn tell_end(&self, event: CoordinatorEvent) {
        self.shared.registry.tell_coordinator(CoordinatorMsg::Heard(event));
    }
}
