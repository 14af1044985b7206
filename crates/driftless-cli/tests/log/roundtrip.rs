//! Every version of both golden policies through a stream, from and into several layouts, bit for bit.

use crate::fixture::{Home, LAST, VERSIONS, golden, policy, publish_checkpoint};
use crate::weights::{Tensors, compare};

const DENSE: &str = "nano-dense";
const MOE: &str = "nano-moe";

fn follow_each_version(home: &Home, name: &str, rollout: &str) {
    let folder = golden(name);
    let out = rollout.replace([':', '=', ','], "-");
    for version in VERSIONS {
        let run =
            home.follow(rollout, &out).args(["--exactly", &version.to_string(), "--json", "-"]).succeed();
        assert_eq!(run.report()["version"], version);
        let expected = Tensors::read(&policy(&folder, version));
        compare(&home.path(&out), rollout, &folder.join("config.json"), &expected);
        assert_eq!(home.state(&out)["serving"]["version"], version);
    }
}

fn publish_and_follow(home: &Home, name: &str, trainer: &str, rollouts: &[&str]) {
    let report = home.publish(&golden(name), trainer).args(["--json", "-"]).succeed().report();
    let versions = report["versions"].as_array().expect("versions");
    let kinds: Vec<_> = versions.iter().map(|version| (&version["version"], &version["base"])).collect();
    let expected = [(6.into(), serde_json::Value::Null), (7.into(), 6.into()), (8.into(), 7.into())];
    assert_eq!(kinds, expected.iter().map(|(version, base)| (version, base)).collect::<Vec<_>>());
    for delta in &versions[1..] {
        let (delta, anchor) = (delta["stored_bytes"].as_u64(), versions[0]["stored_bytes"].as_u64());
        assert!(delta.is_some() && delta < anchor, "{report}");
    }
    std::thread::scope(|scope| {
        for rollout in rollouts {
            scope.spawn(|| follow_each_version(home, name, rollout));
        }
    });
}

#[test]
fn a_dense_policy_arrives_bit_for_bit_whatever_the_layouts() {
    publish_and_follow(&Home::on_disk(), DENSE, "hf", &["hf", "vllm:tp=4"]);
    publish_and_follow(&Home::on_disk(), DENSE, "megatron:tp=2,pp=2,dp=2", &["vllm:tp=2", "sglang:tp=2"]);
    publish_and_follow(&Home::on_disk(), DENSE, "fsdp:world=4", &["hf"]);
}

#[test]
fn a_policy_of_experts_arrives_bit_for_bit_whatever_the_layouts() {
    publish_and_follow(&Home::on_disk(), MOE, "megatron:tp=2,ep=4,dp=4", &["vllm:tp=2,ep=2", "hf"]);
    publish_and_follow(&Home::on_disk(), MOE, "hf", &["sglang:tp=2,ep=2"]);
    publish_and_follow(&Home::on_disk(), MOE, "deepspeed:world=4,stage=3", &["vllm:tp=4"]);
}

#[test]
fn both_policies_arrive_through_a_real_s3_server() {
    for (name, trainer, rollout) in [
        (DENSE, "megatron:tp=2,pp=2,dp=2", ["vllm:tp=4", "hf"]),
        (MOE, "megatron:tp=2,ep=4,dp=4", ["vllm:tp=2,ep=2", "hf"]),
    ] {
        let Some(home) = Home::on_s3() else { return };
        publish_and_follow(&home, name, trainer, &rollout);
    }
}

#[test]
fn a_reader_that_comes_late_goes_from_the_anchor_to_the_end() {
    let home = Home::on_disk();
    let folder = golden(DENSE);
    home.publish(&folder, "hf").args(["--anchor-every", "1"]).succeed();
    let run = home.follow("vllm:tp=2", "late").args(["--once", "--json", "-"]).succeed();
    assert_eq!(run.report()["version"], LAST);
    let expected = Tensors::read(&policy(&folder, LAST));
    compare(&home.path("late"), "vllm:tp=2", &folder.join("config.json"), &expected);
}

#[test]
fn what_is_published_is_not_published_twice() {
    let home = Home::on_disk();
    home.publish(&golden(DENSE), "hf").succeed();
    let again = home.publish(&golden(DENSE), "megatron:tp=2").args(["--json", "-"]).succeed();
    assert_eq!(again.report()["versions"], serde_json::json!([]));
    let run = home.follow("hf", "out").arg("--once").succeed();
    assert!(run.stdout.contains("holds v8"), "{}", run.stdout);
}

#[test]
fn a_model_that_is_not_the_streams_is_refused() {
    let home = Home::on_disk();
    home.publish(&golden(DENSE), "hf").succeed();
    let run = home.publish(&golden(MOE), "hf").run();
    assert_eq!(run.code, Some(2));
    assert!(run.error().contains("another model"), "{}", run.error());
}

#[test]
fn a_version_that_is_not_published_is_an_error_and_no_wait() {
    let home = Home::on_disk();
    for version in [6, 8] {
        publish_checkpoint(&home, DENSE, version, version).succeed();
    }
    let run = home.follow("hf", "out").args(["--exactly", "7"]).run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.error().contains("version 7 is not in the log: the next one is 8"), "{}", run.error());
}
