//! `dense`: every element of the fragment, raw, in order.

use super::{WordBytes, words, write_words};
use crate::CodecError;
use driftless_types::{Dtype, index_of};

const PADDED_TO: u64 = 4;

/// Bytes of `n` elements, padding included.
pub(crate) const fn body_bytes(dtype: Dtype, n: u64) -> u64 {
    (n * dtype.bytes() as u64).next_multiple_of(PADDED_TO)
}

/// Appends the elements: `dtype.words()` words each.
pub(crate) fn write(elements: &[u16], out: &mut Vec<u8>) {
    write_words(elements.iter().copied(), out);
    out.resize(out.len() + elements.len() % 2 * 2, 0);
}

/// Checks that the padding is zero: any elements are legal.
pub(crate) fn check(body: &[u8], dtype: Dtype, n: u64) -> Result<(), CodecError> {
    let used = index_of(n) * dtype.bytes();
    if body[used..].iter().any(|&byte| byte != 0) {
        return Err(CodecError::NotZero { what: "padding of the elements" });
    }
    Ok(())
}

/// The elements of a checked body.
pub(crate) fn elements(body: &[u8], dtype: Dtype, n: u64) -> &WordBytes {
    words(&body[..index_of(n) * dtype.bytes()])
}
