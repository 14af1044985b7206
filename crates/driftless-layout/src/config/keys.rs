//! Typed access to the keys of a config, with errors that name key, value and expectation.

use crate::error::LayoutError;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A key that asks for something refused. `null`, `false`, `0` and empty lists ask for nothing.
struct Unsupported {
    key: &'static str,
    feature: &'static str,
    needed: &'static str,
}

const fn unsupported(key: &'static str, feature: &'static str, needed: &'static str) -> Unsupported {
    Unsupported { key, feature, needed }
}

const BIASES: &str = "a family that lists these biases";
const BLOCKS: &str = "a converter for that kind of block";
const DRAFTS: &str = "converters for the head's own layers";
const REDUNDANT: &str = "maps of which expert lives where, that change while engines run";
const SHARED: &str = "a converter for the shared expert and its gate";

/// What every family refuses.
const UNSUPPORTED: [Unsupported; 22] = [
    unsupported("attention_bias", "attention bias", BIASES),
    unsupported("attn_output_gate", "an attention output gate", "a converter that knows the gate's rows"),
    unsupported("enable_eplb", "expert load balancing", REDUNDANT),
    unsupported("full_attention_interval", "linear attention", BLOCKS),
    unsupported("hybrid_override_pattern", "a hybrid of block kinds", BLOCKS),
    unsupported("linear_num_value_heads", "linear attention", BLOCKS),
    unsupported("lora_extra_vocab_size", "a LoRA-extended vocabulary", "rows that only the adapter has"),
    unsupported("lora_rank", "a LoRA-extended model", "a converter that merges adapters"),
    unsupported("mlp_bias", "MLP bias", BIASES),
    unsupported(
        "moe_grouped_gemm",
        "single 3-D grouped expert weights",
        "a converter from one tensor to experts",
    ),
    unsupported("mtp_num_hidden_layers", "MTP or draft heads", DRAFTS),
    unsupported("mtp_num_layers", "MTP or draft heads", DRAFTS),
    unsupported("n_shared_experts", "shared experts", SHARED),
    unsupported("num_nextn_predict_layers", "MTP or draft heads", DRAFTS),
    unsupported("num_redundant_experts", "redundant experts", REDUNDANT),
    unsupported("num_shared_experts", "shared experts", SHARED),
    unsupported("shared_expert_gate", "a shared expert's gate", SHARED),
    unsupported("shared_expert_intermediate_size", "shared experts", SHARED),
    unsupported("speculators_config", "MTP or draft heads", DRAFTS),
    unsupported("use_sliding_window", "sliding-window attention", BLOCKS),
    unsupported("zero_centered_gamma", "zero-centered norms", "a map that adds one to the trainer's values"),
    unsupported(
        "layernorm_zero_centered_gamma",
        "zero-centered norms",
        "a map that adds one to the trainer's values",
    ),
];

/// What even generic tensors cannot be.
const QUANTIZED: [Unsupported; 2] = [
    unsupported("compression_config", "quantized weights", "served dtypes other than BF16 and F32"),
    unsupported("quantization_config", "quantized weights", "served dtypes other than BF16 and F32"),
];

/// The keys of one config.
pub(crate) struct Keys(Map<String, Value>);

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
    pub(crate) fn wrong(&self, key: &str, expected: &str) -> LayoutError {
        let found = self.0.get(key).map_or_else(|| "nothing".into(), shown);
        LayoutError::ConfigKey { key: key.into(), found, expected: expected.into() }
    }

    pub(super) fn text(&self, key: &str) -> Result<&str, LayoutError> {
        let expected = "a text";
        self.0.get(key).and_then(Value::as_str).ok_or_else(|| self.wrong(key, expected))
    }

    /// A required whole number from 1 to `limit`.
    pub(crate) fn size(&self, key: &str, limit: u64) -> Result<u64, LayoutError> {
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

    /// The items of a list, if the key holds one.
    pub(crate) fn list(&self, key: &str) -> Option<&Vec<Value>> {
        self.0.get(key).and_then(Value::as_array)
    }

    /// Refuses by name what cannot be kept bit-identical yet.
    pub(super) fn refuse_unsupported(&self) -> Result<(), LayoutError> {
        self.refuse_quantized()?;
        self.refuse(&UNSUPPORTED)?;
        self.refuse_other_attention()
    }

    /// Refuses quantized weights.
    pub(super) fn refuse_quantized(&self) -> Result<(), LayoutError> {
        self.refuse(&QUANTIZED)
    }

    fn refuse(&self, table: &[Unsupported]) -> Result<(), LayoutError> {
        for &Unsupported { key, feature, needed } in table {
            if let Some(value) = self.0.get(key).filter(|value| asks_for_something(value)) {
                return Err(LayoutError::Unsupported {
                    key: key.into(),
                    found: shown(value),
                    feature,
                    needed,
                });
            }
        }
        Ok(())
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
                needed: BLOCKS,
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
