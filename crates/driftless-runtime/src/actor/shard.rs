//! The actor of one trainer rank: detects each step once, and serves every attempt from the patch.

use super::{CoordinatorMsg, Tasks};
use crate::binding::{Publish, SenderBinding};
use crate::log::PublisherMsg;
use crate::work::{self, Loan, Outgoing};
use crate::{Phase, Shared, Site, Step};
use bytes::Bytes;
use driftless_device::DeviceError;
use driftless_proto::{
    Cause, CoordinatorEvent, Exchange, ExchangeCommand, ExchangeEvent, Intake, Needs, RootCause, Shape,
    TimerId,
};
use driftless_transport::Batch;
use driftless_types::{Fence, Member, Payload, ReceiverId, ReplicaId, Round, SenderId};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tracing::{Instrument, debug, warn};

/// What a trainer rank hears.
#[derive(Debug)]
pub(crate) enum ShardMsg {
    /// The binding has a new step.
    StepDone,
    /// The detection of a step has ended.
    Detected(u64, Result<(), String>),
    /// The coordinator opens an attempt for a replica.
    Begin {
        /// The attempt.
        fence: Fence,
        /// The replica.
        replica: ReplicaId,
        /// What it needs.
        needs: Needs,
    },
    /// The bytes of an attempt are made.
    Encoded(Fence, Result<EncodedBytes, RootCause>),
    /// A window was handed over to a receiver, or was not.
    WindowMoved(Fence, ReceiverId, Result<(), RootCause>),
    /// A round has moved, or has not.
    Moved(Fence, Round, Result<(), RootCause>),
    /// An attempt is over for its senders.
    Abort(Fence),
    /// A timer fired.
    Timer(TimerId),
    /// A new coordinator asks who is there.
    Announce,
}

/// The bytes of one attempt, per receiver.
pub(crate) enum EncodedBytes {
    /// Changes, whole.
    Staged(BTreeMap<ReceiverId, Outgoing>),
    /// Everything, to be lent window by window.
    InPlace(Arc<Loan>),
}

impl std::fmt::Debug for EncodedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Staged(outgoing) => f.debug_tuple("Staged").field(&outgoing.len()).finish(),
            Self::InPlace(_) => f.write_str("InPlace"),
        }
    }
}

/// The actor of one trainer rank.
pub(crate) struct ShardActor;

/// An open attempt.
struct Attempt {
    exchange: Exchange,
    outgoing: Arc<EncodedBytes>,
    /// Records, per receiver.
    records: BTreeMap<ReceiverId, Bytes>,
}

/// What is lost when the actor dies: open attempts, which their coordinator tries again.
pub(crate) struct ShardState {
    shared: Arc<Shared>,
    binding: Arc<SenderBinding>,
    attempts: BTreeMap<Fence, Attempt>,
    /// The newest attempt that was begun here, per replica.
    begun: BTreeMap<ReplicaId, Fence>,
    tasks: Tasks,
}

impl Actor for ShardActor {
    type Msg = ShardMsg;
    type State = ShardState;
    type Arguments = (Arc<Shared>, SenderId);

    async fn pre_start(
        &self,
        me: ActorRef<ShardMsg>,
        (shared, id): (Arc<Shared>, SenderId),
    ) -> Result<ShardState, ActorProcessingErr> {
        let binding = shared.registry.sender(id).ok_or("the rank has no binding")?;
        shared.registry.enter_shard(id, me.clone());
        // A step that a predecessor left undetected; or none, which is answered at once.
        me.cast(ShardMsg::StepDone)?;
        let mut tasks = Tasks::new(me.get_cell());
        tasks.repeat(shared.options.keep_alive, move || drop(me.cast(ShardMsg::Announce)));
        Ok(ShardState { shared, binding, attempts: BTreeMap::new(), begun: BTreeMap::new(), tasks })
    }

