//! Reading blocks: every plane is checked before a position is believed, whatever the values turn out to be.

use super::bits::{bits_at, is_padded};
use super::block::{BLOCK_HEADER_BYTES, BlockArea, BlockFault, BlockHeader, ListName, escape_position_bytes};
use super::steps::{Coded, decode};
use crate::{CodecError, ValueMode};
use driftless_types::index_of;

/// A block whose lists were read and checked: positions rise strictly over all of them and lie in the block.
#[derive(Clone, Debug)]
pub(crate) struct RiceBlock<'a> {
    area: BlockArea,
    mode: ValueMode,
    a: Vec<u32>,
    b: Vec<u32>,
    escapes: Vec<u32>,
    values: Values<'a>,
}

/// Where the codes of values lie.
#[derive(Clone, Copy, Debug)]
struct Values<'a> {
    a: &'a [u8],
    b: &'a [u8],
    widths: [u32; 2],
    escapes: &'a [[u8; 2]],
}

impl<'a> RiceBlock<'a> {
    /// Reads the lists of a block. The memory that this takes is bounded by the block's elements, at most 2^20.
    pub(crate) fn read(bytes: &'a [u8], area: BlockArea, section: ValueMode) -> Result<Self, BlockFault> {
        let length = |expected: u64| BlockFault::Length { found: bytes.len() as u64, expected };
        let (header, mut rest) = bytes
            .split_first_chunk::<BLOCK_HEADER_BYTES>()
            .ok_or_else(|| length(BLOCK_HEADER_BYTES as u64))?;
        let header = BlockHeader::read(*header, area, section)?;
        let expected = header.bytes(area.lg_block).next_multiple_of(super::UNIT_BYTES);
        if bytes.len() as u64 != expected {
            return Err(length(expected));
        }
        // Together they are as long as the block, which is in memory.
        let parts = header.parts(area.lg_block).map(|bytes| {
            let (part, later) = rest.split_at(index_of(bytes));
            rest = later;
            part
        });
        if rest.iter().any(|&byte| byte != 0) {
            return Err(BlockFault::Padding { list: ListName::Escapes });
        }
        let [a_low, a_unary, a_values, b_low, b_unary, b_values, positions, escapes] = parts;
        let widths = header.value_bits();
        check_padding(ListName::A, a_values, header.a.count, widths[0])?;
        check_padding(ListName::B, b_values, header.b.count, widths[1])?;
        let block = Self {
            area,
            mode: header.mode,
            a: header.a.read(ListName::A, a_low, a_unary, area.elements)?,
            b: header.b.read(ListName::B, b_low, b_unary, area.elements)?,
            escapes: read_escapes(positions, area)?,
            values: Values { a: a_values, b: b_values, widths, escapes: escapes.as_chunks().0 },
        };
        block.check_order()?;
        Ok(block)
    }

    /// The mode of its values.
    pub(crate) const fn mode(&self) -> ValueMode {
        self.mode
    }

    /// How many changes.
    pub(crate) const fn len(&self) -> usize {
        self.a.len() + self.b.len() + self.escapes.len()
    }

    fn check_order(&self) -> Result<(), BlockFault> {
        let mut last = None;
        for (found, _) in self.merged() {
            if let Some(previous) = last.filter(|&previous| found <= previous) {
                return Err(BlockFault::NotRising { found, previous });
            }
            last = Some(found);
        }
        Ok(())
    }

    /// Positions in the box, rising.
    pub(crate) fn positions(&self) -> impl Iterator<Item = u32> {
        self.merged().map(|(offset, _)| self.area.first + offset)
    }

    /// Appends positions in the box and new bits of what the receiver holds, given its word at such a position.
    ///
    /// # Errors
    /// [`CodecError::WrongBase`] if no word of the base gives such a code. Some changes may have been appended.
    pub(crate) fn changes(
        &self,
        holds: &dyn Fn(u32) -> bool,
        word_at: &dyn Fn(u32) -> u16,
        positions: &mut Vec<u32>,
        values: &mut Vec<u16>,
    ) -> Result<(), CodecError> {
        for (offset, coded) in self.merged() {
            let position = self.area.first + offset;
            if !holds(position) {
                continue;
            }
            let new = decode(self.mode, coded, || word_at(position));
            let new = new.ok_or_else(|| CodecError::WrongBase { position, word: word_at(position) })?;
            positions.push(position);
            values.push(new);
        }
        Ok(())
    }

    /// The changes of all lists, the lowest offset first.
    fn merged(&self) -> impl Iterator<Item = (u32, Coded)> {
        let (mut a, mut b, mut e) = (0, 0, 0);
        std::iter::from_fn(move || {
            let heads = [self.a.get(a), self.b.get(b), self.escapes.get(e)]
                .map(|head| head.copied().unwrap_or(u32::MAX));
            let lowest = heads[0].min(heads[1]).min(heads[2]);
            if lowest == u32::MAX {
                return None;
            }
            if heads[0] == lowest {
                a += 1;
                return Some((lowest, self.values.code(ListName::A, a - 1)));
            }
            if heads[1] == lowest {
                b += 1;
                return Some((lowest, self.values.code(ListName::B, b - 1)));
            }
            e += 1;
            Some((lowest, self.values.code(ListName::Escapes, e - 1)))
        })
    }
}

impl Values<'_> {
    fn code(&self, list: ListName, index: usize) -> Coded {
        let plane = |plane, width: u32| {
            let bits = bits_at(plane, index as u64 * u64::from(width), width);
            u16::try_from(bits).expect("a code has at most 16 bits")
        };
        let code = match list {
            ListName::A => plane(self.a, self.widths[0]),
            ListName::B => plane(self.b, self.widths[1]),
            ListName::Escapes => u16::from_le_bytes(self.escapes[index]),
        };
        Coded { list, code }
    }
}

fn check_padding(list: ListName, plane: &[u8], count: u32, width: u32) -> Result<(), BlockFault> {
    if is_padded(plane, u64::from(count) * u64::from(width)) {
        return Ok(());
    }
    Err(BlockFault::Padding { list })
}

fn read_escapes(bytes: &[u8], area: BlockArea) -> Result<Vec<u32>, BlockFault> {
    let width = index_of(escape_position_bytes(area.lg_block));
    let position = |bytes: &[u8]| {
        let mut word = [0; 4];
        word[..width].copy_from_slice(bytes);
        let found = u32::from_le_bytes(word);
        if found >= area.elements {
            let (list, found) = (ListName::Escapes, found.into());
            return Err(BlockFault::OutOfRange { list, found, elements: area.elements });
        }
        Ok(found)
    };
    bytes.chunks_exact(width).map(position).collect()
}
