//! The supervisor: whoever dies is started again, with the binding it had.

use super::{CoordinatorActor, ReceiverActor, ShardActor, Tasks};
use crate::actor::coordinator::member_down;
use crate::log::{FollowerActor, PublisherActor};
use crate::{Shared, Site};
use driftless_types::{Member, ReceiverId, ReplicaId, SenderId};
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// End the actors of these children for good, then answer.
    Release(Vec<Child>, RpcReplyPort<()>),
    /// The back-off of a child is over.
    Restart(Child),
    /// The rest of these children is over.
    Wake(Vec<Child>),
}

/// Starts the children of a node and restarts them under a budget.
pub(crate) struct Supervisor;

/// What is lost when the supervisor dies: its successor starts everybody anew.
pub(crate) struct SupervisorState {
    shared: Arc<Shared>,
    children: BTreeMap<ActorId, (Child, ActorCell)>,
    deaths: BTreeMap<Child, VecDeque<Instant>>,
    /// Children that are not started before their rest is over.
    resting: BTreeSet<Child>,
    /// What brings replicas to rest; it ends with the supervisor.
    tasks: Tasks,
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
        let mut state = SupervisorState {
            shared,
            children: BTreeMap::new(),
            deaths: BTreeMap::new(),
            resting: BTreeSet::new(),
            tasks: Tasks::new(me.get_cell()),
        };
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
            SupervisorMsg::Release(children, reply) => state.release(children, reply),
            SupervisorMsg::Restart(child) if state.may_start(child) => state.start(&me, child).await?,
            SupervisorMsg::Restart(_) => {}
            SupervisorMsg::Wake(children) => {
                for child in children {
                    state.resting.remove(&child);
                    if state.may_start(child) {
                        state.start(&me, child).await?;
                    }
                }
            }
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
            if !waits_for_restart && self.may_start(child) {
                self.start(me, child).await?;
            }
        }
        Ok(())
    }

    /// Whether a child has no actor, is not at rest, and has not left.
    fn may_start(&self, child: Child) -> bool {
        let registry = &self.shared.registry;
        let is_bound = match child {
            Child::Coordinator => true,
            Child::Publisher => self.shared.log().is_some(),
            Child::Follower(id) => registry.followed(id).is_some(),
            Child::Member(Member::Sender(id)) => registry.sender(id).is_some(),
            Child::Member(Member::Receiver(id)) => registry.receiver(id).is_some(),
        };
        is_bound
            && !self.resting.contains(&child)
            && !self.children.values().any(|(known, _)| *known == child)
    }

    /// Forgets children, whose ends are then nobody's death any more; gives their actors.
    fn take(&mut self, children: &[Child]) -> Vec<ActorCell> {
        let taken = |(child, _): &(Child, ActorCell)| children.contains(child);
        let actors = self.children.values().filter(|known| taken(known)).map(|(_, actor)| actor.clone());
        let actors = actors.collect();
        self.children.retain(|_, known| !taken(known));
        down(&self.shared, children);
        actors
    }

    fn release(&mut self, children: Vec<Child>, reply: RpcReplyPort<()>) {
        let actors = self.take(&children);
        for child in &children {
            self.deaths.remove(child);
            self.resting.remove(child);
            self.shared.registry.revived(*child);
        }
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            end(&shared, actors, &children).await;
            let _ = reply.send(());
        });
    }

    async fn start(&mut self, me: &ActorRef<SupervisorMsg>, child: Child) -> Result<(), ActorProcessingErr> {
        let actor = match child {
            Child::Coordinator => self.spawn(me, CoordinatorActor, Arc::clone(&self.shared)).await,
            Child::Member(Member::Sender(id)) => self.spawn_shard(me, id).await,
            Child::Member(Member::Receiver(id)) => self.spawn_receiver(me, id).await,
            Child::Publisher => self.spawn(me, PublisherActor, Arc::clone(&self.shared)).await,
            Child::Follower(id) => self.spawn(me, FollowerActor, (Arc::clone(&self.shared), id)).await,
        }?;
        self.children.insert(actor.get_id(), (child, actor));
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
        let Some((child, _)) = self.children.remove(&actor.get_id()) else { return };
        if let Child::Member(member) = child {
            self.shared.registry.tell_coordinator(member_down(member));
        }
        let Some(pause) = self.back_off(child) else {
            let rest = self.shared.options.restart_window;
            error!(%child, reason, rest_s = rest.as_secs(), "an actor died too often and rests");
            self.shared.registry.exhausted(child);
            self.shared.ledger.wake();
            self.lay_to_rest(me, child, rest);
            return;
        };
        warn!(%child, reason, pause_ms = pause.as_millis(), "an actor died and is restarted");
        me.send_after(pause, move || SupervisorMsg::Restart(child));
    }

    /// CM-15: nobody waits for an actor at rest. Without one of its receivers a replica cannot end an attempt, so the
    /// others rest with it, and what is open there is decided from the bindings: its engine does not stand still for
    /// so long.
    fn lay_to_rest(&mut self, me: &ActorRef<SupervisorMsg>, child: Child, rest: Duration) {
        let Child::Member(Member::Receiver(ReceiverId { replica: id, .. })) = child else {
            self.resting.insert(child);
            me.send_after(rest, move || SupervisorMsg::Wake(vec![child]));
            return;
        };
        let plans = self.shared.plan.replicas().iter().filter(|plan| plan.id == id);
        let ids: Vec<ReceiverId> =
            plans.flat_map(|plan| &plan.receivers).map(|receiver| receiver.id).collect();
        let children: Vec<Child> = ids.iter().map(|&id| Child::Member(Member::Receiver(id))).collect();
        let actors = self.take(&children);
        self.resting.extend(children.iter().copied());
        // As they are now: whoever is attached meanwhile is none of this task's business.
        let registry = &self.shared.registry;
        let bound = registry.replica(id);
        let receivers = ids.into_iter().filter_map(|id| registry.receiver(id)).collect();
        let (shared, me) = (Arc::clone(&self.shared), me.clone());
        self.tasks.spawn(async move {
            let settling = async {
                end(&shared, actors, &children).await;
                if let Some(replica) = bound {
                    crate::rest::rest(&shared, &replica, receivers).await;
                }
            };
            // Nobody leads the replica before its engine was let go.
            tokio::join!(settling, tokio::time::sleep(rest));
            let _ = me.cast(SupervisorMsg::Wake(children));
        });
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

/// Ends actors. What they said while they died must not be the last that the coordinator hears.
async fn end(shared: &Shared, actors: Vec<ActorCell>, children: &[Child]) {
    for actor in actors {
        let _ = actor.kill_and_wait(None).await;
    }
    down(shared, children);
}

fn down(shared: &Shared, children: &[Child]) {
    for child in children {
        if let Child::Member(member) = child {
            shared.registry.tell_coordinator(member_down(*member));
        }
    }
}
