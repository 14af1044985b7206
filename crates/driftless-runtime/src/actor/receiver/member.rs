//! A receiver's own part: its exchange, its staging, its live weights.

use super::{Arrived, ReceiverMsg, ReceiverState};
use crate::binding::{Live, ReceiverBinding};
use crate::{Phase, Shared, Step, work};
use driftless_codec::RECORD_BYTES;
use driftless_proto::{
    ExchangeCommand, ExchangeEvent, ParticipantCommand, ParticipantEvent, Phase as Standing, RootCause,
    Shape, TimerId, ToLead,
};
use driftless_transport::Batch;
use driftless_types::{Fence, Member, Payload, ReceiverId, Round, SenderId};
use ractor::{ActorProcessingErr, ActorRef};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tracing::Instrument;

impl ReceiverState {
    /// EX-2: the plan gives the size of round 1, and the windows of everything.
    pub(super) fn shape(&self) -> Shape {
        let me = self.binding.id;
        let edges = || {
            let senders = self.shared.plan.senders().iter();
            senders.filter_map(|sender| {
                Some((Member::Sender(sender.id), &self.shared.plan.edge(sender.id, me)?.fragments))
            })
        };
        let limit = self.shared.options.limits.window_bytes;
        let records = edges().map(|(from, fragments)| (from, (fragments.len() * RECORD_BYTES) as u64));
        let windows = edges().map(|(from, fragments)| (from, work::window_count(fragments, limit)));
        Shape { sends: BTreeMap::new(), receives: records.collect(), windows: windows.collect() }
    }

    /// What concerns this rank as a receiver.
    pub(super) fn member(
        &mut self,
        me: &ActorRef<ReceiverMsg>,
        message: ReceiverMsg,
    ) -> Result<(), ActorProcessingErr> {
        let event = match message {
            ReceiverMsg::FromLead(incarnation, word) => ParticipantEvent::Lead(incarnation, word),
            // Bytes of an attempt that this rank has left, which were under way when it did.
            ReceiverMsg::Moved(fence, _) if !self.is_open(fence) => return Ok(()),
            ReceiverMsg::Moved(fence, outcome) => ParticipantEvent::Exchange(fence, self.arrived(outcome)),
            ReceiverMsg::WindowMoved(fence, ..) if !self.is_open(fence) => return Ok(()),
            ReceiverMsg::WindowMoved(fence, from, outcome) => {
                let moved = outcome.map(|()| ExchangeEvent::WindowMoved(Member::Sender(from)));
                ParticipantEvent::Exchange(fence, moved.unwrap_or_else(ExchangeEvent::Failed))
            }
            ReceiverMsg::Checked(fence, outcome) => ParticipantEvent::Checked(fence, outcome),
            ReceiverMsg::Scattered(fence, outcome) => ParticipantEvent::Scattered(fence, outcome),
            ReceiverMsg::Undone(fence, Ok(())) => ParticipantEvent::Undone(fence),
            // The log is still there: the restarted actor plays it back.
            ReceiverMsg::Undone(fence, Err(root)) => return Err(format!("undo of {fence}: {root}").into()),
            ReceiverMsg::Sealed(fence) => ParticipantEvent::Sealed(fence),
            _ => return Ok(()),
        };
        self.participate(me, event)
    }

    /// Feeds the participant and starts what it commands.
    fn participate(
        &mut self,
        me: &ActorRef<ReceiverMsg>,
        event: ParticipantEvent,
    ) -> Result<(), ActorProcessingErr> {
        let Some(participant) = self.participant.take() else { return Ok(()) };
        let (participant, commands) = participant.handle(event)?;
        self.participant = Some(participant);
        for command in commands {
            self.execute_member(me, command);
        }
        Ok(())
    }

    fn is_open(&self, fence: Fence) -> bool {
        self.participant.as_ref().is_some_and(|participant| participant.phase() == Standing::Open(fence))
    }

    pub(super) fn time_exchange(
        &mut self,
        me: &ActorRef<ReceiverMsg>,
        id: TimerId,
    ) -> Result<(), ActorProcessingErr> {
        let open = self.participant.as_ref().map(driftless_proto::Participant::phase);
        let Some(Standing::Open(fence)) = open else { return Ok(()) };
        self.participate(me, ParticipantEvent::Exchange(fence, ExchangeEvent::TimerFired(id)))
    }

