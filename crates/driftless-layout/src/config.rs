//! The part of a Hugging Face `config.json` that decides names and shapes.

mod keys;

use crate::error::LayoutError;
use crate::family::generic::{self, GenericTensor};
use crate::family::{self, Biases, Family, FeedforwardKind, HeadNorms, KvHeads};
pub(crate) use keys::Keys;
use std::collections::BTreeSet;

/// The most experts of all layers together: bounds what a hostile config can make us allocate.
const MAX_EXPERTS_TOTAL: u64 = 1 << 17;

/// The architecture of a decoder, read from its `config.json` and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelConfig {
    vocab_size: u64,
    hidden_size: u64,
    layer_count: u64,
    attention_heads: u64,
    key_value_heads: u64,
    head_dim: u64,
    intermediate_size: u64,
    ties_embeddings: bool,
    biases: Biases,
    head_norms: HeadNorms,
    experts: Option<Experts>,
    /// Where they are there, they are all there is.
    generic: Option<Vec<GenericTensor>>,
}

/// The expert layers of a mixture of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Experts {
    count: u64,
    intermediate_size: u64,
    sparse_step: u64,
    dense_layers: BTreeSet<u64>,
}

/// What follows the attention of one layer.
pub(crate) enum LayerKind {
    Dense,
    Experts { count: u64, intermediate_size: u64 },
}

impl ModelConfig {
    /// Reads the text of a Hugging Face `config.json` of a known model type, or one with a table of generic tensors.
    ///
    /// `head_dim` defaults to `hidden_size / num_attention_heads`, `tie_word_embeddings` to false,
    /// `decoder_sparse_step` to 1 and `mlp_only_layers` to none; keys that decide no shape are not read. With
    /// `generic_tensors` (see the crate's documentation) the table decides alone, and every size below is 0.
    ///
    /// # Errors
    /// [`LayoutError::ConfigNotJson`]; [`LayoutError::ConfigKey`] for a key that is missing, of the wrong type, or
    /// of a value that no model has; [`LayoutError::Unsupported`] for a feature that is refused by name.
    pub fn from_json(text: &str) -> Result<Self, LayoutError> {
        let keys = Keys::parse(text)?;
        if keys.has(generic::TABLE_KEY) {
            keys.refuse_quantized()?;
            return Ok(Self { generic: Some(generic::read(&keys)?), ..Self::EMPTY });
        }
        let Some(family) = family::of_type(keys.text("model_type")?) else {
            return Err(keys.wrong("model_type", &family::known_types()));
        };
        keys.refuse_unsupported()?;
        let config = Self::read(&keys, family)?;
        if !config.attention_heads.is_multiple_of(config.key_value_heads) {
            let expected = format!("a divisor of num_attention_heads = {}", config.attention_heads);
            return Err(keys.wrong("num_key_value_heads", &expected));
        }
        Ok(config)
    }

    /// No decoder at all.
    const EMPTY: Self = Self {
        vocab_size: 0,
        hidden_size: 0,
        layer_count: 0,
        attention_heads: 0,
        key_value_heads: 0,
        head_dim: 0,
        intermediate_size: 0,
        ties_embeddings: false,
        biases: Biases::None,
        head_norms: HeadNorms::None,
        experts: None,
        generic: None,
    };

    fn read(keys: &Keys, family: &Family) -> Result<Self, LayoutError> {
        let hidden_size = keys.size("hidden_size", 1 << 18)?;
        let attention_heads = keys.size("num_attention_heads", 1 << 14)?;
        let layer_count = keys.size("num_hidden_layers", 1 << 12)?;
        let key_value_heads = match family.kv_heads {
            KvHeads::LikeQueries if !keys.has("num_key_value_heads") => attention_heads,
            KvHeads::LikeQueries | KvHeads::Required => keys.size("num_key_value_heads", attention_heads)?,
        };
        Ok(Self {
            vocab_size: keys.size("vocab_size", 1 << 26)?,
            hidden_size,
            layer_count,
            attention_heads,
            key_value_heads,
            head_dim: head_dim(keys, hidden_size, attention_heads)?,
            intermediate_size: keys.size("intermediate_size", 1 << 22)?,
            ties_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            biases: family.biases,
            head_norms: family.head_norms,
            experts: match family.feedforward {
                FeedforwardKind::Experts => Some(Experts::read(keys, layer_count)?),
                FeedforwardKind::Dense => None,
            },
            generic: None,
        })
    }

