//! From changes to a patch: what earlier steps left over is carried along.
//!
//! Two things leave something over: a step that was not published, and a version that some replica does not serve.
//! Both are one mechanism: positions ORed into a bitset, which the pass over the next step lists with the bits that are
//! there then. The union is a superset: an element that returned to its old bits may be sent, never missed.

use super::detect::Found;
use crate::Shared;
use crate::binding::{
    DetectorState, Knowledge, LastVersion, Patch, Pending, Publish, SenderBinding, SourceBinding,
};
use driftless_device::{Buffer, ChangeList, DeviceError};
use driftless_layout::SenderPlan;
use driftless_numerics::NotInvertible;
use driftless_types::{Digest, ParamId, Version, index_of};
use std::collections::{BTreeMap, BTreeSet};

/// The versions that the patch of a step leads between; `None` for a step that is not published.
pub(super) type Span = Option<PatchSpan>;

/// See [`Span`].
#[derive(Clone, Copy)]
pub(super) struct PatchSpan {
    version: Version,
    base: Version,
    versions: u32,
}

/// Before the pass: whatever the next patch must carry beside its own step is in the pending set afterwards. May be
/// done twice for one step: a set does not mind.
pub(super) fn prepare(
    shared: &Shared,
    binding: &SenderBinding,
    state: &mut DetectorState,
    publish: Publish,
) -> Result<Span, DeviceError> {
    Ok(match publish {
        Publish::Later => {
            pending_of(shared, binding, state)?;
            None
        }
        Publish::Now { version, base, last } => {
            let (base, versions) = carry_last_version(shared, binding, state, last)?.unwrap_or((base, 1));
            Some(PatchSpan { version, base, versions })
        }
    })
}

/// What is pending; made when it is needed first.
fn pending_of<'a>(
    shared: &Shared,
    binding: &SenderBinding,
    state: &'a mut DetectorState,
) -> Result<&'a mut Pending, DeviceError> {
    let pending = match state.pending.take() {
        Some(pending) => pending,
        None => empty(shared, binding)?,
    };
    Ok(state.pending.insert(pending))
}

fn empty(shared: &Shared, binding: &SenderBinding) -> Result<Pending, DeviceError> {
    let bits = binding.memory.iter().map(|memory| shared.device.empty_set(memory.master.len()));
    let bits = bits.collect::<Result<_, _>>()?;
    Ok(Pending { bits, dense: BTreeSet::new(), knowledge: Knowledge::Changes, gates: Vec::new() })
}

/// Makes the next patch right for replicas that do not serve the last version either, within the bounds of lagging.
/// Beyond them, and after a patch that did not know what changed, such a replica is sent everything.
fn carry_last_version(
    shared: &Shared,
    binding: &SenderBinding,
    state: &mut DetectorState,
    last: LastVersion,
) -> Result<Option<(Version, u32)>, DeviceError> {
    let Some(patch) = binding.patch().filter(|_| last == LastVersion::Outstanding) else { return Ok(None) };
    let listed: usize = patch.changes.iter().map(ChangeList::count).sum();
    if patch.knowledge == Knowledge::Nothing
        || patch.versions > shared.options.max_lag_versions
        || too_dense(shared, binding, listed as u64)
    {
        return Ok(None);
    }
    let pending = pending_of(shared, binding, state)?;
    for (bits, changes) in pending.bits.iter_mut().zip(&patch.changes) {
        shared.device.remember(bits, changes)?;
    }
    pending.dense.extend(&patch.dense);
    Ok(Some((patch.base, patch.versions + 1)))
}

#[expect(clippy::cast_precision_loss, reason = "a share, compared with a bound")]
fn too_dense(shared: &Shared, binding: &SenderBinding, set: u64) -> bool {
    let all: usize = binding.memory.iter().map(|memory| memory.master.len()).sum();
    set as f64 > shared.options.max_pending_density * all as f64
}

/// After the pass: a published step becomes the patch, any other is remembered. Gives the gates to report.
pub(super) fn conclude(
    shared: &Shared,
    binding: &SenderBinding,
    state: &mut DetectorState,
    found: Found,
    span: Span,
) -> Result<Vec<NotInvertible>, DeviceError> {
    let Some(span) = span else {
        return remember(shared, binding, state, found);
    };
    let mut found = found;
    if let Some(mut carried) = state.pending.take() {
        found.gates.append(&mut carried.gates);
        found.dense.append(&mut carried.dense);
        if carried.knowledge == Knowledge::Nothing {
            found.knowledge = Knowledge::Nothing;
        }
    }
    let gates = std::mem::take(&mut found.gates);
    binding.keep(patch(shared, binding, found, span)?);
    Ok(gates)
}

fn remember(
    shared: &Shared,
    binding: &SenderBinding,
    state: &mut DetectorState,
    found: Found,
) -> Result<Vec<NotInvertible>, DeviceError> {
    let pending = pending_of(shared, binding, state)?;
    pending.dense.extend(&found.dense);
    pending.gates.extend_from_slice(&found.gates);
    let counts = pending.bits.iter().map(|bits| shared.device.count(bits));
    let set = counts.sum::<Result<u64, _>>()?;
    if found.knowledge == Knowledge::Nothing || too_dense(shared, binding, set) {
        pending.knowledge = Knowledge::Nothing;
    }
    Ok(found.gates)
}

fn patch(
    shared: &Shared,
    binding: &SenderBinding,
    found: Found,
    span: PatchSpan,
) -> Result<Patch, DeviceError> {
    let plan = binding.plan(&shared.plan);
    let mut cells = vec![Digest::ZERO; index_of(plan.cells.into())];
    let mut changes: Vec<ChangeList> = Vec::with_capacity(found.detected.len());
    for detected in found.detected {
        let first = index_of(detected.first_cell.into());
        cells[first..first + detected.cells.len()].copy_from_slice(&detected.cells);
        changes.push(detected.changes);
    }
    let kept = keep_whole(shared, binding, plan, &found.dense)?;
    let PatchSpan { version, base, versions } = span;
    let (dense, cast, knowledge) = (found.dense, found.cast, found.knowledge);
    Ok(Patch { version, base, cast, changes, cells, dense, kept, knowledge, versions })
}

/// Copies the masters of the tensors that hold parameters which go whole: they must outlive the next step.
fn keep_whole(
    shared: &Shared,
    binding: &SenderBinding,
    plan: &SenderPlan,
    dense: &BTreeSet<ParamId>,
) -> Result<BTreeMap<u32, Buffer<f32>>, DeviceError> {
    let tensors = (0u32..).zip(plan.tensors.iter().zip(&binding.memory));
    let everything = binding.takes_whole();
    let held = tensors.filter(|(_, (tensor, _))| {
        everything || tensor.pieces.iter().any(|piece| dense.contains(&piece.param))
    });
    let copy = |(index, (_, memory)): (u32, (_, &SourceBinding))| {
        Ok((index, shared.device.copy(memory.master.lend().elements())?))
    };
    held.map(copy).collect()
}
