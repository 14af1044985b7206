//! Step 4 of the journey: one pass over a rank's state, which ends with a patch, always.

use super::pending;
use crate::binding::{
    DetectorState, Knowledge, Publish, SenderBinding, SnapshotState, SourceBinding, StepRequest,
};
use crate::log::{self, Lineage, LogStep};
use crate::{Detector, Shared};
use driftless_device::{
    Buffer, ChangeSource, DetectOptions, Detected, DeviceError, Pending, PieceDiff, PieceRule,
};
use driftless_layout::{SenderPlan, SourceTensor};
use driftless_numerics::{Cast, MasterAudit, NotInvertible, Rule, StepChange, check_gates};
use driftless_types::{Dtype, ParamId};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

/// How the changes of one parameter are found, once its gates were asked.
enum Verdict {
    /// By the certified rule.
    Invertible(Rule),
    /// The optimizer did not touch it.
    Untouched,
    /// A gate failed: they are not, it goes whole.
    Dense,
    /// By comparison with old bits, here or in the optimizer.
    Compared,
}

/// Detects a step and keeps the patch in the binding.
///
/// # Errors
/// [`DeviceError`] if the pass was canceled or the memory does not fit the plan:
/// then no patch is kept, and the restarted actor detects again.
pub(crate) fn detect(
    shared: &Shared,
    binding: &SenderBinding,
    step: &StepRequest,
    state: &mut DetectorState,
    cancel: &AtomicBool,
) -> Result<Vec<NotInvertible>, DeviceError> {
    let plan = binding.plan(&shared.plan);
    let mut gates = Vec::new();
    let verdicts = judge(shared, plan, step, state, &mut gates);
    let next = pending::prepare(shared, binding, state, &step.publish)?;
    // Whatever cuts the pass short leaves a snapshot that is partly ahead.
    let before = std::mem::replace(&mut state.snapshot_state, SnapshotState::Torn);
    // Unknown until the pass has looked at every master.
    state.audited.clear();
    let cast = step.params.family.cast();
    let detected = pass(shared, binding, plan, &verdicts, state, step, cancel)?;
    state.audited = audited(plan, &detected);
    state.snapshot_state = SnapshotState::Clean;
    let mut dense = lanes_that_go_whole(shared, plan, &verdicts);
    for (tensor, detected) in plan.tensors.iter().zip(&detected) {
        note_exceeded(shared, tensor, detected, &verdicts, &mut dense, &mut gates);
    }
    let knowledge = match (shared.options.detector, before) {
        (Detector::Snapshot, SnapshotState::Torn) => Knowledge::Nothing,
        _ => Knowledge::Changes,
    };
    state.steps_taken = steps_after(shared, plan, step);
    let found = Found { detected, dense, knowledge, gates, cast };
    let gates = pending::conclude(shared, binding, state, found, next)?;
    if let Some(patch) = binding.patch().filter(|patch| Some(patch.range.version) == step.version()) {
        log::conclude(shared, binding, step.log, &patch);
    }
    // If that fails the step is detected again, and lists the same elements.
    binding.clear_masks()?;
    Ok(gates)
}

/// What one pass found.
pub(super) struct Found {
    /// Per source tensor.
    pub(super) detected: Vec<Detected>,
    /// Parameters that go whole.
    pub(super) dense: BTreeSet<ParamId>,
    /// Whether the changes are all of them.
    pub(super) knowledge: Knowledge,
    /// The gates that failed.
    pub(super) gates: Vec<NotInvertible>,
    /// How the trainer makes served bits.
    pub(super) cast: Cast,
}

/// Asks the gates of every parameter that the rank holds a part of.
fn judge(
    shared: &Shared,
    plan: &SenderPlan,
    step: &StepRequest,
    state: &DetectorState,
    gates: &mut Vec<NotInvertible>,
) -> BTreeMap<ParamId, Verdict> {
    let params: BTreeSet<ParamId> = pieces(plan).map(|piece| piece.param).collect();
    let mut judge_one = |id: ParamId| {
        if shared.options.detector != Detector::Inversion {
            return Verdict::Compared; // bits were compared: how they came about does not matter
        }
        let fqn = &shared.plan.param(id).fqn;
        let now = step.params.group(fqn.as_str());
        let before = state.steps_taken.get(&id).copied().unwrap_or(0);
        let rule = match check_gates(fqn, before, now) {
            Ok(StepChange::Untouched) => return Verdict::Untouched,
            Ok(StepChange::Stepped) => Rule::new(fqn, step.params.family, now)
                .map(|rule| if state.audited.contains(&id) { rule.with_audited_masters() } else { rule }),
            Err(gate) => Err(gate),
        };
        rule.map_or_else(
            |gate| {
                gates.push(gate);
                Verdict::Dense
            },
            Verdict::Invertible,
        )
    };
    params.into_iter().map(|id| (id, judge_one(id))).collect()
}

fn pieces(plan: &SenderPlan) -> impl Iterator<Item = &driftless_layout::Piece> {
    plan.tensors.iter().flat_map(|tensor| &tensor.pieces)
}

/// FP32 lanes always go whole, except where nothing was touched; so do parameters that failed a gate.
fn lanes_that_go_whole(
    shared: &Shared,
    plan: &SenderPlan,
    verdicts: &BTreeMap<ParamId, Verdict>,
) -> BTreeSet<ParamId> {
    let goes_whole = |id: &ParamId| match verdicts[id] {
        Verdict::Dense => true,
        Verdict::Untouched => false,
        Verdict::Invertible(_) | Verdict::Compared => shared.plan.param(*id).dtype == Dtype::Fp32,
    };
    pieces(plan).map(|piece| piece.param).filter(goes_whole).collect()
}

