//! Megatron-Core: tensor, pipeline and expert parallel shards, cut once more over data parallel ranks (ZeRO-1).
//!
//! Ranks count tp fastest, then dp, then pp; within a stage expert ranks count ep fastest, then edp (the expert
//! tensor parallel size is 1). Tensors are registered in this order: embedding; per layer the qkv norm, qkv, the
//! q norm, the k norm, the projection, the MLP norm, the router, fc1, fc2, with experts fc1 by local index and
//! then fc2 by local index; the final norm; the output layer.
//!
//! LY-1: tensors that are replicated over tp belong to tp rank 0, and a tied embedding to the first stage. The
//! other ranks hold copies, which count in their buffers, but own no piece of them.

mod shard;

use super::zero::{Buffer, BufferParam, default_bucket_elements};
use super::{TrainerLayout, TrainerRank, owned};
use crate::error::LayoutError;
use crate::fit::{Axis, check_listed};
use crate::local::LocalTensor;
use crate::model::Model;
use driftless_types::Dtype;
use shard::Shard;
use std::collections::BTreeMap;

/// A mesh that has been checked against its model.
pub(super) struct Megatron<'a> {
    model: &'a Model,
    tp: u64,
    pp: u64,
    dp: u64,
    ep: u64,
}

/// Where a rank stands in the mesh.
#[derive(Clone, Copy)]
struct Coords {
    tp: u64,
    pp: u64,
    dp: u64,
    ep: u64,
    edp: u64,
}

/// A local tensor and the buffer it lies in.
struct Held {
    tensor: LocalTensor,
    group: Group,
    is_shared: bool,
}

/// The data parallel group that cuts a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Dense,
    Expert,
}

impl<'a> Megatron<'a> {
    /// Checks the mesh `[tp, pp, dp, ep]` against the model.
    pub(super) fn new(
        model: &'a Model,
        layout: &TrainerLayout,
        [tp, pp, dp, ep]: [u64; 4],
    ) -> Result<Self, LayoutError> {
        let config = model.config();
        let text = layout.to_string();
        let axis = |name, size| Axis { layout: &text, name, size };
        axis("tp", tp).must_cut_heads(config)?;
        let qkv_rows = (config.attention_heads() + 2 * config.key_value_heads()) * config.head_dim();
        axis("tp", tp).must_divide("rows of the fused qkv", qkv_rows)?;
        if config.has_dense_layers() {
            axis("tp", tp).must_divide("intermediate_size", config.intermediate_size())?;
        }
        axis("pp", pp).must_divide("num_hidden_layers", config.layer_count())?;
        match config.expert_count() {
            Some(experts) => axis("ep", ep).must_divide("num_experts", experts)?,
            None if ep > 1 => return Err(axis("ep", ep).misfit("1 on a model without experts".into())),
            None => (),
        }
        if dp == 0 {
            return Err(axis("dp", dp).misfit("at least 1".into()));
        }
        axis("ep", ep).must_divide("tp * dp", tp * dp)?;
        check_listed(tp * dp, model.decoder().params_per_rank(ep))?;
        Ok(Self { model, tp, pp, dp, ep })
    }

    pub(super) fn ranks(&self) -> Result<Vec<TrainerRank>, LayoutError> {
        (0..self.tp * self.dp * self.pp).map(|rank| self.rank(self.coords(rank))).collect()
    }

    const fn coords(&self, rank: u64) -> Coords {
        let in_stage = rank % (self.tp * self.dp);
        Coords {
            tp: rank % self.tp,
            dp: in_stage / self.tp,
            pp: rank / (self.tp * self.dp),
            ep: in_stage % self.ep,
            edp: in_stage / self.ep,
        }
    }

    fn rank(&self, at: Coords) -> Result<TrainerRank, LayoutError> {
        let held = Shard::new(self, at).register()?;
        let mut buffers: BTreeMap<(Dtype, Group), Vec<usize>> = BTreeMap::new();
        for (index, held) in held.iter().enumerate() {
            buffers.entry((held.tensor.dtype, held.group)).or_default().push(index);
        }
        let mut ranges = vec![0..0; held.len()];
        for ((_, group), members) in buffers {
            let of_buffer = |&index: &usize| BufferParam {
                elements: held[index].tensor.elements(),
                is_shared: held[index].is_shared,
            };
            let params: Vec<_> = members.iter().map(of_buffer).collect();
            let (size, rank) = self.group(group, at);
            // The closing size follows the dense data parallel size in both kinds of buffer, as in Megatron-Core.
            let buffer = Buffer::new(&params, size, default_bucket_elements(self.dp));
            for (position, index) in members.into_iter().enumerate() {
                ranges[index] = buffer.owned(position, rank);
            }
        }
        let tensors = held.iter().zip(ranges).map(|(held, range)| owned(&held.tensor, range)).collect();
        Ok(TrainerRank { name: format!("tp{}-pp{}-dp{}", at.tp, at.pp, at.dp), tensors })
    }

    /// The size of a data parallel group, and a rank's place in it.
    const fn group(&self, group: Group, at: Coords) -> (u64, u64) {
        match group {
            Group::Dense => (self.dp, at.dp),
            Group::Expert => (self.tp * self.dp / self.ep, at.edp),
        }
    }
}
