//! Engine layouts: what each rank of a rollout engine holds.
//!
//! To add one: a module that lists its ranks, a variant of [`RolloutEngine`], and its arms here and in `text`.

mod experts;
mod generic;
mod hf;
mod sharded;
mod text;

use crate::error::LayoutError;
use crate::local::LocalTensor;
use crate::model::Model;
use driftless_types::Dtype;
use sharded::Sharded;

/// How a rollout engine lays a model out.
///
/// As text: `hf`, `vllm:tp=,pp=,ep=,placement=linear|round-robin,w13=swapped` or `sglang:tp=,pp=,ep=,w13=swapped`,
/// each with the option `router=fp32`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RolloutLayout {
    /// The engine and its mesh.
    pub engine: RolloutEngine,
    /// The served dtype of routers, where this layout names one.
    pub router: Option<Dtype>,
}

/// A rollout engine and its mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RolloutEngine {
    /// One process that holds every parameter whole, under its Hugging Face name.
    Hf,
    /// vLLM: experts are cut like any MLP (`ep = 1`), or each lies whole on one of the ranks (`ep = tp`).
    Vllm {
        /// Its mesh.
        mesh: EngineMesh,
        /// Which rank has which experts.
        placement: ExpertPlacement,
    },
    /// SGLang: experts are spread over `ep` groups of `tp / ep` ranks; `ep` divides `tp` and the number of experts.
    Sglang {
        /// Its mesh.
        mesh: EngineMesh,
    },
}

/// The sizes of an engine's mesh, each at least 1, and how its kernels want experts.
///
/// Ranks count tp fastest, then pp. On a model without experts `ep` and `gate_up` have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineMesh {
    /// Tensor parallel size.
    pub tp: u32,
    /// Pipeline parallel size: at most the number of layers.
    pub pp: u32,
    /// Expert parallel size.
    pub ep: u32,
    /// What lies first in an expert's fused tensor.
    pub gate_up: GateUpOrder,
}

impl Default for EngineMesh {
    /// One rank, in checkpoint order.
    fn default() -> Self {
        Self { tp: 1, pp: 1, ep: 1, gate_up: GateUpOrder::Checkpoint }
    }
}

/// The order of an expert's two input projections in the fused `w13` tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GateUpOrder {
    /// The gate, then the up projection.
    Checkpoint,
    /// The up projection, then the gate: some kernels want it so.
    Swapped,
}

/// Which expert parallel rank has which experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExpertPlacement {
    /// Consecutive ones; if they do not divide evenly, the first ranks have one more.
    Linear,
    /// Expert e is with rank e mod ep.
    RoundRobin,
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
        match (self.mesh(), model.decoder()) {
            (None, _) => hf::ranks(model),
            (Some(mesh), None) => generic::ranks(model, self, mesh),
            (Some(mesh), Some(decoder)) => Sharded::new(model, decoder, self, mesh)?.ranks(),
        }
    }

    /// Whether an axis of this layout has no effect on `model`: expert parallelism without experts. Worth a warning.
    #[must_use]
    pub fn ignores_expert_axis(&self, model: &Model) -> bool {
        let no_experts = model.decoder().is_some() && model.config().expert_count().is_none();
        self.mesh().is_some_and(|mesh| mesh.ep > 1) && no_experts
    }

    const fn mesh(&self) -> Option<EngineMesh> {
        match self.engine {
            RolloutEngine::Hf => None,
            RolloutEngine::Vllm { mesh, .. } | RolloutEngine::Sglang { mesh } => Some(mesh),
        }
    }
}
