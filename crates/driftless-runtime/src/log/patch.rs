//! What one rank holds for the log: the patch under way, and what changed since.

use super::target::{Lineage, LogStep, LogTarget, WholeValues};
use crate::Shared;
use crate::binding::{Patch, SenderBinding};
use driftless_device::{
    ChangeList, ChangeSource, DetectOptions, DeviceError, ElementSet, Elements, Lent, Pending, PieceDiff,
};
use driftless_layout::{Fragment, SenderPlan};
use driftless_numerics::Cast;
use driftless_types::{ChangeSet, Digest, ParamId, Version, index_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tracing::error;

/// What changed on one rank since the version that the stream holds.
#[derive(Clone, Debug)]
pub(crate) struct LogPatch {
    /// The version of its values.
    pub(crate) version: Version,
    /// How the trainer makes its served bits.
    pub(crate) cast: Cast,
    /// What it lists.
    pub(crate) values: Values,
    /// Served words of the fragments that go whole, by index in the log's plan.
    pub(crate) kept: BTreeMap<u32, Vec<u16>>,
    /// The digest of this rank's share of each parameter that it holds a part of.
    pub(crate) digests: BTreeMap<ParamId, Digest>,
}

/// The values of a patch.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// Per source tensor the elements that may have changed; with how far each has moved from exactly the version that
    /// the stream holds, if that is known.
    Changes(Arc<Vec<ChangeList>>),
    /// Every element, out of `kept`.
    Kept,
    /// Every element, out of the trainer's weights while they stand still.
    Standing,
}

impl LogPatch {
    /// Whether it holds every element.
    pub(crate) const fn is_whole(&self) -> bool {
        matches!(self.values, Values::Kept | Values::Standing)
    }
}

/// What one rank holds for the log.
#[derive(Debug, Default)]
pub(crate) struct RankLog {
    patch: Option<Arc<LogPatch>>,
    /// What changed since the patch under way was made; `None`: nothing was published in the meantime.
    since: Option<Since>,
}

/// What changed in versions that the log did not get.
#[derive(Debug)]
enum Since {
    /// These elements, and these parameters as a whole.
    Some { bits: Vec<ElementSet>, whole: BTreeSet<ParamId> },
    /// More than it is worth to remember.
    Everything,
}

impl RankLog {
    /// The patch under way.
    pub(crate) fn patch(&self) -> Option<Arc<LogPatch>> {
        self.patch.clone()
    }

    /// The patch is published, or given up.
    pub(crate) fn drop_patch(&mut self) {
        self.patch = None;
    }
}

/// Called once per step and rank while the weights stand still, with the patch for the replicas: makes the patch that was
/// asked for, or remembers.
pub(crate) fn conclude(shared: &Shared, binding: &SenderBinding, asked: LogStep, patch: &Patch) {
    let Some(log) = shared.log() else { return };
    if let Err(error) = try_conclude(shared, log, binding, asked, patch) {
        // The replicas' patch is made, and must not be made twice. The log goes without, and on with an anchor.
        error!(sender = %binding.id, %error, "no patch for the log");
        // LG-5: what this rank would have added to its list is not known any more, so its next patch is whole.
        log.rank(binding.id).since = Some(Since::Everything);
        if asked != LogStep::Remember {
            log.given_up();
        }
    }
}

fn try_conclude(
    shared: &Shared,
    log: &LogTarget,
    binding: &SenderBinding,
    asked: LogStep,
    patch: &Patch,
) -> Result<(), DeviceError> {
    let mut rank = log.rank(binding.id);
    match asked {
        LogStep::Absent => {}
        LogStep::Remember => remember(shared, binding, &mut rank, patch)?,
        // A detection that is done again after its actor died finds the patch that it left.
        LogStep::Make(_) if rank.patch.as_ref().is_some_and(|made| made.version == patch.range.version) => {}
        LogStep::Make(lineage) => {
            let made = make(shared, log, binding, &mut rank, lineage, patch)?;
            rank.patch = Some(Arc::new(made));
            rank.since = None;
        }
    }
    Ok(())
}

/// The patch of weights that no step led to: those of a trainer that was just attached.
///
/// # Errors
/// [`DeviceError`] if the memory does not fit the plan.
pub fn first(
    shared: &Shared,
    binding: &SenderBinding,
    version: Version,
    cast: Cast,
) -> Result<(), DeviceError> {
    let (Some(log), Some(cells)) = (shared.log(), binding.cells_at(version)) else { return Ok(()) };
    let patch = whole(shared, log, binding, version, cast, &cells)?;
    log.rank(binding.id).patch = Some(Arc::new(patch));
    Ok(())
}

fn remember(
    shared: &Shared,
    binding: &SenderBinding,
    rank: &mut RankLog,
    patch: &Patch,
) -> Result<(), DeviceError> {
    let since = match rank.since.take() {
        Some(since) => since,
        None => Since::Some { bits: binding.empty_sets(&*shared.device)?, whole: BTreeSet::new() },
    };
    let Since::Some { mut bits, mut whole } = since else {
        rank.since = Some(Since::Everything);
        return Ok(());
    };
    let mut set = 0;
    for (bits, changes) in bits.iter_mut().zip(&patch.changes) {
        shared.device.remember(bits, changes)?;
        set += shared.device.count(bits)?;
    }
    whole.extend(&patch.dense);
    let is_too_much = binding.is_more_than(shared.options.max_pending_density, set);
    let is_lost = !patch.knows_changes() || is_too_much;
    rank.since = Some(if is_lost { Since::Everything } else { Since::Some { bits, whole } });
    Ok(())
}