    /// Keeps what a round brought, and says what it means to the exchange.
    fn arrived(&mut self, outcome: Result<Arrived, RootCause>) -> ExchangeEvent {
        match outcome {
            Err(root) => ExchangeEvent::Failed(root),
            Ok(Arrived::Records(records)) => {
                let announced =
                    records.iter().map(|(&from, (_, bytes))| (Member::Sender(from), *bytes)).collect();
                self.records = records.into_iter().map(|(from, (records, _))| (from, records)).collect();
                self.payload.clear();
                self.moved_at = Instant::now();
                ExchangeEvent::RecordsMoved { announced }
            }
            Ok(Arrived::Payload(payload)) => {
                self.payload = payload;
                ExchangeEvent::PayloadMoved
            }
        }
    }

    fn execute_member(&mut self, me: &ActorRef<ReceiverMsg>, command: ParticipantCommand) {
        match command {
            ParticipantCommand::Exchange(fence, command) => self.exchange(me, fence, command),
            ParticipantCommand::Check(fence) => self.check(me.clone(), fence),
            ParticipantCommand::Prove(fence) => self.prove(me.clone(), fence),
            ParticipantCommand::Scatter(fence) => self.scatter(me.clone(), fence),
            ParticipantCommand::Undo(fence) => self.undo(me.clone(), fence),
            ParticipantCommand::Seal(fence) => self.seal(me.clone(), fence),
            ParticipantCommand::Discard(fence) => {
                self.rest(&fence);
                self.records.clear();
                self.payload.clear();
                self.windows.clear();
                let forget = move |_: &Shared, _: &ReceiverBinding, live: &mut Live| {
                    live.forget(fence);
                    Ok(())
                };
                self.with_live(forget, |_| ());
            }
            ParticipantCommand::Tell(word) => self.tell_lead(word),
        }
    }

    fn tell_lead(&self, word: ToLead) {
        let me = self.binding.id;
        let lead = ReceiverId { rank: 0, ..me };
        self.shared.registry.tell_receiver(lead, ReceiverMsg::ToLead(me, word));
    }

    fn exchange(&mut self, me: &ActorRef<ReceiverMsg>, fence: Fence, command: ExchangeCommand) {
        match command {
            ExchangeCommand::Post { round, receives, .. } => self.post(me.clone(), fence, round, receives),
            ExchangeCommand::Window { peer: Member::Sender(from), index } => {
                self.window(me.clone(), fence, from, index);
            }
            // Nobody but a sender has anything for a receiver.
            ExchangeCommand::Window { .. } => {}
            ExchangeCommand::ArmTimer { id, after } => {
                let me = me.clone();
                self.tasks.arm(id, after, move || drop(me.cast(ReceiverMsg::Timer(id))));
            }
            ExchangeCommand::AbortTransfers => self.shared.transport.abort(&fence),
        }
    }

    fn post(
        &mut self,
        me: ActorRef<ReceiverMsg>,
        fence: Fence,
        round: Round,
        receives: BTreeMap<Member, u64>,
    ) {
        let id = self.binding.id;
        let receives = receives.into_iter().collect();
        let batch = Batch { fence, round, me: Member::Receiver(id), sends: Vec::new(), receives };
        let shared = Arc::clone(&self.shared);
        let span = Step::Exchange.span(&shared, fence.version, id);
        self.tasks.spawn(async move {
            let moved = shared.transport.transfer(batch).instrument(span).await;
            let outcome = moved
                .map_err(|error| RootCause::Transport(error.to_string()))
                .and_then(|payloads| read(&shared, id, round, payloads));
            let _ = me.cast(ReceiverMsg::Moved(fence, outcome));
        });
    }

