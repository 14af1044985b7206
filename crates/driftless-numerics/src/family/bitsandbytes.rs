//! bitsandbytes with 32-bit states.

use super::{OptimizerFamily, Subnormals};
use crate::params::Hyperparameters;
use crate::scalars::{DecayScalars, Scalars, single};

/// `(y - q)*c`: decay after the update; the kernel may or may not contract its factor.
#[derive(Clone, Copy, Debug)]
pub struct Bitsandbytes;

impl OptimizerFamily for Bitsandbytes {
    fn name(&self) -> &'static str {
        "bitsandbytes"
    }

    fn subnormals(&self) -> Subnormals {
        Subnormals::MayFlush
    }

    fn keeps_every_zero(&self, _: &Hyperparameters) -> bool {
        false
    }

    fn decay_scalars(&self, hyper: &Hyperparameters) -> DecayScalars {
        let (lr, weight_decay) = (single(hyper.lr), single(hyper.weight_decay));
        let keep = [(-lr).mul_add(weight_decay, 1.0), 1.0 - lr * weight_decay];
        DecayScalars { loss: single(hyper.lr * hyper.weight_decay), keep }
    }

    #[inline(always)]
    fn decay(&self, scalars: &Scalars, z: f32) -> f32 {
        (scalars.keep[0] * z).min(scalars.keep[1] * z)
    }

    #[inline(always)]
    fn replay(&self, scalars: &Scalars, y: f32, q: f32) -> f32 {
        self.decay(scalars, y - q)
    }
}
