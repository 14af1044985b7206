//! `driftless log`: what it lists, shows, proves and deletes.

use crate::fixture::{Home, Program, Run, golden, policy, publish_checkpoint, text};
use crate::weights::{Tensors, compare};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const DENSE: &str = "nano-dense";
const MOE: &str = "nano-moe";

fn log(home: &Home, command: &str) -> Program {
    Program::new("log").args([command, home.url()])
}

fn verified(home: &Home) -> Value {
    log(home, "verify").args(["--json", "-"]).succeed().report()
}

fn not_verified(home: &Home, seq: u64, words: &str) -> Run {
    let run = log(home, "verify").args(["--json", "-"]).run();
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    assert_eq!(run.report()["problems"][0]["seq"], seq, "{}", run.stdout);
    assert!(run.error().contains(words), "`{words}` is not in: {}", run.error());
    run
}

fn flip(path: &PathBuf, byte: usize) {
    let mut bytes = fs::read(path).expect("a file");
    bytes[byte] ^= 1;
    fs::write(path, bytes).expect("a writable file");
}

/// The blob of weights that an entry names.
fn weights_of(home: &Home, seq: usize) -> PathBuf {
    let entry = fs::read_to_string(&home.files("log")[seq]).expect("an entry");
    let body: Value = serde_json::from_str(entry.lines().next().expect("a line")).expect("JSON");
    let digest = body["writers"][0]["blobs"][0]["digest"].as_str().expect("a digest").to_owned();
    home.files("blob").into_iter().find(|path| text(path).contains(&digest)).expect("a blob")
}

#[test]
fn entries_are_listed_and_shown() {
    let home = Home::on_disk();
    home.publish(&golden(DENSE), "megatron:tp=2").succeed();
    let run = log(&home, "ls").args(["--json", "-"]).succeed();
    let entries = run.report()["entries"].clone();
    let about =
        |key: &str| entries.as_array().into_iter().flatten().map(|e| e[key].clone()).collect::<Vec<_>>();
    assert_eq!(about("kind"), ["genesis", "anchor", "delta", "delta"]);
    assert_eq!(about("base"), [Value::Null, Value::Null, json!(6), json!(7)]);
    assert_eq!(about("in_force"), [true; 4]);
    let text = log(&home, "ls").succeed().stdout;
    assert_eq!(text.lines().count(), 5, "a header and a line per entry: {text}");
    assert!(text.contains("v7 on v6"), "{text}");

    let shown = log(&home, "show").args(["2", "--json", "-"]).succeed().report();
    assert_eq!((&shown["kind"], &shown["version"]), (&json!("delta"), &json!(7)));
    assert_eq!(shown["by_writer"].as_array().map(Vec::len), Some(2));
    let codecs: Vec<_> = shown["by_codec"].as_array().into_iter().flatten().collect();
    assert!(codecs.iter().any(|codec| codec["codec"] == "rice congruence"), "{shown}");
    let sum = |key: &str| codecs.iter().filter_map(|codec| codec[key].as_u64()).sum::<u64>();
    assert_eq!(
        (Some(sum("nnz")), Some(sum("bytes"))),
        (shown["nnz"].as_u64(), shown["stored_bytes"].as_u64())
    );
    assert!(log(&home, "show").arg("2").succeed().stdout.contains("on exactly v6"));
    assert!(log(&home, "show").arg("0").succeed().stdout.contains("run "));
    assert_eq!(log(&home, "show").arg("99").run().code, Some(2));
    let nothing = Program::new("log").args(["ls", &format!("file://{}", text_of(&home, "nothing"))]).run();
    assert_eq!(nothing.code, Some(2), "{}", nothing.stderr);
}

fn text_of(home: &Home, name: &str) -> String {
    text(&home.path(name)).to_owned()
}

#[test]
fn lg11_a_whole_stream_is_read_again_and_proven() {
    let home = Home::on_disk();
    home.publish(&golden(MOE), "megatron:tp=2,ep=4,dp=4").args(["--anchor-every", "1"]).succeed();
    let report = verified(&home);
    assert_eq!((&report["entries"], &report["proven"]), (&json!(4), &json!(3)));
    assert_eq!((&report["version"], &report["problems"]), (&json!(8), &json!([])));
    // Another publisher takes over, and has nothing to add.
    publish_checkpoint(&home, MOE, 7, 3).succeed();
    let report = verified(&home);
    assert_eq!((&report["version"], &report["proven"]), (&json!(3), &json!(4)), "a reset lets versions fall");
}

