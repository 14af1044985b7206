//! Every detector and every way of naming the family ends in the same bits; what no gate sees is caught and repaired.

use crate::fixture::{Copied, POLICY_7, TRAINER_7, Tensors, golden, sync};
use serde_json::{Value, json};
use std::fs;

const LAYOUTS: [&str; 6] =
    ["--trainer", "megatron:tp=2,pp=2,dp=2", "--rollout", "vllm:tp=4", "--rollout", "sglang:tp=2"];

fn versions(report: &Value) -> &Vec<Value> {
    report["versions"].as_array().expect("versions")
}

#[test]
fn every_detector_and_family_ends_in_the_same_bits() {
    for folder in ["nano-dense", "nano-moe"] {
        let receivers = |options: &[&str]| {
            let run = sync(&golden(folder), &[&LAYOUTS[..], options].concat());
            assert_eq!(run.code, 0, "{folder} {options:?}: {}", run.stderr);
            let report = run.report();
            assert_eq!(versions(&report).len(), 2);
            for version in versions(&report) {
                assert_eq!(version["verified"], true, "{folder} {options:?}");
                assert_eq!((&version["repaired"], &version["dense"]), (&json!(0), &json!([])));
                let [changed, sent, elements] =
                    ["changed", "sent", "elements"].map(|key| version[key].as_u64().expect("a number"));
                assert!(
                    changed > 0 && changed <= sent && sent < elements / 4,
                    "{folder} {options:?}: {version}"
                );
            }
            report["receivers"].to_string()
        };
        let expected = receivers(&[]);
        for detector in ["inversion", "snapshot", "pre-copy", "in-step"] {
            for family in ["agnostic", "torch"] {
                assert_eq!(receivers(&["--detector", detector, "--family", family]), expected);
            }
        }
    }
}

/// Exit 0 and every weight right: the one version, and the warnings that say what it took.
fn caught(copied: &Copied) -> (Value, Vec<String>) {
    let run = sync(copied.path(), &LAYOUTS);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let version = versions(&run.report())[0].clone();
    assert_eq!(version["verified"], true);
    let warnings = run.stderr.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned);
    (version, warnings.collect())
}

fn is_repaired(copied: &Copied) {
    let (version, warnings) = caught(copied);
    assert!(version["repaired"].as_u64() > Some(0), "{version}");
    let is_told = |line: &String| line.contains("v7: ") && line.contains("repaired after a digest disagreed");
    assert!(warnings.iter().any(is_told), "{warnings:?}");
}

#[test]
fn a_wrong_learning_rate_is_caught_by_the_digest_and_repaired() {
    for family in ["agnostic", "torch"] {
        let copied = Copied::of("nano-dense");
        copied.edit(TRAINER_7, |state| {
            state.set("lr", "3e-8");
            state.set("family", family);
        });
        is_repaired(&copied);
    }
}

/// The second of two steps under the number of the first: masters that moved twice, and moments that tell of one move.
#[test]
fn two_steps_reported_as_one_are_caught_by_the_digest_and_repaired() {
    let copied = Copied::of("nano-dense");
    let mut state = Tensors::read(&golden("nano-dense").join("trainer-step-0008.safetensors"));
    state.set("step", "7");
    state.write(&copied.file(TRAINER_7));
    fs::copy(golden("nano-dense").join("policy-step-0008.safetensors"), copied.file(POLICY_7))
        .expect("a file");
    is_repaired(&copied);
}

/// The same under its own number: the counter says so, and no digest needs to.
#[test]
fn two_steps_that_are_counted_go_dense_by_their_gate() {
    let copied = Copied::of("nano-dense");
    for file in [POLICY_7, TRAINER_7] {
        fs::remove_file(copied.file(file)).expect("a file");
        let later = file.replace('7', "8");
        fs::copy(golden("nano-dense").join(&later), copied.file(&later)).expect("a file");
    }
    let (version, warnings) = caught(&copied);
    assert_eq!(version["repaired"], 0);
    assert!(warnings.iter().all(|line| line.ends_with("sent whole: gate step-counter")), "{warnings:?}");
    assert_eq!(warnings.len(), 1);
}
