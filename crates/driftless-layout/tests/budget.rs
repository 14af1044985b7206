//! How long full-size models take to plan, and how much memory: in a process of its own, whose peak is the plans'.

#![cfg(test)]

use driftless_layout::{Model, ModelConfig, RemapPlan, RolloutLayout, ServedDtypes};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const TIME_AT_MOST: Duration = Duration::from_secs(10);
const PEAK_AT_MOST_KIB: u64 = 1 << 20;

fn config(name: &str) -> ModelConfig {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/models");
    ModelConfig::from_json(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

/// The largest resident set of this process so far; `None` where the system does not tell.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[expect(clippy::disallowed_methods, reason = "a test that measures time, around a crate that is told it")]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn full_size_models_plan_within_their_budget() {
    let cases = [
        ("qwen3-8b.json", "megatron:tp=4,pp=2,dp=8"),
        ("qwen3-30b-a3b.json", "megatron:tp=2,pp=4,ep=8,dp=8"),
    ];
    for (name, trainer) in cases {
        for rollout in ["vllm:tp=2", "sglang:tp=4,ep=4"] {
            let start = now();
            let trainer = trainer.parse().unwrap();
            let rollouts: Vec<RolloutLayout> = vec![rollout.parse().unwrap(); 8];
            let served = ServedDtypes::new(BTreeMap::new(), &trainer, &rollouts).unwrap();
            let model = Model::new(config(name), &served).unwrap();
            let plan = RemapPlan::compile(&model, &trainer, &rollouts).unwrap();
            let took = start.elapsed();
            println!(
                "{name} {trainer} to 8 x {rollout}: {took:?}, peak {:?} KiB\n{}\n",
                peak_kib(),
                plan.summary()
            );
            assert!(took < TIME_AT_MOST, "{took:?} to plan {name}");
            assert!(peak_kib().is_none_or(|peak| peak < PEAK_AT_MOST_KIB), "{:?} KiB", peak_kib());
        }
    }
}
