//! The header of a safetensors file that is written tensor by tensor.

use crate::files::stored;
use driftless_types::{Dtype, Shape};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// A tensor, in the order of the file.
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a Shape,
    /// Its length in 16-bit words.
    pub(crate) words: usize,
}

/// The length of the header and the header: JSON, padded with spaces to 8 bytes.
pub(crate) fn header<'a>(rows: impl IntoIterator<Item = Row<'a>>, metadata: &serde_json::Value) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    entries.insert("__metadata__", metadata.clone());
    let mut offset = 0;
    for row in rows {
        let end = offset + 2 * row.words;
        let about = serde_json::json!({
            "dtype": format!("{}", stored(row.dtype)),
            "shape": row.shape.extents(),
            "data_offsets": [offset, end],
        });
        entries.insert(row.name, about);
        offset = end;
    }
    let mut json = serde_json::to_vec(&entries).expect("names and numbers are JSON");
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

/// Writes words as the file has them, piece by piece.
pub(crate) fn write_words(words: &[u16], file: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(1 << 20);
    for words in words.chunks(1 << 19) {
        bytes.clear();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        file.write_all(&bytes)?;
    }
    Ok(())
}
