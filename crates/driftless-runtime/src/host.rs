//! The one task that is no actor: it keeps a supervisor alive.

use crate::Shared;
use crate::actor::{Child, Supervisor, SupervisorMsg};
use crate::binding::SenderBinding;
use crate::rest::{bring_to_rest, rest};
use driftless_types::{Member, ReplicaId, Version};
use ractor::{Actor, ActorRef, RpcReplyPort, concurrency::JoinHandle as ActorHandle, rpc::CallResult};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::task::JoinHandle;
use tracing::{error, warn};

/// How long a caller waits for the supervisor.
const ADOPT_DEADLINE: Duration = Duration::from_secs(30);
/// Between two supervisors.
const RESPAWN_PAUSE: Duration = Duration::from_millis(5);

/// Why a node's actors could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The supervisor did not start.
    #[error("the supervisor did not start: {0}")]
    Spawn(String),
    /// The supervisor did not answer in time.
    #[error("no supervisor answered within {} s", ADOPT_DEADLINE.as_secs())]
    Silent,
}

/// The running actors of a node. Dropping it stops them in the background; [`Self::stop`] waits for that.
pub struct Host {
    shared: Arc<Shared>,
    running: Option<Running>,
    membership: Arc<Mutex<()>>,
}

/// The supervisor that lives now.
type Supervisors = watch::Receiver<ActorRef<SupervisorMsg>>;

struct Running {
    supervisor: Supervisors,
    guard: JoinHandle<()>,
}

impl Host {
    /// Starts a supervisor with the children that the bindings of `shared` ask for, and keeps one alive.
    ///
    /// # Errors
    /// [`HostError::Spawn`] if the first supervisor fails to start.
    pub async fn start(shared: Arc<Shared>) -> Result<Self, HostError> {
        let (first, handle) = spawn(&shared).await?;
        let (address, supervisor) = watch::channel(first);
        let guard = tokio::spawn(keep_alive(Arc::clone(&shared), address, handle));
        Ok(Self { shared, running: Some(Running { supervisor, guard }), membership: Arc::default() })
    }

    /// What the actors share.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Waits until every binding has an actor.
    ///
    /// # Errors
    /// [`HostError::Silent`] if that takes longer than its deadline.
    pub async fn adopt(&self) -> Result<(), HostError> {
        ask(&self.shared, &self.supervisor()?, SupervisorMsg::Adopt).await
    }

    /// One at a time is taken into the fleet or out of it.
    pub async fn membership(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.membership).lock_owned().await
    }

    /// Takes a replica out of the fleet: its actors end for good, an attempt that is open there is decided as a restarted
    /// lead would, its engine goes on. Gives the version in its memory; `None` if that is of no version, and the engine
    /// stays out of service. Goes on to its end if the caller does not wait for it.
    ///
    /// # Errors
    /// [`HostError::Silent`] if no supervisor answers.
    pub async fn release_replica(&self, id: ReplicaId) -> Result<Option<Version>, HostError> {
        let (shared, supervisor) = (Arc::clone(&self.shared), self.supervisor()?);
        let membership = Arc::clone(&self.membership);
        let leaving = async move {
            let _alone = membership.lock_owned().await;
            release_replica(&shared, &supervisor, id).await
        };
        self.shared.tokio.spawn(leaving).await.map_err(|_| HostError::Silent)?
    }

    /// Takes the trainer out of the fleet: its actors end for good, and attempts that still need them are given up.
    /// When it is done nobody reads the trainer's memory. Goes on to its end if the caller does not wait for it.
    ///
    /// # Errors
    /// [`HostError::Silent`] if no supervisor answers.
    pub async fn release_trainer(&self) -> Result<(), HostError> {
        let (shared, supervisor) = (Arc::clone(&self.shared), self.supervisor()?);
        let membership = Arc::clone(&self.membership);
        let leaving = async move {
            let _alone = membership.lock_owned().await;
            release_trainer(&shared, &supervisor).await
        };
        self.shared.tokio.spawn(leaving).await.map_err(|_| HostError::Silent)?
    }

    fn supervisor(&self) -> Result<Supervisors, HostError> {
        self.running.as_ref().map(|running| running.supervisor.clone()).ok_or(HostError::Silent)
    }

    /// Stops every actor, waits until they have ended, then brings every replica to one version and resumes it.
    pub async fn stop(mut self) {
        let Some(running) = self.running.take() else { return };
        self.shared.stop();
        running.end(Arc::clone(&self.shared)).await;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.shared.stop();
        let ending = running.end(Arc::clone(&self.shared));
        self.shared.tokio.spawn(ending);
    }
}

