//! Blobs of JSON that entries name: the writers of a large trainer, and the parameters of the model.

use super::check::{MAX_WRITERS, at_most, check_manifests};
use super::error::EntryError;
use super::hex::Integer;
use super::wire::{Manifest, canonical, parse};
use driftless_types::{Dtype, Fqn, Shape, WriterManifest};
use serde::{Deserialize, Serialize};

/// The most bytes of a parameter's name.
pub const MAX_NAME_BYTES: usize = 512;
/// The most parameters of a model.
pub const MAX_PARAMETERS: u64 = 1 << 20;
/// The most axes of a parameter.
const MAX_AXES: u64 = crate::MAX_AXES as u64;

const WRITERS: &str = "table of writers";
const PARAMETERS: &str = "table of parameters";

/// A parameter of the model; its id is its rank in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its Hugging Face name.
    pub name: Fqn,
    /// Its extents, outermost first.
    pub shape: Shape,
    /// The dtype in which it is served.
    pub dtype: Dtype,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    shape: Vec<Integer>,
    dtype: DtypeName,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum DtypeName {
    #[serde(rename = "BF16")]
    Bf16,
    #[serde(rename = "F32")]
    Fp32,
}

/// The blob of the manifests of `writers.len()` writers.
///
/// # Errors
/// As [`decode_writers`].
pub fn encode_writers(writers: &[WriterManifest]) -> Result<Vec<u8>, EntryError> {
    let count = writers.len() as u64;
    at_most("writers", count, MAX_WRITERS)?;
    check_manifests(writers, u32::try_from(count).expect("at most MAX_WRITERS"))?;
    Ok(canonical(&writers.iter().map(Manifest::from).collect::<Vec<_>>()))
}

/// The manifests of a blob whose bytes are those that a signed entry names, and the number of writers that it says.
///
/// # Errors
/// JSON that is none, unknown fields, bytes that are not canonical, or a writer that is missing or out of order.
pub fn decode_writers(bytes: &[u8], writer_count: u32) -> Result<Vec<WriterManifest>, EntryError> {
    let manifests: Vec<Manifest> = parse(WRITERS, bytes)?;
    let writers: Vec<WriterManifest> = manifests.into_iter().map(Into::into).collect();
    check_manifests(&writers, writer_count)?;
    is_canonical(WRITERS, &encode_writers(&writers)?, bytes)?;
    Ok(writers)
}

/// The blob of a model's parameters, which stand in byte order of their names.
///
/// # Errors
/// As [`decode_parameters`].
pub fn encode_parameters(parameters: &[Parameter]) -> Result<Vec<u8>, EntryError> {
    check_parameters(parameters)?;
    let rows = parameters.iter().map(|parameter| Row {
        name: parameter.name.to_string(),
        shape: parameter.shape.extents().iter().copied().map(Integer).collect(),
        dtype: match parameter.dtype {
            Dtype::Bf16 => DtypeName::Bf16,
            Dtype::Fp32 => DtypeName::Fp32,
        },
    });
    Ok(canonical(&rows.collect::<Vec<_>>()))
}

/// The parameters of a blob whose bytes are those that a signed entry names.
///
/// # Errors
/// JSON that is none, unknown fields, bytes that are not canonical, too many parameters or axes, or names that are
/// empty, too long, or do not rise in byte order.
pub fn decode_parameters(bytes: &[u8]) -> Result<Vec<Parameter>, EntryError> {
    let rows: Vec<Row> = parse(PARAMETERS, bytes)?;
    let parameters = rows.into_iter().map(|row| Parameter {
        name: row.name.into(),
        shape: Shape::new(row.shape.into_iter().map(|extent| extent.0).collect::<Vec<_>>()),
        dtype: match row.dtype {
            DtypeName::Bf16 => Dtype::Bf16,
            DtypeName::Fp32 => Dtype::Fp32,
        },
    });
    let parameters: Vec<Parameter> = parameters.collect();
    is_canonical(PARAMETERS, &encode_parameters(&parameters)?, bytes)?;
    Ok(parameters)
}

fn check_parameters(parameters: &[Parameter]) -> Result<(), EntryError> {
    at_most("parameters", parameters.len() as u64, MAX_PARAMETERS)?;
    let mut previous = "";
    for (index, parameter) in parameters.iter().enumerate() {
        let name = parameter.name.as_str();
        // The empty name comes after none.
        if name.len() > MAX_NAME_BYTES || name <= previous {
            return Err(EntryError::Name { index, bytes: name.len(), most: MAX_NAME_BYTES });
        }
        previous = name;
        at_most("axes of a parameter", parameter.shape.extents().len() as u64, MAX_AXES)?;
        let elements = parameter.shape.elements().unwrap_or(u64::MAX);
        at_most("elements of a parameter", elements, super::hex::INTEGER_END - 1)?;
    }
    Ok(())
}

fn is_canonical(what: &'static str, canonical: &[u8], bytes: &[u8]) -> Result<(), EntryError> {
    if canonical != bytes {
        return Err(EntryError::NotCanonical { what });
    }
    Ok(())
}
