//! The rule against generated elements: plausible ones, ones at the edges of cells, and special values.

use super::sweep::Sweep;
use super::{TallyReport, missed, summary};
use crate::args::CertifyArgs;
use crate::console::{Console, Lines, millions, per_second};
use crate::failure::Failure;
use driftless_numerics::Family;
use driftless_numerics::conformance::{Tally, check_special_values};
use indicatif::HumanCount;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[derive(Debug, Serialize)]
struct Report {
    families: Vec<FamilyReport>,
    seed: u64,
    seconds: f64,
    /// Whether the user ended it before all evaluations were done.
    interrupted: bool,
}

#[derive(Debug, Serialize)]
struct FamilyReport {
    family: &'static str,
    /// What `--evaluations` counts: bulk and adversarial elements.
    #[serde(flatten)]
    tally: TallyReport,
    /// The cross product of zeros, subnormals, infinities, NaN and edges of cells, always whole.
    special_values: TallyReport,
}

/// Sweeps every family in turn.
pub(super) fn certify(args: &CertifyArgs, cancel: &AtomicBool) -> Result<(), Failure> {
    let evaluations = args.evaluations.map_or(0, |evaluations| evaluations.0);
    let families = if args.families.is_empty() { vec![Family::Agnostic] } else { args.families.clone() };
    let all = evaluations.saturating_mul(families.len() as u64);
    let console = Console::evaluating(Lines::beside(args.json.as_ref()), all);
    let start = Instant::now();
    let (mut reports, mut total, mut special_count) = (Vec::new(), Tally::default(), 0);
    for family in families {
        if cancel.load(Ordering::Relaxed) {
            break;
        }
        let sweep = Sweep { family, evaluations, seed: args.seed };
        let [swept, special] = try_family(&sweep, &total, cancel, &console);
        let (tally, special_values) = (TallyReport::from(&swept), TallyReport::from(&special));
        reports.push(FamilyReport { family: family.name(), tally, special_values });
        special_count += special.evaluated;
        // The bar counts what was asked for.
        total.merge(Tally { evaluated: 0, ..special });
        total.merge(swept);
    }
    let seconds = start.elapsed().as_secs_f64();
    let interrupted = cancel.load(Ordering::Relaxed);
    let report = Report { families: reports, seed: args.seed, seconds, interrupted };
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))?;
    missed(&total)?;
    conclude(&report, total.evaluated, special_count, &console)
}

/// The generated elements of one family, and its special values.
fn try_family(sweep: &Sweep, before: &Tally, cancel: &AtomicBool, console: &Console) -> [Tally; 2] {
    let family = sweep.family;
    console.doing(format!("special values of {family}"));
    let special = check_special_values(family);
    console.line(&format!("{family}, special values: {}", summary(&special)));
    let missed_before = before.missed + special.missed;
    let swept = sweep.run(cancel, |tally| {
        console.reached(before.evaluated + tally.evaluated);
        console.doing(format!("{} missed", HumanCount(missed_before + tally.missed)));
    });
    console.line(&format!("{family}, seed {}: {}", sweep.seed, summary(&swept)));
    [swept, special]
}

/// What it all means, in the last line.
fn conclude(report: &Report, evaluated: u64, special: u64, console: &Console) -> Result<(), Failure> {
    let rate = millions(per_second(evaluated + special, report.seconds));
    let counts = format!("{} evaluations and {} special values", HumanCount(evaluated), HumanCount(special));
    if report.interrupted {
        console.line(&format!("nothing missed in the first {counts}, {rate}"));
        return Err(Failure::Interrupted);
    }
    console.line(&format!("certified: nothing missed in {counts}, {rate}"));
    Ok(())
}
