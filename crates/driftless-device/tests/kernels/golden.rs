//! Recorded states: the kernels give what the CPU gives on every golden vector, of every family.

use crate::detect::check_line;
use crate::shim::Grid;
use crate::support::State;
use driftless_numerics::{Family, GroupStep, Hyperparameters, Optimizer, Rule};
use driftless_types::Fqn;
use safetensors::SafeTensors;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

pub(crate) fn files(folder: &str, prefix: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(folder);
    let entries = std::fs::read_dir(folder).expect("the golden vectors are there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    let is_wanted = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(prefix) && name.ends_with(".safetensors")
    };
    files.retain(is_wanted);
    files.sort();
    files
}

/// The step that a file's metadata describe.
pub(crate) fn step_of(metadata: &HashMap<String, String>) -> GroupStep {
    let number = |key: &str| metadata[key].parse::<f64>().expect("a number");
    let hyper = Hyperparameters {
        lr: number("lr"),
        beta1: number("beta1"),
        beta2: number("beta2"),
        eps: number("eps"),
        weight_decay: number("weight_decay"),
    };
    GroupStep::new(metadata["step"].parse().expect("a counter"), hyper)
}

pub(crate) fn floats(views: &SafeTensors<'_>, name: &str) -> Option<Vec<f32>> {
    let view = views.tensor(name).ok()?;
    Some(view.data().as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect())
}

#[test]
fn detect_matches_on_steps_of_torch() {
    let files = files("adamw", "");
    assert_eq!(files.len(), 22);
    let (mut listed, mut forms) = (0, BTreeSet::new());
    for (seed, path) in (0..).zip(&files) {
        let bytes = std::fs::read(path).expect("a readable vector");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a vector");
        let step = step_of(header.metadata().as_ref().expect("metadata"));
        let views = SafeTensors::deserialize(&bytes).expect("a vector");
        let read = |name: &str| floats(&views, name).expect("a tensor of the vector");
        let second = floats(&views, "max_exp_avg_sq").unwrap_or_else(|| read("exp_avg_sq"));
        let state = State { master: read("after"), exp_avg: read("exp_avg"), exp_avg_sq: second };
        // SGD has no vectors of its own: its rule reads these states as if momentum had made them.
        let steps =
            [Optimizer::AdamW, Optimizer::Sgd].map(|optimizer| step.clone().with_optimizer(optimizer));
        for (family, step) in
            Family::ALL.iter().flat_map(|&family| steps.iter().map(move |step| (family, step)))
        {
            let Ok(rule) = Rule::new(&Fqn::from("w"), family, step) else { continue };
            forms.insert(rule.form());
            for rule in [rule.clone(), rule.with_audited_masters()] {
                let grid = Grid::new(64 << (seed % 4), seed);
                listed += check_line(grid, &state, &rule, &path.display().to_string());
            }
        }
    }
    assert_eq!(forms.len(), 11, "every form has been run: {forms:?}");
    assert!(listed > 10_000, "{listed}");
}

#[test]
fn detect_matches_on_trained_policies() {
    let mut listed = 0;
    for (seed, path) in
        (0..).zip(["nano-dense", "nano-moe"].iter().flat_map(|folder| files(folder, "trainer")))
    {
        let bytes = std::fs::read(&path).expect("a readable vector");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a vector");
        let metadata = header.metadata().as_ref().expect("metadata");
        let views = SafeTensors::deserialize(&bytes).expect("a vector");
        for name in views.names().into_iter().filter(|name| name.ends_with("weight")) {
            let mut step = step_of(metadata);
            if name.ends_with(&metadata["no_decay_suffix"]) {
                step.hyper.weight_decay = 0.0;
            }
            let read = |name: String| floats(&views, &name).expect("a tensor of the vector");
            let state = State {
                master: read(name.to_owned()),
                exp_avg: read(format!("{name}.exp_avg")),
                exp_avg_sq: read(format!("{name}.exp_avg_sq")),
            };
            let family = if seed % 2 == 0 { Family::Torch } else { Family::Agnostic };
            let rule = Rule::new(&Fqn::from(name), family, &step).expect("a usual step");
            listed += check_line(Grid::new(256, seed), &state, &rule, name);
        }
    }
    assert!(listed > 5000, "{listed}");
}
