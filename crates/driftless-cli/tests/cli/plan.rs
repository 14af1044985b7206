//! `driftless plan`: full-size models within their budget, reports, pictures and refusals.

use crate::fixture::{Run, driftless, golden, sync};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const PLAN_MS_AT_MOST: f64 = 10_000.0;
const PEAK_BYTES_AT_MOST: u64 = 1 << 30;

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/models").join(name)
}

fn plan(model: &Path, trainer: &str, rollouts: &[&str], more: &[&str]) -> Run {
    let model = model.to_str().expect("a plain name");
    let mut args = vec!["plan", "--model", model, "--trainer", trainer];
    args.extend(rollouts.iter().flat_map(|rollout| ["--rollout", rollout]));
    args.extend(more);
    driftless(&args)
}

fn nano(name: &str) -> PathBuf {
    golden(name).join("config.json")
}

/// What must hold of any plan, and what is known of this model.
fn check_full_size(report: &Value, replicas: u64, elements: u64) {
    let number = |key: &str| report[key].as_u64().expect(key);
    assert_eq!((number("senders"), number("replicas"), number("elements")), (64, replicas, elements));
    let spread = |key: &str| report["bytes_per_edge"][key].as_u64().expect(key);
    assert!(0 < spread("least") && spread("least") <= spread("median") && spread("median") <= spread("most"));
    assert!(spread("most") * number("edges") >= number("received_bytes"));
    let replication = report["replication"].as_f64().expect("a number");
    assert!((replication - replicas as f64).abs() < 0.02 * replicas as f64, "{replication}");
    // Boxes, not elements: a fragment has thousands of elements on average.
    assert!(number("fragments") * 1000 < number("elements") && number("fragments") >= number("edges"));
    let plan_ms = report["plan_ms"].as_f64().expect("a number");
    assert!(plan_ms < PLAN_MS_AT_MOST, "{plan_ms} ms");
    match report["peak_rss_bytes"].as_u64() {
        Some(peak) => assert!((1 << 20..PEAK_BYTES_AT_MOST).contains(&peak), "{peak} bytes"),
        None => assert!(!Path::new("/proc/self/status").exists(), "Linux tells the peak"),
    }
}

#[test]
fn full_size_models_plan_within_their_budget() {
    let models = [
        ("qwen3-8b.json", "megatron:tp=4,pp=2,dp=8", 8_190_735_360),
        ("qwen3-30b-a3b.json", "megatron:tp=2,pp=4,ep=8,dp=8", 30_532_122_624),
    ];
    for (name, trainer, elements) in models {
        for rollout in ["vllm:tp=2", "sglang:tp=4,ep=4"] {
            let run = plan(&config(name), trainer, &[rollout; 8], &["--json", "-"]);
            assert_eq!(run.code, 0, "{name} to {rollout}: {}", run.stderr);
            check_full_size(&run.report(), 8, elements);
            let ignored = name == "qwen3-8b.json" && rollout.contains("ep=");
            assert_eq!(run.stderr.matches("warning: ").count(), usize::from(ignored), "one for all replicas");
        }
    }
}

#[test]
fn the_numbers_are_lines_for_people() {
    let run = plan(&nano("nano-moe"), "megatron:tp=2,dp=2", &["vllm:tp=2,router=fp32", "hf"], &[]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let starts = [
        "model        69 parameters, 255360 elements, ",
        "senders      4, of which 0 own nothing",
        "receivers    3 in 2 replicas",
        "fragments    ",
        "boxes        ",
        "edges        ",
        "replication  2.0",
        "always dense model.layers.*.mlp.gate.weight (2 parameters, 1024 elements)",
        "plan digest  ",
        "planned in   ",
    ];
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{}", run.stdout);
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "`{line}` does not start with `{start}`");
    }
    assert!(lines[5].contains(" least, ") && lines[5].contains(" median, ") && lines[5].contains(" most"));
    assert!(!cfg!(target_os = "linux") || lines[9].contains(", peak memory "));
}

#[test]
fn a_plan_is_the_one_that_a_sync_uses() {
    // The recorded policy holds its routers in FP32, which a plan without a policy is told by an option.
    let layouts = ["--trainer", "megatron:tp=2,dp=2,router=fp32", "--rollout", "sglang:tp=2,ep=2"];
    let synced = sync(&golden("nano-moe"), &layouts).report();
    let planned = plan(&nano("nano-moe"), layouts[1], &[layouts[3]], &["--json", "-"]).report();
    assert_eq!(planned["digest"], synced["plan_digest"]);
    let other = plan(&nano("nano-moe"), layouts[1], &["sglang:tp=2"], &["--json", "-"]).report();
    assert_ne!(other["digest"], synced["plan_digest"]);
    assert_eq!((&planned["trainer"], &planned["rollouts"][0]), (&layouts[1].into(), &layouts[3].into()));
}

#[test]
fn picture_and_report_appear_whole_and_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain name").to_owned();
    let (svg, json) = (path("plan.svg"), path("plan.json"));
    fs::write(&svg, "an older picture").expect("a writable folder");
    let more = ["--svg", svg.as_str(), "--json", json.as_str()];
    let run = plan(&nano("nano-dense"), "fsdp:world=5", &["vllm:tp=2"], &more);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let picture = fs::read_to_string(&svg).expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    assert!(picture.contains("shard4 to rollout0/tp1-pp0"), "{picture}");
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("a report")).expect("JSON");
    assert_eq!(report["senders"], 5);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
    assert!(run.stdout.contains("plan digest"), "the lines still go to standard output");
    let alone = plan(&nano("nano-dense"), "fsdp:world=5", &["vllm:tp=2"], &["--svg", "-"]);
    assert_eq!((alone.code, alone.stdout), (0, picture), "the lines go to standard error");
}

#[test]
fn what_cannot_be_planned_is_bad_input() {
    let missing = config("no-such-model.json");
    let unknown = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(unknown.path(), r#"{"model_type": "mamba3"}"#).expect("a writable file");
    let dense = nano("nano-dense");
    let cases: [(&Path, &str, &str, &[&str]); 6] = [
        (&missing, "hf", "hf", &["no-such-model.json", "the model's config"]),
        (unknown.path(), "hf", "hf", &["mamba3", "qwen3_moe", "llama", "generic_tensors"]),
        (&dense, "hf", "vllm:tp=3", &["nano-dense", "--rollout vllm:tp=3", "tp=3 does not fit"]),
        (&dense, "megatron:tp=2,xp=2", "hf", &["xp"]),
        (&dense, "hf", "sglang:tp=2,dp=2", &["dp"]),
        (&dense, "hf,router=fp16", "hf", &["router"]),
    ];
    for (model, trainer, rollout, named) in cases {
        let run = plan(model, trainer, &[rollout], &[]);
        assert_eq!(run.code, 2, "{trainer} to {rollout}: {}", run.stdout);
        assert!(run.stdout.is_empty(), "{}", run.stdout);
        for name in named {
            assert!(run.stderr.contains(name), "`{name}` is not named in {}", run.stderr);
        }
    }
}

#[test]
fn targets_are_checked_before_the_work() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("missing/plan.svg");
    let missing = missing.to_str().expect("a plain name");
    let run = plan(&nano("nano-dense"), "hf", &["hf"], &["--svg", missing, "--json", "-"]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.error().contains("missing/plan.svg"));
    let run = plan(&nano("nano-dense"), "hf", &["hf"], &["--svg", "-", "--json", "-"]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.error().contains("--json and --svg"));
}
