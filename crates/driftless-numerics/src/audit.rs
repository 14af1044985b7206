//! What is known of the masters before a step, beside the bits that are there after it.
//!
//! The cell of a zero ends at the zero of the other sign, so no error bound can certify a zero weight. What can is
//! the knowledge that nothing becomes a zero: no -0.0 that a subtraction turns into +0.0, and nothing so small that
//! decay makes it subnormal and fast math flushes it. One look at the masters after each step gives that knowledge
//! for the next.

/// The least magnitude of a fit master that is not zero: 2^-124. A decay of less than one half leaves at least
/// 2^-125, however it is rounded, which is a normal number.
const LEAST_FIT_BITS: u32 = 3 << 23;

/// What is known of all masters of a parameter at some step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MasterAudit {
    /// Nobody looked, or they were written to since.
    #[default]
    Unknown,
    /// Each was +0.0 or at least 2^-124 in magnitude.
    Fit,
    /// Some were -0.0 or smaller than 2^-124.
    Unfit,
}

impl MasterAudit {
    /// The audit of some masters; of none it is [`Self::Fit`].
    #[must_use]
    pub fn of(masters: &[f32]) -> Self {
        if masters.iter().all(|&x| is_fit(x)) { Self::Fit } else { Self::Unfit }
    }

    /// The audit of two sets of masters together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unfit, _) | (_, Self::Unfit) => Self::Unfit,
            (Self::Fit, Self::Fit) => Self::Fit,
            _ => Self::Unknown,
        }
    }
}

/// Whether a master is +0.0 or at least 2^-124 in magnitude (infinities and NaN are).
#[inline(always)]
#[must_use]
pub const fn is_fit(x: f32) -> bool {
    let bits = x.to_bits();
    (bits == 0) | (bits & 0x7fff_ffff >= LEAST_FIT_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audits_look_for_negative_zeros_and_for_what_decay_may_flush() {
        let least = 2f32.powi(-124);
        for fit in [0.0, least, -least, 1.0, f32::MAX, f32::INFINITY, f32::NAN] {
            assert_eq!(MasterAudit::of(&[1.0, fit]), MasterAudit::Fit, "{fit:e}");
        }
        for unfit in [-0.0, 1e-45, -1e-45, f32::MIN_POSITIVE, least.next_down(), -least.next_down()] {
            assert_eq!(MasterAudit::of(&[unfit, 1.0]), MasterAudit::Unfit, "{unfit:e}");
        }
        assert_eq!(MasterAudit::of(&[]), MasterAudit::Fit);
    }

    #[test]
    fn together_masters_are_as_fit_as_the_worst() {
        use MasterAudit::{Fit, Unfit, Unknown};
        for (one, other, both) in
            [(Fit, Fit, Fit), (Fit, Unfit, Unfit), (Fit, Unknown, Unknown), (Unknown, Unfit, Unfit)]
        {
            assert_eq!([one.and(other), other.and(one)], [both; 2]);
        }
    }
}
