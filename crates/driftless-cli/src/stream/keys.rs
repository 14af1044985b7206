//! Addresses and keys, as options name them.

use super::args::StreamArgs;
use super::stream_failure;
use crate::failure::Failure;
use crate::files::BadInput;
use crate::report::ReportTarget;
use driftless::log::{
    EntryError, LogIo, Role, SecretKey, Signer, StoreOptions, Stream, StreamUrl, Trust, TrustedKeys, create,
};
use driftless_types::{KeyId, Seq};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// What an address is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A stream is expected there.
    Read,
    /// A stream may be founded there.
    Write,
}

/// Opens the stream at an address.
pub(crate) fn open(url: &StreamUrl, purpose: Purpose) -> Result<Stream, Failure> {
    let options = StoreOptions::default();
    let opened = match purpose {
        Purpose::Read => driftless::log::open(url, &options),
        Purpose::Write => create(url, &options),
    };
    opened.map_err(|source| stream_failure(url, source))
}

/// Opens a stream to read it, or to write an entry with a key, once it is known that the report can be written.
pub(crate) fn reading(args: &StreamArgs, key: Option<&Path>) -> Result<LogIo, Failure> {
    args.json.as_ref().map_or(Ok(()), ReportTarget::check)?;
    let signer = signer(key)?;
    let trust = trust(args.trust.as_deref(), &signer)?;
    Ok(LogIo { stream: open(&args.url, Purpose::Read)?, trust, signer })
}

/// Who signs: the key of a file, or nobody.
pub(crate) fn signer(key: Option<&Path>) -> Result<Arc<Signer>, Failure> {
    let Some(path) = key else { return Ok(Arc::new(Signer::Unsigned)) };
    let key = SecretKey::parse_file(&read(path, "a key file, as `driftless keygen` writes it")?);
    Ok(Arc::new(Signer::Key(key.map_err(|error| bad(path, &error))?)))
}

/// Whom to believe: the keys of a file, the public half of the own key, or everybody.
pub(crate) fn trust(trust: Option<&Path>, own: &Signer) -> Result<Arc<Trust>, Failure> {
    if let Some(path) = trust {
        let keys = TrustedKeys::parse_file(&read(path, "a trust file, as `driftless keygen` writes it")?);
        return Ok(Arc::new(Trust::Keys(keys.map_err(|error| bad(path, &error))?)));
    }
    Ok(Arc::new(match own {
        Signer::Key(key) => Trust::Keys(TrustedKeys::new(key.public(), Role::Publisher)),
        Signer::Unsigned => Trust::AllowUnsigned,
    }))
}

/// The newest entry is signed, and no key was given: nothing was written.
pub(crate) fn without_key(url: &str, seq: Seq, key: KeyId) -> Failure {
    Failure::Usage(format!(
        "{url}: entry {seq}, the newest, is signed by key {key}: an unsigned one behind it would stop whoever follows \
         with --trust (give that key with --key)"
    ))
}

fn read(path: &Path, expected: &str) -> Result<String, BadInput> {
    fs::read_to_string(path).map_err(|error| BadInput::file(path, error.to_string(), expected))
}

fn bad(path: &Path, error: &EntryError) -> BadInput {
    BadInput::file(path, error.to_string(), "a file as `driftless keygen` writes it")
}
