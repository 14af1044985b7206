//! The scalars of a step in double precision, and how far trainers disagree on them.

use crate::params::GroupStep;

/// Steps after which the running product of an FP32 beta is given up; reached only by betas within 2^-18 of 1.
const RUNNING_PRODUCT_STEPS: u64 = 1 << 22;
/// A power of beta below this no longer shows in an FP32 bias correction.
const NEGLIGIBLE_POWER: f32 = 1e-12;

/// The bias corrections of one step and what follows from them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepScalars {
    /// `lr / bc1`.
    pub(crate) step_size: f64,
    /// `1 - beta2^t`.
    pub(crate) second_correction: f64,
    /// The largest relative difference between the ways in which trainers compute `lr/bc1` and `1/sqrt(bc2)`;
    /// infinite if one of them cannot be computed at all.
    pub(crate) spread: f64,
    /// The largest `|m_hat| / sqrt(v_hat)` that any sequence of gradients can reach, by Cauchy and Schwarz.
    pub(crate) moment_ratio: f64,
}

impl StepScalars {
    /// Scalars of a step whose hyperparameters have passed their gates.
    pub(crate) fn new(now: &GroupStep) -> Self {
        let first = Correction::new(now.hyper.beta1, now.step);
        let second = Correction::new(now.hyper.beta2, now.step);
        let spread = first.deviations().map(|ratio| (ratio - 1.0).abs()).into_iter();
        let spread = spread.chain(second.deviations().map(|ratio| (ratio.sqrt() - 1.0).abs()));
        let worst =
            spread.fold(0.0, |worst: f64, next| if next.is_nan() { f64::INFINITY } else { worst.max(next) });
        Self {
            step_size: now.hyper.lr / first.exact,
            second_correction: second.exact,
            spread: worst,
            moment_ratio: moment_ratio(now, first.exact, second.exact),
        }
    }
}

/// One bias correction, `1 - beta^t`, in the ways that trainers compute it.
struct Correction {
    exact: f64,
    single_beta: f64,
    /// With the power itself rounded to FP32, at worst.
    single_power: f64,
    running_product: f64,
}

impl Correction {
    fn new(beta: f64, step: u64) -> Self {
        let single = single(beta);
        let single_beta = 1.0 - power(f64::from(single), step);
        Self {
            exact: 1.0 - power(beta, step),
            single_beta,
            single_power: single_beta - (1.0 - single_beta) * f64::from(f32::EPSILON) / 2.0,
            running_product: 1.0 - f64::from(running_product(single, step)),
        }
    }

    /// Exact over computed: infinite or NaN where a trainer divides by zero.
    fn deviations(&self) -> [f64; 3] {
        [self.single_beta, self.single_power, self.running_product].map(|computed| self.exact / computed)
    }
}

/// A double rounded once to single precision, as trainers hand their hyperparameters to kernels.
#[expect(clippy::cast_possible_truncation, reason = "rounding to FP32 is the point")]
pub(crate) const fn single(value: f64) -> f32 {
    value as f32
}

#[expect(clippy::cast_precision_loss, reason = "a counter beyond 2^53 has long lost every power of beta")]
fn power(beta: f64, step: u64) -> f64 {
    beta.powf(step as f64)
}

/// `beta^step` as repeated FP32 multiplication; NaN if that would take unreasonably many steps.
fn running_product(beta: f32, step: u64) -> f32 {
    let mut product = 1.0;
    for _ in 0..step.min(RUNNING_PRODUCT_STEPS) {
        let next = product * beta;
        if next < NEGLIGIBLE_POWER || next.to_bits() == product.to_bits() {
            return next;
        }
        product = next;
    }
    if step > RUNNING_PRODUCT_STEPS { f32::NAN } else { product }
}