    async fn handle(
        &self,
        me: ActorRef<ShardMsg>,
        message: ShardMsg,
        state: &mut ShardState,
    ) -> Result<(), ActorProcessingErr> {
        state.pass_failpoint(&me, &message).await?;
        match message {
            ShardMsg::StepDone => state.detect(me),
            ShardMsg::Detected(sequence, Ok(())) => {
                debug!(sender = %state.binding.id, sequence, "a step is detected");
                state.announce();
                state.shared.registry.tell_publisher(PublisherMsg::Made);
            }
            ShardMsg::Detected(sequence, Err(error)) => {
                return Err(format!("detection of step {sequence} failed: {error}").into());
            }
            ShardMsg::Begin { fence, replica, needs } => state.encode(me, fence, replica, needs),
            ShardMsg::Encoded(fence, Ok(bytes)) => state.open(&me, fence, bytes),
            ShardMsg::WindowMoved(fence, to, outcome) => {
                let moved = outcome.map(|()| ExchangeEvent::WindowMoved(Member::Receiver(to)));
                state.feed(&me, fence, moved.unwrap_or_else(ExchangeEvent::Failed))?;
            }
            ShardMsg::Encoded(fence, Err(root)) => {
                if root == RootCause::WeightsMoved {
                    state.binding.keep_next_whole();
                }
                state.report(fence, root);
            }
            ShardMsg::Moved(fence, round, outcome) => state.moved(&me, fence, round, outcome)?,
            ShardMsg::Abort(fence) => {
                state.attempts.remove(&fence);
                state.tasks.disarm(&fence);
            }
            ShardMsg::Timer(id) => state.timer(&me, id)?,
            ShardMsg::Announce => state.announce(),
        }
        Ok(())
    }
}

impl ShardState {
    async fn pass_failpoint(
        &self,
        me: &ActorRef<ShardMsg>,
        message: &ShardMsg,
    ) -> Result<(), ActorProcessingErr> {
        let site = match message {
            ShardMsg::StepDone => Site::ShardDetects,
            ShardMsg::Begin { .. } => Site::ShardEncodes,
            ShardMsg::Moved(_, Round::Records, Ok(())) => Site::ShardSends,
            ShardMsg::WindowMoved(_, _, Ok(())) => Site::ShardLends,
            _ => return Ok(()),
        };
        let member = Some(self.member());
        self.shared.options.failpoints.pass(site, member, me.get_cell()).await
    }

    fn member(&self) -> Member {
        Member::Sender(self.binding.id)
    }

    /// Tells the coordinator for which version a patch is held: none while the newest version is not detected.
    fn announce(&self) {
        let requested = self.binding.requested();
        let behind = requested.is_some_and(|step| {
            matches!(step.publish, Publish::Now { .. }) && self.binding.detected() < step.sequence
        });
        let held = self.binding.patch().map(|patch| patch.range).filter(|_| !behind);
        let event = CoordinatorEvent::SenderReady(self.binding.id, held);
        self.shared.registry.tell_coordinator(CoordinatorMsg::Heard(event));
    }

    fn detect(&mut self, me: ActorRef<ShardMsg>) {
        let Some(step) = self.binding.requested() else { return self.announce() };
        if self.binding.detected() >= step.sequence {
            return self.announce();
        }
        let version = step.version();
        let spans = version.unwrap_or_default();
        let _opened = Step::Open.span(&self.shared, spans, self.member()).entered();
        let (shared, binding, cancel) =
            (Arc::clone(&self.shared), Arc::clone(&self.binding), self.tasks.cancel_flag());
        self.tasks.spawn(async move {
            let mut token = binding.token().await; // CM-9
            let (sequence, sender) = (step.sequence, binding.id);
            let span = Step::Detect.span(&shared, spans, Member::Sender(sender));
            let run = move || {
                // Whoever held the token before may have detected this very step: its counters must not move twice.
                if binding.detected() >= sequence {
                    return Ok(());
                }
                let _entered = span.enter();
                let started = Instant::now();
                let gates = work::detect(&shared, &binding, &step, &mut token, &cancel)?;
                for gate in &gates {
                    warn!(%sender, sequence, %gate, "a parameter goes dense");
                }
                if let Some(version) = version {
                    shared.ledger.took(version, Phase::Detect, started.elapsed());
                    shared.ledger.gated(version, &gates);
                }
                binding.set_detected(sequence);
                shared.ledger.detected(sequence, sender);
                Ok::<_, DeviceError>(())
            };
            let outcome = blocking(run).await;
            let _ = me.cast(ShardMsg::Detected(sequence, outcome));
        });
    }

