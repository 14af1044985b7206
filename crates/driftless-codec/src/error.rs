//! What can be wrong with bytes that somebody else wrote.

use crate::{BlockFault, CodecId, MAX_ELEMENTS, ValueMode};
use driftless_types::{Digest, Dtype, Retry, Version};
use std::fmt;
use thiserror::Error;

/// Why bytes were refused. Nothing was taken from the input and nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The input ends before the section or the record vector does.
    #[error("{what} is cut short: {found} bytes found, {needed} expected")]
    Cut {
        /// What was being read.
        what: &'static str,
        /// Bytes that were left.
        found: u64,
        /// Bytes that it takes.
        needed: u64,
    },
    /// Bytes are left over after the last thing that was expected.
    #[error("{what} has {found} bytes, expected {expected}")]
    Length {
        /// What was being read.
        what: &'static str,
        /// Its length.
        found: u64,
        /// The length that the plan gives it.
        expected: u64,
    },
    /// The first four bytes are not those of a section.
    #[error("the magic bytes are {found:02x?}, expected {expected:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
        /// Those of a section.
        expected: [u8; 4],
    },
    /// A code that this version of the format does not define.
    #[error("the {what} code is {found}, which this version of the format does not define")]
    UnknownCode {
        /// Which code.
        what: &'static str,
        /// Its value.
        found: u8,
    },
    /// A byte that must be zero is not.
    #[error("the {what} is not zero")]
    NotZero {
        /// Which bytes.
        what: &'static str,
    },
    /// A field that does not follow from the others, or differs from what the plan says.
    #[error("the {what} is {found}, expected {expected}")]
    Mismatch {
        /// Which field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The value that follows from the plan or from the other fields.
        expected: u64,
    },
    /// Another dtype than the plan's.
    #[error("the dtype is {found}, expected {expected}")]
    DtypeMismatch {
        /// The dtype in the header.
        found: Dtype,
        /// The dtype of the plan.
        expected: Dtype,
    },
    /// Another digest than the one that was announced.
    #[error("the new digest is {found}, expected {expected}")]
    DigestMismatch {
        /// The digest in the header.
        found: Digest,
        /// The digest of the record.
        expected: Digest,
    },
    /// A codec that cannot carry this dtype.
    #[error("the codec {codec} does not carry {dtype}")]
    DtypeRefused {
        /// The codec.
        codec: CodecId,
        /// The dtype in the header.
        dtype: Dtype,
    },
    /// A codec that cannot carry values of this mode.
    #[error("the codec {codec} carries absolute values, found {mode}")]
    ValueModeRefused {
        /// The codec.
        codec: CodecId,
        /// The mode in the header.
        mode: ValueMode,
    },
    /// A codec that has no place where it was found.
    #[error("the codec {codec} has no place in {place}")]
    CodecRefused {
        /// The codec.
        codec: CodecId,
        /// Where it was found.
        place: &'static str,
    },
    /// Values that lean on a base, and no base is named.
    #[error("values of mode {mode} need a base version, found none")]
    BaseMissing {
        /// The mode in the header.
        mode: ValueMode,
    },
    /// Another base version than that of the entry.
    #[error("the base version is {found}, expected {expected}", found = Base(*found), expected = Base(*expected))]
    BaseMismatch {
        /// The base in the header.
        found: Option<Version>,
        /// The base of the entry; none for an anchor.
        expected: Option<Version>,
    },
    /// A size of directory and blocks that no block size gives.
    #[error("the size of directory and blocks is {found}, expected {at_least} to {at_most} in units of 4")]
    BodySize {
        /// The size in the header.
        found: u64,
        /// The directory's, if there is one.
        at_least: u64,
        /// The most that a directory can speak of.
        at_most: u64,
    },
    /// More of something than the format allows.
    #[error("the number of {what} is {found}, expected at most {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        found: u64,
        /// How many are allowed.
        most: u64,
    },
    /// A box with an axis that is empty, or whose end or volume overflows.
    #[error("the box's axis {axis} begins at {origin} and has {extent} elements, which no box can have")]
    BoxRefused {
        /// The axis.
        axis: usize,
        /// The first index along it.
        origin: u64,
        /// How many indices it spans.
        extent: u64,
    },
    /// A box that reaches beyond its parameter.
    #[error("the box's axis {axis} ends at {end}, expected at most {shape}")]
    BoxOutside {
        /// The axis.
        axis: usize,
        /// One past the last index along it.
        end: u64,
        /// The parameter's extent.
        shape: u64,
    },
    /// A block of a `rice` section that is none.
    #[error("block {block} is damaged: {fault}")]
    Block {
        /// The block.
        block: u64,
        /// What is wrong with it.
        fault: BlockFault,
    },
    /// The receiver's word cannot be that of the section's base.
    #[error("the word {word:04x} at position {position} is not that of the base: re-anchor")]
    WrongBase {
        /// Where, row-major in the section's box.
        position: u32,
        /// The receiver's word.
        word: u16,
    },
    /// Steps may not be taken twice, and some may have been taken.
    #[error("values of mode sign need words that are exactly the base's, found a mix: re-anchor")]
    DirtyBase,
    /// A fragment longer than a section may be.
    #[error("the fragment has {found} elements, expected at most {MAX_ELEMENTS}")]
    TooManyElements {
        /// The length in the header.
        found: u64,
    },
    /// More changes than elements.
    #[error("{nnz} changes are announced for {n} elements")]
    TooManyChanges {
        /// The changes in the header.
        nnz: u64,
        /// The elements in the header.
        n: u64,
    },
    /// The checksum is not that of the bytes before it.
    #[error("the checksum is {found:016x}, expected {expected:016x}")]
    Checksum {
        /// The checksum in the section.
        found: u64,
        /// The checksum of its bytes.
        expected: u64,
    },
    /// A directory offset that falls, or leaves more changes to a block than it has elements.
    #[error("directory offset {index} is {found}, expected {at_least} to {at_most}")]
    Directory {
        /// Which offset.
        index: u64,
        /// Its value, in units of four bytes.
        found: u32,
        /// The least value it may have.
        at_least: u32,
        /// The greatest value it may have.
        at_most: u32,
    },
    /// A position that does not come after the one before it.
    #[error("position {found} of block {block} does not come after {previous}")]
    NotRising {
        /// The block.
        block: u64,
        /// The offending offset within the block.
        found: u16,
        /// The offset before it.
        previous: u16,
    },
    /// A position past the end of the fragment.
    #[error("position {found} of block {block} lies outside of its {elements} elements")]
    OutOfRange {
        /// The block.
        block: u64,
        /// The offending offset within the block.
        found: u16,
        /// The elements of the block.
        elements: u64,
    },
}

impl CodecError {
    /// Bytes that were refused once are refused again: they have to be sent anew. A base that does not fit never will.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::WrongBase { .. } | Self::DirtyBase => Retry::NeedsAnchor,
            _ => Retry::NewAttempt,
        }
    }
}

/// A base as errors print it.
struct Base(Option<Version>);

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => fmt::Display::fmt(&version, f),
            None => f.write_str("none"),
        }
    }
}
