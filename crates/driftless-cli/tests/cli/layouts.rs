//! Every trainer layout against every rollout layout, on policies that PyTorch trained.

use crate::fixture::{Tensors, golden, sync};
use serde_json::Value;
use std::collections::BTreeSet;

const TRAINERS: [&str; 3] = ["hf", "megatron:tp=2,pp=2,dp=2", "megatron:tp=2,dp=3"];
const EXPERT_PARALLEL: &str = "megatron:tp=2,ep=4,dp=4";
const ROLLOUTS: [&str; 6] = ["hf", "vllm:tp=1", "vllm:tp=2", "vllm:tp=4", "vllm:tp=8", "sglang:tp=2,ep=2"];

/// The widest tables and the rarest cuts: groups that span ranks, uneven and virtual stages, shards that end in mid-row.
const RARE_TRAINERS: [&str; 11] = [
    "megatron:tp=4,dp=3",
    "megatron:pp=1,vpp=2",
    "megatron:pp=2,layers=1+1",
    "megatron:tp=2,dp=2,zero=0",
    "megatron:tp=2,dp=2,bucket=4096",
    "fsdp:world=5",
    "hsdp:world=4,replicas=2",
    "deepspeed:world=3,stage=1",
    "deepspeed:world=3,stage=2",
    "deepspeed:world=3,stage=2,groups=2",
    "deepspeed:world=3,stage=3",
];
const EXPERT_TENSOR_PARALLEL: &str = "megatron:tp=2,dp=2,ep=2,etp=2";
/// Every option of every engine.
const EVERY_ROLLOUT: [&str; 12] = [
    "hf",
    "hf:router=fp32",
    "vllm:tp=2,pp=2",
    "vllm:tp=8",
    "vllm:tp=2,ep=2",
    "vllm:tp=4,ep=4,placement=linear",
    "vllm:tp=2,ep=2,placement=round-robin",
    "vllm:tp=4,w13=swapped",
    "vllm:tp=2,router=fp32",
    "sglang:tp=2,pp=2",
    "sglang:tp=4,ep=2",
    "sglang:tp=2,ep=2,w13=swapped,router=fp32",
];

/// Canonical elements whose bits differ from one recorded policy to the next, and all of them.
fn changed_elements(folder: &str, step: u64) -> (u64, u64) {
    let policy =
        |step| Tensors::read(&golden(folder).join(format!("policy-step-{step:04}.safetensors"))).tensors;
    let (before, after) = (policy(step - 1), policy(step));
    let (mut changed, mut all) = (0, 0);
    for (name, tensor) in &after {
        let width = tensor.dtype.bitsize() / 8;
        let pairs = before[name].bytes.chunks(width).zip(tensor.bytes.chunks(width));
        all += pairs.len() as u64;
        changed += pairs.filter(|(old, new)| old != new).count() as u64;
    }
    (changed, all)
}

fn check_report(folder: &str, report: &Value, what: &str) {
    let versions = report["versions"].as_array().expect("versions");
    assert_eq!(versions.len(), 2, "{what}");
    for (version, step) in versions.iter().zip([7, 8]) {
        let (changed, all) = changed_elements(folder, step);
        assert_eq!(version["version"], step, "{what}");
        assert_eq!(version["elements"], all, "{what}");
        assert_eq!(version["changed"], changed, "{what}");
        assert_eq!(version["verified"], true, "{what}");
        assert_eq!(version["repaired"], 0, "{what}");
        assert_eq!(version["dense"], Value::Array(Vec::new()), "{what}");
        let number = |key: &str| version[key].as_u64().expect("a number");
        assert!((changed..all).contains(&number("sent")), "{what}: sent {}", number("sent"));
        assert!(number("wire_bytes") < number("dense_bytes"), "{what}: {version}");
        let share = version["share"].as_f64().expect("a number");
        assert!((share - changed as f64 / all as f64).abs() < 1e-12, "{what}");
    }
    let receivers = report["receivers"].as_array().expect("receivers");
    let names: BTreeSet<_> = receivers.iter().map(|receiver| receiver["name"].as_str()).collect();
    assert_eq!(names.len(), receivers.len(), "{what}: names are unique");
    assert!(receivers.iter().all(|receiver| receiver["version"] == 8), "{what}");
}