impl Running {
    async fn end(self, shared: Arc<Shared>) {
        self.guard.abort();
        // The supervisor first, so that nobody is started again.
        let supervisor = self.supervisor.borrow().clone();
        let _ = supervisor.kill_and_wait(None).await;
        for child in shared.registry.children() {
            let _ = child.kill_and_wait(None).await;
        }
        let senders = shared.registry.bound_senders().into_iter();
        unread(&shared, senders.filter_map(|id| shared.registry.sender(id)).collect()).await;
        bring_to_rest(&shared).await;
    }
}

/// Asks the supervisor, or the one that follows it, until it has answered, or the node is stopped.
async fn ask(
    shared: &Shared,
    supervisor: &Supervisors,
    question: impl Fn(RpcReplyPort<()>) -> SupervisorMsg + Send + Sync,
) -> Result<(), HostError> {
    let mut supervisor = supervisor.clone();
    let asking = async {
        while !shared.is_stopped() {
            let current = supervisor.borrow_and_update().clone();
            if let Ok(CallResult::Success(())) = current.call(&question, None).await {
                return Ok(());
            }
            tokio::time::sleep(RESPAWN_PAUSE).await;
        }
        Err(HostError::Silent)
    };
    tokio::time::timeout(ADOPT_DEADLINE, asking).await.unwrap_or(Err(HostError::Silent))
}

/// Ends the actors of children whose bindings are gone already, so that nobody is started for them again.
async fn release(shared: &Shared, supervisor: &Supervisors, children: Vec<Child>) -> Result<(), HostError> {
    let asked = ask(shared, supervisor, |reply| SupervisorMsg::Release(children.clone(), reply)).await;
    // The addresses last: whatever became of the supervisor, nobody goes on to live there.
    for actor in shared.registry.dismiss(&children) {
        let _ = actor.kill_and_wait(None).await;
    }
    asked
}

async fn release_replica(
    shared: &Arc<Shared>,
    supervisor: &Supervisors,
    id: ReplicaId,
) -> Result<Option<Version>, HostError> {
    let registry = &shared.registry;
    let plans = shared.plan.replicas().iter().filter(|plan| plan.id == id);
    let ids: Vec<_> = plans.flat_map(|plan| &plan.receivers).map(|receiver| receiver.id).collect();
    let receivers = ids.iter().filter_map(|&id| registry.unbind_receiver(id)).collect();
    let (replica, followed) = (registry.unbind_replica(id), registry.unbind_followed(id));
    let children = match followed {
        Some(_) => vec![Child::Follower(id)],
        None => ids.into_iter().map(Member::Receiver).map(Child::Member).collect(),
    };
    let released = release(shared, supervisor, children).await;
    let left = match (replica, followed) {
        (None, _) => None,
        (Some(replica), None) => rest(shared, &replica, receivers).await,
        (Some(replica), Some(followed)) => followed.rest(shared, &replica).await,
    };
    shared.ledger.wake();
    released.map(|()| left)
}

async fn release_trainer(shared: &Shared, supervisor: &Supervisors) -> Result<(), HostError> {
    let ids = shared.registry.bound_senders();
    let bindings = ids.iter().filter_map(|&id| shared.registry.unbind_sender(id)).collect();
    let members = ids.into_iter().map(Member::Sender).map(Child::Member);
    // A publisher speaks for one trainer: the next one starts as it would in a process of its own.
    let released = release(shared, supervisor, members.chain([Child::Publisher]).collect()).await;
    unread(shared, bindings).await;
    shared.trainer_leaves();
    released
}

/// Waits for the tasks of senders that have ended: their memory is the caller's again.
async fn unread(shared: &Shared, senders: Vec<Arc<SenderBinding>>) {
    for sender in senders {
        drop(sender.token().await); // CM-9
    }
    shared.standing.unread().await;
}

async fn spawn(shared: &Arc<Shared>) -> Result<(ActorRef<SupervisorMsg>, ActorHandle<()>), HostError> {
    let spawned = Actor::spawn(None, Supervisor, Arc::clone(shared)).await;
    spawned.map_err(|error| HostError::Spawn(error.to_string()))
}

async fn keep_alive(
    shared: Arc<Shared>,
    address: watch::Sender<ActorRef<SupervisorMsg>>,
    mut running: ActorHandle<()>,
) {
    loop {
        // However it ended, a node without a supervisor is not left alone.
        let _ = (&mut running).await;
        warn!("the supervisor died and is started again");
        loop {
            tokio::time::sleep(RESPAWN_PAUSE).await;
            match spawn(&shared).await {
                Ok((next, handle)) => {
                    running = handle;
                    address.send_replace(next);
                    break;
                }
                Err(failed) => error!(%failed, "the supervisor did not start; trying again"),
            }
        }
    }
}
