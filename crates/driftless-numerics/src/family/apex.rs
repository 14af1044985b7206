//! Apex and those who took its kernel: `TransformerEngine`, `DeepSpeed` on GPU.

use super::{OptimizerFamily, Subnormals};
use crate::bf16::Cast;
use crate::params::Hyperparameters;
use crate::scalars::Scalars;

/// `y - lr*(q' + wd*y)`: decay inside the update, contracted or not, with fast math.
#[derive(Clone, Copy, Debug)]
pub struct Apex;

/// [`Apex`] as `TransformerEngine` runs it on masters stored as BF16 and a 16-bit remainder: served bits are cast
/// half away from zero.
#[derive(Clone, Copy, Debug)]
pub struct TeRemainder;

impl OptimizerFamily for Apex {
    fn name(&self) -> &'static str {
        "apex"
    }

    fn subnormals(&self) -> Subnormals {
        Subnormals::MayFlush
    }

    fn keeps_every_zero(&self, _: &Hyperparameters) -> bool {
        false
    }

    #[inline(always)]
    fn decay(&self, scalars: &Scalars, z: f32) -> f32 {
        self.replay(scalars, z, 0.0)
    }

    #[inline(always)]
    fn replay(&self, scalars: &Scalars, y: f32, q: f32) -> f32 {
        // The errors inside are bounded by rho*(|u| + w*|y|), of which the update's error holds the first part.
        y - (q + scalars.loss * y + scalars.rho * (scalars.loss * y.abs()))
    }
}

impl OptimizerFamily for TeRemainder {
    fn name(&self) -> &'static str {
        "te-remainder"
    }

    #[inline(always)]
    fn cast(&self) -> Cast {
        Cast::HalfAway
    }

    fn subnormals(&self) -> Subnormals {
        Apex.subnormals()
    }

    fn keeps_every_zero(&self, hyper: &Hyperparameters) -> bool {
        Apex.keeps_every_zero(hyper)
    }

    #[inline(always)]
    fn decay(&self, scalars: &Scalars, z: f32) -> f32 {
        Apex.decay(scalars, z)
    }

    #[inline(always)]
    fn replay(&self, scalars: &Scalars, y: f32, q: f32) -> f32 {
        Apex.replay(scalars, y, q)
    }
}