    fn check(&mut self, me: ActorRef<ReceiverMsg>, fence: Fence) {
        let id = self.binding.id;
        if !self.payload.is_empty() {
            self.shared.ledger.took(fence.version, Phase::Transfer, self.moved_at.elapsed());
        }
        let mut payload = std::mem::take(&mut self.payload);
        let records = std::mem::take(&mut self.records).into_iter();
        let incoming =
            records.map(|(from, records)| (from, (records, payload.remove(&from).unwrap_or_default())));
        let incoming: BTreeMap<_, _> = incoming.collect();
        let (shared, binding) = (Arc::clone(&self.shared), Arc::clone(&self.binding));
        let span = Step::Stage.span(&shared, fence.version, id);
        self.tasks.spawn(async move {
            let run = move || {
                let _entered = span.enter();
                let started = Instant::now();
                let staged = work::stage(&shared, id, fence, incoming);
                shared.ledger.took(fence.version, Phase::Stage, started.elapsed());
                staged
            };
            let outcome = match tokio::task::spawn_blocking(run).await {
                Ok(Ok(staged)) => {
                    binding.token().await.keep(staged);
                    Ok(())
                }
                Ok(Err(root)) => Err(root),
                Err(panicked) => Err(RootCause::Task(panicked.to_string())),
            };
            let _ = me.cast(ReceiverMsg::Checked(fence, outcome));
        });
    }

    fn scatter(&mut self, me: ActorRef<ReceiverMsg>, fence: Fence) {
        let (cancel, actor) = (self.tasks.cancel_flag(), me.get_cell());
        let span = Step::Scatter.span(&self.shared, fence.version, self.binding.id);
        let run = move |shared: &Shared, binding: &ReceiverBinding, live: &mut Live| {
            let _entered = span.enter();
            let started = Instant::now();
            let outcome = work::scatter(shared, binding, live, &fence, &cancel, &actor);
            shared.ledger.took(fence.version, Phase::Apply, started.elapsed());
            outcome
        };
        self.with_live(run, move |outcome| {
            let _ = me.cast(ReceiverMsg::Scattered(fence, outcome));
        });
    }

    fn undo(&mut self, me: ActorRef<ReceiverMsg>, fence: Fence) {
        self.with_live(work::undo, move |outcome| {
            let _ = me.cast(ReceiverMsg::Undone(fence, outcome));
        });
    }

    fn seal(&mut self, me: ActorRef<ReceiverMsg>, fence: Fence) {
        self.rest(&fence);
        let run = move |shared: &Shared, binding: &ReceiverBinding, live: &mut Live| {
            let started = Instant::now();
            work::seal(shared, binding, live, &fence);
            shared.ledger.took(fence.version, Phase::Commit, started.elapsed());
            Ok(())
        };
        self.with_live(run, move |_| {
            let _ = me.cast(ReceiverMsg::Sealed(fence));
        });
    }

    /// Runs a loop over the live weights on a blocking thread, under the binding's token.
    pub(super) fn with_live(
        &mut self,
        run: impl FnOnce(&Shared, &ReceiverBinding, &mut Live) -> Result<(), RootCause> + Send + 'static,
        then: impl FnOnce(Result<(), RootCause>) + Send + 'static,
    ) {
        let (shared, binding) = (Arc::clone(&self.shared), Arc::clone(&self.binding));
        self.tasks.spawn(async move {
            let mut live = binding.token().await; // CM-9
            let blocking = move || run(&shared, &binding, &mut live);
            let outcome = tokio::task::spawn_blocking(blocking).await;
            then(outcome.unwrap_or_else(|panicked| Err(RootCause::Task(panicked.to_string()))));
        });
    }
}

/// Turns what a round brought into records that were checked against the plan, or payload.
fn read(
    shared: &Shared,
    me: ReceiverId,
    round: Round,
    payloads: Vec<(Member, Payload)>,
) -> Result<Arrived, RootCause> {
    let from_senders = payloads.into_iter().filter_map(|(from, Payload::Host(bytes))| match from {
        Member::Sender(sender) => Some((sender, bytes)),
        Member::Receiver(_) => None,
    });
    match round {
        Round::Payload => Ok(Arrived::Payload(from_senders.collect())),
        Round::Records => {
            let read = |(from, bytes): (SenderId, bytes::Bytes)| {
                work::announced_bytes(shared, from, me, &bytes).map(|announced| (from, announced))
            };
            from_senders.map(read).collect::<Result<_, _>>().map(Arrived::Records)
        }
    }
}
