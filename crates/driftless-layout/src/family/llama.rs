//! Llama 1 to 3: no biases, no head norms. The first configs had no grouped queries, and do not name their heads.

use super::{Biases, Family, FeedforwardKind, HeadNorms, KvHeads};

pub(super) const LLAMA: Family = Family {
    model_type: "llama",
    biases: Biases::None,
    head_norms: HeadNorms::None,
    feedforward: FeedforwardKind::Dense,
    kv_heads: KvHeads::LikeQueries,
};
