//! `rice`: positions as Rice-coded gaps in two lists, values that say how far an element moved.
//!
//! A block's change goes to list A if it moved by at most one step, to list B if it moved a little further, and to the
//! escapes otherwise. Where values say how far an element moved, its new bits follow from those of the base.

mod bits;
mod block;
mod decode;
mod encode;
mod gaps;
mod steps;

pub use block::{BlockFault, ListName};
pub(crate) use decode::RiceBlock;
pub(crate) use encode::{BlockChanges, BlockPlan};
pub use steps::BaseWords;

use crate::CodecError;
use crate::header::{SectionHeader, ValueMode};
use driftless_types::index_of;

/// Bytes of a directory offset, and the unit in which offsets count.
pub(crate) const UNIT_BYTES: u64 = 4;

/// Binary logarithm of a block's elements: 500 to 4,000 changes per block wherever that can be had.
pub(crate) const fn lg_block(n: u64, nnz: u64) -> u8 {
    // At most 2^31 changes: nothing overflows.
    if 100 * nnz >= n {
        return 16;
    }
    if 500 * nnz >= n { 18 } else { 20 }
}

/// How many blocks there are, empty ones included.
pub(crate) const fn block_count(n: u64, lg_block: u8) -> u64 {
    n.div_ceil(1 << lg_block)
}

/// Bytes of the directory.
pub(crate) const fn directory_bytes(n: u64, lg_block: u8) -> u64 {
    UNIT_BYTES * (block_count(n, lg_block) + 1)
}

/// Checks what a header says of a `rice` body, so that its size is bounded before anything is computed from it.
pub(crate) fn check_header(header: &SectionHeader) -> Result<(), CodecError> {
    if header.value_mode != ValueMode::Absolute && header.base.is_none() {
        return Err(CodecError::BaseMissing { mode: header.value_mode });
    }
    if !matches!(header.lg_block, 16 | 18 | 20) {
        return Err(CodecError::UnknownCode { what: "block size", found: header.lg_block });
    }
    let bytes = header.body_bytes;
    let directory = if header.nnz == 0 { 0 } else { directory_bytes(header.n, header.lg_block) };
    let most = if header.nnz == 0 { 0 } else { directory + UNIT_BYTES * u64::from(u32::MAX) };
    if bytes < directory || bytes > most || !bytes.is_multiple_of(UNIT_BYTES) {
        return Err(CodecError::BodySize { found: bytes, at_least: directory, at_most: most });
    }
    Ok(())
}

/// The blocks of a `rice` body, findable by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RiceBlocks<'a> {
    directory: &'a [[u8; 4]],
    blocks: &'a [u8],
    n: u64,
    lg_block: u8,
    mode: ValueMode,
}

impl<'a> RiceBlocks<'a> {
    /// Checks the directory of a body whose header was checked; what lies in the blocks is not looked at.
    ///
    /// # Errors
    /// Offsets that fall, or do not begin at 0 and end where the body does.
    pub(crate) fn new(body: &'a [u8], header: &SectionHeader) -> Result<Self, CodecError> {
        let SectionHeader { n, lg_block, value_mode: mode, .. } = *header;
        if header.nnz == 0 {
            return Ok(Self { directory: &[], blocks: &[], n, lg_block, mode });
        }
        let (directory, blocks) = body.split_at(index_of(directory_bytes(n, lg_block)));
        let directory = directory.as_chunks().0;
        let last = u32::try_from(blocks.len() as u64 / UNIT_BYTES).expect("a checked header bounds the body");
        let (mut at_least, mut at_most) = (0, 0);
        for (index, &offset) in (0..).zip(directory) {
            let found = u32::from_le_bytes(offset);
            if index + 1 == directory.len() as u64 {
                at_least = last;
            }
            if found < at_least || found > at_most {
                return Err(CodecError::Directory { index, found, at_least, at_most });
            }
            (at_least, at_most) = (found, last);
        }
        Ok(Self { directory, blocks, n, lg_block, mode })
    }

    /// How many blocks there are, empty ones included; none at all if nothing changed.
    pub(crate) const fn len(&self) -> usize {
        self.directory.len().saturating_sub(1)
    }

    /// One block: its lists are read and checked, `None` if it is empty.
    pub(crate) fn block(&self, index: usize) -> Result<Option<RiceBlock<'a>>, CodecError> {
        let [start, end] = [self.directory[index], self.directory[index + 1]]
            .map(|offset| index_of(u64::from(u32::from_le_bytes(offset)) * UNIT_BYTES));
        if start == end {
            return Ok(None);
        }
        let number = index as u64;
        let first = number << self.lg_block;
        let elements = (self.n - first).min(1 << self.lg_block);
        let area = block::BlockArea {
            first: u32::try_from(first).expect("positions lie below 2^31"),
            elements: u32::try_from(elements).expect("at most 2^20 elements"),
            lg_block: self.lg_block,
        };
        let read = RiceBlock::read(&self.blocks[start..end], area, self.mode);
        read.map(Some).map_err(|fault| CodecError::Block { block: number, fault })
    }
}
