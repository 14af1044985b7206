//! vLLM and SGLang: fused projections, cut over tensor parallel ranks. The two agree in everything but experts.
//!
//! With more ranks than key-value heads each head is replicated over consecutive ranks. Experts are cut over
//! `tp / ep` ranks; rank s is (ep rank, share) = divmod(s, tp / ep). The vocabulary is padded to a multiple of 64;
//! padding stays as it is. A tied output layer is the embedding's own storage: no second tensor.
//!
//! LY-2: each tensor's boxes are disjoint and leave out nothing but padding.

use super::{EngineRank, RolloutLayout};
use crate::error::LayoutError;
use crate::fit::{Axis, check_listed};
use crate::geometry::Box2;
use crate::local::LocalTensor;
use crate::model::{Feedforward, GatedMlp, Layer, Model};
use driftless_types::{ParamId, index_of};

/// The vocabulary is padded to a multiple of this.
const VOCAB_ALIGNMENT: u64 = 64;

/// A mesh that has been checked against its model.
pub(super) struct Sharded<'a> {
    model: &'a Model,
    tp: u64,
    ep: u64,
}

impl<'a> Sharded<'a> {
    /// Checks the mesh against the model.
    pub(super) fn new(
        model: &'a Model,
        layout: &RolloutLayout,
        tp: u64,
        ep: u64,
    ) -> Result<Self, LayoutError> {
        let config = model.config();
        let text = layout.to_string();
        let axis = |name, size| Axis { layout: &text, name, size };
        axis("tp", tp).must_cut_heads(config)?;
        let padded = config.vocab_size().next_multiple_of(VOCAB_ALIGNMENT);
        axis("tp", tp).must_divide("the padded vocab_size", padded)?;
        if config.has_dense_layers() {
            axis("tp", tp).must_divide("intermediate_size", config.intermediate_size())?;
        }
        if let (Some(experts), Some(intermediate)) =
            (config.expert_count(), config.expert_intermediate_size())
        {
            axis("ep", ep).must_divide("tp", tp)?;
            axis("ep", ep).must_divide("num_experts", experts)?;
            let share = Axis { layout: &text, name: if ep == 1 { "tp" } else { "tp/ep" }, size: tp / ep };
            share.must_divide("moe_intermediate_size", intermediate)?;
        }
        check_listed(tp, model.decoder().params_per_rank(ep.max(1)))?;
        Ok(Self { model, tp, ep })
    }

    pub(super) fn ranks(&self) -> Result<Vec<EngineRank>, LayoutError> {
        (0..self.tp)
            .map(|rank| Ok(EngineRank { name: format!("tp{rank}-pp0"), tensors: self.rank(rank)? }))
            .collect()
    }

    fn rank(&self, rank: u64) -> Result<Vec<LocalTensor>, LayoutError> {
        let decoder = self.model.decoder();
        let mut tensors = vec![self.vocabulary(rank, "model.embed_tokens.weight", decoder.embed)?];
        for (index, layer) in decoder.layers.iter().enumerate() {
            self.layer(rank, &format!("model.layers.{index}"), layer, &mut tensors)?;
        }
        tensors.push(LocalTensor::whole(self.model, "model.norm.weight".into(), decoder.final_norm)?);
        if let Some(lm_head) = decoder.lm_head {
            tensors.push(self.vocabulary(rank, "lm_head.weight", lm_head)?);
        }
        Ok(tensors)
    }

    fn layer(
        &self,
        rank: u64,
        prefix: &str,
        layer: &Layer,
        tensors: &mut Vec<LocalTensor>,
    ) -> Result<(), LayoutError> {
        let whole =
            |name: &str, param| LocalTensor::whole(self.model, format!("{prefix}.{name}.weight"), param);
        tensors.push(whole("input_layernorm", layer.input_norm)?);
        tensors.push(self.qkv(rank, format!("{prefix}.self_attn.qkv_proj.weight"), layer)?);
        tensors.push(whole("self_attn.q_norm", layer.q_norm)?);
        tensors.push(whole("self_attn.k_norm", layer.k_norm)?);
        tensors.push(self.columns(rank, format!("{prefix}.self_attn.o_proj.weight"), layer.o)?);
        tensors.push(whole("post_attention_layernorm", layer.post_norm)?);
        match &layer.feedforward {
            Feedforward::Dense(mlp) => {
                tensors.push(self.gate_up(rank, format!("{prefix}.mlp.gate_up_proj.weight"), mlp)?);
                tensors.push(self.columns(rank, format!("{prefix}.mlp.down_proj.weight"), mlp.down)?);
            }
            Feedforward::Experts { router, experts } => {
                tensors.push(whole("mlp.gate", *router)?);
                let share = self.expert_share(rank, experts);
                tensors.push(share.w13(self.model, format!("{prefix}.mlp.experts.w13_weight"))?);
                tensors.push(share.w2(self.model, format!("{prefix}.mlp.experts.w2_weight"))?);
            }
        }
        Ok(())
    }

