//! vLLM and SGLang: fused projections, cut over tensor parallel ranks; layers, cut over stages.
//!
//! With more ranks than key-value heads each head is replicated over consecutive ranks. The vocabulary is padded to a
//! multiple of 64; padding stays as it is. The first stage has the embedding, the last one the norm and the output
//! layer. A tied output layer is the embedding's own storage where both are on one stage, and else a copy on the last:
//! a second destination, under the name that the engine gives it.
//!
//! LY-2: each tensor's boxes are disjoint and leave out nothing but padding.

use super::experts::ExpertMesh;
use super::{EngineMesh, EngineRank, ExpertPlacement, RolloutEngine, RolloutLayout};
use crate::config::ModelConfig;
use crate::error::LayoutError;
use crate::fit::{Axis, check_listed};
use crate::geometry::Box2;
use crate::local::LocalTensor;
use crate::model::{Decoder, Feedforward, GatedMlp, Layer, Model};
use crate::stages::{self, Remainder};
use driftless_types::ParamId;
use std::ops::Range;

/// The vocabulary is padded to a multiple of this.
const VOCAB_ALIGNMENT: u64 = 64;

/// A mesh that has been checked against its model.
pub(super) struct Sharded<'a> {
    model: &'a Model,
    decoder: &'a Decoder,
    tp: u64,
    experts: ExpertMesh,
    /// The layers of each stage.
    stages: Vec<Range<usize>>,
    /// What the copy of a tied embedding is called.
    tied_copy: &'static str,
}

impl<'a> Sharded<'a> {
    /// Checks the mesh against the model.
    pub(super) fn new(
        model: &'a Model,
        decoder: &'a Decoder,
        layout: &RolloutLayout,
        mesh: EngineMesh,
    ) -> Result<Self, LayoutError> {
        let config = model.config();
        let text = layout.to_string();
        let axis = |name, size: u64| Axis { layout: &text, name, size };
        let [tp, pp] = [mesh.tp, mesh.pp].map(u64::from);
        axis("tp", tp).must_cut_heads(config)?;
        let padded = config.vocab_size().next_multiple_of(VOCAB_ALIGNMENT);
        axis("tp", tp).must_divide("the padded vocab_size", padded)?;
        if config.has_dense_layers() {
            axis("tp", tp).must_divide("intermediate_size", config.intermediate_size())?;
        }
        axis("pp", pp).must_be_positive()?;
        if pp > config.layer_count() {
            return Err(
                axis("pp", pp).misfit(format!("at most num_hidden_layers = {}", config.layer_count()))
            );
        }
        let experts = experts(config, layout.engine, mesh, &axis)?;
        check_listed(tp, decoder.params_per_rank(experts.ep) + pp)?;
        let (remainder, tied_copy) = match layout.engine {
            RolloutEngine::Sglang { .. } => (Remainder::Last, "lm_head.weight"),
            RolloutEngine::Vllm { .. } | RolloutEngine::Hf => {
                (Remainder::BeforeLast, "model.embed_tokens.weight")
            }
        };
        let stages = stages::of_engine(config, pp, remainder);
        Ok(Self { model, decoder, tp, experts, stages, tied_copy })
    }

    pub(super) fn ranks(&self) -> Result<Vec<EngineRank>, LayoutError> {
        let places = (0..self.stages.len()).flat_map(|stage| (0..self.tp).map(move |rank| (stage, rank)));
        let rank = |(stage, rank)| {
            Ok(EngineRank { name: format!("tp{rank}-pp{stage}"), tensors: self.rank(stage, rank)? })
        };
        places.map(rank).collect()
    }

