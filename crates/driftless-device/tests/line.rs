//! The straight line: a step of the trainer, detected, remapped and scattered, against a dense copy of the new weights.
#![allow(clippy::cast_possible_truncation, reason = "test data are small")]

mod support;

use driftless_device::{
    ChangeList, ChangeSource, CpuDevice, DetectOptions, Detected, Device, Elements, PieceDiff, PieceRule,
    UndoLog,
};
use driftless_layout::{
    Fragment, Model, ModelConfig, ReceiverPlan, RemapPlan, RolloutLayout, SenderPlan, ServedDtypes,
    TrainerLayout,
};
use driftless_numerics::{Cast, DigestKeys, Family, GroupStep, Hyperparameters, Rule, bf16};
use driftless_types::{ChangeSet, Digest, Dtype, Fqn};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use support::{RUN, Rng, State};

static RUNNING: AtomicBool = AtomicBool::new(false);
const DENSE: &str = r#"{"model_type": "qwen3", "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "tie_word_embeddings": true}"#;
const EXPERTS: &str = r#"{"model_type": "qwen3_moe", "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": false}"#;

fn plan(config: &str, trainer: &str, rollouts: &[&str]) -> RemapPlan {
    let trainer: TrainerLayout = trainer.parse().expect("the trainer's layout is text");
    let rollouts: Vec<RolloutLayout> =
        rollouts.iter().map(|text| text.parse().expect("a rollout's layout is text")).collect();
    let served = ServedDtypes::new(BTreeMap::new(), &trainer, &rollouts).expect("nothing contradicts");
    let config = ModelConfig::from_json(config).expect("the config is complete");
    let model = Model::new(config, &served).expect("the model is known");
    RemapPlan::compile(&model, &trainer, &rollouts).expect("the layouts fit the model")
}

fn hyper() -> Hyperparameters {
    Hyperparameters { lr: 2e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }
}

/// One sender's tensors. A step moves the masters as PyTorch's single-tensor AdamW does.
struct Trainer {
    states: Vec<State>,
    /// Served bits before the last step, by tensor.
    previous: Vec<Vec<u16>>,
}

impl Trainer {
    fn new(sender: &SenderPlan, rng: &mut Rng) -> Self {
        let states: Vec<State> =
            sender.tensors.iter().map(|tensor| State::random(tensor.elements() as usize, rng)).collect();
        Self { previous: vec![Vec::new(); states.len()], states }
    }

    fn step(&mut self, rng: &mut Rng) {
        let hyper = hyper();
        let keep = (1.0 - hyper.lr * hyper.weight_decay) as f32;
        let step_size = (hyper.lr / (1.0 - hyper.beta1.powi(10))) as f32;
        let root = (1.0 - hyper.beta2.powi(10)).sqrt() as f32;
        for (state, previous) in self.states.iter_mut().zip(&mut self.previous) {
            *previous = state.master.iter().map(|&x| bf16::cast(x)).collect();
            let next = State::random(state.master.len(), rng);
            (state.exp_avg, state.exp_avg_sq) = (next.exp_avg, next.exp_avg_sq);
            for ((x, m), v) in state.master.iter_mut().zip(&state.exp_avg).zip(&state.exp_avg_sq) {
                *x = *x * keep - step_size * m / (v.sqrt() / root + 1e-8);
            }
        }
    }

