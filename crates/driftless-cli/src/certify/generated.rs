//! The rule against generated elements: plausible ones, ones at the edges of cells, and special values.

use super::{TallyReport, missed, summary};
use crate::args::CertifyArgs;
use crate::console::{Console, Lines, millions, per_second};
use crate::failure::Failure;
use crate::family::FamilyArg;
use driftless_numerics::Family;
use driftless_numerics::conformance::{Tally, check_special_values, run_families};
use indicatif::HumanCount;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[derive(Debug, Serialize)]
struct Report {
    families: Vec<FamilyReport>,
    /// Elements stepped, once per order of operations.
    evaluations: u64,
    seed: u64,
    seconds: f64,
    /// Whether the user ended it before all evaluations were done.
    interrupted: bool,
}

#[derive(Debug, Serialize)]
struct FamilyReport {
    family: &'static str,
    /// What `--evaluations` counts, in the orders of this family.
    #[serde(flatten)]
    tally: TallyReport,
    /// The cross product of zeros, subnormals, infinities, NaN and edges of cells, always whole.
    special_values: TallyReport,
}

/// Tries every family at once.
pub(super) fn certify(args: &CertifyArgs, cancel: &AtomicBool) -> Result<(), Failure> {
    let evaluations = args.evaluations.map_or(0, |evaluations| evaluations.0);
    let families = families(&args.families);
    let console = Console::evaluating(Lines::beside(args.json.as_ref()), evaluations);
    let (start, mut total) = (Instant::now(), Tally::default());
    let special: Vec<_> = families.iter().map(|family| special_values(*family, cancel, &console)).collect();
    let special_count = special.iter().map(|tally| tally.evaluated).sum();
    console.doing(format!("seed {}", args.seed));
    let swept = run_families(&families, evaluations, args.seed, &|done| console.reached(done), cancel);
    let mut reports = Vec::new();
    for ((family, tally), special) in swept.families.into_iter().zip(special) {
        console.line(&format!("{family}, seed {}: {}", args.seed, summary(&tally)));
        let [tally, special] = [located(tally, family, args.seed), located(special, family, args.seed)];
        let (report, special_values) = (TallyReport::from(&tally), TallyReport::from(&special));
        reports.push(FamilyReport { family: family.name(), tally: report, special_values });
        total.merge(special);
        total.merge(tally);
    }
    let report = Report {
        families: reports,
        evaluations: swept.evaluations,
        seed: args.seed,
        seconds: start.elapsed().as_secs_f64(),
        interrupted: cancel.load(Ordering::Relaxed),
    };
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))?;
    missed(&total)?;
    conclude(&report, special_count, &console)
}

/// Those named, in the order in which they are reported; all, if none is.
fn families(named: &[FamilyArg]) -> Vec<Family> {
    let is_meant = |family: &Family| named.iter().any(|named| named.or(Family::Agnostic) == *family);
    Family::ALL.into_iter().filter(|family| named.is_empty() || is_meant(family)).collect()
}

/// The special values of one family: all, or after an interrupt none.
fn special_values(family: Family, cancel: &AtomicBool, console: &Console) -> Tally {
    if cancel.load(Ordering::Relaxed) {
        return Tally::default();
    }
    console.doing(format!("special values of {family}"));
    let tally = check_special_values(family);
    console.line(&format!("{family}, special values: {}", summary(&tally)));
    tally
}

/// The tally of one family as part of all: its miss must say where it was.
fn located(mut tally: Tally, family: Family, seed: u64) -> Tally {
    tally.first_miss = tally.first_miss.map(|miss| format!("of family {family}, seed {seed}, {miss}"));
    tally
}

/// What it all means, in the last line.
fn conclude(report: &Report, special: u64, console: &Console) -> Result<(), Failure> {
    let evaluations = report.evaluations;
    let rate = millions(per_second(evaluations + special, report.seconds));
    let counts =
        format!("{} evaluations and {} special values", HumanCount(evaluations), HumanCount(special));
    if report.interrupted {
        console.line(&format!("nothing missed in the first {counts}, {rate}"));
        return Err(Failure::Interrupted);
    }
    console.line(&format!("certified: nothing missed in {counts}, {rate}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_those_named_or_all() {
        assert_eq!(families(&[]), Family::ALL);
        let named = [FamilyArg::Named(Family::Apex), FamilyArg::Auto, FamilyArg::Named(Family::Apex)];
        assert_eq!(families(&named), [Family::Agnostic, Family::Apex]);
    }

    #[test]
    fn a_miss_says_how_to_see_it_again() {
        let tally = Tally { first_miss: Some("batch 3: ...".into()), ..Tally::default() };
        let miss = located(tally, Family::Torch, 7).first_miss;
        assert_eq!(miss.as_deref(), Some("of family torch, seed 7, batch 3: ..."));
    }
}
