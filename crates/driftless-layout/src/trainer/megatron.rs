//! Megatron-Core: tensor, pipeline and expert parallel shards, cut once more over data parallel ranks (ZeRO-1).
//!
//! Ranks count tp fastest, then dp, then pp; within a stage expert ranks count etp fastest, then ep, then edp, which
//! is what remains of tp * dp. With vpp chunks, chunk c of stage p is part c * pp + p of the model. Tensors are
//! registered in this order: embedding; per layer the qkv norm, qkv, its bias, the q norm, the k norm, the
//! projection, the MLP norm, the router, fc1, fc2, with experts fc1 by local index and then fc2 by local index; the
//! final norm; the output layer. Each chunk has buffers of its own.
//!
//! LY-1: tensors that are replicated over tp belong to tp rank 0, and a tied embedding to the first stage. The
//! other ranks hold copies, which count in their buffers, but own no piece of them. Without the distributed
//! optimizer the first rank of a data parallel group owns all of its tensors, and the others list them with nothing
//! in them.

mod shard;

use super::zero::{Buffer, BufferParam, default_bucket_elements};
use super::{TrainerLayout, TrainerRank, owned};
use crate::error::LayoutError;
use crate::fit::{Axis, check_listed};
use crate::local::LocalTensor;
use crate::model::{Decoder, Model};
use crate::stages;
use driftless_types::{Dtype, index_of};
use shard::Shard;
use std::collections::BTreeMap;
use std::ops::Range;

/// The mesh of a Megatron-Core trainer: world = tp * pp * dp.
///
/// Context parallel ranks count into `dp`. Expert parallelism runs over the tp * dp ranks of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MegatronMesh {
    /// Tensor parallel size.
    pub tp: u32,
    /// Pipeline parallel size.
    pub pp: u32,
    /// Model chunks of each stage (interleaved pipeline).
    pub vpp: u32,
    /// Data parallel size.
    pub dp: u32,
    /// Expert parallel size: a divisor of the number of experts; etp * ep divides tp * dp.
    pub ep: u32,
    /// Expert tensor parallel size: a divisor of the experts' inner width.
    pub etp: u32,
    /// How many layers each of the pp * vpp parts of the model has, in order of the layers; `None`: all alike.
    pub layers: Option<Vec<u32>>,
    /// Who owns the optimizer's state.
    pub optimizer: MegatronOptimizer,
}

/// How a data parallel group shares the optimizer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MegatronOptimizer {
    /// The distributed optimizer (ZeRO-1): flat buffers, cut equally.
    Distributed {
        /// The size at which buckets are closed; 0: never; `None`: 40 million, or a million per data parallel rank.
        bucket_elements: Option<u64>,
    },
    /// Every rank holds all of it.
    Replicated,
}

impl Default for MegatronMesh {
    /// One rank, with the distributed optimizer.
    fn default() -> Self {
        let optimizer = MegatronOptimizer::Distributed { bucket_elements: None };
        Self { tp: 1, pp: 1, vpp: 1, dp: 1, ep: 1, etp: 1, layers: None, optimizer }
    }
}

/// A mesh that has been checked against its model.
pub(super) struct Megatron<'a> {
    model: &'a Model,
    decoder: &'a Decoder,
    tp: u64,
    pp: u64,
    dp: u64,
    ep: u64,
    etp: u64,
    /// The layers of each part of the model, pp * vpp of them.
    parts: Vec<Range<usize>>,
    optimizer: MegatronOptimizer,
}

/// Where a rank stands in the mesh.
#[derive(Clone, Copy)]
struct Coords {
    tp: u64,
    pp: u64,
    dp: u64,
    etp: u64,
    ep: u64,
    edp: u64,
}

/// A local tensor and the buffer it lies in.
struct Held {
    tensor: LocalTensor,
    group: Group,
    /// The model chunk that registers it.
    chunk: usize,
    is_shared: bool,
}

/// The data parallel group that cuts a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Dense,
    Expert,
}

