//! Trainer layouts: which rank owns which run of which local tensor.
//!
//! To add one: a module that lists its ranks, a variant of [`TrainerKind`], and its arms in this file.

mod deepspeed;
mod fsdp;
mod hf;
mod megatron;
mod owned;
mod text;
mod zero;

use crate::error::LayoutError;
use crate::model::Model;
use crate::plan::SourceTensor;
pub use deepspeed::{ZeroGroups, ZeroStage};
use driftless_types::Dtype;
use megatron::Megatron;
pub use megatron::{MegatronMesh, MegatronOptimizer};
use owned::owned;

/// How a trainer lays a model out in memory.
///
/// As text: `hf`, `megatron:tp=,pp=,vpp=,dp=,ep=,etp=,layers=a+b+..,bucket=,zero=`, `fsdp:world=`,
/// `hsdp:world=,replicas=` or `deepspeed:world=,stage=,groups=`, each with the option `router=fp32`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrainerLayout {
    /// The framework and its mesh.
    pub kind: TrainerKind,
    /// The served dtype of routers, where this layout names one.
    pub router: Option<Dtype>,
}

/// A trainer framework and the sizes of its mesh, each at least 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrainerKind {
    /// One process that holds every parameter whole, under its Hugging Face name.
    Hf,
    /// Megatron-Core.
    Megatron(MegatronMesh),
    /// PyTorch FSDP2: each parameter is cut along its first axis by the ceiling rule.
    Fsdp {
        /// The number of ranks.
        world: u32,
    },
    /// PyTorch FSDP2 over a mesh of (replica, shard): only the first replica owns anything.
    Hsdp {
        /// The number of ranks of all replicas together.
        world: u32,
        /// The number of replicas: a divisor of `world`.
        replicas: u32,
    },
    /// DeepSpeed ZeRO over Hugging Face modules.
    DeepSpeed {
        /// The number of ranks.
        world: u32,
        /// What is partitioned, and with it how.
        stage: ZeroStage,
        /// How many parameter groups the optimizer has.
        groups: ZeroGroups,
    },
}

/// One rank of a trainer.
pub(crate) struct TrainerRank {
    pub(crate) name: String,
    pub(crate) tensors: Vec<SourceTensor>,
}

impl TrainerLayout {
    /// The ranks in order of their sender ids. LY-1: over all of them every canonical element has one owner.
    ///
    /// # Errors
    /// [`LayoutError::AxisMisfit`] if the mesh does not fit the model.
    pub(crate) fn ranks(&self, model: &Model) -> Result<Vec<TrainerRank>, LayoutError> {
        match &self.kind {
            TrainerKind::Hf => hf::ranks(model),
            TrainerKind::Megatron(mesh) => Megatron::new(model, self, mesh)?.ranks(),
            TrainerKind::Fsdp { world } => fsdp::ranks(model, self, (*world).into(), 1),
            TrainerKind::Hsdp { world, replicas } => {
                fsdp::ranks(model, self, (*world).into(), (*replicas).into())
            }
            TrainerKind::DeepSpeed { world, stage, groups } => {
                deepspeed::ranks(model, self, (*world).into(), *stage, *groups)
            }
        }
    }
}
