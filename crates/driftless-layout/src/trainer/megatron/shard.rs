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
    held: Vec<Held>,
}

impl<'a> Shard<'a> {
    pub(super) const fn new(mesh: &'a Megatron<'a>, at: Coords) -> Self {
        Self { mesh, at, held: Vec::new() }
    }

    /// Registers everything, in the order that the parent module documents.
    pub(super) fn register(mut self) -> Result<Vec<Held>, LayoutError> {
        let mesh = self.mesh;
        let decoder = mesh.model.decoder();
        // Only an embedding that lies on two stages is shared between them.
        let is_shared = decoder.lm_head.is_none() && mesh.pp > 1;
        if self.at.pp == 0 {
            let embedding = self.vocabulary("embedding.word_embeddings.weight", decoder.embed)?;
            self.push_embedding(embedding, is_shared);
        }
        let layers_per_stage = index_of(mesh.model.config().layer_count() / mesh.pp);
        let first = index_of(self.at.pp) * layers_per_stage;
        for (local, layer) in decoder.layers[first..first + layers_per_stage].iter().enumerate() {
            self.layer(&format!("decoder.layers.{local}"), layer)?;
        }
        if self.at.pp + 1 == mesh.pp {
            self.replicated("decoder.final_layernorm.weight".into(), decoder.final_norm)?;
            self.output_layer(is_shared)?;
        }
        Ok(self.held)
    }

    fn output_layer(&mut self, is_shared: bool) -> Result<(), LayoutError> {
        let decoder = self.mesh.model.decoder();
        let mut output = match (decoder.lm_head, is_shared) {
            (Some(lm_head), _) => self.vocabulary("output_layer.weight", lm_head)?,
            (None, true) => self.vocabulary("output_layer.weight", decoder.embed)?,
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
        self.qkv(format!("{attention}.linear_qkv.weight"), layer)?;
        self.replicated(format!("{attention}.q_layernorm.weight"), layer.q_norm)?;
        self.replicated(format!("{attention}.k_layernorm.weight"), layer.k_norm)?;
        let projection = self.columns(format!("{attention}.linear_proj.weight"), layer.o)?;
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
        let fc1 = self.gate_up(format!("{prefix}.linear_fc1.weight"), mlp)?;
        self.push(Group::Dense, fc1);
        let fc2 = self.columns(format!("{prefix}.linear_fc2.weight"), mlp.down)?;
        self.push(Group::Dense, fc2);
        Ok(())
    }

    /// The experts of this rank, whole: the expert tensor parallel size is 1.
    fn experts(&mut self, prefix: &str, experts: &[GatedMlp]) -> Result<(), LayoutError> {
        let model = self.mesh.model;
        let local_count = experts.len() / index_of(self.mesh.ep);
        let local = &experts[index_of(self.at.ep) * local_count..][..local_count];
        for (index, mlp) in local.iter().enumerate() {
            let gate = model.meta(mlp.gate);
            let (rows, cols) = (gate.rows(), gate.cols());
            let name = format!("{prefix}.linear_fc1.weight{index}");
            let fc1 = LocalTensor::new(model, name, [2 * rows, cols], &[mlp.gate, mlp.up])?
                .with(mlp.gate, Box2::new(0, rows, 0, cols), 0, cols)
                .with(mlp.up, Box2::new(0, rows, 0, cols), rows * cols, cols);
            self.push(Group::Expert, fc1);
        }
        for (index, mlp) in local.iter().enumerate() {
            let fc2 = LocalTensor::whole(model, format!("{prefix}.linear_fc2.weight{index}"), mlp.down)?;
            self.push(Group::Expert, fc2);
        }
        Ok(())
    }

    fn push(&mut self, group: Group, tensor: LocalTensor) {
        self.held.push(Held { tensor, group, is_shared: false });
    }

    fn push_embedding(&mut self, tensor: LocalTensor, is_shared: bool) {
        self.held.push(Held { tensor, group: Group::Dense, is_shared });
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
    fn qkv(&mut self, name: String, layer: &Layer) -> Result<(), LayoutError> {
        let config = self.mesh.model.config();
        let (hidden, head, groups) = (config.hidden_size(), config.head_dim(), config.key_value_heads());
        let queries = config.attention_heads() / groups * head;
        let group_rows = queries + 2 * head;
        let local_rows = groups * group_rows / self.mesh.tp;
        let rows_here = Box2::new(self.at.tp * local_rows, local_rows, 0, hidden);
        let of = [layer.q, layer.k, layer.v];
        let mut tensor = LocalTensor::new(self.mesh.model, name, [local_rows, hidden], &of)?;
        for group in 0..groups {
            let mut row = group * group_rows;
            for (param, rows) in of.into_iter().zip([queries, head, head]) {
                if let Some(cut) = rows_here.intersection(&Box2::new(row, rows, 0, hidden)) {
                    let canonical = Box2::new(group * rows + cut.row - row, cut.rows, 0, hidden);
                    tensor = tensor.with(param, canonical, (cut.row - rows_here.row) * hidden, hidden);
                }
                row += rows;
            }
        }
        self.push(Group::Dense, tensor);
        Ok(())
    }

    /// A tensor parallel share of the gate's rows, then the same share of the up projection's.
    fn gate_up(&self, name: String, mlp: &GatedMlp) -> Result<LocalTensor, LayoutError> {
        let meta = self.mesh.model.meta(mlp.gate);
        let (rows, cols) = (meta.rows() / self.mesh.tp, meta.cols());
        let share = Box2::new(self.at.tp * rows, rows, 0, cols);
        let tensor = LocalTensor::new(self.mesh.model, name, [2 * rows, cols], &[mlp.gate, mlp.up])?;
        Ok(tensor.with(mlp.gate, share, 0, cols).with(mlp.up, share, rows * cols, cols))
    }

    /// A tensor parallel share of the columns.
    fn columns(&self, name: String, param: ParamId) -> Result<LocalTensor, LayoutError> {
        let meta = self.mesh.model.meta(param);
        let (rows, cols) = (meta.rows(), meta.cols() / self.mesh.tp);
        let tensor = LocalTensor::new(self.mesh.model, name, [rows, cols], &[param])?;
        Ok(tensor.with(param, Box2::new(0, rows, self.at.tp * cols, cols), 0, cols))
    }

    /// A tensor parallel share of the padded vocabulary; padding rows are no canonical elements.
    fn vocabulary(&self, name: &str, param: ParamId) -> Result<LocalTensor, LayoutError> {
        let meta = self.mesh.model.meta(param);
        let (vocab, hidden, tp) = (meta.rows(), meta.cols(), self.mesh.tp);
        let local_rows = vocab.next_multiple_of(VOCAB_ALIGNMENT * tp) / tp;
        let first = (self.at.tp * local_rows).min(vocab);
        let rows = local_rows.min(vocab - first);
        let tensor = LocalTensor::new(self.mesh.model, name.into(), [local_rows, hidden], &[param])?;
        Ok(tensor.with(param, Box2::new(first, rows, 0, hidden), 0, hidden))
    }
}
