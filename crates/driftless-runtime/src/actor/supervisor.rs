//! The supervisor: whoever dies is started again, with the binding it had.

use super::{CoordinatorActor, ReceiverActor, ShardActor};
use crate::actor::coordinator::member_down;
use crate::log::{FollowerActor, PublisherActor};
use crate::{Shared, Site};
use driftless_types::{Member, ReceiverId, ReplicaId, SenderId};
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{error, warn};

/// A child of the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Child {
    /// The coordinator.
    Coordinator,
    /// A rank of the trainer or of a replica.
    Member(Member),
    /// Who publishes to a log.
    Publisher,
    /// Who reads a log for a replica.
    Follower(ReplicaId),
}

impl fmt::Display for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("coordinator"),
            Self::Member(member) => fmt::Display::fmt(member, f),
            Self::Publisher => f.write_str("publisher"),
            Self::Follower(replica) => write!(f, "rollout{replica}/follower"),
        }
    }
}

/// What the supervisor hears.
#[derive(Debug)]
pub(crate) enum SupervisorMsg {
    /// Start actors for all bindings that have none, then answer.
    Adopt(RpcReplyPort<()>),
    /// The back-off of a child is over.
    Restart(Child),
}

/// Starts the children of a node and restarts them under a budget.
pub(crate) struct Supervisor;

/// What is lost when the supervisor dies: its successor starts everybody anew.
pub(crate) struct SupervisorState {
    shared: Arc<Shared>,
    children: BTreeMap<ActorId, Child>,
    deaths: BTreeMap<Child, VecDeque<Instant>>,
}

impl Actor for Supervisor {
    type Msg = SupervisorMsg;
    type State = SupervisorState;
    type Arguments = Arc<Shared>;

    async fn pre_start(
        &self,
        me: ActorRef<SupervisorMsg>,
        shared: Arc<Shared>,
    ) -> Result<SupervisorState, ActorProcessingErr> {
        // Orphans of a supervisor that was killed: two actors must not live for one binding.
        for orphan in shared.registry.children() {
            let _ = orphan.kill_and_wait(None).await;
        }
        let mut state = SupervisorState { shared, children: BTreeMap::new(), deaths: BTreeMap::new() };
        state.start(&me, Child::Coordinator).await?;
        state.adopt(&me).await?;
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<SupervisorMsg>,
        message: SupervisorMsg,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMsg::Adopt(reply) => {
                state.adopt(&me).await?;
                let _ = reply.send(());
            }
            SupervisorMsg::Restart(child) => state.start(&me, child).await?,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<SupervisorMsg>,
        event: SupervisionEvent,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        let failpoints = state.shared.options.failpoints.clone();
        failpoints.pass(Site::SupervisorHears, None, me.get_cell()).await?;
        // A kill is reported as terminated, a panic or an error as failed: both end the child.
        let (actor, reason) = match event {
            SupervisionEvent::ActorFailed(actor, error) => (actor, error.to_string()),
            SupervisionEvent::ActorTerminated(actor, _, reason) => {
                (actor, reason.unwrap_or_else(|| "it was stopped".into()))
            }
            _ => return Ok(()),
        };
        state.died(&me, &actor, &reason);
        Ok(())
    }
}

impl SupervisorState {
    async fn adopt(&mut self, me: &ActorRef<SupervisorMsg>) -> Result<(), ActorProcessingErr> {
        let senders = self.shared.registry.bound_senders().into_iter().map(Member::Sender);
        let receivers = self.shared.registry.bound_receivers().into_iter().map(Member::Receiver);
        let members = senders.chain(receivers).map(Child::Member);
        let followers = self.shared.registry.followed_replicas().into_iter().map(Child::Follower);
        let publisher = self.shared.log().map(|_| Child::Publisher);
        for child in members.chain(followers).chain(publisher).collect::<Vec<_>>() {
            let waits_for_restart = self.deaths.get(&child).is_some_and(|deaths| !deaths.is_empty());
            if !waits_for_restart && !self.children.values().any(|&known| known == child) {
                self.start(me, child).await?;
            }
        }
        Ok(())
    }

    async fn start(&mut self, me: &ActorRef<SupervisorMsg>, child: Child) -> Result<(), ActorProcessingErr> {
        let actor = match child {
            Child::Coordinator => self.spawn(me, CoordinatorActor, Arc::clone(&self.shared)).await,
            Child::Member(Member::Sender(id)) => self.spawn_shard(me, id).await,
            Child::Member(Member::Receiver(id)) => self.spawn_receiver(me, id).await,
            Child::Publisher => self.spawn(me, PublisherActor, Arc::clone(&self.shared)).await,
            Child::Follower(id) => self.spawn(me, FollowerActor, (Arc::clone(&self.shared), id)).await,
        }?;
        self.children.insert(actor.get_id(), child);
        self.shared.registry.revived(child);
        Ok(())
    }

    async fn spawn_shard(
        &self,
        me: &ActorRef<SupervisorMsg>,
        id: SenderId,
    ) -> Result<ActorCell, ActorProcessingErr> {
        self.spawn(me, ShardActor, (Arc::clone(&self.shared), id)).await
    }

    async fn spawn_receiver(
        &self,
        me: &ActorRef<SupervisorMsg>,
        id: ReceiverId,
    ) -> Result<ActorCell, ActorProcessingErr> {
        self.spawn(me, ReceiverActor, (Arc::clone(&self.shared), id)).await
    }

    async fn spawn<A: Actor>(
        &self,
        me: &ActorRef<SupervisorMsg>,
        actor: A,
        arguments: A::Arguments,
    ) -> Result<ActorCell, ActorProcessingErr> {
        // Without a name: names are global to the process, and a node is not alone in it.
        let (actor, _running) = Actor::spawn_linked(None, actor, arguments, me.get_cell()).await?;
        Ok(actor.get_cell())
    }

    fn died(&mut self, me: &ActorRef<SupervisorMsg>, actor: &ActorCell, reason: &str) {
        let Some(child) = self.children.remove(&actor.get_id()) else { return };
        if let Child::Member(member) = child {
            self.shared.registry.tell_coordinator(member_down(member));
        }
        let Some(pause) = self.back_off(child) else {
            let rest = self.shared.options.restart_window;
            error!(%child, reason, rest_s = rest.as_secs(), "an actor died too often and rests");
            self.shared.registry.exhausted(child);
            self.shared.ledger.wake();
            me.send_after(rest, move || SupervisorMsg::Restart(child));
            return;
        };
        warn!(%child, reason, pause_ms = pause.as_millis(), "an actor died and is restarted");
        me.send_after(pause, move || SupervisorMsg::Restart(child));
    }

    /// The pause before a restart; `None` if the child died too often within the window.
    fn back_off(&mut self, child: Child) -> Option<Duration> {
        let options = &self.shared.options;
        let now = Instant::now();
        let deaths = self.deaths.entry(child).or_default();
        deaths.retain(|&at| now.duration_since(at) < options.restart_window);
        let earlier = u32::try_from(deaths.len()).unwrap_or(u32::MAX);
        if earlier >= options.restarts_max {
            return None;
        }
        deaths.push_back(now);
        let pause = options.restart_back_off.saturating_mul(1 << earlier.min(10));
        // Jitter, so that those who died together do not come back together for ever: up to half as much again.
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        Some(pause + pause.mul_f64(0.5 * (random % 1024) as f64 / 1024.0))
    }
}
