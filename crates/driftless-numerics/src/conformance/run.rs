//! The long run: every generator against every order and every family, on all cores, for as long as one likes.
//!
//! Work is cut into batches, each of which depends on the seed and its own number alone: a run gives the same report
//! on any number of cores, and what it missed can be found again.

use super::{
    Element, Forward, Generator, Order, Seeded, Tally, settings, special_elements, special_settings,
};
use crate::{Family, GroupStep, Rule, is_fit};
use driftless_types::{Fqn, index_of};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Elements that are judged together.
const LANES: usize = 64;
/// Groups of that many elements that a batch steps in every order.
const GROUPS: u64 = 32;

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Elements stepped, once per order: each was judged by the agnostic rule and by that of its own families.
    pub evaluations: u64,
    /// What the rule of each family did, in the order of [`Family::ALL`].
    pub families: Vec<(Family, Tally)>,
}

impl Report {
    fn new() -> Self {
        Self { evaluations: 0, families: Family::ALL.map(|family| (family, Tally::default())).into() }
    }

    /// Changed elements that some rule certified unchanged: must be zero.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.families.iter().map(|(_, tally)| tally.missed).sum()
    }

    /// The first of them, in words.
    #[must_use]
    pub fn first_miss(&self) -> Option<&str> {
        self.families.iter().find_map(|(_, tally)| tally.first_miss.as_deref())
    }

    fn merge(&mut self, other: Self) {
        self.evaluations += other.evaluations;
        for ((_, tally), (_, others)) in self.families.iter_mut().zip(other.families) {
            tally.merge(others);
        }
    }
}

