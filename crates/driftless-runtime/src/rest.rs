//! What a node does when it stops: every replica is brought to one version, and its engine is let go.

use crate::Shared;
use crate::binding::{Live, ReceiverBinding, ReplicaBinding};
use crate::work;
use driftless_layout::ReplicaPlan;
use driftless_proto::Engine;
use driftless_types::Fence;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;
use tracing::warn;

/// Decides every attempt that no actor is left to decide, as a restarted lead would, and resumes engines.
pub(crate) async fn bring_to_rest(shared: &Arc<Shared>) {
    for plan in shared.plan.replicas() {
        if let Some(replica) = shared.registry.replica(plan.id) {
            rest(shared, plan, &replica).await;
        }
    }
}

async fn rest(shared: &Arc<Shared>, plan: &ReplicaPlan, replica: &ReplicaBinding) {
    if let Some(followed) = shared.registry.followed(plan.id) {
        return followed.rest(shared, replica).await;
    }
    let mut held = Vec::new();
    for receiver in &plan.receivers {
        if let Some(binding) = shared.registry.receiver(receiver.id) {
            let live = binding.token().await; // CM-9: the tasks of the dead have ended
            held.push((binding, live));
        }
    }
    let shared_here = Arc::clone(shared);
    let settled = tokio::task::spawn_blocking(move || settle(&shared_here, held)).await;
    if let Ok(Some(fence)) = settled {
        replica.serve(fence.epoch, fence.version);
    }
    if replica.engine() == Engine::Paused {
        let (hook, deadline) = (replica.on_resume(), shared.options.lead.pause_deadline);
        if let Err(root) = work::call(hook, replica.version(), deadline).await {
            warn!(replica = %replica.id, %root, "the resume hook failed while the node stopped");
        }
        replica.set_engine(Engine::Serving);
    }
}

/// CM-3: all applied or committed means commit, anything else means rollback. Gives what the replica serves, if an
/// attempt was committed here at all.
fn settle(shared: &Shared, mut held: Vec<(Arc<ReceiverBinding>, OwnedMutexGuard<Live>)>) -> Option<Fence> {
    let open = held.iter().filter_map(|(_, live)| live.applied).max();
    let commits = open.filter(|fence| {
        held.iter().all(|(_, live)| live.applied == Some(*fence) || live.committed == Some(*fence))
    });
    for (binding, live) in &mut held {
        match commits {
            Some(fence) => work::seal(shared, binding, live, &fence),
            None => {
                if let Err(root) = work::undo(shared, binding, live) {
                    warn!(receiver = %binding.id, %root, "an attempt was not taken back while the node stopped");
                }
            }
        }
    }
    held.first().and_then(|(_, live)| live.committed)
}
