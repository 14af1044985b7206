//! The trainer's side of the API.

use crate::{NodeError, SyncHandle};
use driftless_runtime::binding::{SourceBinding, StepRequest};
use driftless_runtime::numerics::StepParams;
use driftless_runtime::types::Version;
use driftless_runtime::{Shared, Step};
use std::sync::Arc;
use tokio::sync::OwnedRwLockWriteGuard;
use tracing::info_span;

/// The memory of all trainer ranks, owned by the caller.
pub struct TrainerMemory {
    /// Per rank of the plan, per source tensor of the rank: master weights and moments.
    pub ranks: Vec<Vec<SourceBinding>>,
    /// How many steps the optimizer has taken.
    pub steps_taken: u64,
    /// The version that the weights are now.
    pub version: Version,
}

/// The optimizer may write while this lives; [`Trainer::step_done`] takes it back.
#[must_use = "hand it to `step_done` when the optimizer has stepped"]
pub struct StepGuard {
    _alone: OwnedRwLockWriteGuard<()>,
}

/// The trainer's handle: it reports steps, and learns how they ended.
pub struct Trainer {
    shared: Arc<Shared>,
    last: SyncHandle,
}

impl Trainer {
    pub(crate) fn new(shared: Arc<Shared>, version: Version) -> Self {
        let last = SyncHandle::nothing(Arc::clone(&shared), version);
        Self { shared, last }
    }

    /// Waits until the optimizer may write: the last step is detected, and nobody reads dense values.
    ///
    /// It waits for memory speed, never for a peer: a step is detected without one.
    pub async fn step_begin(&mut self) -> StepGuard {
        self.last.detected().await;
        StepGuard { _alone: self.shared.standing.begin_step().await }
    }

    /// Reports that the optimizer has stepped: the weights now are `version`. Returns at once.
    ///
    /// `params` is how the optimizer made the step, captured *in* the step. The weights must stand still until the
    /// next [`Self::step_begin`] has returned.
    ///
    /// # Errors
    /// [`NodeError::VersionNotGrowing`] if the version is not above the last one.
    pub fn step_done(
        &mut self,
        step: StepGuard,
        version: Version,
        params: StepParams,
    ) -> Result<SyncHandle, NodeError> {
        let base = self.last.version();
        if version <= base {
            return Err(NodeError::VersionNotGrowing { found: version, last: base });
        }
        self.shared.standing.set_version(version);
        drop(step);
        self.shared.ledger.open(version, info_span!(parent: None, "sync", %version));
        let _reporting = Step::StepDone.span(&self.shared, version, "trainer").entered();
        let request = StepRequest { version, base, params };
        let handle = SyncHandle::open(Arc::clone(&self.shared), version);
        let previous = std::mem::replace(&mut self.last, handle.clone());
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            // A patch made before the outcome of the version below it is known is a proven way to lose elements.
            previous.ended().await;
            for sender in shared.registry.bound_senders() {
                shared.report_step(sender, request.clone());
            }
        });
        Ok(handle)
    }

    /// The version that was reported last.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.last.version()
    }
}