fn pass(
    shared: &Shared,
    binding: &SenderBinding,
    plan: &SenderPlan,
    verdicts: &BTreeMap<ParamId, Verdict>,
    state: &mut DetectorState,
    step: &StepRequest,
    cancel: &AtomicBool,
) -> Result<Vec<Detected>, DeviceError> {
    let DetectorState { snapshot, pending, .. } = state;
    let mut bits = pending.as_mut().map(|pending| pending.bits.iter_mut());
    let mut snapshots = snapshot.iter();
    let works: Vec<_> = plan
        .tensors
        .iter()
        .zip(&binding.memory)
        .map(|(tensor, memory)| {
            let pending = match (bits.as_mut().and_then(Iterator::next), &step.publish) {
                (None, _) => Pending::Absent,
                (Some(bits), Publish::Later) => Pending::Collect(bits.lend()),
                (Some(bits), Publish::Now { .. }) => Pending::Drain(bits.lend()),
            };
            (tensor, memory, snapshots.next(), options_of(shared, step).with_pending(pending))
        })
        .collect();
    let one =
        |(tensor, memory, snapshot, options): (&SourceTensor, &SourceBinding, Option<&Buffer<u16>>, _)| {
            let run = |source: ChangeSource<'_>| {
                shared.device.detect(tensor, shared.plan.params(), source, options, &shared.keys, cancel)
            };
            let rules: Vec<_> =
                tensor.pieces.iter().map(|piece| piece_rule(&verdicts[&piece.param])).collect();
            with_source(shared.options.detector, tensor, memory, snapshot, &rules, run)
        };
    works.into_par_iter().map(one).collect()
}

/// How far elements moved is worth asking if a log may say so in fewer bits.
fn options_of<'a>(shared: &Shared, step: &StepRequest) -> DetectOptions<'a> {
    let options = DetectOptions::new(step.params.family.cast());
    match (shared.log(), step.log) {
        (Some(_), LogStep::Make(Lineage::After(_))) => options.with_classes(),
        _ => options,
    }
}

/// Lends what the detector reads of one tensor.
fn with_source<T>(
    detector: Detector,
    tensor: &SourceTensor,
    memory: &SourceBinding,
    snapshot: Option<&Buffer<u16>>,
    rules: &[PieceRule],
    run: impl FnOnce(ChangeSource<'_>) -> Result<T, DeviceError>,
) -> Result<T, DeviceError> {
    let master = memory.master.lend();
    let master = master.elements();
    let diffs = &*vec![PieceDiff::Compare; tensor.pieces.len()];
    let missing = |what| DeviceError::Length { what, found: 0, expected: tensor.elements() };
    match detector {
        Detector::Inversion => {
            let (exp_avg, exp_avg_sq) = (memory.exp_avg.lend(), memory.exp_avg_sq.lend());
            let (exp_avg, exp_avg_sq) = (exp_avg.elements(), exp_avg_sq.elements());
            run(ChangeSource::Inversion { master, exp_avg, exp_avg_sq, rules })
        }
        Detector::Snapshot => {
            let previous = snapshot.ok_or_else(|| missing("the snapshot"))?;
            run(ChangeSource::Snapshot { master, previous: previous.lend_mut().elements(), diffs })
        }
        Detector::PreCopy => {
            let model = memory.model.as_ref().ok_or_else(|| missing("the model's BF16 weights"))?;
            run(ChangeSource::PreCopy { master, model: model.lend().elements(), diffs })
        }
        Detector::InStep => {
            let mask = memory.mask.as_ref().ok_or_else(|| missing("the optimizer's mask"))?;
            run(ChangeSource::InStep { master, changed: mask.lend().bits(), diffs })
        }
    }
}

/// The parameters of which every piece was fit: what the next step's rule may build on.
fn audited(plan: &SenderPlan, found: &[Detected]) -> BTreeSet<ParamId> {
    let mut audits: BTreeMap<ParamId, MasterAudit> = BTreeMap::new();
    for (tensor, detected) in plan.tensors.iter().zip(found) {
        for (piece, audit) in tensor.pieces.iter().zip(&detected.audits) {
            audits
                .entry(piece.param)
                .and_modify(|of_param| *of_param = of_param.and(*audit))
                .or_insert(*audit);
        }
    }
    audits.into_iter().filter(|(_, audit)| *audit == MasterAudit::Fit).map(|(id, _)| id).collect()
}

fn piece_rule(verdict: &Verdict) -> PieceRule {
    match verdict {
        Verdict::Invertible(rule) => PieceRule::Rule(rule.clone()),
        Verdict::Untouched => PieceRule::Untouched,
        Verdict::Dense | Verdict::Compared => PieceRule::Dense,
    }
}

/// An update beyond its bound: these moments are not those of the step that the caller described.
fn note_exceeded(
    shared: &Shared,
    tensor: &SourceTensor,
    detected: &Detected,
    verdicts: &BTreeMap<ParamId, Verdict>,
    dense: &mut BTreeSet<ParamId>,
    gates: &mut Vec<NotInvertible>,
) {
    for (piece, worst) in tensor.pieces.iter().zip(&detected.bound_exceeded) {
        if let (Some(worst), Verdict::Invertible(rule)) = (worst, &verdicts[&piece.param])
            && dense.insert(piece.param)
        {
            gates.push(rule.gate_bound(&shared.plan.param(piece.param).fqn, *worst));
        }
    }
}

fn steps_after(shared: &Shared, plan: &SenderPlan, step: &StepRequest) -> BTreeMap<ParamId, u64> {
    let step_of = |id: ParamId| step.params.group(shared.plan.param(id).fqn.as_str()).step;
    pieces(plan).map(|piece| (piece.param, step_of(piece.param))).collect()
}
