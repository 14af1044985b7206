//! A walk over all parameters: the one place that knows their names and shapes.
//!
//! Its order is that in which the Hugging Face modules register them; data parallel trainers lay them out in it.

use super::{Architecture, Decoder, Feedforward, GatedMlp, Layer};
use crate::config::{LayerKind, ModelConfig};
use crate::family::{Biases, HeadNorms};
use driftless_types::ParamId;

/// What a walk asks for every parameter: its id, given name and shape.
type Visitor<'a> = dyn FnMut(String, Vec<u64>) -> ParamId + 'a;

/// Visits every parameter once.
pub(super) fn visit(config: &ModelConfig, id_of: &mut Visitor<'_>) -> Architecture {
    if let Some(tensors) = config.generic_tensors() {
        let visited =
            tensors.iter().map(|tensor| (id_of(tensor.name.clone(), tensor.shape.clone()), tensor.split));
        return Architecture::Generic(visited.collect());
    }
    let hidden = config.hidden_size();
    let embed = id_of("model.embed_tokens.weight".into(), vec![config.vocab_size(), hidden]);
    let layers = (0..config.layer_count()).map(|index| layer(config, index, id_of)).collect();
    let final_norm = id_of("model.norm.weight".into(), vec![hidden]);
    let lm_head = (!config.ties_embeddings())
        .then(|| id_of("lm_head.weight".into(), vec![config.vocab_size(), hidden]));
    Architecture::Decoder(Decoder { embed, layers, final_norm, lm_head })
}

fn layer(config: &ModelConfig, index: u64, id_of: &mut Visitor<'_>) -> Layer {
    let (hidden, head) = (config.hidden_size(), config.head_dim());
    let mut add = |name: &str, shape: &[u64]| id_of(format!("model.layers.{index}.{name}"), shape.into());
    let (qkv, qkv_bias) = qkv(config, &mut add);
    let o = add("self_attn.o_proj.weight", &[hidden, config.attention_heads() * head]);
    let qk_norms = (config.head_norms() == HeadNorms::QueryAndKey)
        .then(|| ["q_norm", "k_norm"].map(|norm| add(&format!("self_attn.{norm}.weight"), &[head])));
    let feedforward = match config.layer_kind(index) {
        LayerKind::Dense => Feedforward::Dense(mlp("mlp", hidden, config.intermediate_size(), &mut add)),
        LayerKind::Experts { count, intermediate_size } => Feedforward::Experts {
            router: add("mlp.gate.weight", &[count, hidden]),
            experts: (0..count)
                .map(|e| mlp(&format!("mlp.experts.{e}"), hidden, intermediate_size, &mut add))
                .collect(),
        },
    };
    let input_norm = add("input_layernorm.weight", &[hidden]);
    let post_norm = add("post_attention_layernorm.weight", &[hidden]);
    Layer { input_norm, qkv, qkv_bias, o, qk_norms, post_norm, feedforward }
}

/// Weights, and biases where the family has them: each projection registers its weight first.
fn qkv(
    config: &ModelConfig,
    add: &mut impl FnMut(&str, &[u64]) -> ParamId,
) -> ([ParamId; 3], Option<[ParamId; 3]>) {
    let (hidden, head) = (config.hidden_size(), config.head_dim());
    let (queries, keys) = (config.attention_heads() * head, config.key_value_heads() * head);
    let has_bias = config.biases() == Biases::Qkv;
    let projections = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)].map(|(name, rows)| {
        let weight = add(&format!("self_attn.{name}.weight"), &[rows, hidden]);
        (weight, has_bias.then(|| add(&format!("self_attn.{name}.bias"), &[rows])))
    });
    let biases = match projections.map(|(_, bias)| bias) {
        [Some(query), Some(key), Some(value)] => Some([query, key, value]),
        _ => None,
    };
    (projections.map(|(weight, _)| weight), biases)
}

fn mlp(
    prefix: &str,
    hidden: u64,
    intermediate: u64,
    add: &mut impl FnMut(&str, &[u64]) -> ParamId,
) -> GatedMlp {
    GatedMlp {
        gate: add(&format!("{prefix}.gate_proj.weight"), &[intermediate, hidden]),
        up: add(&format!("{prefix}.up_proj.weight"), &[intermediate, hidden]),
        down: add(&format!("{prefix}.down_proj.weight"), &[hidden, intermediate]),
    }
}
