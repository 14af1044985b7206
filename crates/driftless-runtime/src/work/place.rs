//! The receiver's side of an attempt in place: windows into the live weights, then the proof.

use super::stage::{frame, load};
use super::window::{self, Window};
use super::{differing, named};
use crate::Shared;
use crate::binding::{Live, ReceiverBinding};
use bytes::Bytes;
use driftless_codec::FragmentRecord;
use driftless_device::{Delivery, Loaded, UndoLog};
use driftless_layout::Fragment;
use driftless_proto::{RootCause, Weights};
use driftless_types::{Digest, Fence, ReceiverId, SenderId, index_of};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::error;

/// What the records of an attempt in place promise, per local tensor.
///
/// # Errors
/// [`RootCause::Damaged`] if some fragment does not follow whole.
pub(crate) fn promised(
    shared: &Shared,
    me: ReceiverId,
    records: &BTreeMap<SenderId, Vec<FragmentRecord>>,
) -> Result<Vec<Digest>, RootCause> {
    let mut promised = vec![Digest::ZERO; shared.plan.receiver(me).tensors.len()];
    for (&from, records) in records {
        let fragments = shared.plan.edge(from, me).map_or(&[][..], |edge| &edge.fragments);
        for (record, fragment) in records.iter().zip(fragments) {
            if u64::from(record.nnz) != fragment.elements() {
                let text = format!("trainer/{from}: fragment {} does not follow whole", fragment.index);
                return Err(RootCause::Damaged(text));
            }
            promised[index_of(fragment.dst_tensor.into())] += record.digest;
        }
    }
    Ok(promised)
}

/// Writes a window into the live weights; nothing if the attempt is not the newest that has written.
///
/// # Errors
/// [`RootCause::Damaged`] naming the sender: what was written before stays.
pub(crate) fn write_window(
    shared: &Shared,
    binding: &ReceiverBinding,
    live: &mut Live,
    fence: &Fence,
    (from, window): (SenderId, &Window),
    mut bytes: Bytes,
    cancel: &AtomicBool,
) -> Result<(), RootCause> {
    let fragments = shared.plan.edge(from, binding.id).map_or(&[][..], |edge| &edge.fragments);
    let slabs: Vec<Fragment> =
        window.iter().map(|slab| window::rows_of(&fragments[slab.fragment], &slab.rows)).collect();
    let sections = read_window(shared, fence, from, &slabs, &mut bytes)?;
    begin(live, fence)?;
    for (rows, section) in slabs.iter().zip(sections) {
        if cancel.load(Ordering::Acquire) {
            return Err(RootCause::Died);
        }
        let memory = &binding.memory[index_of(rows.dst_tensor.into())];
        // Of a window there is no way back: the log only ever holds the rows at hand.
        let mut log = UndoLog::default();
        let fragment = &*memory.fragment(rows);
        let delivery = Delivery { fragment, param_cols: shared.plan.param(rows.param).cols(), section };
        let mut words = memory.words.lend_mut();
        let done = shared.device.deliver(words.elements(), vec![delivery], &shared.keys, &mut log);
        let done = done.map_err(|error| RootCause::Task(error.to_string()))?;
        if rows.first_in_replica {
            live.changed += done.iter().map(|done| done.changed).sum::<u64>();
        }
    }
    Ok(())
}

/// The sections of a window, every byte checked before the first is written.
fn read_window(
    shared: &Shared,
    fence: &Fence,
    from: SenderId,
    slabs: &[Fragment],
    bytes: &mut Bytes,
) -> Result<Vec<Loaded>, RootCause> {
    let framed = slabs.iter().map(|rows| frame(from, rows, fence.version, bytes));
    load(shared, from, framed.collect::<Result<_, _>>()?)
}

/// CM-9, CM-14: before the first word is written the weights count as torn, and older attempts write no more.
fn begin(live: &mut Live, fence: &Fence) -> Result<(), RootCause> {
    if live.taking > Some(*fence) {
        return Err(RootCause::Aborted);
    }
    if live.taking < Some(*fence) {
        live.taking = Some(*fence);
        live.changed = 0;
    }
    live.weights = Weights::Torn;
    Ok(())
}

/// Everything is written: hashes the live weights, and compares with what the senders promise.
///
/// # Errors
/// [`RootCause::DigestMismatch`]: the weights stay torn.
pub(crate) fn prove(
    shared: &Shared,
    binding: &ReceiverBinding,
    live: &mut Live,
    fence: &Fence,
    promised: &[Digest],
) -> Result<(), RootCause> {
    begin(live, fence)?;
    let tensors = 0u32..u32::try_from(binding.memory.len()).unwrap_or(u32::MAX);
    let hashed = tensors.map(|tensor| binding.digest(&shared.plan, tensor, &*shared.device, &shared.keys));
    let hashed: Result<Vec<Digest>, _> = hashed.collect();
    live.digests = hashed.map_err(|error| RootCause::Task(error.to_string()))?;
    let tensors = differing(&live.digests, promised);
    if !tensors.is_empty() {
        let names: Vec<&str> = named(&shared.plan, binding.id, &tensors).collect();
        error!(receiver = %binding.id, %fence, tensors = ?names, "alarm: weights taken whole differ from the trainer's");
        return Err(RootCause::DigestMismatch { tensors });
    }
    live.applied = Some(*fence);
    Ok(())
}
