//! Weights and states that are legal, however odd.

use crate::fixture::{Copied, POLICY_6, POLICY_7, TRAINER_7, Tensors, driftless, sync};
use serde_json::json;
use std::fs;

const LAYOUTS: [&str; 4] = ["--trainer", "megatron:tp=2,pp=2,dp=2", "--rollout", "vllm:tp=4"];
const Q: &str = "model.layers.0.self_attn.q_proj.weight";
const NAN: u16 = 0xffff;
const INFINITY: u16 = 0x7f80;

fn verified(copied: &Copied) -> serde_json::Value {
    let run = sync(copied.path(), &LAYOUTS);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = run.report();
    assert_eq!(report["versions"][0]["verified"], true);
    report
}

#[test]
fn nan_and_infinite_weights_are_carried_bit_for_bit() {
    let copied = Copied::of("nano-dense");
    // Element 0 becomes a NaN, 1 stays one, 2 becomes infinite, 3 was infinite and recovers.
    copied.edit(POLICY_6, |policy| {
        policy.tensor(Q).put(1, NAN.to_le_bytes());
        policy.tensor(Q).put(3, INFINITY.to_le_bytes());
    });
    copied.edit(TRAINER_7, |state| {
        state.tensor(Q).put(0, f32::NAN.to_le_bytes());
        state.tensor(Q).put(1, f32::from_bits(0xff80_0001).to_le_bytes());
        state.tensor(Q).put(2, f32::INFINITY.to_le_bytes());
        let moments = [format!("{Q}.exp_avg"), format!("{Q}.exp_avg_sq")];
        (0..4)
            .for_each(|i| moments.iter().for_each(|name| state.tensor(name).put(i, f32::NAN.to_le_bytes())));
    });
    copied.edit(POLICY_7, |policy| {
        policy.tensor(Q).put(0, NAN.to_le_bytes());
        policy.tensor(Q).put(1, NAN.to_le_bytes());
        policy.tensor(Q).put(2, INFINITY.to_le_bytes());
    });
    let report = verified(&copied);
    assert_eq!(report["versions"][0]["repaired"], 0);
}

