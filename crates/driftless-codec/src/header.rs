//! The 88 bytes in front of a section, and the sizes that follow from them.

use crate::CodecError;
use crate::delta::{block16, dense, rice};
use driftless_types::{Digest, Dtype, Version};
use std::fmt;

/// Bytes of a section's header.
pub const HEADER_BYTES: usize = 88;
/// Bytes of the checksum that ends a section.
pub const CHECKSUM_BYTES: usize = 8;
/// Sections begin at multiples of this many bytes.
pub const ALIGNMENT: usize = 8;
/// The longest fragment that one section holds, in elements.
pub const MAX_ELEMENTS: u64 = 1 << 31;

const MAGIC: [u8; 4] = *b"DFS1";
const FORMAT_VERSION: u8 = 1;
const NO_BASE: u64 = u64::MAX;

/// How a section stores its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodecId {
    /// Every element, raw.
    Dense = 0,
    /// 16-bit offsets and absolute 16-bit values, in blocks of 2^16 elements.
    Block16 = 1,
    /// Rice-coded gaps, and values that say how far an element moved. In logs alone.
    Rice = 2,
}

impl CodecId {
    /// The code of this codec in formats.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Dense => 0,
            Self::Block16 => 1,
            Self::Rice => 2,
        }
    }

    /// The codec of a format's code.
    ///
    /// # Errors
    /// [`CodecError::UnknownCode`] for a code that this version does not define.
    pub const fn from_code(code: u8) -> Result<Self, CodecError> {
        match code {
            0 => Ok(Self::Dense),
            1 => Ok(Self::Block16),
            2 => Ok(Self::Rice),
            found => Err(CodecError::UnknownCode { what: "codec", found }),
        }
    }

    /// The block size and the bytes of directory and blocks that `n <= MAX_ELEMENTS` and `nnz <= n` give: nothing can
    /// overflow. `None` if they do not follow from counts.
    pub(crate) const fn layout(self, dtype: Dtype, n: u64, nnz: u64) -> Option<BodyLayout> {
        match self {
            Self::Dense => Some(BodyLayout { lg_block: 0, bytes: dense::body_bytes(dtype, n) }),
            Self::Block16 => {
                Some(BodyLayout { lg_block: block16::LG_BLOCK, bytes: block16::body_bytes(n, nnz) })
            }
            Self::Rice => None,
        }
    }

    const fn carries(self, dtype: Dtype) -> bool {
        matches!((self, dtype), (Self::Dense, _) | (Self::Block16 | Self::Rice, Dtype::Bf16))
    }

    /// Bytes of a whole section up to where the next may begin; `n` and `nnz` as above.
    ///
    /// # Errors
    /// [`CodecError::CodecRefused`] for a codec whose size does not follow from counts: it stays out of clusters,
    /// where a record must bound what its section takes.
    pub(crate) fn section_bytes(self, dtype: Dtype, n: u64, nnz: u64) -> Result<u64, CodecError> {
        let layout = self.layout(dtype, n, nnz);
        let layout =
            layout.ok_or(CodecError::CodecRefused { codec: self, place: "a section within a cluster" })?;
        Ok(section_bytes(layout.bytes))
    }

    /// Checks what a header or a record says of a fragment, before any size is computed from it.
    pub(crate) const fn check_counts(self, dtype: Dtype, n: u64, nnz: u64) -> Result<(), CodecError> {
        if !self.carries(dtype) {
            return Err(CodecError::DtypeRefused { codec: self, dtype });
        }
        if n > MAX_ELEMENTS {
            return Err(CodecError::TooManyElements { found: n });
        }
        if nnz > n {
            return Err(CodecError::TooManyChanges { nnz, n });
        }
        if matches!(self, Self::Dense) && nnz != n {
            return Err(CodecError::Mismatch { what: "number of changes", found: nnz, expected: n });
        }
        Ok(())
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dense => "dense",
            Self::Block16 => "block16",
            Self::Rice => "rice",
        })
    }
}

/// What the directory and the blocks of a section take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyLayout {
    pub(crate) lg_block: u8,
    pub(crate) bytes: u64,
}

/// Bytes of a section without a box whose directory and blocks take `body` bytes, which are at most 2^35.
const fn section_bytes(body: u64) -> u64 {
    (HEADER_BYTES as u64 + body + CHECKSUM_BYTES as u64).next_multiple_of(ALIGNMENT as u64)
}

/// What a stored value says about the new bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ValueMode {
    /// The new bits themselves: idempotent, and right for any base.
    Absolute = 0,
    /// The new bits modulo a power of two on the line of BF16 patterns.
    Congruence = 1,
    /// The direction of the step from the base.
    Sign = 2,
}

impl ValueMode {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Absolute => 0,
            Self::Congruence => 1,
            Self::Sign => 2,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Result<Self, CodecError> {
        match code {
            0 => Ok(Self::Absolute),
            1 => Ok(Self::Congruence),
            2 => Ok(Self::Sign),
            found => Err(CodecError::UnknownCode { what: "value mode", found }),
        }
    }
}

