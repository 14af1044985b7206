//! The tensors that one Megatron rank registers, and the boxes of the model in each.

use super::{Coords, Group, Held, Megatron};
use crate::error::LayoutError;
use crate::geometry::Box2;
use crate::local::LocalTensor;
use crate::model::{Feedforward, GatedMlp, Layer};
use driftless_types::{ParamId, index_of};

/// The vocabulary is padded to a multiple of tp times this.
const VOCAB_ALIGNMENT: u64 = 128;

/// The tensors of one rank, while they are registered.
pub(super) struct Shard<'a> {
    mesh: &'a Megatron<'a>,
    at: Coords,
    /// The chunk that is being registered.
    chunk: usize,
    held: Vec<Held>,
}

impl<'a> Shard<'a> {
    pub(super) const fn new(mesh: &'a Megatron<'a>, at: Coords) -> Self {
        Self { mesh, at, chunk: 0, held: Vec::new() }
    }

    /// Registers everything, in the order that the parent module documents.
    pub(super) fn register(mut self) -> Result<Vec<Held>, LayoutError> {
        let mesh = self.mesh;
        let is_chunked = index_of(mesh.pp) < mesh.parts.len();
        for (chunk, part) in mesh.parts_of(self.at.pp).enumerate() {
            self.chunk = chunk;
            let prefix = if is_chunked { format!("model{chunk}.") } else { String::new() };
            self.part(&prefix, part)?;
        }
        Ok(self.held)
    }

    /// One part of the model; the names of its tensors begin with `prefix`.
    fn part(&mut self, prefix: &str, part: usize) -> Result<(), LayoutError> {
        let mesh = self.mesh;
        let decoder = mesh.decoder;
        // Only an embedding that lies on two stages is shared between them.
        let is_shared = decoder.lm_head.is_none() && mesh.pp > 1;
        if part == 0 {
            let name = format!("{prefix}embedding.word_embeddings.weight");
            let embedding = self.vocabulary(name, decoder.embed)?;
            self.push_embedding(embedding, is_shared);
        }
        for (local, layer) in decoder.layers[mesh.parts[part].clone()].iter().enumerate() {
            self.layer(&format!("{prefix}decoder.layers.{local}"), layer)?;
        }
        if part + 1 == mesh.parts.len() {
            self.replicated(format!("{prefix}decoder.final_layernorm.weight"), decoder.final_norm)?;
            self.output_layer(format!("{prefix}output_layer.weight"), is_shared)?;
        }
        Ok(())
    }

    fn output_layer(&mut self, name: String, is_shared: bool) -> Result<(), LayoutError> {
        let decoder = self.mesh.decoder;
        let mut output = match (decoder.lm_head, is_shared) {
            (Some(lm_head), _) => self.vocabulary(name, lm_head)?,
            (None, true) => self.vocabulary(name, decoder.embed)?,
            // Tied within one stage: the embedding's own storage.
            (None, false) => return Ok(()),
        };
        if is_shared {
            // LY-1: the copy on the last stage is not an owner.
            output.boxes.clear();
        }
        self.push_embedding(output, is_shared);
        Ok(())
    }

    fn layer(&mut self, prefix: &str, layer: &Layer) -> Result<(), LayoutError> {
        let attention = format!("{prefix}.self_attention");
        self.replicated(format!("{attention}.linear_qkv.layer_norm_weight"), layer.input_norm)?;
        self.qkv(format!("{attention}.linear_qkv.weight"), layer.qkv)?;
        if let Some(bias) = layer.qkv_bias {
            self.qkv(format!("{attention}.linear_qkv.bias"), bias)?;
        }
        if let Some([query, key]) = layer.qk_norms {
            self.replicated(format!("{attention}.q_layernorm.weight"), query)?;
            self.replicated(format!("{attention}.k_layernorm.weight"), key)?;
        }
        let projection = self.columns(format!("{attention}.linear_proj.weight"), layer.o, self.dense())?;
        self.push(Group::Dense, projection);
        match &layer.feedforward {
            Feedforward::Dense(mlp) => self.dense_mlp(&format!("{prefix}.mlp"), layer.post_norm, mlp),
            Feedforward::Experts { router, experts } => {
                self.replicated(format!("{prefix}.pre_mlp_layernorm.weight"), layer.post_norm)?;
                self.replicated(format!("{prefix}.mlp.router.weight"), *router)?;
                self.experts(&format!("{prefix}.mlp.experts"), experts)
            }
        }
    }

    fn dense_mlp(&mut self, prefix: &str, norm: ParamId, mlp: &GatedMlp) -> Result<(), LayoutError> {
        self.replicated(format!("{prefix}.linear_fc1.layer_norm_weight"), norm)?;
        let fc1 = self.gate_up(format!("{prefix}.linear_fc1.weight"), mlp, self.dense())?;
        self.push(Group::Dense, fc1);
        let fc2 = self.columns(format!("{prefix}.linear_fc2.weight"), mlp.down, self.dense())?;
        self.push(Group::Dense, fc2);
        Ok(())
    }

