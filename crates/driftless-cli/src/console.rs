//! What a person sees while a run goes on: a progress bar, and a line per version.

use crate::args::RunArgs;
use crate::report::{DenseGroup, PhasesMs, ReportTarget, VersionReport};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressState, ProgressStyle};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

/// How often the bar is drawn at least.
const TICK: Duration = Duration::from_millis(200);

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Standard output.
    Stdout,
    /// Standard error, when standard output carries JSON.
    Stderr,
}

impl Lines {
    /// Where lines for people go: not where JSON goes.
    pub(crate) const fn beside(json: Option<&ReportTarget>) -> Self {
        match json {
            Some(ReportTarget::Stdout) => Self::Stderr,
            _ => Self::Stdout,
        }
    }

    /// Writes a line; a reader that has gone away is no error of ours.
    pub(crate) fn write(self, line: &str) {
        let _ = match self {
            Self::Stdout => writeln!(io::stdout().lock(), "{line}"),
            Self::Stderr => writeln!(io::stderr().lock(), "{line}"),
        };
    }
}

/// Writes a warning to standard error before there is a bar.
pub(crate) fn warn(line: &str) {
    Lines::Stderr.write(&format!("warning: {line}"));
}

/// The progress bar on standard error, hidden where that is no terminal, and the lines beside it.
pub(crate) struct Console {
    lines: Lines,
    bar: ProgressBar,
}

impl Console {
    /// The console of a run that syncs so many versions.
    pub(crate) fn of_run(args: &RunArgs, versions: usize) -> Self {
        Self::counting(Lines::beside(args.json.as_ref()), versions, "versions")
    }

    /// A console that expects so many `things`, such as versions.
    pub(crate) fn counting(lines: Lines, count: usize, things: &str) -> Self {
        let template = format!("{{bar:24}} {{pos}}/{{len}} {things}  {{elapsed}}  {{wide_msg}}");
        Self::with_template(lines, count as u64, &template)
    }

    /// A console of something that has no end of its own.
    pub(crate) fn waiting(lines: Lines) -> Self {
        Self::with_template(lines, 0, "{spinner} {elapsed}  {wide_msg}")
    }

    /// So many of the things are expected, as is known only now.
    pub(crate) fn expect(&self, count: usize) {
        self.bar.set_length(count as u64);
    }

    /// A console that expects so many evaluations, and shows how fast they go by.
    pub(crate) fn evaluating(lines: Lines, evaluations: u64) -> Self {
        let template = "{bar:16} {human_pos}/{human_len}  {rate}  {eta} left  {wide_msg}";
        Self::with_template(lines, evaluations, template)
    }

    fn with_template(lines: Lines, length: u64, template: &str) -> Self {
        let bar = ProgressBar::new(length);
        if let Ok(style) = ProgressStyle::with_template(template) {
            let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
                let _ = write!(out, "{}", millions(state.per_sec()));
            };
            bar.set_style(style.with_key("rate", rate));
        }
        // The clock goes on while nothing else does; where there is no terminal, nothing is drawn.
        bar.enable_steady_tick(TICK);
        Self { lines, bar }
    }

    /// A handle for those who say what is going on.
    pub(crate) fn activity(&self) -> Activity {
        Activity { bar: self.bar.clone() }
    }

    /// How much is done by now.
    pub(crate) fn reached(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Writes a line above the bar.
    pub(crate) fn line(&self, line: &str) {
        self.bar.suspend(|| self.lines.write(line));
    }

    /// Writes a warning to standard error, above the bar.
    pub(crate) fn warn(&self, line: &str) {
        self.bar.suspend(|| warn(line));
    }

    /// Says what is going on now.
    pub(crate) fn doing(&self, what: String) {
        self.bar.set_message(what);
    }

    /// One of the things is done.
    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    /// One version is done.
    pub(crate) fn version(&self, report: &VersionReport) {
        self.step();
        self.line(&version_line(report));
        for (gate, groups) in by_gate(&report.dense) {
            let others = match groups.len() - 1 {
                0 => " was".to_owned(),
                others => format!(" and {} were", counted(others, "other parameter")),
            };
            self.warn(&format!("v{}: `{}`{others} sent whole: gate {gate}", report.version, groups[0]));
        }
        if report.repaired > 0 {
            self.warn(&format!("v{}: {} repaired after a digest disagreed", report.version, report.repaired));
        }
    }
}

/// The message of a progress bar.
pub(crate) struct Activity {
    bar: ProgressBar,
}

impl Activity {
    /// Says what is going on now.
    pub(crate) fn doing(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Groups that were sent whole, by the gate that sent them: a step that skipped one sends them all.
fn by_gate(dense: &[DenseGroup]) -> BTreeMap<&str, Vec<&str>> {
    let mut gates = BTreeMap::<_, Vec<_>>::new();
    for DenseGroup { group, gate } in dense {
        gates.entry(gate.as_str()).or_default().push(group.as_str());
    }
    gates
}

/// The phases in the order of a sync, with the widths of their columns.
const PHASES: [(&str, usize); 8] = [
    ("detect", 8),
    ("remap", 6),
    ("encode", 7),
    ("transfer", 8),
    ("stage", 6),
    ("pause", 7),
    ("apply", 7),
    ("commit", 6),
];

/// What the columns of [`version_line`] mean.
pub(crate) fn version_header() -> String {
    let columns = PHASES.map(|(name, width)| format!(" {name:>width$}")).concat();
    format!("{:<5}{:>11}{:>10}{:>12}{:>10} {columns}  ms", "", "changed", "", "sent", "of dense")
}

/// `v7        4,575   2.533 %   23.90 KiB    3.30 %      0.41 ...  proven`
fn version_line(report: &VersionReport) -> String {
    let ms = PHASES.iter().zip(in_order(&report.phases_ms));
    let columns: String = ms.map(|((_, width), ms)| format!(" {ms:>width$.2}")).collect();
    format!(
        "{:<5}{:>11}{:>8.3} %{:>12}{:>8.2} % {columns}  {}",
        format!("v{}", report.version),
        HumanCount(report.changed).to_string(),
        100.0 * report.share,
        HumanBytes(report.wire_bytes).to_string(),
        100.0 * ratio(report.wire_bytes, report.dense_bytes),
        if report.verified { "proven" } else { "NOT PROVEN" },
    )
}

const fn in_order(phases: &PhasesMs) -> [f64; 8] {
    [
        phases.detect,
        phases.remap,
        phases.encode,
        phases.transfer,
        phases.stage,
        phases.pause,
        phases.apply,
        phases.commit,
    ]
}

/// A count over a time; of no time, nothing.
#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
pub(crate) fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// A rate in millions per second.
pub(crate) fn millions(per_second: f64) -> String {
    format!("{:.1} M/s", per_second / 1e6)
}

/// `1 replica`, `2 replicas`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", HumanCount(count as u64))
}

/// A share of a whole; of nothing, nothing.
#[expect(clippy::cast_precision_loss, reason = "a share for people, three digits of it are shown")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}
