//! Typed access to the keys of a config, with errors that name key, value and expectation.

use crate::error::LayoutError;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Keys that ask for something refused, what they must not be, and its name. `null`, `false`, `0` and empty
/// lists ask for nothing.
const UNSUPPORTED: [(&str, &str); 17] = [
    ("attention_bias", "attention bias"),
    ("attn_output_gate", "an attention output gate"),
    ("compression_config", "quantized weights"),
    ("hybrid_override_pattern", "a hybrid of block kinds"),
    ("linear_num_value_heads", "linear attention"),
    ("lora_rank", "a LoRA-extended model"),
    ("mlp_bias", "MLP bias"),
    ("mtp_num_hidden_layers", "MTP or draft heads"),
    ("n_shared_experts", "shared experts"),
    ("num_nextn_predict_layers", "MTP or draft heads"),
    ("num_redundant_experts", "redundant experts"),
    ("num_shared_experts", "shared experts"),
    ("quantization_config", "quantized weights"),
    ("shared_expert_gate", "a shared expert's gate"),
    ("shared_expert_intermediate_size", "shared experts"),
    ("use_sliding_window", "sliding-window attention"),
    ("zero_centered_gamma", "zero-centered norms"),
];

/// The keys of one config.
pub(super) struct Keys(Map<String, Value>);

impl Keys {
    pub(super) fn parse(text: &str) -> Result<Self, LayoutError> {
        match serde_json::from_str(text) {
            Ok(Value::Object(keys)) => Ok(Self(keys)),
            Ok(other) => Err(LayoutError::ConfigKey {
                key: "(root)".into(),
                found: shown(&other),
                expected: "an object".into(),
            }),
            Err(source) => Err(LayoutError::ConfigNotJson { source: Arc::new(source) }),
        }
    }

    /// Whether the key says anything: `null` is as good as nothing.
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| !value.is_null())
    }

    /// The error of a key whose value is not the expected one.
    pub(super) fn wrong(&self, key: &str, expected: &str) -> LayoutError {
        let found = self.0.get(key).map_or_else(|| "nothing".into(), shown);
        LayoutError::ConfigKey { key: key.into(), found, expected: expected.into() }
    }

    pub(super) fn text(&self, key: &str) -> Result<&str, LayoutError> {
        let expected = "a text";
        self.0.get(key).and_then(Value::as_str).ok_or_else(|| self.wrong(key, expected))
    }

    /// A required whole number from 1 to `limit`.
    pub(super) fn size(&self, key: &str, limit: u64) -> Result<u64, LayoutError> {
        let size = self.0.get(key).and_then(Value::as_u64).filter(|size| (1..=limit).contains(size));
        size.ok_or_else(|| self.wrong(key, &format!("a whole number from 1 to {limit}")))
    }

    /// A flag that may be missing.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, LayoutError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// A list of layer numbers below `layer_count`; missing is empty.
    pub(super) fn layers(&self, key: &str, layer_count: u64) -> Result<BTreeSet<u64>, LayoutError> {
        let expected =
            || self.wrong(key, &format!("a list of layers below num_hidden_layers = {layer_count}"));
        let layers = match self.0.get(key) {
            None | Some(Value::Null) => return Ok(BTreeSet::new()),
            Some(value) => value.as_array().ok_or_else(expected)?,
        };
        let layer = |value: &Value| value.as_u64().filter(|&layer| layer < layer_count);
        layers.iter().map(layer).collect::<Option<_>>().ok_or_else(expected)
    }

    /// Refuses by name what cannot be kept bit-identical yet.
    pub(super) fn refuse_unsupported(&self) -> Result<(), LayoutError> {
        for (key, feature) in UNSUPPORTED {
            if let Some(value) = self.0.get(key).filter(|value| asks_for_something(value)) {
                return Err(LayoutError::Unsupported { key: key.into(), found: shown(value), feature });
            }
        }
        self.refuse_other_attention()
    }

    /// Every layer must be of full attention.
    fn refuse_other_attention(&self) -> Result<(), LayoutError> {
        let kinds = match self.0.get("layer_types") {
            None | Some(Value::Null) => return Ok(()),
            Some(value) => value.as_array().ok_or_else(|| self.wrong("layer_types", "a list of texts"))?,
        };
        match kinds.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            None => Ok(()),
            Some(kind) => Err(LayoutError::Unsupported {
                key: "layer_types".into(),
                found: shown(kind),
                feature: "attention other than full_attention",
            }),
        }
    }
}

fn asks_for_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) | Value::String(_) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(items) => !items.is_empty(),
        Value::Object(_) => true,
    }
}

/// A value as text, cut short: it goes into an error.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
