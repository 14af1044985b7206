//! The codecs: one module each.

pub(crate) mod block16;
pub(crate) mod dense;
pub(crate) mod rice;

pub use block16::{Block, Blocks};

/// Little-endian 16-bit words as they lie in a section.
type WordBytes = [[u8; 2]];

/// The words that lie in these bytes; a byte left over is not part of them.
fn words(bytes: &[u8]) -> &WordBytes {
    bytes.as_chunks().0
}

/// Appends words: room first and then the loop, which the compiler turns into a copy.
fn write_words(words: impl ExactSizeIterator<Item = u16>, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 2 * words.len(), 0);
    for (bytes, word) in out[start..].as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
}
