//! The canonical parameters of a model: Hugging Face names, in byte order.

use crate::config::{LayerKind, ModelConfig};
use crate::error::LayoutError;
use crate::served::ServedDtypes;
use driftless_types::{Dtype, Fqn, ParamId, Shape};
use std::collections::BTreeMap;

/// One canonical parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamMeta {
    /// Its rank in the byte order of all names.
    pub id: ParamId,
    /// Its Hugging Face name.
    pub fqn: Fqn,
    /// Its shape: one or two axes.
    pub shape: Shape,
    /// The dtype in which it is served.
    pub dtype: Dtype,
}

impl ParamMeta {
    /// Rows of the two-dimensional view: 1 for a 1-D parameter.
    #[must_use]
    pub fn rows(&self) -> u64 {
        match self.shape.extents() {
            [rows, _] => *rows,
            _ => 1,
        }
    }

    /// Columns of the two-dimensional view: the length of a 1-D parameter.
    #[must_use]
    pub fn cols(&self) -> u64 {
        self.shape.extents().last().copied().unwrap_or(1)
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.rows() * self.cols()
    }
}

/// The three projections of a gated MLP, or of one expert.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatedMlp {
    pub(crate) gate: ParamId,
    pub(crate) up: ParamId,
    pub(crate) down: ParamId,
}

/// What follows the attention of a layer.
#[derive(Clone, Debug)]
pub(crate) enum Feedforward {
    Dense(GatedMlp),
    Experts { router: ParamId, experts: Vec<GatedMlp> },
}

/// The parameters of one layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) input_norm: ParamId,
    pub(crate) q: ParamId,
    pub(crate) k: ParamId,
    pub(crate) v: ParamId,
    pub(crate) o: ParamId,
    pub(crate) q_norm: ParamId,
    pub(crate) k_norm: ParamId,
    pub(crate) post_norm: ParamId,
    pub(crate) feedforward: Feedforward,
}

/// The parameters of a decoder by role, so that layouts need no names.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    pub(crate) embed: ParamId,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: ParamId,
    /// `None`: tied to the embedding.
    pub(crate) lm_head: Option<ParamId>,
}

impl Decoder {
    /// How many parameters a rank holds at most, if it holds one in `ep` of each layer's experts.
    pub(crate) fn params_per_rank(&self, ep: u64) -> u64 {
        let feedforward = |layer: &Layer| match &layer.feedforward {
            Feedforward::Dense(_) => 3,
            Feedforward::Experts { experts, .. } => 1 + 3 * (experts.len() as u64).div_ceil(ep),
        };
        3 + self.layers.iter().map(|layer| 8 + feedforward(layer)).sum::<u64>()
    }
}

/// The ending of a router's name: the parameters that the option `router=` speaks of.
pub(crate) const ROUTER_SUFFIX: &str = ".mlp.gate.weight";

/// A model: its config and its canonical parameters.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    params: Vec<ParamMeta>,
    ids: BTreeMap<Fqn, ParamId>,
    decoder: Decoder,
}

impl Model {
    /// The parameters that `config` describes, each with its served dtype.
    ///
    /// # Errors
    /// [`LayoutError::UnknownParameter`] if the starting policy names a tensor that the model does not have.
    pub fn new(config: ModelConfig, served: &ServedDtypes) -> Result<Self, LayoutError> {
        let mut shapes = BTreeMap::new();
        visit(&config, &mut |name, shape| {
            shapes.insert(Fqn::from(name), Shape::new(shape));
            ParamId::default()
        });
        served.check_names(|fqn| shapes.contains_key(fqn))?;
        let mut params = Vec::with_capacity(shapes.len());
        for (id, (fqn, shape)) in (0..).map(ParamId).zip(shapes) {
            let dtype = served.of(&fqn);
            params.push(ParamMeta { id, fqn, shape, dtype });
        }
        let ids: BTreeMap<_, _> = params.iter().map(|meta| (meta.fqn.clone(), meta.id)).collect();
        let decoder = visit(&config, &mut |name, _| ids[name.as_str()]);
        Ok(Self { config, params, ids, decoder })
    }

    /// All parameters in the byte order of their names; a parameter's id is its index.
    #[must_use]
    pub fn params(&self) -> &[ParamMeta] {
        &self.params
    }

    /// The parameter of this name, if the model has it.
    #[must_use]
    pub fn param(&self, fqn: &str) -> Option<&ParamMeta> {
        self.ids.get(fqn).map(|&id| self.meta(id))
    }

    /// The config it was made from.
    #[must_use]
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(crate) fn meta(&self, id: ParamId) -> &ParamMeta {
        &self.params[id.0 as usize]
    }

    pub(crate) const fn decoder(&self) -> &Decoder {
        &self.decoder
    }
}

/// What a walk over the model asks for every parameter: its id, given name and shape.
type Visitor<'a> = dyn FnMut(String, Vec<u64>) -> ParamId + 'a;

/// Walks over all parameters: the one place that knows their names and shapes.
fn visit(config: &ModelConfig, id_of: &mut Visitor<'_>) -> Decoder {
    let hidden = config.hidden_size();
    let embed = id_of("model.embed_tokens.weight".into(), vec![config.vocab_size(), hidden]);
    let layers = (0..config.layer_count()).map(|index| visit_layer(config, index, id_of)).collect();
    let final_norm = id_of("model.norm.weight".into(), vec![hidden]);
    let lm_head = (!config.ties_embeddings())
        .then(|| id_of("lm_head.weight".into(), vec![config.vocab_size(), hidden]));
    Decoder { embed, layers, final_norm, lm_head }
}

fn visit_layer(config: &ModelConfig, index: u64, id_of: &mut Visitor<'_>) -> Layer {
    let (hidden, head) = (config.hidden_size(), config.head_dim());
    let (q_rows, kv_rows) = (config.attention_heads() * head, config.key_value_heads() * head);
    let mut add =
        |name: &str, shape: &[u64]| id_of(format!("model.layers.{index}.{name}.weight"), shape.into());
    Layer {
        input_norm: add("input_layernorm", &[hidden]),
        q: add("self_attn.q_proj", &[q_rows, hidden]),
        k: add("self_attn.k_proj", &[kv_rows, hidden]),
        v: add("self_attn.v_proj", &[kv_rows, hidden]),
        o: add("self_attn.o_proj", &[hidden, q_rows]),
        q_norm: add("self_attn.q_norm", &[head]),
        k_norm: add("self_attn.k_norm", &[head]),
        post_norm: add("post_attention_layernorm", &[hidden]),
        feedforward: match config.layer_kind(index) {
            LayerKind::Dense => {
                Feedforward::Dense(visit_mlp("mlp", hidden, config.intermediate_size(), &mut add))
            }
            LayerKind::Experts { count, intermediate_size } => Feedforward::Experts {
                router: add("mlp.gate", &[count, hidden]),
                experts: (0..count)
                    .map(|e| visit_mlp(&format!("mlp.experts.{e}"), hidden, intermediate_size, &mut add))
                    .collect(),
            },
        },
    }
}

fn visit_mlp(
    prefix: &str,
    hidden: u64,
    intermediate: u64,
    add: &mut impl FnMut(&str, &[u64]) -> ParamId,
) -> GatedMlp {
    GatedMlp {
        gate: add(&format!("{prefix}.gate_proj"), &[intermediate, hidden]),
        up: add(&format!("{prefix}.up_proj"), &[intermediate, hidden]),
        down: add(&format!("{prefix}.down_proj"), &[hidden, intermediate]),
    }
}
