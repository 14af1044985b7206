//! From changes to a patch: what earlier steps left over is carried along.
//!
//! Two things leave something over: a step that was not published, and a version that some replica does not serve.
//! Both are one mechanism: positions ORed into a bitset, whose values are read anew when the next patch is made. The
//! union is a superset: an element that returned to its old bits may be sent, never missed.

use super::detect::Found;
use crate::Shared;
use crate::binding::{DetectorState, Knowledge, LastVersion, Patch, Pending, SenderBinding};
use driftless_device::{Bitset, Changes};
use driftless_layout::SenderPlan;
use driftless_numerics::Cast;
use driftless_types::{Digest, ParamId, Version, index_of};
use std::collections::{BTreeMap, BTreeSet};

/// Remembers an unpublished step.
pub(super) fn remember(binding: &SenderBinding, state: &mut DetectorState, found: &Found) {
    let pending = state.unpublished.get_or_insert_with(|| empty(binding));
    for (bits, detected) in pending.bits.iter_mut().zip(&found.detected) {
        bits.insert_all(&detected.changes.indices);
    }
    pending.dense.extend(&found.dense);
    pending.gates.extend_from_slice(&found.gates);
    if found.knowledge == Knowledge::Nothing {
        pending.knowledge = Knowledge::Nothing;
    }
}

fn empty(binding: &SenderBinding) -> Pending {
    let bits = binding.memory.iter().map(|memory| Bitset::new(memory.master.len())).collect();
    Pending { bits, dense: BTreeSet::new(), knowledge: Knowledge::Changes, gates: Vec::new() }
}

/// Adds what was remembered of unpublished steps, and forgets it.
pub(super) fn carry_unpublished(
    shared: &Shared,
    binding: &SenderBinding,
    state: &mut DetectorState,
    found: &mut Found,
) {
    let Some(mut unpublished) = state.unpublished.take() else { return };
    found.gates.append(&mut unpublished.gates);
    if unpublished.knowledge == Knowledge::Nothing || too_dense(shared, &unpublished) {
        found.knowledge = Knowledge::Nothing;
    }
    carry(binding, found, &unpublished);
}

/// The patch of a version: what was found, and what the last version's patch carried if some replica needs that.
pub(super) fn patch(
    shared: &Shared,
    binding: &SenderBinding,
    found: &mut Found,
    version: Version,
    base: Version,
    last: LastVersion,
) -> Patch {
    let plan = &shared.plan.senders()[index_of(binding.id.0.into())];
    let (mut since, mut versions) = (base, 1);
    if let (LastVersion::Outstanding, Some(last)) = (last, binding.patch())
        && carry_last_version(shared, binding, found, &last)
    {
        (since, versions) = (last.base, last.versions + 1);
    }
    let mut cells = vec![Digest::ZERO; index_of(plan.cells.into())];
    for detected in &found.detected {
        let first = index_of(detected.first_cell.into());
        cells[first..first + detected.cells.len()].copy_from_slice(&detected.cells);
    }
    let changes = found.detected.iter_mut().map(|detected| std::mem::take(&mut detected.changes)).collect();
    let (dense, knowledge) = (std::mem::take(&mut found.dense), found.knowledge);
    let kept = keep_whole(binding, plan, &dense);
    Patch { version, base: since, cast: found.cast, changes, cells, dense, kept, knowledge, versions }
}

/// Makes a patch right for replicas that do not serve the last version either, within the bounds of lagging. Beyond
/// them, and after a patch that did not know what changed, such a replica is sent everything.
fn carry_last_version(shared: &Shared, binding: &SenderBinding, found: &mut Found, last: &Patch) -> bool {
    if last.knowledge == Knowledge::Nothing || last.versions > shared.options.max_lag_versions {
        return false;
    }
    let mut pending = empty(binding);
    for (bits, changes) in pending.bits.iter_mut().zip(&last.changes) {
        bits.insert_all(&changes.indices);
    }
    if too_dense(shared, &pending) {
        return false;
    }
    pending.dense.clone_from(&last.dense);
    carry(binding, found, &pending);
    true
}

#[expect(clippy::cast_precision_loss, reason = "a share, compared with a bound")]
fn too_dense(shared: &Shared, pending: &Pending) -> bool {
    let (set, all) =
        pending.bits.iter().fold((0, 0), |(set, all), bits| (set + bits.count(), all + bits.len()));
    set as f64 > shared.options.max_pending_density * all as f64
}

fn carry(binding: &SenderBinding, found: &mut Found, pending: &Pending) {
    for (index, bits) in pending.bits.iter().enumerate() {
        if !bits.is_empty() {
            let master = binding.memory[index].master.read();
            let changes = &mut found.detected[index].changes;
            *changes = union(changes, bits, &master, found.cast);
        }
    }
    found.dense.extend(&pending.dense);
}

/// New changes and remembered positions, ascending, with the bits that are there now.
fn union(new: &Changes, bits: &Bitset, master: &[f32], cast: Cast) -> Changes {
    let mut all = bits.clone();
    all.insert_all(&new.indices);
    let indices: Vec<u32> = all.indices().collect();
    let values = indices.iter().map(|&index| cast.bits(master[index as usize])).collect();
    Changes { indices, values }
}

/// Copies the masters of the tensors that hold parameters which go whole: they must outlive the next step.
fn keep_whole(
    binding: &SenderBinding,
    plan: &SenderPlan,
    dense: &BTreeSet<ParamId>,
) -> BTreeMap<u32, Vec<f32>> {
    let tensors = (0u32..).zip(plan.tensors.iter().zip(&binding.memory));
    let everything = binding.takes_whole();
    let held = tensors.filter(|(_, (tensor, _))| {
        everything || tensor.pieces.iter().any(|piece| dense.contains(&piece.param))
    });
    held.map(|(index, (_, memory))| (index, memory.master.read().to_vec())).collect()
}
