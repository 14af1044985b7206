//! One recorded optimizer step, with the masters of before and after it: what an optimizer is certified with.

use super::tensor_file::shape_of;
use super::{BadInput, Optimizer, TensorFile};
use driftless_numerics::Optimizer as Kind;
use safetensors::Dtype;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const AFTER: &str = "after";
const MAX_EXP_AVG_SQ: &str = "max_exp_avg_sq";
const BEFORE: &str = "before";
const EXP_AVG: &str = "exp_avg";
const EXP_AVG_SQ: &str = "exp_avg_sq";
const EXTENSION: &str = "safetensors";

/// An open step file.
pub(crate) struct StepFile {
    file: TensorFile,
    optimizer: Optimizer,
}

/// The elements of a step file, all of one length.
pub(crate) struct StepElements {
    /// FP32 masters before the step.
    pub(crate) before: Vec<f32>,
    /// FP32 masters after it.
    pub(crate) after: Vec<f32>,
    /// First moments after it; the momentum buffer of SGD.
    pub(crate) exp_avg: Vec<f32>,
    /// The second moments that the update divided by: the running maximum with AMSGrad, zeros with SGD.
    pub(crate) exp_avg_sq: Vec<f32>,
}

impl StepFile {
    /// Opens the file and checks its header and its metadata.
    pub(crate) fn open(path: &Path) -> Result<Self, BadInput> {
        let file = TensorFile::open(path)?;
        let optimizer = Optimizer::parse(path, file.metadata(), &BTreeSet::new())?;
        let step = Self { file, optimizer };
        step.check()?;
        Ok(step)
    }

    /// Opens every step file of a folder, in the order of their names.
    pub(crate) fn open_all(dir: &Path) -> Result<Vec<Self>, BadInput> {
        let paths = step_paths(dir)?;
        if paths.is_empty() {
            return Err(BadInput::file(dir, "no recorded step", format!("at least one *.{EXTENSION}")));
        }
        paths.iter().map(|path| Self::open(path)).collect()
    }

    /// The optimizer and the step it took.
    pub(crate) const fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The file's name without its folder.
    pub(crate) fn name(&self) -> String {
        let path = self.file.path();
        path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into())
    }

    /// Reads all elements.
    pub(crate) fn elements(&self) -> Result<StepElements, BadInput> {
        let exp_avg = self.file.floats(EXP_AVG)?;
        let exp_avg_sq = match self.optimizer.kind() {
            Kind::Sgd => vec![0.0; exp_avg.len()],
            Kind::AdamW | Kind::Adam if self.optimizer.amsgrad => self.file.floats(MAX_EXP_AVG_SQ)?,
            Kind::AdamW | Kind::Adam => self.file.floats(EXP_AVG_SQ)?,
        };
        let (before, after) = (self.file.floats(BEFORE)?, self.file.floats(AFTER)?);
        Ok(StepElements { before, after, exp_avg, exp_avg_sq })
    }

    /// The tensors that a file of this optimizer holds.
    fn slots(&self) -> Vec<&'static str> {
        let second = (self.optimizer.kind() != Kind::Sgd).then_some(EXP_AVG_SQ);
        let maximum = self.optimizer.amsgrad.then_some(MAX_EXP_AVG_SQ);
        [AFTER, BEFORE, EXP_AVG].into_iter().chain(second).chain(maximum).collect()
    }

    fn check(&self) -> Result<(), BadInput> {
        let bad = |found: String, expected: &str| BadInput::file(self.file.path(), found, expected);
        if self.optimizer.step() == 0 {
            return Err(bad("`0`".into(), "the number of the recorded step, counted from 1").key("step"));
        }
        let Some(after) = self.file.tensors().get(AFTER) else {
            return Err(bad("no such tensor".into(), "the FP32 masters after the step").tensor(AFTER));
        };
        let slots = self.slots();
        for name in &slots {
            self.expect(name, &shape_of(after))?;
        }
        let extra = self.file.tensors().iter().find(|(name, _)| !slots.contains(&name.as_str()));
        let Some((name, info)) = extra else { return Ok(()) };
        let found = format!("an extra tensor of {} {}", info.dtype, shape_of(info));
        let error = bad(found, &format!("only {}", slots.join(", "))).tensor(name);
        if name != MAX_EXP_AVG_SQ {
            return Err(error);
        }
        Err(error.fix("set the metadata key `amsgrad` to true if the optimizer used it"))
    }

    fn expect(&self, name: &str, shape: &driftless_types::Shape) -> Result<(), BadInput> {
        let bad =
            |found: String, expected: String| BadInput::file(self.file.path(), found, expected).tensor(name);
        let Some(info) = self.file.tensors().get(name) else {
            return Err(bad("no such tensor".into(), format!("{} {shape}, as `{AFTER}`", Dtype::F32)));
        };
        if info.dtype != Dtype::F32 {
            return Err(bad(format!("dtype {}", info.dtype), format!("dtype {}", Dtype::F32)));
        }
        if shape_of(info) != *shape {
            return Err(bad(format!("shape {}", shape_of(info)), format!("shape {shape}, as `{AFTER}`")));
        }
        Ok(())
    }
}

fn step_paths(dir: &Path) -> Result<Vec<PathBuf>, BadInput> {
    let unreadable = |error: std::io::Error| BadInput::file(dir, error.to_string(), "a readable folder");
    let entries = std::fs::read_dir(dir).map_err(unreadable)?;
    let mut paths =
        entries.map(|entry| Ok(entry.map_err(unreadable)?.path())).collect::<Result<Vec<_>, BadInput>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    paths.sort();
    Ok(paths)
}
