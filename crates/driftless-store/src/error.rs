//! Why a store did not do what it was asked, in words that say what the caller can do.

use driftless_types::{ObjectDigest, Retry};
use std::error::Error;
use std::sync::Arc;
use thiserror::Error;

/// What lies under an error: the store's own words.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// Why a store did not do what it was asked. A key is always the whole key, prefix included.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing is stored under this key, and no listing shows it.
    #[error("{key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// A listing shows the key, but reading it finds nothing: a store that has not caught up with itself.
    #[error("{key} is listed but cannot be read yet")]
    NotVisible {
        /// The key.
        key: String,
    },
    /// The bucket itself does not exist, which says nothing about what is in it.
    #[error("the bucket of {key} does not exist: create it, or correct the address")]
    BucketMissing {
        /// The key.
        key: String,
        /// The store's words.
        #[source]
        source: Cause,
    },
    /// The credentials are missing, wrong or too weak. This says nothing about whether the key exists.
    #[error("access to {key} was refused: check the credentials and what they may do")]
    PermissionDenied {
        /// The key.
        key: String,
        /// The store's words.
        #[source]
        source: Cause,
    },
    /// Something is stored under this key. It may be what this caller wrote: read it back.
    #[error("{key} exists already")]
    AlreadyExists {
        /// The key.
        key: String,
    },
    /// The store refused a condition of the request.
    #[error("a condition on {key} was not met")]
    Precondition {
        /// The key.
        key: String,
        /// The store's words.
        #[source]
        source: Cause,
    },
    /// The store asks for fewer requests.
    #[error("the store throttles requests for {key}")]
    Throttled {
        /// The key.
        key: String,
        /// The store's words.
        #[source]
        source: Cause,
    },
    /// The store cannot be reached or failed within. What was asked may have been done all the same.
    #[error("the store was unavailable for {key}")]
    Unavailable {
        /// The key.
        key: String,
        /// The store's words.
        #[source]
        source: Cause,
    },
    /// No answer within the deadline. What was asked may have been done, or may be done yet.
    #[error("no answer about {key} within {deadline_ms} ms")]
    Timeout {
        /// The key.
        key: String,
        /// The deadline in milliseconds; that of the store's client if it gave up first.
        deadline_ms: u128,
    },
    /// Fewer bytes than expected.
    #[error("{key} ended after {found} bytes, expected {expected}")]
    Truncated {
        /// The key.
        key: String,
        /// Bytes that came.
        found: u64,
        /// Bytes that were stated.
        expected: u64,
    },
    /// More bytes than expected; no more than the limit were taken.
    #[error("{key} has {found} bytes or more, expected at most {limit}")]
    TooLarge {
        /// The key.
        key: String,
        /// Bytes that were announced or seen before reading stopped.
        found: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// The bytes are others than those that the key names.
    #[error("{key} has digest {found}, expected {expected}")]
    WrongDigest {
        /// The key.
        key: String,
        /// The digest of the bytes that came.
        found: ObjectDigest,
        /// The digest that was stated.
        expected: ObjectDigest,
    },
    /// The disk, or the quota, is full.
    #[error("no space is left for {key}: free some, or raise the quota")]
    DiskFull {
        /// The key.
        key: String,
        /// The system's words.
        #[source]
        source: Cause,
    },
    /// Nothing can be written here.
    #[error("{key} cannot be written: this store is read-only")]
    ReadOnly {
        /// The key.
        key: String,
        /// The system's words; none if the address itself allows reading only.
        #[source]
        source: Option<Cause>,
    },
    /// An object of ours has content that is none of ours.
    #[error("{key} is malformed: {reason}")]
    Malformed {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A folder lists more than a stream can have.
    #[error("{folder} lists more than {limit} objects, and no more are expected")]
    TooMany {
        /// The folder's key.
        folder: String,
        /// The most that is accepted.
        limit: usize,
    },
    /// The store accepted a second value under a key that was to be created only if absent.
    #[error(
        "the store ignores create-if-absent ({key} was created twice): \
         use a store that honors If-None-Match, two publishers could overwrite each other on this one"
    )]
    NoCreateIfAbsent {
        /// The key of the probe.
        key: String,
    },
    /// An address that cannot be used.
    #[error("the address of the stream {reason}")]
    Address {
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// Anything else.
    #[error("the store failed on {key}")]
    Other {
        /// The key.
        key: String,
        /// The store's words.
        #[source]
        source: Cause,
    },
}

impl StoreError {
    /// What has to change before the same call can succeed.
    ///
    /// After an error of [`create_entry`](crate::Stream::create_entry) nothing is settled, whatever this says:
    /// read the place back first.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Missing { .. }
            | Self::NotVisible { .. }
            | Self::Precondition { .. }
            | Self::Throttled { .. }
            | Self::Unavailable { .. }
            | Self::Timeout { .. }
            | Self::Truncated { .. }
            | Self::WrongDigest { .. } => Retry::SameAttempt,
            // Room takes longer to come back than an attempt lasts.
            Self::DiskFull { .. } => Retry::NewAttempt,
            Self::BucketMissing { .. }
            | Self::PermissionDenied { .. }
            | Self::AlreadyExists { .. }
            | Self::TooLarge { .. }
            | Self::ReadOnly { .. }
            | Self::Malformed { .. }
            | Self::TooMany { .. }
            | Self::NoCreateIfAbsent { .. }
            | Self::Address { .. }
            | Self::Other { .. } => Retry::Never,
        }
    }

    /// Whether an object is there, with other bytes than its name or length says.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::WrongDigest { .. } | Self::TooLarge { .. } | Self::Truncated { .. })
    }

    /// Whether an object is not there, or not there yet.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NotVisible { .. })
    }

    /// Whether an idempotent request is repeated after this error. Conflicts are among them: stores answer with
    /// them to unconditional requests that met another one.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::NotVisible { .. }
                | Self::AlreadyExists { .. }
                | Self::Precondition { .. }
                | Self::Throttled { .. }
                | Self::Unavailable { .. }
                | Self::Timeout { .. }
                | Self::Truncated { .. }
                | Self::WrongDigest { .. }
        )
    }
}
