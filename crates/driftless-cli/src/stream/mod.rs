//! Streams: a log of versions under an address, published, followed, examined.

mod fail;
mod follow;
mod keygen;
mod keys;
mod out_dir;
mod publish;

pub(crate) use fail::FailpointArg;
pub(crate) use follow::follow;
pub(crate) use keygen::keygen;
pub(crate) use publish::publish;

use crate::failure::Failure;
use driftless::log::StreamUrl;
use std::error::Error;

/// Blames a stream.
pub(crate) fn stream_failure(url: &StreamUrl, source: impl Error + Send + Sync + 'static) -> Failure {
    Failure::Stream { place: url.to_string(), source: source.into() }
}
