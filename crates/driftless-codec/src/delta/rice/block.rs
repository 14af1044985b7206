//! The 16 bytes in front of a block, and the lengths of its planes that follow from them.

use super::bits::plane_bytes;
use super::gaps::GapCode;
use crate::ValueMode;
use std::fmt;
use thiserror::Error;

/// The most low bits that a gap may have.
pub(crate) const MAX_K: u8 = 20;
/// Bytes of a block's header.
pub(crate) const BLOCK_HEADER_BYTES: usize = 16;

/// Where a block lies in its box, and how many elements it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockArea {
    /// Position of the block's first element.
    pub(crate) first: u32,
    /// Its elements; all but the last block are full.
    pub(crate) elements: u32,
    /// Binary logarithm of a full block's elements.
    pub(crate) lg_block: u8,
}

/// A list of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListName {
    /// Steps of at most one, or every change where values are absolute.
    A,
    /// Larger steps.
    B,
    /// Everything else, by absolute value.
    Escapes,
}

impl fmt::Display for ListName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "list A",
            Self::B => "list B",
            Self::Escapes => "the escapes",
        })
    }
}

/// What can be wrong with a block of a `rice` section.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlockFault {
    /// Another length than its counts give.
    #[error("it has {found} bytes, expected {expected}")]
    Length {
        /// The block's bytes.
        found: u64,
        /// What its header gives, or the header's own length.
        expected: u64,
    },
    /// A mode that this version does not define, or that the section does not have.
    #[error("its mode is {found}, expected absolute or the section's {expected}")]
    Mode {
        /// The code in the block.
        found: u8,
        /// The mode in the section's header.
        expected: ValueMode,
    },
    /// A gap has more low bits than this version allows.
    #[error("{list} has {found} low bits, expected at most {MAX_K}")]
    LowBits {
        /// The list.
        list: ListName,
        /// Its low bits.
        found: u8,
    },
    /// More changes than elements, or none at all.
    #[error("it has {found} changes, expected 1 to {elements}")]
    Count {
        /// Changes in its lists.
        found: u64,
        /// The block's elements.
        elements: u32,
    },
    /// Absolute values have one list alone.
    #[error("{list} is not empty where values are absolute")]
    NotEmpty {
        /// The list.
        list: ListName,
    },
    /// Bits after the last value are not zero, or a byte of zeros follows it.
    #[error("the padding of {list} is not zero")]
    Padding {
        /// The list.
        list: ListName,
    },
    /// Another number of quotients than of positions.
    #[error("{list} has {found} quotients, expected {expected}")]
    Quotients {
        /// The list.
        list: ListName,
        /// Ones in its unary plane.
        found: u32,
        /// Its count.
        expected: u32,
    },
    /// A position past the end of the block.
    #[error("position {found} of {list} lies outside of its {elements} elements")]
    OutOfRange {
        /// The list.
        list: ListName,
        /// The offset within the block.
        found: u64,
        /// The block's elements.
        elements: u32,
    },
    /// A position that does not come after the one before it, over all lists.
    #[error("position {found} does not come after {previous}")]
    NotRising {
        /// The offending offset within the block.
        found: u32,
        /// The offset before it.
        previous: u32,
    },
}

/// What a block says of its lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) mode: ValueMode,
    pub(crate) a: GapCode,
    pub(crate) b: GapCode,
    pub(crate) escapes: u16,
}

impl BlockHeader {
    /// How many changes.
    pub(crate) fn count(&self) -> u64 {
        u64::from(self.a.count) + u64::from(self.b.count) + u64::from(self.escapes)
    }

    /// Bits of a value in each of the two lists.
    pub(crate) const fn value_bits(&self) -> [u32; 2] {
        value_bits(self.mode)
    }

    /// Bytes of the six planes in order, then of the positions and of the values of the escapes.
    pub(crate) fn parts(&self, lg_block: u8) -> [u64; 8] {
        let [value_a, value_b] = self.value_bits();
        let values = |list: GapCode, bits: u32| plane_bytes(u64::from(list.count) * u64::from(bits));
        let escapes = u64::from(self.escapes);
        [
            self.a.low_bytes(),
            self.a.unary_bytes.into(),
            values(self.a, value_a),
            self.b.low_bytes(),
            self.b.unary_bytes.into(),
            values(self.b, value_b),
            escapes * escape_position_bytes(lg_block),
            escapes * 2,
        ]
    }

    /// Bytes of the block before it is padded.
    pub(crate) fn bytes(&self, lg_block: u8) -> u64 {
        BLOCK_HEADER_BYTES as u64 + self.parts(lg_block).iter().sum::<u64>()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let [a0, a1, a2, _] = self.a.count.to_le_bytes();
        let [b0, b1, ..] = self.b.count.to_le_bytes();
        let [e0, e1] = self.escapes.to_le_bytes();
        let [ua0, ua1, ua2, _] = self.a.unary_bytes.to_le_bytes();
        let [ub0, ub1, ub2, _] = self.b.unary_bytes.to_le_bytes();
        out.extend([a0, a1, a2, self.a.k, b0, b1, self.b.k, self.mode.code()]);
        out.extend([e0, e1, ua0, ua1, ua2, ub0, ub1, ub2]);
    }

    /// Reads and checks the counts; the planes are not looked at.
    pub(crate) fn read(
        bytes: [u8; BLOCK_HEADER_BYTES],
        area: BlockArea,
        section: ValueMode,
    ) -> Result<Self, BlockFault> {
        let [a0, a1, a2, ka, b0, b1, kb, mode, e0, e1, ua0, ua1, ua2, ub0, ub1, ub2] = bytes;
        let known = [ValueMode::Absolute, section].into_iter().find(|known| known.code() == mode);
        let header = Self {
            mode: known.ok_or(BlockFault::Mode { found: mode, expected: section })?,
            a: GapCode {
                count: u32::from_le_bytes([a0, a1, a2, 0]),
                k: ka,
                unary_bytes: u32::from_le_bytes([ua0, ua1, ua2, 0]),
            },
            b: GapCode {
                count: u16::from_le_bytes([b0, b1]).into(),
                k: kb,
                unary_bytes: u32::from_le_bytes([ub0, ub1, ub2, 0]),
            },
            escapes: u16::from_le_bytes([e0, e1]),
        };
        header.check(area).map(|()| header)
    }

    fn check(&self, area: BlockArea) -> Result<(), BlockFault> {
        for (list, code) in [(ListName::A, self.a), (ListName::B, self.b)] {
            if code.k > MAX_K {
                return Err(BlockFault::LowBits { list, found: code.k });
            }
        }
        if self.mode == ValueMode::Absolute {
            let empty = [(ListName::B, self.b.count), (ListName::Escapes, self.escapes.into())];
            if let Some((list, _)) = empty.into_iter().find(|&(_, count)| count > 0) {
                return Err(BlockFault::NotEmpty { list });
            }
        }
        let found = self.count();
        if found == 0 || found > u64::from(area.elements) {
            return Err(BlockFault::Count { found, elements: area.elements });
        }
        Ok(())
    }
}

/// Bits of a value in list A and in list B.
pub(crate) const fn value_bits(mode: ValueMode) -> [u32; 2] {
    match mode {
        ValueMode::Absolute => [16, 0],
        ValueMode::Congruence => [2, 6],
        ValueMode::Sign => [1, 5],
    }
}

/// Bytes of the position of an escape.
pub(crate) const fn escape_position_bytes(lg_block: u8) -> u64 {
    if lg_block == 16 { 2 } else { 4 }
}
