//! `certify`: recorded steps and generated elements, with the right family and with a wrong one.

use crate::fixture::{Run, Tensors, driftless, golden};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const STEP: &str = "13-single-normal-lr1e-05-wd0.01-step5.safetensors";
const AMSGRAD: &str = "20-single-normal-lr1e-06-wd0.1-step4-amsgrad.safetensors";

fn adamw() -> String {
    golden("adamw").to_str().expect("a plain name").to_owned()
}

/// The lines of a table that are about files.
fn rows(run: &Run) -> Vec<&str> {
    run.stdout.lines().filter(|line| line.contains(".safetensors")).collect()
}

/// One recorded step in a folder of its own, to be damaged.
struct OneStep {
    folder: TempDir,
    file: PathBuf,
}

impl OneStep {
    fn of(name: &str, change: impl FnOnce(&mut Tensors)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join(name);
        let mut tensors = Tensors::read(&golden("adamw").join(name));
        change(&mut tensors);
        tensors.write(&file);
        Self { folder, file }
    }

    fn certify(&self, more: &[&str]) -> Run {
        driftless(&[&["certify", self.folder.path().to_str().expect("a plain name")], more].concat())
    }
}

/// Refused with one error that contains all of `named`, and nothing on standard output.
fn refused(change: impl FnOnce(&mut Tensors), named: &[&str]) {
    let step = OneStep::of(STEP, change);
    let run = step.certify(&[]);
    assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    for part in [&[STEP, "found", "expected"], named].concat() {
        assert!(run.error().contains(part), "`{part}` is not in: {}", run.error());
    }
}

