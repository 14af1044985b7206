//! What the training loop says of a step: its counter, its hyperparameters, the family of its optimizer.

use crate::family::Family;
use driftless_types::Fqn;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The hyperparameters of one step, as the optimizer used them *in* that step.
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

/// Which optimizer made a step. `AMSGrad` and `maximize` need no word here: the one hands in the running maximum as
/// second moment, the other has its sign in the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Optimizer {
    /// Adam with decoupled weight decay.
    #[default]
    AdamW,
    /// Adam with L2: the weight decay is inside the moments, so that the step itself has none.
    Adam,
    /// SGD with momentum, without Nesterov: [`Hyperparameters::beta1`] is the momentum, the buffer after the step
    /// is its first moment, and its weight decay is inside the buffer.
    Sgd,
}

impl Optimizer {
    /// Every optimizer.
    pub const ALL: [Self; 3] = [Self::AdamW, Self::Adam, Self::Sgd];

    /// The name in metadata, which is that of its class in `torch.optim`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdamW => "AdamW",
            Self::Adam => "Adam",
            Self::Sgd => "SGD",
        }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Optimizer {
    type Err = NumericsError;

    /// An optimizer by its name.
    ///
    /// # Errors
    /// [`NumericsError::UnknownOptimizer`] for any other name.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|optimizer| optimizer.name() == name);
        found.ok_or_else(|| NumericsError::UnknownOptimizer { found: name.to_owned() })
    }
}

/// How the moments are stored between steps, if the step itself computed them in FP32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moments {
    /// As the step used them.
    #[default]
    Fp32,
    /// Rounded to BF16, to nearest.
    Bf16Nearest,
    /// Rounded to BF16, to either neighbor.
    Bf16Stochastic,
}

impl Moments {
    /// Every way of storing them.
    pub const ALL: [Self; 3] = [Self::Fp32, Self::Bf16Nearest, Self::Bf16Stochastic];

    /// The name in metadata.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16Nearest => "bf16",
            Self::Bf16Stochastic => "bf16-stochastic",
        }
    }

    /// What storing them adds to the relative error of an update: one rounding of m, half of one of v.
    pub(crate) const fn error(self) -> f64 {
        match self {
            Self::Fp32 => 0.0,
            Self::Bf16Nearest => 1.5 / 256.0 + 1.0 / 32_768.0,
            Self::Bf16Stochastic => 1.5 / 128.0 + 1.0 / 16_384.0,
        }
    }
}

impl fmt::Display for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Moments {
    type Err = NumericsError;

    /// A way of storing moments by its name.
    ///
    /// # Errors
    /// [`NumericsError::UnknownMoments`] for any other name.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|moments| moments.name() == name);
        found.ok_or_else(|| NumericsError::UnknownMoments { found: name.to_owned() })
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
    /// A way of storing moments that no version of this crate inverts.
    #[error("unknown moments {found:?}, expected one of {}", Moments::ALL.map(Moments::name).join(", "))]
    UnknownMoments {
        /// The name as it was given.
        found: String,
    },
    /// An optimizer that no version of this crate inverts.
    #[error("unknown optimizer {found:?}, expected one of {}", Optimizer::ALL.map(Optimizer::name).join(", "))]
    UnknownOptimizer {
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
    /// Which optimizer made it.
    pub optimizer: Optimizer,
    /// How it stores its moments.
    pub moments: Moments,
    /// The step in which [`Self::hyper`] was captured, if the caller kept count: a scheduler may have moved on since.
    pub captured_at: Option<u64>,
    /// The step that the moments in memory are of, if the caller kept count of them apart from the masters.
    pub moments_at: Option<u64>,
}

impl GroupStep {
    /// A step that `AdamW` took with moments in FP32; the caller vouches for the numbers and the memory.
    #[must_use]
    pub const fn new(step: u64, hyper: Hyperparameters) -> Self {
        let (optimizer, moments) = (Optimizer::AdamW, Moments::Fp32);
        Self { step, hyper, skipped: false, optimizer, moments, captured_at: None, moments_at: None }
    }

    /// The same step by another optimizer.
    #[must_use]
    pub fn with_optimizer(self, optimizer: Optimizer) -> Self {
        Self { optimizer, ..self }
    }

    /// The same step with moments that are stored otherwise.
    #[must_use]
    pub fn with_moments(self, moments: Moments) -> Self {
        Self { moments, ..self }
    }

    /// The hyperparameters as the rule sees them: a decay inside the moments is none.
    pub(crate) fn decoupled(&self) -> Hyperparameters {
        match self.optimizer {
            Optimizer::AdamW => self.hyper.clone(),
            Optimizer::Adam | Optimizer::Sgd => Hyperparameters { weight_decay: 0.0, ..self.hyper.clone() },
        }
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
    fn optimizers_are_found_by_the_name_of_their_class() {
        for optimizer in Optimizer::ALL {
            assert_eq!(optimizer.to_string().parse(), Ok(optimizer));
        }
        let error = "Muon".parse::<Optimizer>().unwrap_err().to_string();
        assert_eq!(error, "unknown optimizer \"Muon\", expected one of AdamW, Adam, SGD");
    }

    #[test]
    fn moments_are_found_by_name() {
        for moments in Moments::ALL {
            assert_eq!(moments.to_string().parse(), Ok(moments));
        }
        let error = "fp8".parse::<Moments>().unwrap_err().to_string();
        assert_eq!(error, "unknown moments \"fp8\", expected one of fp32, bf16, bf16-stochastic");
    }

    #[test]
    fn a_decay_inside_the_moments_is_none() {
        let hyper = Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        let step = GroupStep::new(7, hyper.clone());
        assert_eq!(step.decoupled(), hyper);
        for optimizer in [Optimizer::Adam, Optimizer::Sgd] {
            assert_eq!(step.clone().with_optimizer(optimizer).decoupled().weight_decay, 0.0);
        }
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
