//! The commands' manners: where output goes, what is left behind, how a run is stopped.

use crate::fixture::{driftless, golden};
use std::fs;

const SYNC: [&str; 4] = ["--trainer", "hf", "--rollout", "vllm:tp=2"];

fn dense() -> String {
    golden("nano-dense").to_str().expect("a plain name").to_owned()
}

#[test]
fn the_demo_needs_no_files_and_proves_every_version() {
    let run = driftless(&["demo", "--versions", "3", "--json", "-"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = run.report();
    let versions = report["versions"].as_array().expect("versions");
    assert_eq!(versions.len(), 3);
    for version in versions {
        assert_eq!(version["verified"], true);
        let share = version["share"].as_f64().expect("a number");
        assert!((0.002..0.05).contains(&share), "{share}");
    }
    assert_eq!(report["receivers"].as_array().map(Vec::len), Some(5), "TP4 and TP1");
}

#[test]
fn a_line_per_version_and_the_proof_go_to_standard_output() {
    let run = driftless(&[&["sync", &dense()], &SYNC[..]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let lines: Vec<_> = run.stdout.lines().collect();
    assert!(lines.iter().any(|line| line.starts_with("v7 ") && line.ends_with("proven")), "{}", run.stdout);
    assert!(lines.iter().any(|line| line.starts_with("v8 ") && line.contains(" KiB ")), "{}", run.stdout);
    assert!(lines.iter().any(|line| line.contains(" detect ") && line.ends_with(" ms")), "{}", run.stdout);
    assert!(lines.last().is_some_and(|line| line.starts_with("proven: 2 receivers")), "{}", run.stdout);
}

#[test]
fn the_report_has_its_keys_in_the_documented_order() {
    let run = driftless(&[&["sync", &dense(), "--json", "-"], &SYNC[..]].concat());
    let keys = [
        "{\"versions\":[{\"version\":",
        ",\"elements\":",
        ",\"changed\":",
        ",\"sent\":",
        ",\"share\":",
        ",\"dense_bytes\":",
        ",\"wire_bytes\":",
        ",\"phases_ms\":{\"detect\":",
        ",\"remap\":",
        ",\"encode\":",
        ",\"transfer\":",
        ",\"stage\":",
        ",\"pause\":",
        ",\"apply\":",
        ",\"commit\":",
        ",\"verified\":",
        ",\"repaired\":",
        ",\"dense\":[",
        "\"receivers\":[{\"name\":",
        ",\"version\":8,\"digest\":",
        "\"plan_digest\":\"",
    ];
    let mut rest = run.stdout.as_str();
    for key in keys {
        let at = rest.find(key);
        assert!(at.is_some(), "`{key}` is not, or not in its place, in {}", run.stdout);
        rest = &rest[at.unwrap_or(0) + key.len()..];
    }
}

#[test]
fn a_report_file_is_whole_and_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("report.json");
    let target = path.to_str().expect("a plain name");
    let run = driftless(&[&["sync", &dense(), "--json", target], &SYNC[..]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(&path).expect("a report")).expect("JSON");
    assert_eq!(report["versions"].as_array().map(Vec::len), Some(2));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    assert!(run.stdout.contains("proven"), "the lines still go to standard output");
}

#[test]
fn help_has_examples() {
    for command in ["demo", "sync", "plan", "inspect", "certify"] {
        let run = driftless(&[command, "--help"]);
        assert_eq!(run.code, 0);
        assert!(run.stdout.contains(&format!("driftless {command}")), "{}", run.stdout);
        assert!(run.stdout.contains("Exit code"), "{}", run.stdout);
    }
}

#[test]
fn inspect_refuses_what_it_does_not_know() {
    let config = golden("nano-dense").join("config.json");
    let run = driftless(&["inspect", config.to_str().expect("a plain name")]);
    assert_eq!(run.code, 2);
    assert!(run.error().contains("config.json"));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_with_130_and_leaves_nothing() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = folder.path().join("report.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_driftless"))
        .args(["demo", "--versions", "1000000", "--json", target.to_str().expect("a plain name")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    lines
        .find(|line| line.as_ref().is_ok_and(|line| line.starts_with("v1 ")))
        .expect("a version")
        .expect("a line");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    // The pipe is read to its end, so that the program never waits for its reader.
    lines.for_each(drop);
    let stderr = std::io::read_to_string(child.stderr.take().expect("a pipe")).expect("text");
    assert_eq!(stderr, "error: interrupted\n", "no actor panics on the way out");
    assert_eq!(child.wait().expect("an exit").code(), Some(130));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
