//! Any trainer of the shape that the rule covers: decay anywhere, any contraction, fast math or none.

use super::{OptimizerFamily, Subnormals};
use crate::params::Hyperparameters;
use crate::scalars::Scalars;

/// A trainer of which nothing is known.
///
/// Its error bound takes in a decay before, inside or after the update: they differ by `w*|q|`, and inside also by
/// rounding errors of `rho*w*|y|`. Whatever else an order of evaluation rounds differently is one float at the decay
/// and one at the end.
#[derive(Clone, Copy, Debug)]
pub struct Agnostic;

impl OptimizerFamily for Agnostic {
    fn name(&self) -> &'static str {
        "agnostic"
    }

    fn subnormals(&self) -> Subnormals {
        Subnormals::MayFlush
    }

    fn keeps_every_zero(&self, _: &Hyperparameters) -> bool {
        false
    }

    #[inline(always)]
    fn update_error(&self, scalars: &Scalars, x: f32, u: f32) -> f32 {
        scalars.unknown_update * u.abs() + scalars.unknown_weight * x.abs() + scalars.eta
    }

    #[inline(always)]
    fn decay(&self, scalars: &Scalars, z: f32) -> f32 {
        step_down(scalars.keep[0] * z)
    }

    #[inline(always)]
    fn replay(&self, scalars: &Scalars, y: f32, q: f32) -> f32 {
        step_down(self.decay(scalars, y) - q)
    }
}

/// The next float toward negative infinity, where -0.0 comes next after +0.0.
#[inline(always)]
pub(crate) const fn step_down(x: f32) -> f32 {
    let bits = x.to_bits().cast_signed();
    let place = (bits ^ ((bits >> 31) & i32::MAX)).wrapping_sub(1);
    f32::from_bits((place ^ ((place >> 31) & i32::MAX)).cast_unsigned())
}
