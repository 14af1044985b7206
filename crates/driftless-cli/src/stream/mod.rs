//! Streams: a log of versions under an address, published, followed, examined.

mod args;
mod export;
mod fail;
mod follow;
mod header;
mod keygen;
mod keys;
mod log;
mod out_dir;
mod publish;
mod replay;
mod walk;

pub(crate) use args::{EXPORT_EXAMPLES, ExportArgs, LOG_EXAMPLES, LogArgs, StreamArgs};
pub(crate) use export::export;
pub(crate) use fail::FailpointArg;
pub(crate) use follow::follow;
pub(crate) use keygen::keygen;
pub(crate) use log::log;
pub(crate) use publish::publish;

use crate::console::ratio;
use crate::failure::{Failure, with_causes};
use driftless::log::StreamUrl;
use std::error::Error;

/// Blames a stream.
pub(crate) fn stream_failure(url: &StreamUrl, source: impl Error + Send + Sync + 'static) -> Failure {
    Failure::Stream { place: url.to_string(), source: source.into() }
}

/// Blames a stream whose entries do not follow from each other, or its store.
fn broken(url: &StreamUrl, error: walk::WalkError) -> Failure {
    if error.is_outage() {
        return stream_failure(url, error);
    }
    Failure::Damaged(format!("{url}: {}", with_causes(&error)))
}

/// Bits per element that was written.
fn bits_each(stored_bytes: u64, nnz: u64) -> f64 {
    8.0 * ratio(stored_bytes, nnz)
}
