//! The gates in front of the certified rule: what must hold of a parameter's step before it may be inverted.
//!
//! - **NU-1 (gates).** A parameter whose step fails a gate is sent whole, and the gate says its name.
//!   No gate can see values written outside the optimizer or a learning rate that the caller got wrong: those
//!   are for the digest.

use crate::params::{GroupStep, Optimizer};
use driftless_types::Fqn;
use std::fmt;

/// A condition under which a step can be inverted; printed in kebab case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Gate {
    /// Every hyperparameter, and every scalar that follows from them, is a finite number.
    FiniteValues,
    /// The learning rate is zero or a normal FP32 number.
    LearningRate,
    /// The weight decay is not negative.
    WeightDecay,
    /// Learning rate times weight decay is below one half.
    DecayRate,
    /// The first beta is in [0, 1).
    Beta1,
    /// The second beta is in [0, 1).
    Beta2,
    /// Epsilon is above zero.
    Epsilon,
    /// SGD has a momentum: without one no state holds its update.
    Momentum,
    /// The step counter grew by exactly one since the last detection.
    StepCounter,
    /// The step was taken, not skipped.
    StepTaken,
    /// The hyperparameters are those captured in the step.
    CapturedInStep,
    /// Masters and moments are those of one step.
    OneStep,
    /// Trainers agree closely enough on the bias corrections of this step.
    ScalarSpread,
    /// No update is larger than Adam's moments allow.
    UpdateBound,
    /// The masters were audited before the step, where the family needs that.
    AuditedMasters,
}

impl Gate {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FiniteValues => "finite-values",
            Self::LearningRate => "learning-rate",
            Self::WeightDecay => "weight-decay",
            Self::DecayRate => "decay-rate",
            Self::Beta1 => "beta1",
            Self::Beta2 => "beta2",
            Self::Epsilon => "epsilon",
            Self::Momentum => "momentum",
            Self::StepCounter => "step-counter",
            Self::StepTaken => "step-taken",
            Self::CapturedInStep => "captured-in-step",
            Self::OneStep => "one-step",
            Self::ScalarSpread => "scalar-spread",
            Self::UpdateBound => "update-bound",
            Self::AuditedMasters => "audited-masters",
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a parameter's step cannot be inverted: it is sent whole.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("{group} is not invertible, gate {gate}: found {found}, expected {expected}")]
pub struct NotInvertible {
    /// The parameter's name.
    pub group: String,
    /// The gate that failed.
    pub gate: Gate,
    /// What the step says.
    pub found: String,
    /// What the gate asks for.
    pub expected: String,
}

impl NotInvertible {
    pub(crate) fn new(
        group: &Fqn,
        gate: Gate,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        let group = group.to_string();
        Self { group, gate, found: found.to_string(), expected: expected.to_string() }
    }
}

/// What the counters say of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepChange {
    /// Exactly one step since the last detection: the rule applies.
    Stepped,
    /// The counter did not move: the parameter was not touched, nothing is sent.
    Untouched,
}

/// Checks everything about a parameter's step that can be known without reading its elements.
///
/// # Errors
/// [`NotInvertible`] with the first gate that fails.
pub fn check_gates(group: &Fqn, previous_step: u64, now: &GroupStep) -> Result<StepChange, NotInvertible> {
    if now.step == previous_step {
        return Ok(StepChange::Untouched);
    }
    if previous_step.checked_add(1) != Some(now.step) {
        let found = format_args!("step {} after {previous_step}", now.step).to_string();
        return Err(NotInvertible::new(group, Gate::StepCounter, found, "one step more, or none"));
    }
    if now.skipped {
        return Err(NotInvertible::new(group, Gate::StepTaken, "a skipped step", "a counter that stays"));
    }
    check_counts(group, now)?;
    match now.optimizer {
        Optimizer::AdamW | Optimizer::Adam => check_adam(group, now)?,
        Optimizer::Sgd => check_sgd(group, now)?,
    }
    Ok(StepChange::Stepped)
}

/// The gates on the counts that a caller kept of the hyperparameters and of the moments.
fn check_counts(group: &Fqn, now: &GroupStep) -> Result<(), NotInvertible> {
    let step = now.step;
    if let Some(other) = now.captured_at.filter(|&other| other != step) {
        let found = format!("the hyperparameters of step {other}");
        return Err(NotInvertible::new(group, Gate::CapturedInStep, found, format!("those of step {step}")));
    }
    if let Some(other) = now.moments_at.filter(|&other| other != step) {
        let found = format!("moments of step {other} to masters of step {step}");
        return Err(NotInvertible::new(group, Gate::OneStep, found, "both of one step"));
    }
    Ok(())
}

