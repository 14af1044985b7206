//! A test without root, division or edges that only certified elements pass, and of these nearly all.
//!
//! - **NU-6 (cheap certificates).** Masks may certify by this test: no element passes it that the exact one would not
//!   certify.
//!
//! An element passes if going back by the largest step that it could have made leaves it in its cell with 32 floats to
//! spare. With pos floats between x and the edge of its cell toward zero, the other edge is 65,536 - pos floats away, of
//! at least the size of those half a cell below x. Going back moves by at most `|u|*(1 + rho + w)` toward the sign of u,
//! and by the errors of the update, of the decay and of their roundings either way. Of the latter the exact test has at
//! most seven, each of at most two floats of x, wherever in the step the decay is: that is what the 32 are for.
//! The terms in `w*|x|` and in rho are rounded up by more than the second-order terms of all families.
//!
//! Half of the bits of v, taken from a constant, is 1/sqrt(v) to within 3.5 % for every normal v. The denominator of an
//! update is at least `sqrt(v)/sqrt(bc2)` and at least eps, so no quotient exceeds the smaller of two products.

use crate::bf16::INFINITY_CELL;
use crate::scalars::Scalars;

/// Floats to spare.
const SPARE: i32 = 32;
/// Floats in a cell.
const CELL: i32 = 0x1_0000;
/// Magnitudes from 2^-103 have floats of normal size between them.
const LEAST_BITS: u32 = 24 << 23;
const EXPONENT: u32 = 0x7f80_0000;
/// Distances between floats are counted in units of 2^-23 of their binade.
const UNITS: f32 = 8_388_608.0;
/// Below the estimate of `1/sqrt(v)` of every subnormal v.
const LEAST_ESTIMATE: f32 = 5e18;

/// The scalars of the test, from those of the step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quick {
    /// What makes the estimate of `1/sqrt(v)` at least `1/(sqrt(v)/sqrt(bc2))`; infinite where subnormal second moments
    /// matter beside eps.
    pub(super) root: f32,
    /// At least `1/eps`.
    pub(super) inverse_eps: f32,
    /// The largest quotient of an update that is within its bound.
    pub(super) largest_quotient: f32,
    pub(super) second_moment_bits: u32,
    /// Per unit of the quotient: the way back along the update, and what may go either way.
    pub(super) along: f32,
    pub(super) either: f32,
    /// Per unit of x, and in any case.
    pub(super) weight: f32,
    pub(super) always: f32,
}

impl Quick {
    pub(super) fn new(scalars: &Scalars) -> Self {
        const UP: f32 = 1.0 + 1.0 / 1024.0;
        let relative = scalars.unknown_update * UP;
        let root = 1.04 / scalars.inverse_root;
        let inverse_eps = (1.0 / scalars.eps).next_up();
        let hides_subnormals = inverse_eps < root * LEAST_ESTIMATE;
        Self {
            root: if hides_subnormals { root } else { f32::INFINITY },
            inverse_eps,
            largest_quotient: scalars.largest_update / (scalars.step_size * UP),
            second_moment_bits: scalars.largest_second_moment.to_bits(),
            along: scalars.step_size * (1.0 + relative) * UP * UNITS,
            either: scalars.step_size * relative * UP * UNITS,
            weight: scalars.loss * (1.0 + 1.0 / 16.0) * UNITS,
            always: scalars.eta * UP * UNITS,
        }
    }

    /// Whether an element of Adam is certified, and its update within its bound.
    #[inline(always)]
    pub(super) fn certifies_adam(&self, x: f32, m: f32, v: f32) -> bool {
        // Half of a bit pattern that is no positive number means nothing, and does not pass below.
        let estimate = f32::from_bits(0x5f37_59df_u32.wrapping_sub(v.to_bits() >> 1));
        let quotient = m.abs() * (estimate * self.root).min(self.inverse_eps);
        // NU-3: NaN, and signs among them, are above every number here.
        (v.to_bits() <= self.second_moment_bits) & self.certifies(x, m, quotient)
    }

    /// The same of SGD.
    #[inline(always)]
    pub(super) fn certifies_sgd(&self, x: f32, m: f32) -> bool {
        self.certifies(x, m, m.abs())
    }

    /// `quotient` is at least `|u|/step_size`, and u has the sign of m.
    #[inline(always)]
    fn certifies(&self, x: f32, m: f32, quotient: f32) -> bool {
        let magnitude = x.to_bits() & !0x8000_0000;
        let is_ordinary = magnitude.wrapping_sub(LEAST_BITS) < INFINITY_CELL.to_bits() - LEAST_BITS;
        let toward_zero = (magnitude.wrapping_add(0x8000) & 0xffff).cast_signed();
        let grows_back = (x.to_bits() ^ m.to_bits()).cast_signed() >= 0;
        let along = if grows_back { CELL - toward_zero } else { toward_zero } - SPARE;
        let against = CELL - 2 * SPARE - along;
        let float = f32::from_bits(magnitude.wrapping_sub(0x8000) & EXPONENT);
        let rest = x.abs() * self.weight + self.always;
        // NU-3: comparisons with NaN are false.
        (quotient * self.along + rest < in_floats(along) * float)
            & (quotient * self.either + rest < in_floats(against) * float)
            & (quotient <= self.largest_quotient)
            & is_ordinary
    }
}

/// A count of at most 2^16 floats.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "counts of 17 bits are exact")]
const fn in_floats(count: i32) -> f32 {
    count as f32
}
