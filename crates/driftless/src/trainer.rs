//! The trainer's side of the API.

use crate::{NodeError, SyncHandle};
use driftless_runtime::binding::{Publish, SourceBinding, StepRequest};
use driftless_runtime::log::LogStep;
use driftless_runtime::numerics::{Family, StepParams};
use driftless_runtime::types::Version;
use driftless_runtime::{Ledger, Shared, Step};
use std::sync::Arc;
use tokio::sync::OwnedRwLockWriteGuard;
use tokio::time::Instant;
use tracing::info_span;

/// The memory of all trainer ranks, owned by the caller.
pub struct TrainerMemory {
    /// Per rank of the plan, per source tensor of the rank: master weights and moments.
    pub ranks: Vec<Vec<SourceBinding>>,
    /// How many steps the optimizer has taken.
    pub steps_taken: u64,
    /// The version that the weights are now.
    pub version: Version,
    /// The optimizer's family: it says how the trainer makes its served bits.
    pub family: Family,
}

/// The optimizer may write while this lives; [`Trainer::step_done`] takes it back.
#[must_use = "hand it to `step_done` when the optimizer has stepped"]
pub struct StepGuard {
    _alone: OwnedRwLockWriteGuard<()>,
}

/// The trainer's handle: it reports steps, and learns how they ended.
pub struct Trainer {
    shared: Arc<Shared>,
    /// The number of the last step reported; 0 before the first.
    sequence: u64,
    last: SyncHandle,
}

impl Trainer {
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    pub(crate) fn new(shared: Arc<Shared>, version: Version) -> Self {
        let last = SyncHandle::nothing(Arc::clone(&shared), version);
        Self { shared, sequence: 0, last }
    }

    /// Waits until the optimizer may write: the last step is detected, and nobody reads dense values.
    ///
    /// It waits for memory speed, never for a peer: a step is detected without one.
    pub async fn step_begin(&mut self) -> StepGuard {
        detected(&self.shared, self.sequence, self.last.deadline()).await;
        StepGuard { _alone: self.shared.standing.begin_step().await }
    }

    /// Reports that the optimizer has stepped: the weights now are `version`. Returns at once.
    ///
    /// `params` is how the optimizer made the step, captured *in* the step. The weights must stand still until the
    /// next [`Self::step_begin`] has returned.
    ///
    /// # Errors
    /// [`NodeError::VersionNotGrowing`] if the version is not above the last one, [`NodeError::Stopped`] after
    /// [`Node::stop`](crate::Node::stop).
    pub fn step_done(
        &mut self,
        step: StepGuard,
        version: Version,
        params: StepParams,
    ) -> Result<SyncHandle, NodeError> {
        let base = self.last.version();
        if self.shared.is_stopped() {
            return Err(NodeError::Stopped);
        }
        // Versions only grow, also above what a trainer before this one has reported.
        let last = base.max(self.shared.newest_version());
        if version <= last {
            return Err(NodeError::VersionNotGrowing { found: version, last });
        }
        self.shared.standing.set_version(version);
        drop(step);
        self.shared.ledger.open(version, info_span!(parent: None, "sync", %version));
        let _reporting = Step::StepDone.span(&self.shared, version, "trainer").entered();
        self.sequence = self.shared.next_sequence();
        let sequence = self.sequence;
        self.shared.note_version(version);
        let handle = SyncHandle::open(Arc::clone(&self.shared), version, base, sequence);
        let previous = std::mem::replace(&mut self.last, handle.clone());
        let (shared, trainers_gone) = (Arc::clone(&self.shared), self.shared.trainers_gone());
        self.shared.tokio.spawn(async move {
            // A patch made before the outcome of the version below it is known is a proven way to lose elements.
            let publish = Publish::Now { version, served: previous.passed().await };
            let name = || shared.log().map_or(LogStep::Absent, |log| log.name(version));
            shared.report_step(|| StepRequest { sequence, params, publish, log: name() }, trainers_gone);
        });
        Ok(handle)
    }

    /// Reports that the optimizer has stepped, without a version: the next [`Self::step_done`] carries its changes.
    /// Returns at once; the weights must stand still until the next [`Self::step_begin`] has returned.
    pub fn step_taken(&mut self, step: StepGuard, params: StepParams) {
        // The values of the last version are gone: whoever still needs them whole waits for the next.
        self.shared.standing.set_moving();
        drop(step);
        self.sequence = self.shared.next_sequence();
        let publish = Publish::Later;
        let (sequence, log) = (self.sequence, LogStep::Absent);
        let step = || StepRequest { sequence, params, publish, log };
        self.shared.report_step(step, self.shared.trainers_gone());
    }

    /// The version that was reported last.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.last.version()
    }
}

/// Waits until every rank of the trainer has detected a step, no longer than until the deadline.
pub(crate) async fn detected(shared: &Shared, sequence: u64, deadline: Option<Instant>) {
    let senders = shared.plan.senders().len();
    let ledger = &shared.ledger;
    let done =
        |ledger: &Ledger| sequence == 0 || shared.is_stopped() || ledger.detected_count(sequence) >= senders;
    let all = ledger.wait(|ledger| done(ledger).then_some(()));
    let deadline = deadline.unwrap_or_else(|| Instant::now() + shared.options.version_deadline);
    let _ = tokio::time::timeout_at(deadline, all).await;
}
