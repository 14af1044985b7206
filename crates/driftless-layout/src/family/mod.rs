//! Model families: what a `model_type` says of a decoder's parameters beyond the sizes in its config. One file each.
//!
//! To add one: a file with a constant, and its place in [`FAMILIES`]. Layouts ask for parameters by role, so neither
//! trainers nor engines need to know of it.

pub(crate) mod generic;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3_moe;

/// A family of decoders with gated MLPs whose tensors have the names that Llama gave them.
pub(crate) struct Family {
    /// The config's `model_type`.
    pub(crate) model_type: &'static str,
    pub(crate) biases: Biases,
    pub(crate) head_norms: HeadNorms,
    pub(crate) feedforward: FeedforwardKind,
    pub(crate) kv_heads: KvHeads,
}

/// Which projections have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Biases {
    None,
    /// Query, key and value.
    Qkv,
}

/// Whether query and key heads are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadNorms {
    None,
    QueryAndKey,
}

/// What may follow the attention of a layer.
#[derive(Clone, Copy)]
pub(crate) enum FeedforwardKind {
    Dense,
    Experts,
}

/// What it means if a config does not say how many key-value heads there are.
#[derive(Clone, Copy)]
pub(crate) enum KvHeads {
    Required,
    LikeQueries,
}

/// All of them, in the order in which errors list them.
pub(crate) const FAMILIES: [&Family; 4] =
    [&llama::LLAMA, &qwen2::QWEN2, &qwen3::QWEN3, &qwen3_moe::QWEN3_MOE];

/// The family of a `model_type`.
pub(crate) fn of_type(model_type: &str) -> Option<&'static Family> {
    FAMILIES.into_iter().find(|family| family.model_type == model_type)
}

/// The model types that are known, for errors.
pub(crate) fn known_types() -> String {
    let known: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
    format!("one of {}, or a table {} for the generic converter", known.join(", "), generic::TABLE_KEY)
}
