//! Engine layouts: what each rank of a rollout engine holds.
//!
//! To add one: a module that lists its ranks, a variant of [`RolloutEngine`], and its arms in this file.

mod hf;
mod sharded;

use crate::error::LayoutError;
use crate::local::LocalTensor;
use crate::model::Model;
use crate::text::{self, LayoutText};
use driftless_types::Dtype;
use sharded::Sharded;
use std::fmt;
use std::str::FromStr;

/// How a rollout engine lays a model out, as text `hf`, `vllm:tp=` or `sglang:tp=,ep=`, option `router=fp32`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RolloutLayout {
    /// The engine and its mesh.
    pub engine: RolloutEngine,
    /// The served dtype of routers, where this layout names one.
    pub router: Option<Dtype>,
}

/// A rollout engine and the sizes of its mesh, each at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RolloutEngine {
    /// One process that holds every parameter whole, under its Hugging Face name.
    Hf,
    /// vLLM; experts are cut like any MLP.
    Vllm {
        /// Tensor parallel size.
        tp: u32,
    },
    /// SGLang; experts are spread over `ep` groups of `tp / ep` ranks. On a dense model `ep` is ignored.
    Sglang {
        /// Tensor parallel size.
        tp: u32,
        /// Expert parallel size: a divisor of `tp` and of the number of experts.
        ep: u32,
    },
}

/// One rank of a rollout engine.
pub(crate) struct EngineRank {
    /// Its name within the replica, such as `tp0-pp0`.
    pub(crate) name: String,
    pub(crate) tensors: Vec<LocalTensor>,
}

impl RolloutLayout {
    /// The ranks in order of their receiver ids. LY-2: each element of each tensor but padding is in one box.
    ///
    /// # Errors
    /// [`LayoutError::AxisMisfit`] if the mesh does not fit the model.
    pub(crate) fn ranks(&self, model: &Model) -> Result<Vec<EngineRank>, LayoutError> {
        match self.engine {
            RolloutEngine::Hf => hf::ranks(model),
            RolloutEngine::Vllm { tp } => Sharded::new(model, self, tp.into(), 1)?.ranks(),
            RolloutEngine::Sglang { tp, ep } => Sharded::new(model, self, tp.into(), ep.into())?.ranks(),
        }
    }

    /// Whether an axis of this layout has no effect on `model`: expert parallelism without experts. Worth a warning.
    #[must_use]
    pub fn ignores_expert_axis(&self, model: &Model) -> bool {
        let no_experts = model.config().expert_count().is_none();
        matches!(self.engine, RolloutEngine::Sglang { ep, .. } if ep > 1 && no_experts)
    }
}

impl FromStr for RolloutLayout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let (engine, router) = match text::family(text) {
            "hf" => (RolloutEngine::Hf, LayoutText::parse(text, &[])?.router),
            "vllm" => {
                let parsed = LayoutText::parse(text, &["tp"])?;
                (RolloutEngine::Vllm { tp: parsed.axis("tp") }, parsed.router)
            }
            "sglang" => {
                let parsed = LayoutText::parse(text, &["tp", "ep"])?;
                let engine = RolloutEngine::Sglang { tp: parsed.axis("tp"), ep: parsed.axis("ep") };
                (engine, parsed.router)
            }
            family => return Err(text::refused(text, format!("engine {family:?}"), "hf, vllm or sglang")),
        };
        Ok(Self { engine, router })
    }
}

impl fmt::Display for RolloutLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.engine {
            RolloutEngine::Hf => text::write(f, "hf", &[], self.router),
            RolloutEngine::Vllm { tp } => text::write(f, "vllm", &[("tp", tp)], self.router),
            RolloutEngine::Sglang { tp, ep } => {
                text::write(f, "sglang", &[("tp", tp), ("ep", ep)], self.router)
            }
        }
    }
}
