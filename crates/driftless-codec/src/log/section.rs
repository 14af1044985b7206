//! Reading sections of a log: everything but the base is checked first.

use super::plan::section_bytes;
use crate::delta::rice::{BaseWords, RiceBlock, RiceBlocks};
use crate::delta::{Blocks, block16, dense};
use crate::envelope::Envelope;
use crate::header::{CodecId, HEADER_BYTES, SectionHeader, ValueMode, read_header};
use crate::{CanonicalBox, CodecError};
use bytes::{Buf, Bytes};
use driftless_types::{Dtype, ParamId, Version, index_of};

/// What an entry and the table of parameters say of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogExpected<'a> {
    /// The parameter.
    pub param: ParamId,
    /// Its extents, outermost first.
    pub shape: &'a [u64],
    /// The dtype in which it is served.
    pub dtype: Dtype,
    /// The base version of the entry; `None` for an anchor, whose sections are all dense.
    pub base: Option<Version>,
    /// The version of the entry.
    pub version: Version,
}

impl LogExpected<'_> {
    fn check(&self, header: &SectionHeader, area: &CanonicalBox) -> Result<(), CodecError> {
        if header.dtype != self.dtype {
            return Err(CodecError::DtypeMismatch { found: header.dtype, expected: self.dtype });
        }
        let fields = [
            ("fragment", header.fragment.into(), self.param.0.into()),
            ("new version", header.version.0, self.version.0),
        ];
        for (what, found, expected) in fields {
            if found != expected {
                return Err(CodecError::Mismatch { what, found, expected });
            }
        }
        if header.base != self.base {
            return Err(CodecError::BaseMismatch { found: header.base, expected: self.base });
        }
        area.check_within(self.shape)
    }
}

/// A section of a log whose every byte has been checked: structure, checksum, box, positions strictly rising and in
/// range. Whether the receiver's words are those of its base shows only when its values are decoded.
#[derive(Clone, Debug)]
pub struct LogSection {
    header: SectionHeader,
    area: CanonicalBox,
    body: Bytes,
}

/// The changes of a section of a log where they lie.
#[derive(Clone, Copy, Debug)]
pub enum LogView<'a> {
    /// Every element: little-endian words, `Dtype::words` per element.
    All(&'a [[u8; 2]]),
    /// Some elements, in blocks.
    Sparse(SparseBlocks<'a>),
}

impl LogSection {
    /// Takes the section at the front of `bytes`, and the padding after it, if it is one of this entry and parameter.
    ///
    /// No memory is taken but for one block's positions at a time, at most 4 MiB; after an error `bytes` is as it was.
    ///
    /// # Errors
    /// A [`CodecError`] that names the field, what it holds and what it should.
    pub fn parse(bytes: &mut Bytes, expected: &LogExpected<'_>) -> Result<Self, CodecError> {
        let (header, area) = Self::front(bytes)?;
        expected.check(&header, &area)?;
        Self::take(bytes, header, area)
    }

    /// As [`Self::parse`], for those who look at a section and do not apply it.
    ///
    /// # Errors
    /// A [`CodecError`], for everything but a difference from an entry.
    pub fn parse_any(bytes: &mut Bytes) -> Result<Self, CodecError> {
        let (header, area) = Self::front(bytes)?;
        Self::take(bytes, header, area)
    }

    /// The header and the box of the section at the front of `bytes`, so that a reader knows which parameter to
    /// compare it with. Nothing behind them is looked at.
    ///
    /// # Errors
    /// As [`Self::parse_any`], for these two.
    pub fn front(bytes: &[u8]) -> Result<(SectionHeader, CanonicalBox), CodecError> {
        let header = read_header(bytes)?;
        let area = CanonicalBox::read(&bytes[HEADER_BYTES..])?;
        let (found, expected) = (header.n, area.volume());
        if found != expected {
            return Err(CodecError::Mismatch { what: "number of elements", found, expected });
        }
        // A section without a base has every element.
        if header.base.is_none() && header.codec != CodecId::Dense {
            return Err(CodecError::CodecRefused { codec: header.codec, place: "a section without a base" });
        }
        Ok((header, area))
    }

    fn take(bytes: &mut Bytes, header: SectionHeader, area: CanonicalBox) -> Result<Self, CodecError> {
        let front = HEADER_BYTES + area.bytes();
        let Envelope { body, bytes: taken } = Envelope::open(bytes, front, header.body_bytes)?;
        match header.codec {
            CodecId::Dense => dense::check(&body, header.dtype, header.n)?,
            CodecId::Block16 => block16::check(&body, header.n, header.nnz)?,
            CodecId::Rice => check_rice(&body, &header)?,
        }
        bytes.advance(taken);
        Ok(Self { header, area, body })
    }

    /// What the section says of itself.
    #[must_use]
    pub const fn header(&self) -> &SectionHeader {
        &self.header
    }

    /// The part of the parameter that it carries.
    #[must_use]
    pub const fn area(&self) -> &CanonicalBox {
        &self.area
    }

    /// What it takes in a blob, padding included.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        section_bytes(&self.area, self.header.body_bytes)
    }

    /// The changes where they lie.
    #[must_use]
    pub fn view(&self) -> LogView<'_> {
        let SectionHeader { codec, dtype, n, nnz, .. } = self.header;
        let form = match codec {
            CodecId::Dense => return LogView::All(dense::elements(&self.body, dtype, n)),
            CodecId::Block16 => SparseForm::Block16(Blocks::new(&self.body, n, nnz)),
            CodecId::Rice => SparseForm::Rice(
                RiceBlocks::new(&self.body, &self.header)
                    .expect("the directory was checked when it was taken"),
            ),
        };
        LogView::Sparse(SparseBlocks { form, mode: self.header.value_mode, nnz })
    }
}

