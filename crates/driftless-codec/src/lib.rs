//! Encodings of a delta: sections, their codecs, and the records that announce them.
//!
//! An encoder writes a section per fragment, and a decoder turns it back into the change set only after every
//! byte of it was checked:
//!
//! ```
//! use bytes::Bytes;
//! use driftless_codec::{Expected, Section, SectionStart, encode_section};
//! use driftless_types::{ChangeSet, Digest, Dtype, Version};
//!
//! let changes = ChangeSet::Sparse { positions: vec![3, 70_000], values: vec![0x3f80, 0xbf80] };
//! let start = SectionStart {
//!     fragment: 7,
//!     dtype: Dtype::Bf16,
//!     n: 100_000,
//!     base: None,
//!     version: Version(4),
//!     base_digest: Digest::ZERO,
//!     new_digest: Digest::ZERO,
//! };
//! let mut out = Vec::new();
//! encode_section(&start, &changes, &mut out);
//!
//! let mut bytes = Bytes::from(out);
//! let expected = Expected { fragment: 7, dtype: Dtype::Bf16, elements: 100_000, version: Version(4) };
//! let section = Section::parse(&mut bytes, &expected)?;
//! assert_eq!(section.changes(), changes);
//! assert!(bytes.is_empty());
//! # Ok::<(), driftless_codec::CodecError>(())
//! ```
#![doc = include_str!("../FORMAT.md")]
#![forbid(unsafe_code)]

mod boxes;
mod delta;
mod encode;
pub mod entry;
mod envelope;
mod error;
mod header;
mod log;
mod record;
mod section;

pub use boxes::{CanonicalBox, MAX_AXES};
pub use delta::rice::{BaseWords, BlockFault, ListName};
pub use delta::{Block, Blocks};
pub use encode::{SectionStart, dense_is_smaller, encode_section, encoded_bytes};
pub use error::CodecError;
pub use header::{
    ALIGNMENT, CHECKSUM_BYTES, CodecId, HEADER_BYTES, MAX_ELEMENTS, SectionHeader, ValueMode, read_header,
};
pub use log::{
    LogChanges, LogExpected, LogSection, LogSectionPlan, LogSectionStart, LogView, SparseBlocks,
    StepKnowledge,
};
pub use record::{FragmentRecord, RECORD_BYTES};
pub use section::{Expected, Section, SectionView};
