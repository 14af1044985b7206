//! Bad input: one error that names the file, the tensor, what was found and what was expected; exit 2; nothing written.

use crate::fixture::{Copied, POLICY_6, POLICY_7, TRAINER_7, Tensor, driftless, sync};
use safetensors::Dtype;
use std::fs;

const Q: &str = "model.layers.0.self_attn.q_proj.weight";

/// A folder damaged by `damage` is refused with an error that contains all of `named`, and nothing is written.
fn refused(golden: &str, damage: impl FnOnce(&Copied), named: &[&str]) {
    let copied = Copied::of(golden);
    damage(&copied);
    refused_with(&copied, &["--trainer", "hf", "--rollout", "vllm:tp=2"], named);
}

fn refused_with(copied: &Copied, layouts: &[&str], named: &[&str]) {
    let before = copied.listing();
    let run = sync(copied.path(), layouts);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert_eq!(run.stdout, "", "nothing is written to standard output");
    let error = run.error();
    for part in named {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    let report = copied.file("report.json");
    let dir = copied.path().to_str().expect("a plain name");
    let args = [&["sync", dir, "--json", report.to_str().expect("a plain name")], layouts].concat();
    assert_eq!(driftless(&args).code, 2);
    assert_eq!(copied.listing(), before, "nothing is written to the folder");
}

#[test]
fn a_missing_tensor() {
    let drop_from = |file: &'static str, name: String| {
        move |copied: &Copied| copied.edit(file, |tensors| assert!(tensors.tensors.remove(&name).is_some()))
    };
    refused("nano-dense", drop_from(POLICY_6, Q.into()), &[POLICY_6, Q, "no such tensor", "[128, 64]"]);
    refused("nano-dense", drop_from(POLICY_7, Q.into()), &[POLICY_7, Q, "no such tensor", "BF16"]);
    let second_moment = format!("{Q}.exp_avg_sq");
    refused(
        "nano-dense",
        drop_from(TRAINER_7, second_moment.clone()),
        &[TRAINER_7, &second_moment, "no such tensor"],
    );
}

#[test]
fn an_extra_tensor() {
    for file in [POLICY_6, TRAINER_7] {
        let add = |copied: &Copied| {
            copied.edit(file, |tensors| {
                let copy = tensors.tensor(Q).clone();
                tensors.tensors.insert("model.layers.9.mlp.up_proj.weight".into(), copy);
            });
        };
        refused("nano-dense", add, &[file, "model.layers.9.mlp.up_proj.weight", "extra", "[128, 64]"]);
    }
}

#[test]
fn a_wrong_dtype() {
    let as_f16 = |copied: &Copied| copied.edit(POLICY_6, |tensors| tensors.tensor(Q).dtype = Dtype::F16);
    refused("nano-dense", as_f16, &[POLICY_6, Q, "F16", "BF16"]);
    let as_i32 = |copied: &Copied| copied.edit(TRAINER_7, |tensors| tensors.tensor(Q).dtype = Dtype::I32);
    refused("nano-dense", as_i32, &[TRAINER_7, Q, "I32", "F32"]);
    let router = "model.layers.1.mlp.gate.weight";
    let halve = |copied: &Copied| copied.edit(POLICY_7, |tensors| *tensors.tensor(router) = zeros(&[8, 64]));
    refused("nano-moe", halve, &[POLICY_7, router, "BF16", "F32"]);
}

#[test]
fn a_wrong_shape() {
    for file in [POLICY_6, POLICY_7, TRAINER_7] {
        let transpose = |copied: &Copied| copied.edit(file, |tensors| tensors.tensor(Q).shape.reverse());
        refused("nano-dense", transpose, &[file, Q, "[64, 128]", "[128, 64]"]);
    }
}

#[test]
fn a_layout_that_does_not_fit() {
    let copied = Copied::of("nano-dense");
    let with = |trainer: &str, rollout: &str, named: &[&str]| {
        refused_with(&copied, &["--trainer", trainer, "--rollout", rollout], named);
    };
    with("megatron:tp=3", "hf", &["config.json", "megatron:tp=3", "tp=3", "expected"]);
    with("megatron:pp=4", "hf", &["config.json", "pp=4", "expected"]);
    with("hf", "vllm:tp=5", &["vllm:tp=5", "tp=5", "expected"]);
}

#[test]
fn a_layout_that_cannot_be_read() {
    for layout in ["megatron:tp=0", "megatron:tp=2,tp=2", "megatron:xp=2", "jax", "megatron:tp=two", ""] {
        let run = driftless(&["sync", "nowhere", "--trainer", layout, "--rollout", "hf"]);
        assert_eq!(run.code, 2, "{layout}: {}", run.stderr);
        assert!(run.stderr.contains("--trainer"), "{}", run.stderr);
    }
}

#[test]
fn a_router_dtype_that_contradicts_the_policy() {
    let copied = Copied::of("nano-moe");
    let router = "model.layers.0.mlp.gate.weight";
    copied.edit(POLICY_6, |tensors| *tensors.tensor(router) = zeros(&[8, 64]));
    refused_with(
        &copied,
        &["--trainer", "hf", "--rollout", "vllm:tp=2,router=fp32"],
        &[router, "BF16", "F32"],
    );
}

#[test]
fn a_config_without_a_needed_key() {
    let rename = |copied: &Copied| copied.edit_text("config.json", "\"hidden_size\"", "\"size\"");
    refused("nano-dense", rename, &["config.json", "hidden_size", "expected"]);
}

#[test]
fn an_unknown_model_type() {
    let rename = |copied: &Copied| copied.edit_text("config.json", "\"qwen3\"", "\"mamba\"");
    refused("nano-dense", rename, &["config.json", "model_type", "mamba", "qwen3"]);
}