impl fmt::Display for ValueMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absolute => "absolute",
            Self::Congruence => "congruence",
            Self::Sign => "sign",
        })
    }
}

/// What a section says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionHeader {
    /// The fragment's index in the plan; in a log the parameter's id.
    pub fragment: u32,
    /// How the changes are stored.
    pub codec: CodecId,
    /// What the values mean.
    pub value_mode: ValueMode,
    /// The dtype of the elements.
    pub dtype: Dtype,
    /// Binary logarithm of a block's elements; 0 without blocks.
    pub lg_block: u8,
    /// Elements of the fragment, at most [`MAX_ELEMENTS`].
    pub n: u64,
    /// Elements that the section carries, at most `n`.
    pub nnz: u64,
    /// The version that the changes start from; `None` if they are right for any.
    pub base: Option<Version>,
    /// The version that they lead to.
    pub version: Version,
    /// Digest of the fragment's bits at the base, zero if not known.
    pub base_digest: Digest,
    /// Digest of the fragment's bits at the new version, zero if not known.
    pub new_digest: Digest,
    /// Bytes of the directory and the blocks.
    pub body_bytes: u64,
}

impl SectionHeader {
    /// Bytes from this section's beginning to where the next may begin, in a cluster: without a box.
    #[must_use]
    pub const fn section_bytes(&self) -> u64 {
        section_bytes(self.body_bytes)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend(MAGIC);
        out.extend([FORMAT_VERSION, self.codec.code(), self.value_mode.code(), self.dtype.code()]);
        out.extend(self.fragment.to_le_bytes());
        out.extend([self.lg_block, 0, 0, 0]);
        out.extend(self.n.to_le_bytes());
        out.extend(self.nnz.to_le_bytes());
        out.extend(self.base.map_or(NO_BASE, |base| base.0).to_le_bytes());
        out.extend(self.version.0.to_le_bytes());
        out.extend(self.base_digest.to_bytes());
        out.extend(self.new_digest.to_bytes());
        out.extend(self.body_bytes.to_le_bytes());
    }
}

/// Reads and checks the header of the section at the front of `bytes`, without its body and its checksum.
///
/// # Errors
/// A [`CodecError`] that names the field, what it holds and what it should.
pub fn read_header(bytes: &[u8]) -> Result<SectionHeader, CodecError> {
    let mut rest = bytes.get(..HEADER_BYTES).ok_or(CodecError::Cut {
        what: "the header of a section",
        found: bytes.len() as u64,
        needed: HEADER_BYTES as u64,
    })?;
    let rest = &mut rest;
    let magic = take(rest);
    if magic != MAGIC {
        return Err(CodecError::Magic { found: magic, expected: MAGIC });
    }
    let [format, codec, value_mode, dtype] = take(rest);
    if format != FORMAT_VERSION {
        return Err(CodecError::UnknownCode { what: "format version", found: format });
    }
    let codec = CodecId::from_code(codec)?;
    let value_mode = ValueMode::from_code(value_mode)?;
    let dtype = Dtype::from_code(dtype).ok_or(CodecError::UnknownCode { what: "dtype", found: dtype })?;
    let fragment = u32::from_le_bytes(take(rest));
    let [lg_block, reserved @ ..]: [u8; 4] = take(rest);
    let header = SectionHeader {
        fragment,
        codec,
        value_mode,
        dtype,
        lg_block,
        n: take_u64(rest),
        nnz: take_u64(rest),
        base: Some(take_u64(rest)).filter(|&base| base != NO_BASE).map(Version),
        version: Version(take_u64(rest)),
        base_digest: Digest::from_bytes(take(rest)),
        new_digest: Digest::from_bytes(take(rest)),
        body_bytes: take_u64(rest),
    };
    if reserved != [0; 3] {
        return Err(CodecError::NotZero { what: "reserved part of the header" });
    }
    check_agreement(&header)?;
    Ok(header)
}

/// Some fields follow from others, or are bounded by them.
fn check_agreement(header: &SectionHeader) -> Result<(), CodecError> {
    let SectionHeader { codec, dtype, n, nnz, .. } = *header;
    if codec != CodecId::Rice && header.value_mode != ValueMode::Absolute {
        return Err(CodecError::ValueModeRefused { codec, mode: header.value_mode });
    }
    codec.check_counts(dtype, n, nnz)?;
    let Some(layout) = codec.layout(dtype, n, nnz) else { return rice::check_header(header) };
    let fields = [
        ("binary logarithm of the block size", header.lg_block.into(), layout.lg_block.into()),
        ("size of directory and blocks", header.body_bytes, layout.bytes),
    ];
    for (what, found, expected) in fields {
        if found != expected {
            return Err(CodecError::Mismatch { what, found, expected });
        }
    }
    Ok(())
}

/// The next `N` bytes of a header whose length was checked.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (head, tail) = rest.split_first_chunk().expect("a header's length is checked first");
    *rest = tail;
    *head
}

fn take_u64(rest: &mut &[u8]) -> u64 {
    u64::from_le_bytes(take(rest))
}