/// A gate on one number: its name, the number, whether it holds, what it asks for.
type NumberGate = (Gate, f64, bool, &'static str);

/// The gates on the numbers of a step of Adam, which the rule needs whoever calls it.
pub(crate) fn check_adam(group: &Fqn, now: &GroupStep) -> Result<(), NotInvertible> {
    let hyper = &now.hyper;
    let is_beta = |beta: &f64| (0.0..1.0).contains(beta);
    let decay_rate = hyper.lr * now.decoupled().weight_decay;
    check_finite(group, &[&[hyper.beta1, hyper.beta2, hyper.eps][..], &rates(now)].concat())?;
    check_rates(group, now)?;
    check_numbers(
        group,
        &[
            (Gate::DecayRate, decay_rate, decay_rate < 0.5, "lr * weight_decay below 0.5"),
            (Gate::Beta1, hyper.beta1, is_beta(&hyper.beta1), "a number in [0, 1)"),
            (Gate::Beta2, hyper.beta2, is_beta(&hyper.beta2), "a number in [0, 1)"),
            (Gate::Epsilon, hyper.eps, hyper.eps > 0.0, "a number above 0"),
        ],
    )
}

/// The gates on the numbers of a step of SGD.
pub(crate) fn check_sgd(group: &Fqn, now: &GroupStep) -> Result<(), NotInvertible> {
    let momentum = now.hyper.beta1;
    check_finite(group, &[&[momentum][..], &rates(now)].concat())?;
    check_rates(group, now)?;
    let holds = momentum > 0.0 && momentum < 1.0;
    check_numbers(group, &[(Gate::Momentum, momentum, holds, "a number in (0, 1)")])
}

const fn rates(now: &GroupStep) -> [f64; 2] {
    [now.hyper.lr, now.hyper.weight_decay]
}

fn check_finite(group: &Fqn, numbers: &[f64]) -> Result<(), NotInvertible> {
    let gates: Vec<NumberGate> = numbers
        .iter()
        .map(|&number| (Gate::FiniteValues, number, number.is_finite(), "a finite number"))
        .collect();
    check_numbers(group, &gates)
}

/// What holds of every optimizer: the rates, and a counter that has counted.
fn check_rates(group: &Fqn, now: &GroupStep) -> Result<(), NotInvertible> {
    let [lr, weight_decay] = rates(now);
    let normal = f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX);
    let is_rate = lr == 0.0 || normal.contains(&lr);
    check_numbers(
        group,
        &[
            (Gate::LearningRate, lr, is_rate, "0 or a normal FP32 number"),
            (Gate::WeightDecay, weight_decay, weight_decay >= 0.0, "a number from 0"),
        ],
    )?;
    if now.step == 0 {
        return Err(NotInvertible::new(group, Gate::StepCounter, 0, "a counter from 1"));
    }
    Ok(())
}