    fn encode(&mut self, me: ActorRef<ShardMsg>, fence: Fence, replica: ReplicaId, needs: Needs) {
        // CM-5, CM-10: a word that comes again, or from before, begins nothing.
        if self.begun.get(&replica).is_some_and(|begun| fence <= *begun) {
            return;
        }
        self.begun.insert(replica, fence);
        let (shared, binding) = (Arc::clone(&self.shared), Arc::clone(&self.binding));
        self.tasks.spawn(async move {
            let lender = Arc::clone(&shared);
            let run = move || match needs.intake {
                Intake::Staged => {
                    work::encode(&shared, &binding, &fence, replica, &needs).map(EncodedBytes::Staged)
                }
                Intake::InPlace => {
                    Loan::new(&shared, &binding, fence, replica).map(Arc::new).map(EncodedBytes::InPlace)
                }
            };
            let outcome = tokio::task::spawn_blocking(run).await;
            let outcome = outcome.unwrap_or_else(|error| Err(RootCause::Task(error.to_string())));
            let loan = match &outcome {
                Ok(EncodedBytes::InPlace(loan)) => Arc::downgrade(loan),
                _ => Weak::new(),
            };
            let _ = me.cast(ShardMsg::Encoded(fence, outcome));
            let_go_for_a_step(&lender, loan).await;
        });
    }

    fn report(&self, fence: Fence, root: RootCause) {
        let cause = Cause::new(self.member(), root);
        let event = CoordinatorEvent::SenderFailed(fence, cause);
        self.shared.registry.tell_coordinator(CoordinatorMsg::Heard(event));
    }

    fn open(&mut self, me: &ActorRef<ShardMsg>, fence: Fence, encoded: EncodedBytes) {
        let limits = self.shared.options.limits.clone();
        let peer = |to: ReceiverId| Member::Receiver(to);
        // EX-2: the plan gives the size of round 1, and the windows of everything.
        let sizes = |records: &BTreeMap<ReceiverId, Bytes>| {
            records.iter().map(|(&to, records)| (peer(to), records.len() as u64)).collect()
        };
        let (records, (exchange, commands)) = match &encoded {
            EncodedBytes::Staged(outgoing) => {
                let records = outgoing.iter().map(|(&to, out)| (to, out.records.clone())).collect();
                let payload = outgoing.iter().map(|(&to, out)| (peer(to), out.payload.len() as u64));
                let shape = Shape { sends: sizes(&records), ..Shape::default() };
                (records, Exchange::open(fence, shape, payload.collect(), limits))
            }
            EncodedBytes::InPlace(loan) => {
                let lent = loan.records();
                let windows = lent.iter().map(|(&to, &(windows, _))| (peer(to), windows)).collect();
                let records = lent.into_iter().map(|(to, (_, records))| (to, records)).collect();
                let shape = Shape { sends: sizes(&records), windows, ..Shape::default() };
                (records, Exchange::open_in_place(fence, shape, limits))
            }
        };
        self.attempts.insert(fence, Attempt { exchange, outgoing: Arc::new(encoded), records });
        self.execute(me, fence, commands);
    }

    fn moved(
        &mut self,
        me: &ActorRef<ShardMsg>,
        fence: Fence,
        round: Round,
        outcome: Result<(), RootCause>,
    ) -> Result<(), ActorProcessingErr> {
        let event = match (round, outcome) {
            (_, Err(root)) => ExchangeEvent::Failed(root),
            (Round::Records, Ok(())) => ExchangeEvent::RecordsMoved { announced: BTreeMap::new() },
            (Round::Payload, Ok(())) => ExchangeEvent::PayloadMoved,
        };
        self.feed(me, fence, event)
    }

    fn timer(&mut self, me: &ActorRef<ShardMsg>, id: TimerId) -> Result<(), ActorProcessingErr> {
        let same = |fence: &&Fence| fence.epoch == id.epoch && fence.attempt == id.attempt;
        let Some(fence) = self.attempts.keys().find(same).copied() else { return Ok(()) };
        self.feed(me, fence, ExchangeEvent::TimerFired(id))
    }

    fn feed(
        &mut self,
        me: &ActorRef<ShardMsg>,
        fence: Fence,
        event: ExchangeEvent,
    ) -> Result<(), ActorProcessingErr> {
        let Some(attempt) = self.attempts.remove(&fence) else { return Ok(()) };
        let (exchange, commands) = attempt.exchange.clone().handle(event)?;
        if exchange.end().is_some() {
            self.tasks.disarm(&fence);
        } else {
            self.attempts.insert(fence, Attempt { exchange, ..attempt });
        }
        self.execute(me, fence, commands);
        Ok(())
    }