impl<'a> Megatron<'a> {
    /// Checks the mesh against the model.
    pub(super) fn new(
        model: &'a Model,
        layout: &TrainerLayout,
        mesh: &MegatronMesh,
    ) -> Result<Self, LayoutError> {
        let text = layout.to_string();
        let decoder = model.decoder().ok_or_else(|| LayoutError::NoConverter { layout: text.clone() })?;
        let config = model.config();
        let MegatronMesh { tp, pp, vpp, dp, ep, etp, .. } = *mesh;
        let [tp, pp, vpp, dp, ep, etp] = [tp, pp, vpp, dp, ep, etp].map(u64::from);
        let axis = |name, size| Axis { layout: &text, name, size };
        for (name, size) in [("pp", pp), ("vpp", vpp), ("dp", dp), ("ep", ep), ("etp", etp)] {
            axis(name, size).must_be_positive()?;
        }
        axis("tp", tp).must_cut_heads(config)?;
        let qkv_rows = (config.attention_heads() + 2 * config.key_value_heads()) * config.head_dim();
        axis("tp", tp).must_divide("rows of the fused qkv", qkv_rows)?;
        if config.has_dense_layers() {
            axis("tp", tp).must_divide("intermediate_size", config.intermediate_size())?;
        }
        match (config.expert_count(), config.expert_intermediate_size()) {
            (Some(experts), Some(intermediate)) => {
                axis("ep", ep).must_divide("num_experts", experts)?;
                axis("etp", etp).must_divide("moe_intermediate_size", intermediate)?;
            }
            _ if ep > 1 => return Err(axis("ep", ep).misfit("1 on a model without experts".into())),
            _ if etp > 1 => return Err(axis("etp", etp).misfit("1 on a model without experts".into())),
            _ => (),
        }
        axis("etp", etp).must_divide("tp * dp", tp * dp)?;
        axis("ep", ep).must_divide("tp * dp / etp", tp * dp / etp)?;
        let parts = parts(config.layer_count(), &axis, [pp, vpp], mesh.layers.as_deref())?;
        check_listed(tp * dp, decoder.params_per_rank(ep).saturating_add(pp))?;
        Ok(Self { model, decoder, tp, pp, dp, ep, etp, parts, optimizer: mesh.optimizer })
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
            etp: in_stage % self.etp,
            ep: in_stage / self.etp % self.ep,
            edp: in_stage / (self.etp * self.ep),
        }
    }

    /// The parts of the model that a stage holds, by chunk.
    fn parts_of(&self, stage: u64) -> impl Iterator<Item = usize> {
        (index_of(stage)..self.parts.len()).step_by(index_of(self.pp))
    }

    fn rank(&self, at: Coords) -> Result<TrainerRank, LayoutError> {
        let held = Shard::new(self, at).register()?;
        let ranges = match self.optimizer {
            MegatronOptimizer::Distributed { bucket_elements } => {
                self.distributed(at, &held, bucket_elements)
            }
            MegatronOptimizer::Replicated => self.replicated(at, &held),
        };
        let tensors = held.iter().zip(ranges).map(|(held, range)| owned(&held.tensor, range)).collect();
        Ok(TrainerRank { name: format!("tp{}-pp{}-dp{}", at.tp, at.pp, at.dp), tensors })
    }

    /// What a rank owns of each tensor with the distributed optimizer.
    fn distributed(&self, at: Coords, held: &[Held], bucket_elements: Option<u64>) -> Vec<Range<u64>> {
        let mut buffers: BTreeMap<(usize, Dtype, Group), Vec<usize>> = BTreeMap::new();
        for (index, held) in held.iter().enumerate() {
            buffers.entry((held.chunk, held.tensor.dtype, held.group)).or_default().push(index);
        }
        // The closing size follows the dense data parallel size in both kinds of buffer, as in Megatron-Core.
        let bucket_elements = match bucket_elements {
            None => default_bucket_elements(self.dp),
            Some(0) => u64::MAX,
            Some(elements) => elements,
        };
        let mut ranges = vec![0..0; held.len()];
        for ((_, _, group), members) in buffers {
            let of_buffer = |&index: &usize| BufferParam {
                elements: held[index].tensor.elements(),
                is_shared: held[index].is_shared,
            };
            let params: Vec<_> = members.iter().map(of_buffer).collect();
            let (size, rank) = self.group(group, at);
            let buffer = Buffer::new(&params, size, bucket_elements);
            for (position, index) in members.into_iter().enumerate() {
                ranges[index] = buffer.owned(position, rank);
            }
        }
        ranges
    }

    /// What a rank owns of each tensor if its data parallel peers hold the same.
    fn replicated(&self, at: Coords, held: &[Held]) -> Vec<Range<u64>> {
        let range = |held: &Held| match self.group(held.group, at) {
            (_, 0) => 0..held.tensor.elements(),
            _ => 0..0,
        };
        held.iter().map(range).collect()
    }

    /// The size of a data parallel group, and a rank's place in it.
    const fn group(&self, group: Group, at: Coords) -> (u64, u64) {
        match group {
            Group::Dense => (self.dp, at.dp),
            Group::Expert => (self.tp * self.dp / (self.etp * self.ep), at.edp),
        }
    }
}

/// The layers of each of the `pp * vpp` parts of the model, in order of the layers.
fn parts<'t>(
    layer_count: u64,
    axis: &dyn Fn(&'static str, u64) -> Axis<'t>,
    [pp, vpp]: [u64; 2],
    sizes: Option<&[u32]>,
) -> Result<Vec<Range<usize>>, LayoutError> {
    let Some(sizes) = sizes else {
        axis("pp", pp).must_divide("num_hidden_layers", layer_count)?;
        axis("vpp", vpp).must_divide("layers of a stage", layer_count / pp)?;
        let each = layer_count / (pp * vpp);
        return Ok(stages::consecutive((0..pp * vpp).map(|_| each)));
    };
    let (count, sum) = (sizes.len() as u64, sizes.iter().copied().map(u64::from).sum());
    if count != pp * vpp {
        return Err(axis("layers", count).misfit(format!("pp * vpp = {} sizes", pp * vpp)));
    }
    if sum != layer_count {
        let expected = format!("sizes that add up to num_hidden_layers = {layer_count}");
        return Err(axis("layers", sum).misfit(expected));
    }
    Ok(stages::consecutive(sizes.iter().copied().map(u64::from)))
}