/// `(1-b1)/sqrt(1-b2) * sqrt(sum over j < t of (b1^2/b2)^j) * sqrt(bc2)/bc1`, possibly infinite.
fn moment_ratio(now: &GroupStep, first_correction: f64, second_correction: f64) -> f64 {
    let (beta1, beta2) = (now.hyper.beta1, now.hyper.beta2);
    let ratio = if beta1 == 0.0 { 0.0 } else { beta1 * beta1 / beta2 };
    let sum = geometric_sum(ratio, now.step);
    (1.0 - beta1) / (1.0 - beta2).sqrt() * sum.sqrt() * second_correction.sqrt() / first_correction
}

#[expect(clippy::cast_precision_loss, reason = "only a bound, and rounded up below")]
fn geometric_sum(ratio: f64, terms: u64) -> f64 {
    if terms == 1 {
        return 1.0;
    }
    if ratio.is_infinite() {
        return ratio;
    }
    if (ratio - 1.0).abs() < 1e-6 {
        // Close to 1 the quotient cancels: bound every term by the largest instead.
        return terms as f64 * power(ratio.max(1.0), terms);
    }
    (1.0 - power(ratio, terms)) / (1.0 - ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Hyperparameters;

    fn scalars(beta1: f64, beta2: f64, step: u64) -> StepScalars {
        let hyper = Hyperparameters { lr: 1e-6, beta1, beta2, eps: 1e-8, weight_decay: 0.0 };
        StepScalars::new(&GroupStep::new(step, hyper))
    }

    #[test]
    fn first_step_of_usual_betas() {
        let first = scalars(0.9, 0.999, 1);
        assert!((first.step_size - 1e-5).abs() < 1e-18);
        assert!((first.second_correction - 0.001).abs() < 1e-15);
        // At t = 1 one gradient makes both moments: the ratio is exactly one.
        assert!((first.moment_ratio - 1.0).abs() < 1e-12);
        // 0.999 in FP32 is off by 1.3e-8 and its power by up to 6e-8, of 0.001, under a root.
        assert!(first.spread > 3e-5 && first.spread < 4e-5, "{}", first.spread);
    }

    #[test]
    fn spread_fades_with_the_powers_of_beta() {
        assert!(scalars(0.9, 0.95, 20_000).spread < 1e-9);
        assert!(scalars(0.9, 0.99999, 20_000).spread < 1e-2);
    }

    #[test]
    fn betas_that_round_to_one_have_no_bounded_spread() {
        assert_eq!(scalars(0.9, 1.0 - 1e-12, 5).spread, f64::INFINITY);
        assert_eq!(scalars(1.0 - 1e-12, 0.95, 5).spread, f64::INFINITY);
        assert_eq!(scalars(0.9, 0.999_999_9, u64::MAX).spread, f64::INFINITY);
    }

    #[test]
    fn moment_ratio_bounds_every_sequence_of_gradients() {
        for (beta1, beta2) in [(0.9, 0.95), (0.9, 0.999), (0.0, 0.9), (0.95, 0.9025), (0.9, 0.5)] {
            let (mut m, mut v) = (0.0f64, 0.0f64);
            for step in 1..60u64 {
                // The worst sequence for t = 59, by Cauchy and Schwarz: g_j proportional to (b1/b2)^j.
                let gradient = if beta1 == 0.0 { power(100.0, step) } else { power(beta2 / beta1, step) };
                m = beta1 * m + (1.0 - beta1) * gradient;
                v = beta2 * v + (1.0 - beta2) * gradient * gradient;
                let ratio = (m / (1.0 - power(beta1, step))) / (v / (1.0 - power(beta2, step))).sqrt();
                let bound = scalars(beta1, beta2, step).moment_ratio;
                assert!(ratio <= bound * (1.0 + 1e-9), "{beta1} {beta2} {step}: {ratio} > {bound}");
                assert!(bound <= ratio * 1.001, "loose bound at {beta1} {beta2} {step}: {ratio} < {bound}");
            }
        }
        assert_eq!(scalars(0.9, 0.0, 2).moment_ratio, f64::INFINITY);
    }
}