    /// Query heads of this rank, then its key heads, then its value heads.
    fn qkv(&self, rank: u64, name: String, layer: &Layer) -> Result<LocalTensor, LayoutError> {
        let config = self.model.config();
        let (hidden, head, kv_heads) = (config.hidden_size(), config.head_dim(), config.key_value_heads());
        let q_rows = config.attention_heads() / self.tp * head;
        let kv_rows = (kv_heads / self.tp).max(1) * head;
        let kv_first = rank / (self.tp / kv_heads).max(1) * kv_rows;
        let keys_or_values = Box2::new(kv_first, kv_rows, 0, hidden);
        let shape = [q_rows + 2 * kv_rows, hidden];
        let tensor = LocalTensor::new(self.model, name, shape, &[layer.q, layer.k, layer.v])?;
        Ok(tensor
            .with(layer.q, Box2::new(rank * q_rows, q_rows, 0, hidden), 0, hidden)
            .with(layer.k, keys_or_values, q_rows * hidden, hidden)
            .with(layer.v, keys_or_values, (q_rows + kv_rows) * hidden, hidden))
    }

    /// This rank's rows of the gate, then the same rows of the up projection.
    fn gate_up(&self, rank: u64, name: String, mlp: &GatedMlp) -> Result<LocalTensor, LayoutError> {
        let meta = self.model.meta(mlp.gate);
        let (rows, cols) = (meta.rows() / self.tp, meta.cols());
        let share = Box2::new(rank * rows, rows, 0, cols);
        let tensor = LocalTensor::new(self.model, name, [2 * rows, cols], &[mlp.gate, mlp.up])?;
        Ok(tensor.with(mlp.gate, share, 0, cols).with(mlp.up, share, rows * cols, cols))
    }

    /// This rank's columns.
    fn columns(&self, rank: u64, name: String, param: ParamId) -> Result<LocalTensor, LayoutError> {
        let meta = self.model.meta(param);
        let (rows, cols) = (meta.rows(), meta.cols() / self.tp);
        let tensor = LocalTensor::new(self.model, name, [rows, cols], &[param])?;
        Ok(tensor.with(param, Box2::new(0, rows, rank * cols, cols), 0, cols))
    }

    /// This rank's rows of the padded vocabulary.
    fn vocabulary(&self, rank: u64, name: &str, param: ParamId) -> Result<LocalTensor, LayoutError> {
        let meta = self.model.meta(param);
        let (vocab, hidden) = (meta.rows(), meta.cols());
        let local_rows = vocab.next_multiple_of(VOCAB_ALIGNMENT) / self.tp;
        let first = (rank * local_rows).min(vocab);
        let rows = local_rows.min(vocab - first);
        let tensor = LocalTensor::new(self.model, name.into(), [local_rows, hidden], &[param])?;
        Ok(tensor.with(param, Box2::new(first, rows, 0, hidden), 0, hidden))
    }

    fn expert_share<'e>(&self, rank: u64, experts: &'e [GatedMlp]) -> ExpertShare<'e> {
        let ranks_per_expert = self.tp / self.ep;
        let (ep_rank, share) = (rank / ranks_per_expert, rank % ranks_per_expert);
        let local_count = experts.len() / index_of(self.ep);
        ExpertShare {
            experts: &experts[index_of(ep_rank) * local_count..][..local_count],
            share,
            of: ranks_per_expert,
        }
    }
}

/// The experts of a rank, and which share of each expert's inner width it holds.
struct ExpertShare<'e> {
    experts: &'e [GatedMlp],
    share: u64,
    of: u64,
}

impl ExpertShare<'_> {
    /// Per local expert the share's rows of the gate, then of the up projection.
    fn w13(&self, model: &Model, name: String) -> Result<LocalTensor, LayoutError> {
        let meta = model.meta(self.experts[0].gate);
        let (rows, cols) = (meta.rows() / self.of, meta.cols());
        let share = Box2::new(self.share * rows, rows, 0, cols);
        let of: Vec<_> = self.experts.iter().flat_map(|mlp| [mlp.gate, mlp.up]).collect();
        let shape = [self.experts.len() as u64, 2 * rows, cols];
        let tensor = LocalTensor::new(model, name, shape, &of)?;
        let place = |(tensor, offset): (LocalTensor, u64), param| {
            (tensor.with(param, share, offset, cols), offset + rows * cols)
        };
        Ok(of.into_iter().fold((tensor, 0), place).0)
    }

    /// Per local expert the share's columns of the down projection.
    fn w2(&self, model: &Model, name: String) -> Result<LocalTensor, LayoutError> {
        let meta = model.meta(self.experts[0].down);
        let (rows, cols) = (meta.rows(), meta.cols() / self.of);
        let share = Box2::new(0, rows, self.share * cols, cols);
        let of: Vec<_> = self.experts.iter().map(|mlp| mlp.down).collect();
        let tensor = LocalTensor::new(model, name, [self.experts.len() as u64, rows, cols], &of)?;
        let place = |(tensor, offset): (LocalTensor, u64), param| {
            (tensor.with(param, share, offset, cols), offset + rows * cols)
        };
        Ok(of.into_iter().fold((tensor, 0), place).0)
    }
}
