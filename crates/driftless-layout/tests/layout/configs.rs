//! Models for tests, as the text of a config.

use driftless_layout::{Model, ModelConfig, RemapPlan, RolloutLayout, ServedDtypes, TrainerLayout};
use std::collections::BTreeMap;

/// The sizes of a model; the defaults are small, and no two extents are equal by accident.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Of a dense model; with experts it is always that of `qwen3_moe`.
    pub(crate) family: &'static str,
    pub(crate) vocab: u64,
    pub(crate) hidden: u64,
    pub(crate) layers: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) intermediate: u64,
    pub(crate) tied: bool,
    pub(crate) experts: Option<ExpertSizes>,
}

#[derive(Clone, Debug)]
pub(crate) struct ExpertSizes {
    pub(crate) count: u64,
    pub(crate) intermediate: u64,
    pub(crate) sparse_step: u64,
    pub(crate) dense_layers: Vec<u64>,
}

impl Sizes {
    /// A dense model that every mesh of these tests fits: 130 rows of vocabulary leave padding on both sides.
    pub(crate) fn dense() -> Self {
        Self {
            family: "qwen3",
            vocab: 130,
            hidden: 12,
            layers: 4,
            heads: 8,
            kv_heads: 2,
            head_dim: 4,
            intermediate: 16,
            tied: false,
            experts: None,
        }
    }

    /// Eight experts in every layer.
    pub(crate) fn moe() -> Self {
        let experts = ExpertSizes { count: 8, intermediate: 8, sparse_step: 1, dense_layers: Vec::new() };
        Self { experts: Some(experts), ..Self::dense() }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let mut json = serde_json::json!({
            "model_type": self.family,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "tie_word_embeddings": self.tied,
        });
        if let Some(experts) = &self.experts {
            json["model_type"] = "qwen3_moe".into();
            json["num_experts"] = experts.count.into();
            json["moe_intermediate_size"] = experts.intermediate.into();
            json["decoder_sparse_step"] = experts.sparse_step.into();
            json["mlp_only_layers"] = experts.dense_layers.clone().into();
        }
        json
    }

    pub(crate) fn config(&self) -> ModelConfig {
        ModelConfig::from_json(&self.json().to_string()).unwrap()
    }

    pub(crate) fn is_expert_layer(&self, layer: u64) -> bool {
        let holds = |experts: &ExpertSizes| {
            (layer + 1).is_multiple_of(experts.sparse_step) && !experts.dense_layers.contains(&layer)
        };
        self.experts.as_ref().is_some_and(holds)
    }
}

/// Layouts as text, and what they make of a model.
pub(crate) struct Case {
    pub(crate) model: Model,
    pub(crate) trainer: TrainerLayout,
    pub(crate) rollouts: Vec<RolloutLayout>,
}

impl Case {
    pub(crate) fn new(sizes: &Sizes, trainer: &str, rollouts: &[&str]) -> Self {
        let trainer = trainer.parse().unwrap();
        let rollouts: Vec<_> = rollouts.iter().map(|text| text.parse().unwrap()).collect();
        let served = ServedDtypes::new(BTreeMap::new(), &trainer, &rollouts).unwrap();
        Self { model: Model::new(sizes.config(), &served).unwrap(), trainer, rollouts }
    }

    pub(crate) fn plan(&self) -> RemapPlan {
        RemapPlan::compile(&self.model, &self.trainer, &self.rollouts).unwrap()
    }
}

pub(crate) fn plan(sizes: &Sizes, trainer: &str, rollouts: &[&str]) -> RemapPlan {
    Case::new(sizes, trainer, rollouts).plan()
}
