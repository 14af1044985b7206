//! `--device`: what runs there ends in the bits of the host, and a device that cannot be had is an error, never another.

#[cfg(feature = "cuda")]
mod on_standin {
    use crate::fixture::{Run, driftless, golden, run_with};
    use driftless_testkit::standin_folder;
    use serde_json::Value;

    const CUDA: [&str; 4] = ["--device", "cuda:0", "--json", "-"];

    /// A run of the program that finds the stand-in for the driver.
    fn on_gpu(args: &[&str], faults: &str) -> Run {
        let folder = standin_folder().expect("the stand-in needs g++");
        let folder = folder.to_str().expect("a plain name");
        run_with(&[("LD_LIBRARY_PATH", folder), ("STANDIN_FAULTS", faults)], args)
    }

    fn receivers(run: &Run) -> Value {
        assert_eq!(run.code, 0, "{}", run.stderr);
        let report = run.report();
        let versions = report["versions"].as_array().expect("versions");
        assert!(!versions.is_empty() && versions.iter().all(|version| version["verified"] == true));
        report["receivers"].clone()
    }

    #[test]
    fn both_golden_policies_are_identical_on_the_gpu() {
        for (folder, layouts) in [
            ("nano-dense", ["--trainer", "megatron:tp=2,pp=2,dp=2", "--rollout", "vllm:tp=4"]),
            ("nano-moe", ["--trainer", "megatron:tp=2,ep=2,dp=2", "--rollout", "sglang:tp=2,ep=2"]),
        ] {
            let dir = golden(folder);
            let sync = ["sync", dir.to_str().expect("a plain name")];
            let wanted = receivers(&driftless(&[&sync[..], &layouts, &["--json", "-"]].concat()));
            for detector in ["inversion", "snapshot"] {
                let args = [&sync[..], &layouts, &CUDA, &["--detector", detector]].concat();
                assert_eq!(receivers(&on_gpu(&args, "")), wanted, "{folder} by {detector}");
            }
        }
    }

    #[test]
    fn actors_that_die_leave_device_memory_right() {
        let args = [
            "demo",
            "--versions",
            "4",
            "--chaos",
            "5",
            "--trainer",
            "megatron:tp=2",
            "--rollout",
            "vllm:tp=2",
        ];
        receivers(&on_gpu(&[&args[..], &CUDA].concat(), ""));
    }

    #[test]
    fn a_gpu_that_vanishes_is_an_error_and_nothing_takes_over() {
        let args = ["demo", "--versions", "2", "--trainer", "hf", "--rollout", "hf", "--device", "cuda:0"];
        let run = on_gpu(&args, "vanish:60");
        assert_ne!(run.code, 0, "{}", run.stdout);
        assert!(run.error().contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{}", run.stderr);
    }

    #[test]
    fn a_machine_without_a_driver_says_so() {
        let run = run_with(&[("LD_LIBRARY_PATH", "")], &["demo", "--device", "cuda:0"]);
        assert_eq!(run.code, 2);
        assert!(run.error().contains("no NVIDIA driver: libcuda.so.1 was not found"), "{}", run.stderr);
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_program_without_the_feature_says_how_to_build_one() {
    let run = crate::fixture::driftless(&["demo", "--device", "cuda:0"]);
    assert_eq!(run.code, 2);
    let expected = "cuda:0 needs a program built with its feature `cuda`: cargo build --features cuda";
    assert!(run.error().contains(expected), "{}", run.stderr);
}

#[test]
fn a_device_that_nobody_knows_is_refused() {
    let run = crate::fixture::driftless(&["demo", "--device", "gpu0"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("expected cpu, or cuda:0 for the first GPU"), "{}", run.stderr);
}