#[test]
fn no_family_that_is_right_misses_a_recorded_change() {
    let run = driftless(&["certify", &adamw()]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(rows(&run).len(), 22);
    assert!(rows(&run).iter().all(|row| row.contains(" agnostic ")), "{}", run.stdout);
    assert!(run.stdout.lines().last().is_some_and(|line| line.starts_with("certified: ")), "{}", run.stdout);
    let run = driftless(&["certify", &adamw(), "--family", "torch", "--family", "agnostic", "--json", "-"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = run.report();
    assert_eq!(report["files"].as_array().map(Vec::len), Some(44));
    assert_eq!((&report["missed"], &report["first_miss"]), (&json!(0), &Value::Null));
    assert!(report["changed"].as_u64() > Some(10_000), "{report}");
}

#[test]
fn a_wrong_family_misses_changes_and_the_run_fails() {
    let run = driftless(&["certify", &adamw(), "--family", "torch-fused-cuda", "--json", "-"]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    let report = run.report();
    let files = report["files"].as_array().expect("files").iter();
    let missed: Vec<_> = files.filter(|file| file["missed"] != 0).collect();
    let names: Vec<_> = missed.iter().filter_map(|file| file["file"].as_str()?.get(..2)).collect();
    assert_eq!(names, ["03", "08", "12"]);
    for file in &missed {
        assert_eq!(file["missed"], 1);
        let miss = file["first_miss"].as_str().expect("a miss");
        assert!(miss.starts_with("element ") && miss.contains("before 0x"), "{miss}");
    }
    assert!(
        run.error().contains("3 changed elements") && run.error().contains("03-single-tie"),
        "{}",
        run.error()
    );
}

/// The bits that the error names are those of the file.
#[test]
fn a_miss_can_be_seen_again() {
    let run = driftless(&["certify", &adamw(), "--family", "torch-fused-cuda"]);
    assert_eq!(run.code, 1);
    assert!(!run.stdout.contains("certified"), "{}", run.stdout);
    let (_, rest) = run.error().split_once("element ").expect("an element");
    let (element, bits) = rest.split_once(": before 0x").expect("bits");
    let index: usize = element.parse().expect("an index");
    let file = Tensors::read(&golden("adamw").join("03-single-tie-lr1e-06-wd0.1-step3.safetensors"));
    let bytes = file.tensors["before"].bytes.as_chunks::<4>().0[index];
    assert_eq!(bits.get(..8), Some(format!("{:08x}", u32::from_le_bytes(bytes)).as_str()));
}

#[test]
fn the_family_of_the_file_is_the_default() {
    let step = OneStep::of(STEP, |step| step.set("family", "deepspeed-cpu"));
    let report = step.certify(&["--json", "-"]).report();
    assert_eq!(report["files"][0]["family"], "deepspeed-cpu");
    let report = step.certify(&["--family", "torch", "--family", "auto", "--json", "-"]).report();
    assert_eq!(report["files"][0]["family"], "torch");
    assert_eq!(report["files"][1]["family"], "deepspeed-cpu");
}

/// Rows that no gradient reached are all zeros: the masters before the step say that they were the same zeros.
#[test]
fn idle_zeros_are_not_extra_where_the_masters_before_were_fit() {
    const ZEROS: &str = "15-single-zero-lr1e-06-wd0-step1.safetensors";
    let extra = |step: &OneStep| step.certify(&["--json", "-"]).report()["extra"].as_u64().expect("a number");
    let fit = OneStep::of(ZEROS, |_| ());
    let unfit = OneStep::of(ZEROS, |step| step.tensor("before").put(0, (-0.0f32).to_le_bytes()));
    assert!(extra(&fit) < 10 && extra(&unfit) > 1000, "{} {}", extra(&fit), extra(&unfit));
}

/// Buffers of momentum and one subtraction: nothing else is in an SGD file.
#[test]
fn sgd_is_certified_from_its_momentum_buffer_alone() {
    let step = OneStep::of(STEP, |step| {
        let read = |step: &Tensors, name: &str| {
            let bytes = step.tensors[name].bytes.as_chunks::<4>().0.iter();
            bytes.map(|&word| f32::from_le_bytes(word)).collect::<Vec<_>>()
        };
        let pairs = read(step, "before").into_iter().zip(read(step, "exp_avg"));
        let after: Vec<u8> = pairs.flat_map(|(y, m)| (y - 3.0 * m).to_le_bytes()).collect();
        step.tensor("after").bytes = after;
        step.tensors.remove("exp_avg_sq");
        for (key, value) in [("optimizer", "SGD"), ("lr", "3"), ("momentum", "0.9")] {
            step.set(key, value);
        }
    });
    let run = step.certify(&["--json", "-"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let file = &run.report()["files"][0];
    assert_eq!((&file["gate"], &file["missed"]), (&Value::Null, &json!(0)));
    assert!(file["changed"].as_u64() > Some(10), "{file}");
}

#[test]
fn a_planted_change_is_missed_in_a_file_of_ones_own() {
    // A weight that moved by itself, without a moment that says so: no rule can know of it.
    let step = OneStep::of(STEP, |step| {
        step.tensor("before").put(7, 1.0f32.to_le_bytes());
        step.tensor("after").put(7, 2.0f32.to_le_bytes());
        step.tensor("exp_avg").put(7, 0.0f32.to_le_bytes());
    });
    let run = step.certify(&[]);
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert!(run.error().contains("element 7: before 0x3f800000, after 0x40000000"), "{}", run.error());
}

#[test]
fn a_step_that_fails_a_gate_is_sent_whole_and_says_so() {
    let step = OneStep::of(STEP, |step| step.set("eps", "0"));
    let run = step.certify(&["--json", "-"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let file = &run.report()["files"][0];
    assert_eq!((&file["gate"], &file["missed"]), (&json!("epsilon"), &json!(0)));
    assert_eq!(file["changed"].as_u64().zip(file["extra"].as_u64()).map(|(c, e)| c + e), Some(2048));
    assert!(run.stderr.contains("sent whole, gate epsilon: found 0.0, expected"), "{}", run.stderr);
    let step = OneStep::of(STEP, |step| step.tensor("exp_avg").put(3, 1e6f32.to_le_bytes()));
    assert_eq!(step.certify(&["--json", "-"]).report()["files"][0]["gate"], "update-bound");
}

#[test]
fn tensors_that_are_not_those_of_a_step_are_refused() {
    let other = |dtype, shape: &[usize]| {
        let (size, shape) = (if dtype == Dtype::F32 { 4 } else { 2 }, shape.to_vec());
        crate::fixture::Tensor { dtype, bytes: vec![0; size * shape.iter().product::<usize>()], shape }
    };
    for name in ["before", "after", "exp_avg", "exp_avg_sq"] {
        let tensor = format!("`{name}`");
        refused(|step| drop(step.tensors.remove(name)), &[&tensor, "no such tensor"]);
        refused(
            |step| *step.tensor(name) = other(Dtype::BF16, &[2048]),
            &[&tensor, "dtype BF16", "dtype F32"],
        );
    }
    refused(|step| *step.tensor("exp_avg") = other(Dtype::F32, &[2047]), &["`exp_avg`", "[2047]", "[2048]"]);
    let add = |name: &'static str| {
        move |step: &mut Tensors| drop(step.tensors.insert(name.into(), other(Dtype::F32, &[8])))
    };
    refused(add("grad"), &["`grad`", "an extra tensor of F32 [8]"]);
    refused(add("max_exp_avg_sq"), &["`max_exp_avg_sq`", "amsgrad"]);
    refused(|step| step.set("amsgrad", "true"), &["`max_exp_avg_sq`", "no such tensor"]);
}

#[test]
fn metadata_that_is_not_that_of_a_step_is_refused() {
    for key in ["step", "lr", "beta1", "beta2", "eps", "weight_decay"] {
        refused(|step| drop(step.metadata.remove(key)), &[&format!("`{key}`"), "no such key"]);
    }
    let sets = [
        ("step", "0"),
        ("step", "-1"),
        ("lr", "nan"),
        ("beta1", "much"),
        ("optimizer", "Muon"),
        ("family", "jax"),
        ("amsgrad", "maybe"),
        ("maximize", "maybe"),
        ("lr@w", "1"),
    ];
    for (key, value) in sets {
        refused(|step| step.set(key, value), &[&format!("`{key}`")]);
    }
}

#[test]
fn a_folder_or_file_that_cannot_be_read_is_refused() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let run = driftless(&["certify", empty.path().to_str().expect("a plain name")]);
    assert_eq!(run.code, 2);
    assert!(run.error().contains("no recorded step"), "{}", run.error());
    assert_eq!(driftless(&["certify", "nowhere"]).code, 2);
    let step = OneStep::of(STEP, |_| ());
    let bytes = fs::read(&step.file).expect("a file");
    for length in [0, 7, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&step.file, &bytes[..length]).expect("a writable file");
        let run = step.certify(&[]);
        assert_eq!(run.code, 2, "{length}");
        assert!(run.error().contains(STEP), "{}", run.error());
    }
}

#[test]
fn amsgrad_divides_by_the_running_maximum() {
    let step = OneStep::of(AMSGRAD, |step| step.tensor("exp_avg_sq").bytes.fill(0));
    let report = step.certify(&["--json", "-"]).report();
    assert_eq!(report["files"][0]["gate"], Value::Null, "zeros in exp_avg_sq are not what was divided by");
    assert_eq!(report["missed"], 0);
}

#[test]
fn generated_elements_are_counted_and_repeat_with_their_seed() {
    let run = |seed: &str| {
        let args = ["certify", "--evaluations", "2e5", "--seed", seed, "--family", "torch", "--json", "-"];
        let run = driftless(&[&args[..], &["--family", "deepspeed-cpu"]].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.report()
    };
    let report = run("7");
    let families = report["families"].as_array().expect("families");
    assert_eq!(
        families.iter().map(|family| &family["family"]).collect::<Vec<_>>(),
        ["torch", "deepspeed-cpu"]
    );
    assert!((200_000..210_000).contains(&report["evaluations"].as_u64().expect("a number")), "{report}");
    let evaluated: u64 = families.iter().filter_map(|family| family["evaluated"].as_u64()).sum();
    assert_eq!(report["evaluations"], evaluated, "the two families share no order");
    for family in families {
        assert_eq!((&family["missed"], &family["first_miss"]), (&json!(0), &Value::Null));
        assert!(family["changed"].as_u64() > Some(10_000), "{family}");
        assert!(family["special_values"]["changed"].as_u64() > Some(100_000), "{family}");
    }
    assert_eq!(report["interrupted"], false);
    assert_eq!(run("7")["families"], report["families"]);
    assert_ne!(run("8")["families"], report["families"]);
}

#[test]
fn generated_elements_end_in_a_verdict() {
    let run = driftless(&["certify", "--evaluations", "10_000"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let last = run.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("certified: nothing missed in 18,432 evaluations and "), "{last}");
    let of_families = run.stdout.lines().filter(|line| line.contains(", seed 1: "));
    assert_eq!(of_families.count(), 7, "every family: {}", run.stdout);
}

#[test]
fn a_folder_or_a_count_and_not_both() {
    let adamw = adamw();
    let all: [&[&str]; 6] = [
        &["certify"],
        &["certify", &adamw, "--evaluations", "1e3"],
        &["certify", &adamw, "--seed", "3"],
        &["certify", "--evaluations", "many"],
        &["certify", "--evaluations", "0"],
        &["certify", &adamw, "--family", "jax"],
    ];
    for args in all {
        let run = driftless(args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{args:?}");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_reports_what_was_evaluated() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let target = folder.path().join("report.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_driftless"))
        .args(["certify", "--evaluations", "1e15", "--family", "torch", "--json"])
        .arg(&target)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.next().is_some_and(|line| line.starts_with("torch, special values: ")));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    let last = lines.last().unwrap_or_default();
    assert!(last.starts_with("nothing missed in the first "), "{last}");
    assert_eq!(child.wait().expect("an exit").code(), Some(130));
    let report: Value = serde_json::from_slice(&fs::read(&target).expect("a report")).expect("JSON");
    assert_eq!(report["interrupted"], true);
    let evaluated = report["evaluations"].as_u64();
    assert!((1..1_000_000_000_000_000).contains(&evaluated.unwrap_or(0)), "{report}");
}
