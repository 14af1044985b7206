//! The gates in front of the certified rule: what must hold of a parameter's step before it may be inverted.
//!
//! - **NU-1 (gates).** A parameter whose step fails a gate is sent whole, and the gate says its name.
//!   No gate can see values written outside the optimizer or a learning rate that the caller got wrong: those
//!   are for the digest.

use crate::params::GroupStep;
use driftless_types::Fqn;
use std::fmt;

/// A condition under which a step can be inverted; printed in kebab case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Gate {
    /// The learning rate is finite, and zero or a normal FP32 number.
    LearningRate,
    /// The weight decay is finite and not negative.
    WeightDecay,
    /// Learning rate times weight decay is below one half.
    DecayRate,
    /// The first beta is in [0, 1).
    Beta1,
    /// The second beta is in [0, 1).
    Beta2,
    /// Epsilon is finite and above zero.
    Epsilon,
    /// The step counter grew by exactly one since the last detection.
    StepCounter,
    /// The step was taken, not skipped.
    StepTaken,
    /// Trainers agree closely enough on the bias corrections of this step.
    ScalarSpread,
    /// No update is larger than Adam's moments allow.
    UpdateBound,
}

impl Gate {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LearningRate => "learning-rate",
            Self::WeightDecay => "weight-decay",
            Self::DecayRate => "decay-rate",
            Self::Beta1 => "beta1",
            Self::Beta2 => "beta2",
            Self::Epsilon => "epsilon",
            Self::StepCounter => "step-counter",
            Self::StepTaken => "step-taken",
            Self::ScalarSpread => "scalar-spread",
            Self::UpdateBound => "update-bound",
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
    check_hyperparameters(group, now)?;
    Ok(StepChange::Stepped)
}

/// The gates on the numbers of one step, which the rule needs whoever calls it.
pub(crate) fn check_hyperparameters(group: &Fqn, now: &GroupStep) -> Result<(), NotInvertible> {
    let hyper = &now.hyper;
    let decay_rate = hyper.lr * hyper.weight_decay;
    let normal = f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX);
    let gates = [
        (
            Gate::LearningRate,
            hyper.lr,
            hyper.lr == 0.0 || normal.contains(&hyper.lr),
            "0 or a normal FP32 number",
        ),
        (
            Gate::WeightDecay,
            hyper.weight_decay,
            hyper.weight_decay >= 0.0 && hyper.weight_decay.is_finite(),
            "a finite number, 0 or above",
        ),
        (Gate::DecayRate, decay_rate, decay_rate < 0.5, "lr * weight_decay below 0.5"),
        (Gate::Beta1, hyper.beta1, (0.0..1.0).contains(&hyper.beta1), "a number in [0, 1)"),
        (Gate::Beta2, hyper.beta2, (0.0..1.0).contains(&hyper.beta2), "a number in [0, 1)"),
        (Gate::Epsilon, hyper.eps, hyper.eps > 0.0 && hyper.eps.is_finite(), "a finite number above 0"),
    ];
    // NU-1: the first gate that fails is the one that is named.
    for (gate, found, holds, expected) in gates {
        if !holds {
            return Err(NotInvertible::new(group, gate, format_args!("{found:?}"), expected));
        }
    }
    if now.step == 0 {
        return Err(NotInvertible::new(group, Gate::StepCounter, 0, "a counter from 1"));
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
    fn nu1_each_hyperparameter_has_a_gate_of_its_own() {
        let base = usual(5).hyper;
        let failing_with = |hyper| failing(4, &GroupStep::new(5, hyper));
        for lr in [-1e-6, f64::NAN, f64::INFINITY, 1e-40, 1e39] {
            assert_eq!(failing_with(Hyperparameters { lr, ..base.clone() }), Gate::LearningRate);
        }
        for weight_decay in [-0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(failing_with(Hyperparameters { weight_decay, ..base.clone() }), Gate::WeightDecay);
        }
        assert_eq!(
            failing_with(Hyperparameters { lr: 0.1, weight_decay: 5.0, ..base.clone() }),
            Gate::DecayRate
        );
        for beta in [-0.1, 1.0, f64::NAN] {
            assert_eq!(failing_with(Hyperparameters { beta1: beta, ..base.clone() }), Gate::Beta1);
            assert_eq!(failing_with(Hyperparameters { beta2: beta, ..base.clone() }), Gate::Beta2);
        }
        for eps in [0.0, -1e-8, f64::NAN, f64::INFINITY] {
            assert_eq!(failing_with(Hyperparameters { eps, ..base.clone() }), Gate::Epsilon);
        }
    }
}
