//! What a trainer rank owns: its optimizer state, the newest step, the patch that came of it.

use crate::log::LogStep;
use driftless_device::{Buffer, ChangeList, Device, DeviceError, ElementSet, StepMask};
use driftless_layout::{LayoutError, RemapPlan, SenderPlan, SourceMemory, Strides};
use driftless_numerics::{Cast, NotInvertible, StepParams};
use driftless_proto::{PatchBook, PatchRange};
use driftless_types::{Digest, ParamId, ReplicaId, SenderId, Version, element_offset, index_of};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of one source tensor: the owned range of its master weights and moments, FP32, one value per element.
///
/// ```
/// # use driftless_device::StateBuffer;
/// # use driftless_layout::Strides;
/// # use driftless_runtime::binding::SourceBinding;
/// # use driftless_types::Shape;
/// # let buffer = || StateBuffer::new(vec![0.0; 4 * 80]);
/// // Four rows of 64 elements, which a padding of 16 keeps apart.
/// let padded = SourceBinding::new(buffer(), buffer(), buffer())
///     .with_strides(Strides::of_rows(Shape::new([4, 64]), 80, 0));
/// ```
#[derive(Clone, Debug)]
pub struct SourceBinding {
    /// Master weights.
    pub master: Buffer<f32>,
    /// First moments.
    pub exp_avg: Buffer<f32>,
    /// Second moments; their running maximum with AMSGrad.
    pub exp_avg_sq: Buffer<f32>,
    /// The optimizer's own word on what its last step changed; needed by the in-step detector alone.
    pub mask: Option<StepMask>,
    /// The model's BF16 weights of the version before, until the step is detected; needed by the pre-copy detector alone.
    pub model: Option<Buffer<u16>>,
    /// How the range lies in each of these buffers; `None`: without gaps, from the start.
    pub strides: Option<Strides>,
}

impl SourceBinding {
    /// Master weights and both moments, of equal length.
    #[must_use]
    pub fn new(
        master: impl Into<Buffer<f32>>,
        exp_avg: impl Into<Buffer<f32>>,
        exp_avg_sq: impl Into<Buffer<f32>>,
    ) -> Self {
        let (master, exp_avg, exp_avg_sq) = (master.into(), exp_avg.into(), exp_avg_sq.into());
        Self { master, exp_avg, exp_avg_sq, mask: None, model: None, strides: None }
    }

    /// The same, whose optimizer marks what a step changes.
    #[must_use]
    pub fn with_mask(self, mask: StepMask) -> Self {
        Self { mask: Some(mask), ..self }
    }

    /// The same, with the model's own BF16 weights.
    #[must_use]
    pub fn with_model(self, model: impl Into<Buffer<u16>>) -> Self {
        Self { model: Some(model.into()), ..self }
    }

    /// The same memory, in which the range lies as `strides` say.
    #[must_use]
    pub fn with_strides(self, strides: Strides) -> Self {
        Self { strides: Some(strides), ..self }
    }
}

/// The plan of a rank over its memory: the plan itself, unless there are strides.
///
/// # Errors
/// [`LayoutError::Strides`] naming the tensor.
///
/// # Panics
/// If there are not as many tensors as the plan has.
pub fn plan_over<'a>(
    plan: &'a SenderPlan,
    memory: &[SourceBinding],
) -> Result<Cow<'a, SenderPlan>, LayoutError> {
    if memory.iter().all(|memory| memory.strides.is_none()) {
        return Ok(Cow::Borrowed(plan));
    }
    let memory = memory.iter().map(|memory| SourceMemory {
        strides: memory.strides.as_ref(),
        buffer_elements: element_offset(memory.master.len()),
    });
    plan.with_strides(&memory.collect::<Vec<_>>()).map(Cow::Owned)
}

/// A step that the training loop has reported.
#[derive(Clone, Debug)]
pub struct StepRequest {
    /// Counts every reported step of the trainer.
    pub sequence: u64,
    /// How the optimizer made the step.
    pub params: StepParams,
    /// Whether the weights are to be served.
    pub publish: Publish,
    /// What the step does for the log.
    pub log: LogStep,
}

