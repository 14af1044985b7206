//! A tiny policy that is really trained, so that demos and tests need no files.
//!
//! [`TinyTrainer`] steps FP32 masters with AdamW where a [`RemapPlan`] places them: in the local tensors of the trainer's
//! ranks. Weights and gradients depend on the seed, the canonical element and the step alone, so every trainer layout
//! trains the same policy, bit for bit.

mod adamw;
mod buffers;
mod gradient;
mod noise;

pub use buffers::TensorBuffers;

use adamw::AdamW;
use driftless_device::{StateBuffer, StepMask, WordBuffer};
use driftless_layout::{
    Box2, LayoutError, Model, ModelConfig, ParamMeta, Piece, ReceiverPlan, RemapPlan, ServedDtypes,
};
use driftless_layout::{RolloutLayout, SenderPlan, TrainerLayout};
use driftless_numerics::bf16::cast;
use driftless_numerics::{Family, GroupStep, Hyperparameters, StepParams};
use driftless_types::{Dtype, index_of};
use gradient::{Gradient, initial_weight, is_norm};
use noise::Noise;

/// The tiny policy's architecture: Qwen3, 0.44 million parameters.
pub const TINY_CONFIG: &str = r#"{"model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 384,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false}"#;

/// Plans the tiny policy for a trainer layout and some rollout layouts.
///
/// # Errors
/// [`LayoutError`] if a layout does not fit the policy.
pub fn tiny_plan(trainer: &TrainerLayout, rollouts: &[RolloutLayout]) -> Result<RemapPlan, LayoutError> {
    RemapPlan::compile(&tiny_model(trainer, rollouts)?, trainer, rollouts)
}

/// The tiny policy's model, in the dtypes that the layouts say.
///
/// # Errors
/// Layouts that contradict each other.
pub fn tiny_model(trainer: &TrainerLayout, rollouts: &[RolloutLayout]) -> Result<Model, LayoutError> {
    let served = ServedDtypes::new(std::collections::BTreeMap::new(), trainer, rollouts)?;
    Model::new(ModelConfig::from_json(TINY_CONFIG)?, &served)
}

/// The optimizer's memory for one local tensor of one rank: as many values as the plan's source tensor has elements.
#[derive(Clone, Debug)]
pub struct TensorState {
    /// FP32 master weights.
    pub master: StateBuffer,
    /// First moments.
    pub exp_avg: StateBuffer,
    /// Second moments.
    pub exp_avg_sq: StateBuffer,
    /// What the last step changed, as the optimizer saw it with both weights in registers; on the host.
    pub mask: StepMask,
    /// The BF16 weights before the last step, as a trainer's model holds them until it copies the masters over.
    pub model: WordBuffer,
}

/// A trainer of the policy that a plan describes.
pub struct TinyTrainer {
    params: Vec<ParamMeta>,
    senders: Vec<SenderPlan>,
    memory: Vec<Vec<TensorState>>,
    noise: Noise,
    hyper: Hyperparameters,
    step: u64,
}

