//! The remap plan: trainer boxes against receiver boxes, intersected once.

mod cells;
mod compile;
mod digest;
mod fragment;
mod picture;
mod summary;

use crate::engine::{RolloutEngine, RolloutLayout};
use crate::error::LayoutError;
use crate::model::{Model, ParamMeta};
use crate::trainer::TrainerLayout;
use compile::Longest;
use driftless_types::{ParamId, PlanDigest, ReceiverId, SenderId};
pub use fragment::{
    DestBox, DestTensor, Edge, Fragment, MAX_FRAGMENT_ELEMENTS, MAX_LOG_FRAGMENT_ELEMENTS, Piece,
    ReceiverPlan, ReplicaPlan, SenderPlan, SourceRun, SourceTensor,
};
pub use summary::{DenseGroup, PlanSummary, Spread};

/// The composed maps of one (model, trainer, rollouts), immutable once compiled.
///
/// Fragments are numbered by sender, then receiver, then destination (tensor, offset).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemapPlan {
    params: Vec<ParamMeta>,
    trainer: TrainerLayout,
    senders: Vec<SenderPlan>,
    replicas: Vec<ReplicaPlan>,
    fragment_count: u32,
    digest: PlanDigest,
}

impl RemapPlan {
    /// Composes the layouts of `trainer` and of `rollouts`, one replica each. No weights are needed.
    ///
    /// # Errors
    /// [`LayoutError::AxisMisfit`] if a layout does not fit the model, [`LayoutError::DtypeContradiction`] if its
    /// router option or a fused tensor contradicts the model's served dtypes, [`LayoutError::TooLarge`].
    pub fn compile(
        model: &Model,
        trainer: &TrainerLayout,
        rollouts: &[RolloutLayout],
    ) -> Result<Self, LayoutError> {
        Self::with_longest(model, trainer, rollouts, Longest(MAX_FRAGMENT_ELEMENTS))
    }

    /// The plan of what a trainer writes to a log: one replica of one receiver, which stands for the log and holds
    /// every parameter whole. Each fragment is the box of a canonical parameter that one writer owns, of at most
    /// [`MAX_LOG_FRAGMENT_ELEMENTS`] elements unless a single row is longer: sections fit into blobs.
    ///
    /// # Errors
    /// As [`Self::compile`].
    pub fn compile_log(model: &Model, trainer: &TrainerLayout) -> Result<Self, LayoutError> {
        let log = RolloutLayout { engine: RolloutEngine::Hf, router: None };
        Self::with_longest(model, trainer, &[log], Longest(MAX_LOG_FRAGMENT_ELEMENTS))
    }

    fn with_longest(
        model: &Model,
        trainer: &TrainerLayout,
        rollouts: &[RolloutLayout],
        longest: Longest,
    ) -> Result<Self, LayoutError> {
        let (senders, replicas, fragment_count) = compile::compile(model, trainer, rollouts, longest)?;
        let params = model.params().to_vec();
        let digest = digest::of_plan(&params, trainer, &senders, &replicas);
        Ok(Self { params, trainer: trainer.clone(), senders, replicas, fragment_count, digest })
    }

    /// All canonical parameters; a parameter's id is its index.
    #[must_use]
    pub fn params(&self) -> &[ParamMeta] {
        &self.params
    }

    /// The parameter of this id.
    ///
    /// # Panics
    /// If the id is of another model.
    #[must_use]
    pub fn param(&self, id: ParamId) -> &ParamMeta {
        &self.params[id.0 as usize]
    }

    /// The trainer's layout.
    #[must_use]
    pub const fn trainer(&self) -> &TrainerLayout {
        &self.trainer
    }

    /// The trainer's ranks; a sender's id is its index.
    #[must_use]
    pub fn senders(&self) -> &[SenderPlan] {
        &self.senders
    }

    /// The rollouts; a replica's id is its index.
    #[must_use]
    pub fn replicas(&self) -> &[ReplicaPlan] {
        &self.replicas
    }

    /// The receiver of this id.
    ///
    /// # Panics
    /// If the id is of another plan.
    #[must_use]
    pub fn receiver(&self, id: ReceiverId) -> &ReceiverPlan {
        &self.replicas[id.replica.0 as usize].receivers[id.rank as usize]
    }

    /// What a sender gives to a receiver; `None` if nothing, or if the plan has no such sender.
    #[must_use]
    pub fn edge(&self, sender: SenderId, receiver: ReceiverId) -> Option<&Edge> {
        let edges = &self.senders.get(sender.0 as usize)?.edges;
        let position = edges.binary_search_by_key(&receiver, |edge| edge.receiver).ok()?;
        Some(&edges[position])
    }

    /// How many fragments the plan has: their indices are below it.
    #[must_use]
    pub const fn fragment_count(&self) -> u32 {
        self.fragment_count
    }

    /// BLAKE3 over everything that both sides must agree on (LY-3).
    #[must_use]
    pub const fn digest(&self) -> PlanDigest {
        self.digest
    }

    /// What the plan amounts to, in numbers.
    #[must_use]
    pub fn summary(&self) -> PlanSummary {
        summary::of_plan(self)
    }

    /// Who sends what to whom, as the text of an SVG file: senders are rows, receivers are columns, and a bar in each
    /// cell is as long as the bytes of the edge, if all of it goes dense.
    #[must_use]
    pub fn svg(&self) -> String {
        picture::svg(self)
    }

    /// Served bytes of what a sender owns.
    fn owned_bytes(&self, sender: &SenderPlan) -> u64 {
        let pieces = sender.tensors.iter().flat_map(|tensor| &tensor.pieces);
        pieces.map(|piece| summary::bytes(self.param(piece.param).dtype, piece.canonical.elements())).sum()
    }
}
