//! `DeepSpeed`'s `CPUAdam`.

use super::OptimizerFamily;
use crate::params::Hyperparameters;
use crate::scalars::{DecayScalars, Scalars, single};

/// `fma(y, -w, y) - q`: every operation contracted, `w` multiplied in FP32.
#[derive(Clone, Copy, Debug)]
pub struct DeepspeedCpu;

impl OptimizerFamily for DeepspeedCpu {
    fn name(&self) -> &'static str {
        "deepspeed-cpu"
    }

    fn keeps_every_zero(&self, hyper: &Hyperparameters) -> bool {
        // A subtraction turns -0.0 into +0.0.
        hyper.weight_decay == 0.0
    }

    fn decay_scalars(&self, hyper: &Hyperparameters) -> DecayScalars {
        let loss = single(hyper.lr) * single(hyper.weight_decay);
        DecayScalars { loss, keep: [1.0 - loss; 2] }
    }

    #[inline(always)]
    fn decay(&self, scalars: &Scalars, z: f32) -> f32 {
        z.mul_add(-scalars.loss, z)
    }
}
