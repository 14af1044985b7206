//! From a store's own errors to ours.
//!
//! Most of what goes wrong reaches us as `Error::Generic` with a chain of causes, so the chain decides: the status
//! of an HTTP reply, the kind of a broken connection, the kind of an error of the file system.

use crate::error::{Cause, StoreError};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use std::error::Error;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

/// How object_store begins the text of a refused request. Its type has no public name, so a test holds this text.
const STATUS_TEXT: &str = "Server returned non-2xx status code: ";
/// What stores say about a bucket that is not there; otherwise it looks like a missing object.
const NO_BUCKET_TEXTS: [&str; 3] =
    ["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"];

/// What an error of `object_store` about a key means.
pub(crate) fn classify(key: &Path, error: object_store::Error, deadline: Duration) -> StoreError {
    use object_store::Error as Theirs;
    let key = key.to_string();
    match error {
        Theirs::NotFound { .. } | Theirs::Generic { .. } if names_no_bucket(&error) => {
            StoreError::BucketMissing { key, source: Arc::new(error) }
        }
        Theirs::NotFound { .. } => StoreError::Missing { key },
        Theirs::AlreadyExists { .. } => StoreError::AlreadyExists { key },
        Theirs::Precondition { .. } | Theirs::NotModified { .. } => {
            StoreError::Precondition { key, source: Arc::new(error) }
        }
        Theirs::PermissionDenied { .. } | Theirs::Unauthenticated { .. } => {
            StoreError::PermissionDenied { key, source: Arc::new(error) }
        }
        Theirs::InvalidPath { .. } => {
            StoreError::Malformed { key, reason: format!("a listing names what is no key: {error}") }
        }
        other => by_chain(key, other, deadline),
    }
}

/// What an error of the file system about a key means.
pub(crate) fn classify_io(key: &Path, error: std::io::Error, deadline: Duration) -> StoreError {
    let store = "the local disk";
    by_chain(key.to_string(), object_store::Error::Generic { store, source: Box::new(error) }, deadline)
}

fn by_chain(key: String, error: object_store::Error, deadline: Duration) -> StoreError {
    let meaning = chain(&error).find_map(meaning);
    let source: Cause = Arc::new(error);
    match meaning {
        Some(Meaning::PermissionDenied) => StoreError::PermissionDenied { key, source },
        Some(Meaning::Missing) => StoreError::Missing { key },
        Some(Meaning::Throttled) => StoreError::Throttled { key, source },
        Some(Meaning::Unavailable) => StoreError::Unavailable { key, source },
        Some(Meaning::Timeout) => StoreError::Timeout { key, deadline_ms: deadline.as_millis() },
        Some(Meaning::DiskFull) => StoreError::DiskFull { key, source },
        Some(Meaning::ReadOnly) => StoreError::ReadOnly { key, source: Some(source) },
        None => StoreError::Other { key, source },
    }
}

/// What one link of a chain of causes says.
enum Meaning {
    PermissionDenied,
    Missing,
    Throttled,
    Unavailable,
    Timeout,
    DiskFull,
    ReadOnly,
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn names_no_bucket(error: &object_store::Error) -> bool {
    let texts: Vec<_> = chain(error).map(ToString::to_string).collect();
    NO_BUCKET_TEXTS.iter().any(|no_bucket| texts.iter().any(|text| text.contains(no_bucket)))
}

fn meaning(error: &(dyn Error + 'static)) -> Option<Meaning> {
    if let Some(error) = error.downcast_ref::<HttpError>() {
        return of_http(error.kind());
    }
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return of_io(error.kind());
    }
    of_status(&error.to_string())
}

fn of_http(kind: HttpErrorKind) -> Option<Meaning> {
    match kind {
        HttpErrorKind::Timeout => Some(Meaning::Timeout),
        HttpErrorKind::Connect
        | HttpErrorKind::Request
        | HttpErrorKind::Interrupted
        | HttpErrorKind::Decode => Some(Meaning::Unavailable),
        // Its cause may say more.
        _ => None,
    }
}

fn of_io(kind: ErrorKind) -> Option<Meaning> {
    match kind {
        ErrorKind::PermissionDenied => Some(Meaning::PermissionDenied),
        ErrorKind::NotFound => Some(Meaning::Missing),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some(Meaning::DiskFull),
        ErrorKind::ReadOnlyFilesystem => Some(Meaning::ReadOnly),
        ErrorKind::TimedOut => Some(Meaning::Timeout),
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof
        | ErrorKind::StaleNetworkFileHandle => Some(Meaning::Unavailable),
        _ => None,
    }
}

fn of_status(text: &str) -> Option<Meaning> {
    let status = text.strip_prefix(STATUS_TEXT)?.get(..3)?.parse::<u16>().ok()?;
    match status {
        401 | 403 => Some(Meaning::PermissionDenied),
        408 => Some(Meaning::Timeout),
        // S3 answers 503 when it wants fewer requests, and says the same when it is down.
        429 | 503 => Some(Meaning::Throttled),
        500..=599 => Some(Meaning::Unavailable),
        _ => None,
    }
}
