//! Optimizer families: how a trainer evaluates a step, one file each.
//!
//! To add one, implement [`OptimizerFamily`] in a file of its own here, give it a place in [`Family`], and let
//! [`crate::conformance`] try to break it. A family outside of this crate runs through [`FamilyRule`](crate::FamilyRule)
//! and the same suite.

pub(crate) mod agnostic;
mod apex;
mod bitsandbytes;
mod deepspeed_cpu;
mod sgd;
mod torch;
mod torch_fused_cuda;
mod undecayed;

pub use agnostic::Agnostic;
pub use apex::{Apex, TeRemainder};
pub use bitsandbytes::Bitsandbytes;
pub use deepspeed_cpu::DeepspeedCpu;
pub use sgd::Sgd;
pub use torch::Torch;
pub use torch_fused_cuda::TorchFusedCuda;
pub use undecayed::Undecayed;

use crate::bf16::{Cast, CellEdges};
use crate::gate::{NotInvertible, check_adam};
use crate::params::{GroupStep, Hyperparameters, NumericsError};
use crate::scalars::{DecayScalars, Scalars, single};
use driftless_types::Fqn;
use std::fmt;
use std::str::FromStr;

/// State that an optimizer keeps per element beside the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The running mean of the gradients; the momentum buffer of SGD.
    ExpAvg,
    /// The running mean of their squares; its running maximum under `AMSGrad`.
    ExpAvgSq,
}

/// What a family does with subnormal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subnormals {
    /// It computes with them.
    Kept,
    /// It may flush them to zero, as fast math does.
    MayFlush,
}

/// How one kind of trainer evaluates one optimizer's step, as far as the certified rule must know it.
///
/// The step must be `rn(decay(y) - q)` or `decay(rn(y - q))`, where q does not depend on the master y, and `decay`
/// never decreases; q must be within [`Self::update_error`] of [`Self::update`]. Then [`Self::replay`] is what the
/// rule's proof needs: see [`Rule`](crate::Rule). Every operation is FP32, to nearest, and rounds once, as written.
///
/// Methods are called per element, and inlined into loops: they branch on nothing but constants.
pub trait OptimizerFamily: Send + Sync {
    /// The name that configurations and handshakes use.
    fn name(&self) -> &'static str;

    /// What [`Self::update`] reads, in the order in which it gets it.
    fn slots(&self) -> &'static [Slot] {
        &[Slot::ExpAvg, Slot::ExpAvgSq]
    }

    /// What must hold of the numbers of a step.
    ///
    /// # Errors
    /// [`NotInvertible`] with the first gate that fails.
    fn gates(&self, group: &Fqn, step: &GroupStep) -> Result<(), NotInvertible> {
        check_adam(group, step)
    }

    /// The cast by which this trainer makes the bits that it serves.
    #[inline(always)]
    fn cast(&self) -> Cast {
        Cast::NearestEven
    }

    /// Whether subnormals may be flushed.
    fn subnormals(&self) -> Subnormals {
        Subnormals::Kept
    }

    /// Whether a zero weight that got an update of exactly zero was the same zero before, whatever the masters held.
    fn keeps_every_zero(&self, hyper: &Hyperparameters) -> bool;

    /// `lr*wd` and `1 - lr*wd` as this trainer's kernel holds them.
    fn decay_scalars(&self, hyper: &Hyperparameters) -> DecayScalars {
        DecayScalars {
            loss: single(hyper.lr * hyper.weight_decay),
            keep: [single(1.0 - hyper.lr * hyper.weight_decay); 2],
        }
    }

    /// The update before any decay: `lr/bc1 * m / (sqrt(v)/sqrt(bc2) + eps)`.
    #[inline(always)]
    fn update(&self, scalars: &Scalars, m: f32, v: f32) -> f32 {
        scalars.step_size * (m / (v.sqrt() * scalars.inverse_root + scalars.eps))
    }

    /// Whether the update is computed from numbers alone, and nothing on the way to it can overflow in any order of
    /// evaluation.
    #[inline(always)]
    fn are_numbers(&self, scalars: &Scalars, m: f32, v: f32) -> bool {
        (m.abs() <= f32::MAX) & (v >= 0.0) & (v <= scalars.largest_second_moment)
    }

    /// How far this trainer's update may be from `u`, for an element that is `x` after the step.
    #[inline(always)]
    fn update_error(&self, scalars: &Scalars, _x: f32, u: f32) -> f32 {
        scalars.rho * u.abs() + scalars.eta
    }

    /// The decay map: what becomes of a weight that gets no update.
    fn decay(&self, scalars: &Scalars, z: f32) -> f32;

    /// The least that a step can make of `y` if its update is at most `q`. Its mirror image, the most that one can
    /// make of `y` if its update is at least `q`, is `-replay(-y, -q)`.
    #[inline(always)]
    fn replay(&self, scalars: &Scalars, y: f32, q: f32) -> f32 {
        self.decay(scalars, y) - q
    }

    /// The first floats outside the cell of `x`.
    #[inline(always)]
    fn outside(&self, x: f32) -> CellEdges {
        self.cast().edges(x)
    }
}

/// The families of this crate, by name: which operations of a step round, and in which order.
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

    /// How this family evaluates a step.
    #[must_use]
    pub fn arithmetic(self) -> &'static dyn OptimizerFamily {
        match self {
            Self::Agnostic => &Agnostic,
            Self::Torch => &Torch,
            Self::TorchFusedCuda => &TorchFusedCuda,
            Self::Apex => &Apex,
            Self::TeRemainder => &TeRemainder,
            Self::DeepspeedCpu => &DeepspeedCpu,
            Self::Bitsandbytes => &Bitsandbytes,
        }
    }

    /// The name that configurations and handshakes use.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.arithmetic().name()
    }

    /// The cast by which this trainer makes the bits that it serves.
    #[must_use]
    pub fn cast(self) -> Cast {
        self.arithmetic().cast()
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
    fn only_masters_with_a_remainder_are_cast_half_away() {
        let half_away = Family::ALL.into_iter().filter(|family| family.cast() == Cast::HalfAway);
        assert!(half_away.eq([Family::TeRemainder]));
    }
}
