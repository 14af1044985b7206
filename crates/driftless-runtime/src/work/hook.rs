//! Calls into the engine: they may fail, panic or hang, and none of that may hold up an actor.

use crate::Shared;
use crate::binding::{Hook, ReplicaBinding};
use driftless_proto::{Engine, RootCause};
use driftless_types::Version;
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::warn;

/// Calls a hook and waits for it no longer than its deadline (EX-6).
pub(crate) async fn call(hook: Option<Hook>, version: Version, deadline: Duration) -> Result<(), RootCause> {
    let Some(hook) = hook else { return Ok(()) };
    // A task of its own, so that its panic is an answer; dropping the set aborts it.
    let mut running = JoinSet::new();
    running.spawn(async move { hook(version).await });
    match tokio::time::timeout(deadline, running.join_next()).await {
        Ok(Some(Ok(outcome))) => outcome.map_err(|error| RootCause::Pause(error.to_string())),
        Ok(Some(Err(panicked))) => Err(RootCause::Pause(panicked.to_string())),
        Ok(None) | Err(_) => Err(RootCause::Deadline { step: "the engine's hook" }),
    }
}

/// Lets the engine of a replica that no lead decides for go on, if it stands still.
pub(crate) async fn resume(shared: &Shared, replica: &ReplicaBinding) {
    if replica.engine() == Engine::Serving {
        return;
    }
    let deadline = shared.options.lead.pause_deadline;
    if let Err(root) = call(replica.on_resume(), replica.version(), deadline).await {
        warn!(replica = %replica.id, %root, "the resume hook failed; the engine counts as resumed");
    }
    replica.set_engine(Engine::Serving);
    shared.ledger.wake();
}