#[test]
fn a_config_that_is_missing_or_no_json() {
    let remove = |copied: &Copied| fs::remove_file(copied.file("config.json")).expect("a file");
    refused("nano-dense", remove, &["config.json"]);
    let cut = |copied: &Copied| fs::write(copied.file("config.json"), "{\"model_type\": ").expect("a file");
    refused("nano-dense", cut, &["config.json", "JSON"]);
}

#[test]
fn nan_in_hyperparameters() {
    for (key, value) in [("lr", "nan"), ("beta2", "NaN"), ("eps", "inf"), ("weight_decay", "-inf")] {
        let set = |copied: &Copied| copied.edit(TRAINER_7, |tensors| tensors.set(key, value));
        refused("nano-dense", set, &[TRAINER_7, &format!("`{key}`"), "a finite number"]);
    }
    let own = format!("lr@{Q}");
    let set = |copied: &Copied| copied.edit(TRAINER_7, |tensors| tensors.set(&own, "nan"));
    refused("nano-dense", set, &[TRAINER_7, &own, "NaN", "a finite number"]);
}

#[test]
fn metadata_that_is_missing_or_cannot_be_read() {
    for key in ["step", "lr", "beta1", "beta2", "eps", "weight_decay"] {
        let remove = |copied: &Copied| copied.edit(TRAINER_7, |tensors| drop(tensors.metadata.remove(key)));
        refused("nano-dense", remove, &[TRAINER_7, &format!("`{key}`"), "no such key"]);
    }
    let sets = [
        ("lr", "fast", "a finite number"),
        ("step", "7.5", "a step number"),
        ("step", "8", "step 7"),
        ("optimizer", "Muon", "AdamW"),
        ("family", "jax", "family"),
        ("amsgrad", "maybe", "true or false"),
        ("lr@model.layers.7.mlp.up_proj.weight", "1e-6", "a parameter of the model"),
        ("warmup@model.norm.weight", "1", "one of"),
    ];
    for (key, value, expected) in sets {
        let set = |copied: &Copied| copied.edit(TRAINER_7, |tensors| tensors.set(key, value));
        refused("nano-dense", set, &[TRAINER_7, key, expected]);
    }
}

#[test]
fn an_unexpected_amsgrad_state() {
    let add = |copied: &Copied| {
        copied.edit(TRAINER_7, |tensors| {
            let copy = tensors.tensor(&format!("{Q}.exp_avg_sq")).clone();
            tensors.tensors.insert(format!("{Q}.max_exp_avg_sq"), copy);
        });
    };
    refused("nano-dense", add, &[TRAINER_7, "max_exp_avg_sq", "amsgrad"]);
    let claim = |copied: &Copied| copied.edit(TRAINER_7, |tensors| tensors.set("amsgrad", "true"));
    refused("nano-dense", claim, &[TRAINER_7, "max_exp_avg_sq", "no such tensor"]);
}

#[test]
fn a_file_cut_short() {
    for file in [POLICY_6, POLICY_7, TRAINER_7] {
        let whole =
            fs::metadata(crate::fixture::golden("nano-dense").join(file)).expect("a golden file").len();
        for bytes in [0, 7, 8, 100, whole / 2, whole - 1] {
            let cut = |copied: &Copied| {
                let file =
                    fs::OpenOptions::new().write(true).open(copied.file(file)).expect("a writable file");
                file.set_len(bytes).expect("a shorter file");
            };
            refused("nano-dense", cut, &[file, "found", "expected"]);
        }
    }
}

#[test]
fn a_file_with_garbage_behind_it() {
    let append = |copied: &Copied| {
        let mut bytes = fs::read(copied.file(TRAINER_7)).expect("a file");
        bytes.push(0);
        fs::write(copied.file(TRAINER_7), bytes).expect("a writable file");
    };
    refused("nano-dense", append, &[TRAINER_7, "bytes"]);
}

#[test]
fn a_folder_without_a_start_or_a_step() {
    let remove =
        |file: &'static str| move |copied: &Copied| fs::remove_file(copied.file(file)).expect("a file");
    refused("nano-dense", remove(TRAINER_7), &["no trainer state"]);
    refused("nano-dense", remove(POLICY_6), &["no policy to start from", "below step 7"]);
    let twice = |copied: &Copied| {
        fs::copy(copied.file(POLICY_6), copied.file("policy-step-6.safetensors")).expect("a copy");
    };
    refused("nano-dense", twice, &["step 6 twice"]);
    let unnumbered = |copied: &Copied| {
        fs::copy(copied.file(POLICY_6), copied.file("policy-step-last.safetensors")).expect("a copy");
    };
    refused("nano-dense", unnumbered, &["policy-step-last.safetensors", "a step number"]);
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_work() {
    let copied = Copied::of("nano-dense");
    let (dir, target) =
        (copied.path().to_str().expect("a plain name"), copied.file("no-such-folder/report.json"));
    let target = target.to_str().expect("a plain name");
    let run = driftless(&["sync", dir, "--trainer", "hf", "--rollout", "hf", "--json", target]);
    assert_eq!(run.code, 2);
    assert_eq!(run.stdout, "");
    assert!(run.error().contains(target));
}

#[test]
fn usage_errors_are_bad_input() {
    let all: [&[&str]; 5] = [
        &[],
        &["sink"],
        &["sync", "."],
        &["sync", ".", "--trainer", "hf"],
        &["sync", ".", "--trainer", "hf", "--rollout", "hf", "--detector", "guess"],
    ];
    for args in all {
        assert_eq!(driftless(args).code, 2, "{args:?}");
    }
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor { dtype: Dtype::BF16, shape: shape.to_vec(), bytes: vec![0; 2 * shape.iter().product::<usize>()] }
}
