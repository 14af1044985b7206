//! What one rank holds for the log, as blobs of sections.

use super::area;
use super::patch::{LogPatch, Values, log_fragments};
use super::target::LogTarget;
use crate::Shared;
use crate::binding::SenderBinding;
use bytes::Bytes;
use driftless_codec::{CodecError, LogChanges, LogSectionPlan, LogSectionStart, StepKnowledge};
use driftless_device::{ClassedSet, Classes, DeviceError, Elements, Lent};
use driftless_layout::Fragment;
use driftless_proto::log::{Task, TaskKind};
use driftless_types::{ChangeSet, Digest, Version, index_of};
use thiserror::Error;
use tokio::sync::OwnedRwLockReadGuard;

/// So many fragments are remapped in one go, as a device likes it.
const FRAGMENTS_AT_A_TIME: usize = 64;

/// Why a rank's part is not written.
#[derive(Debug, Error)]
pub(crate) enum Unwritten {
    /// The values of the version are gone, or were never all there.
    #[error("its values are gone")]
    Gone,
    /// Nobody takes the blobs any more.
    #[error("its upload has ended")]
    NotTaken,
    /// The memory does not fit the plan.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A box that no section can state.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// One rank's part of a version.
pub(crate) struct RankPart<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) log: &'a LogTarget,
    pub(crate) binding: &'a SenderBinding,
    pub(crate) patch: &'a LogPatch,
    pub(crate) task: Task,
    /// A blob is handed over before it grows beyond this, in bytes; a single section may be longer.
    pub(crate) blob_bytes: usize,
}

/// Hands one blob over; `false` ends the writing.
pub(crate) type Take<'a> = &'a mut dyn FnMut(Bytes) -> bool;

impl RankPart<'_> {
    /// Writes the part, blob by blob, and counts the elements in it.
    ///
    /// # Errors
    /// See [`Unwritten`].
    pub(crate) fn write(&self, take: Take<'_>) -> Result<u64, Unwritten> {
        let fragments = log_fragments(self.log, self.binding);
        // As long as this is held the optimizer waits: only who chose so reads from standing weights.
        let standing = self.standing()?;
        let guards: Vec<Lent<'_, f32>> =
            self.binding.memory.iter().map(|memory| memory.master.lend()).collect();
        let masters: Vec<Elements<'_, f32>> = guards.iter().map(Lent::elements).collect();
        let mut blobs = Blobs { blob: Vec::new(), most: self.blob_bytes, nnz: 0, take };
        for fragments in fragments.chunks(FRAGMENTS_AT_A_TIME) {
            let mut sparse = self.sparse(fragments)?.into_iter();
            for fragment in fragments {
                if let Some(words) = self.patch.kept.get(&fragment.index) {
                    blobs.add(&self.start(fragment)?, LogChanges::All(words))?;
                } else if let Some(changes) = sparse.next() {
                    self.add_sparse(fragment, &changes, &mut blobs)?;
                } else if standing.is_some()
                    && let ChangeSet::All(words) =
                        self.shared.device.gather(&masters, fragment, self.patch.cast)?
                {
                    blobs.add(&self.start(fragment)?, LogChanges::All(&words))?;
                } else {
                    return Err(Unwritten::Gone);
                }
            }
        }
        blobs.finish()
    }

    /// Leave to read the trainer's weights, if the patch says so.
    fn standing(&self) -> Result<Option<OwnedRwLockReadGuard<()>>, Unwritten> {
        match (&self.patch.values, self.task.kind) {
            (Values::Standing, _) => {
                let standing = self.shared.standing.read(self.patch.version);
                standing.map(Some).ok_or(Unwritten::Gone)
            }
            // What is listed is not everything.
            (Values::Changes { .. }, TaskKind::Anchor) => Err(Unwritten::Gone),
            (Values::Changes { .. } | Values::Kept, _) => Ok(None),
        }
    }

    /// The changes of those fragments that do not go whole, in order.
    fn sparse(&self, fragments: &[Fragment]) -> Result<Vec<Sparse>, Unwritten> {
        let Values::Changes(changes) = &self.patch.values else { return Ok(Vec::new()) };
        let is_listed = |fragment: &&Fragment| !self.patch.kept.contains_key(&fragment.index);
        let listed: Vec<&Fragment> = fragments.iter().filter(is_listed).collect();
        let device = &self.shared.device;
        if changes.iter().all(|list| list.classes() == Classes::Listed) {
            let sets = device.remap_classed(changes, &listed)?;
            return Ok(sets.into_iter().map(Sparse::Classed).collect());
        }
        Ok(device.remap_all(changes, &listed)?.into_iter().map(Sparse::Plain).collect())
    }

    fn add_sparse(
        &self,
        fragment: &Fragment,
        changes: &Sparse,
        blobs: &mut Blobs<'_, '_>,
    ) -> Result<(), Unwritten> {
        let (positions, values, knowledge) = match changes {
            Sparse::Classed(set) => (&set.positions, &set.values, StepKnowledge::Classes(&set.classes)),
            Sparse::Plain(ChangeSet::Sparse { positions, values }) => {
                (positions, values, StepKnowledge::Nothing)
            }
            Sparse::Plain(ChangeSet::All(_)) => return Err(Unwritten::Gone),
        };
        if positions.is_empty() {
            return Ok(());
        }
        blobs.add(&self.start(fragment)?, LogChanges::Sparse { positions, values, knowledge })
    }

    fn start(&self, fragment: &Fragment) -> Result<LogSectionStart, Unwritten> {
        let param = self.log.plan().param(fragment.param);
        Ok(LogSectionStart {
            param: param.id,
            dtype: param.dtype,
            area: area::stated(param, fragment.canonical)?,
            base: self.base(),
            version: self.patch.version,
            // The entry states the digests of whole parameters.
            base_digest: Digest::ZERO,
            new_digest: Digest::ZERO,
        })
    }

    const fn base(&self) -> Option<Version> {
        match self.task.kind {
            TaskKind::Anchor => None,
            TaskKind::Delta(base) => Some(base),
        }
    }
}

/// The changes of one fragment.
enum Sparse {
    /// Nothing is known of how far they moved.
    Plain(ChangeSet),
    Classed(ClassedSet),
}

/// Sections back to back, cut into blobs.
struct Blobs<'a, 'b> {
    blob: Vec<u8>,
    most: usize,
    nnz: u64,
    take: &'a mut (dyn FnMut(Bytes) -> bool + 'b),
}

impl Blobs<'_, '_> {
    fn add(&mut self, start: &LogSectionStart, changes: LogChanges<'_>) -> Result<(), Unwritten> {
        let section = LogSectionPlan::new(start, changes);
        if !self.blob.is_empty() && self.blob.len() + index_of(section.bytes()) > self.most {
            self.hand_over()?;
        }
        self.nnz += section.header().nnz;
        section.write(&mut self.blob);
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Unwritten> {
        let blob = Bytes::from(std::mem::take(&mut self.blob));
        if (self.take)(blob) { Ok(()) } else { Err(Unwritten::NotTaken) }
    }

    fn finish(mut self) -> Result<u64, Unwritten> {
        if !self.blob.is_empty() {
            self.hand_over()?;
        }
        Ok(self.nnz)
    }
}
