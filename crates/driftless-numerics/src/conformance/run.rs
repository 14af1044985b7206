//! The long run: every generator against every order and every family, on all cores, for as long as one likes.
//!
//! Work is cut into batches, each of which depends on the seed and its own number alone: a run gives the same report
//! on any number of cores, and what it missed can be found again.

use super::{
    Element, Forward, Generator, Order, Seeded, Tally, settings, special_elements, special_settings,
};
use crate::{Family, GroupStep, Rule, is_fit};
use driftless_types::{Fqn, index_of};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Elements that are judged together.
const LANES: usize = 64;
/// Groups of that many elements that a batch steps in every order.
const GROUPS: u64 = 32;

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Elements stepped, once per order: each was judged by the rule of every family that stands for the order.
    pub evaluations: u64,
    /// What the rule of each family did, in the order of [`Family::ALL`].
    pub families: Vec<(Family, Tally)>,
}

impl Report {
    fn new(families: &[Family]) -> Self {
        Self { evaluations: 0, families: families.iter().map(|&family| (family, Tally::default())).collect() }
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

/// What one worker found, however long it runs.
struct Share {
    report: Report,
    /// Per family, the batch of its first miss.
    miss_batches: Vec<u64>,
}

impl Share {
    fn new(families: &[Family]) -> Self {
        Self { report: Report::new(families), miss_batches: vec![u64::MAX; families.len()] }
    }

    /// Adds a batch; a worker takes them in ascending order.
    fn add(&mut self, batch: u64, report: Report) {
        for (first, (_, tally)) in self.miss_batches.iter_mut().zip(&report.families) {
            if tally.first_miss.is_some() {
                *first = batch.min(*first);
            }
        }
        self.report.merge(report);
    }

    /// Both together: the first miss is the same on any number of cores.
    fn join(mut self, mut other: Self) -> Self {
        for (index, first) in self.miss_batches.iter_mut().enumerate() {
            if other.miss_batches[index] < *first {
                *first = other.miss_batches[index];
                let [mine, theirs] = [&mut self.report, &mut other.report];
                std::mem::swap(
                    &mut mine.families[index].1.first_miss,
                    &mut theirs.families[index].1.first_miss,
                );
            }
        }
        self.report.merge(other.report);
        self
    }
}

/// Steps and judges at least that many elements, by the rules of all families: see [`run_families`].
#[must_use]
pub fn run(evaluations: u64, seed: u64, progress: &(dyn Fn(u64) + Sync), cancel: &AtomicBool) -> Report {
    run_families(&Family::ALL, evaluations, seed, progress, cancel)
}

/// Steps and judges at least that many elements: bulk, adversarial and special ones by turns, in every order that some
/// of the families stands for. It works on all cores, in memory that does not grow; `progress` is told now and then, by
/// any of them, how many are done. A canceled run reports what it did; it is not reproducible.
#[must_use]
pub fn run_families(
    families: &[Family],
    evaluations: u64,
    seed: u64,
    progress: &(dyn Fn(u64) + Sync),
    cancel: &AtomicBool,
) -> Report {
    let work = Work::new(families, seed);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let batches = match work.evaluations_per_batch() {
        0 => 0, // no families, no orders
        per_batch => evaluations.div_ceil(per_batch),
    };
    let finished = Mutex::new(Share::new(&work.families));
    let worker = || {
        let mut share = Share::new(&work.families);
        while !cancel.load(Ordering::Relaxed) {
            let batch = next.fetch_add(1, Ordering::Relaxed);
            if batch >= batches {
                break;
            }
            let report = work.batch(batch);
            progress(done.fetch_add(report.evaluations, Ordering::Relaxed) + report.evaluations);
            share.add(batch, report);
        }
        let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner);
        let others = std::mem::replace(&mut *finished, Share::new(&work.families));
        *finished = others.join(share);
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
    finished.into_inner().unwrap_or_else(PoisonError::into_inner).report
}

/// Everything that batches share.
struct Work {
    seed: u64,
    /// In the order of [`Family::ALL`].
    families: Vec<Family>,
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
    /// Its place among the families.
    place: usize,
    rule: Rule,
    audited: Rule,
}

impl Case {
    fn new(families: &[Family], step: GroupStep) -> Self {
        let stands_for = |family: Family, order: &Order| Order::of(family).contains(order);
        let judges = |order: Order| {
            let judge = |(place, &family): (usize, &Family)| {
                // A step that a family's gates refuse is sent whole.
                let rule = Rule::new(&Fqn::from("conformance"), family, &step).ok()?;
                Some(Judge { place, audited: rule.clone().with_audited_masters(), rule })
            };
            let of_order = families.iter().enumerate().filter(|(_, family)| stands_for(**family, &order));
            of_order.filter_map(judge).collect()
        };
        let orders = Order::ALL.into_iter().filter(|order| families.iter().any(|&f| stands_for(f, order)));
        let orders = orders.map(|order| (Forward::new(order, &step), judges(order))).collect();
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
    fn new(families: &[Family], seed: u64) -> Self {
        let families: Vec<_> = Family::ALL.into_iter().filter(|family| families.contains(family)).collect();
        let cases =
            |steps: Vec<GroupStep>| steps.into_iter().map(|step| Case::new(&families, step)).collect();
        let (cases, special_cases) = (cases(settings()), cases(special_settings()));
        Self { seed, cases, special_cases, special: special_elements().collect(), families }
    }

    fn evaluations_per_batch(&self) -> u64 {
        GROUPS * (LANES * self.cases.first().map_or(0, |case| case.orders.len())) as u64
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
        let mut report = Report::new(&self.families);
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
        let work = Work::new(&Family::ALL, 5);
        let mut by_hand = Report::new(&Family::ALL);
        (0..4).for_each(|batch| by_hand.merge(work.batch(batch)));
        let report = run(3 * work.evaluations_per_batch() + 1, 5, &|_| (), &AtomicBool::new(false));
        assert_eq!(report, by_hand);
        assert_ne!(report, run(report.evaluations, 6, &|_| (), &AtomicBool::new(false)));
    }

    #[test]
    fn a_run_of_some_families_takes_their_orders_alone() {
        let families = [Family::DeepspeedCpu, Family::Torch];
        let report = run_families(&families, 1, 5, &|_| (), &AtomicBool::new(false));
        assert_eq!(report.evaluations, 4 * GROUPS * LANES as u64);
        assert_eq!(
            report.families.iter().map(|(family, _)| *family).collect::<Vec<_>>(),
            [Family::Torch, Family::DeepspeedCpu]
        );
        assert_eq!(report.families[0].1.evaluated, 3 * report.families[1].1.evaluated);
        assert_eq!(run_families(&[], 9, 5, &|_| (), &AtomicBool::new(false)).evaluations, 0);
    }

    #[test]
    fn a_canceled_run_stops_with_what_it_has() {
        let cancel = AtomicBool::new(false);
        let report = run(u64::MAX, 1, &|_| cancel.store(true, Ordering::Relaxed), &cancel);
        assert!(report.evaluations > 0 && report.evaluations < 1_000_000, "{}", report.evaluations);
    }

    /// A rule of another family among the judges is found out, and its first miss is told: whoever took its batch.
    #[test]
    fn a_run_finds_a_wrong_rule() {
        let mut work = Work::new(&Family::ALL, 1);
        for case in &mut work.cases {
            let torch = case.orders[0].1.pop().expect("the rule of torch");
            assert_eq!(torch.rule.family(), Family::Torch);
            case.orders[7].1.push(torch);
        }
        let mut report = Report::new(&Family::ALL);
        (0..200).for_each(|batch| report.merge(work.batch(batch)));
        assert!(report.missed() > 10);
        assert!(report.first_miss().is_some_and(|miss| miss.contains("DeepspeedCpu")), "{report:?}");
        let mut shares = [Share::new(&Family::ALL), Share::new(&Family::ALL)];
        (0..200).for_each(|batch| shares[usize::from(batch % 3 == 0)].add(batch, work.batch(batch)));
        let [one, other] = shares;
        assert_eq!(one.join(other).report, report);
    }
}