impl StepRequest {
    /// The version that the weights are; that of an unpublished step is not known yet.
    #[must_use]
    pub const fn version(&self) -> Option<Version> {
        match &self.publish {
            Publish::Now { version, .. } => Some(*version),
            Publish::Later => None,
        }
    }
}

/// What becomes of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publish {
    /// Its changes are remembered until a later step is published.
    Later,
    /// The weights are a version now.
    Now {
        /// The version.
        version: Version,
        /// What each attached replica serves now that the version before has ended, or was given up.
        served: BTreeMap<ReplicaId, Version>,
    },
}

/// What one step changed on one rank.
#[derive(Clone, Debug)]
pub struct Patch {
    /// The version it leads to, and the oldest that it leads from.
    pub range: PatchRange,
    /// How the trainer makes its served bits.
    pub cast: Cast,
    /// Per source tensor the elements that may have changed.
    pub changes: Vec<ChangeList>,
    /// Digests of the bits at `version`, per digest cell of the rank.
    pub cells: Vec<Digest>,
    /// Parameters whose fragments go whole: FP32 lanes, and those that failed a gate.
    pub dense: BTreeSet<ParamId>,
    /// Masters of the source tensors that hold such parameters, as they were at `version`; of all tensors, if a replica
    /// had to do without dense values at the version before.
    pub kept: BTreeMap<u32, Buffer<f32>>,
}

impl Patch {
    /// Whether it is known what changed since some version before: otherwise everything may have.
    #[must_use]
    pub fn knows_changes(&self) -> bool {
        self.range.since < self.range.version
    }
}

/// Whether it is known what changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// The changes are those that were found.
    Changes,
    /// The detection failed: everything may have changed.
    Nothing,
}

/// Changes of earlier steps that the next patch must carry too: 1 bit per element, made only when needed.
#[derive(Debug)]
pub struct Pending {
    /// Per source tensor.
    pub bits: Vec<ElementSet>,
    /// Parameters that were to go whole.
    pub dense: BTreeSet<ParamId>,
    /// Whether everything that changed is in it.
    pub knowledge: Knowledge,
    /// Gates that failed in those steps.
    pub gates: Vec<NotInvertible>,
}

impl Pending {
    /// Nothing is known of what changed: the next patch says so.
    #[must_use]
    pub const fn unknown() -> Self {
        Self { bits: Vec::new(), dense: BTreeSet::new(), knowledge: Knowledge::Nothing, gates: Vec::new() }
    }
}

/// What the detector remembers from one step to the next.
#[derive(Debug)]
pub struct DetectorState {
    /// Which bases the newest patch is right for.
    pub book: PatchBook,
    /// Changes that the next patch must carry beside those of its own step.
    pub pending: Option<Pending>,
    /// The optimizer's step counter of each parameter at the last detection.
    pub steps_taken: BTreeMap<ParamId, u64>,
    /// Served BF16 bits of the last version, per source tensor; empty for the inversion.
    pub snapshot: Vec<Buffer<u16>>,
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

/// What a rank held when it was attached: who attaches later proves its layout against it.
#[derive(Clone, Debug)]
pub struct FirstVersion {
    /// The version.
    pub version: Version,
    /// Digests of its bits, per digest cell of the rank.
    pub cells: Vec<Digest>,
}

/// The binding of one trainer rank.
#[derive(Debug)]
pub struct SenderBinding {
    /// The rank.
    pub id: SenderId,
    /// One per source tensor of the plan.
    pub memory: Vec<SourceBinding>,
    /// The plan over memory with strides, if there is such memory.
    strided: Option<SenderPlan>,
    /// The log's plan over memory with strides, if there are such memory and a log.
    strided_log: Option<SenderPlan>,
    first: FirstVersion,
    request: Mutex<Option<Arc<StepRequest>>>,
    detected: AtomicU64,
    keeps_next_whole: AtomicBool,
    patch: Mutex<Option<Arc<Patch>>>,
    detector: Arc<tokio::sync::Mutex<DetectorState>>,
}

impl SenderBinding {
    /// The binding of a rank, with what its detector knows at the start; `plan` is that of [`plan_over`] its memory.
    #[must_use]
    pub fn new(
        plan: Cow<'_, SenderPlan>,
        memory: Vec<SourceBinding>,
        detector: DetectorState,
        first: FirstVersion,
    ) -> Self {
        Self {
            id: plan.id,
            memory,
            strided: match plan {
                Cow::Borrowed(_) => None,
                Cow::Owned(strided) => Some(strided),
            },
            strided_log: None,
            first,
            request: Mutex::default(),
            detected: AtomicU64::new(0),
            keeps_next_whole: AtomicBool::new(false),
            patch: Mutex::default(),
            detector: Arc::new(tokio::sync::Mutex::new(detector)),
        }
    }

