//! A log's sections into the live weights of one replica.

use super::area;
use super::cells::{Cell, Cells};
use crate::Shared;
use crate::binding::{Live, LiveTensor, ReceiverBinding};
use bytes::Bytes;
use driftless_codec::{BaseWords, CodecError, LogExpected, LogSection, LogView, SparseBlocks};
use driftless_device::DeviceError;
use driftless_layout::{Box2, Fragment, ParamMeta};
use driftless_types::{ChangeSet, Digest, ParamId, Version, index_of};
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::OwnedMutexGuard;

/// Why a blob is not written into the weights.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotApplied {
    /// Its bytes are not what the entry promises.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// It speaks of a parameter that the stream does not have.
    #[error("a section is of parameter {found}, expected one below {params}")]
    NoParameter {
        /// The section's.
        found: u32,
        /// How many there are.
        params: usize,
    },
    /// The memory does not fit the plan.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its actor has ended.
    #[error("it was canceled")]
    Canceled,
}

/// Reads the sections of a blob, every byte checked: nothing is written before (LG-13).
///
/// # Errors
/// [`NotApplied::Codec`] or [`NotApplied::NoParameter`].
pub fn sections(
    params: &[ParamMeta],
    mut blob: Bytes,
    base: Option<Version>,
    version: Version,
) -> Result<Vec<LogSection>, NotApplied> {
    let mut sections = Vec::new();
    while !blob.is_empty() {
        let (header, _) = LogSection::front(&blob)?;
        let found = header.fragment;
        let param = params.get(index_of(found.into()));
        let param = param.ok_or(NotApplied::NoParameter { found, params: params.len() })?;
        let shape = param.shape.extents();
        let expected = LogExpected { param: param.id, shape, dtype: param.dtype, base, version };
        sections.push(LogSection::parse(&mut blob, &expected)?);
    }
    Ok(sections)
}

/// What becomes of old words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldWords {
    /// They are kept until the version is decided.
    Logged,
    /// They are given up: the replica is out of service until a digest proves it.
    Dropped,
}

/// The live weights of a replica, held by their tokens, and their digests.
pub(crate) struct Writer<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) cells: &'a Cells,
    pub(crate) receivers: &'a [Arc<ReceiverBinding>],
    pub(crate) live: &'a mut [OwnedMutexGuard<Live>],
    /// One per cell.
    pub(crate) digests: &'a mut [Digest],
    pub(crate) base: BaseWords,
    pub(crate) old_words: OldWords,
}

impl Writer<'_> {
    /// Writes one section wherever the replica holds a part of its box.
    ///
    /// # Errors
    /// [`CodecError`] if the words are not those of its base, [`DeviceError`]; some of it may be written then.
    pub(crate) fn section(&mut self, section: &LogSection) -> Result<(), NotApplied> {
        let param = ParamId(section.header().fragment);
        let Some(whole) = area::planned(section.area()) else { return Ok(()) };
        let cells: Vec<(usize, Cell)> = self.cells.of_param(param).map(|(i, cell)| (i, *cell)).collect();
        for (index, cell) in cells {
            let Some(part) = whole.intersection(&cell.place.canonical) else { continue };
            let fragment = self.fragment(index, &cell, part);
            let memory = &self.receivers[cell.receiver].memory[cell.tensor];
            let changes = match section.view() {
                LogView::All(words) => ChangeSet::All(rows(words, fragment.dtype.words(), whole, part)),
                LogView::Sparse(blocks) => {
                    changes(&blocks, self.base, whole, part, memory, &memory.fragment(&fragment))?
                }
            };
            self.write(index, &cell, &fragment, &changes)?;
        }
        Ok(())
    }

    fn fragment(&self, index: usize, cell: &Cell, part: Box2) -> Fragment {
        let place = cell.place;
        let offset = (part.row - place.canonical.row) * place.dst_row_stride + part.col - place.canonical.col;
        Fragment {
            index: 0,
            param: place.param,
            dtype: self.shared.plan.param(place.param).dtype,
            canonical: part,
            dst_tensor: u32::try_from(cell.tensor).unwrap_or(u32::MAX),
            dst_offset: place.dst_offset + offset,
            dst_row_stride: place.dst_row_stride,
            sources: Vec::new(),
            cells: Vec::new(),
            first_in_replica: self.cells.is_first(index),
        }
    }

    fn write(
        &mut self,
        index: usize,
        cell: &Cell,
        fragment: &Fragment,
        changes: &ChangeSet,
    ) -> Result<(), NotApplied> {
        let Shared { plan, keys, device, .. } = self.shared;
        let memory = &self.receivers[cell.receiver].memory[cell.tensor];
        let live = &mut self.live[cell.receiver];
        let cols = plan.param(fragment.param).cols();
        let placed = memory.fragment(fragment);
        let undo = &mut live.undo[cell.tensor];
        let mut words = memory.words.lend_mut();
        let done = device.scatter(words.elements(), &placed, cols, changes, keys, undo)?;
        if self.old_words == OldWords::Dropped {
            // Not cleared but given back: a section's words for every tensor may be a copy of the model.
            drop(std::mem::take(undo));
        }
        drop(words);
        live.digests[cell.tensor] += done.delta;
        self.digests[index] += done.delta;
        if fragment.first_in_replica {
            live.changed += done.changed;
        }
        Ok(())
    }
}

/// The words of `part` out of those of `whole`, in order.
fn rows(words: &[[u8; 2]], per_element: usize, whole: Box2, part: Box2) -> Vec<u16> {
    let width = index_of(part.cols) * per_element;
    let row = |row: u64| {
        let first = (row - whole.row) * whole.cols + part.col - whole.col;
        let first = index_of(first) * per_element;
        words[first..first + width].iter().map(|&word| u16::from_le_bytes(word))
    };
    (part.row..part.row_end()).flat_map(row).collect()
}

/// The changes of `part` out of those of `whole`, with positions in `part`; what depends on the base is read from the
/// words that are there.
fn changes(
    blocks: &SparseBlocks<'_>,
    base: BaseWords,
    whole: Box2,
    part: Box2,
    memory: &LiveTensor,
    placed: &Fragment,
) -> Result<ChangeSet, NotApplied> {
    // Absolute values need no words; a device would have to copy all of the tensor's.
    let words = blocks.needs_base().then(|| memory.words.view()).transpose()?;
    let within = |position: u32| {
        let (row, col) = (u64::from(position) / whole.cols, u64::from(position) % whole.cols);
        let (row, col) = ((whole.row + row).checked_sub(part.row)?, (whole.col + col).checked_sub(part.col)?);
        (row < part.rows && col < part.cols).then_some((row, col))
    };
    let holds = |position: u32| within(position).is_some();
    let word_at = |position: u32| {
        let (row, col) = within(position).expect("only elements that are held are asked for");
        let words = words.as_deref().expect("only what depends on the base asks for it");
        words[index_of(placed.dst_offset + row * placed.dst_row_stride + col)]
    };
    if whole == part {
        let (positions, values) = blocks.decode_all(base, &word_at)?;
        return Ok(ChangeSet::Sparse { positions, values });
    }
    let (mut positions, mut values) = (Vec::new(), Vec::new());
    for block in 0..blocks.len() {
        blocks.decode_part(block, base, &holds, &word_at, &mut positions, &mut values)?;
    }
    for position in &mut positions {
        let (row, col) = within(*position).expect("elements that are not held here were left out");
        *position = u32::try_from(row * part.cols + col).expect("a part is no longer than its section");
    }
    Ok(ChangeSet::Sparse { positions, values })
}
