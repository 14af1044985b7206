//! `driftless certify`: the certified rule against steps that somebody recorded, or against generated elements.
//!
//! Missed means changed and certified unchanged, which must never happen; extra means sent in vain, which only costs
//! bytes.

mod generated;
mod recorded;

use crate::args::CertifyArgs;
use crate::console::ratio;
use crate::failure::Failure;
use crate::report::ReportTarget;
use driftless_numerics::conformance::Tally;
use indicatif::HumanCount;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::ctrl_c;
use tokio::task::spawn_blocking;

/// Runs until the end or Ctrl-C, and reports what was done in both cases.
pub(crate) async fn certify(args: CertifyArgs) -> Result<(), Failure> {
    args.json.as_ref().map_or(Ok(()), ReportTarget::check)?;
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    let mut work = spawn_blocking(move || match &args.dir {
        Some(dir) => recorded::certify(dir, &args, &flag),
        None => generated::certify(&args, &flag),
    });
    let ended = tokio::select! {
        ended = &mut work => ended,
        _ = ctrl_c() => {
            cancel.store(true, Ordering::Relaxed);
            work.await
        }
    };
    ended.unwrap_or_else(|error| Err(Failure::Runtime(error.into())))
}

/// What ends a run in which something was missed.
fn missed(total: &Tally) -> Result<(), Failure> {
    let Some(miss) = &total.first_miss else { return Ok(()) };
    Err(Failure::Missed(format!(
        "{} changed elements were certified unchanged; first {miss}",
        HumanCount(total.missed)
    )))
}

/// What the rule did, in a report.
#[derive(Debug, Default, Serialize)]
struct TallyReport {
    evaluated: u64,
    changed: u64,
    missed: u64,
    extra: u64,
    /// The first miss, with all that is needed to see it again.
    first_miss: Option<String>,
}

impl From<&Tally> for TallyReport {
    fn from(tally: &Tally) -> Self {
        Self {
            evaluated: tally.evaluated,
            changed: tally.changed,
            missed: tally.missed,
            extra: tally.surplus,
            first_miss: tally.first_miss.clone(),
        }
    }
}

/// `6,114 of 45,056 elements changed, none missed, 12 extra (0.196 % of the changed)`
fn summary(tally: &Tally) -> String {
    let missed = if tally.missed == 0 { "none".to_owned() } else { HumanCount(tally.missed).to_string() };
    format!(
        "{} of {} elements changed, {missed} missed, {} extra ({:.3} % of the changed)",
        HumanCount(tally.changed),
        HumanCount(tally.evaluated),
        HumanCount(tally.surplus),
        100.0 * ratio(tally.surplus, tally.changed),
    )
}
