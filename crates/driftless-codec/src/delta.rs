//! The codecs: one module each, all with the same four functions for size, writing, checking and reading.

pub(crate) mod block16;
pub(crate) mod dense;

pub use block16::{Block, Blocks};

/// Little-endian 16-bit words as they lie in a section.
type WordBytes = [[u8; 2]];

/// The words that lie in these bytes; a byte left over is not part of them.
fn words(bytes: &[u8]) -> &WordBytes {
    bytes.as_chunks().0
}

fn write_words(words: &[u16], out: &mut Vec<u8>) {
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}
