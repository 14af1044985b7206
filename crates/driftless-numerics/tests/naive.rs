//! What the plain inverse `(x + u) / (1 - lr*wd)` misses, in single and in double precision: why the certified rule is
//! there.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use driftless_numerics::conformance::{Element, Forward, Generator, Order, Tally, settings};
use driftless_numerics::{Family, GroupStep, Hyperparameters, Rule, bf16};
use driftless_types::Fqn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The plain inverse of one step, its scalars in double precision.
struct Plain {
    step_size: f64,
    root: f64,
    eps: f64,
    keep: f64,
}

impl Plain {
    fn new(step: &GroupStep) -> Self {
        let Hyperparameters { lr, beta1, beta2, eps, weight_decay } = step.hyper;
        let power = |beta: f64| beta.powf(f64::from(u32::try_from(step.step).unwrap()));
        let (step_size, root) = (lr / (1.0 - power(beta1)), (1.0 - power(beta2)).sqrt());
        Self { step_size, root, eps, keep: 1.0 - lr * weight_decay }
    }

    /// The master before the step, if FP32 were exact.
    #[expect(clippy::cast_possible_truncation, reason = "scalars rounded to FP32")]
    fn single(&self, x: f32, m: f32, v: f32) -> f32 {
        let update = self.step_size as f32 * m / (v.sqrt() / self.root as f32 + self.eps as f32);
        (x + update) / self.keep as f32
    }

    /// The same if FP64 were.
    #[expect(clippy::cast_possible_truncation, reason = "the plain inverse rounds twice")]
    fn double(&self, x: f32, m: f32, v: f32) -> f32 {
        let update = self.step_size * f64::from(m) / (f64::from(v).sqrt() / self.root + self.eps);
        ((f64::from(x) + update) / self.keep) as f32
    }
}

/// What the inverse in FP32, the one in FP64 and the certified rule did on the same elements.
#[derive(Clone, Debug, Default)]
struct Trial {
    single: Tally,
    double: Tally,
    rule: Tally,
}

impl Trial {
    fn judge(&mut self, plain: &Plain, rule: &Rule, forward: &Forward, element: Element, noise: u32) {
        let after = forward.step(element, noise);
        let Element { before, exp_avg: m, exp_avg_sq: v } = element;
        let changed = bf16::cast(after) != bf16::cast(before);
        let stays = |inverse: f32| bf16::cast(inverse) == bf16::cast(after);
        self.single.record(changed, stays(plain.single(after, m, v)), String::new);
        self.double.record(changed, stays(plain.double(after, m, v)), String::new);
        self.rule.record(changed, rule.is_certified_unchanged(after, m, v), String::new);
    }
}

#[test]
fn the_plain_inverse_misses_changes() {
    let mut trial = Trial::default();
    for step in settings() {
        let rule = Rule::new(&Fqn::from("w"), Family::Agnostic, &step).unwrap();
        let (plain, forward) = (Plain::new(&step), Forward::new(Order::ApexContracted, &step));
        let mut generator = Generator::new(&step, 5);
        for _ in 0..5000 {
            trial.judge(&plain, &rule, &forward, generator.adversarial(), 0);
        }
    }
    println!("{trial:?}");
    assert!(trial.single.missed > 100 && trial.double.missed > 100, "nobody needs the certified rule");
    assert_eq!(trial.rule.missed, 0);
}

/// Elements of the table in CERTIFICATE.md, per order.
const ELEMENTS: u32 = 100_000_000;

/// The rates in CERTIFICATE.md: plain data of one step as reinforcement learning takes it, in every order.
#[test]
#[ignore = "900 million evaluations: minutes"]
fn the_rates_of_the_plain_inverses() {
    let hyper = Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let step = GroupStep::new(100, hyper);
    let (plain, next) = (Plain::new(&step), AtomicUsize::new(0));
    let total = Mutex::new(Trial::default());
    let work = || {
        while let Some(&order) = Order::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            let trial = bulk(&step, &plain, order);
            println!("{order:?}: {}", row(&trial));
            let mut total = total.lock().unwrap();
            total.single.merge(trial.single);
            total.double.merge(trial.double);
            total.rule.merge(trial.rule);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let total = total.into_inner().unwrap();
    println!("all orders: {}", row(&total));
    assert!(total.single.missed > 100 && total.double.missed > 1000 && total.rule.missed == 0, "{total:?}");
}

fn bulk(step: &GroupStep, plain: &Plain, order: Order) -> Trial {
    let rule = Rule::new(&Fqn::from("w"), Family::Agnostic, step).unwrap();
    let (forward, mut generator) = (Forward::new(order, step), Generator::new(step, 11));
    let mut trial = Trial::default();
    for _ in 0..ELEMENTS {
        let element = generator.bulk();
        trial.judge(plain, &rule, &forward, element, generator.noise());
    }
    trial
}

fn row(trial: &Trial) -> String {
    let Trial { single, double, rule } = trial;
    format!(
        "{} elements, {} changed; missed {} in FP32, {} in FP64, {} by the rule",
        rule.evaluated, rule.changed, single.missed, double.missed, rule.missed
    )
}
