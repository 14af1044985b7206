//! Encodings of a delta: sections, their codecs, the records that announce them, and the entries of a log.
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
//!
//! A writer of a log plans a section, so that its size is known before a byte is written, and a reader decodes it against
//! its own words:
//!
//! ```
//! use bytes::Bytes;
//! use driftless_codec::{
//!     BaseWords, CanonicalBox, LogChanges, LogExpected, LogSection, LogSectionPlan, LogSectionStart, LogView,
//!     StepKnowledge,
//! };
//! use driftless_numerics::StepClass;
//! use driftless_types::{Digest, Dtype, ParamId, Version};
//!
//! let start = LogSectionStart {
//!     param: ParamId(3),
//!     dtype: Dtype::Bf16,
//!     // Rows 100 to 199 of a parameter of 400 x 1,000.
//!     area: CanonicalBox::new(&[100, 0], &[100, 1000])?,
//!     base: Some(Version(4)),
//!     version: Version(5),
//!     base_digest: Digest::ZERO,
//!     new_digest: Digest::ZERO,
//! };
//! // Every hundredth element went up by one step, from 1.0 on, and the writer has a proof that it was no more.
//! let positions: Vec<u32> = (0..1000).map(|i| 100 * i).collect();
//! let (values, classes) = (vec![0x3f81; 1000], vec![StepClass::Unit; 1000]);
//! let knowledge = StepKnowledge::Classes(&classes);
//! let changes = LogChanges::Sparse { positions: &positions, values: &values, knowledge };
//! let plan = LogSectionPlan::new(&start, changes);
//! assert!(8 * plan.bytes() < 12 * 1000, "less than twelve bits per change");
//! let mut blob = Vec::new();
//! plan.write(&mut blob);
//!
//! let expected = LogExpected {
//!     param: ParamId(3),
//!     shape: &[400, 1000],
//!     dtype: Dtype::Bf16,
//!     base: Some(Version(4)),
//!     version: Version(5),
//! };
//! let section = LogSection::parse(&mut Bytes::from(blob), &expected)?;
//! if let LogView::Sparse(blocks) = section.view() {
//!     let found = blocks.decode_all(BaseWords::Exact, &|_position| 0x3f80)?;
//!     assert_eq!(found, (positions, values));
//! }
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
pub use delta::block16::{
    UNIT_BYTES as BLOCK16_UNIT_BYTES, block_count as block16_blocks, body_bytes as block16_bytes,
};
pub use delta::rice::{BaseWords, BlockFault, ListName};
pub use delta::{Block, Blocks};
pub use encode::{SectionStart, dense_is_smaller, encode_block16, encode_section, encoded_bytes};
pub use error::CodecError;
pub use header::{
    ALIGNMENT, CHECKSUM_BYTES, CodecId, HEADER_BYTES, MAX_ELEMENTS, SectionHeader, ValueMode, read_header,
};
pub use log::{
    LogChanges, LogExpected, LogSection, LogSectionPlan, LogSectionStart, LogView, SparseBlocks,
    StepKnowledge,
};
pub use record::{FragmentRecord, RECORD_BYTES};
pub use section::{Expected, FramedBody, FramedSection, Section, SectionView};