    /// Rows of the embedding.
    #[must_use]
    pub const fn vocab_size(&self) -> u64 {
        self.vocab_size
    }

    /// The width of the residual stream.
    #[must_use]
    pub const fn hidden_size(&self) -> u64 {
        self.hidden_size
    }

    /// How many decoder layers.
    #[must_use]
    pub const fn layer_count(&self) -> u64 {
        self.layer_count
    }

    /// Query heads.
    #[must_use]
    pub const fn attention_heads(&self) -> u64 {
        self.attention_heads
    }

    /// Key and value heads: a divisor of the query heads.
    #[must_use]
    pub const fn key_value_heads(&self) -> u64 {
        self.key_value_heads
    }

    /// Elements of one head.
    #[must_use]
    pub const fn head_dim(&self) -> u64 {
        self.head_dim
    }

    /// The inner width of a dense MLP.
    #[must_use]
    pub const fn intermediate_size(&self) -> u64 {
        self.intermediate_size
    }

    /// The inner width of one expert's MLP; `None` without experts.
    #[must_use]
    pub fn expert_intermediate_size(&self) -> Option<u64> {
        self.experts.as_ref().map(|experts| experts.intermediate_size)
    }

    /// Experts of each expert layer; `None` for a dense model.
    #[must_use]
    pub fn expert_count(&self) -> Option<u64> {
        self.experts.as_ref().map(|experts| experts.count)
    }

    /// Whether the output layer is the embedding.
    #[must_use]
    pub const fn ties_embeddings(&self) -> bool {
        self.ties_embeddings
    }

    pub(crate) const fn biases(&self) -> Biases {
        self.biases
    }

    pub(crate) const fn head_norms(&self) -> HeadNorms {
        self.head_norms
    }

    /// The table of a model that only a table describes.
    pub(crate) fn generic_tensors(&self) -> Option<&[GenericTensor]> {
        self.generic.as_deref()
    }

    pub(crate) fn layer_kind(&self, layer: u64) -> LayerKind {
        match &self.experts {
            Some(experts) if experts.holds(layer) => {
                LayerKind::Experts { count: experts.count, intermediate_size: experts.intermediate_size }
            }
            _ => LayerKind::Dense,
        }
    }

    /// Whether any layer has a dense MLP.
    pub(crate) fn has_dense_layers(&self) -> bool {
        (0..self.layer_count).any(|layer| matches!(self.layer_kind(layer), LayerKind::Dense))
    }
}

impl Experts {
    fn read(keys: &Keys, layer_count: u64) -> Result<Self, LayoutError> {
        let count = keys.size("num_experts", MAX_EXPERTS_TOTAL / layer_count)?;
        let dense_layers = keys.layers("mlp_only_layers", layer_count)?;
        let sparse_step = match keys.has("decoder_sparse_step") {
            true => keys.size("decoder_sparse_step", 1 << 12)?,
            false => 1,
        };
        let intermediate_size = keys.size("moe_intermediate_size", 1 << 22)?;
        Ok(Self { count, intermediate_size, sparse_step, dense_layers })
    }

    /// Every `sparse_step`-th layer has experts, but those named as dense.
    fn holds(&self, layer: u64) -> bool {
        !self.dense_layers.contains(&layer) && (layer + 1).is_multiple_of(self.sparse_step)
    }
}

fn head_dim(keys: &Keys, hidden_size: u64, attention_heads: u64) -> Result<u64, LayoutError> {
    if keys.has("head_dim") {
        return keys.size("head_dim", 1 << 14);
    }
    if !hidden_size.is_multiple_of(attention_heads) {
        return Err(
            keys.wrong("head_dim", &format!("it, as {hidden_size} / {attention_heads} heads is not whole"))
        );
    }
    Ok(hidden_size / attention_heads)
}
