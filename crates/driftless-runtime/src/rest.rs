//! What is done for a replica that no actor works for: it is brought to one version, and its engine is let go.

use crate::Shared;
use crate::binding::{Live, ReceiverBinding, ReplicaBinding};
use crate::work;
use driftless_proto::Weights;
use driftless_types::{Fence, Version};
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;
use tracing::warn;

/// Decides every attempt that no actor is left to decide, as a restarted lead would, and resumes engines.
pub(crate) async fn bring_to_rest(shared: &Arc<Shared>) {
    for plan in shared.plan.replicas() {
        let Some(replica) = shared.registry.replica(plan.id) else { continue };
        if let Some(followed) = shared.registry.followed(plan.id) {
            let _ = followed.rest(shared, &replica).await;
        } else {
            let ids = plan.receivers.iter().map(|receiver| receiver.id);
            let receivers = ids.filter_map(|id| shared.registry.receiver(id)).collect();
            rest(shared, &replica, receivers).await;
        }
    }
}

/// Brings a replica whose actors have ended to one version. `None`: its weights are of no version, and its engine stays
/// out of service (CM-14).
pub(crate) async fn rest(
    shared: &Arc<Shared>,
    replica: &ReplicaBinding,
    receivers: Vec<Arc<ReceiverBinding>>,
) -> Option<Version> {
    let mut held = Vec::new();
    for binding in receivers {
        let live = binding.token().await; // CM-9: the tasks of the dead have ended
        held.push((binding, live));
    }
    let shared_here = Arc::clone(shared);
    let settled = tokio::task::spawn_blocking(move || settle(&shared_here, held)).await;
    let (committed, weights) = settled.unwrap_or((None, Weights::Torn));
    if weights == Weights::Torn {
        return None;
    }
    if let Some(fence) = committed {
        replica.serve(fence.epoch, fence.version);
    }
    work::resume(shared, replica).await;
    Some(replica.version())
}

/// CM-3: all applied or committed means commit, anything else means rollback. Gives what the replica serves, if an
/// attempt was committed here at all, and whether it is a version.
fn settle(
    shared: &Shared,
    mut held: Vec<(Arc<ReceiverBinding>, OwnedMutexGuard<Live>)>,
) -> (Option<Fence>, Weights) {
    let open = held.iter().filter_map(|(_, live)| live.applied).max();
    let commits = open.filter(|fence| {
        held.iter().all(|(_, live)| live.applied == Some(*fence) || live.committed == Some(*fence))
    });
    for (binding, live) in &mut held {
        match commits {
            Some(fence) => work::seal(shared, binding, live, &fence),
            None => {
                if let Err(root) = work::undo(shared, binding, live) {
                    warn!(receiver = %binding.id, %root, "an attempt was not taken back at rest");
                    live.weights = Weights::Torn; // CM-14: what is not taken back is not let go
                }
            }
        }
    }
    let torn = held.iter().any(|(_, live)| live.weights == Weights::Torn);
    let weights = if torn { Weights::Torn } else { Weights::Whole };
    (held.first().and_then(|(_, live)| live.committed), weights)
}
