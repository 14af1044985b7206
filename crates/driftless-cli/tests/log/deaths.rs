//! Processes that are killed: at every failpoint, and at any moment.

use crate::fixture::{Home, LAST, Program, Rng, VERSIONS, golden, policy};
use crate::weights::{Tensors, compare};
use std::time::Duration;

const NAME: &str = "nano-dense";
const ROLLOUT: &str = "vllm:tp=2";
/// How many rounds of random deaths: 25, or what `DRIFTLESS_KILL_ROUNDS` says; on S3 a fifth of them.
const ROUNDS: &str = "DRIFTLESS_KILL_ROUNDS";
/// The seed of the first round: 1, or what `DRIFTLESS_KILL_SEED` says. The rounds count up from it.
const SEED: &str = "DRIFTLESS_KILL_SEED";

fn publish(home: &Home) -> Program {
    // Small blobs: there are several, and deaths between them.
    home.publish(&golden(NAME), "megatron:tp=2").args(["--blob-bytes", "65536"])
}

fn holds(home: &Home, out: &str, version: u64) {
    let expected = Tensors::read(&policy(&golden(NAME), version));
    compare(&home.path(out), ROLLOUT, &golden(NAME).join("config.json"), &expected);
    let state = home.state(out);
    assert_eq!((&state["serving"]["version"], &state["dirty"]), (&version.into(), &serde_json::Value::Null));
}

/// Runs with a death at the N-th pass of a site; says whether it came so far.
fn killed(run: impl Fn(&str) -> Program, site: &str, pass: u32) -> bool {
    let run = run(&format!("{site}=kill@{pass}")).run();
    assert!(run.is_killed() || run.code == Some(0), "{site} {pass}: {:?} {}", run.code, run.stderr);
    run.is_killed()
}

#[test]
fn lg3_lg12_a_publisher_that_dies_anywhere_goes_on() {
    for (site, passes) in [
        ("publisher-puts", [1, 3, 9]),
        ("publisher-seals", [1, 2, 3]),
        ("publisher-creates", [1, 2, 3]),
        ("publisher-created", [1, 2, 4]),
        ("publisher-published", [1, 2, 3]),
    ] {
        for pass in passes {
            let home = Home::on_disk();
            let dies = |failpoint: &str| publish(&home).args(["--failpoint", failpoint]);
            assert!(killed(dies, site, pass), "{site} {pass} is not passed");
            publish(&home).succeed();
            // No version is lost, and none is another's.
            for version in VERSIONS {
                home.follow(ROLLOUT, "out").args(["--exactly", &version.to_string()]).succeed();
                holds(&home, "out", version);
            }
        }
    }
}

#[test]
fn lg6_lg11_a_reader_that_dies_anywhere_goes_on() {
    let home = Home::on_disk();
    publish(&home).succeed();
    for (site, passes) in
        [("follower-dirty", [1, 2, 3]), ("follower-writes", [1, 30, 60]), ("follower-keeps", [1, 2, 3])]
    {
        for pass in passes {
            let out = format!("{site}-{pass}");
            let follow = || home.follow(ROLLOUT, &out).arg("--once");
            let dies = |failpoint: &str| follow().args(["--failpoint", failpoint]);
            assert!(killed(dies, site, pass), "{site} {pass} is not passed");
            follow().succeed();
            holds(&home, &out, LAST);
        }
    }
}

#[test]
fn lg6_a_reader_that_dies_again_and_again_gets_to_the_end() {
    let home = Home::on_disk();
    publish(&home).succeed();
    let mut deaths = 0;
    for pass in [1, 2, 1, 1, 1] {
        let dies = |failpoint: &str| home.follow(ROLLOUT, "out").args(["--once", "--failpoint", failpoint]);
        deaths += u32::from(killed(dies, "follower-writes", 20 * pass));
    }
    assert!(deaths > 1);
    home.follow(ROLLOUT, "out").arg("--once").succeed();
    holds(&home, "out", LAST);
}

/// What a seed decides.
#[derive(Debug)]
struct Choice {
    /// Whether the publisher or the reader dies.
    is_publisher: bool,
    /// Milliseconds after both started.
    after_ms: u64,
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

#[expect(clippy::print_stdout, reason = "a round that failed is found by its seed")]
fn round(home: &Home, seed: u64) {
    let mut rng = Rng(seed);
    let choices =
        [(); 2].map(|()| Choice { is_publisher: rng.next().is_multiple_of(2), after_ms: rng.next() % 300 });
    let follow = || home.follow(ROLLOUT, "out").args(["--at-least", "8"]);
    println!("seed {seed}: {choices:?}");
    for choice in choices {
        let (publisher, reader) = (publish(home).start(), follow().start());
        std::thread::sleep(Duration::from_millis(choice.after_ms));
        let dies = if choice.is_publisher { &publisher } else { &reader };
        dies.kill();
        let published = publisher.end();
        assert!(published.code == Some(0) || published.is_killed(), "seed {seed}: {}", published.stderr);
        // Without a publisher the stream may never get there.
        reader.kill();
        reader.end();
    }
    publish(home).succeed();
    Program::until_it_succeeds(follow);
    holds(home, "out", LAST);
    // Whoever reads the whole history anew gets the same.
    home.follow(ROLLOUT, "fresh").arg("--once").succeed();
    holds(home, "fresh", LAST);
    let report = Program::new("log").args(["verify", home.url(), "--json", "-"]).succeed().report();
    assert_eq!(report["version"], LAST, "seed {seed}");
}

#[test]
fn lg6_lg12_whoever_dies_at_any_moment_is_started_again_and_ends_identical() {
    let (first, rounds) = (number(SEED, 1), number(ROUNDS, 25));
    (first..first + rounds).for_each(|seed| round(&Home::on_disk(), seed));
}

#[test]
fn lg6_lg12_whoever_dies_at_any_moment_ends_identical_on_s3() {
    let (first, rounds) = (number(SEED, 1), number(ROUNDS, 25));
    for seed in first..first + rounds.div_ceil(5) {
        let Some(home) = Home::on_s3() else { return };
        round(&home, seed);
    }
}
