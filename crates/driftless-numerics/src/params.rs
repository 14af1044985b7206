//! What the training loop says of a step: its counter, its hyperparameters, the family of its optimizer.

use crate::bf16::Cast;
use driftless_types::Fqn;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The hyperparameters of one AdamW step, as the optimizer used them *in* that step.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameters {
    /// Learning rate, after any schedule.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// What is added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, before it is multiplied by the learning rate.
    pub weight_decay: f64,
}

/// How a trainer evaluates the step: which operations round, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Any trainer of this shape, known or not; sends a little more than a known family.
    #[default]
    Agnostic,
    /// `torch.optim.AdamW` on the CPU: single tensor, foreach and fused.
    Torch,
    /// `torch.optim.AdamW(fused=True)` on CUDA: the decay is subtracted in double precision.
    TorchFusedCuda,
    /// Apex, `TransformerEngine` and `DeepSpeed` on GPU: decay inside the update, fast math.
    Apex,
    /// `TransformerEngine` with masters as BF16 plus remainder: as [`Self::Apex`], cast half away from zero.
    TeRemainder,
    /// `DeepSpeed` on the CPU: everything contracted to fused multiply-adds.
    DeepspeedCpu,
    /// bitsandbytes with 32-bit states: decay after the update.
    Bitsandbytes,
}

impl Family {
    /// Every family, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Agnostic,
        Self::Torch,
        Self::TorchFusedCuda,
        Self::Apex,
        Self::TeRemainder,
        Self::DeepspeedCpu,
        Self::Bitsandbytes,
    ];

    /// The name that configurations and handshakes use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agnostic => "agnostic",
            Self::Torch => "torch",
            Self::TorchFusedCuda => "torch-fused-cuda",
            Self::Apex => "apex",
            Self::TeRemainder => "te-remainder",
            Self::DeepspeedCpu => "deepspeed-cpu",
            Self::Bitsandbytes => "bitsandbytes",
        }
    }

    /// The cast by which this trainer makes the bits that it serves.
    #[must_use]
    pub const fn cast(self) -> Cast {
        match self {
            Self::TeRemainder => Cast::HalfAway,
            _ => Cast::NearestEven,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Family {
    type Err = NumericsError;

    /// A family by its name; `auto` is [`Self::Agnostic`].
    ///
    /// # Errors
    /// [`NumericsError::UnknownFamily`] for any other name.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name == "auto" {
            return Ok(Self::Agnostic);
        }
        let found = Self::ALL.into_iter().find(|family| family.name() == name);
        found.ok_or_else(|| NumericsError::UnknownFamily { found: name.to_owned() })
    }
}

/// What is wrong with the description of a step.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NumericsError {
    /// A family name that no version of this crate knows.
    #[error("unknown optimizer family {found:?}, expected auto or one of {}", Family::ALL.map(Family::name).join(", "))]
    UnknownFamily {
        /// The name as it was given.
        found: String,
    },
}

/// What one step did to the parameters of one group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupStep {
    /// The optimizer's step counter after the step, counted from 1.
    pub step: u64,
    /// The hyperparameters of this step.
    pub hyper: Hyperparameters,
    /// Whether the optimizer skipped the step, as loss scaling does on infinite gradients.
    pub skipped: bool,
}

impl GroupStep {
    /// A step that was taken.
    #[must_use]
    pub const fn new(step: u64, hyper: Hyperparameters) -> Self {
        Self { step, hyper, skipped: false }
    }
}

/// What one step did to every parameter of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct StepParams {
    /// How the trainer evaluates a step.
    pub family: Family,
    /// What holds for every parameter without an override.
    pub default: GroupStep,
    /// Parameters with their own counter or hyperparameters, such as norms without decay.
    pub overrides: BTreeMap<Fqn, GroupStep>,
}

impl StepParams {
    /// A step that treated every parameter alike, by an unknown trainer.
    #[must_use]
    pub const fn new(step: u64, hyper: Hyperparameters) -> Self {
        let default = GroupStep::new(step, hyper);
        Self { family: Family::Agnostic, default, overrides: BTreeMap::new() }
    }

    /// The same step by a known trainer.
    #[must_use]
    pub fn with_family(self, family: Family) -> Self {
        Self { family, ..self }
    }

    /// The same step, in which one parameter was treated differently.
    #[must_use]
    pub fn with_override(mut self, fqn: Fqn, step: GroupStep) -> Self {
        self.overrides.insert(fqn, step);
        self
    }

    /// What the step did to one parameter.
    #[must_use]
    pub fn group(&self, fqn: &str) -> &GroupStep {
        self.overrides.get(fqn).unwrap_or(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_found_by_its_name() {
        for family in Family::ALL {
            assert_eq!(family.to_string().parse(), Ok(family));
        }
        assert_eq!("auto".parse(), Ok(Family::Agnostic));
    }

    #[test]
    fn an_unknown_family_is_refused_by_name() {
        let error = "adafactor".parse::<Family>().unwrap_err().to_string();
        assert!(
            error.starts_with(
                "unknown optimizer family \"adafactor\", expected auto or one of agnostic, torch"
            )
        );
        assert!("Torch".parse::<Family>().is_err());
    }

    #[test]
    fn overrides_win_over_the_default() {
        let hyper = Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        let bare = Hyperparameters { weight_decay: 0.0, ..hyper.clone() };
        let norm = Fqn::from("model.norm.weight");
        let params = StepParams::new(7, hyper.clone())
            .with_family(Family::Torch)
            .with_override(norm, GroupStep::new(7, bare.clone()));
        assert_eq!(params.family, Family::Torch);
        assert_eq!(params.group("model.norm.weight").hyper, bare);
        assert_eq!(params.group("lm_head.weight").hyper, hyper);
    }
}