fn check_numbers(group: &Fqn, gates: &[NumberGate]) -> Result<(), NotInvertible> {
    // NU-1: the first gate that fails is the one that is named.
    for &(gate, found, holds, expected) in gates {
        if !holds {
            return Err(NotInvertible::new(group, gate, format_args!("{found:?}"), expected));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Hyperparameters;

    fn usual(step: u64) -> GroupStep {
        let hyper = Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        GroupStep::new(step, hyper)
    }

    fn failing(previous: u64, step: &GroupStep) -> Gate {
        let error = check_gates(&Fqn::from("w"), previous, step).unwrap_err();
        assert_eq!(error.group, "w");
        assert!(error.to_string().contains(error.gate.name()), "{error}");
        error.gate
    }

    #[test]
    fn nu1_counters_decide_between_stepped_untouched_and_refused() {
        let group = Fqn::from("w");
        assert_eq!(check_gates(&group, 4, &usual(5)), Ok(StepChange::Stepped));
        assert_eq!(check_gates(&group, 5, &usual(5)), Ok(StepChange::Untouched));
        assert_eq!(failing(3, &usual(5)), Gate::StepCounter);
        assert_eq!(failing(6, &usual(5)), Gate::StepCounter);
        assert_eq!(failing(u64::MAX, &usual(5)), Gate::StepCounter);
        assert_eq!(failing(4, &GroupStep { skipped: true, ..usual(5) }), Gate::StepTaken);
        assert_eq!(
            check_gates(&group, 5, &GroupStep { skipped: true, ..usual(5) }),
            Ok(StepChange::Untouched)
        );
    }

    #[test]
    fn nu1_hyperparameters_must_be_those_of_the_step() {
        let stale = GroupStep { captured_at: Some(4), ..usual(5) };
        assert_eq!(failing(4, &stale), Gate::CapturedInStep);
        let error = check_gates(&Fqn::from("w"), 4, &stale).unwrap_err();
        assert_eq!(error.found, "the hyperparameters of step 4");
        assert_eq!(error.expected, "those of step 5");
        // A scheduler that moved on early is as wrong as one that lags.
        assert_eq!(failing(4, &GroupStep { captured_at: Some(6), ..usual(5) }), Gate::CapturedInStep);
    }

    #[test]
    fn nu1_masters_and_moments_must_be_of_one_step() {
        let torn = GroupStep { moments_at: Some(4), ..usual(5) };
        assert_eq!(failing(4, &torn), Gate::OneStep);
        let error = check_gates(&Fqn::from("w"), 4, &torn).unwrap_err();
        assert_eq!(error.found, "moments of step 4 to masters of step 5");
        let whole = GroupStep { moments_at: Some(5), captured_at: Some(5), ..usual(5) };
        assert_eq!(check_gates(&Fqn::from("w"), 4, &whole), Ok(StepChange::Stepped));
    }

    #[test]
    fn nu1_every_number_must_be_finite() {
        let base = usual(5).hyper;
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for hyper in [
                Hyperparameters { lr: odd, ..base.clone() },
                Hyperparameters { weight_decay: odd, ..base.clone() },
                Hyperparameters { beta1: odd, ..base.clone() },
                Hyperparameters { beta2: odd, ..base.clone() },
                Hyperparameters { eps: odd, ..base.clone() },
            ] {
                assert_eq!(failing(4, &GroupStep::new(5, hyper.clone())), Gate::FiniteValues);
                let of_sgd =
                    hyper.lr.is_finite() && hyper.beta1.is_finite() && hyper.weight_decay.is_finite();
                let sgd = GroupStep::new(5, hyper).with_optimizer(Optimizer::Sgd);
                assert_eq!(check_gates(&Fqn::from("w"), 4, &sgd).is_ok(), of_sgd);
            }
        }
    }

    #[test]
    fn nu1_each_hyperparameter_has_a_gate_of_its_own() {
        let base = usual(5).hyper;
        let failing_with = |hyper| failing(4, &GroupStep::new(5, hyper));
        for lr in [-1e-6, 1e-40, 1e39] {
            assert_eq!(failing_with(Hyperparameters { lr, ..base.clone() }), Gate::LearningRate);
        }
        assert_eq!(failing_with(Hyperparameters { weight_decay: -0.1, ..base.clone() }), Gate::WeightDecay);
        let strong = Hyperparameters { lr: 0.1, weight_decay: 5.0, ..base.clone() };
        assert_eq!(failing_with(strong.clone()), Gate::DecayRate);
        // A decay inside the moments may be as strong as it likes.
        let coupled = GroupStep::new(5, strong).with_optimizer(Optimizer::Adam);
        assert_eq!(check_gates(&Fqn::from("w"), 4, &coupled), Ok(StepChange::Stepped));
        for beta in [-0.1, 1.0] {
            assert_eq!(failing_with(Hyperparameters { beta1: beta, ..base.clone() }), Gate::Beta1);
            assert_eq!(failing_with(Hyperparameters { beta2: beta, ..base.clone() }), Gate::Beta2);
        }
        for eps in [0.0, -1e-8] {
            assert_eq!(failing_with(Hyperparameters { eps, ..base.clone() }), Gate::Epsilon);
        }
        for momentum in [0.0, -0.9, 1.0] {
            let hyper = Hyperparameters { beta1: momentum, ..base.clone() };
            assert_eq!(failing(4, &GroupStep::new(5, hyper).with_optimizer(Optimizer::Sgd)), Gate::Momentum);
        }
    }
}