    fn masters(&self) -> Vec<Elements<'_, f32>> {
        self.states.iter().map(|state| (&state.master).into()).collect()
    }

    fn invert(&self, sender: &SenderPlan, plan: &RemapPlan, keys: &DigestKeys) -> Vec<Detected> {
        let rule = Rule::new(&Fqn::from("w"), Family::Torch, &GroupStep::new(10, hyper()));
        let rule = PieceRule::Rule(rule.expect("a usual step is invertible"));
        let detect = |(tensor, state): (_, &State)| {
            let tensor: &driftless_layout::SourceTensor = tensor;
            let rules = vec![rule.clone(); tensor.pieces.len()];
            let source = ChangeSource::Inversion {
                master: (&state.master).into(),
                exp_avg: (&state.exp_avg).into(),
                exp_avg_sq: (&state.exp_avg_sq).into(),
                rules: &rules,
            };
            CpuDevice::new()
                .detect(tensor, plan.params(), source, DetectOptions::default(), keys, &RUNNING)
                .expect("the plan fits")
        };
        sender.tensors.iter().zip(&self.states).map(detect).collect()
    }

    fn compare(&mut self, sender: &SenderPlan, plan: &RemapPlan, keys: &DigestKeys) -> Vec<Detected> {
        let tensors = sender.tensors.iter().zip(&self.states).zip(&mut self.previous);
        tensors
            .map(|((tensor, state), previous)| {
                let diffs = vec![PieceDiff::Compare; tensor.pieces.len()];
                let source = ChangeSource::Snapshot {
                    master: (&state.master).into(),
                    previous: previous.into(),
                    diffs: &diffs,
                };
                CpuDevice::new()
                    .detect(tensor, plan.params(), source, DetectOptions::default(), keys, &RUNNING)
                    .expect("the plan fits")
            })
            .collect()
    }
}

/// The live tensors of one receiver, with their undo logs and running digests.
#[derive(Clone)]
struct Rollout {
    tensors: Vec<Vec<u16>>,
    undo: Vec<UndoLog>,
    digests: Vec<Digest>,
    changed: u64,
}

impl Rollout {
    fn new(receiver: &ReceiverPlan) -> Self {
        let words = |tensor: &driftless_layout::DestTensor| {
            vec![0; tensor.shape.elements().expect("small") as usize * tensor.dtype.words()]
        };
        let count = receiver.tensors.len();
        Self {
            tensors: receiver.tensors.iter().map(words).collect(),
            undo: vec![UndoLog::new(); count],
            digests: vec![Digest::ZERO; count],
            changed: 0,
        }
    }

    fn apply(&mut self, plan: &RemapPlan, fragment: &Fragment, changes: &ChangeSet, keys: &DigestKeys) {
        let at = fragment.dst_tensor as usize;
        let cols = plan.param(fragment.param).cols();
        let done = CpuDevice::new()
            .scatter((&mut self.tensors[at]).into(), fragment, cols, changes, keys, &mut self.undo[at])
            .expect("the plan fits");
        self.digests[at] += done.delta;
        self.changed += done.changed;
    }

    fn undo(&mut self) {
        for (words, undo) in self.tensors.iter_mut().zip(&mut self.undo) {
            CpuDevice::new().undo(words.into(), undo).expect("the same tensor");
        }
    }

    fn prove(&self, plan: &RemapPlan, receiver: &ReceiverPlan, keys: &DigestKeys) {
        for ((tensor, words), digest) in receiver.tensors.iter().zip(&self.tensors).zip(&self.digests) {
            let found =
                CpuDevice::new().digest(words.into(), tensor, plan.params(), keys).expect("the plan fits");
            assert_eq!(found, *digest, "{}", tensor.name);
        }
    }
}

/// The cells of one sender, in its own numbering.
fn cells(sender: &SenderPlan, detected: &[Detected]) -> Vec<Digest> {
    let mut cells = vec![Digest::ZERO; sender.cells as usize];
    for found in detected {
        let first = found.first_cell as usize;
        cells[first..first + found.cells.len()].copy_from_slice(&found.cells);
    }
    cells
}

fn receivers(plan: &RemapPlan) -> Vec<&ReceiverPlan> {
    plan.replicas().iter().flat_map(|replica| &replica.receivers).collect()
}

fn dense(plan: &RemapPlan, trainers: &[Trainer], keys: &DigestKeys) -> Vec<Rollout> {
    let receivers = receivers(plan);
    let mut rollouts: Vec<Rollout> = receivers.iter().map(|receiver| Rollout::new(receiver)).collect();
    // Zeros have a digest of zero, so the deltas of a first version sum to its digests.
    for (sender, trainer) in plan.senders().iter().zip(trainers) {
        for edge in &sender.edges {
            let at = receivers.iter().position(|receiver| receiver.id == edge.receiver).expect("a receiver");
            for fragment in &edge.fragments {
                let all = CpuDevice::new()
                    .gather(&trainer.masters(), fragment, Cast::NearestEven)
                    .expect("the plan fits");
                rollouts[at].apply(plan, fragment, &all, keys);
            }
        }
    }
    rollouts
}