impl TinyTrainer {
    /// A trainer before its first step: initial weights in their places, moments zero.
    #[must_use]
    pub fn new(plan: &RemapPlan, seed: u64) -> Self {
        let hyper = Hyperparameters { lr: 4e-7, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        let memory = plan.senders().iter().map(zeroed_memory).collect();
        let (params, senders) = (plan.params().to_vec(), plan.senders().to_vec());
        let trainer = Self { params, senders, memory, noise: Noise::new(seed), hyper, step: 0 };
        trainer.fill_masters();
        trainer
    }

    /// Handles to the optimizer's memory: per rank, per source tensor of the plan.
    #[must_use]
    pub fn memory(&self) -> Vec<Vec<TensorState>> {
        self.memory.clone()
    }

    /// Steps taken so far.
    #[must_use]
    pub const fn steps_taken(&self) -> u64 {
        self.step
    }

    /// Takes one optimizer step on every rank, and says what it was.
    ///
    /// It takes the write guards of all buffers, one tensor at a time: nobody may hold a guard meanwhile.
    pub fn step(&mut self) -> StepParams {
        self.step += 1;
        let with_decay = AdamW::new(&self.hyper, self.step);
        let without_decay = AdamW::new(&self.without_decay(), self.step);
        let gradients: Vec<_> =
            self.params.iter().map(|param| Gradient::new(self.noise, param, self.step)).collect();
        self.for_each_piece(|piece, param, state| {
            let adamw = if is_norm(param) { &without_decay } else { &with_decay };
            step_piece(adamw, &gradients[param.id.0 as usize], piece, state);
        });
        self.step_params()
    }

    /// The served bits of a parameter now: 16-bit words in canonical order. This is the oracle of what rollouts hold.
    #[must_use]
    pub fn canonical_words(&self, param: &ParamMeta) -> Vec<u16> {
        let words = param.dtype.words();
        let mut canonical = vec![0; index_of(param.elements()) * words];
        self.for_each_piece(|piece, owner, state| {
            if owner.id != param.id {
                return;
            }
            let master = state.master.read();
            for (element, (row, col)) in elements(piece) {
                let at = index_of(row * param.cols() + col) * words;
                put(&mut canonical[at..at + words], param.dtype, master[element]);
            }
        });
        canonical
    }

    /// What a receiver must hold now: words per destination tensor, padding zero.
    #[must_use]
    pub fn expected_words(&self, receiver: &ReceiverPlan) -> Vec<Vec<u16>> {
        let canonical: Vec<_> = self.params.iter().map(|param| self.canonical_words(param)).collect();
        let tensor_words = |tensor: &driftless_layout::DestTensor| {
            let words = tensor.dtype.words();
            let mut local = vec![0; index_of(tensor.shape.elements().unwrap_or(0)) * words];
            for dest in &tensor.boxes {
                let param = &self.params[dest.param.0 as usize];
                for row in 0..dest.canonical.rows {
                    let from = row_start(param, &dest.canonical, row) * words;
                    let to = index_of(dest.dst_offset + row * dest.dst_row_stride) * words;
                    let width = index_of(dest.canonical.cols) * words;
                    local[to..to + width]
                        .copy_from_slice(&canonical[dest.param.0 as usize][from..from + width]);
                }
            }
            local
        };
        receiver.tensors.iter().map(tensor_words).collect()
    }

    fn step_params(&self) -> StepParams {
        let norm = GroupStep::new(self.step, self.without_decay());
        self.params.iter().filter(|param| is_norm(param)).fold(
            StepParams::new(self.step, self.hyper.clone()).with_family(Family::Torch),
            |params, norm_param| params.with_override(norm_param.fqn.clone(), norm.clone()),
        )
    }

    fn without_decay(&self) -> Hyperparameters {
        Hyperparameters { weight_decay: 0.0, ..self.hyper.clone() }
    }

    fn fill_masters(&self) {
        self.for_each_piece(|piece, param, state| {
            let mut master = state.master.write();
            for (element, (row, col)) in elements(piece) {
                master[element] = initial_weight(self.noise, param, row, col);
            }
        });
    }

    fn for_each_piece(&self, mut visit: impl FnMut(&Piece, &ParamMeta, &TensorState)) {
        for (sender, states) in self.senders.iter().zip(&self.memory) {
            for (tensor, state) in sender.tensors.iter().zip(states) {
                for piece in &tensor.pieces {
                    visit(piece, &self.params[piece.param.0 as usize], state);
                }
            }
        }
    }
}

fn zeroed_memory(sender: &SenderPlan) -> Vec<TensorState> {
    let zeros = |elements| StateBuffer::new(vec![0.0; index_of(elements)]);
    let state = |elements| TensorState {
        master: zeros(elements),
        exp_avg: zeros(elements),
        exp_avg_sq: zeros(elements),
        mask: StepMask::new(index_of(elements)),
        model: WordBuffer::new(vec![0; index_of(elements)]),
    };
    sender.tensors.iter().map(|tensor| state(tensor.elements())).collect()
}

fn step_piece(adamw: &AdamW, gradient: &Gradient, piece: &Piece, state: &TensorState) {
    let (mut master, mut exp_avg, mut exp_avg_sq) =
        (state.master.write(), state.exp_avg.write(), state.exp_avg_sq.write());
    let (mut model, mut mask) = (state.model.write(), state.mask.host().expect("a mask on the host"));
    for (i, (row, col)) in elements(piece) {
        model[i] = cast(master[i]);
        adamw.step(&mut master[i], &mut exp_avg[i], &mut exp_avg_sq[i], gradient.at(row, col));
        if cast(master[i]) != model[i] {
            mask.insert(i);
        }
    }
}

/// The elements of a piece: index in the source tensor, canonical row and column.
fn elements(piece: &Piece) -> impl Iterator<Item = (usize, (u64, u64))> {
    let Box2 { row, rows, col, cols } = piece.canonical;
    let places = (row..row + rows).flat_map(move |row| (col..col + cols).map(move |col| (row, col)));
    (index_of(piece.src_offset)..).zip(places)
}

fn row_start(param: &ParamMeta, canonical: &Box2, row: u64) -> usize {
    index_of((canonical.row + row) * param.cols() + canonical.col)
}

fn put(words: &mut [u16], dtype: Dtype, master: f32) {
    match dtype {
        Dtype::Bf16 => words[0] = cast(master),
        Dtype::Fp32 => {
            let bytes = master.to_le_bytes();
            words.copy_from_slice(&[
                u16::from_le_bytes([bytes[0], bytes[1]]),
                u16::from_le_bytes([bytes[2], bytes[3]]),
            ]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trainer(layout: &str, seed: u64) -> (RemapPlan, TinyTrainer) {
        let plan = tiny_plan(&layout.parse().unwrap(), &["vllm:tp=2".parse().unwrap()]).unwrap();
        let trainer = TinyTrainer::new(&plan, seed);
        (plan, trainer)
    }

    fn policy(plan: &RemapPlan, trainer: &TinyTrainer) -> Vec<Vec<u16>> {
        plan.params().iter().map(|param| trainer.canonical_words(param)).collect()
    }

    #[test]
    fn every_layout_trains_the_same_policy() {
        let (plan, mut reference) = trainer("hf", 5);
        for layout in ["megatron:tp=2,pp=2,dp=2", "megatron:tp=2,dp=3"] {
            let (_, mut sharded) = trainer(layout, 5);
            assert_eq!(policy(&plan, &reference), policy(&plan, &sharded), "{layout} before the first step");
            assert_eq!(reference.step(), sharded.step());
            assert_eq!(policy(&plan, &reference), policy(&plan, &sharded), "{layout} after it");
            reference = trainer("hf", 5).1;
        }
        assert_ne!(policy(&plan, &trainer("hf", 6).1), policy(&plan, &reference));
    }

    #[test]
    fn each_step_changes_a_realistic_share_of_the_weights() {
        let (plan, mut trainer) = trainer("hf", 1);
        let mut before = policy(&plan, &trainer);
        for step in 1..=10 {
            trainer.step();
            let after = policy(&plan, &trainer);
            let all = after.iter().map(Vec::len).sum::<usize>();
            let changed = before.iter().flatten().zip(after.iter().flatten()).filter(|(a, b)| a != b).count();
            let percent = 100.0 * changed as f64 / all as f64;
            assert!((0.2..5.0).contains(&percent), "step {step}: {percent} % of {all}");
            before = after;
        }
    }

    #[test]
    fn receivers_hold_the_canonical_words() {
        let (plan, mut trainer) = trainer("megatron:tp=2,pp=2,dp=2", 3);
        trainer.step();
        let receiver = &plan.replicas()[0].receivers[1];
        let held = trainer.expected_words(receiver);
        for (tensor, words) in receiver.tensors.iter().zip(&held) {
            for dest in tensor.boxes.iter() {
                let param = plan.param(dest.param);
                let canonical = trainer.canonical_words(param);
                let last_row = dest.canonical.rows - 1;
                let from = row_start(param, &dest.canonical, last_row);
                let to = index_of(dest.dst_offset + last_row * dest.dst_row_stride);
                assert_eq!(words[to], canonical[from], "{}", tensor.name);
            }
        }
    }
}
