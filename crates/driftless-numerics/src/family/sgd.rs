//! SGD with momentum, without Nesterov.

use super::{OptimizerFamily, Slot};
use crate::bf16::Cast;
use crate::gate::{NotInvertible, check_sgd};
use crate::params::{GroupStep, Hyperparameters};
use crate::scalars::Scalars;
use driftless_types::Fqn;

/// `y - lr*m`, m the momentum buffer after the step: weight decay and dampening are inside of it.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// The cast of the trainer's family.
    pub cast: Cast,
}

impl OptimizerFamily for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn slots(&self) -> &'static [Slot] {
        &[Slot::ExpAvg]
    }

    fn gates(&self, group: &Fqn, step: &GroupStep) -> Result<(), NotInvertible> {
        check_sgd(group, step)
    }

    #[inline(always)]
    fn cast(&self) -> Cast {
        self.cast
    }

    fn keeps_every_zero(&self, _: &Hyperparameters) -> bool {
        // Whether subnormals are flushed is for the trainer's own family to say.
        false
    }

    #[inline(always)]
    fn update(&self, scalars: &Scalars, m: f32, _: f32) -> f32 {
        scalars.step_size * m
    }

    #[inline(always)]
    fn are_numbers(&self, _: &Scalars, m: f32, _: f32) -> bool {
        m.abs() <= f32::MAX
    }

    #[inline(always)]
    fn decay(&self, _: &Scalars, z: f32) -> f32 {
        z
    }
}
