//! A log's sections into the live weights of one replica.

use super::area;
use super::cells::{Cell, Cells};
use crate::Shared;
use crate::binding::{Live, LiveTensor, ReceiverBinding};
use bytes::Bytes;
use driftless_codec::{BaseWords, CodecError, LogExpected, LogSection, LogView, SparseBlocks};
use driftless_device::{DeviceError, Lent, ReadGuard};
use driftless_layout::{Box2, Fragment, ParamMeta};
use driftless_types::{ChangeSet, Digest, ParamId, Version, index_of};
use std::borrow::Cow;
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
                    let part = PartOf { whole, part };
                    let old = self.old_words(&blocks, part, memory, memory.fragment(&fragment))?;
                    changes(&blocks, self.base, part, &old)?
                }
            };
            self.write(index, &cell, &fragment, &changes)?;
        }
        Ok(())
    }

    /// The words that values of a section are relative to. A device hands over those of the section's elements alone.
    fn old_words<'a>(
        &self,
        blocks: &SparseBlocks<'_>,
        part: PartOf,
        memory: &'a LiveTensor,
        placed: Cow<'a, Fragment>,
    ) -> Result<OldAt<'a>, NotApplied> {
        if !blocks.needs_base() {
            return Ok(OldAt::Unneeded);
        }
        let lent = match memory.words.lend() {
            Lent::Host(words) => return Ok(OldAt::Here { words, placed }),
            lent @ Lent::Device(..) => lent,
        };
        let positions = blocks.positions()?.into_iter();
        let positions: Vec<u32> = positions.filter_map(|position| part.position(position)).collect();
        let cols = self.shared.plan.param(placed.param).cols();
        let words = self.shared.device.read_at(lent.elements(), &placed, cols, &positions)?;
        Ok(OldAt::Copied { positions, words })
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

/// A part of a section's box.
#[derive(Clone, Copy)]
struct PartOf {
    whole: Box2,
    part: Box2,
}

impl PartOf {
    /// Row and column in the part of a position in the whole; `None` if it lies outside.
    fn place(self, position: u32) -> Option<(u64, u64)> {
        let Self { whole, part } = self;
        let (row, col) = (u64::from(position) / whole.cols, u64::from(position) % whole.cols);
        let (row, col) = ((whole.row + row).checked_sub(part.row)?, (whole.col + col).checked_sub(part.col)?);
        (row < part.rows && col < part.cols).then_some((row, col))
    }

    /// The position in the part of a position in the whole.
    fn position(self, position: u32) -> Option<u32> {
        let (row, col) = self.place(position)?;
        Some(u32::try_from(row * self.part.cols + col).expect("a part is no longer than its section"))
    }
}

/// The words of a part that are there.
enum OldAt<'a> {
    /// Absolute values are right for any.
    Unneeded,
    Here {
        words: ReadGuard<'a, u16>,
        placed: Cow<'a, Fragment>,
    },
    /// Those that a section needs, by rising position in the part.
    Copied {
        positions: Vec<u32>,
        words: Vec<u16>,
    },
}

impl OldAt<'_> {
    /// The word at a position of the whole that lies in the part.
    fn word(&self, part: PartOf, position: u32) -> u16 {
        const HELD: &str = "only elements that are held are asked for";
        match self {
            Self::Unneeded => unreachable!("only what depends on the base asks for it"),
            Self::Here { words, placed } => {
                let (row, col) = part.place(position).expect(HELD);
                words[index_of(placed.dst_offset + row * placed.dst_row_stride + col)]
            }
            Self::Copied { positions, words } => {
                let at = positions.binary_search(&part.position(position).expect(HELD));
                words[at.expect("every element of the section was read")]
            }
        }
    }
}

/// The changes of a part out of those of the whole, with positions in the part.
fn changes(
    blocks: &SparseBlocks<'_>,
    base: BaseWords,
    part: PartOf,
    old: &OldAt<'_>,
) -> Result<ChangeSet, CodecError> {
    let holds = |position: u32| part.place(position).is_some();
    let word_at = |position: u32| old.word(part, position);
    if part.whole == part.part {
        let (positions, values) = blocks.decode_all(base, &word_at)?;
        return Ok(ChangeSet::Sparse { positions, values });
    }
    let (mut positions, mut values) = (Vec::new(), Vec::new());
    for block in 0..blocks.len() {
        blocks.decode_part(block, base, &holds, &word_at, &mut positions, &mut values)?;
    }
    for position in &mut positions {
        *position = part.position(*position).expect("elements that are not held here were left out");
    }
    Ok(ChangeSet::Sparse { positions, values })
}
