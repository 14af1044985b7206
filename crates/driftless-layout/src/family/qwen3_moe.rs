//! Qwen3 mixtures of experts: as Qwen3, with experts in every layer that is not named or skipped as dense.

use super::{Biases, Family, FeedforwardKind, HeadNorms, KvHeads};

pub(super) const QWEN3_MOE: Family = Family {
    model_type: "qwen3_moe",
    biases: Biases::None,
    head_norms: HeadNorms::QueryAndKey,
    feedforward: FeedforwardKind::Experts,
    kv_heads: KvHeads::Required,
};