    fn execute(&mut self, me: &ActorRef<ShardMsg>, fence: Fence, commands: Vec<ExchangeCommand>) {
        for command in commands {
            match command {
                ExchangeCommand::Post { round, sends, .. } => self.post(me.clone(), fence, round, &sends),
                ExchangeCommand::Window { peer: Member::Receiver(to), index } => {
                    self.lend(me.clone(), fence, to, index);
                }
                // A sender has nothing for another.
                ExchangeCommand::Window { .. } => {}
                ExchangeCommand::ArmTimer { id, after } => {
                    let me = me.clone();
                    self.tasks.arm(id, after, move || drop(me.cast(ShardMsg::Timer(id))));
                }
                ExchangeCommand::AbortTransfers => self.shared.transport.abort(&fence),
            }
        }
    }

    fn lend(&mut self, me: ActorRef<ShardMsg>, fence: Fence, to: ReceiverId, index: u32) {
        let Some(attempt) = self.attempts.get(&fence) else { return };
        let loan = Arc::clone(&attempt.outgoing);
        let receives = vec![(Member::Receiver(to), 0)];
        let batch = Batch { fence, round: Round::Payload, me: self.member(), sends: Vec::new(), receives };
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let outcome = lend(&shared, batch, loan, index).await;
            let _ = me.cast(ShardMsg::WindowMoved(fence, to, outcome));
        });
    }

    fn post(&mut self, me: ActorRef<ShardMsg>, fence: Fence, round: Round, sends: &BTreeMap<Member, u64>) {
        let Some(attempt) = self.attempts.get(&fence) else { return };
        let outgoing: Vec<(Member, Bytes)> = match (round, &*attempt.outgoing) {
            (Round::Records, _) => {
                let records = attempt.records.iter();
                records.map(|(&to, records)| (Member::Receiver(to), records.clone())).collect()
            }
            (Round::Payload, EncodedBytes::Staged(outgoing)) => {
                outgoing.iter().map(|(&to, out)| (Member::Receiver(to), out.payload.clone())).collect()
            }
            (Round::Payload, EncodedBytes::InPlace(_)) => Vec::new(),
        };
        let sends = outgoing.into_iter().filter(|(to, _)| sends.contains_key(to));
        let sends = sends.map(|(to, bytes)| (to, Payload::Host(bytes))).collect();
        let batch = Batch { fence, round, me: self.member(), sends, receives: Vec::new() };
        let shared = Arc::clone(&self.shared);
        let span = Step::Exchange.span(&shared, fence.version, self.member());
        self.tasks.spawn(async move {
            let moved = shared.transport.transfer(batch).instrument(span).await;
            let outcome = moved.map(|_| ()).map_err(|error| RootCause::Transport(error.to_string()));
            let _ = me.cast(ShardMsg::Moved(fence, round, outcome));
        });
    }
}

/// As soon as the optimizer wants to step, whatever of a loan is left is cast, and the step goes on.
async fn let_go_for_a_step(shared: &Shared, loan: Weak<Loan>) {
    if loan.strong_count() == 0 {
        return;
    }
    shared.standing.wanted().await;
    let Some(loan) = loan.upgrade() else { return };
    // A panic in there ends with the loan's guard dropped: the step goes on all the same.
    let _ = tokio::task::spawn_blocking(move || loan.let_go()).await;
}

/// Asks nothing of a receiver but that it has asked: then casts the window, and hands it over.
async fn lend(shared: &Shared, batch: Batch, loan: Arc<EncodedBytes>, index: u32) -> Result<(), RootCause> {
    let failed = |error: driftless_transport::TransportError| RootCause::Transport(error.to_string());
    let peers: Vec<Member> = batch.receives.iter().map(|&(peer, _)| peer).collect();
    shared.transport.transfer(batch.clone()).await.map_err(failed)?;
    for peer in peers {
        let (Member::Receiver(to), loan) = (peer, Arc::clone(&loan)) else { continue };
        let cast = move || match &*loan {
            EncodedBytes::InPlace(loan) => loan.hand_over(to, index),
            EncodedBytes::Staged(_) => Err(RootCause::Task("there are no windows in this attempt".into())),
        };
        let bytes = tokio::task::spawn_blocking(cast).await;
        let bytes = bytes.unwrap_or_else(|panicked| Err(RootCause::Task(panicked.to_string())))?;
        let sends = vec![(peer, Payload::Host(bytes))];
        let batch = Batch { sends, receives: Vec::new(), ..batch.clone() };
        shared.transport.transfer(batch).await.map_err(failed)?;
    }
    Ok(())
}

/// Runs a blocking loop; its panic is an error of the actor that started it.
async fn blocking<E: ToString + Send + 'static>(
    run: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> Result<(), String> {
    match tokio::task::spawn_blocking(run).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(panicked) => Err(panicked.to_string()),
    }
}
