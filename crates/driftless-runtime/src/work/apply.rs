//! Steps 9 and 10: into the live weights with an undo log, digests compared; then sealed, or taken back.

use crate::binding::{Live, ReceiverBinding, Staged};
use crate::{Failpoints, Fault, Shared, Site};
use driftless_device::{Delivery, Loaded};
use driftless_layout::{Fragment, RemapPlan};
use driftless_proto::{RootCause, Weights};
use driftless_types::{Digest, Fence, Member, ReceiverId, SenderId, index_of};
use ractor::ActorCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::error;

/// Writes what was staged into the live weights and compares every tensor's digest with what the senders promise.
///
/// # Errors
/// The undo log holds whatever was written: the caller plays it back.
pub(crate) fn scatter(
    shared: &Shared,
    binding: &ReceiverBinding,
    live: &mut Live,
    fence: &Fence,
    cancel: &AtomicBool,
    actor: &ActorCell,
) -> Result<(), RootCause> {
    let staged = live.staged.take().filter(|staged| staged.fence == *fence);
    let staged = staged.ok_or_else(|| RootCause::Task("nothing is staged for this attempt".into()))?;
    live.old_digests = Some(live.digests.clone());
    live.changed = 0;
    let Staged { sections, promised, .. } = staged;
    scatter_all(shared, binding, live, sections, cancel, actor)?;
    let tensors = differing(&live.digests, &promised);
    if !tensors.is_empty() {
        let names: Vec<&str> = named(&shared.plan, binding.id, &tensors).collect();
        error!(receiver = %binding.id, %fence, tensors = ?names, "alarm: weights differ from the trainer's; rolled back, to be sent whole");
        live.suspect.clone_from(&tensors);
        return Err(RootCause::DigestMismatch { tensors });
    }
    live.applied = Some(*fence);
    Ok(())
}

/// What arrived for a fragment.
struct Arrived<'a> {
    fragment: &'a Fragment,
    section: Loaded,
}

/// What was staged, by local tensor: a device writes all of a tensor in one go.
fn by_tensor<'a>(
    plan: &'a RemapPlan,
    me: ReceiverId,
    sections: BTreeMap<SenderId, Vec<(usize, Loaded)>>,
) -> Result<BTreeMap<usize, Vec<Arrived<'a>>>, RootCause> {
    let mut tensors: BTreeMap<usize, Vec<Arrived<'a>>> = BTreeMap::new();
    for (from, sections) in sections {
        let fragments = plan.edge(from, me).map_or(&[][..], |edge| &edge.fragments);
        for (index, section) in sections {
            let fragment = fragments.get(index);
            let fragment = fragment.ok_or_else(|| RootCause::Task("the plan has lost a fragment".into()))?;
            let tensor = index_of(fragment.dst_tensor.into());
            tensors.entry(tensor).or_default().push(Arrived { fragment, section });
        }
    }
    Ok(tensors)
}

fn scatter_all(
    shared: &Shared,
    binding: &ReceiverBinding,
    live: &mut Live,
    sections: BTreeMap<SenderId, Vec<(usize, Loaded)>>,
    cancel: &AtomicBool,
    actor: &ActorCell,
) -> Result<(), RootCause> {
    for (tensor, arrived) in by_tensor(&shared.plan, binding.id, sections)? {
        if cancel.load(Ordering::Acquire) {
            return Err(RootCause::Died);
        }
        let memory = &binding.memory[tensor];
        let fragments: Vec<_> = arrived.iter().map(|arrived| memory.fragment(arrived.fragment)).collect();
        let deliveries = arrived.into_iter().zip(&fragments).map(|(arrived, fragment)| Delivery {
            fragment,
            param_cols: shared.plan.param(fragment.param).cols(),
            section: arrived.section,
        });
        let (mut words, undo) = (memory.words.lend_mut(), &mut live.undo[tensor]);
        let done = shared.device.deliver(words.elements(), deliveries.collect(), &shared.keys, undo);
        drop(words);
        let done = done.map_err(|error| RootCause::Task(error.to_string()))?;
        for (done, fragment) in done.iter().zip(&fragments) {
            live.digests[tensor] += done.delta;
            if fragment.first_in_replica {
                live.changed += done.changed;
            }
        }
        strike_in_task(&shared.options.failpoints, binding.id, actor);
    }
    Ok(())
}