fn check(folder: &str, trainer: &str, rollouts: &[&str], detector: &str) -> Value {
    let mut args = vec!["--trainer", trainer, "--detector", detector];
    args.extend(rollouts.iter().flat_map(|rollout| ["--rollout", rollout]));
    let what = format!("{folder} {}", args.join(" "));
    let run = sync(&golden(folder), &args);
    assert_eq!(run.code, 0, "{what}: {}", run.stderr);
    let report = run.report();
    check_report(folder, &report, &what);
    report
}

#[test]
fn the_dense_policy_is_identical_on_every_layout() {
    for trainer in TRAINERS {
        for rollout in ROLLOUTS {
            check("nano-dense", trainer, &[rollout], "inversion");
        }
    }
}

#[test]
fn the_moe_policy_is_identical_on_every_layout() {
    for trainer in TRAINERS.into_iter().chain([EXPERT_PARALLEL]) {
        for rollout in ROLLOUTS {
            check("nano-moe", trainer, &[rollout], "inversion");
        }
    }
}

#[test]
fn two_different_replicas_follow_at_once() {
    let report = check("nano-dense", "megatron:tp=2,pp=2,dp=2", &["vllm:tp=4", "sglang:tp=2"], "inversion");
    let names = report["receivers"].as_array().expect("receivers").iter().map(|r| r["name"].as_str());
    let names: Vec<_> = names.collect::<Option<_>>().expect("names");
    assert_eq!(names[0], "rollout0/tp0-pp0");
    assert_eq!(names[4], "rollout1/tp0-pp0");
    check("nano-moe", EXPERT_PARALLEL, &["vllm:tp=8", "sglang:tp=2,ep=2"], "inversion");
}

#[test]
fn the_snapshot_detector_sends_exactly_what_changed() {
    for (folder, trainer) in [("nano-dense", "megatron:tp=2,dp=3"), ("nano-moe", EXPERT_PARALLEL)] {
        let report = check(folder, trainer, &["vllm:tp=4", "hf"], "snapshot");
        if folder == "nano-dense" {
            for version in report["versions"].as_array().expect("versions") {
                assert_eq!(version["sent"], version["changed"]);
            }
        }
    }
}

#[test]
fn equal_weights_have_equal_digests_on_every_trainer_layout() {
    let digests = TRAINERS.map(|trainer| {
        let report = check("nano-dense", trainer, &["vllm:tp=2"], "inversion");
        report["receivers"].to_string()
    });
    assert_eq!(digests[0], digests[1]);
    assert_eq!(digests[0], digests[2]);
}

/// Syncs to each rollout alone and to all of them at once; what receivers end up with is the trainer layout's no matter.
fn check_every_rollout(folder: &str, trainers: &[&str]) {
    let digests = |report: &Value| report["receivers"].to_string();
    let expected = digests(&check(folder, "hf", &EVERY_ROLLOUT, "inversion"));
    for trainer in trainers {
        let report = check(folder, trainer, &EVERY_ROLLOUT, "inversion");
        assert_eq!(digests(&report), expected, "{folder} from {trainer}");
        for rollout in EVERY_ROLLOUT {
            check(folder, trainer, &[rollout], "inversion");
        }
    }
}

#[test]
fn the_dense_policy_is_identical_on_rare_layouts() {
    check_every_rollout("nano-dense", &RARE_TRAINERS);
}

#[test]
fn the_moe_policy_is_identical_on_rare_layouts() {
    check_every_rollout("nano-moe", &RARE_TRAINERS);
    check_every_rollout("nano-moe", &[EXPERT_TENSOR_PARALLEL, EXPERT_PARALLEL]);
}

#[test]
fn a_policy_without_experts_has_no_expert_ranks() {
    let run = sync(&golden("nano-dense"), &["--trainer", EXPERT_TENSOR_PARALLEL, "--rollout", "hf"]);
    assert_eq!(run.code, 2);
    assert!(run.error().contains("ep=2 does not fit"), "{}", run.stderr);
}