/// So large a share of a rank's elements may be listed one by one: beyond it whole values are no larger.
const MAX_LISTED_SHARE: f64 = 0.5;

fn make(
    shared: &Shared,
    log: &LogTarget,
    binding: &SenderBinding,
    rank: &mut RankLog,
    lineage: Lineage,
    patch: &Patch,
) -> Result<LogPatch, DeviceError> {
    let listed = patch.changes.iter().map(|changes| changes.count() as u64).sum();
    let is_sparse = patch.knows_changes()
        && !matches!(rank.since, Some(Since::Everything))
        && !binding.is_more_than(MAX_LISTED_SHARE, listed);
    if lineage == Lineage::Anchor || !is_sparse {
        return whole(shared, log, binding, patch.range.version, patch.cast, &patch.cells);
    }
    let (changes, dense) = match &mut rank.since {
        Some(Since::Some { bits, whole }) => {
            let dense = &*whole | &patch.dense;
            (merged(shared, binding, bits, patch)?, dense)
        }
        _ => (patch.changes.clone(), patch.dense.clone()),
    };
    let values = Values::Changes(Arc::new(changes));
    let kept = gather(shared, binding, log_fragments(log, binding), patch.cast, |fragment| {
        dense.contains(&fragment.param)
    })?;
    let digests = digests(binding.plan(&shared.plan), &patch.cells);
    Ok(LogPatch { version: patch.range.version, cast: patch.cast, values, kept, digests })
}

fn whole(
    shared: &Shared,
    log: &LogTarget,
    binding: &SenderBinding,
    version: Version,
    cast: Cast,
    cells: &[Digest],
) -> Result<LogPatch, DeviceError> {
    let (values, kept) = match log.values() {
        WholeValues::Standing => (Values::Standing, BTreeMap::new()),
        WholeValues::Copied => {
            (Values::Kept, gather(shared, binding, log_fragments(log, binding), cast, |_| true)?)
        }
    };
    let digests = digests(binding.plan(&shared.plan), cells);
    Ok(LogPatch { version, cast, values, kept, digests })
}

/// The fragments that a rank writes to the log, as they lie in its memory.
pub(crate) fn log_fragments<'a>(log: &'a LogTarget, binding: &'a SenderBinding) -> &'a [Fragment] {
    let plan = binding.log_plan().unwrap_or_else(|| &log.plan().senders()[index_of(binding.id.0.into())]);
    plan.edges.first().map_or(&[], |edge| &edge.fragments)
}

fn gather(
    shared: &Shared,
    binding: &SenderBinding,
    fragments: &[Fragment],
    cast: Cast,
    goes_whole: impl Fn(&Fragment) -> bool,
) -> Result<BTreeMap<u32, Vec<u16>>, DeviceError> {
    let guards: Vec<Lent<'_, f32>> = binding.memory.iter().map(|memory| memory.master.lend()).collect();
    let masters: Vec<Elements<'_, f32>> = guards.iter().map(Lent::elements).collect();
    let mut kept = BTreeMap::new();
    for fragment in fragments.iter().filter(|fragment| goes_whole(fragment)) {
        if let ChangeSet::All(words) = shared.device.gather(&masters, fragment, cast)? {
            kept.insert(fragment.index, words);
        }
    }
    Ok(kept)
}

/// The changes of this step and of all that were remembered, with the bits that are there now: one more pass, over a
/// step that changed nothing more. LG-5: over several steps a unit step may be two, so nothing is said of how far
/// anything moved.
fn merged(
    shared: &Shared,
    binding: &SenderBinding,
    since: &mut [ElementSet],
    patch: &Patch,
) -> Result<Vec<ChangeList>, DeviceError> {
    let plan = binding.plan(&shared.plan);
    let mut lists = Vec::with_capacity(since.len());
    for ((set, changes), (tensor, memory)) in
        since.iter_mut().zip(&patch.changes).zip(plan.tensors.iter().zip(&binding.memory))
    {
        shared.device.remember(set, changes)?;
        let diffs = vec![PieceDiff::Compare; tensor.pieces.len()];
        let master = memory.master.lend();
        let nothing = shared.device.empty_set(memory.master.len())?;
        let source =
            ChangeSource::InStep { master: master.elements(), changed: nothing.bits(), diffs: &diffs };
        let options = DetectOptions::new(patch.cast).with_pending(Pending::Drain(set.lend()));
        let params = shared.plan.params();
        let never = AtomicBool::new(false);
        lists.push(shared.device.detect(tensor, params, source, options, &shared.keys, &never)?.changes);
    }
    Ok(lists)
}

/// This rank's share of each parameter's digest.
pub(crate) fn digests(plan: &SenderPlan, cells: &[Digest]) -> BTreeMap<ParamId, Digest> {
    let mut digests: BTreeMap<ParamId, Digest> = BTreeMap::new();
    for piece in plan.tensors.iter().flat_map(|tensor| &tensor.pieces) {
        let first = index_of(piece.first_cell.into());
        let count = (piece.row_cuts.len() + 1) * (piece.col_cuts.len() + 1);
        let share: Digest = cells[first..first + count].iter().copied().sum();
        *digests.entry(piece.param).or_default() += share;
    }
    digests
}
