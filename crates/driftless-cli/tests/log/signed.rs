//! Signed streams, and buckets that lie.

use crate::fixture::{Home, Program, Run, golden, policy, publish_checkpoint, text};
use crate::weights::{Tensors, compare};
use std::fs;
use std::path::Path;

const NAME: &str = "nano-dense";
const ROLLOUT: &str = "hf";

/// A key and its trust file, as paths.
fn keygen(home: &Home, name: &str) -> (String, String) {
    let (key, trust) = (home.path(&format!("{name}.key")), home.path(&format!("{name}.trust")));
    Program::new("keygen").args(["--key", text(&key), "--trust", text(&trust)]).succeed();
    (text(&key).to_owned(), text(&trust).to_owned())
}

fn checkpoint(home: &Home, version: u64) -> Program {
    publish_checkpoint(home, NAME, version, version)
}

fn holds(home: &Home, out: &str, version: u64) {
    let folder = golden(NAME);
    let expected = Tensors::read(&policy(&folder, version));
    compare(&home.path(out), ROLLOUT, &folder.join("config.json"), &expected);
}

fn flip(path: &Path, byte: usize) {
    let mut bytes = fs::read(path).expect("a file");
    bytes[byte] ^= 1;
    fs::write(path, bytes).expect("a writable file");
}

/// It says what is wrong, and nothing is served.
fn refused(home: &Home, run: &Run, out: &str, words: &[&str]) {
    assert!(matches!(run.code, Some(1 | 2)), "{:?} {}", run.code, run.stderr);
    let is_said = words.iter().any(|word| run.error().contains(word));
    assert!(is_said, "none of {words:?} is in: {}", run.error());
    let state = home.path(out).join("state.json");
    assert!(!state.exists() || home.state(out)["serving"].is_null());
}

#[test]
fn lg13_only_what_a_trusted_key_signed_is_followed() {
    let home = Home::on_disk();
    let (key, trust) = keygen(&home, "owner");
    let (_, foreign) = keygen(&home, "foreign");
    home.publish(&golden(NAME), "hf").args(["--key", &key]).succeed();
    home.follow(ROLLOUT, "out").args(["--once", "--trust", &trust]).succeed();
    holds(&home, "out", 8);
    let run = home.follow(ROLLOUT, "wrong").args(["--once", "--trust", &foreign]).run();
    assert_eq!(run.code, Some(2));
    refused(&home, &run, "wrong", &["does not verify"]);
    let unsigned = Home::on_disk();
    unsigned.publish(&golden(NAME), "hf").succeed();
    let run = unsigned.follow(ROLLOUT, "out").args(["--once", "--trust", &trust]).run();
    assert_eq!(run.code, Some(2));
    refused(&unsigned, &run, "out", &["does not verify"]);
    let key_mode = fs::metadata(&key).expect("the key").permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&key_mode) & 0o077, 0, "only its owner reads a key");
}

#[test]
fn lg14_who_forgets_the_key_appends_nothing_to_a_signed_stream() {
    let home = Home::on_disk();
    let (key, trust) = keygen(&home, "owner");
    for version in [6, 7] {
        checkpoint(&home, version).args(["--key", &key, "--lease-ttl", "1"]).succeed();
    }
    let before = home.files("");
    let id = fs::read_to_string(&trust).expect("a trust file");
    let id = id.split_whitespace().nth(4).expect("the id of the key");
    for run in [checkpoint(&home, 8).run(), Program::new("log").args(["retire", home.url()]).run()] {
        assert_eq!(run.code, Some(2), "{}{}", run.stdout, run.stderr);
        assert!(run.error().contains(&format!("signed by key {id}")), "{}", run.error());
        assert!(run.error().contains("--key"), "{}", run.error());
        assert_eq!(home.files(""), before, "nothing is written");
    }
    checkpoint(&home, 8).args(["--key", &key]).succeed();
    home.follow(ROLLOUT, "out").args(["--once", "--trust", &trust]).succeed();
    holds(&home, "out", 8);
}

#[test]
fn lg13_an_entry_that_somebody_else_appended_is_not_served() {
    let home = Home::on_disk();
    let (key, trust) = keygen(&home, "owner");
    let (foreign_key, foreign) = keygen(&home, "foreign");
    checkpoint(&home, 6).args(["--key", &key]).succeed();
    home.follow(ROLLOUT, "reader").args(["--once", "--trust", &trust]).succeed();
    // Who trusts only his own key does not even begin.
    let run = checkpoint(&home, 7).args(["--key", &foreign_key]).run();
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    // One that believes both appends.
    let both = home.path("both.trust");
    let (mine, theirs) = (fs::read_to_string(&trust), fs::read_to_string(&foreign));
    let theirs = theirs.expect("a file").lines().skip(1).collect::<Vec<_>>().join("\n");
    fs::write(&both, mine.expect("a file") + &theirs).expect("a file");
    checkpoint(&home, 7).args(["--key", &foreign_key, "--trust", text(&both)]).succeed();
    for out in ["reader", "new"] {
        let run = home.follow(ROLLOUT, out).args(["--once", "--trust", &trust]).run();
        assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
        assert!(run.error().contains("does not verify"), "{}", run.error());
    }
    holds(&home, "reader", 6);
    assert_eq!(home.state("reader")["serving"]["version"], 6);
}

#[test]
fn lg13_a_flipped_byte_of_a_blob_is_found_before_it_is_served() {
    let home = Home::on_disk();
    checkpoint(&home, 6).succeed();
    let largest = |path: &std::path::PathBuf| fs::metadata(path).map_or(0, |about| about.len());
    let blob = home.files("blob").into_iter().max_by_key(largest).expect("a blob");
    flip(&blob, 5000);
    let run = home.follow(ROLLOUT, "out").args(["--once", "--json", "-"]).run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    refused(&home, &run, "out", &["damaged", "no usable anchor"]);
    // Once the blob is right again, so is the reader.
    flip(&blob, 5000);
    home.follow(ROLLOUT, "out").arg("--once").succeed();
    holds(&home, "out", 6);
}

#[test]
fn lg1_lg13_a_flipped_byte_of_a_signed_entry_is_found() {
    let home = Home::on_disk();
    let (key, trust) = keygen(&home, "owner");
    checkpoint(&home, 6).args(["--key", &key]).succeed();
    for (seq, byte) in [(0, 20), (1, 20), (1, 300)] {
        let entry = &home.files("log")[seq];
        flip(entry, byte);
        let run = home.follow(ROLLOUT, "out").args(["--once", "--trust", &trust]).run();
        refused(&home, &run, "out", &["does not verify"]);
        flip(entry, byte);
    }
    home.follow(ROLLOUT, "out").args(["--once", "--trust", &trust]).succeed();
}

#[test]
fn lg1_lg13_an_anchor_of_another_stream_is_refused() {
    let home = Home::on_disk();
    checkpoint(&home, 6).succeed();
    let entry = &home.files("log")[1];
    let text = fs::read_to_string(entry).expect("an entry");
    let at = text.find("\"stream\":\"").expect("a field") + 10;
    let other = if &text[at..=at] == "0" { "1" } else { "0" };
    fs::write(entry, format!("{}{other}{}", &text[..at], &text[at + 1..])).expect("a writable file");
    let run = home.follow(ROLLOUT, "out").arg("--once").run();
    refused(&home, &run, "out", &["does not verify"]);
    for command in ["verify", "ls"] {
        let run = Program::new("log").args([command, home.url()]).run();
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        assert!(run.error().contains("another stream"), "{}", run.error());
    }
}