#[test]
fn lg1_lg4_lg13_what_is_wrong_is_named_by_its_entry() {
    let home = Home::on_disk();
    home.publish(&golden(DENSE), "hf").succeed();
    let blob = weights_of(&home, 2);
    flip(&blob, 200);
    let run = not_verified(&home, 2, "entry 2");
    // What builds on it is not proven either, and the anchor before it is.
    assert_eq!(run.report()["proven"], 1);
    flip(&blob, 200);
    assert_eq!(verified(&home)["proven"], 3);

    let aside = home.path("aside");
    fs::rename(&blob, &aside).expect("a file");
    not_verified(&home, 2, "entry 2");
    fs::rename(&aside, &blob).expect("a file");

    // An entry that verifies by itself, and is not the one that the next entry names.
    let entry = &home.files("log")[1];
    let body = fs::read_to_string(entry).expect("an entry");
    let at = body.find("created_by").expect("a field") + 20;
    flip(entry, at);
    let run = log(&home, "verify").run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert_eq!(log(&home, "ls").run().code, Some(1));
    flip(entry, at);
    assert_eq!(verified(&home)["proven"], 3);
}

#[test]
fn lg13_a_stream_is_proven_against_the_keys_that_are_trusted() {
    let home = Home::on_disk();
    let (key, trust) = (text_of(&home, "key"), text_of(&home, "trust"));
    Program::new("keygen").args(["--key", &key, "--trust", &trust]).succeed();
    home.publish(&golden(DENSE), "hf").args(["--key", &key]).succeed();
    log(&home, "verify").args(["--trust", &trust]).succeed();
    log(&home, "ls").args(["--trust", &trust]).succeed();
    // One unsigned entry behind signed ones: no publisher writes it, whoever owns the store can.
    let last = &home.files("log")[3];
    let entry = fs::read_to_string(last).expect("an entry");
    let (body, signature) = entry.trim_end().rsplit_once('\n').expect("two lines");
    assert!(signature.starts_with("ed25519 "), "{signature}");
    fs::write(last, format!("{body}\nunsigned\n")).expect("a writable file");
    assert_eq!(verified(&home)["version"], 8, "who asks for no key gets none checked");
    let run = log(&home, "verify").args(["--trust", &trust]).run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.error().contains("entry 3 does not verify"), "{}", run.error());
}

#[test]
fn lg8_lg9_old_blobs_go_and_the_stream_stays_proven() {
    let home = Home::on_disk();
    // Genesis is there, and the blobs of an anchor without their entry: orphans.
    let dies = publish_checkpoint(&home, DENSE, 6, 1).args(["--lease-ttl", "1"]);
    assert!(dies.args(["--failpoint", "publisher-creates=kill@2"]).run().is_killed());
    for (version, as_version) in [(6, 1), (7, 2), (8, 3), (6, 4)] {
        publish_checkpoint(&home, DENSE, version, as_version).args(["--lease-ttl", "1"]).succeed();
        if as_version == 1 {
            let run = log(&home, "retire").run();
            assert_eq!(run.code, Some(1), "{}", run.stderr);
            assert!(run.error().contains("fewer than two anchors"), "{}", run.error());
        }
    }
    let before = home.files("");
    let rehearsed = log(&home, "retire").args(["--dry-run", "--json", "-"]).succeed().report();
    assert_eq!(home.files(""), before, "a rehearsal changes nothing");
    let retired = log(&home, "retire").args(["--json", "-"]).succeed().report();
    for key in ["keep_from", "blobs", "bytes"] {
        assert_eq!(retired[key], rehearsed[key], "{key}");
    }
    // Weights and digests of two versions, and those of the first that nobody names.
    assert_eq!(retired["blobs"], 6);
    assert_eq!(before.len() - home.files("").len() + 1, 6, "and one entry more");
    let report = verified(&home);
    assert_eq!((&report["proven"], &report["retired"]), (&json!(2), &json!(2)), "{report}");
    home.follow("hf", "out").arg("--once").succeed();
    let folder = golden(DENSE);
    compare(&home.path("out"), "hf", &folder.join("config.json"), &Tensors::read(&policy(&folder, 6)));
    let run = home.follow("hf", "late").args(["--exactly", "1"]).run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.error().contains("version 1 is out of reach: the log is at 4"), "{}", run.error());
    let again = log(&home, "retire").args(["--dry-run", "--json", "-"]).succeed().report();
    assert_eq!(again["blobs"], 0);
}

#[test]
fn lg8_a_damaged_anchor_is_not_relied_on() {
    let home = Home::on_disk();
    for version in [6, 7, 8] {
        publish_checkpoint(&home, DENSE, version, version).args(["--lease-ttl", "1"]).succeed();
    }
    let last = home.files("log").len() - 1;
    flip(&weights_of(&home, last), 200);
    let before = home.files("");
    let run = log(&home, "retire").run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.error().contains("damaged"), "{}", run.error());
    assert_eq!(home.files(""), before);
}

#[test]
fn lg8_lg9_old_blobs_go_on_s3() {
    let Some(home) = Home::on_s3() else { return };
    for version in [6, 7, 8] {
        publish_checkpoint(&home, DENSE, version, version).args(["--lease-ttl", "1"]).succeed();
    }
    let retired = log(&home, "retire").args(["--json", "-"]).succeed().report();
    assert_eq!(retired["blobs"], 2);
    let report = verified(&home);
    assert_eq!((&report["proven"], &report["retired"]), (&json!(2), &json!(1)), "{report}");
}