#[test]
fn a_policy_that_disagrees_with_the_trainer_is_not_identical() {
    let copied = Copied::of("nano-dense");
    copied.edit(POLICY_7, |policy| policy.tensor(Q).put(130, 0x1234_u16.to_le_bytes()));
    let run = sync(copied.path(), &LAYOUTS);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert_eq!(run.report()["versions"][0]["verified"], false);
    let error = run.error();
    for part in ["v7", "rollout0/tp0-pp0", "qkv_proj", "element 130", Q, "expected 0x1234"] {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn a_step_without_a_recorded_policy_is_proven_against_the_masters() {
    let copied = Copied::of("nano-moe");
    let with_policy = verified(&copied);
    fs::remove_file(copied.file(POLICY_7)).expect("a file");
    assert_eq!(verified(&copied)["receivers"], with_policy["receivers"]);
}

#[test]
fn amsgrad_divides_by_the_running_maximum() {
    let copied = Copied::of("nano-dense");
    copied.edit(TRAINER_7, |state| {
        state.set("amsgrad", "True");
        let squares: Vec<_> =
            state.tensors.keys().filter(|name| name.ends_with(".exp_avg_sq")).cloned().collect();
        for name in squares {
            let maximum = state.tensor(&name).clone();
            state.tensor(&name).bytes.fill(0);
            state.tensors.insert(name.replace(".exp_avg_sq", ".max_exp_avg_sq"), maximum);
        }
    });
    let report = verified(&copied);
    assert_eq!(report["versions"][0]["dense"], json!([]), "zeros in exp_avg_sq are not what was divided by");
}

#[test]
fn a_parameter_may_have_values_of_its_own() {
    let copied = Copied::of("nano-dense");
    copied.edit(TRAINER_7, |state| {
        state.metadata.remove("no_decay_suffix");
        let norms: Vec<_> =
            state.tensors.keys().filter(|name| name.ends_with("norm.weight")).cloned().collect();
        norms.iter().for_each(|name| state.set(&format!("weight_decay@{name}"), "0"));
        state.set("weight_decay", "0.1");
        state.set(&format!("lr@{Q}"), "3e-06");
    });
    let report = verified(&copied);
    assert_eq!(report["versions"][0]["dense"], json!([]));
}

#[test]
fn a_step_that_the_counter_skipped_goes_dense_with_a_warning() {
    let copied = Copied::of("nano-dense");
    fs::rename(copied.file(POLICY_6), copied.file("policy-step-0005.safetensors")).expect("a file");
    let run = sync(copied.path(), &LAYOUTS);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = run.report();
    assert_eq!(report["versions"][0]["verified"], true);
    assert_eq!(report["versions"][0]["dense"].as_array().map(Vec::len), Some(25), "every parameter");
    let warnings: Vec<_> = run.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(warnings.len(), 1, "one line per gate: {}", run.stderr);
    assert!(
        warnings[0].ends_with("and 24 other parameters were sent whole: gate step-counter"),
        "{warnings:?}"
    );
}

#[test]
fn the_family_of_the_command_line_wins() {
    let copied = Copied::of("nano-dense");
    let agnostic = verified(&copied);
    let run = sync(copied.path(), &[&LAYOUTS[..], &["--family", "torch"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let torch = run.report();
    assert_eq!(torch["receivers"], agnostic["receivers"]);
    let sent = |report: &serde_json::Value| report["versions"][0]["sent"].as_u64();
    assert!(sent(&torch) <= sent(&agnostic));
    let run = sync(copied.path(), &[&LAYOUTS[..], &["--family", "jax"]].concat());
    assert_eq!(run.code, 2);
}

/// Half away from zero is another cast than half to even: a master on the tie between two BF16 values shows which.
#[test]
fn the_family_decides_the_cast() {
    let copied = Copied::of("nano-dense");
    fs::remove_file(copied.file(POLICY_7)).expect("a file");
    copied.edit(TRAINER_7, |state| state.tensor(Q).put(5, f32::from_bits(0x3f80_8000).to_le_bytes()));
    let even = verified(&copied);
    copied.edit(TRAINER_7, |state| state.set("family", "te-remainder"));
    let away = verified(&copied);
    assert_ne!(even["receivers"][0]["digest"], away["receivers"][0]["digest"]);
}

#[test]
fn an_axis_without_effect_is_worth_a_warning() {
    for (golden, warnings) in [("nano-dense", 1), ("nano-moe", 0)] {
        let run = sync(Copied::of(golden).path(), &["--trainer", "hf", "--rollout", "sglang:tp=2,ep=2"]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        let lines = run.stderr.lines();
        let found = lines.filter(|line| line.starts_with("warning: --rollout sglang:tp=2,ep=2: ")).count();
        assert_eq!(found, warnings, "{}", run.stderr);
    }
}

#[test]
fn inspect_shows_what_a_file_holds() {
    let copied = Copied::of("nano-dense");
    let inspect = |file: &str| {
        let run = driftless(&["inspect", copied.file(file).to_str().expect("a plain name"), "--json", "-"]);
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.report()
    };
    let state = inspect(TRAINER_7);
    assert_eq!(state["kind"], "trainer-state");
    assert_eq!(state["optimizer"]["step"], 7);
    assert_eq!(state["optimizer"]["lr"], 3e-6);
    assert_eq!(state["optimizer"]["own"]["model.norm.weight"]["weight_decay"], 0.0);
    let policy = inspect(POLICY_7);
    assert_eq!(policy["kind"], "policy");
    let elements: usize =
        Tensors::read(&copied.file(POLICY_7)).tensors.values().map(|t| t.bytes.len() / 2).sum();
    assert_eq!(policy["elements"], elements);
    assert_eq!(policy["tensors"][0], json!({"name": "lm_head.weight", "dtype": "BF16", "shape": [512, 64]}));
}