/// Sends what was detected, and checks every fragment's digest against its cells on the way.
fn sync(
    plan: &RemapPlan,
    sender: &SenderPlan,
    trainer: &Trainer,
    detected: Vec<Detected>,
    keys: &DigestKeys,
    rollouts: &mut [Rollout],
) {
    let receivers = receivers(plan);
    let cells = cells(sender, &detected);
    assert!(detected.iter().all(|found| found.bound_exceeded.iter().all(Option::is_none)));
    let changes: Vec<ChangeList> = detected.into_iter().map(|found| found.changes).collect();
    for edge in &sender.edges {
        let at = receivers.iter().position(|receiver| receiver.id == edge.receiver).expect("a receiver");
        for fragment in &edge.fragments {
            let all = CpuDevice::new()
                .gather(&trainer.masters(), fragment, Cast::NearestEven)
                .expect("the plan fits");
            let ChangeSet::All(words) = &all else { unreachable!("a gather gives all") };
            let (each, cols) = (fragment.dtype.words() as u64, plan.param(fragment.param).cols());
            let terms = words.iter().zip(0..).map(|(&word, at)| {
                let element = support::canonical(&fragment.canonical, cols, at / each);
                keys.term(fragment.param, element * each + at % each, word)
            });
            let claimed = fragment.cells.iter().map(|&cell| cells[cell as usize]).sum::<Digest>();
            assert_eq!(claimed, terms.sum(), "fragment {}", fragment.index);
            let set = match fragment.dtype {
                Dtype::Bf16 => CpuDevice::new().remap(&changes, fragment).expect("the plan fits"),
                Dtype::Fp32 => all,
            };
            rollouts[at].apply(plan, fragment, &set, keys);
        }
    }
}

fn keeps_identical(config: &str, trainer: &str, rollouts: &[&str]) {
    let (plan, keys, mut rng) = (plan(config, trainer, rollouts), DigestKeys::new(RUN), Rng(42));
    let mut trainers: Vec<Trainer> =
        plan.senders().iter().map(|sender| Trainer::new(sender, &mut rng)).collect();
    let mut live = dense(&plan, &trainers, &keys);
    live.iter_mut().flat_map(|rollout| &mut rollout.undo).for_each(UndoLog::clear);
    let before = live.clone();
    trainers.iter_mut().for_each(|trainer| trainer.step(&mut rng));
    let wanted = dense(&plan, &trainers, &keys);
    let mut by_snapshot = live.clone();
    for (sender, trainer) in plan.senders().iter().zip(&mut trainers) {
        let inverted = trainer.invert(sender, &plan, &keys);
        sync(&plan, sender, trainer, inverted, &keys, &mut live);
        let compared = trainer.compare(sender, &plan, &keys);
        sync(&plan, sender, trainer, compared, &keys, &mut by_snapshot);
    }
    for (at, receiver) in receivers(&plan).into_iter().enumerate() {
        assert!(live[at].tensors == wanted[at].tensors, "{} by inversion", receiver.name);
        assert!(by_snapshot[at].tensors == wanted[at].tensors, "{} by snapshot", receiver.name);
        assert!(live[at].tensors != before[at].tensors, "{} saw changes", receiver.name);
        assert_eq!(live[at].changed, by_snapshot[at].changed);
        live[at].prove(&plan, receiver, &keys);
        live[at].undo();
        assert!(live[at].tensors == before[at].tensors, "{} undone", receiver.name);
    }
}

#[test]
fn a_dense_model_stays_bit_identical_across_layouts() {
    keeps_identical(DENSE, "megatron:tp=2,pp=2,dp=2", &["vllm:tp=4", "hf"]);
}

#[test]
fn experts_with_an_fp32_router_stay_bit_identical() {
    keeps_identical(EXPERTS, "megatron:tp=2,ep=2,dp=2", &["sglang:tp=2,ep=2,router=fp32", "vllm:tp=4"]);
}
