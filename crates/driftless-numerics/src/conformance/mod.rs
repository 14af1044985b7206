//! Proof by trial for whoever adds a family: forward steps in every order of operations that trainers use,
//! generators of hard elements, and a tally of what the rule missed and what it sent in vain.
//!
//! The rule's own proof is on paper (see [`Rule`]); this module is the adversary that tries to break it.
//! [`check_family`] runs all of it for one family.
//!
//! ```
//! use driftless_numerics::{Family, conformance::check_family};
//! let tally = check_family(Family::DeepspeedCpu, 20);
//! assert!(tally.changed > 1000 && tally.missed == 0, "{tally:?}");
//! ```

mod generate;
mod order;

pub use generate::{Generator, Seeded, special_elements};
pub use order::{Forward, Order};

use crate::{Family, GroupStep, Hyperparameters, Rule, is_fit};
use driftless_types::Fqn;

/// A master before a step, with its moments as the step leaves them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element {
    /// The master before the step.
    pub before: f32,
    /// The first moment after the step.
    pub exp_avg: f32,
    /// The second moment after the step.
    pub exp_avg_sq: f32,
}

/// What a rule did on a set of elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Elements stepped and judged.
    pub evaluated: u64,
    /// Those whose served bits changed.
    pub changed: u64,
    /// Changed elements that were certified unchanged: must be zero.
    pub missed: u64,
    /// Unchanged elements that were not certified: they only cost bytes.
    pub surplus: u64,
    /// The first miss, in words.
    pub first_miss: Option<String>,
}

impl Tally {
    /// Steps one element and judges what the rule says of it; `noise` feeds the orders that are not
    /// deterministic.
    pub fn judge(&mut self, rule: &Rule, forward: &Forward, element: Element, noise: u32) {
        let after = forward.step(element, noise);
        let cast = rule.family().cast();
        let changed = cast.bits(element.before) != cast.bits(after);
        let certified = rule.is_certified_unchanged(after, element.exp_avg, element.exp_avg_sq);
        self.record(changed, certified, || format!("{:?} made {after:e} of {element:?}", forward.order()));
    }

    /// Records one verdict; `describe` is asked only for the first miss.
    pub fn record(&mut self, changed: bool, certified: bool, describe: impl FnOnce() -> String) {
        self.evaluated += 1;
        self.changed += u64::from(changed);
        self.surplus += u64::from(!changed && !certified);
        if changed && certified {
            self.missed += 1;
            self.first_miss.get_or_insert_with(describe);
        }
    }

    /// Adds what another rule or set of elements gave.
    pub fn merge(&mut self, other: Self) {
        self.evaluated += other.evaluated;
        self.changed += other.changed;
        self.missed += other.missed;
        self.surplus += other.surplus;
        self.first_miss = self.first_miss.take().or(other.first_miss);
    }
}

/// Steps from practice and beyond it: learning rates, decays, betas, epsilons and counters.
#[must_use]
pub fn settings() -> Vec<GroupStep> {
    // A decay so strong, and of such odd factors, that every way of rounding it shows.
    let strong = Hyperparameters { lr: 0.031, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.71 };
    let mut settings: Vec<_> = [1, 2, 50].map(|step| GroupStep::new(step, strong.clone())).into();
    for lr in [1e-6, 1e-5, 1e-3] {
        for weight_decay in [0.0, 0.01, 0.1] {
            for (beta2, eps) in [(0.95, 1e-8), (0.999, 1e-8), (0.95, 1e-15), (0.999_99, 1e-6)] {
                let hyper = Hyperparameters { lr, beta1: 0.9, beta2, eps, weight_decay };
                settings.extend([1, 10, 1000].map(|step| GroupStep::new(step, hyper.clone())));
            }
        }
    }
    settings
}

/// Tries to make the rule of a family miss a change: bulk and adversarial elements, `per_setting` of each for
/// every setting and every order of the family.
#[must_use]
pub fn check_family(family: Family, per_setting: u32) -> Tally {
    let mut tally = Tally::default();
    for (seed, step) in (1..).zip(settings()) {
        let Ok(rule) = Rule::new(&Fqn::from("conformance"), family, &step) else {
            continue;
        };
        for &order in Order::of(family) {
            let forward = Forward::new(order, &step);
            let mut generator = Generator::new(&step, seed);
            for _ in 0..per_setting {
                for element in [generator.bulk(), generator.adversarial()] {
                    tally.judge(&rule, &forward, element, generator.noise());
                }
            }
        }
    }
    tally
}

/// Runs the cross product of special values through every order of a family: zeros of both signs, subnormals,
/// infinities, NaN, edges of cells and of binades, steps without learning rate and without decay.
#[must_use]
pub fn check_special_values(family: Family) -> Tally {
    let mut tally = Tally::default();
    for lr in [0.0, 1e-6, 1e-3, 0.4] {
        for weight_decay in [0.0, 0.01, 0.99] {
            for (beta2, step) in [(0.95, 1), (0.999, 10), (0.999, 1000)] {
                let hyper = Hyperparameters { lr, beta1: 0.9, beta2, eps: 1e-8, weight_decay };
                tally.merge(check_special_step(family, &GroupStep::new(step, hyper)));
            }
        }
    }
    tally
}

fn check_special_step(family: Family, step: &GroupStep) -> Tally {
    let mut tally = Tally::default();
    let Ok(rule) = Rule::new(&Fqn::from("conformance"), family, step) else {
        return tally;
    };
    let audited = rule.clone().with_audited_masters();
    for forward in Order::of(family).iter().map(|&order| Forward::new(order, step)) {
        for element in special_elements() {
            for &noise in forward.order().telling_noise() {
                tally.judge(&rule, &forward, element, noise);
                if is_fit(element.before) {
                    tally.judge(&audited, &forward, element, noise);
                }
            }
        }
    }
    tally
}
