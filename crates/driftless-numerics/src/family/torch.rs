//! `torch.optim.AdamW` on the CPU, and everywhere but fused on CUDA.

use super::OptimizerFamily;
use crate::params::Hyperparameters;
use crate::scalars::Scalars;

/// `PyTorch` single, foreach, capturable, and fused on the CPU: `y*c - q`, `c = rn(1 - lr*wd)`.
#[derive(Clone, Copy, Debug)]
pub struct Torch;

impl OptimizerFamily for Torch {
    fn name(&self) -> &'static str {
        "torch"
    }

    fn keeps_every_zero(&self, _: &Hyperparameters) -> bool {
        true
    }

    #[inline(always)]
    fn decay(&self, scalars: &Scalars, z: f32) -> f32 {
        scalars.keep[0] * z
    }
}
