//! Writing sections. There are no errors here: a change set that is not one is a broken invariant of ours.

use crate::delta::{block16, dense};
use crate::envelope::seal;
use crate::header::{ALIGNMENT, CodecId, MAX_ELEMENTS, SectionHeader, ValueMode};
use driftless_types::{ChangeSet, Digest, Dtype, Version, index_of};

/// What a section says of its fragment beside the changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionStart {
    /// The fragment's index in the plan.
    pub fragment: u32,
    /// The dtype of its elements.
    pub dtype: Dtype,
    /// Its elements, at most [`MAX_ELEMENTS`].
    pub n: u64,
    /// The version that the changes start from; `None` if they are right for any.
    pub base: Option<Version>,
    /// The version that they lead to.
    pub version: Version,
    /// Digest of the fragment's bits at the base, zero if not known.
    pub base_digest: Digest,
    /// Digest of the fragment's bits at the new version, zero if not known.
    pub new_digest: Digest,
}

/// Appends one section to `out`, zero-padded so that the next may follow; exactly [`encoded_bytes`] bytes.
///
/// # Panics
/// If `out` does not end at a multiple of [`ALIGNMENT`], or for what [`encoded_bytes`] asserts.
pub fn encode_section(start: &SectionStart, changes: &ChangeSet, out: &mut Vec<u8>) {
    let body = Body::new(start.dtype, start.n, changes);
    let header = start.header(body.codec(), changes.nnz(start.n));
    enclose(&header, out, |out| body.write(start.n, out));
}

/// Appends the section of `nnz` changes whose `block16` body was made elsewhere, such as on a device: as
/// [`encode_section`] does of the same changes. Its readers check it, as they check every body.
///
/// # Panics
/// As [`encode_section`], and if `body` is not as long as that of so many changes.
pub fn encode_block16(start: &SectionStart, nnz: u64, body: &[u8], out: &mut Vec<u8>) {
    assert_eq!(start.dtype, Dtype::Bf16, "sparse changes of a fragment");
    assert_eq!(body.len() as u64, block16::body_bytes(start.n, nnz), "a body of {nnz} changes");
    enclose(&start.header(CodecId::Block16, nnz), out, |out| out.extend_from_slice(body));
}

impl SectionStart {
    /// What a section says whose changes are right for any base, and whose digests are not known.
    #[must_use]
    pub const fn new(fragment: u32, dtype: Dtype, n: u64, version: Version) -> Self {
        let (base_digest, new_digest) = (Digest::ZERO, Digest::ZERO);
        Self { fragment, dtype, n, base: None, version, base_digest, new_digest }
    }

    fn header(&self, codec: CodecId, nnz: u64) -> SectionHeader {
        let layout = codec.layout(self.dtype, self.n, nnz).expect("sizes of these codecs follow from counts");
        SectionHeader {
            fragment: self.fragment,
            codec,
            value_mode: ValueMode::Absolute,
            dtype: self.dtype,
            lg_block: layout.lg_block,
            n: self.n,
            nnz,
            base: self.base,
            version: self.version,
            base_digest: self.base_digest,
            new_digest: self.new_digest,
            body_bytes: layout.bytes,
        }
    }
}

/// Appends header, body, checksum and padding.
fn enclose(header: &SectionHeader, out: &mut Vec<u8>, write_body: impl FnOnce(&mut Vec<u8>)) {
    assert!(out.len().is_multiple_of(ALIGNMENT), "a section begins at a multiple of {ALIGNMENT}");
    let first = out.len();
    out.reserve(index_of(header.section_bytes()));
    header.write(out);
    write_body(out);
    seal(first, out);
    debug_assert_eq!((out.len() - first) as u64, header.section_bytes());
}

/// The codec that [`encode_section`] takes for these changes, and the bytes that it appends: header, directory,
/// blocks, checksum and padding. Computed from counts alone.
///
/// # Panics
/// If this is no change set of a fragment of `n` elements: more than [`MAX_ELEMENTS`] of them, not as many words
/// as the elements have, sparse changes of an FP32 fragment, or positions that do not rise strictly below `n`.
#[must_use]
pub fn encoded_bytes(dtype: Dtype, n: u64, changes: &ChangeSet) -> (CodecId, u64) {
    let codec = Body::new(dtype, n, changes).codec();
    let bytes = codec.section_bytes(dtype, n, changes.nnz(n));
    (codec, bytes.expect("sizes of these codecs follow from counts"))
}

/// Whether a BF16 fragment of `n` elements, `nnz` of them changed, is not smaller when coded sparsely.
/// The caller then gathers every element and encodes [`ChangeSet::All`]: a sparse set has no values for the rest.
#[must_use]
pub const fn dense_is_smaller(n: u64, nnz: u64) -> bool {
    dense::body_bytes(Dtype::Bf16, n) <= block16::body_bytes(n, nnz)
}

/// A change set in the form in which it is written.
enum Body<'a> {
    Dense { elements: &'a [u16] },
    Block16 { positions: &'a [u32], values: &'a [u16] },
}

impl<'a> Body<'a> {
    /// A set that names every element is written dense, which is half as long.
    fn new(dtype: Dtype, n: u64, changes: &'a ChangeSet) -> Self {
        assert!(n <= MAX_ELEMENTS, "a fragment of {n} elements, expected at most {MAX_ELEMENTS}");
        match changes {
            ChangeSet::All(elements) => {
                assert_eq!(elements.len(), index_of(n) * dtype.words(), "words of a whole fragment");
                Self::Dense { elements }
            }
            ChangeSet::Sparse { positions, values } => {
                assert_eq!(dtype, Dtype::Bf16, "sparse changes of a fragment");
                assert_eq!(positions.len(), values.len(), "one value for each position");
                assert!(rise_below(positions, n), "positions rise strictly and lie below {n}");
                if positions.len() as u64 == n {
                    return Self::Dense { elements: values };
                }
                Self::Block16 { positions, values }
            }
        }
    }

    const fn codec(&self) -> CodecId {
        match self {
            Self::Dense { .. } => CodecId::Dense,
            Self::Block16 { .. } => CodecId::Block16,
        }
    }

    fn write(&self, n: u64, out: &mut Vec<u8>) {
        match self {
            Self::Dense { elements } => dense::write(elements, out),
            Self::Block16 { positions, values } => block16::write(n, positions, values, out),
        }
    }
}

fn rise_below(positions: &[u32], n: u64) -> bool {
    positions.is_sorted_by(|a, b| a < b) && positions.last().is_none_or(|&last| u64::from(last) < n)
}
