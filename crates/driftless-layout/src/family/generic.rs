//! Any decoder whose engine keeps the Hugging Face tensors one to one: a table says along which dimension each is cut.
//!
//! The config holds the table under [`TABLE_KEY`], in the order in which the modules register their parameters:
//!
//! ```json
//! "generic_tensors": [
//!   {"name": "model.embed_tokens.weight", "shape": [512, 64], "split": 0, "pad_to": 64},
//!   {"name": "model.layers.{layer}.self_attn.q_proj.weight", "shape": [64, 64], "split": 0},
//!   {"name": "model.layers.{layer}.self_attn.o_proj.weight", "shape": [64, 64], "split": 1},
//!   {"name": "model.norm.weight", "shape": [64]}
//! ]
//! ```
//!
//! `split` is the dimension that tensor parallel ranks cut in equal parts; without it every rank holds the whole.
//! `pad_to` (default 1): the engine pads the first dimension to a multiple of it before it cuts. Entries with
//! `{layer}` that follow each other are a block, which is repeated for each of `num_hidden_layers` layers.

use crate::config::Keys;
use crate::error::LayoutError;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The config's key with the table.
pub(crate) const TABLE_KEY: &str = "generic_tensors";
const LAYER: &str = "{layer}";
/// The largest extent, and the most tensors of all layers: bounds what a hostile config can make us allocate.
const MAX_EXTENT: u64 = 1 << 30;
const MAX_TENSORS: u64 = 1 << 20;

/// A tensor of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GenericTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) split: Split,
}

/// How tensor parallel ranks share a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Every rank holds the whole.
    Replicated,
    /// Equal shares of the first dimension, padded to a multiple of this first.
    Rows { pad_to: u64 },
    /// Equal shares of the second dimension.
    Columns,
}

/// The table of a config, with its layers written out.
pub(crate) fn read(keys: &Keys) -> Result<Vec<GenericTensor>, LayoutError> {
    let expected = "a list of {\"name\", \"shape\", \"split\", \"pad_to\"}";
    let entries = keys.list(TABLE_KEY).ok_or_else(|| keys.wrong(TABLE_KEY, expected))?;
    let entries = entries.iter().map(|entry| tensor(keys, entry)).collect::<Result<Vec<_>, _>>()?;
    let is_layered = |tensor: &GenericTensor| tensor.name.contains(LAYER);
    let layers = if entries.iter().any(is_layered) { keys.size("num_hidden_layers", 1 << 12)? } else { 1 };
    let count = layers.saturating_mul(entries.len() as u64);
    if entries.is_empty() || count > MAX_TENSORS {
        return Err(keys.wrong(TABLE_KEY, &format!("1 to {MAX_TENSORS} tensors in all layers")));
    }
    let mut tensors = Vec::new();
    for block in entries.chunk_by(|a, b| is_layered(a) == is_layered(b)) {
        let repeats = if is_layered(&block[0]) { layers } else { 1 };
        for layer in 0..repeats {
            tensors.extend(block.iter().map(|tensor| tensor.of_layer(layer)));
        }
    }
    let mut names = BTreeSet::new();
    match tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
        Some(twice) => Err(wrong_entry(&twice.name, "twice", "each name once")),
        None => Ok(tensors),
    }
}

impl GenericTensor {
    fn of_layer(&self, layer: u64) -> Self {
        Self { name: self.name.replace(LAYER, &layer.to_string()), ..self.clone() }
    }
}

fn tensor(keys: &Keys, entry: &Value) -> Result<GenericTensor, LayoutError> {
    let name_of = |entry: &Map<String, Value>| Some(entry.get("name")?.as_str()?.to_owned());
    let (Some(entry), Some(name)) = (entry.as_object(), entry.as_object().and_then(name_of)) else {
        return Err(keys.wrong(TABLE_KEY, "a name in every entry"));
    };
    let known = ["name", "shape", "split", "pad_to"];
    if let Some(unknown) = entry.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(wrong_entry(&name, unknown, &known.join(", ")));
    }
    let extent = |value: &Value| value.as_u64().filter(|extent| (1..=MAX_EXTENT).contains(extent));
    let shape = entry.get("shape").and_then(Value::as_array);
    let shape = shape.and_then(|shape| shape.iter().map(extent).collect::<Option<Vec<_>>>());
    let Some(shape) = shape.filter(|shape| matches!(shape.len(), 1 | 2)) else {
        let found = entry.get("shape").map_or_else(|| "no shape".into(), |shape| format!("shape {shape}"));
        return Err(wrong_entry(&name, &found, &format!("one or two extents from 1 to {MAX_EXTENT}")));
    };
    let pad_to = match entry.get("pad_to") {
        None => 1,
        Some(value) => extent(value)
            .ok_or_else(|| wrong_entry(&name, &format!("pad_to {value}"), "a whole number from 1"))?,
    };
    let split = match entry.get("split") {
        None | Some(Value::Null) => Split::Replicated,
        Some(dimension) => match (dimension.as_u64(), shape.len()) {
            (Some(0), _) => Split::Rows { pad_to },
            (Some(1), 2) => Split::Columns,
            _ => return Err(wrong_entry(&name, &format!("split {dimension}"), "a dimension of its shape")),
        },
    };
    Ok(GenericTensor { name, shape, split })
}

fn wrong_entry(name: &str, found: &str, expected: &str) -> LayoutError {
    LayoutError::ConfigKey {
        key: format!("{TABLE_KEY}, tensor {name}"),
        found: found.into(),
        expected: expected.into(),
    }
}
