//! Qwen2 and Qwen2.5: query, key and value have a bias, whatever the config says.

use super::{Biases, Family, FeedforwardKind, HeadNorms, KvHeads};

pub(super) const QWEN2: Family = Family {
    model_type: "qwen2",
    biases: Biases::Qkv,
    head_norms: HeadNorms::None,
    feedforward: FeedforwardKind::Dense,
    kv_heads: KvHeads::Required,
};
