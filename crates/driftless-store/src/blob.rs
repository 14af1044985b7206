//! The blobs of a stream: named by the epoch that wrote them and the digest of their bytes.

use crate::error::StoreError;
use crate::options::BLOB_BYTES_MAX;
use crate::stream::{Shared, Stream, length};
use bytes::Bytes;
use driftless_codec::entry::object_digest;
use driftless_types::{BlobRef, ObjectDigest};
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectStoreExt, PutMode};

/// Bytes from which hashing leaves the thread that serves other tasks.
const HASHED_ASIDE_BYTES_MIN: usize = 1 << 20;

/// A blob that a listing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoredBlob {
    /// The counter of the epoch in its key.
    pub epoch: u64,
    /// The digest in its key.
    pub digest: ObjectDigest,
    /// Its length in bytes.
    pub stored_bytes: u64,
}

impl Stream {
    /// Puts a blob of an epoch (its counter) and sees its length in the store; repeated while errors may pass. The
    /// same bytes of another epoch are another blob. `raw_bytes` of what is returned is the stored length: a caller
    /// that compressed the bytes states another.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] above [`BLOB_BYTES_MAX`]; whatever a put meets.
    pub async fn put_blob(&self, epoch: u64, bytes: Bytes) -> Result<BlobRef, StoreError> {
        let stored_bytes = length(&bytes);
        let digest = digest(bytes.clone()).await;
        let key = self.shared.keys.blob(epoch, &digest);
        if stored_bytes > BLOB_BYTES_MAX {
            let key = key.to_string();
            return Err(StoreError::TooLarge { key, found: stored_bytes, limit: BLOB_BYTES_MAX });
        }
        let blob = BlobRef { digest, stored_bytes, raw_bytes: stored_bytes };
        self.shared.caller.repeated(|| self.put_blob_once(epoch, blob, bytes.clone())).await?;
        Ok(blob)
    }

    async fn put_blob_once(&self, epoch: u64, blob: BlobRef, bytes: Bytes) -> Result<(), StoreError> {
        let key = self.shared.keys.blob(epoch, &blob.digest);
        // LG-2: the key names the bytes, so an overwrite changes nothing; and it heals what somebody else put there.
        self.put(&key, bytes, PutMode::Overwrite).await?;
        self.see_blob(epoch, &blob).await
    }

