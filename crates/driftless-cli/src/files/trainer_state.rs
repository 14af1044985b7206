//! A trainer state: FP32 masters and moments after one recorded step, with the hyperparameters of that step.

use super::tensor_file::shape_of;
use super::{BadInput, Optimizer, TensorFile};
use driftless_layout::ParamMeta;
use safetensors::Dtype;
use std::collections::BTreeSet;
use std::path::Path;

const EXP_AVG: &str = ".exp_avg";
const EXP_AVG_SQ: &str = ".exp_avg_sq";
const MAX_EXP_AVG_SQ: &str = ".max_exp_avg_sq";

/// An open `trainer-step-NNNN.safetensors`.
pub(crate) struct TrainerState {
    file: TensorFile,
    optimizer: Optimizer,
}

/// What the optimizer holds of one parameter, each in canonical order.
pub(crate) struct Moments {
    /// FP32 master weights after the step.
    pub(crate) master: Vec<f32>,
    /// The first moment after the step.
    pub(crate) exp_avg: Vec<f32>,
    /// The second moment that the update divided by: the running maximum with AMSGrad.
    pub(crate) exp_avg_sq: Vec<f32>,
}

impl TrainerState {
    /// Opens the file and checks its header and its metadata.
    pub(crate) fn open(path: &Path) -> Result<Self, BadInput> {
        let file = TensorFile::open(path)?;
        let optimizer = Optimizer::parse(path, file.metadata(), &parameter_names(&file))?;
        Ok(Self { file, optimizer })
    }

    /// The optimizer and the step it took.
    pub(crate) const fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Whether the file holds exactly the state of the model's parameters.
    pub(crate) fn check(&self, params: &[ParamMeta]) -> Result<(), BadInput> {
        let mut known = BTreeSet::new();
        for param in params {
            for name in self.slots(param) {
                self.file.expect(&name, Dtype::F32, &param.shape)?;
                known.insert(name);
            }
        }
        let Some((name, info)) = self.file.tensors().iter().find(|(name, _)| !known.contains(*name)) else {
            return Ok(());
        };
        let fix = if name.ends_with(MAX_EXP_AVG_SQ) {
            "set the metadata key `amsgrad` to true if the optimizer used it"
        } else {
            "remove it, or check that config.json belongs to this trainer state"
        };
        let found = format!("an extra tensor of {} {}", info.dtype, shape_of(info));
        Err(BadInput::file(self.file.path(), found, "only the state of parameters that config.json implies")
            .tensor(name)
            .fix(fix))
    }

    /// Reads the state of one parameter.
    pub(crate) fn moments(&self, param: &ParamMeta) -> Result<Moments, BadInput> {
        let fqn = param.fqn.as_str();
        let squares = if self.optimizer.amsgrad { MAX_EXP_AVG_SQ } else { EXP_AVG_SQ };
        Ok(Moments {
            master: self.master(param)?,
            exp_avg: self.file.floats(&format!("{fqn}{EXP_AVG}"))?,
            exp_avg_sq: self.file.floats(&format!("{fqn}{squares}"))?,
        })
    }

    /// Reads the master weights of one parameter, in canonical order.
    pub(crate) fn master(&self, param: &ParamMeta) -> Result<Vec<f32>, BadInput> {
        self.file.floats(param.fqn.as_str())
    }

    fn slots(&self, param: &ParamMeta) -> Vec<String> {
        let mut suffixes = vec!["", EXP_AVG, EXP_AVG_SQ];
        suffixes.extend(self.optimizer.amsgrad.then_some(MAX_EXP_AVG_SQ));
        suffixes.into_iter().map(|suffix| format!("{}{suffix}", param.fqn)).collect()
    }
}

/// The parameters that a trainer state seems to hold: its tensors that are no moments.
pub(crate) fn parameter_names(file: &TensorFile) -> BTreeSet<&str> {
    let is_moment = |name: &&str| [EXP_AVG, EXP_AVG_SQ, MAX_EXP_AVG_SQ].iter().any(|end| name.ends_with(end));
    file.tensors().keys().map(String::as_str).filter(|name| !is_moment(name)).collect()
}
