//! Reading sections: everything is checked first, nothing is copied until somebody asks for it.

use crate::CodecError;
use crate::delta::{Blocks, block16, dense};
use crate::header::{ALIGNMENT, CHECKSUM_BYTES, CodecId, HEADER_BYTES, SectionHeader, read_header};
use bytes::{Buf, Bytes};
use driftless_types::{ChangeSet, Dtype, Version, index_of};
use xxhash_rust::xxh3::xxh3_64;

/// What the plan says of a section before its first byte arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The fragment's index in the plan.
    pub fragment: u32,
    /// The dtype in which it is served.
    pub dtype: Dtype,
    /// Its elements.
    pub elements: u64,
    /// The version of the attempt.
    pub version: Version,
}

impl Expected {
    fn check(&self, header: &SectionHeader) -> Result<(), CodecError> {
        if header.dtype != self.dtype {
            return Err(CodecError::DtypeMismatch { found: header.dtype, expected: self.dtype });
        }
        let fields = [
            ("fragment", header.fragment.into(), self.fragment.into()),
            ("number of elements", header.n, self.elements),
            ("new version", header.version.0, self.version.0),
        ];
        for (what, found, expected) in fields {
            if found != expected {
                return Err(CodecError::Mismatch { what, found, expected });
            }
        }
        Ok(())
    }
}

/// A section whose every byte has been checked: structure, checksum, positions strictly rising and in range.
///
/// It shares the memory of the bytes that it was read from.
#[derive(Clone, Debug)]
pub struct Section {
    header: SectionHeader,
    body: Bytes,
}

/// The changes of a section where they lie.
#[derive(Clone, Copy, Debug)]
pub enum SectionView<'a> {
    /// Every element: little-endian words, `Dtype::words` per element.
    All(&'a [[u8; 2]]),
    /// Some elements, in blocks.
    Blocks(Blocks<'a>),
}

impl Section {
    /// Takes the section at the front of `bytes`, and the padding after it, if it is what the plan expects.
    ///
    /// No memory is taken, whatever the bytes say; after an error `bytes` is as it was.
    ///
    /// # Errors
    /// A [`CodecError`] that names the field, what it holds and what it should.
    pub fn parse(bytes: &mut Bytes, expected: &Expected) -> Result<Self, CodecError> {
        let header = read_header(bytes)?;
        expected.check(&header)?;
        Self::take(bytes, header)
    }

    /// As [`Self::parse`], without a plan: for those who look at a section and do not apply it.
    ///
    /// # Errors
    /// A [`CodecError`], for everything but a difference from a plan.
    pub fn parse_any(bytes: &mut Bytes) -> Result<Self, CodecError> {
        let header = read_header(bytes)?;
        Self::take(bytes, header)
    }

    fn take(bytes: &mut Bytes, header: SectionHeader) -> Result<Self, CodecError> {
        let section_bytes = header.section_bytes();
        if (bytes.len() as u64) < section_bytes {
            let found = bytes.len() as u64;
            return Err(CodecError::Cut { what: "a section", found, needed: section_bytes });
        }
        // It is there, so its length fits the address space.
        let mut section = bytes.slice(..index_of(section_bytes));
        check_tail(&section, &header)?;
        section.advance(HEADER_BYTES);
        section.truncate(index_of(header.body_bytes()));
        match header.codec {
            CodecId::Dense => dense::check(&section, header.dtype, header.n)?,
            CodecId::Block16 => block16::check(&section, header.n, header.nnz)?,
        }
        bytes.advance(index_of(section_bytes));
        Ok(Self { header, body: section })
    }

    /// What the section says of itself.
    #[must_use]
    pub const fn header(&self) -> &SectionHeader {
        &self.header
    }

    /// The changes where they lie, for those who need no copy.
    #[must_use]
    pub fn view(&self) -> SectionView<'_> {
        let SectionHeader { codec, dtype, n, nnz, .. } = self.header;
        match codec {
            CodecId::Dense => SectionView::All(dense::elements(&self.body, dtype, n)),
            CodecId::Block16 => SectionView::Blocks(Blocks::new(&self.body, n, nnz)),
        }
    }

    /// The changes as a set of their own: `nnz` positions and values, or every element.
    #[must_use]
    pub fn changes(&self) -> ChangeSet {
        match self.view() {
            SectionView::All(words) => {
                ChangeSet::All(words.iter().map(|&word| u16::from_le_bytes(word)).collect())
            }
            SectionView::Blocks(blocks) => self.sparse(blocks),
        }
    }

    fn sparse(&self, blocks: Blocks<'_>) -> ChangeSet {
        let mut positions = Vec::with_capacity(index_of(self.header.nnz));
        let mut values = Vec::with_capacity(index_of(self.header.nnz));
        for block in blocks.iter() {
            positions.extend(block.positions());
            values.extend(block.values());
        }
        ChangeSet::Sparse { positions, values }
    }
}

/// Checks the checksum, and the padding behind it.
fn check_tail(section: &[u8], header: &SectionHeader) -> Result<(), CodecError> {
    let (hashed, tail) = section.split_at(HEADER_BYTES + index_of(header.body_bytes()));
    let (checksum, padding) =
        tail.split_first_chunk::<CHECKSUM_BYTES>().expect("the section's length counts a checksum");
    let (found, expected) = (u64::from_le_bytes(*checksum), xxh3_64(hashed));
    if found != expected {
        return Err(CodecError::Checksum { found, expected });
    }
    debug_assert!(padding.len() < ALIGNMENT);
    if padding.iter().any(|&byte| byte != 0) {
        return Err(CodecError::NotZero { what: "padding after the checksum" });
    }
    Ok(())
}
