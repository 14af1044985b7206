//! The command lines of `driftless log` and `driftless export`.

use crate::report::ReportTarget;
use clap::{Args, Subcommand};
use driftless::log::StreamUrl;
use std::path::PathBuf;

const LS_EXAMPLES: &str = "Examples:
  driftless log ls file:///data/stream
  driftless log ls s3://bucket/policy --trust publisher.trust --json -

Exit code: 0 listed, 1 an entry does not follow from the one before it, 2 bad input.";

const SHOW_EXAMPLES: &str = "Examples:
  driftless log show file:///data/stream 7
  driftless log show s3://bucket/policy 7 --json -

Exit code: 0 shown, 1 what the entry names is damaged or missing, 2 bad input.";

const VERIFY_EXAMPLES: &str = "Examples:
  driftless log verify file:///data/stream
  driftless log verify s3://bucket/policy --trust publisher.trust --json report.json

Exit code: 0 everything proven, 1 something is wrong, 2 bad input.";

const RETIRE_EXAMPLES: &str = "Examples:
  driftless log retire s3://bucket/policy --dry-run
  driftless log retire s3://bucket/policy --key publisher.key

Exit code: 0 retired, 1 stopped (fewer than two anchors, or one is damaged), 2 bad input.";

pub(crate) const LOG_EXAMPLES: &str = "Examples:
  driftless log ls file:///data/stream
  driftless log show file:///data/stream 7
  driftless log verify file:///data/stream
  driftless log retire file:///data/stream --dry-run";

pub(crate) const EXPORT_EXAMPLES: &str = "Examples:
  driftless export file:///data/stream --out model.safetensors
  driftless export s3://bucket/policy --version 120 --out model.safetensors \\
      --trust publisher.trust

Exit code: 0 exported, 1 what the stream holds is damaged, 2 bad input.";

/// `driftless log`.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: LogCommand,
}

/// The subcommands of `driftless log`.
#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// List the entries of a stream, one a line.
    #[command(after_help = LS_EXAMPLES)]
    Ls(StreamArgs),
    /// Describe one entry: what it says, its writers, and its sections by codec.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Read a whole stream again and prove it.
    ///
    /// From genesis on: signatures, parents, epochs; that every blob is there and has the BLAKE3 digest that it is named
    /// by; and, with the weights in memory (2 bytes per parameter), that each anchor and each delta leads to the digests
    /// that its entry states. Blobs that were retired are left out and counted.
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(StreamArgs),
    /// Keep the last two anchors and what follows them, and delete older blobs that no reader pins.
    ///
    /// The anchors are read again and proven first. Then an entry says so, and only after the stream's lease time (ten
    /// minutes, unless it was founded with another) anything is deleted: readers that renewed their lease in between keep
    /// what they need. Blobs of the epoch in force stay.
    #[command(after_help = RETIRE_EXAMPLES)]
    Retire(RetireArgs),
}

/// A stream to read.
#[derive(Args, Debug)]
pub(crate) struct StreamArgs {
    /// Where the stream is: file:///folder, s3://bucket/prefix, gs://, az://, https://.
    #[arg(value_name = "URL")]
    pub(crate) url: StreamUrl,
    /// Believe only what the keys of FILE signed; without it, signatures are not checked.
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
    /// Write the report as JSON to FILE, or to standard output with `-`.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<ReportTarget>,
}

/// `driftless log show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The stream.
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// The entry's place in the log; the first is 0.
    #[arg(value_name = "SEQ")]
    pub(crate) seq: u64,
}

/// `driftless log retire`.
#[derive(Args, Debug)]
pub(crate) struct RetireArgs {
    /// The stream.
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// Say what could be deleted now, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Sign the entry with the key of FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

/// `driftless export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// The stream.
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// The version [default: the last].
    #[arg(long = "version", value_name = "V")]
    pub(crate) wanted: Option<u64>,
    /// The checkpoint, which is replaced as a whole.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}
