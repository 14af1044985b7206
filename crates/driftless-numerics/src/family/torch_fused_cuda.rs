//! `torch.optim.AdamW(fused=True)` on CUDA.

use super::OptimizerFamily;
use crate::params::Hyperparameters;
use crate::scalars::{Scalars, single};

/// How far contraction may move a double-precision decay, relative to the weight; four times what it can.
const DOUBLE_SLACK: f64 = 4.0 * f64::EPSILON;

/// `rn(y - w*y) - q`, the decay in double precision and contracted or not.
#[derive(Clone, Copy, Debug)]
pub struct TorchFusedCuda;

impl OptimizerFamily for TorchFusedCuda {
    fn name(&self) -> &'static str {
        "torch-fused-cuda"
    }

    fn keeps_every_zero(&self, hyper: &Hyperparameters) -> bool {
        // A subtraction turns -0.0 into +0.0.
        hyper.weight_decay == 0.0
    }

    #[inline(always)]
    fn decay(&self, scalars: &Scalars, z: f32) -> f32 {
        let wide = f64::from(z);
        single(wide - scalars.loss_double * wide - DOUBLE_SLACK * wide.abs())
    }
}