    fn rank(&self, stage: usize, rank: u64) -> Result<Vec<LocalTensor>, LayoutError> {
        let decoder = self.decoder;
        let mut tensors = Vec::new();
        if stage == 0 {
            tensors.push(self.vocabulary(rank, "model.embed_tokens.weight", decoder.embed)?);
        }
        for index in self.stages[stage].clone() {
            self.layer(rank, &format!("model.layers.{index}"), &decoder.layers[index], &mut tensors)?;
        }
        if stage + 1 == self.stages.len() {
            tensors.push(LocalTensor::whole(self.model, "model.norm.weight".into(), decoder.final_norm)?);
            match decoder.lm_head {
                Some(lm_head) => tensors.push(self.vocabulary(rank, "lm_head.weight", lm_head)?),
                None if stage > 0 => tensors.push(self.vocabulary(rank, self.tied_copy, decoder.embed)?),
                // Tied within one stage: the embedding's own storage.
                None => (),
            }
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
        tensors.push(self.qkv(rank, format!("{prefix}.self_attn.qkv_proj.weight"), layer.qkv)?);
        if let Some(bias) = layer.qkv_bias {
            tensors.push(self.qkv(rank, format!("{prefix}.self_attn.qkv_proj.bias"), bias)?);
        }
        tensors.push(self.columns(rank, format!("{prefix}.self_attn.o_proj.weight"), layer.o)?);
        if let Some([query, key]) = layer.qk_norms {
            tensors.push(whole("self_attn.q_norm", query)?);
            tensors.push(whole("self_attn.k_norm", key)?);
        }
        tensors.push(whole("post_attention_layernorm", layer.post_norm)?);
        match &layer.feedforward {
            Feedforward::Dense(mlp) => {
                tensors.push(self.gate_up(rank, format!("{prefix}.mlp.gate_up_proj.weight"), mlp)?);
                tensors.push(self.columns(rank, format!("{prefix}.mlp.down_proj.weight"), mlp.down)?);
            }
            Feedforward::Experts { router, experts } => {
                tensors.push(whole("mlp.gate", *router)?);
                let share = self.experts.share(rank, experts);
                tensors.push(share.w13(self.model, format!("{prefix}.mlp.experts.w13_weight"))?);
                tensors.push(share.w2(self.model, format!("{prefix}.mlp.experts.w2_weight"))?);
            }
        }
        Ok(())
    }

    /// Query heads of this rank, then its key heads, then its value heads.
    fn qkv(&self, rank: u64, name: String, of: [ParamId; 3]) -> Result<LocalTensor, LayoutError> {
        let config = self.model.config();
        let (head, kv_heads) = (config.head_dim(), config.key_value_heads());
        let q_rows = config.attention_heads() / self.tp * head;
        let kv_rows = (kv_heads / self.tp).max(1) * head;
        let kv_first = rank / (self.tp / kv_heads).max(1) * kv_rows;
        let keys_or_values = kv_first..kv_first + kv_rows;
        let [query, key, value] = of.map(|param| self.model.meta(param));
        let shape = query.shape_of_rows(q_rows + 2 * kv_rows);
        let tensor = LocalTensor::new(self.model, name, shape, &of)?;
        Ok(tensor
            .with_rows(query, rank * q_rows..(rank + 1) * q_rows, 0)
            .with_rows(key, keys_or_values.clone(), q_rows)
            .with_rows(value, keys_or_values, q_rows + kv_rows))
    }

    /// This rank's rows of the gate, then the same rows of the up projection.
    fn gate_up(&self, rank: u64, name: String, mlp: &GatedMlp) -> Result<LocalTensor, LayoutError> {
        let (gate, up) = (self.model.meta(mlp.gate), self.model.meta(mlp.up));
        let rows = gate.rows() / self.tp;
        let share = rank * rows..(rank + 1) * rows;
        let shape = gate.shape_of_rows(2 * rows);
        let tensor = LocalTensor::new(self.model, name, shape, &[mlp.gate, mlp.up])?;
        Ok(tensor.with_rows(gate, share.clone(), 0).with_rows(up, share, rows))
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
        let local_rows = meta.rows().next_multiple_of(VOCAB_ALIGNMENT) / self.tp;
        let bound = |rank: u64| (rank * local_rows).min(meta.rows());
        let tensor = LocalTensor::new(self.model, name.into(), meta.shape_of_rows(local_rows), &[param])?;
        Ok(tensor.with_rows(meta, bound(rank)..bound(rank + 1), 0))
    }
}

/// Checks the expert axes against the model.
fn experts<'t>(
    config: &ModelConfig,
    engine: RolloutEngine,
    mesh: EngineMesh,
    axis: &dyn Fn(&'static str, u64) -> Axis<'t>,
) -> Result<ExpertMesh, LayoutError> {
    let (Some(count), Some(intermediate)) = (config.expert_count(), config.expert_intermediate_size()) else {
        return Ok(ExpertMesh::without_experts(mesh));
    };
    let [tp, ep] = [mesh.tp, mesh.ep].map(u64::from);
    let placement = match engine {
        RolloutEngine::Vllm { placement, .. } => {
            if ep != 1 && ep != tp {
                return Err(axis("ep", ep).misfit(format!("1 or tp = {tp}")));
            }
            if ep > count {
                return Err(axis("ep", ep).misfit(format!("at most num_experts = {count}")));
            }
            placement
        }
        RolloutEngine::Sglang { .. } | RolloutEngine::Hf => {
            axis("ep", ep).must_divide("tp", tp)?;
            axis("ep", ep).must_divide("num_experts", count)?;
            ExpertPlacement::Linear
        }
    };
    let moe_tp = tp / ep;
    axis(if ep == 1 { "tp" } else { "tp/ep" }, moe_tp).must_divide("moe_intermediate_size", intermediate)?;
    Ok(ExpertMesh { ep, moe_tp, placement, gate_up: mesh.gate_up })
}