    /// Puts blobs, at most `limit` at a time; references come in the order of the bytes.
    pub fn put_blobs<'a>(
        &'a self,
        epoch: u64,
        blobs: impl futures::Stream<Item = Bytes> + Send + 'a,
        limit: usize,
    ) -> impl futures::Stream<Item = Result<BlobRef, StoreError>> + Send + 'a {
        blobs.map(move |bytes| self.put_blob(epoch, bytes)).buffered(limit.max(1))
    }

    /// Reads a blob of an epoch (its counter), stops at its stated length, and checks length and digest; repeated
    /// while errors may pass. What is missing is asked for again too: an entry may be visible before its blobs.
    ///
    /// # Errors
    /// [`StoreError::NotVisible`] if it stays missing; [`StoreError::Truncated`], [`StoreError::TooLarge`] and
    /// [`StoreError::WrongDigest`] if it is another than stated; whatever a get meets. A stated length above
    /// [`BLOB_BYTES_MAX`] is refused before anything is read.
    pub async fn get_blob(&self, epoch: u64, blob: &BlobRef) -> Result<Bytes, StoreError> {
        self.shared.caller.repeated(|| self.get_blob_once(epoch, blob)).await
    }

    async fn get_blob_once(&self, epoch: u64, blob: &BlobRef) -> Result<Bytes, StoreError> {
        let key = self.shared.keys.blob(epoch, &blob.digest);
        let (found, expected) = (blob.stored_bytes, blob.digest);
        if found > BLOB_BYTES_MAX {
            return Err(StoreError::TooLarge { key: key.to_string(), found, limit: BLOB_BYTES_MAX });
        }
        let bytes = match self.read_bounded(&key, found).await {
            Err(StoreError::Missing { key }) => return Err(StoreError::NotVisible { key }),
            read => read?,
        };
        check_length(key.as_ref(), length(&bytes), blob)?;
        let found = digest(bytes.clone()).await;
        if found != expected {
            return Err(StoreError::WrongDigest { key: key.to_string(), found, expected });
        }
        Ok(bytes)
    }

    /// Reads blobs of an epoch, at most `limit` at a time and in order.
    pub fn get_blobs<'a>(
        &'a self,
        epoch: u64,
        blobs: impl IntoIterator<Item = BlobRef, IntoIter: Send> + 'a,
        limit: usize,
    ) -> impl futures::Stream<Item = Result<Bytes, StoreError>> + Send + 'a {
        let blobs = futures::stream::iter(blobs);
        blobs.map(move |blob| async move { self.get_blob(epoch, &blob).await }).buffered(limit.max(1))
    }

    /// The length of a blob of an epoch, or `None` if it is not there.
    ///
    /// # Errors
    /// Whatever a head request meets.
    pub async fn blob_bytes(&self, epoch: u64, digest: &ObjectDigest) -> Result<Option<u64>, StoreError> {
        self.stored_bytes(&self.shared.keys.blob(epoch, digest)).await
    }

    /// Sees that all blobs of an epoch are there with their stated lengths, at most `limit` requests at a time:
    /// before an entry that names them is created, and before a reader changes anything for one.
    ///
    /// # Errors
    /// The first that is missing ([`StoreError::NotVisible`]) or has another length, after repetitions.
    pub async fn see_blobs(&self, epoch: u64, blobs: &[BlobRef], limit: usize) -> Result<(), StoreError> {
        let blobs = futures::stream::iter(blobs.to_vec());
        let seen = blobs
            .map(|blob| async move { self.shared.caller.repeated(|| self.see_blob(epoch, &blob)).await });
        seen.buffered(limit.max(1)).try_collect().await
    }

    /// LG-3: the length is seen in the store, and not concluded from an answer to a put.
    async fn see_blob(&self, epoch: u64, blob: &BlobRef) -> Result<(), StoreError> {
        let key = self.shared.keys.blob(epoch, &blob.digest);
        let Some(found) = self.stored_bytes(&key).await? else {
            return Err(StoreError::NotVisible { key: key.to_string() });
        };
        check_length(key.as_ref(), found, blob)
    }

    /// All blobs that a listing shows; names that are none are left out.
    ///
    /// # Errors
    /// [`StoreError::TooMany`] above the bound; whatever a listing meets.
    pub async fn list_blobs(&self) -> Result<Vec<StoredBlob>, StoreError> {
        let keys = &self.shared.keys;
        let parse = |object: &object_store::ObjectMeta| {
            let (epoch, digest) = keys.parse_blob(&object.location)?;
            Some(StoredBlob { epoch, digest, stored_bytes: object.size })
        };
        self.list(&keys.blobs(), None, parse).await
    }

    /// Deletes a blob of an epoch; one that is not there is deleted already.
    ///
    /// # Errors
    /// Whatever a delete meets.
    pub async fn delete_blob(&self, epoch: u64, digest: &ObjectDigest) -> Result<(), StoreError> {
        let Shared { keys, .. } = &*self.shared;
        self.delete(&keys.blob(epoch, digest)).await
    }

    /// Deletes what puts that were cut short left on a local disk, of epochs (their counters) below the given one:
    /// staged blobs that never got their name. Says how many there were; in other stores there are none.
    ///
    /// # Errors
    /// Whatever the disk meets.
    pub async fn delete_staged(&self, epoch_below: u64) -> Result<usize, StoreError> {
        let Shared { keys, caller, local, .. } = &*self.shared;
        match local {
            Some(local) => local.delete_staged(keys, epoch_below, caller).await,
            None => Ok(0),
        }
    }

    pub(crate) async fn delete(&self, key: &object_store::path::Path) -> Result<(), StoreError> {
        let Shared { store, caller, discovery, .. } = &*self.shared;
        if *discovery == crate::stream::Discovery::ByProbing {
            return Err(StoreError::ReadOnly { key: key.to_string(), source: None });
        }
        match caller.repeated(|| caller.once(key, 0, store.delete(key))).await {
            Ok(()) | Err(StoreError::Missing { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn check_length(key: &str, found: u64, blob: &BlobRef) -> Result<(), StoreError> {
    let (key, expected) = (key.to_owned(), blob.stored_bytes);
    match found.cmp(&expected) {
        std::cmp::Ordering::Less => Err(StoreError::Truncated { key, found, expected }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(StoreError::TooLarge { key, found, limit: expected }),
    }
}

async fn digest(bytes: Bytes) -> ObjectDigest {
    if bytes.len() < HASHED_ASIDE_BYTES_MIN {
        return object_digest(&bytes);
    }
    let digest = tokio::task::spawn_blocking(move || object_digest(&bytes)).await;
    digest.expect("hashing does not panic, and nobody aborts it")
}
