//! `driftless log show`: one entry, its writers, and its sections by codec.

use super::{EntryReport, writers};
use crate::console::{Console, Lines, counted};
use crate::failure::Failure;
use crate::stream::args::ShowArgs;
use crate::stream::keys::reading;
use crate::stream::walk::WalkError;
use crate::stream::{bits_each, broken};
use bytes::Bytes;
use driftless::log::{CodecError, LogIo, LogSection, Reading, Stored};
use driftless_types::{BlobRef, EntryKind, Seq, WriterManifest};
use futures::TryStreamExt;
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use std::collections::BTreeMap;
use tokio::task::block_in_place;

/// Blobs that are downloaded at a time.
const DOWNLOADS: usize = 4;

/// What is shown; keys in the documented order.
#[derive(Debug, Serialize)]
struct ShowReport {
    #[serde(flatten)]
    entry: EntryReport,
    /// The digest of the entry before it.
    parent: String,
    created_by: String,
    /// Of genesis: the run.
    run: Option<String>,
    /// Of genesis, in seconds.
    lease_ttl_s: Option<u64>,
    /// Of a `retire`: the anchors that it keeps.
    anchors: Vec<u64>,
    by_writer: Vec<WriterReport>,
    by_codec: Vec<CodecReport>,
}

#[derive(Debug, Serialize)]
struct WriterReport {
    rank: u32,
    blobs: usize,
    nnz: u64,
    stored_bytes: u64,
}

#[derive(Debug, Serialize)]
struct CodecReport {
    codec: String,
    sections: u64,
    nnz: u64,
    bytes: u64,
    bits_per_change: f64,
}

/// Sections, elements and bytes of each codec.
type ByCodec = BTreeMap<String, (u64, u64, u64)>;

/// Shows an entry; its blobs are read and checked.
pub(super) async fn show(args: ShowArgs) -> Result<(), Failure> {
    let (seq, args) = (Seq(args.seq), args.stream);
    let io = reading(&args, None)?;
    let stored = match io.read(seq).await {
        Reading::Found(stored) => stored,
        Reading::Absent => {
            return Err(Failure::Usage(format!("{}: there is no entry {seq} (see `log ls`)", args.url)));
        }
        Reading::Invalid => return Err(broken(&args.url, WalkError::Invalid(seq))),
        Reading::Failed(fault) => return Err(broken(&args.url, WalkError::Unreadable(seq, fault))),
    };
    let damaged = |error: String| Failure::Damaged(format!("{}: entry {seq}: {error}", args.url));
    let writers = writers(&io, &stored).await.map_err(|error| damaged(error.to_string()))?;
    let blobs: Vec<BlobRef> = writers.iter().flatten().flat_map(|writer| writer.blobs.clone()).collect();
    let console = Console::counting(Lines::beside(args.json.as_ref()), blobs.len(), "blobs");
    let by_codec = by_codec(&io, stored.entry.epoch, blobs, &console).await.map_err(damaged)?;
    let report = report(&stored, writers.as_deref(), by_codec);
    lines(&report).iter().for_each(|line| console.line(line));
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))
}

async fn by_codec(io: &LogIo, epoch: u64, blobs: Vec<BlobRef>, console: &Console) -> Result<ByCodec, String> {
    let mut codecs = ByCodec::new();
    let mut fetched = Box::pin(io.stream.get_blobs(epoch, blobs, DOWNLOADS));
    while let Some(blob) = fetched.try_next().await.map_err(|error| error.to_string())? {
        block_in_place(|| count(blob, &mut codecs)).map_err(|error| error.to_string())?;
        console.step();
    }
    Ok(codecs)
}

fn count(mut blob: Bytes, codecs: &mut ByCodec) -> Result<(), CodecError> {
    while !blob.is_empty() {
        let section = LogSection::parse_any(&mut blob)?;
        let header = section.header();
        let codec = codecs.entry(format!("{} {}", header.codec, header.value_mode)).or_default();
        *codec = (codec.0 + 1, codec.1 + header.nnz, codec.2 + section.bytes());
    }
    Ok(())
}

fn report(stored: &Stored, writers: Option<&[WriterManifest]>, by_codec: ByCodec) -> ShowReport {
    let (run, lease_ttl_s) = match &stored.entry.kind {
        EntryKind::Genesis(genesis) => (Some(genesis.run.to_string()), Some(genesis.lease_ttl_s)),
        _ => (None, None),
    };
    let anchors = match &stored.entry.kind {
        EntryKind::Retire { anchors, .. } => anchors.iter().map(|anchor| anchor.seq.0).collect(),
        _ => Vec::new(),
    };
    let by_writer = writers.into_iter().flatten().map(|writer| WriterReport {
        rank: writer.rank,
        blobs: writer.blobs.len(),
        nnz: writer.nnz,
        stored_bytes: writer.blobs.iter().map(|blob| blob.stored_bytes).sum(),
    });
    let by_codec = by_codec.into_iter().map(|(codec, (sections, nnz, bytes))| CodecReport {
        codec,
        sections,
        nnz,
        bytes,
        bits_per_change: bits_each(bytes, nnz),
    });
    ShowReport {
        entry: EntryReport::of(stored, writers),
        parent: stored.entry.parent.to_string(),
        created_by: format!("{:016x}", stored.entry.created_by),
        run,
        lease_ttl_s,
        anchors,
        by_writer: by_writer.collect(),
        by_codec: by_codec.collect(),
    }
}

fn lines(report: &ShowReport) -> Vec<String> {
    let entry = &report.entry;
    let mut lines = vec![
        format!("entry {}: {}, epoch {}, by {}", entry.seq, entry.kind, entry.epoch, report.created_by),
        format!("object {}", entry.object),
        format!("parent {}", report.parent),
    ];
    lines.extend(report.run.as_ref().map(|run| format!("run {run}")));
    lines.extend(report.lease_ttl_s.map(|ttl| format!("leases pin for {ttl} s")));
    lines.extend(
        entry.keep_from.map(|seq| format!("blobs are kept from entry {seq}, anchors {:?}", report.anchors)),
    );
    lines.extend(entry.version_below.map(|version| format!("the next anchor is below v{version}")));
    let Some(version) = entry.version else { return lines };
    let base = entry.base.map_or_else(String::new, |base| format!(" on exactly v{base}"));
    lines.push(format!(
        "v{version}{base}: {} elements in {}, {}",
        HumanCount(entry.nnz.unwrap_or_default()),
        HumanBytes(entry.stored_bytes.unwrap_or_default()),
        counted(entry.blobs.unwrap_or_default(), "blob"),
    ));
    for writer in &report.by_writer {
        let (blobs, bytes) = (counted(writer.blobs, "blob"), HumanBytes(writer.stored_bytes));
        lines.push(format!("  rank {}: {} elements, {bytes}, {blobs}", writer.rank, HumanCount(writer.nnz)));
    }
    for codec in &report.by_codec {
        let (bytes, bits) = (HumanBytes(codec.bytes), codec.bits_per_change);
        let sections = HumanCount(codec.sections);
        lines.push(format!(
            "  {}: {sections} sections, {} elements, {bytes}, {bits:.2} bits each",
            codec.codec,
            HumanCount(codec.nnz)
        ));
    }
    lines
}
