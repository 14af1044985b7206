//! The one task that is no actor: it keeps a supervisor alive.

use crate::Shared;
use crate::actor::{Supervisor, SupervisorMsg};
use crate::rest::{bring_to_rest, rest};
use driftless_types::{Member, ReplicaId, Version};
use ractor::{Actor, ActorRef, RpcReplyPort, concurrency::JoinHandle as ActorHandle, rpc::CallResult};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
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
}

struct Running {
    supervisor: watch::Receiver<ActorRef<SupervisorMsg>>,
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
        Ok(Self { shared, running: Some(Running { supervisor, guard }) })
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
        self.ask(SupervisorMsg::Adopt).await
    }

    /// Asks the supervisor, or the one that follows it, until it has answered.
    async fn ask(
        &self,
        question: impl Fn(RpcReplyPort<()>) -> SupervisorMsg + Send + Sync,
    ) -> Result<(), HostError> {
        let Some(running) = &self.running else { return Err(HostError::Silent) };
        let mut supervisor = running.supervisor.clone();
        let asking = async {
            loop {
                let current = supervisor.borrow_and_update().clone();
                if let Ok(CallResult::Success(())) = current.call(&question, None).await {
                    return;
                }
                tokio::time::sleep(RESPAWN_PAUSE).await;
            }
        };
        tokio::time::timeout(ADOPT_DEADLINE, asking).await.map_err(|_| HostError::Silent)
    }

    /// Takes a replica out of the fleet: its actors end for good, an attempt that is open there is decided as a restarted
    /// lead would, its engine goes on. Gives the version in its memory; `None` if that is of no version, and the engine
    /// stays out of service.
    ///
    /// # Errors
    /// [`HostError::Silent`] if no supervisor answers.
    pub async fn release_replica(&self, id: ReplicaId) -> Result<Option<Version>, HostError> {
        let shared = &self.shared;
        let plans = shared.plan.replicas().iter().filter(|plan| plan.id == id);
        let ids: Vec<_> = plans.flat_map(|plan| &plan.receivers).map(|receiver| receiver.id).collect();
        // First the bindings, so that nobody is started for them again.
        let replica = shared.registry.unbind_replica(id);
        let receivers = ids.iter().filter_map(|&id| shared.registry.unbind_receiver(id)).collect();
        self.release(ids.into_iter().map(Member::Receiver).collect()).await?;
        let Some(replica) = replica else { return Ok(None) };
        let left = rest(shared, &replica, receivers).await;
        shared.ledger.wake();
        Ok(left)
    }

    /// Takes the trainer out of the fleet: its actors end for good, and attempts that still need them are given up.
    ///
    /// # Errors
    /// [`HostError::Silent`] if no supervisor answers.
    pub async fn release_trainer(&self) -> Result<(), HostError> {
        let ids = self.shared.registry.bound_senders();
        ids.iter().for_each(|&id| self.shared.registry.unbind_sender(id));
        self.release(ids.into_iter().map(Member::Sender).collect()).await?;
        self.shared.trainer_leaves();
        Ok(())
    }

    async fn release(&self, members: Vec<Member>) -> Result<(), HostError> {
        self.ask(|reply| SupervisorMsg::Release(members.clone(), reply)).await
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
        bring_to_rest(&shared).await;
    }
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
