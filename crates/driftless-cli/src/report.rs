//! The report of a run as JSON, keys in the documented order.

use crate::failure::Failure;
use driftless::log::write_whole;
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// A whole run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// One entry per version, ascending.
    pub(crate) versions: Vec<VersionReport>,
    /// Every receiver as it ended.
    pub(crate) receivers: Vec<ReceiverReport>,
    /// The digest of the plan, in hexadecimal.
    pub(crate) plan_digest: String,
}

/// One version.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VersionReport {
    /// Its number.
    pub(crate) version: u64,
    /// Canonical elements of the policy.
    pub(crate) elements: u64,
    /// Canonical elements whose served bits differ from the version before, counted at the first receiver of each.
    pub(crate) changed: u64,
    /// Canonical elements sent, once each.
    pub(crate) sent: u64,
    /// `changed` over `elements`.
    pub(crate) share: f64,
    /// Served bytes of all receivers.
    pub(crate) dense_bytes: u64,
    /// Bytes sent to all receivers, headers included.
    pub(crate) wire_bytes: u64,
    /// Milliseconds of each phase on its slowest rank.
    pub(crate) phases_ms: PhasesMs,
    /// Whether every receiver was proven identical to the trainer.
    pub(crate) verified: bool,
    /// How many fragments were sent again, whole, after a digest disagreed.
    pub(crate) repaired: u64,
    /// Parameter groups that went dense, and the gate that sent them.
    pub(crate) dense: Vec<DenseGroup>,
}

/// Milliseconds of each phase; `pause` encloses `apply` and `commit`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct PhasesMs {
    pub(crate) detect: f64,
    pub(crate) remap: f64,
    pub(crate) encode: f64,
    pub(crate) transfer: f64,
    pub(crate) stage: f64,
    pub(crate) pause: f64,
    pub(crate) apply: f64,
    pub(crate) commit: f64,
}

/// A parameter group that was sent whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DenseGroup {
    /// The parameter.
    pub(crate) group: String,
    /// The gate that failed, by its name.
    pub(crate) gate: String,
}

/// A receiver at the end of the run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReceiverReport {
    /// Such as `rollout0/tp0-pp0`.
    pub(crate) name: String,
    /// The version it serves.
    pub(crate) version: u64,
    /// The digest of its weights, in hexadecimal.
    pub(crate) digest: String,
}

/// Where the report goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReportTarget {
    /// Standard output, which then carries nothing else.
    Stdout,
    /// A file, which appears whole or not at all.
    File(PathBuf),
}

impl FromStr for ReportTarget {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

impl ReportTarget {
    /// Whether the report can be written there: asked before the work starts.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Self::File(path) = self else { return Ok(()) };
        if path.is_dir() {
            return Err(not_written(path, io::ErrorKind::IsADirectory.into()));
        }
        match fs::metadata(folder_of(path)) {
            Ok(folder) if folder.is_dir() => Ok(()),
            Ok(_) => Err(not_written(path, io::ErrorKind::NotADirectory.into())),
            Err(error) => Err(not_written(path, error)),
        }
    }

    /// Writes a report, or anything else that is JSON.
    pub(crate) fn write(&self, report: &impl Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_vec(report).map_err(|error| Failure::Runtime(error.into()))?;
        text.push(b'\n');
        self.write_text(&text)
    }

    /// Writes text of any kind.
    pub(crate) fn write_text(&self, text: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Stdout => io::stdout().write_all(text).map_err(|error| not_written("-".as_ref(), error)),
            Self::File(path) => write_report(path, text).map_err(|error| not_written(path, error)),
        }
    }
}

/// A reader never sees half of a report, and an error leaves nothing.
fn write_report(path: &Path, text: &[u8]) -> io::Result<()> {
    // A device or a pipe cannot be replaced by a rename.
    if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(text);
    }
    write_whole(path, |file| file.write_all(text))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// A time as the reports have it.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn not_written(path: &Path, source: io::Error) -> Failure {
    Failure::Write { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_appears_whole_and_leaves_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        fs::write(&path, "an older report").unwrap();
        ReportTarget::File(path.clone()).write(&Report::default()).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "{\"versions\":[],\"receivers\":[],\"plan_digest\":\"\"}\n"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_target_in_no_folder_is_refused_before_the_work() {
        let folder = tempfile::tempdir().unwrap();
        let target = ReportTarget::File(folder.path().join("missing/report.json"));
        assert!(matches!(target.check(), Err(Failure::Write { .. })));
        assert!(matches!(ReportTarget::File(folder.path().into()).check(), Err(Failure::Write { .. })));
        assert!(ReportTarget::Stdout.check().is_ok());
    }
}
