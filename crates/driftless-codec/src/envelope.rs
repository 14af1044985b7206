//! What every section has around its body: the length that it takes, the checksum and the padding behind it.

use crate::CodecError;
use crate::header::{ALIGNMENT, CHECKSUM_BYTES};
use bytes::Bytes;
use driftless_types::index_of;
use xxhash_rust::xxh3::xxh3_64;

/// A section whose bytes are all there and are those that were written.
pub(crate) struct Envelope {
    /// Directory and blocks, in the memory of the bytes that they were read from.
    pub(crate) body: Bytes,
    /// What the section takes, padding included.
    pub(crate) bytes: usize,
}

impl Envelope {
    /// Opens the section at the front of `bytes`, whose body begins after `front` bytes and has `body_bytes`, at most
    /// 2^35 as every header is checked to say.
    ///
    /// # Errors
    /// A section that is cut short, another checksum, or padding that is not zero.
    pub(crate) fn open(bytes: &Bytes, front: usize, body_bytes: u64) -> Result<Self, CodecError> {
        let used = front as u64 + body_bytes + CHECKSUM_BYTES as u64;
        let needed = used.next_multiple_of(ALIGNMENT as u64);
        if (bytes.len() as u64) < needed {
            return Err(CodecError::Cut { what: "a section", found: bytes.len() as u64, needed });
        }
        // It is there, so its length fits the address space.
        let (needed, end) = (index_of(needed), front + index_of(body_bytes));
        check_tail(&bytes[..needed], end)?;
        Ok(Self { body: bytes.slice(front..end), bytes: needed })
    }
}

/// Ends the section that begins at `first` in `out`: its checksum, and zero bytes to where the next may begin.
pub(crate) fn seal(first: usize, out: &mut Vec<u8>) {
    let checksum = xxh3_64(&out[first..]);
    out.extend(checksum.to_le_bytes());
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

/// Checks the checksum at `end`, and the padding behind it.
fn check_tail(section: &[u8], end: usize) -> Result<(), CodecError> {
    let (hashed, tail) = section.split_at(end);
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
