//! An RL orchestrator that embeds Driftless: it owns the optimizer and the engine's weights, and asks the runtime to
//! keep the one bit-identical to the other. Run it with `cargo run --release -p embedded`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use anyhow::{Result, ensure};
use driftless::{
    Buffer, DestTensor, Detector, Family, Hyperparameters, LayoutClaim, Model, ModelConfig, Node,
    NodeOptions, RemapPlan, ReplicaId, RolloutMemory, SenderPlan, ServedDtypes, SourceBinding, SourceTensor,
    StateBuffer, StepMask, StepParams, TrainerMemory, Version, WordBuffer, bf16,
};

const CONFIG: &str = r#"{"model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 192}"#;
const HYPER: Hyperparameters =
    Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };

#[tokio::main]
async fn main() -> Result<()> {
    // 1. Model, trainer layout and engine layouts give the plan; it is computed once, from the config alone.
    let model = Model::new(ModelConfig::from_json(CONFIG)?, &ServedDtypes::default())?;
    let plan = RemapPlan::compile(&model, &"megatron:tp=2,dp=2".parse()?, &["vllm:tp=2".parse()?])?;
    let optimizer = Optimizer::new(&plan);
    let engine = engine_memory(&plan);

    // 2. The runtime works on memory that stays ours.
    let options = NodeOptions { detector: Detector::InStep, ..NodeOptions::default() };
    let node = Node::start(plan, options).await?;
    let ranks = optimizer.memory.clone();
    let mut trainer = node
        .attach_trainer(TrainerMemory { ranks, steps_taken: 0, version: Version(1), family: Family::Torch })
        .await?;
    // The engine starts empty, at a version that no patch leads from: its first sync brings everything. One that has
    // loaded version 1 would prove its layout instead (`LayoutClaim::Proven`).
    let memory = RolloutMemory::new(engine.clone(), LayoutClaim::Trusted);
    let rollout = node.attach_rollout(ReplicaId(0), memory, Version(0)).await?;
    rollout.on_pause(|serving| async move {
        println!("  engine: finish requests of version {serving}, then hold new ones");
        Ok(())
    });
    rollout.on_resume(|serving| async move {
        println!("  engine: serve version {serving}");
        Ok(())
    });

    // 3. The loop: step, report, go on.
    for step in 1..=5 {
        let guard = trainer.step_begin().await; // from here on the optimizer may write
        optimizer.step(step);
        let version = Version(step + 1);
        let sync =
            trainer.step_done(guard, version, StepParams::new(step, HYPER).with_family(Family::Torch))?;
        sync.detected().await; // no sparse value is read from our memory after this
        let outcome = sync.committed().await;
        ensure!(outcome.is_committed_everywhere(), "left behind: {:?}", outcome.replicas);
        let report = outcome.report;
        println!(
            "version {version}: {} of {} weights changed, {} bytes sent, {} would be dense",
            report.changed, report.elements, report.wire_bytes, report.dense_bytes
        );
    }

    // 4. Sample from it: `version` is what to salt a prefix cache with.
    println!("serving {}; first word of rank 0: {:#06x}", rollout.version(), engine[0][0].read()[0]);
    node.stop().await;
    Ok(())
}

/// The live weights of each rank of the replica, as the engine would have allocated them.
fn engine_memory(plan: &RemapPlan) -> Vec<Vec<WordBuffer>> {
    let tensor = |tensor: &DestTensor| {
        let elements = tensor.shape.elements().unwrap_or(0);
        WordBuffer::new(vec![0; usize::try_from(elements).unwrap_or(0) * tensor.dtype.words()])
    };
    let receivers = &plan.replicas()[0].receivers;
    receivers.iter().map(|receiver| receiver.tensors.iter().map(tensor).collect()).collect()
}

/// AdamW over the flat ranges that each trainer rank owns, with made-up gradients.
struct Optimizer {
    memory: Vec<Vec<SourceBinding>>,
}

impl Optimizer {
    fn new(plan: &RemapPlan) -> Self {
        let tensor = |tensor: &SourceTensor| {
            let weights: Vec<f32> = (0..tensor.elements()).map(|i| 0.04 * noise(i) - 0.02).collect();
            let zeros = vec![0.0; weights.len()];
            let (mask, state) = (StepMask::new(weights.len()), StateBuffer::new);
            SourceBinding::new(state(weights), state(zeros.clone()), state(zeros)).with_mask(mask)
        };
        let rank = |sender: &SenderPlan| sender.tensors.iter().map(tensor).collect();
        Self { memory: plan.senders().iter().map(rank).collect() }
    }

    fn step(&self, step: u64) {
        let t = i32::try_from(step).unwrap_or(i32::MAX);
        let corrected = HYPER.lr / (1.0 - HYPER.beta1.powi(t));
        let root = (1.0 - HYPER.beta2.powi(t)).sqrt();
        let decay = 1.0 - HYPER.lr * HYPER.weight_decay;
        for tensor in self.memory.iter().flatten() {
            // This optimizer runs on the host, and so its memory is there.
            let memory = [&tensor.master, &tensor.exp_avg, &tensor.exp_avg_sq].map(Buffer::host);
            let [Some(weights), Some(m), Some(v)] = memory else { continue };
            let (mut weights, mut m, mut v) = (weights.write(), m.write(), v.write());
            // Both weights are in registers here: the optimizer itself says what changed.
            let Some(mut mask) = tensor.mask.as_ref().and_then(StepMask::host) else { continue };
            for (i, (w, (m, v))) in (0..).zip(weights.iter_mut().zip(m.iter_mut().zip(v.iter_mut()))) {
                let gradient = 1e-3 * (noise(i as u64 ^ (step << 40)) - 0.5);
                *m += (gradient - *m) * narrow(1.0 - HYPER.beta1);
                *v = narrow(HYPER.beta2) * *v + narrow(1.0 - HYPER.beta2) * gradient * gradient;
                let update = narrow(corrected) * *m / (v.sqrt() / narrow(root) + narrow(HYPER.eps));
                let old = bf16::cast(*w);
                *w = *w * narrow(decay) - update;
                if bf16::cast(*w) != old {
                    mask.insert(i);
                }
            }
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "scalars are computed in double and rounded once, as trainers do"
)]
const fn narrow(x: f64) -> f32 {
    x as f32
}

/// A number in [0, 1) that depends on `i` alone.
fn noise(i: u64) -> f32 {
    let mixed = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    f32::from(u16::try_from((mixed ^ (mixed >> 29)) >> 48).unwrap_or(0)) / 65536.0
}