/// Steps and judges at least that many elements: bulk, adversarial and special ones by turns, in every order. It works
/// on all cores; `progress` is told now and then, by any of them, how many are done. A canceled run reports what it
/// did; it is not reproducible.
#[must_use]
pub fn run(evaluations: u64, seed: u64, progress: &(dyn Fn(u64) + Sync), cancel: &AtomicBool) -> Report {
    let work = Work::new(seed);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let batches = evaluations.div_ceil(work.evaluations_per_batch());
    let finished = Mutex::new(Vec::new());
    let worker = || {
        let mut reports = Vec::new();
        while !cancel.load(Ordering::Relaxed) {
            let batch = next.fetch_add(1, Ordering::Relaxed);
            if batch >= batches {
                break;
            }
            let report = work.batch(batch);
            progress(done.fetch_add(report.evaluations, Ordering::Relaxed) + report.evaluations);
            reports.push((batch, report));
        }
        finished.lock().unwrap_or_else(std::sync::PoisonError::into_inner).append(&mut reports);
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
    let mut reports = finished.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    // In order, so that the first miss is the same on any number of cores.
    reports.sort_by_key(|(batch, _)| *batch);
    reports.into_iter().fold(Report::new(), |mut total, (_, report)| {
        total.merge(report);
        total
    })
}

/// Everything that batches share.
struct Work {
    seed: u64,
    cases: Vec<Case>,
    /// Steps for special values.
    special_cases: Vec<Case>,
    special: Vec<Element>,
}

/// One step in every order, with the rules that must hold for it.
struct Case {
    step: GroupStep,
    orders: Vec<(Forward, Vec<Judge>)>,
}

/// A family's rule of a step.
struct Judge {
    /// Its place in [`Family::ALL`].
    place: usize,
    rule: Rule,
    audited: Rule,
}

impl Case {
    fn new(step: GroupStep) -> Self {
        let judges = |order: Order| {
            let of_order = Family::ALL.into_iter().enumerate();
            let of_order = of_order.filter(|(_, family)| Order::of(*family).contains(&order));
            let judge = |(place, family)| {
                // A step that a family's gates refuse is sent whole.
                let rule = Rule::new(&Fqn::from("conformance"), family, &step).ok()?;
                Some(Judge { place, audited: rule.clone().with_audited_masters(), rule })
            };
            of_order.filter_map(judge).collect()
        };
        let orders = Order::ALL.map(|order| (Forward::new(order, &step), judges(order))).into();
        Self { step, orders }
    }
}

/// Some elements side by side, as the rules take them.
struct Group {
    elements: [Element; LANES],
    noise: [u32; LANES],
    m: [f32; LANES],
    v: [f32; LANES],
    /// Which masters were fit before the step.
    fit: u64,
}

impl Group {
    fn new(elements: [Element; LANES], noise: [u32; LANES]) -> Self {
        let fit = mask(|lane| is_fit(elements[lane].before));
        Self { m: elements.map(|e| e.exp_avg), v: elements.map(|e| e.exp_avg_sq), elements, noise, fit }
    }
}

impl Work {
    fn new(seed: u64) -> Self {
        let cases = |steps: Vec<GroupStep>| steps.into_iter().map(Case::new).collect();
        let (cases, special_cases) = (cases(settings()), cases(special_settings()));
        Self { seed, cases, special_cases, special: special_elements().collect() }
    }

    const fn evaluations_per_batch(&self) -> u64 {
        GROUPS * (LANES * Order::ALL.len()) as u64
    }

    /// Bulk, adversarial and special elements by turns.
    fn batch(&self, number: u64) -> Report {
        let mut seeds = Seeded::new(self.seed);
        let seed = seeds.bits().wrapping_add(number);
        let (kind, turn) = (number % 3, number / 3);
        let cases = if kind == 2 { &self.special_cases } else { &self.cases };
        let case = &cases[index_of(turn % cases.len() as u64)];
        let mut generator = Generator::new(&case.step, seed);
        let mut random = Seeded::new(!seed);
        let mut report = Report::new();
        for _ in 0..GROUPS {
            let elements = std::array::from_fn(|_| match kind {
                0 => generator.bulk(),
                1 => generator.adversarial(),
                _ => self.special[index_of(random.bits() % self.special.len() as u64)],
            });
            let group = Group::new(elements, std::array::from_fn(|_| generator.noise()));
            judge(case, &group, number, &mut report);
        }
        report
    }
}

/// Steps a group in every order, and lets every family of the order judge it.
fn judge(case: &Case, group: &Group, batch: u64, report: &mut Report) {
    for (forward, judges) in &case.orders {
        let after: [f32; LANES] =
            std::array::from_fn(|lane| forward.step(group.elements[lane], group.noise[lane]));
        report.evaluations += LANES as u64;
        for Judge { place, rule, audited } in judges {
            let cast = rule.family().cast();
            let changed = mask(|lane| cast.bits(group.elements[lane].before) != cast.bits(after[lane]));
            let sent = rule.send_mask(&after, &group.m, &group.v);
            let sent_audited = audited.send_mask(&after, &group.m, &group.v) | !group.fit;
            let tally = &mut report.families[*place].1;
            let missed = changed & !(sent & sent_audited);
            tally.evaluated += LANES as u64;
            tally.changed += u64::from(changed.count_ones());
            tally.missed += u64::from(missed.count_ones());
            tally.surplus += u64::from((sent & !changed).count_ones());
            if missed != 0 && tally.first_miss.is_none() {
                let lane = missed.trailing_zeros() as usize;
                tally.first_miss = Some(describe(case, forward, group, after[lane], lane, batch));
            }
        }
    }
}

#[cold]
fn describe(case: &Case, forward: &Forward, group: &Group, after: f32, lane: usize, batch: u64) -> String {
    let Element { before, exp_avg, exp_avg_sq } = group.elements[lane];
    let bits = [before, after, exp_avg, exp_avg_sq].map(f32::to_bits);
    format!(
        "batch {batch}: {:?} with noise {:#x} took the bits {:#x} to {:#x} by moments {:#x} and {:#x} in {:?}",
        forward.order(),
        group.noise[lane],
        bits[0],
        bits[1],
        bits[2],
        bits[3],
        case.step
    )
}

fn mask(holds: impl Fn(usize) -> bool) -> u64 {
    (0..LANES).fold(0, |mask, lane| mask | u64::from(holds(lane)) << lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_repeats_itself_on_any_number_of_cores() {
        let work = Work::new(5);
        let mut by_hand = Report::new();
        (0..4).for_each(|batch| by_hand.merge(work.batch(batch)));
        let report = run(3 * work.evaluations_per_batch() + 1, 5, &|_| (), &AtomicBool::new(false));
        assert_eq!(report, by_hand);
        assert_ne!(report, run(report.evaluations, 6, &|_| (), &AtomicBool::new(false)));
    }

    #[test]
    fn a_canceled_run_stops_with_what_it_has() {
        let cancel = AtomicBool::new(false);
        let report = run(u64::MAX, 1, &|_| cancel.store(true, Ordering::Relaxed), &cancel);
        assert!(report.evaluations > 0 && report.evaluations < 1_000_000, "{}", report.evaluations);
    }

    /// A rule of another family among the judges is found out, and its first miss is told.
    #[test]
    fn a_run_finds_a_wrong_rule() {
        let mut work = Work::new(1);
        for case in &mut work.cases {
            let torch = case.orders[0].1.pop().expect("the rule of torch");
            assert_eq!(torch.rule.family(), Family::Torch);
            case.orders[7].1.push(torch);
        }
        let mut report = Report::new();
        (0..200).for_each(|batch| report.merge(work.batch(batch)));
        assert!(report.missed() > 10);
        assert!(report.first_miss().is_some_and(|miss| miss.contains("DeepspeedCpu")), "{report:?}");
    }
}
