//! The scalars of a step: computed once in double precision, with how far trainers disagree on them, and rounded
//! once to what the rule evaluates with.

use crate::family::{OptimizerFamily, Subnormals};
use crate::gate::{Gate, NotInvertible};
use crate::params::{GroupStep, Moments, Optimizer};
use driftless_types::Fqn;

/// The relative error of an update in any order of evaluation, apart from the scalars.
const BASE_RHO: f64 = 1.0 / 32_768.0;
/// Scalars that trainers compute with a larger relative spread than this are refused.
const MAX_SPREAD: f64 = 1.0 / 256.0;

/// Steps after which the running product of an FP32 beta is given up; reached only by betas within 2^-18 of 1.
const RUNNING_PRODUCT_STEPS: u64 = 1 << 22;
/// A power of beta below this no longer shows in an FP32 bias correction.
const NEGLIGIBLE_POWER: f32 = 1e-12;

/// What one step multiplies and adds with, as the rule evaluates it: FP32, each rounded once.
#[derive(Clone, Debug)]
pub struct Scalars {
    /// `lr / bc1`; the learning rate of SGD.
    pub step_size: f32,
    /// `1 / sqrt(bc2)`.
    pub inverse_root: f32,
    /// What is added to the root of the second moment.
    pub eps: f32,
    /// The relative error of an update.
    pub rho: f32,
    /// The absolute error of an update.
    pub eta: f32,
    /// `1 - lr*wd`, in the smallest and largest way a trainer of the family may round it.
    pub keep: [f32; 2],
    /// `lr*wd`.
    pub loss: f32,
    /// `lr*wd` before rounding.
    pub loss_double: f64,
    /// `rho + lr*wd`.
    pub unknown_update: f32,
    /// `rho * lr*wd`.
    pub unknown_weight: f32,
    /// Second moments above this overflow in some order of evaluation.
    pub largest_second_moment: f32,
    /// The largest update that the optimizer's moments allow; infinite where nothing bounds it.
    pub largest_update: f32,
    /// Whether the moments are those that the step used, to the last bit.
    pub(crate) are_moments_exact: bool,
    /// Whether a zero with `m = +0` stays the zero it was.
    pub(crate) certifies_idle_zeros: bool,
    /// Whether a weight other than zero with `m = 0` stays what it was.
    pub(crate) certifies_idle_weights: bool,
}

/// `lr*wd` as one family's kernel holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecayScalars {
    /// `lr*wd`.
    pub loss: f32,
    /// `1 - lr*wd`, in the smallest and largest way a trainer of the family may round it.
    pub keep: [f32; 2],
}

impl Scalars {
    /// The scalars of a step that has passed the gates of `trainer`, the family of which the trainer is.
    ///
    /// # Errors
    /// [`NotInvertible`] if trainers disagree too much on them, or if they overflow.
    pub(crate) fn new(
        trainer: &dyn OptimizerFamily,
        group: &Fqn,
        step: &GroupStep,
    ) -> Result<Self, NotInvertible> {
        let hyper = step.decoupled();
        let scalars = StepScalars::new(step);
        let rho =
            single(BASE_RHO + 2.0 * checked_spread(trainer, group, step, &scalars)? + step.moments.error());
        // Flushed moments are scaled by the step size, which exceeds one only outside of practice.
        let eta = single(2f64.powi(-123) * (1.0 + 1.0 / scalars.eps) * scalars.step_size.max(1.0));
        let step_size = single(scalars.step_size);
        if !step_size.is_finite() || !eta.is_finite() {
            let found =
                format_args!("lr / bc1 = {:e}, eps = {:e}", scalars.step_size, scalars.eps).to_string();
            return Err(NotInvertible::new(group, Gate::FiniteValues, found, "numbers that FP32 can hold"));
        }
        let bound = hyper.lr * scalars.moment_ratio * (1.0 + 2.0 * f64::from(rho)) + f64::from(eta);
        let DecayScalars { loss, keep } = trainer.decay_scalars(&hyper);
        // NU-4: a moment that was rounded to zero may not have been zero in the step.
        let is_exact = step.moments == Moments::Fp32;
        Ok(Self {
            step_size,
            inverse_root: single(1.0 / scalars.second_correction.sqrt()),
            eps: single(scalars.eps),
            rho,
            eta,
            keep,
            loss,
            loss_double: hyper.lr * hyper.weight_decay,
            unknown_update: rho + loss,
            unknown_weight: rho * loss,
            largest_second_moment: single(0.5 * f64::from(f32::MAX) * scalars.second_correction),
            largest_update: single(bound),
            are_moments_exact: is_exact,
            certifies_idle_zeros: is_exact && trainer.keeps_every_zero(&hyper),
            certifies_idle_weights: is_exact && hyper.weight_decay == 0.0,
        })
    }
}

/// The relative spread of the scalars over all trainers of a family, and what flushing or storing moments adds.
fn checked_spread(
    trainer: &dyn OptimizerFamily,
    group: &Fqn,
    step: &GroupStep,
    scalars: &StepScalars,
) -> Result<f64, NotInvertible> {
    // Below 2^-124 a second moment may be lost: to fast math, or in BF16.
    let may_lose = trainer.subnormals() == Subnormals::MayFlush || step.moments != Moments::Fp32;
    let lost = if may_lose { 2f64.powi(-62) / (scalars.eps * scalars.second_correction.sqrt()) } else { 0.0 };
    let spread = scalars.spread + lost;
    if spread.is_nan() || spread > MAX_SPREAD {
        let expected = format_args!("a relative spread of at most {MAX_SPREAD}").to_string();
        return Err(NotInvertible::new(group, Gate::ScalarSpread, format_args!("{spread:e}"), expected));
    }
    Ok(spread)
}

/// The bias corrections of one step and what follows from them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct StepScalars {
    /// `lr / bc1`.
    step_size: f64,
    /// `1 - beta2^t`.
    second_correction: f64,
    eps: f64,
    /// The largest relative difference between the ways in which trainers compute `lr/bc1` and `1/sqrt(bc2)`;
    /// infinite if one of them cannot be computed at all.
    spread: f64,
    /// The largest `|m_hat| / sqrt(v_hat)` that any sequence of gradients can reach, by Cauchy and Schwarz.
    moment_ratio: f64,
}

impl StepScalars {
    /// Scalars of a step whose hyperparameters have passed their gates.
    fn new(now: &GroupStep) -> Self {
        match now.optimizer {
            Optimizer::AdamW | Optimizer::Adam => Self::of_adam(now),
            // There is no second moment, no correction to disagree on, and no bound.
            Optimizer::Sgd => Self {
                step_size: now.hyper.lr,
                second_correction: 1.0,
                eps: 1.0,
                spread: 0.0,
                moment_ratio: f64::INFINITY,
            },
        }
    }

    fn of_adam(now: &GroupStep) -> Self {
        let first = Correction::new(now.hyper.beta1, now.step);
        let second = Correction::new(now.hyper.beta2, now.step);
        let spread = first.deviations().map(|ratio| (ratio - 1.0).abs()).into_iter();
        let spread = spread.chain(second.deviations().map(|ratio| (ratio.sqrt() - 1.0).abs()));
        let worst =
            spread.fold(0.0, |worst: f64, next| if next.is_nan() { f64::INFINITY } else { worst.max(next) });
        Self {
            step_size: now.hyper.lr / first.exact,
            second_correction: second.exact,
            eps: now.hyper.eps,
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