    /// The plan of this rank over its memory.
    #[must_use]
    pub fn plan<'a>(&'a self, plan: &'a RemapPlan) -> &'a SenderPlan {
        self.strided.as_ref().unwrap_or_else(|| &plan.senders()[index_of(self.id.0.into())])
    }

    /// The same binding, whose rank writes to a log; `plan` is that of [`plan_over`] its memory.
    #[must_use]
    pub fn with_log_plan(self, plan: Cow<'_, SenderPlan>) -> Self {
        let strided_log = match plan {
            Cow::Borrowed(_) => None,
            Cow::Owned(strided) => Some(strided),
        };
        Self { strided_log, ..self }
    }

    /// What this rank writes to the log, if that is not what the log's plan says because its memory has strides.
    #[must_use]
    pub(crate) const fn log_plan(&self) -> Option<&SenderPlan> {
        self.strided_log.as_ref()
    }

    /// A set of elements of each source tensor, without any in it.
    ///
    /// # Errors
    /// A device without so much memory.
    pub(crate) fn empty_sets(&self, device: &dyn Device) -> Result<Vec<ElementSet>, DeviceError> {
        self.memory.iter().map(|memory| device.empty_set(memory.master.len())).collect()
    }

    /// Whether so many elements are more than this share of the rank's.
    #[expect(clippy::cast_precision_loss, reason = "a share, compared with a bound")]
    pub(crate) fn is_more_than(&self, share: f64, elements: u64) -> bool {
        let all: usize = self.memory.iter().map(|memory| memory.master.len()).sum();
        elements as f64 > share * all as f64
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

    /// The sequence number of the step that was detected last; 0 before the first.
    #[must_use]
    pub fn detected(&self) -> u64 {
        self.detected.load(Ordering::Acquire)
    }

    /// The step of this number is detected: whatever is to be remembered of it is in the binding.
    pub fn set_detected(&self, sequence: u64) {
        self.detected.store(sequence, Ordering::Release);
    }

    /// The patch of the newest version.
    #[must_use]
    pub fn patch(&self) -> Option<Arc<Patch>> {
        self.patch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A replica needed dense values that were gone: the next patch keeps all of them.
    pub fn keep_next_whole(&self) {
        self.keeps_next_whole.store(true, Ordering::Release);
    }

    /// Whether the next patch was to keep all values; asks once.
    pub fn takes_whole(&self) -> bool {
        self.keeps_next_whole.swap(false, Ordering::AcqRel)
    }

    /// Keeps a patch in place of the one before.
    pub fn keep(&self, patch: Patch) {
        *self.patch.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(patch));
    }

    /// The step is detected: the optimizer's masks speak of the next one.
    ///
    /// # Errors
    /// A device that fails.
    pub fn clear_masks(&self) -> Result<(), DeviceError> {
        self.memory.iter().filter_map(|memory| memory.mask.as_ref()).try_for_each(StepMask::clear)
    }

    /// Digests of the bits at a version, per digest cell: known of the first version and of the newest.
    #[must_use]
    pub fn cells_at(&self, version: Version) -> Option<Vec<Digest>> {
        if self.first.version == version {
            return Some(self.first.cells.clone());
        }
        self.patch().filter(|patch| patch.range.version == version).map(|patch| patch.cells.clone())
    }

    /// The token of this binding: waits until the former holder's task has ended (CM-9).
    pub async fn token(&self) -> tokio::sync::OwnedMutexGuard<DetectorState> {
        Arc::clone(&self.detector).lock_owned().await
    }
}
