//! `block16`: blocks of 2^16 elements; in each, 16-bit offsets, then absolute 16-bit values.
//!
//! The directory makes every block findable on its own, so that many cores can work on one section.

use super::{WordBytes, words, write_words};
use crate::CodecError;
use driftless_types::index_of;

/// Binary logarithm of the block's elements.
pub(crate) const LG_BLOCK: u8 = 16;
const BLOCK_ELEMENTS: u64 = 1 << LG_BLOCK;
/// Bytes of a directory offset, and of one change: an offset in units of four bytes counts changes.
pub const UNIT_BYTES: u64 = 4;

/// The blocks of a `block16` section of `n` elements, empty ones included.
#[must_use]
pub const fn block_count(n: u64) -> u64 {
    n.div_ceil(BLOCK_ELEMENTS)
}

/// Bytes of the directory and the blocks of a `block16` section; none of either if nothing changed.
#[must_use]
pub const fn body_bytes(n: u64, nnz: u64) -> u64 {
    if nnz == 0 {
        return 0;
    }
    UNIT_BYTES * (block_count(n) + 1 + nnz)
}

/// Appends directory and blocks of changes that rise strictly and lie below `n`.
pub(crate) fn write(n: u64, positions: &[u32], values: &[u16], out: &mut Vec<u8>) {
    if positions.is_empty() {
        return;
    }
    write_directory(n, positions, out);
    let mut rest = values;
    for block in positions.chunk_by(|a, b| a >> LG_BLOCK == b >> LG_BLOCK) {
        let (values, later) = rest.split_at(block.len());
        rest = later;
        write_words(block.iter().map(|&position| offset_in_block(position)), out);
        write_words(values.iter().copied(), out);
    }
}

fn write_directory(n: u64, positions: &[u32], out: &mut Vec<u8>) {
    let mut done = 0_u32;
    let mut rest = positions;
    out.extend(done.to_le_bytes());
    for block in 0..block_count(n) {
        let block_end = (block + 1) * BLOCK_ELEMENTS;
        let count = rest.partition_point(|&position| u64::from(position) < block_end);
        rest = &rest[count..];
        done += u32::try_from(count).expect("a block has at most 2^16 changes");
        out.extend(done.to_le_bytes());
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the offset is the low half")]
const fn offset_in_block(position: u32) -> u16 {
    position as u16
}

/// Checks the directory, and that positions rise strictly and lie below `n`.
pub(crate) fn check(body: &[u8], n: u64, nnz: u64) -> Result<(), CodecError> {
    if nnz == 0 {
        return Ok(());
    }
    check_directory(body, n, nnz)?;
    let blocks = Blocks::new(body, n, nnz);
    for index in 0..blocks.len() {
        check_block(index as u64, blocks.block(index).offsets, block_elements(n, index as u64))?;
    }
    Ok(())
}

/// Offsets start at 0, give no block more changes than it has elements, and end at `nnz`.
fn check_directory(body: &[u8], n: u64, nnz: u64) -> Result<(), CodecError> {
    let (directory, _) = split(body, n);
    let nnz = u32::try_from(nnz).expect("at most MAX_ELEMENTS changes");
    let (mut at_least, mut at_most) = (0, 0);
    for (index, &offset) in (0..).zip(directory) {
        let found = u32::from_le_bytes(offset);
        if index == block_count(n) {
            at_least = nnz;
        }
        if found < at_least || found > at_most {
            return Err(CodecError::Directory { index, found, at_least, at_most });
        }
        let room = u32::try_from(block_elements(n, index)).expect("at most 2^16 elements");
        (at_least, at_most) = (found, nnz.min(found + room));
    }
    Ok(())
}

/// Elements of a block: all but the last are full, and none come after it.
fn block_elements(n: u64, block: u64) -> u64 {
    n.saturating_sub(block * BLOCK_ELEMENTS).min(BLOCK_ELEMENTS)
}

fn check_block(block: u64, offsets: &WordBytes, elements: u64) -> Result<(), CodecError> {
    for pair in offsets.windows(2) {
        let [previous, found] = [pair[0], pair[1]].map(u16::from_le_bytes);
        if found <= previous {
            return Err(CodecError::NotRising { block, found, previous });
        }
    }
    // They rise, so the last one is the greatest.
    match offsets.last().copied().map(u16::from_le_bytes) {
        Some(found) if u64::from(found) >= elements => Err(CodecError::OutOfRange { block, found, elements }),
        _ => Ok(()),
    }
}

/// A body cut into its directory and the changes.
fn split(body: &[u8], n: u64) -> (&[[u8; 4]], &[u8]) {
    let (directory, changes) = body.split_at(index_of(UNIT_BYTES * (block_count(n) + 1)));
    (directory.as_chunks().0, changes)
}

/// The blocks of a `block16` section, findable by number.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// Empty if nothing changed; else one offset more than blocks.
    directory: &'a [[u8; 4]],
    changes: &'a [u8],
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(body: &'a [u8], n: u64, nnz: u64) -> Self {
        if nnz == 0 {
            return Self { directory: &[], changes: &[] };
        }
        let (directory, changes) = split(body, n);
        Self { directory, changes }
    }

    /// How many blocks there are, empty ones included; none at all if nothing changed.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.directory.len().saturating_sub(1)
    }

    /// Whether nothing changed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The changes of one block.
    ///
    /// # Panics
    /// If there is no block of this number.
    #[must_use]
    pub fn block(&self, index: usize) -> Block<'a> {
        let [start, end] = [self.directory[index], self.directory[index + 1]]
            .map(|offset| index_of(u64::from(u32::from_le_bytes(offset)) * UNIT_BYTES));
        let (offsets, values) = self.changes[start..end].split_at((end - start) / 2);
        let first = u32::try_from(index).expect("at most 2^15 blocks") << LG_BLOCK;
        Block { first, offsets: words(offsets), values: words(values) }
    }

    /// The blocks in order, empty ones included.
    pub fn iter(self) -> impl Iterator<Item = Block<'a>> {
        (0..self.len()).map(move |index| self.block(index))
    }
}

/// The changes of one block of 2^16 elements, as they lie in the section.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    first: u32,
    offsets: &'a WordBytes,
    values: &'a WordBytes,
}

impl<'a> Block<'a> {
    /// Position of the block's first element in the fragment.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// How many elements of the block changed.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether no element of the block changed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Positions in the fragment, strictly rising.
    pub fn positions(self) -> impl ExactSizeIterator<Item = u32> + 'a {
        self.offsets.iter().map(move |&offset| self.first + u32::from(u16::from_le_bytes(offset)))
    }

    /// The new bits, one value for each position.
    pub fn values(self) -> impl ExactSizeIterator<Item = u16> + 'a {
        self.values.iter().map(|&value| u16::from_le_bytes(value))
    }
}
