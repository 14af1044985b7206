//! The optimizer that a file names, how it keeps its moments, and the family that `auto` stands for.

use crate::fixture::{Copied, POLICY_6, POLICY_7, Run, TRAINER_7, Tensors, driftless, sync};
use serde_json::{Value, json};
use std::fs;

const LAYOUTS: [&str; 4] = ["--trainer", "megatron:tp=2,pp=2,dp=2", "--rollout", "vllm:tp=4"];

fn verified(copied: &Copied, options: &[&str]) -> Value {
    let run = sync(copied.path(), &[&LAYOUTS[..], options].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = run.report();
    assert_eq!(report["versions"][0]["verified"], true);
    assert_eq!(
        (&report["versions"][0]["repaired"], &report["versions"][0]["dense"]),
        (&json!(0), &json!([]))
    );
    report
}

fn sent(report: &Value) -> u64 {
    report["versions"][0]["sent"].as_u64().expect("a number")
}

fn inspected(copied: &Copied) -> Value {
    let file = copied.file(TRAINER_7);
    let run = driftless(&["inspect", file.to_str().expect("a plain name"), "--json", "-"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    run.report()["optimizer"].clone()
}

/// Masters as SGD leaves them: the starting policy minus lr times what the file has as first moment.
fn as_sgd(copied: &Copied, lr: f32) {
    let policy = Tensors::read(&copied.file(POLICY_6)).tensors;
    copied.edit(TRAINER_7, |state| {
        state.tensors.retain(|name, _| !name.ends_with(".exp_avg_sq"));
        for (name, served) in &policy {
            let buffer = floats(&state.tensor(&format!("{name}.exp_avg")).bytes);
            let before = served.bytes.as_chunks::<2>().0.iter().map(|&[low, high]| [0, 0, low, high]);
            let after = before.zip(buffer).map(|(y, m)| f32::from_le_bytes(y) - lr * m);
            state.tensor(name).bytes = after.flat_map(f32::to_le_bytes).collect();
        }
        state.metadata.retain(|key, _| !["beta1", "beta2", "eps"].contains(&key.as_str()));
        state.set("optimizer", "SGD");
        state.set("lr", &lr.to_string());
        state.set("momentum", "0.9");
    });
    fs::remove_file(copied.file(POLICY_7)).expect("a file");
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

#[test]
fn sgd_is_inverted_from_its_momentum_buffer_alone() {
    let copied = Copied::of("nano-dense");
    as_sgd(&copied, 0.01);
    let report = verified(&copied, &[]);
    let version = &report["versions"][0];
    assert!(version["changed"].as_u64() > Some(100), "{version}");
    assert!(sent(&report) < version["elements"].as_u64().expect("a number") / 2, "{version}");
    let optimizer = inspected(&copied);
    assert_eq!((&optimizer["name"], &optimizer["beta1"]), (&json!("SGD"), &json!(0.9)));
    let without = |key: &str| {
        let copied = Copied::of("nano-dense");
        as_sgd(&copied, 0.01);
        copied.edit(TRAINER_7, |state| drop(state.metadata.remove(key)));
        sync(copied.path(), &LAYOUTS)
    };
    for key in ["lr", "momentum", "weight_decay"] {
        refuses(
            &without(key),
            &[TRAINER_7, &format!("`{key}`"), "no such key", "step, lr, momentum, weight_decay"],
        );
    }
}

fn refuses(run: &Run, named: &[&str]) {
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    for part in named {
        assert!(run.error().contains(part), "`{part}` is not in: {}", run.error());
    }
}

#[test]
fn nesterov_and_unknown_moments_are_refused_by_name() {
    for (key, value, expected) in [
        ("nesterov", "True", "momentum without Nesterov"),
        ("nesterov", "maybe", "true or false"),
        ("moments", "fp8", "fp32, bf16 or bf16-stochastic"),
        ("optimizer", "NAdam", "AdamW, Adam or SGD"),
    ] {
        let copied = Copied::of("nano-dense");
        copied.edit(TRAINER_7, |state| state.set(key, value));
        refuses(&sync(copied.path(), &LAYOUTS), &[TRAINER_7, &format!("`{key}`"), expected]);
    }
}

#[test]
fn rounded_moments_cost_bytes() {
    let copied = Copied::of("nano-dense");
    let plain = sent(&verified(&copied, &[]));
    copied.edit(TRAINER_7, |state| state.set("moments", "bf16"));
    let rounded = sent(&verified(&copied, &[]));
    assert_eq!(inspected(&copied)["moments"], "bf16");
    copied.edit(TRAINER_7, |state| state.set("moments", "bf16-stochastic"));
    let stochastic = sent(&verified(&copied, &[]));
    assert!(plain < rounded && rounded < stochastic, "{plain} {rounded} {stochastic}");
}

/// Adam with L2 has its decay inside the moments: the rule must not look for it in the weights.
#[test]
fn adam_has_its_decay_inside_the_moments() {
    let copied = Copied::of("nano-dense");
    copied.edit(TRAINER_7, |state| {
        state.metadata.remove("no_decay_suffix");
        state.set("weight_decay", "0");
    });
    let undecayed = sync(copied.path(), &LAYOUTS).report();
    copied.edit(TRAINER_7, |state| {
        state.set("optimizer", "Adam");
        state.set("weight_decay", "0.5");
    });
    let coupled = sync(copied.path(), &LAYOUTS).report();
    assert_eq!(sent(&coupled), sent(&undecayed));
    assert_eq!(inspected(&copied)["weight_decay"], 0.5);
}

/// `auto` is what the file names: half away from zero is another cast, which a tie between two BF16 values shows.
#[test]
fn auto_is_the_family_of_the_file() {
    let copied = Copied::of("nano-dense");
    fs::remove_file(copied.file(POLICY_7)).expect("a file");
    let tie = f32::from_bits(0x3f80_8000).to_le_bytes();
    copied.edit(TRAINER_7, |state| {
        state.tensor("model.norm.weight").put(5, tie);
        state.set("family", "te-remainder");
    });
    let digest = |options: &[&str]| {
        let run = sync(copied.path(), &[&LAYOUTS[..], options].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.report()["receivers"][0]["digest"].to_string()
    };
    let of_file = digest(&[]);
    assert_eq!(digest(&["--family", "auto"]), of_file);
    assert_ne!(digest(&["--family", "agnostic"]), of_file);
}