    /// The experts of this rank, cut over the expert tensor parallel group.
    fn experts(&mut self, prefix: &str, experts: &[GatedMlp]) -> Result<(), LayoutError> {
        let local_count = experts.len() / index_of(self.mesh.ep);
        let local = &experts[index_of(self.at.ep) * local_count..][..local_count];
        let cut = Cut { of: self.mesh.etp, index: self.at.etp };
        for (index, mlp) in local.iter().enumerate() {
            let fc1 = self.gate_up(format!("{prefix}.linear_fc1.weight{index}"), mlp, cut)?;
            self.push(Group::Expert, fc1);
        }
        for (index, mlp) in local.iter().enumerate() {
            let fc2 = self.columns(format!("{prefix}.linear_fc2.weight{index}"), mlp.down, cut)?;
            self.push(Group::Expert, fc2);
        }
        Ok(())
    }

    /// The cut of everything but experts.
    const fn dense(&self) -> Cut {
        Cut { of: self.mesh.tp, index: self.at.tp }
    }

    fn push(&mut self, group: Group, tensor: LocalTensor) {
        self.held.push(Held { tensor, group, chunk: self.chunk, is_shared: false });
    }

    fn push_embedding(&mut self, tensor: LocalTensor, is_shared: bool) {
        self.held.push(Held { tensor, group: Group::Dense, chunk: self.chunk, is_shared });
    }

    /// A tensor that every tensor parallel rank holds whole. LY-1: rank 0 owns it.
    fn replicated(&mut self, name: String, param: ParamId) -> Result<(), LayoutError> {
        let mut tensor = LocalTensor::whole(self.mesh.model, name, param)?;
        if self.at.tp != 0 {
            tensor.boxes.clear();
        }
        self.push(Group::Dense, tensor);
        Ok(())
    }

    /// Query groups interleaved: g query heads, one key head, one value head. A rank's rows may cut a group.
    fn qkv(&mut self, name: String, of: [ParamId; 3]) -> Result<(), LayoutError> {
        let config = self.mesh.model.config();
        let (head, groups) = (config.head_dim(), config.key_value_heads());
        let queries = config.attention_heads() / groups * head;
        let group_rows = queries + 2 * head;
        let local_rows = groups * group_rows / self.mesh.tp;
        let first = self.at.tp * local_rows;
        let here = first..first + local_rows;
        let metas = of.map(|param| self.mesh.model.meta(param));
        let shape = metas[0].shape_of_rows(local_rows);
        let mut tensor = LocalTensor::new(self.mesh.model, name, shape, &of)?;
        for group in 0..groups {
            let mut row = group * group_rows;
            for (meta, rows) in metas.into_iter().zip([queries, head, head]) {
                let (from, to) = (row.max(here.start), (row + rows).min(here.end));
                if from < to {
                    let before = group * rows;
                    let cut = before + from - row..before + to - row;
                    tensor = tensor.with_rows(meta, cut, from - here.start);
                }
                row += rows;
            }
        }
        self.push(Group::Dense, tensor);
        Ok(())
    }

    /// A share of the gate's rows, then the same share of the up projection's.
    fn gate_up(&self, name: String, mlp: &GatedMlp, cut: Cut) -> Result<LocalTensor, LayoutError> {
        let model = self.mesh.model;
        let (gate, up) = (model.meta(mlp.gate), model.meta(mlp.up));
        let rows = gate.rows() / cut.of;
        let share = cut.index * rows..(cut.index + 1) * rows;
        let tensor = LocalTensor::new(model, name, gate.shape_of_rows(2 * rows), &[mlp.gate, mlp.up])?;
        Ok(tensor.with_rows(gate, share.clone(), 0).with_rows(up, share, rows))
    }

    /// A share of the columns.
    fn columns(&self, name: String, param: ParamId, cut: Cut) -> Result<LocalTensor, LayoutError> {
        let meta = self.mesh.model.meta(param);
        let (rows, cols) = (meta.rows(), meta.cols() / cut.of);
        let tensor = LocalTensor::new(self.mesh.model, name, [rows, cols], &[param])?;
        Ok(tensor.with(param, Box2::new(0, rows, cut.index * cols, cols), 0, cols))
    }

    /// A tensor parallel share of the padded vocabulary; padding rows are no canonical elements.
    fn vocabulary(&self, name: String, param: ParamId) -> Result<LocalTensor, LayoutError> {
        let (meta, tp) = (self.mesh.model.meta(param), self.mesh.tp);
        let vocab = meta.rows();
        let local_rows = vocab.next_multiple_of(VOCAB_ALIGNMENT * tp) / tp;
        let bound = |rank: u64| (rank * local_rows).min(vocab);
        let rows = bound(self.at.tp)..bound(self.at.tp + 1);
        let tensor = LocalTensor::new(self.mesh.model, name, meta.shape_of_rows(local_rows), &[param])?;
        Ok(tensor.with_rows(meta, rows, 0))
    }
}

/// Which of how many equal shares.
#[derive(Clone, Copy)]
struct Cut {
    of: u64,
    index: u64,
}
