//! The attach probe: whoever attaches proves that what is in its memory, read through the layout it claims, is the
//! version it says.

use crate::Shared;
use crate::binding::SourceBinding;
use driftless_device::{ChangeSource, DetectOptions, DeviceError, PieceRule};
use driftless_layout::{ReceiverPlan, SenderPlan};
use driftless_numerics::Cast;
use driftless_types::{Digest, Version, index_of};
use std::sync::atomic::AtomicBool;

/// Digests of what a trainer rank holds now, per digest cell: one pass that lists nothing.
///
/// # Errors
/// [`DeviceError`] if the memory is not what the plan says.
pub fn digest_sources(
    shared: &Shared,
    plan: &SenderPlan,
    memory: &[SourceBinding],
    cast: Cast,
) -> Result<Vec<Digest>, DeviceError> {
    let mut cells = vec![Digest::ZERO; index_of(plan.cells.into())];
    for (tensor, memory) in plan.tensors.iter().zip(memory) {
        let rules = vec![PieceRule::Dense; tensor.pieces.len()];
        let (master, exp_avg) = (memory.master.lend(), memory.exp_avg.lend());
        let exp_avg_sq = memory.exp_avg_sq.lend();
        let source = ChangeSource::Inversion {
            master: master.elements(),
            exp_avg: exp_avg.elements(),
            exp_avg_sq: exp_avg_sq.elements(),
            rules: &rules,
        };
        let (params, options) = (shared.plan.params(), DetectOptions::new(cast));
        let never = AtomicBool::new(false);
        let found = shared.device.detect(tensor, params, source, options, &shared.keys, &never)?;
        let first = index_of(found.first_cell.into());
        cells[first..first + found.cells.len()].copy_from_slice(&found.cells);
    }
    Ok(cells)
}

/// What a receiver's tensors must digest to at a version, by the word of every sender; `None` if some sender does not
/// know that version, or is not there.
#[must_use]
pub fn promised(shared: &Shared, receiver: &ReceiverPlan, version: Version) -> Option<Vec<Digest>> {
    let mut promised = vec![Digest::ZERO; receiver.tensors.len()];
    for sender in shared.plan.senders() {
        if shared.plan.edge(sender.id, receiver.id).is_none() {
            continue;
        }
        let binding = shared.registry.sender(sender.id)?;
        let cells = binding.cells_at(version)?;
        // The cells of memory with strides are not the plan's.
        let mut edges = binding.plan(&shared.plan).edges.iter();
        let edge = edges.find(|edge| edge.receiver == receiver.id)?;
        for fragment in &edge.fragments {
            let bits: Digest = fragment.cells.iter().map(|&cell| cells[index_of(cell.into())]).sum();
            promised[index_of(fragment.dst_tensor.into())] += bits;
        }
    }
    Some(promised)
}
