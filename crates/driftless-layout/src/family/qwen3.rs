//! Qwen3: no biases, and a norm for the heads of queries and keys.

use super::{Biases, Family, FeedforwardKind, HeadNorms, KvHeads};

pub(super) const QWEN3: Family = Family {
    model_type: "qwen3",
    biases: Biases::None,
    head_norms: HeadNorms::QueryAndKey,
    feedforward: FeedforwardKind::Dense,
    kv_heads: KvHeads::Required,
};