/// A failpoint inside a blocking task: a panic hits the task, a kill hits its actor while the task runs on.
#[expect(clippy::panic, reason = "the fault that a test asked for")]
fn strike_in_task(failpoints: &Failpoints, me: ReceiverId, actor: &ActorCell) {
    match failpoints.take(Site::ReceiverScatters, Some(Member::Receiver(me))) {
        None => {}
        Some(Fault::Kill) => actor.kill(),
        Some(_) => panic!("failpoint {:?}", Site::ReceiverScatters),
    }
}

pub(super) fn differing(found: &[Digest], promised: &[Digest]) -> BTreeSet<u32> {
    (0u32..)
        .zip(found.iter().zip(promised))
        .filter(|(_, (found, promised))| found != promised)
        .map(|(i, _)| i)
        .collect()
}

pub(super) fn named<'a>(
    plan: &'a RemapPlan,
    receiver: ReceiverId,
    tensors: &BTreeSet<u32>,
) -> impl Iterator<Item = &'a str> {
    let all = &plan.receiver(receiver).tensors;
    tensors.iter().map(|&index| all[index_of(index.into())].name.as_str())
}

/// Plays the undo log back: every bit is that of the version before. Of what was written in place there is no log, and
/// the weights stay torn.
///
/// # Errors
/// [`RootCause::Task`] if the log does not fit the memory, which no plan allows.
pub(crate) fn undo(shared: &Shared, binding: &ReceiverBinding, live: &mut Live) -> Result<(), RootCause> {
    // Before the first bit is restored: an undo that is cut short must not look like an applied attempt (CM-3).
    live.applied = None;
    for (memory, log) in binding.memory.iter().zip(&mut live.undo) {
        shared
            .device
            .undo(memory.words.lend_mut().elements(), log)
            .map_err(|error| RootCause::Task(error.to_string()))?;
    }
    if let Some(digests) = live.old_digests.take() {
        live.digests = digests;
    }
    live.staged = None;
    rehash(shared, binding, live)
}

/// A repair must start from the bits that are there, not from those that should be.
fn rehash(shared: &Shared, binding: &ReceiverBinding, live: &mut Live) -> Result<(), RootCause> {
    for suspect in std::mem::take(&mut live.suspect) {
        let digest = binding.digest(&shared.plan, suspect, &*shared.device, &shared.keys);
        live.digests[index_of(suspect.into())] =
            digest.map_err(|error| RootCause::Task(error.to_string()))?;
    }
    Ok(())
}

/// Drops the undo log; the rank now serves the version of the attempt.
pub(crate) fn seal(shared: &Shared, binding: &ReceiverBinding, live: &mut Live, fence: &Fence) {
    if live.committed == Some(*fence) {
        return; // CM-10
    }
    for log in &mut live.undo {
        log.clear();
    }
    live.old_digests = None;
    live.applied = None;
    live.staged = None;
    live.weights = Weights::Whole;
    live.committed = Some(*fence);
    shared.ledger.applied(fence.version, binding.id.replica, live.changed);
    binding.set_version(fence.version);
}

/// What a restarted actor does before it speaks: an interrupted scatter is taken back, an applied attempt is kept.
///
/// # Errors
/// As [`undo`].
pub(crate) fn recover(shared: &Shared, binding: &ReceiverBinding, live: &mut Live) -> Result<(), RootCause> {
    if live.applied.is_some() {
        return Ok(());
    }
    undo(shared, binding, live)
}
