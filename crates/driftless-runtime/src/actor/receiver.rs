//! The actor of one rollout rank; that of rank 0 leads its replica as well.

mod lead;
mod member;
mod place;

use super::{CoordinatorMsg, Tasks};
use crate::binding::{ReceiverBinding, ReplicaBinding};
use crate::work::Window;
use crate::{Shared, Site};
use driftless_codec::FragmentRecord;
use driftless_proto::{
    Cause, CoordinatorEvent, FromLead, Intake, Lead, LeadEvent, Participant, RootCause, TimerId, TimerKind,
    ToLead, Weights,
};
use driftless_types::{Epoch, Fence, Incarnation, Member, ReceiverId, SenderId, Version};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tracing::Span;

/// What a rollout rank hears.
#[derive(Debug)]
pub(crate) enum ReceiverMsg {
    /// Its binding is in order again: what was committed and what was applied there, and whether it is a version.
    Restored(Option<Fence>, Option<Fence>, Weights),
    /// Its binding could not be put in order.
    Broken(RootCause),
    /// A new coordinator of this epoch asks who is there.
    Announce(Epoch),
    /// To the lead: the coordinator opens an attempt.
    Begin(Fence, Intake),
    /// To the lead: the coordinator gives an attempt up.
    Abort(Fence, Cause),
    /// To the lead: a receiver speaks.
    ToLead(ReceiverId, ToLead),
    /// The lead of this incarnation speaks.
    FromLead(Incarnation, FromLead),
    /// A round has moved, or has not.
    Moved(Fence, Result<Arrived, RootCause>),
    /// A window of a sender was written, or was not.
    WindowMoved(Fence, SenderId, Result<(), RootCause>),
    /// Every byte of an attempt was checked.
    Checked(Fence, Result<(), RootCause>),
    /// The scatter, or the proof of what was taken in place, has ended.
    Scattered(Fence, Result<(), RootCause>),
    /// The undo log was played back.
    Undone(Fence, Result<(), RootCause>),
    /// The version is sealed.
    Sealed(Fence),
    /// To the lead: the pause hook has answered.
    Paused(Fence, Result<(), RootCause>),
    /// To the lead: the resume hook has answered.
    Resumed,
    /// It is time to say again where this rank stands.
    KeepAlive,
    /// A timer fired.
    Timer(TimerId),
}

/// What a round brought.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Records and the payload bytes that they announce, per sender.
    Records(BTreeMap<SenderId, (Vec<FragmentRecord>, u64)>),
    /// Payload per sender.
    Payload(BTreeMap<SenderId, bytes::Bytes>),
}

/// The actor of one rollout rank.
pub(crate) struct ReceiverActor;

/// The lead's part of an actor's state.
struct Leading {
    machine: Lead,
    incarnation: Incarnation,
    replica: Arc<ReplicaBinding>,
    /// Since when the engine stands still, and for which version.
    paused: Option<(Instant, Version)>,
    deciding: Option<Span>,
}

/// What is lost when the actor dies: everything that an attempt can bring again.
pub(crate) struct ReceiverState {
    shared: Arc<Shared>,
    binding: Arc<ReceiverBinding>,
    /// `None` until the binding is in order: who speaks to this rank before is answered by its first word.
    participant: Option<Participant>,
    leading: Option<Leading>,
    records: BTreeMap<SenderId, Vec<FragmentRecord>>,
    payload: BTreeMap<SenderId, bytes::Bytes>,
    /// How each sender's part is cut when everything is taken in place; empty otherwise.
    windows: BTreeMap<SenderId, Arc<Vec<Window>>>,
    moved_at: Instant,
    tasks: Tasks,
}

impl Actor for ReceiverActor {
    type Msg = ReceiverMsg;
    type State = ReceiverState;
    type Arguments = (Arc<Shared>, ReceiverId);

    async fn pre_start(
        &self,
        me: ActorRef<ReceiverMsg>,
        (shared, id): (Arc<Shared>, ReceiverId),
    ) -> Result<ReceiverState, ActorProcessingErr> {
        let binding = shared.registry.receiver(id).ok_or("the rank has no binding")?;
        let mut state = ReceiverState {
            shared,
            binding,
            participant: None,
            leading: None,
            records: BTreeMap::new(),
            payload: BTreeMap::new(),
            windows: BTreeMap::new(),
            moved_at: Instant::now(),
            tasks: Tasks::new(me.get_cell()),
        };
        state.restore(me.clone());
        let alive = me.clone();
        let every = state.shared.options.keep_alive;
        state.tasks.repeat(every, move || drop(alive.cast(ReceiverMsg::KeepAlive)));
        state.shared.registry.enter_receiver(id, me);
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<ReceiverMsg>,
        message: ReceiverMsg,
        state: &mut ReceiverState,
    ) -> Result<(), ActorProcessingErr> {
        state.pass_failpoint(&me, &message).await?;
        match message {
            ReceiverMsg::Restored(committed, applied, weights) => {
                state.restored(&me, committed, applied, weights)?;
            }
            ReceiverMsg::Broken(root) => return Err(root.into()),
            ReceiverMsg::Announce(epoch) => state.announce(&me, epoch),
            ReceiverMsg::Begin(fence, intake) => state.lead(&me, LeadEvent::Begin(fence, intake)),
            ReceiverMsg::Abort(fence, cause) => state.lead(&me, LeadEvent::Abort(fence, cause)),
            ReceiverMsg::ToLead(from, word) => state.lead(&me, LeadEvent::Member(from, word)),
            ReceiverMsg::Paused(fence, outcome) => state.lead(&me, LeadEvent::Paused(fence, outcome)),
            ReceiverMsg::Resumed => state.lead(&me, LeadEvent::Resumed),
            ReceiverMsg::KeepAlive => state.say_again(&me),
            ReceiverMsg::Timer(id) => state.timer(&me, id)?,
            message => state.member(&me, message)?,
        }
        Ok(())
    }
}

