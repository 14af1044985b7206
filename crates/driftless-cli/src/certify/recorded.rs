//! The rule against a folder of recorded steps, so that anyone can check an optimizer of their own.

use super::{TallyReport, missed, summary};
use crate::args::CertifyArgs;
use crate::console::{Console, Lines};
use crate::failure::Failure;
use crate::family::FamilyArg;
use crate::files::{StepElements, StepFile};
use driftless_numerics::conformance::Tally;
use driftless_numerics::{Family, MasterAudit, NotInvertible, Rule, check_gates};
use driftless_types::Fqn;
use indicatif::HumanCount;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Serialize)]
struct Report {
    files: Vec<FileReport>,
    #[serde(flatten)]
    total: TallyReport,
}

/// One file under the rule of one family.
#[derive(Debug, Serialize)]
struct FileReport {
    file: String,
    family: &'static str,
    #[serde(flatten)]
    tally: TallyReport,
    /// The gate that failed: such a step is sent whole, so nothing of it can be missed.
    gate: Option<String>,
}

/// Checks every file, then runs the rule of every family on each.
pub(super) fn certify(dir: &Path, args: &CertifyArgs, cancel: &AtomicBool) -> Result<(), Failure> {
    let files = StepFile::open_all(dir)?;
    let console = Console::counting(Lines::beside(args.json.as_ref()), files.len(), "files");
    let table = Table::of(&files);
    console.line(&table.header());
    let (mut reports, mut total) = (Vec::new(), Tally::default());
    for file in &files {
        if cancel.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        console.doing(file.name());
        let elements = file.elements()?;
        for family in families(file, &args.families) {
            let (tally, gate) = judge(file, &elements, family);
            console.line(&table.row(&file.name(), family, &tally, gate.as_ref()));
            reports.push(file_report(file, family, &tally, gate));
            total.merge(in_file(tally, file, family));
        }
        console.step();
    }
    let report = Report { files: reports, total: TallyReport::from(&total) };
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))?;
    missed(&total)?;
    console.line(&format!("certified: {}", summary(&total)));
    Ok(())
}

/// Those of the command line, or else the file's own.
fn families(file: &StepFile, named: &[FamilyArg]) -> Vec<Family> {
    let named = if named.is_empty() { &[FamilyArg::Auto] } else { named };
    named.iter().map(|family| family.or(file.optimizer().params.family)).collect()
}

/// What a sync would have sent of the recorded step, against what changed in it.
fn judge(file: &StepFile, elements: &StepElements, family: Family) -> (Tally, Option<NotInvertible>) {
    match open_rule(file, elements, family) {
        Ok(rule) => (tally(elements, family, |index| certifies(&rule, elements, index)), None),
        Err(gate) => (tally(elements, family, |_| false), Some(gate)),
    }
}

fn open_rule(file: &StepFile, elements: &StepElements, family: Family) -> Result<Rule, NotInvertible> {
    let (group, step) = (Fqn::from(file.name()), &file.optimizer().params.default);
    check_gates(&group, step.step - 1, step)?;
    let rule = Rule::new(&group, family, step)?;
    let mut moments = elements.exp_avg.iter().zip(&elements.exp_avg_sq);
    match moments.find(|(m, v)| !rule.update_within_bound(**m, **v)) {
        Some((m, v)) => Err(rule.gate_bound(&group, rule.update(*m, *v))),
        // What a trainer's pass over the masters before the step would have found.
        None if MasterAudit::of(&elements.before) == MasterAudit::Fit => Ok(rule.with_audited_masters()),
        None => Ok(rule),
    }
}

fn certifies(rule: &Rule, elements: &StepElements, index: usize) -> bool {
    rule.is_certified_unchanged(elements.after[index], elements.exp_avg[index], elements.exp_avg_sq[index])
}

fn tally(elements: &StepElements, family: Family, certified: impl Fn(usize) -> bool) -> Tally {
    let (mut tally, cast) = (Tally::default(), family.cast());
    for (index, (before, after)) in elements.before.iter().zip(&elements.after).enumerate() {
        let changed = cast.bits(*before) != cast.bits(*after);
        tally.record(changed, certified(index), || describe(elements, index));
    }
    tally
}

/// The bits of an element, so that the miss can be seen again.
fn describe(elements: &StepElements, index: usize) -> String {
    format!(
        "element {index}: before 0x{:08x}, after 0x{:08x}, exp_avg 0x{:08x}, exp_avg_sq 0x{:08x}",
        elements.before[index].to_bits(),
        elements.after[index].to_bits(),
        elements.exp_avg[index].to_bits(),
        elements.exp_avg_sq[index].to_bits(),
    )
}

/// The tally of one file as part of all: its miss must say where it was.
fn in_file(mut tally: Tally, file: &StepFile, family: Family) -> Tally {
    tally.first_miss =
        tally.first_miss.map(|miss| format!("in {} with family {family}, {miss}", file.name()));
    tally
}

fn file_report(file: &StepFile, family: Family, tally: &Tally, gate: Option<NotInvertible>) -> FileReport {
    FileReport {
        file: file.name(),
        family: family.name(),
        tally: TallyReport::from(tally),
        gate: gate.map(|gate| gate.gate.to_string()),
    }
}

/// Columns that are as wide as the longest name.
struct Table {
    name_width: usize,
}

impl Table {
    fn of(files: &[StepFile]) -> Self {
        Self { name_width: files.iter().map(|file| file.name().chars().count()).max().unwrap_or(0) }
    }

    fn header(&self) -> String {
        let width = self.name_width;
        format!(
            "{:<width$}  {:<16}  {:>13}  {:>11}  {:>9}  {:>11}",
            "file", "family", "elements", "changed", "missed", "extra"
        )
    }

    fn row(&self, name: &str, family: Family, tally: &Tally, gate: Option<&NotInvertible>) -> String {
        let width = self.name_width;
        let [elements, changed, missed, extra] =
            [tally.evaluated, tally.changed, tally.missed, tally.surplus]
                .map(|count| HumanCount(count).to_string());
        let gate = gate.map_or_else(String::new, |gate| {
            format!("  sent whole, gate {}: found {}, expected {}", gate.gate, gate.found, gate.expected)
        });
        format!(
            "{name:<width$}  {:<16}  {elements:>13}  {changed:>11}  {missed:>9}  {extra:>11}{gate}",
            family.name()
        )
    }
}
