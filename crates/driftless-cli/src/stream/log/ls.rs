//! `driftless log ls`: one line per entry.

use super::{EntryReport, writers};
use crate::console::{Console, Lines};
use crate::failure::Failure;
use crate::stream::args::StreamArgs;
use crate::stream::broken;
use crate::stream::keys::reading;
use crate::stream::walk::{Taken, Walk};
use driftless_types::EntryKind;
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

/// What is listed; keys in the documented order.
#[derive(Debug, Serialize)]
struct LsReport {
    stream: String,
    run: Option<String>,
    entries: Vec<Listed>,
}

#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    entry: EntryReport,
    /// Whether it is of the epoch in force at its place: readers pass over any other.
    in_force: bool,
}

/// Lists a stream, as far as its entries follow from each other.
pub(super) async fn ls(args: StreamArgs) -> Result<(), Failure> {
    let io = reading(&args, None)?;
    let console = Console::counting(Lines::beside(args.json.as_ref()), 0, "entries");
    let mut walk = Walk::begin(&io).await.map_err(|error| broken(&args.url, error))?;
    console.expect(usize::try_from(walk.entries()).unwrap_or(usize::MAX));
    console.line(&format!(
        "{:>6} {:<8} {:>6} {:<16} {:>12} {:>12} {:>6} {:>10}",
        "entry", "kind", "epoch", "", "elements", "stored", "blobs", "bits each"
    ));
    let mut report = LsReport { stream: args.url.to_string(), run: None, entries: Vec::new() };
    let end = loop {
        let taken = match walk.next().await {
            Ok(Some(taken)) => taken,
            Ok(None) => break Ok(()),
            Err(error) => break Err(broken(&args.url, error)),
        };
        if let EntryKind::Genesis(genesis) = taken.stored.entry.kind {
            report.run = Some(genesis.run.to_string());
        }
        // Manifests that are a blob of their own may have been retired.
        let writers = writers(&io, &taken.stored).await.ok().flatten();
        let entry = EntryReport::of(&taken.stored, writers.as_deref());
        console.line(&line(&entry, &taken));
        report.entries.push(Listed { entry, in_force: taken.is_in_force });
        console.step();
    };
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))?;
    end
}

fn line(entry: &EntryReport, taken: &Taken) -> String {
    let what = match (entry.version, entry.base) {
        (Some(version), Some(base)) => format!("v{version} on v{base}"),
        (Some(version), None) => format!("v{version}"),
        (None, _) => String::new(),
    };
    let what = match (entry.keep_from, entry.version_below) {
        (Some(seq), _) => format!("keeps from {seq}"),
        (_, Some(version)) => format!("below v{version}"),
        _ => what,
    };
    let count = |count: Option<u64>| count.map(|count| HumanCount(count).to_string()).unwrap_or_default();
    let line = format!(
        "{:>6} {:<8} {:>6} {what:<16} {:>12} {:>12} {:>6} {:>10}",
        entry.seq,
        entry.kind,
        entry.epoch,
        count(entry.nnz),
        entry.stored_bytes.map(|bytes| HumanBytes(bytes).to_string()).unwrap_or_default(),
        count(entry.blobs.map(|blobs| blobs as u64)),
        entry.bits_per_change.map(|bits| format!("{bits:.2}")).unwrap_or_default(),
    );
    let note = if taken.is_in_force { "" } else { "  without effect: of an epoch that was over" };
    format!("{}{note}", line.trim_end())
}
