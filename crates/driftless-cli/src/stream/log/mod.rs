//! `driftless log`: what a stream holds, whether it is sound, and what of it may go.

mod ls;
mod retire;
mod show;
mod verify;

use super::args::{LogArgs, LogCommand};
use crate::failure::Failure;
use driftless::log::{LogIo, LogIoError, Stored};
use driftless_types::{EntryKind, WriterManifest};
use serde::Serialize;

/// Runs one of the subcommands.
pub(crate) async fn log(args: LogArgs) -> Result<(), Failure> {
    match args.command {
        LogCommand::Ls(args) => ls::ls(args).await,
        LogCommand::Show(args) => show::show(args).await,
        LogCommand::Verify(args) => verify::verify(args).await,
        LogCommand::Retire(args) => retire::retire(args).await,
    }
}

/// An entry for a report; keys in the documented order.
#[derive(Debug, Serialize)]
struct EntryReport {
    seq: u64,
    kind: &'static str,
    epoch: u64,
    /// Of an anchor or a delta.
    version: Option<u64>,
    /// Of a delta.
    base: Option<u64>,
    writers: Option<u32>,
    blobs: Option<usize>,
    /// Elements that it carries.
    nnz: Option<u64>,
    stored_bytes: Option<u64>,
    bits_per_change: Option<f64>,
    /// Of a `retire`: the first entry whose blobs are kept.
    keep_from: Option<u64>,
    /// Of a `reset`: the next anchor's version is below this one.
    version_below: Option<u64>,
    /// The digest of the whole object.
    object: String,
}

impl EntryReport {
    /// Describes an entry; `writers` are those of a publication.
    fn of(stored: &Stored, writers: Option<&[WriterManifest]>) -> Self {
        let blobs = || writers.into_iter().flatten().flat_map(|writer| &writer.blobs);
        let nnz: Option<u64> = writers.map(|writers| writers.iter().map(|writer| writer.nnz).sum());
        let stored_bytes: Option<u64> = writers.map(|_| blobs().map(|blob| blob.stored_bytes).sum());
        let (base, keep_from, version_below) = match &stored.entry.kind {
            EntryKind::Delta { base_version, .. } => (Some(base_version.0), None, None),
            EntryKind::Retire { keep_from, .. } => (None, Some(keep_from.0), None),
            EntryKind::Reset { version_below } => (None, None, Some(version_below.0)),
            _ => (None, None, None),
        };
        let delta = stored_bytes.zip(nnz).filter(|_| base.is_some());
        let publication = stored.entry.kind.publication();
        Self {
            seq: stored.seq().0,
            kind: stored.entry.kind.name(),
            epoch: stored.entry.epoch,
            version: publication.map(|publication| publication.version.0),
            base,
            writers: publication.map(|publication| publication.writer_count),
            blobs: writers.map(|_| blobs().count()),
            nnz,
            stored_bytes,
            bits_per_change: delta.map(|(bytes, nnz)| super::bits_each(bytes, nnz)),
            keep_from,
            version_below,
            object: stored.object.to_string(),
        }
    }
}

/// The manifests of a publication; `None` of another entry.
async fn writers(io: &LogIo, stored: &Stored) -> Result<Option<Vec<WriterManifest>>, LogIoError> {
    match stored.entry.kind.publication() {
        Some(publication) => io.writers(stored.entry.epoch, publication).await.map(Some),
        None => Ok(None),
    }
}
