//! Which experts an engine's rank holds, and how: the fused tensors `w13` (gate and up) and `w2` (down).

use super::{EngineMesh, ExpertPlacement, GateUpOrder};
use crate::error::LayoutError;
use crate::geometry::Box2;
use crate::local::LocalTensor;
use crate::model::{GatedMlp, Model};
use driftless_types::{ParamId, index_of};

/// How experts are spread over the ranks of a stage.
#[derive(Clone, Copy)]
pub(super) struct ExpertMesh {
    pub(super) ep: u64,
    /// How many ranks share each expert.
    pub(super) moe_tp: u64,
    pub(super) placement: ExpertPlacement,
    pub(super) gate_up: GateUpOrder,
}

impl ExpertMesh {
    /// The mesh of a model without experts, on which `ep` has no effect.
    pub(super) fn without_experts(mesh: EngineMesh) -> Self {
        Self { ep: 1, moe_tp: mesh.tp.into(), placement: ExpertPlacement::Linear, gate_up: mesh.gate_up }
    }

    /// What `rank` of a stage holds: rank = (ep rank, share) = divmod(rank, moe_tp).
    pub(super) fn share<'e>(&self, rank: u64, experts: &'e [GatedMlp]) -> ExpertShare<'e> {
        let (ep_rank, index) = (index_of(rank / self.moe_tp), rank % self.moe_tp);
        let ranks = index_of(self.ep);
        let experts = match self.placement {
            ExpertPlacement::Linear => {
                let (each, more) = (experts.len() / ranks, experts.len() % ranks);
                let first = ep_rank * each + ep_rank.min(more);
                experts[first..][..each + usize::from(ep_rank < more)].iter().collect()
            }
            ExpertPlacement::RoundRobin => experts.iter().skip(ep_rank).step_by(ranks).collect(),
        };
        ExpertShare { experts, index, of: self.moe_tp, gate_up: self.gate_up }
    }
}

/// The experts of a rank, at least one, and which share of each expert's inner width it holds.
pub(super) struct ExpertShare<'e> {
    experts: Vec<&'e GatedMlp>,
    index: u64,
    of: u64,
    gate_up: GateUpOrder,
}

impl ExpertShare<'_> {
    /// Per local expert the share's rows of one input projection, then of the other.
    pub(super) fn w13(&self, model: &Model, name: String) -> Result<LocalTensor, LayoutError> {
        let meta = model.meta(self.experts[0].gate);
        let (rows, cols) = (meta.rows() / self.of, meta.cols());
        let of: Vec<_> = self.experts.iter().flat_map(|mlp| self.in_order(mlp)).collect();
        let shape = [self.experts.len() as u64, 2 * rows, cols];
        let mut tensor = LocalTensor::new(model, name, shape, &of)?;
        for (place, param) in (0..).zip(of) {
            let share = self.index * rows..(self.index + 1) * rows;
            tensor = tensor.with_rows(model.meta(param), share, place * rows);
        }
        Ok(tensor)
    }

    const fn in_order(&self, mlp: &GatedMlp) -> [ParamId; 2] {
        match self.gate_up {
            GateUpOrder::Checkpoint => [mlp.gate, mlp.up],
            GateUpOrder::Swapped => [mlp.up, mlp.gate],
        }
    }

    /// Per local expert the share's columns of the down projection.
    pub(super) fn w2(&self, model: &Model, name: String) -> Result<LocalTensor, LayoutError> {
        let meta = model.meta(self.experts[0].down);
        let (rows, cols) = (meta.rows(), meta.cols() / self.of);
        let share = Box2::new(0, rows, self.index * cols, cols);
        let of: Vec<_> = self.experts.iter().map(|mlp| mlp.down).collect();
        let mut tensor = LocalTensor::new(model, name, [self.experts.len() as u64, rows, cols], &of)?;
        for (place, param) in (0..).zip(of) {
            tensor = tensor.with(param, share, place * rows * cols, cols);
        }
        Ok(tensor)
    }
}
