//! A trainer state: FP32 masters and moments after one recorded step, with the hyperparameters of that step.

use super::tensor_file::shape_of;
use super::{BadInput, Optimizer, TensorFile};
use driftless_layout::ParamMeta;
use driftless_numerics::Optimizer as Kind;
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

/// What the optimizer holds of every parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// FP32 master weights after the step.
    Master,
    /// The first moment after the step; the momentum buffer of SGD.
    ExpAvg,
    /// The second moment that the update divided by: the running maximum with AMSGrad.
    ExpAvgSq,
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

    /// What the file holds of each parameter.
    pub(crate) const fn slots(&self) -> &'static [Slot] {
        match self.optimizer.kind() {
            Kind::AdamW | Kind::Adam => &[Slot::Master, Slot::ExpAvg, Slot::ExpAvgSq],
            Kind::Sgd => &[Slot::Master, Slot::ExpAvg],
        }
    }

    /// Whether the file holds exactly the state of the model's parameters.
    pub(crate) fn check(&self, params: &[ParamMeta]) -> Result<(), BadInput> {
        let mut known = BTreeSet::new();
        for param in params {
            for name in self.tensors_of(param) {
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

    /// Reads one slot of one parameter, in canonical order.
    pub(crate) fn read(&self, param: &ParamMeta, slot: Slot) -> Result<Vec<f32>, BadInput> {
        let suffix = match slot {
            Slot::Master => "",
            Slot::ExpAvg => EXP_AVG,
            Slot::ExpAvgSq if self.optimizer.amsgrad => MAX_EXP_AVG_SQ,
            Slot::ExpAvgSq => EXP_AVG_SQ,
        };
        self.file.floats(&format!("{}{suffix}", param.fqn))
    }

    fn tensors_of(&self, param: &ParamMeta) -> Vec<String> {
        let suffix = |slot: &Slot| match slot {
            Slot::Master => "",
            Slot::ExpAvg => EXP_AVG,
            Slot::ExpAvgSq => EXP_AVG_SQ,
        };
        let mut suffixes: Vec<_> = self.slots().iter().map(suffix).collect();
        suffixes.extend(self.optimizer.amsgrad.then_some(MAX_EXP_AVG_SQ));
        suffixes.into_iter().map(|suffix| format!("{}{suffix}", param.fqn)).collect()
    }
}

/// The parameters that a trainer state seems to hold: its tensors that are no moments.
pub(crate) fn parameter_names(file: &TensorFile) -> BTreeSet<&str> {
    let is_moment = |name: &&str| [EXP_AVG, EXP_AVG_SQ, MAX_EXP_AVG_SQ].iter().any(|end| name.ends_with(end));
    file.tensors().keys().map(String::as_str).filter(|name| !is_moment(name)).collect()
}