impl ReceiverState {
    async fn pass_failpoint(
        &self,
        me: &ActorRef<ReceiverMsg>,
        message: &ReceiverMsg,
    ) -> Result<(), ActorProcessingErr> {
        let site = match message {
            ReceiverMsg::FromLead(_, FromLead::Begin(..)) => Site::ReceiverBegins,
            ReceiverMsg::WindowMoved(_, _, Ok(())) => Site::ReceiverTakes,
            ReceiverMsg::Moved(_, Ok(Arrived::Payload(_))) => Site::ReceiverStages,
            ReceiverMsg::FromLead(_, FromLead::Apply(_)) => Site::ReceiverApplies,
            ReceiverMsg::FromLead(_, FromLead::Decide(..)) => Site::ReceiverDecides,
            ReceiverMsg::ToLead(_, ToLead::Applied(_)) => Site::LeadHearsApplied,
            _ => return Ok(()),
        };
        let member = Some(Member::Receiver(self.binding.id));
        self.shared.options.failpoints.pass(site, member, me.get_cell()).await
    }

    /// Takes the token first, and with it waits for the task of a predecessor; then puts the binding in order.
    fn restore(&mut self, me: ActorRef<ReceiverMsg>) {
        let (shared, binding) = (Arc::clone(&self.shared), Arc::clone(&self.binding));
        self.tasks.spawn(async move {
            let mut live = binding.token().await; // CM-9
            let run = move || {
                crate::work::recover(&shared, &binding, &mut live)?;
                Ok::<_, RootCause>((live.committed, live.applied, live.weights))
            };
            let message = match tokio::task::spawn_blocking(run).await {
                Ok(Ok((committed, applied, weights))) => ReceiverMsg::Restored(committed, applied, weights),
                Ok(Err(root)) => ReceiverMsg::Broken(root),
                Err(panicked) => ReceiverMsg::Broken(RootCause::Task(panicked.to_string())),
            };
            let _ = me.cast(message);
        });
    }

    fn restored(
        &mut self,
        me: &ActorRef<ReceiverMsg>,
        committed: Option<Fence>,
        applied: Option<Fence>,
        weights: Weights,
    ) -> Result<(), ActorProcessingErr> {
        let id = self.binding.id;
        let limits = self.shared.options.limits.clone();
        let participant = Participant::restore(self.shape(), limits, committed, applied, weights);
        let phase = participant.phase();
        self.participant = Some(participant);
        let up = CoordinatorMsg::Heard(CoordinatorEvent::ReceiverUp(id));
        self.shared.registry.tell_coordinator(up);
        if id.is_lead() {
            return self.start_leading(me);
        }
        let lead = ReceiverId { rank: 0, ..id };
        self.shared.registry.tell_receiver(lead, ReceiverMsg::ToLead(id, ToLead::Phase(phase)));
        Ok(())
    }

    fn announce(&mut self, me: &ActorRef<ReceiverMsg>, epoch: Epoch) {
        if self.participant.is_none() {
            return; // the first word of this actor says it all
        }
        let up = CoordinatorMsg::Heard(CoordinatorEvent::ReceiverUp(self.binding.id));
        self.shared.registry.tell_coordinator(up);
        self.lead(me, LeadEvent::NewEpoch(epoch));
    }

    fn say_again(&mut self, me: &ActorRef<ReceiverMsg>) {
        if self.participant.is_none() {
            return; // the first word of this actor says it all
        }
        let up = CoordinatorMsg::Heard(CoordinatorEvent::ReceiverUp(self.binding.id));
        self.shared.registry.tell_coordinator(up);
        self.lead(me, LeadEvent::KeepAlive);
    }

    fn timer(&mut self, me: &ActorRef<ReceiverMsg>, id: TimerId) -> Result<(), ActorProcessingErr> {
        if !matches!(id.kind, TimerKind::Records | TimerKind::Payload) {
            self.lead(me, LeadEvent::TimerFired(id));
            return Ok(());
        }
        self.time_exchange(me, id)
    }

    /// This rank's part of an attempt is over; a lead's own timers go on until the replica's is.
    fn rest(&mut self, fence: &Fence) {
        if self.leading.is_none() {
            self.tasks.disarm(fence);
        }
    }

    fn retire(&self, fence: &Fence) {
        self.shared.transport.retire(fence);
    }
}
