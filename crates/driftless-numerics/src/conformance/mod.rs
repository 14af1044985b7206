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
mod run;
mod sgd;

pub use generate::{Generator, Seeded, special_elements};
pub use order::{Forward, Order};
pub use run::{Report, run, run_families};
pub use sgd::SgdOrder;

use crate::{Family, FamilyRule, GroupStep, Hyperparameters, OptimizerFamily, Rule, is_fit};
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

/// An order of operations that a family stands for; implemented by whoever adds a family.
pub trait ForwardOrder {
    /// Its name in reports.
    fn name(&self) -> String;

    /// The step of an element in this order: the master after it, from noise where the order is not deterministic.
    fn prepare(&self, step: &GroupStep) -> Box<dyn Fn(Element, u32) -> f32>;
}

impl ForwardOrder for Order {
    fn name(&self) -> String {
        format!("{self:?}")
    }

    fn prepare(&self, step: &GroupStep) -> Box<dyn Fn(Element, u32) -> f32> {
        let forward = Forward::new(*self, step);
        Box::new(move |element, noise| forward.step(element, noise))
    }
}

/// Tries to make the rule of any family miss a change: `per_setting` bulk and as many adversarial elements for each
/// step, and special ones, in every one of its orders. The masters are taken as audited where they are fit.
///
/// ```
/// use driftless_numerics::conformance::{Order, check, settings};
/// let tally = check(&driftless_numerics::Torch, &[&Order::Torch, &Order::TorchContracted], &settings(), 10);
/// assert_eq!(tally.missed, 0, "{tally:?}");
/// ```
#[must_use]
pub fn check<F: OptimizerFamily + Clone>(
    family: &F,
    orders: &[&dyn ForwardOrder],
    steps: &[GroupStep],
    per_setting: u32,
) -> Tally {
    let mut tally = Tally::default();
    let special: Vec<Element> = special_elements().collect();
    for (seed, step) in (1..).zip(steps) {
        let Ok(rule) = FamilyRule::new(family.clone(), &Fqn::from("conformance"), step) else {
            continue;
        };
        let audited = rule.clone().with_audited_masters();
        for order in orders {
            let forward = order.prepare(step);
            let mut random = Seeded::new(seed);
            let mut generator = Generator::new(step, seed);
            for _ in 0..per_setting {
                let pick = special[driftless_types::index_of(random.bits() % special.len() as u64)];
                for element in [generator.bulk(), generator.adversarial(), pick] {
                    let after = forward(element, generator.noise());
                    let (m, v) = (element.exp_avg, element.exp_avg_sq);
                    let changed = family.cast().bits(element.before) != family.cast().bits(after);
                    let rule = if is_fit(element.before) { &audited } else { &rule };
                    tally.record(changed, rule.is_certified_unchanged(after, m, v), || {
                        format!("{} made {after:e} of {element:?}", order.name())
                    });
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
    special_settings().iter().for_each(|step| tally.merge(check_special_step(family, step)));
    tally
}

/// Steps for special values: among them ones without learning rate, without decay, and with nearly too much of both.
#[must_use]
pub fn special_settings() -> Vec<GroupStep> {
    let mut settings = Vec::new();
    for lr in [0.0, 1e-6, 1e-3, 0.4] {
        for weight_decay in [0.0, 0.01, 0.99] {
            for (beta2, step) in [(0.95, 1), (0.999, 10), (0.999, 1000)] {
                let hyper = Hyperparameters { lr, beta1: 0.9, beta2, eps: 1e-8, weight_decay };
                settings.push(GroupStep::new(step, hyper));
            }
        }
    }
    settings
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
