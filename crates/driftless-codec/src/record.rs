//! Round-1 records: what a sender announces of each fragment before its bytes move.
//!
//! - **EX-4 (shared knowledge).** Round 2 of a fragment exists if and only if its record announces bytes, and both
//!   ends compute the same size from it.
//! - **EX-5 (memory).** A record announces exactly the bytes that its counts give, so that the plan bounds them.

use crate::{CodecError, CodecId, SectionHeader, encoded_bytes};
use driftless_types::{ChangeSet, Digest, Dtype};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 32;

/// What a sender announces of one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentRecord {
    /// The codec of the section; `Block16` if there is none.
    pub codec: CodecId,
    /// Zero: no flag is defined yet.
    pub flags: u8,
    /// Elements that the section carries.
    pub nnz: u32,
    /// Bytes of the section in round 2, padding included; 0 if there is none.
    pub bytes: u64,
    /// Digest of the fragment's bits at the new version.
    pub digest: Digest,
}

impl FragmentRecord {
    /// The record of a fragment that did not change: nothing follows in round 2.
    #[must_use]
    pub const fn unchanged(digest: Digest) -> Self {
        Self { codec: CodecId::Block16, flags: 0, nnz: 0, bytes: 0, digest }
    }

    /// The record of the section that [`crate::encode_section`] writes of these changes.
    ///
    /// # Panics
    /// For what [`encoded_bytes`] asserts.
    #[must_use]
    pub fn announcing(dtype: Dtype, n: u64, changes: &ChangeSet, digest: Digest) -> Self {
        let (codec, bytes) = encoded_bytes(dtype, n, changes);
        let nnz = u32::try_from(changes.nnz(n)).expect("at most MAX_ELEMENTS changes");
        Self { codec, flags: 0, nnz, bytes, digest }
    }

    /// The record of the section that [`crate::encode_block16`] writes of `nnz` changes of `n` elements.
    ///
    /// # Panics
    /// If there are more changes than a fragment has elements.
    #[must_use]
    pub fn block16(n: u64, nnz: u64, digest: Digest) -> Self {
        let bytes = CodecId::Block16.section_bytes(Dtype::Bf16, n, nnz).expect("block16 follows from counts");
        let nnz = u32::try_from(nnz).expect("at most MAX_ELEMENTS changes");
        Self { codec: CodecId::Block16, flags: 0, nnz, bytes, digest }
    }

    /// The 32 bytes of the record.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[0] = self.codec.code();
        out[1] = self.flags;
        out[4..8].copy_from_slice(&self.nnz.to_le_bytes());
        out[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        out[16..].copy_from_slice(&self.digest.to_bytes());
        out
    }

    /// The inverse of [`Self::encode`]. What it says is only believed after [`Self::check`].
    ///
    /// # Errors
    /// A codec or flag that this version does not define, or reserved bytes that are not zero.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Self, CodecError> {
        let [codec, flags, reserved @ .., n0, n1, n2, n3] = *bytes.first_chunk::<8>().expect("32 bytes");
        if flags != 0 {
            return Err(CodecError::UnknownCode { what: "record flags", found: flags });
        }
        if reserved != [0; 2] {
            return Err(CodecError::NotZero { what: "reserved part of the record" });
        }
        Ok(Self {
            codec: CodecId::from_code(codec)?,
            flags,
            nnz: u32::from_le_bytes([n0, n1, n2, n3]),
            bytes: u64::from_le_bytes(*bytes[8..].first_chunk().expect("32 bytes")),
            digest: Digest::from_bytes(*bytes[16..].first_chunk().expect("32 bytes")),
        })
    }

    /// All records of one edge: `count` of them, in the order of the plan.
    ///
    /// # Errors
    /// [`CodecError::Length`] if there are more or fewer, or what [`Self::decode`] says of one.
    pub fn decode_all(bytes: &[u8], count: usize) -> Result<Vec<Self>, CodecError> {
        let (records, rest) = bytes.as_chunks();
        if records.len() != count || !rest.is_empty() {
            let expected = count as u64 * RECORD_BYTES as u64;
            let found = bytes.len() as u64;
            return Err(CodecError::Length { what: "the record vector", found, expected });
        }
        records.iter().map(Self::decode).collect()
    }

    /// Checks the counts and the size against the fragment that the plan has here.
    ///
    /// # Errors
    /// More changes than elements, a codec that cannot carry the dtype, or another size than the counts give.
    pub fn check(&self, dtype: Dtype, elements: u64) -> Result<(), CodecError> {
        let nnz = u64::from(self.nnz);
        if self.bytes == 0 {
            // EX-4: without bytes there is no section, so it carries no change.
            return equal("number of changes", nnz, 0);
        }
        self.codec.check_counts(dtype, elements, nnz)?;
        // EX-5: the plan and the counts give the size, the sender does not.
        equal("announced size", self.bytes, self.codec.section_bytes(dtype, elements, nnz)?)
    }

    /// Checks that a section is the one that this record announced.
    ///
    /// # Errors
    /// The first field that differs.
    pub fn check_section(&self, header: &SectionHeader) -> Result<(), CodecError> {
        equal("codec", header.codec.code().into(), self.codec.code().into())?;
        equal("number of changes", header.nnz, self.nnz.into())?;
        equal("size of the section", header.section_bytes(), self.bytes)?;
        if header.new_digest != self.digest {
            return Err(CodecError::DigestMismatch { found: header.new_digest, expected: self.digest });
        }
        Ok(())
    }
}

fn equal(what: &'static str, found: u64, expected: u64) -> Result<(), CodecError> {
    if found != expected {
        return Err(CodecError::Mismatch { what, found, expected });
    }
    Ok(())
}
