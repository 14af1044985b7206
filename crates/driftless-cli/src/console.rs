//! What a person sees while a run goes on: a progress bar, and a line per version.

use crate::report::{PhasesMs, VersionReport};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressState, ProgressStyle};
use std::fmt;
use std::io::{self, Write};

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Standard output.
    Stdout,
    /// Standard error, when standard output carries JSON.
    Stderr,
}

impl Lines {
    /// Writes a line; a reader that has gone away is no error of ours.
    pub(crate) fn write(self, line: &str) {
        let _ = match self {
            Self::Stdout => writeln!(io::stdout().lock(), "{line}"),
            Self::Stderr => writeln!(io::stderr().lock(), "{line}"),
        };
    }
}

/// The progress bar on standard error, hidden where that is no terminal, and the lines beside it.
pub(crate) struct Console {
    lines: Lines,
    bar: ProgressBar,
}

impl Console {
    /// A console that expects so many `things`, such as versions.
    pub(crate) fn counting(lines: Lines, count: usize, things: &str) -> Self {
        let template = format!("{{bar:32}} {{pos}}/{{len}} {things}  {{elapsed}}  {{msg}}");
        Self::with_template(lines, count as u64, &template)
    }

    /// A console that expects so many evaluations, and shows how fast they go by.
    pub(crate) fn evaluating(lines: Lines, evaluations: u64) -> Self {
        let template = "{bar:32} {percent:>3} %  {human_pos} of {human_len}  {rate}  {eta} left  {msg}";
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
        Self { lines, bar }
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
        self.bar.suspend(|| Lines::Stderr.write(&format!("warning: {line}")));
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
        for dense in &report.dense {
            self.warn(&format!("v{}: `{}` was sent whole: gate {}", report.version, dense.group, dense.gate));
        }
        if report.repaired > 0 {
            self.warn(&format!("v{}: {} repaired after a digest disagreed", report.version, report.repaired));
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `v7  4,575 of 180,608 changed (2.533 %)  23.9 KiB of 724.50 KiB dense (3.30 %)  detect 0.41 ... ms  proven`
fn version_line(report: &VersionReport) -> String {
    format!(
        "v{}  {} of {} changed ({:.3} %)  {} of {} dense ({:.2} %)  {}  {}",
        report.version,
        HumanCount(report.changed),
        HumanCount(report.elements),
        100.0 * report.share,
        HumanBytes(report.wire_bytes),
        HumanBytes(report.dense_bytes),
        100.0 * ratio(report.wire_bytes, report.dense_bytes),
        phases_text(&report.phases_ms),
        if report.verified { "proven" } else { "NOT PROVEN" },
    )
}

fn phases_text(phases: &PhasesMs) -> String {
    let named = [
        ("detect", phases.detect),
        ("remap", phases.remap),
        ("encode", phases.encode),
        ("transfer", phases.transfer),
        ("stage", phases.stage),
        ("pause", phases.pause),
        ("apply", phases.apply),
        ("commit", phases.commit),
    ];
    let texts: Vec<_> = named.iter().map(|(name, ms)| format!("{name} {ms:.2}")).collect();
    format!("{} ms", texts.join(" "))
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

/// A share of a whole; of nothing, nothing.
#[expect(clippy::cast_precision_loss, reason = "a share for people, three digits of it are shown")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}
