//! From changes to a patch: what earlier steps left over is carried along.
//!
//! Which bases the patch is right for, and whether the last one's positions are still needed, the book says (CM-6).
//! Two things leave something over: a step that was not published, and a version that some replica does not serve.
//! Both are one mechanism: positions ORed into a bitset, which the pass over the next step lists with the bits that are
//! there then. The union is a superset: an element that returned to its old bits may be sent, never missed.

use super::detect::Found;
use crate::Shared;
use crate::binding::{DetectorState, Knowledge, Patch, Pending, Publish, SenderBinding, SourceBinding};
use driftless_device::{Buffer, ChangeList, DeviceError};
use driftless_layout::SenderPlan;
use driftless_numerics::NotInvertible;
use driftless_proto::{PatchBook, PatchRange, Pending as Kept};
use driftless_types::{Digest, ParamId, index_of};
use std::collections::{BTreeMap, BTreeSet};

/// The book as it will be when the step is published; `None` for a step that is not.
pub(super) type NextBook = Option<PatchBook>;

/// Before the pass: whatever the next patch must carry beside its own step is in the pending set afterwards. May be
/// done twice for one step: a set does not mind.
pub(super) fn prepare(
    shared: &Shared,
    binding: &SenderBinding,
    state: &mut DetectorState,
    publish: &Publish,
) -> Result<NextBook, DeviceError> {
    let Publish::Now { version, served } = publish else {
        pending_of(shared, binding, state)?;
        return Ok(None);
    };
    let mut book = state.book.clone();
    book.serve(served.clone());
    let patch = binding.patch();
    let listed: usize = patch.iter().flat_map(|patch| &patch.changes).map(ChangeList::count).sum();
    if binding.is_more_than(shared.options.max_pending_density, listed as u64) {
        book.forget();
    }
    if book.step(*version).1 == Kept::Kept
        && let Some(patch) = patch
    {
        carry(shared, binding, state, &patch)?;
    }
    Ok(Some(book))
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
    let bits = binding.empty_sets(&*shared.device)?;
    Ok(Pending { bits, dense: BTreeSet::new(), knowledge: Knowledge::Changes, gates: Vec::new() })
}

/// Makes the next patch right for replicas that do not serve the last version either.
fn carry(
    shared: &Shared,
    binding: &SenderBinding,
    state: &mut DetectorState,
    patch: &Patch,
) -> Result<(), DeviceError> {
    let pending = pending_of(shared, binding, state)?;
    for (bits, changes) in pending.bits.iter_mut().zip(&patch.changes) {
        shared.device.remember(bits, changes)?;
    }
    pending.dense.extend(&patch.dense);
    Ok(())
}

/// After the pass: a published step becomes the patch, any other is remembered. Gives the gates to report.
pub(super) fn conclude(
    shared: &Shared,
    binding: &SenderBinding,
    state: &mut DetectorState,
    found: Found,
    next: NextBook,
) -> Result<Vec<NotInvertible>, DeviceError> {
    let Some(mut book) = next else {
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
    if found.knowledge == Knowledge::Nothing {
        book.forget();
    }
    binding.keep(patch(shared, binding, found, book.patch())?);
    state.book = book;
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
    if found.knowledge == Knowledge::Nothing || binding.is_more_than(shared.options.max_pending_density, set)
    {
        pending.knowledge = Knowledge::Nothing;
    }
    Ok(found.gates)
}

fn patch(
    shared: &Shared,
    binding: &SenderBinding,
    found: Found,
    range: PatchRange,
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
    Ok(Patch { range, cast: found.cast, changes, cells, dense: found.dense, kept })
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
