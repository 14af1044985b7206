//! A sweep of the conformance generators over all cores, as long as one likes.
//!
//! The elements are cut into slices, and a slice depends on the seed and its own number alone: a sweep gives the same
//! tally on any number of cores, and a miss can be found again.

use driftless_numerics::conformance::{Forward, Generator, Order, Seeded, Tally, settings};
use driftless_numerics::{Family, GroupStep, Rule};
use driftless_types::Fqn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

/// Evaluations of one slice.
const SLICE: u64 = 1 << 15;
/// Finished slices that wait for the tally.
const WAITING_SLICES_MAX: usize = 64;

/// What to sweep.
pub(super) struct Sweep {
    /// Whose rule is tried.
    pub(super) family: Family,
    /// How many elements are stepped and judged.
    pub(super) evaluations: u64,
    /// One seed, one set of elements.
    pub(super) seed: u64,
}

impl Sweep {
    /// Runs until the end or until it is cancelled; `progress` is told after every slice.
    pub(super) fn run(&self, cancel: &AtomicBool, mut progress: impl FnMut(&Tally)) -> Tally {
        let cases = cases(self.family);
        let next = AtomicU64::new(0);
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let (mut total, mut first_miss) = (Tally::default(), None);
        thread::scope(|scope| {
            let (done, slices) = sync_channel(WAITING_SLICES_MAX);
            for _ in 0..workers {
                let (done, cases, next) = (done.clone(), &cases, &next);
                scope.spawn(move || self.work(cases, next, cancel, &done));
            }
            drop(done);
            for (slice, mut tally) in slices {
                first_miss = earlier(first_miss.take(), tally.first_miss.take().map(|miss| (slice, miss)));
                total.merge(tally);
                total.first_miss = first_miss.as_ref().map(|(_, miss)| miss.clone());
                progress(&total);
            }
        });
        total
    }

    /// Takes slice after slice.
    fn work(&self, cases: &[Case], next: &AtomicU64, cancel: &AtomicBool, done: &SyncSender<(u64, Tally)>) {
        while !cancel.load(Ordering::Relaxed) {
            let slice = next.fetch_add(1, Ordering::Relaxed);
            let start = slice.saturating_mul(SLICE);
            if start >= self.evaluations {
                return;
            }
            let case = &cases[driftless_types::index_of(slice % cases.len() as u64)];
            let tally = self.slice(case, slice, SLICE.min(self.evaluations - start));
            if done.send((slice, tally)).is_err() {
                return;
            }
        }
    }

    /// Bulk and adversarial elements by turns.
    fn slice(&self, case: &Case, slice: u64, evaluations: u64) -> Tally {
        let seed = Seeded::new(self.seed).bits().wrapping_add(slice);
        let mut generator = Generator::new(&case.step, seed);
        let mut tally = Tally::default();
        for index in 0..evaluations {
            let element = if index % 2 == 0 { generator.bulk() } else { generator.adversarial() };
            let noise = generator.noise();
            let after = case.forward.step(element, noise);
            let cast = self.family.cast();
            let changed = cast.bits(element.before) != cast.bits(after);
            let certified = case.rule.is_certified_unchanged(after, element.exp_avg, element.exp_avg_sq);
            tally.record(changed, certified, || {
                let bits = [element.before, after, element.exp_avg, element.exp_avg_sq].map(f32::to_bits);
                self.describe(case, slice, index, bits)
            });
        }
        tally
    }

    /// All that is needed to see a miss again.
    fn describe(&self, case: &Case, slice: u64, index: u64, [y, x, m, v]: [u32; 4]) -> String {
        let hyper = &case.step.hyper;
        format!(
            "family {}, order {:?}, seed {}, slice {slice}, element {index}: before 0x{y:08x}, after 0x{x:08x}, \
             exp_avg 0x{m:08x}, exp_avg_sq 0x{v:08x}, step {}, lr {:e}, beta1 {}, beta2 {}, eps {:e}, weight decay {}",
            self.family,
            case.forward.order(),
            self.seed,
            case.step.step,
            hyper.lr,
            hyper.beta1,
            hyper.beta2,
            hyper.eps,
            hyper.weight_decay
        )
    }
}

/// A step in one order of operations, under a family's rule.
struct Case {
    step: GroupStep,
    rule: Rule,
    forward: Forward,
}

/// Every step that the family's gates let through, in every order of the family.
fn cases(family: Family) -> Vec<Case> {
    let mut cases = Vec::new();
    for step in settings() {
        let Ok(rule) = Rule::new(&Fqn::from("conformance"), family, &step) else { continue };
        for &order in Order::of(family) {
            let forward = Forward::new(order, &step);
            cases.push(Case { step: step.clone(), rule: rule.clone(), forward });
        }
    }
    cases
}

/// The miss of the lower slice.
fn earlier(one: Option<(u64, String)>, other: Option<(u64, String)>) -> Option<(u64, String)> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if one.0 < other.0 { one } else { other }),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_counts_every_evaluation_once_and_repeats_itself() {
        let run = |evaluations, seed| {
            let sweep = Sweep { family: Family::Torch, evaluations, seed };
            sweep.run(&AtomicBool::new(false), |_| ())
        };
        let evaluations = 5 * SLICE + 17;
        let tally = run(evaluations, 3);
        assert_eq!((tally.evaluated, tally.missed), (evaluations, 0));
        assert_eq!(tally, run(evaluations, 3));
        assert_ne!(tally, run(evaluations, 4));
    }

    #[test]
    fn a_cancelled_sweep_stops_with_what_it_has() {
        let cancel = AtomicBool::new(false);
        let sweep = Sweep { family: Family::Torch, evaluations: u64::MAX, seed: 1 };
        let tally = sweep.run(&cancel, |_| cancel.store(true, Ordering::Relaxed));
        assert!(tally.evaluated >= SLICE && tally.evaluated.is_multiple_of(SLICE), "{tally:?}");
    }

    /// The sweep can fail: the rule of one family, stepped by another, misses changes and says where.
    #[test]
    fn a_wrong_family_is_found() {
        let sweep = Sweep { family: Family::Torch, evaluations: SLICE, seed: 1 };
        let mut missed = 0;
        for (slice, step) in (0..).zip(settings()) {
            let rule = Rule::new(&Fqn::from("w"), Family::Torch, &step).unwrap();
            let forward = Forward::new(Order::DeepspeedCpu, &step);
            let tally = sweep.slice(&Case { step, rule, forward }, slice, SLICE);
            missed += tally.missed;
            assert_eq!(tally.missed > 0, tally.first_miss.is_some());
            if let Some(miss) = tally.first_miss {
                assert!(miss.starts_with("family torch, order DeepspeedCpu, seed 1, slice "), "{miss}");
            }
        }
        assert!(missed > 0);
    }
}
