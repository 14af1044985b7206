//! Leases: what readers pin against retirement.
//!
//! - **LG-10.** A lease has a counter and no time: whoever waits for it to move waits on its own clock, so that no
//!   decision compares clocks of two machines.

use crate::error::StoreError;
use crate::key::ReaderId;
use crate::stream::{Shared, Stream};
use bytes::Bytes;
use driftless_types::Seq;
use futures::{StreamExt, TryStreamExt};
use object_store::PutMode;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

/// The most bytes of a lease.
const LEASE_BYTES_MAX: u64 = 256;
/// The most leases of a stream.
pub const LEASES_MAX: usize = 4096;
/// Leases that are read at a time.
const READ_AT_A_TIME: usize = 8;

/// What one reader pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// The reader.
    pub reader: ReaderId,
    /// Grows at each renewal.
    pub counter: u64,
    /// The lowest entry that the reader still needs.
    pub pinned: Seq,
}

/// A lease as it is stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseText {
    counter: u64,
    pinned: u64,
}

impl Lease {
    /// As it is stored: `{"counter":3,"pinned":17}`.
    fn to_bytes(self) -> Bytes {
        let text = LeaseText { counter: self.counter, pinned: self.pinned.0 };
        Bytes::from(serde_json::to_vec(&text).expect("two numbers are JSON"))
    }
}

impl Stream {
    /// Writes or renews a reader's lease; repeated while errors may pass.
    ///
    /// # Errors
    /// Whatever a put meets.
    pub async fn put_lease(&self, lease: &Lease) -> Result<(), StoreError> {
        let Shared { keys, caller, .. } = &*self.shared;
        let key = keys.lease(lease.reader);
        let text = lease.to_bytes();
        caller.repeated(|| self.put(&key, text.clone(), PutMode::Overwrite)).await
    }

    /// All leases, in order of reader. One that cannot be read is an error and not skipped: it may pin anything.
    ///
    /// # Errors
    /// [`StoreError::Malformed`] for one that is no lease; [`StoreError::TooMany`] above [`LEASES_MAX`]; whatever a
    /// listing or a get meets.
    pub async fn read_leases(&self) -> Result<Vec<Lease>, StoreError> {
        let keys = &self.shared.keys;
        let readers = self.list(&keys.leases(), None, |object| keys.parse_lease(&object.location)).await?;
        if readers.len() > LEASES_MAX {
            return Err(StoreError::TooMany { folder: keys.leases().to_string(), limit: LEASES_MAX });
        }
        let leases = futures::stream::iter(readers).map(|reader| self.read_lease(reader));
        let leases: Vec<_> = leases.buffered(READ_AT_A_TIME).try_collect().await?;
        let mut leases: Vec<_> = leases.into_iter().flatten().collect();
        leases.sort_unstable();
        Ok(leases)
    }

    /// A reader's lease, or `None` if it was given up since it was listed.
    async fn read_lease(&self, reader: ReaderId) -> Result<Option<Lease>, StoreError> {
        let Shared { keys, caller, .. } = &*self.shared;
        let key = keys.lease(reader);
        match caller.repeated(|| self.read_bounded(&key, LEASE_BYTES_MAX)).await {
            Ok(text) => parse(&key, reader, &text).map(Some),
            Err(StoreError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives a reader's lease up.
    ///
    /// # Errors
    /// Whatever a delete meets.
    pub async fn delete_lease(&self, reader: ReaderId) -> Result<(), StoreError> {
        self.delete(&self.shared.keys.lease(reader)).await
    }
}

/// Reads a lease back and demands the bytes that we would write: JSON has many ways to say the same.
fn parse(key: &Path, reader: ReaderId, bytes: &[u8]) -> Result<Lease, StoreError> {
    let malformed = |reason: String| StoreError::Malformed { key: key.to_string(), reason };
    let text: LeaseText = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    let lease = Lease { reader, counter: text.counter, pinned: Seq(text.pinned) };
    if lease.to_bytes() != bytes {
        return Err(malformed("its two numbers are not written as a lease has them".to_owned()));
    }
    Ok(lease)
}
