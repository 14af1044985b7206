//! What a trainer rank owns: its optimizer state, the newest step, the patch that came of it.

use driftless_device::{Changes, StateBuffer};
use driftless_layout::SenderPlan;
use driftless_numerics::{Cast, StepParams};
use driftless_types::{Digest, ParamId, SenderId, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of one source tensor: the owned range of its master weights and moments, FP32, one value per element.
#[derive(Clone, Debug)]
pub struct SourceBinding {
    /// Master weights.
    pub master: StateBuffer,
    /// First moments.
    pub exp_avg: StateBuffer,
    /// Second moments; their running maximum with AMSGrad.
    pub exp_avg_sq: StateBuffer,
}

/// A step that the training loop has reported.
#[derive(Clone, Debug)]
pub struct StepRequest {
    /// The version that the weights now are.
    pub version: Version,
    /// The version that was reported before it.
    pub base: Version,
    /// How the optimizer made the step.
    pub params: StepParams,
}

/// What one step changed on one rank: right for any receiver at a version from `base` to below `version`.
#[derive(Clone, Debug)]
pub struct Patch {
    /// The version it leads to.
    pub version: Version,
    /// The oldest version it leads from.
    pub base: Version,
    /// How the trainer makes its served bits.
    pub cast: Cast,
    /// Per source tensor the elements that may have changed.
    pub changes: Vec<Changes>,
    /// Digests of the bits at `version`, per digest cell of the rank.
    pub cells: Vec<Digest>,
    /// Parameters whose fragments go whole: FP32 lanes, and those that failed a gate.
    pub dense: BTreeSet<ParamId>,
    /// Masters of the source tensors that hold such parameters, as they were at `version`.
    pub kept: BTreeMap<u32, Vec<f32>>,
    /// Whether the change set of the BF16 parameters is known; if not, everything goes whole.
    pub knowledge: Knowledge,
}

/// Whether a patch knows what changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// The changes are those of the patch.
    Changes,
    /// The detection failed: everything may have changed.
    Nothing,
}

/// What the detector remembers from one step to the next.
#[derive(Debug)]
pub struct DetectorState {
    /// The optimizer's step counter of each parameter at the last detection.
    pub steps_taken: BTreeMap<ParamId, u64>,
    /// Served BF16 bits of the last version, per source tensor; empty for the inversion.
    pub snapshot: Vec<Vec<u16>>,
    /// Whether the snapshot is that of the last version.
    pub snapshot_state: SnapshotState,
    /// Parameters whose masters were fit (see [`MasterAudit`](driftless_numerics::MasterAudit)) after the last pass;
    /// none if nobody looked since they may have been written to.
    pub audited: BTreeSet<ParamId>,
}

/// Whether a snapshot can be compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotState {
    /// It holds the bits of the last version.
    Clean,
    /// A detection was cut short: it is partly ahead.
    Torn,
}

/// The binding of one trainer rank.
#[derive(Debug)]
pub struct SenderBinding {
    /// The rank.
    pub id: SenderId,
    /// One per source tensor of the plan.
    pub memory: Vec<SourceBinding>,
    request: Mutex<Option<Arc<StepRequest>>>,
    patch: Mutex<Option<Arc<Patch>>>,
    detector: Arc<tokio::sync::Mutex<DetectorState>>,
}

impl SenderBinding {
    /// The binding of a rank that has taken `steps_taken` steps.
    #[must_use]
    pub fn new(plan: &SenderPlan, memory: Vec<SourceBinding>, detector: DetectorState) -> Self {
        Self {
            id: plan.id,
            memory,
            request: Mutex::default(),
            patch: Mutex::default(),
            detector: Arc::new(tokio::sync::Mutex::new(detector)),
        }
    }

    /// Notes a step; the rank's actor, or its successor, detects it.
    pub fn request(&self, step: StepRequest) {
        *self.request.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(step));
    }

    /// The newest step that was reported.
    #[must_use]
    pub fn requested(&self) -> Option<Arc<StepRequest>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The patch of the newest detection.
    #[must_use]
    pub fn patch(&self) -> Option<Arc<Patch>> {
        self.patch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a patch in place of the one before.
    pub fn keep(&self, patch: Patch) {
        *self.patch.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(patch));
    }

    /// The token of this binding: waits until the former holder's task has ended (CM-9).
    pub async fn token(&self) -> tokio::sync::OwnedMutexGuard<DetectorState> {
        Arc::clone(&self.detector).lock_owned().await
    }
}
