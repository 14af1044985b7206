//! The coordinator's actor.

use crate::{Shared, Site};
use driftless_proto::{Cause, Coordinator, CoordinatorCommand, CoordinatorEvent, Needs, TimerId};
use driftless_types::{Fence, Member, ReceiverId, ReplicaId};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use tracing::{info, warn};

use super::{ReceiverMsg, ShardMsg, Tasks};

/// What the coordinator hears.
#[derive(Debug)]
pub(crate) enum CoordinatorMsg {
    /// A member, or the supervisor on behalf of one, reports.
    Heard(CoordinatorEvent),
    /// A timer fired.
    Timer(TimerId),
}

/// Opens attempts and retries them; decides no switch.
pub(crate) struct CoordinatorActor;

/// The coordinator's state: all of it can be asked for again.
pub(crate) struct CoordinatorState {
    shared: Arc<Shared>,
    machine: Coordinator,
    tasks: Tasks,
}

impl Actor for CoordinatorActor {
    type Msg = CoordinatorMsg;
    type State = CoordinatorState;
    type Arguments = Arc<Shared>;

    async fn pre_start(
        &self,
        me: ActorRef<CoordinatorMsg>,
        shared: Arc<Shared>,
    ) -> Result<CoordinatorState, ActorProcessingErr> {
        let epoch = shared.registry.next_epoch();
        let senders = shared.plan.senders().iter().map(|sender| sender.id);
        let receivers = shared.plan.replicas().iter().flat_map(|replica| &replica.receivers).map(|r| r.id);
        let options = shared.options.coordinator.clone();
        let run = shared.options.run;
        let machine = Coordinator::new(run, shared.plan.digest(), epoch, senders, receivers, options);
        // First the address, then the question: whoever starts in between sees the one or hears the other.
        let tasks = Tasks::new(me.get_cell());
        shared.registry.enter_coordinator(me);
        for sender in shared.registry.bound_senders() {
            shared.registry.tell_shard(sender, ShardMsg::Announce);
        }
        for receiver in shared.registry.bound_receivers() {
            shared.registry.tell_receiver(receiver, ReceiverMsg::Announce(epoch));
        }
        info!(%epoch, "the coordinator is up");
        Ok(CoordinatorState { shared, machine, tasks })
    }

    async fn handle(
        &self,
        me: ActorRef<CoordinatorMsg>,
        message: CoordinatorMsg,
        state: &mut CoordinatorState,
    ) -> Result<(), ActorProcessingErr> {
        let event = match message {
            CoordinatorMsg::Heard(event) => event,
            CoordinatorMsg::Timer(id) => CoordinatorEvent::TimerFired(id),
        };
        let failpoints = state.shared.options.failpoints.clone();
        if matches!(event, CoordinatorEvent::Ended(..)) {
            failpoints.pass(Site::CoordinatorHearsEnd, None, me.get_cell()).await?;
        }
        if matches!(event, CoordinatorEvent::SenderReady(..)) {
            failpoints.pass(Site::CoordinatorHearsReady, None, me.get_cell()).await?;
        }
        for command in state.machine.handle(event) {
            if matches!(command, CoordinatorCommand::Begin { .. }) {
                failpoints.pass(Site::CoordinatorBegins, None, me.get_cell()).await?;
            }
            execute(state, &me, command);
        }
        Ok(())
    }
}

fn execute(state: &mut CoordinatorState, me: &ActorRef<CoordinatorMsg>, command: CoordinatorCommand) {
    let shared = &state.shared;
    match command {
        CoordinatorCommand::Begin { fence, replica, needs } => begin(shared, fence, replica, &needs),
        CoordinatorCommand::Abort { fence, replica, cause } => abort(shared, fence, replica, cause),
        CoordinatorCommand::ArmTimer { id, after } => {
            let me = me.clone();
            state.tasks.arm(id, after, move || drop(me.cast(CoordinatorMsg::Timer(id))));
        }
        CoordinatorCommand::Settle { replica, version, outcome } => {
            shared.ledger.settle(version, replica, outcome);
        }
    }
}

fn begin(shared: &Arc<Shared>, fence: Fence, replica: ReplicaId, needs: &Needs) {
    info!(%fence, %replica, base = %needs.base, intake = ?needs.intake, "an attempt begins");
    shared.ledger.begin_attempt(fence.version, replica);
    shared.registry.tell_receiver(lead(replica), ReceiverMsg::Begin(fence, needs.intake));
    for sender in shared.registry.bound_senders() {
        shared.registry.tell_shard(sender, ShardMsg::Begin { fence, replica, needs: needs.clone() });
    }
}

fn abort(shared: &Arc<Shared>, fence: Fence, replica: ReplicaId, cause: Cause) {
    warn!(%fence, %replica, %cause, root = %cause.root, "an attempt is given up");
    // The lead first: it should hear the root cause before its receivers see their transfers end.
    shared.registry.tell_receiver(lead(replica), ReceiverMsg::Abort(fence, cause));
    for sender in shared.registry.bound_senders() {
        shared.registry.tell_shard(sender, ShardMsg::Abort(fence));
    }
    shared.transport.abort(&fence);
}

const fn lead(replica: ReplicaId) -> ReceiverId {
    ReceiverId { replica, rank: 0 }
}

/// A member's actor has ended.
pub(crate) const fn member_down(member: Member) -> CoordinatorMsg {
    CoordinatorMsg::Heard(CoordinatorEvent::MemberDown(member))
}
