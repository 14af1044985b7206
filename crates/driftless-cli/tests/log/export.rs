//! `driftless export`: checkpoints that others load.

use crate::fixture::{Home, Program, golden, policy, publish_checkpoint, text};
use crate::weights::{Tensors, compare};
use safetensors::SafeTensors;
use std::fs;

fn export(home: &Home, version: &str, out: &str) -> Program {
    Program::new("export").args([home.url(), "--version", version, "--out", text(&home.path(out))])
}

#[test]
fn a_version_becomes_a_checkpoint_that_others_load() {
    for (name, rollout) in [("nano-dense", "vllm:tp=2"), ("nano-moe", "vllm:tp=2,ep=2")] {
        let (home, folder) = (Home::on_disk(), golden(name));
        home.publish(&folder, "megatron:tp=2").succeed();
        let report = export(&home, "7", "model.safetensors").args(["--json", "-"]).succeed().report();
        assert_eq!(report["version"], 7);
        let bytes = fs::read(home.path("model.safetensors")).expect("the checkpoint");
        assert_eq!(report["bytes"], bytes.len());
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors header");
        assert_eq!(
            header.metadata().as_ref().and_then(|about| about.get("format")).map(String::as_str),
            Some("pt")
        );
        let (found, expected) =
            (Tensors::read(&home.path("model.safetensors")), Tensors::read(&policy(&folder, 7)));
        assert!(found.0 == expected.0, "names, dtypes, shapes and bits");

        // The way back.
        let again = Home::on_disk();
        Program::new("publish")
            .args(["--from-checkpoint", text(&home.path("model.safetensors")), "--version", "7"])
            .args(["--model", text(&folder.join("config.json")), "--to", again.url()])
            .succeed();
        again.follow(rollout, "out").arg("--once").succeed();
        compare(&again.path("out"), rollout, &folder.join("config.json"), &expected);
    }
}

#[test]
fn the_last_version_is_exported_unless_another_is_asked_for() {
    let home = Home::on_disk();
    let folder = golden("nano-dense");
    home.publish(&folder, "hf").succeed();
    let out = home.path("last.safetensors");
    fs::write(&out, "an older checkpoint").expect("a file");
    Program::new("export").args([home.url(), "--out", text(&out)]).succeed();
    assert!(Tensors::read(&out).0 == Tensors::read(&policy(&folder, 8)).0);
    // Versions fall: what was above the reset is another past.
    publish_checkpoint(&home, "nano-dense", 8, 7).succeed();
    export(&home, "7", "7.safetensors").succeed();
    assert!(Tensors::read(&home.path("7.safetensors")).0 == Tensors::read(&policy(&folder, 8)).0);
    let run = export(&home, "8", "8.safetensors").run();
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.error().contains("version 8 is not in the stream"), "{}", run.error());
    assert!(!home.path("8.safetensors").exists());
}

#[test]
fn nothing_is_written_of_what_is_not_proven() {
    let home = Home::on_disk();
    home.publish(&golden("nano-dense"), "hf").succeed();
    for blob in home.files("blob") {
        let mut bytes = fs::read(&blob).expect("a blob");
        if bytes.len() > 100_000 {
            bytes[90_000] ^= 1;
            fs::write(&blob, bytes).expect("a writable file");
        }
    }
    let run = export(&home, "6", "model.safetensors").run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(!home.path("model.safetensors").exists());
}
