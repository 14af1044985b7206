//! A safetensors file, opened by its header alone; tensors are read one by one when they are needed.

use super::BadInput;
use driftless_types::Shape;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// No header is longer in the format's own definition.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// How much of a tensor is read at once: a multiple of every element's size.
const PIECE_BYTES: usize = 1 << 20;
/// The header is preceded by its length.
const LENGTH_BYTES: u64 = 8;

/// An open safetensors file whose header has been checked against the file's length.
pub(crate) struct TensorFile {
    path: PathBuf,
    file: File,
    /// Where tensor data begins, in bytes.
    data_start: u64,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Opens a file and checks its header: JSON, dtypes, shapes, offsets without holes, and a length that fits.
    pub(crate) fn open(path: &Path) -> Result<Self, BadInput> {
        let bad = |found: String, expected: &str| BadInput::file(path, found, expected);
        let unreadable = |error: io::Error| bad(error.to_string(), "a readable safetensors file");
        let mut file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(bad("no regular file".into(), "a safetensors file"));
        }
        let header = read_header(path, &mut file, about.len())?;
        let parsed: Metadata = serde_json::from_slice(&header).map_err(|error| {
            bad(format!("a header that does not parse ({error})"), "a safetensors header")
        })?;
        let data_start = LENGTH_BYTES + header.len() as u64;
        let whole = data_start.saturating_add(parsed.data_len() as u64);
        if whole != about.len() {
            return Err(bad(format!("{} bytes", about.len()), &format!("{whole} bytes, as its header says"))
                .fix("the file was cut short or overwritten: copy it again"));
        }
        let tensors = parsed.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        let metadata = parsed.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Self { path: path.to_owned(), file, data_start, tensors, metadata })
    }

    /// Where the file lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Dtype, shape and place of every tensor, by name.
    pub(crate) const fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// The metadata strings.
    pub(crate) const fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Whether the file has this tensor with this dtype and shape.
    pub(crate) fn expect(&self, name: &str, dtype: Dtype, shape: &Shape) -> Result<(), BadInput> {
        let bad = |found, expected: String| BadInput::file(&self.path, found, expected).tensor(name);
        let Some(info) = self.tensors.get(name) else {
            return Err(bad("no such tensor".to_owned(), format!("{dtype} {shape}"))
                .fix("export every parameter that config.json implies"));
        };
        if info.dtype != dtype {
            return Err(bad(format!("dtype {}", info.dtype), format!("dtype {dtype}")));
        }
        if shape_of(info) != *shape {
            return Err(bad(format!("shape {:?}", info.shape), format!("shape {shape}"))
                .fix("config.json and the file describe different models"));
        }
        Ok(())
    }

    /// A tensor's elements as 16-bit words, low half first where an element has two.
    pub(crate) fn words(&self, name: &str) -> Result<Vec<u16>, BadInput> {
        self.read(name, u16::from_le_bytes)
    }

    /// The elements of an F32 tensor.
    pub(crate) fn floats(&self, name: &str) -> Result<Vec<f32>, BadInput> {
        self.read(name, f32::from_le_bytes)
    }

    /// Reads a tensor piece by piece, so that its bytes are never in memory beside its values.
    fn read<const N: usize, T>(&self, name: &str, value: fn([u8; N]) -> T) -> Result<Vec<T>, BadInput> {
        let bad = |found: String| BadInput::file(&self.path, found, "its data").tensor(name);
        let changed = |error: io::Error| bad(error.to_string()).fix("the file changed while it was read");
        let info = self.tensors.get(name).ok_or_else(|| bad("no such tensor".into()))?;
        let (start, end) = info.data_offsets;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.data_start + start as u64)).map_err(changed)?;
        // The header was checked against the file's length, so this allocates no more than the file holds.
        let mut values = Vec::with_capacity((end - start) / N);
        let mut piece = vec![0; PIECE_BYTES.min(end - start)];
        let mut left = end - start;
        while left > 0 {
            let bytes = &mut piece[..PIECE_BYTES.min(left)];
            file.read_exact(bytes).map_err(changed)?;
            values.extend(bytes.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)));
            left -= bytes.len();
        }
        Ok(values)
    }
}

fn read_header(path: &Path, file: &mut File, file_bytes: u64) -> Result<Vec<u8>, BadInput> {
    let bad = |found: String, expected: String| BadInput::file(path, found, expected);
    if file_bytes < LENGTH_BYTES {
        return Err(bad(
            format!("{file_bytes} bytes"),
            format!("at least {LENGTH_BYTES}: a safetensors file"),
        )
        .fix("the file was cut short: copy it again"));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|error| bad(error.to_string(), "a header".into()))?;
    let header_bytes = u64::from_le_bytes(length);
    let bound = HEADER_BYTES_MAX.min(file_bytes - LENGTH_BYTES);
    if header_bytes > bound {
        return Err(bad(format!("a header of {header_bytes} bytes"), format!("at most {bound}"))
            .fix("the file was cut short or is no safetensors file"));
    }
    let mut header = vec![0; driftless_types::index_of(header_bytes)];
    file.read_exact(&mut header).map_err(|error| bad(error.to_string(), "a header".into()))?;
    Ok(header)
}

/// A tensor's shape in our own words.
pub(crate) fn shape_of(info: &TensorInfo) -> Shape {
    Shape::new(info.shape.iter().map(|&extent| extent as u64).collect::<Vec<_>>())
}

/// The file's name for a served dtype.
pub(crate) const fn stored(dtype: driftless_types::Dtype) -> Dtype {
    match dtype {
        driftless_types::Dtype::Bf16 => Dtype::BF16,
        driftless_types::Dtype::Fp32 => Dtype::F32,
    }
}

/// The served dtype of a file's; `None` if weights are not served in it.
pub(crate) const fn served(dtype: Dtype) -> Option<driftless_types::Dtype> {
    match dtype {
        Dtype::BF16 => Some(driftless_types::Dtype::Bf16),
        Dtype::F32 => Some(driftless_types::Dtype::Fp32),
        _ => None,
    }
}
