//! Reading sections: everything is checked first, nothing is copied until somebody asks for it.

use crate::CodecError;
use crate::delta::{Blocks, block16, dense};
use crate::envelope::Envelope;
use crate::header::{CodecId, HEADER_BYTES, SectionHeader, read_header};
use bytes::{Buf, Bytes};
use driftless_types::{ChangeSet, Dtype, Version, index_of};

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

/// A section whose frame has been checked: its header, length, checksum and padding. Its changes have not:
/// [`Self::check`] looks at them, or whoever decodes the body.
///
/// It shares the memory of the bytes that it was read from.
#[derive(Clone, Debug)]
pub struct FramedSection {
    header: SectionHeader,
    form: Form,
    body: Bytes,
}

/// The body of a section whose frame has been checked.
#[derive(Clone, Copy, Debug)]
pub enum FramedBody<'a> {
    /// Every element: little-endian words, `Dtype::words` per element.
    All(&'a [u8]),
    /// A `block16` directory and its blocks, as many bytes as their counts say, with any content.
    Blocks(&'a [u8]),
}

/// The codecs that a section within a cluster may have: those whose size a record can bound.
#[derive(Clone, Copy, Debug)]
enum Form {
    Dense,
    Block16,
}

impl Form {
    const fn of(header: &SectionHeader) -> Result<Self, CodecError> {
        match header.codec {
            CodecId::Dense => Ok(Self::Dense),
            CodecId::Block16 => Ok(Self::Block16),
            codec @ CodecId::Rice => {
                Err(CodecError::CodecRefused { codec, place: "a section within a cluster" })
            }
        }
    }
}

impl FramedSection {
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

    fn take(bytes: &mut Bytes, header: SectionHeader) -> Result<Self, CodecError> {
        let form = Form::of(&header)?;
        let Envelope { body, bytes: taken } = Envelope::open(bytes, HEADER_BYTES, header.body_bytes)?;
        if matches!(form, Form::Dense) {
            dense::check(&body, header.dtype, header.n)?;
        }
        bytes.advance(taken);
        Ok(Self { header, form, body })
    }

    /// What the section says of itself.
    #[must_use]
    pub const fn header(&self) -> &SectionHeader {
        &self.header
    }

    /// What is to be decoded.
    #[must_use]
    pub fn body(&self) -> FramedBody<'_> {
        match self.form {
            Form::Dense => {
                let elements = index_of(self.header.n) * self.header.dtype.bytes();
                FramedBody::All(&self.body[..elements])
            }
            Form::Block16 => FramedBody::Blocks(&self.body),
        }
    }

    /// Checks the changes, too.
    ///
    /// # Errors
    /// A [`CodecError`] that names the block and what is wrong in it.
    pub fn check(self) -> Result<Section, CodecError> {
        if matches!(self.form, Form::Block16) {
            block16::check(&self.body, self.header.n, self.header.nnz)?;
        }
        Ok(Section { framed: self })
    }
}

/// A section whose every byte has been checked: structure, checksum, positions strictly rising and in range.
///
/// It shares the memory of the bytes that it was read from.
#[derive(Clone, Debug)]
pub struct Section {
    framed: FramedSection,
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
    /// As [`FramedSection::parse`], and then checks the changes.
    ///
    /// # Errors
    /// A [`CodecError`] that names the field, what it holds and what it should.
    pub fn parse(bytes: &mut Bytes, expected: &Expected) -> Result<Self, CodecError> {
        let mut rest = bytes.clone();
        let section = FramedSection::parse(&mut rest, expected)?.check()?;
        *bytes = rest;
        Ok(section)
    }

    /// As [`Self::parse`], without a plan: for those who look at a section and do not apply it.
    ///
    /// # Errors
    /// A [`CodecError`], for everything but a difference from a plan.
    pub fn parse_any(bytes: &mut Bytes) -> Result<Self, CodecError> {
        let mut rest = bytes.clone();
        let header = read_header(&rest)?;
        let section = FramedSection::take(&mut rest, header)?.check()?;
        *bytes = rest;
        Ok(section)
    }

    /// What the section says of itself.
    #[must_use]
    pub const fn header(&self) -> &SectionHeader {
        self.framed.header()
    }

    /// The changes where they lie, for those who need no copy.
    #[must_use]
    pub fn view(&self) -> SectionView<'_> {
        let FramedSection { header, form, body } = &self.framed;
        let SectionHeader { dtype, n, nnz, .. } = *header;
        match form {
            Form::Dense => SectionView::All(dense::elements(body, dtype, n)),
            Form::Block16 => SectionView::Blocks(Blocks::new(body, n, nnz)),
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
        let nnz = index_of(self.header().nnz);
        let (mut positions, mut values) = (Vec::with_capacity(nnz), Vec::with_capacity(nnz));
        for block in blocks.iter() {
            positions.extend(block.positions());
            values.extend(block.values());
        }
        ChangeSet::Sparse { positions, values }
    }
}
