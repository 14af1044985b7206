//! What is wrong with a kernel is found: by the shim while it runs, and by the sanitizers on small cases.

use crate::shim::{Grid, built, try_launch};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;

/// The arguments of the faulty kernels.
#[repr(C)]
struct FaultyArgs {
    words: *mut u32,
    count: u64,
}

fn failure(kernel: &str, threads: u32, seed: u64) -> Option<String> {
    let mut words = vec![0; 1024];
    let args = FaultyArgs { words: words.as_mut_ptr(), count: 1024 };
    try_launch(kernel, Grid { blocks: 1, threads, seed }, &args).err()
}

#[test]
fn the_shim_reports_divergence_wrong_masks_and_deadlocks() {
    let faults: [(&str, &[&str]); 8] = [
        ("faulty_divergent_barrier", &["divergent barrier"]),
        ("faulty_barrier_of_some", &["divergent barrier", "deadlock"]),
        ("faulty_exit_before_barrier", &["divergent barrier"]),
        ("faulty_own_lane_missing", &["wrong mask"]),
        ("faulty_masks_overlap", &["wrong mask"]),
        ("faulty_operations_differ", &["divergence"]),
        ("faulty_lane_never_comes", &["wrong mask", "deadlock"]),
        ("faulty_shuffle_outside", &["a shuffle reads a lane outside"]),
    ];
    for (kernel, words) in faults {
        for (seed, threads) in (0..).zip([32, 64, 256, 1024]) {
            let found = failure(kernel, threads, seed).unwrap_or_else(|| panic!("{kernel} passed"));
            assert!(words.iter().any(|word| found.contains(word)), "{kernel}: {found}");
        }
    }
    let found = failure("faulty_waits_for_ever", 32, 1).expect("it never ends");
    assert!(found.contains("deadlock"), "{found}");
}

#[test]
fn launches_that_no_kernel_takes_are_refused() {
    for threads in [0, 16, 33, 1056] {
        assert!(failure("faulty_race", threads, 0).is_some_and(|found| found.contains("32 to 1024")));
    }
    let found = failure("driftless_detect_adafactor", 32, 0).expect("there is none");
    assert!(found.contains("no kernel of the name"), "{found}");
}

fn run(program: &Path, argument: Option<&str>) -> Output {
    // ThreadSanitizer wants its shadow memory where some kernels put other things by chance.
    let mut command = Command::new("setarch");
    command.arg(std::env::consts::ARCH).arg("-R").arg(program).args(argument);
    let plain = || Command::new(program).args(argument).output();
    command.output().or_else(|_| plain()).expect("the program starts")
}

/// Both streams of a program that ran.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn small(what: &str, options: &[&str], scheduler: &str) -> std::path::PathBuf {
    built(what, &[&["-O1", "-g1"], options].concat(), &["small.cpp", "kernels.cpp", scheduler])
}

/// What the kernels write on small cases where no sanitizer looks, as a hash.
static PLAIN: LazyLock<String> = LazyLock::new(|| {
    let plain = text(&run(&small("small", &[], "fibers.cpp"), None));
    assert!(plain.trim().len() == 16, "a hash: {plain}");
    plain
});

#[test]
fn thread_sanitizer_finds_the_planted_races_alone() {
    let program = small("tsan", &["-fsanitize=thread", "-DSHIM_THREADS"], "threads.cpp");
    assert_eq!(text(&run(&program, None)), *PLAIN);
    for kernel in ["faulty_race", "faulty_race_behind_a_ballot"] {
        assert!(text(&run(&program, Some(kernel))).contains("data race"), "{kernel} is a race");
    }
}

#[test]
fn address_sanitizer_finds_the_planted_write_alone() {
    let checks = "-fsanitize=address,shift,bounds,signed-integer-overflow,integer-divide-by-zero";
    let program = small("asan", &[checks, "-fno-sanitize-recover=all", "-DSHIM_THREADS"], "threads.cpp");
    assert_eq!(text(&run(&program, None)), *PLAIN);
    assert!(text(&run(&program, Some("faulty_beyond_the_end"))).contains("heap-buffer-overflow"));
}
