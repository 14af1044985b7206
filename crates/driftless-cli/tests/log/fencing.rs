//! Two publishers of one stream: the log itself says who is late.

use crate::fixture::{Home, LAST, golden, policy};
use crate::weights::{Tensors, compare};

const NAME: &str = "nano-moe";
const ROLLOUT: &str = "vllm:tp=2,ep=2";

fn holds(home: &Home, out: &str, version: u64) {
    let expected = Tensors::read(&policy(&golden(NAME), version));
    compare(&home.path(out), ROLLOUT, &golden(NAME).join("config.json"), &expected);
}

fn a_publisher_that_was_stopped_is_fenced(home: &Home) {
    let publish = || home.publish(&golden(NAME), "megatron:tp=2");
    // Genesis, then the anchor of v6, then the delta to v7: every blob is there, the entry is not.
    let first = publish().args(["--failpoint", "publisher-creates=stop@3"]).start();
    first.stopped();
    home.follow(ROLLOUT, "early").arg("--once").succeed();
    holds(home, "early", 6);
    publish().succeed();
    first.go_on();
    let first = first.end();
    assert_eq!(first.code, Some(1), "{}", first.stderr);
    assert!(first.error().contains("fenced"), "{}", first.error());
    for reader in ["early", "late"] {
        home.follow(ROLLOUT, reader).arg("--once").succeed();
        holds(home, reader, LAST);
    }
    let place = |reader| home.state(reader)["cursor"]["at"].clone();
    assert_eq!(place("early"), place("late"), "one history");
}

#[test]
fn lg1_lg4_a_publisher_that_was_stopped_is_fenced_on_a_disk() {
    a_publisher_that_was_stopped_is_fenced(&Home::on_disk());
}

#[test]
fn lg1_lg4_a_publisher_that_was_stopped_is_fenced_on_s3() {
    let Some(home) = Home::on_s3() else { return };
    a_publisher_that_was_stopped_is_fenced(&home);
}