/// Checks every block, and that together they have as many changes as the header says.
fn check_rice(body: &[u8], header: &SectionHeader) -> Result<(), CodecError> {
    let blocks = RiceBlocks::new(body, header)?;
    let (mut found, mut mode) = (0, ValueMode::Absolute);
    for index in 0..blocks.len() {
        if let Some(block) = blocks.block(index)? {
            found += block.len() as u64;
            mode = mode.max(block.mode());
        }
    }
    if found != header.nnz {
        return Err(CodecError::Mismatch { what: "number of changes", found: header.nnz, expected: found });
    }
    if mode != header.value_mode {
        let (found, expected) = (header.value_mode.code().into(), mode.code().into());
        return Err(CodecError::Mismatch { what: "value mode", found, expected });
    }
    Ok(())
}

/// The changes of a sparse section, in blocks that decode independently: many cores can share them.
#[derive(Clone, Copy, Debug)]
pub struct SparseBlocks<'a> {
    form: SparseForm<'a>,
    mode: ValueMode,
    nnz: u64,
}

#[derive(Clone, Copy, Debug)]
enum SparseForm<'a> {
    Block16(Blocks<'a>),
    Rice(RiceBlocks<'a>),
}

impl SparseBlocks<'_> {
    /// How many blocks there are, empty ones included; none at all if nothing changed.
    #[must_use]
    pub const fn len(&self) -> usize {
        match &self.form {
            SparseForm::Block16(blocks) => blocks.len(),
            SparseForm::Rice(blocks) => blocks.len(),
        }
    }

    /// Whether nothing changed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the receiver's words are needed: absolute values are right for any.
    #[must_use]
    pub fn needs_base(&self) -> bool {
        self.mode != ValueMode::Absolute
    }

    /// Appends one block's changes: positions in the section's box, strictly rising, and the new bits. `word_at` gives
    /// the receiver's word at such a position, and `words` says what it is worth.
    ///
    /// # Errors
    /// [`CodecError::WrongBase`] if a word cannot be that of the base (not every wrong base shows: the digest decides),
    /// [`CodecError::DirtyBase`] if the section's steps must not be taken from a mix. What was appended until then is
    /// to be thrown away.
    ///
    /// # Panics
    /// If there is no block of this number.
    pub fn decode(
        &self,
        index: usize,
        words: BaseWords,
        word_at: &dyn Fn(u32) -> u16,
        positions: &mut Vec<u32>,
        values: &mut Vec<u16>,
    ) -> Result<(), CodecError> {
        self.decode_part(index, words, &|_| true, word_at, positions, values)
    }

    /// As [`Self::decode`], for a receiver that holds only a part of the box: what it does not hold is left out, and
    /// `word_at` is not asked there.
    ///
    /// # Errors
    /// As [`Self::decode`].
    ///
    /// # Panics
    /// If there is no block of this number.
    pub fn decode_part(
        &self,
        index: usize,
        words: BaseWords,
        holds: &dyn Fn(u32) -> bool,
        word_at: &dyn Fn(u32) -> u16,
        positions: &mut Vec<u32>,
        values: &mut Vec<u16>,
    ) -> Result<(), CodecError> {
        if self.mode == ValueMode::Sign && words == BaseWords::Mixed {
            return Err(CodecError::DirtyBase);
        }
        match self.form {
            SparseForm::Block16(blocks) => {
                let block = blocks.block(index);
                for (position, value) in block.positions().zip(block.values()) {
                    if holds(position) {
                        positions.push(position);
                        values.push(value);
                    }
                }
                Ok(())
            }
            SparseForm::Rice(blocks) => match blocks.block(index)? {
                Some(block) => block.changes(holds, word_at, positions, values),
                None => Ok(()),
            },
        }
    }

    /// The positions of all changes in the section's box, rising: where values may depend on the base.
    ///
    /// # Errors
    /// As [`Self::decode`], but none that depends on the words.
    pub fn positions(&self) -> Result<Vec<u32>, CodecError> {
        // As in `decode_all`: no more than the section gives.
        let mut positions = Vec::with_capacity(index_of(self.nnz));
        for index in 0..self.len() {
            match self.form {
                SparseForm::Block16(blocks) => positions.extend(blocks.block(index).positions()),
                SparseForm::Rice(blocks) => {
                    positions.extend(blocks.block(index)?.iter().flat_map(RiceBlock::positions));
                }
            }
        }
        Ok(positions)
    }

    /// All changes: positions and new bits, as [`Self::decode`] gives them block by block.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_all(
        &self,
        words: BaseWords,
        word_at: &dyn Fn(u32) -> u16,
    ) -> Result<(Vec<u32>, Vec<u16>), CodecError> {
        // The counts were checked to be those of the blocks, so this is no more than the section gives.
        let count = index_of(self.nnz);
        let (mut positions, mut values) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for index in 0..self.len() {
            self.decode(index, words, word_at, &mut positions, &mut values)?;
        }
        Ok((positions, values))
    }
}
