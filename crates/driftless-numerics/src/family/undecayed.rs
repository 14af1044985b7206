//! Adam without decoupled decay, in which all families of one cast agree.

use super::OptimizerFamily;
use crate::bf16::Cast;
use crate::params::Hyperparameters;
use crate::scalars::Scalars;

/// `y - q`: no weight decay, or one inside the moments (Adam with L2), where the rule need not see it.
#[derive(Clone, Copy, Debug)]
pub struct Undecayed {
    /// The cast of the trainer's family.
    pub cast: Cast,
}

impl OptimizerFamily for Undecayed {
    fn name(&self) -> &'static str {
        "undecayed"
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
    fn decay(&self, _: &Scalars, z: f32) -> f32 {
        z
    }
}
