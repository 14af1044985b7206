//! A trainer that is started again from an older checkpoint, and trains another past.

use crate::fixture::{Home, golden, policy};
use crate::weights::{Tensors, compare};
use std::fs;
use std::path::{Path, PathBuf};

const NAME: &str = "nano-dense";
const ROLLOUT: &str = "vllm:tp=2";
const WEIGHT: &str = "model.layers.1.mlp.down_proj.weight";
const STATE_7: &str = "trainer-step-0007.safetensors";

/// A folder that starts where the golden one does, and takes another step to version 7.
fn another_past(home: &Home) -> PathBuf {
    let (folder, recorded) = (home.path("another"), golden(NAME));
    fs::create_dir(&folder).expect("a folder");
    for file in ["config.json", "policy-step-0006.safetensors"] {
        fs::copy(recorded.join(file), folder.join(file)).expect("a golden file");
    }
    let mut state = Tensors::read(&recorded.join(STATE_7));
    let mut policy_7 = Tensors::read(&policy(&recorded, 7));
    let (masters, served) = (state.0.get_mut(WEIGHT), policy_7.0.get_mut(WEIGHT));
    let (masters, served) = (masters.expect("the weight"), served.expect("the weight"));
    // Every third weight is another one: 1, 1 + 1/128, 1 + 2/128, .. are exact in BF16.
    for (index, element) in (0..served.bytes.len() / 2).step_by(3).enumerate() {
        let bits = 0x3f80_u16 + u16::try_from(index % 128).expect("less than 128");
        let master = f32::from_bits(u32::from(bits) << 16);
        served.bytes[2 * element..][..2].copy_from_slice(&bits.to_le_bytes());
        masters.bytes[4 * element..][..4].copy_from_slice(&master.to_le_bytes());
    }
    state.write_like(&recorded.join(STATE_7), &folder.join(STATE_7));
    policy_7.write_like(&policy(&recorded, 7), &policy(&folder, 7));
    folder
}

fn holds(home: &Home, out: &str, policy: &Path) {
    compare(&home.path(out), ROLLOUT, &golden(NAME).join("config.json"), &Tensors::read(policy));
}

#[test]
fn lg5_lg7_a_trainer_from_an_older_checkpoint_is_never_mixed_with_its_past() {
    let home = Home::on_disk();
    home.publish(&golden(NAME), "hf").succeed();
    home.follow(ROLLOUT, "ahead").arg("--once").succeed();
    holds(&home, "ahead", &policy(&golden(NAME), 8));
    home.follow(ROLLOUT, "behind").args(["--exactly", "7"]).succeed();
    holds(&home, "behind", &policy(&golden(NAME), 7));

    let another = another_past(&home);
    // Snapshots: what led to these weights is no step of any optimizer.
    let report = home.publish(&another, "megatron:tp=2").args(["--detector", "snapshot", "--json", "-"]);
    let report = report.succeed().report();
    let versions: Vec<_> = report["versions"].as_array().into_iter().flatten().collect();
    assert_eq!(versions.first().map(|anchor| &anchor["base"]), Some(&serde_json::Value::Null), "{report}");
    assert_eq!(versions.last().map(|last| &last["version"]), Some(&7.into()), "{report}");

    for reader in ["ahead", "behind", "new"] {
        home.follow(ROLLOUT, reader).arg("--once").succeed();
        holds(&home, reader, &policy(&another, 7));
        assert_eq!(home.state(reader)["serving"]["version"], 7);
    }
    let place = |reader| home.state(reader)["cursor"]["at"].clone();
    assert_eq!(place("ahead"), place("behind"));
    // What was the past is over: the old version 8 is not served again.
    let run = home.follow(ROLLOUT, "new").args(["--exactly", "6"]).run();
    assert_ne!(run.code, Some(0), "{}", run.stdout);
}

#[test]
fn lg7_a_reader_between_the_histories_is_of_one_of_them_whenever_it_dies() {
    let home = Home::on_disk();
    home.publish(&golden(NAME), "hf").succeed();
    home.follow(ROLLOUT, "out").arg("--once").succeed();
    let another = another_past(&home);
    home.publish(&another, "hf").args(["--detector", "snapshot"]).succeed();
    // The anchor's first sections are of the new history, the others of the old one.
    for pass in ["1", "8"] {
        let failpoint = format!("follower-writes=kill@{pass}");
        let run = home.follow(ROLLOUT, "out").args(["--once", "--failpoint", &failpoint]).run();
        assert!(run.is_killed(), "{}", run.stderr);
        assert!(home.state("out")["serving"].is_null(), "nothing is served while weights change");
    }
    home.follow(ROLLOUT, "out").arg("--once").succeed();
    holds(&home, "out", &policy(&another, 7));
}
