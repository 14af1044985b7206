//! A stream as the machines of the log see it: entries that verified, presence, and faults of a few kinds.

use bytes::Bytes;
use driftless_codec::entry::{
    EntryError, MAX_ENTRY_BYTES, SignedEntry, Signer, Trust, decode_writers, encode_writers, object_digest,
};
use driftless_proto::log::{Fault, Presence, PublishEvent, Published, Reading, Stored, Task};
use driftless_store::{StoreError, Stream};
use driftless_types::{
    BlobRef, Digest, Entry, Epoch, ObjectDigest, Publication, Seq, Version, WriterManifest, Writers,
    element_offset,
};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tracing::{error, warn};

/// Blobs whose presence is asked for at a time.
const ASKED_AT_A_TIME: usize = 16;
/// So many entries are looked at for the publication that a trainer's weights are.
const ORIGIN_LOOK_BACK: u64 = 256;
/// Bytes of one digest.
const DIGEST_BYTES: usize = 16;

/// A stream, whose keys are trusted, and who signs.
#[derive(Clone)]
pub struct LogIo {
    /// The store.
    pub stream: Stream,
    /// Whose entries are believed.
    pub trust: Arc<Trust>,
    /// Who signs what is written.
    pub signer: Arc<Signer>,
}

impl std::fmt::Debug for LogIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogIo").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// Why what an entry names cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogIoError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An entry, or a table that one names.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A version whose writers are not those that it says, each once.
    #[error("the writers of version {version} are not {expected}, each present once")]
    Writers {
        /// The version.
        version: Version,
        /// How many there should be.
        expected: u32,
    },
    /// A blob that does not have the length that it must.
    #[error("{what} has {found} bytes, expected {expected}")]
    Length {
        /// Which.
        what: &'static str,
        /// Its length.
        found: usize,
        /// What follows from the model.
        expected: usize,
    },
}

/// What an error of the store means to a machine.
#[must_use]
pub fn fault(error: &StoreError) -> Fault {
    match error {
        StoreError::PermissionDenied { .. }
        | StoreError::ReadOnly { .. }
        | StoreError::BucketMissing { .. }
        | StoreError::Address { .. } => Fault::Denied,
        StoreError::DiskFull { .. } => Fault::Full,
        _ => Fault::Unavailable,
    }
}

/// A pause with jitter: those who failed together do not come back together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    pause.mul_f64(0.75 + 0.5 * (random % 1024) as f64 / 1024.0)
}

impl LogIo {
    /// The entry at a place.
    pub async fn read(&self, seq: Seq) -> Reading {
        let object = match self.stream.read_entry(seq, element_offset(MAX_ENTRY_BYTES)).await {
            Ok(object) => object,
            Err(StoreError::Missing { .. }) => return Reading::Absent,
            Err(StoreError::TooLarge { .. }) => return Reading::Invalid,
            Err(error) => {
                warn!(%seq, %error, "an entry was not read");
                return Reading::Failed(fault(&error));
            }
        };
        // LG-13: the signature first, then everything else, and nothing of it before.
        match SignedEntry::verify(&object, &self.trust, seq) {
            Ok(signed) => Reading::Found(stored(signed)),
            Err(error) => {
                warn!(%seq, %error, "an entry does not verify");
                Reading::Invalid
            }
        }
    }

    /// The last place of the unbroken run of entries after this one.
    ///
    /// # Errors
    /// What the store's failure means.
    pub async fn last_after(&self, after: Seq) -> Result<Option<Seq>, Fault> {
        self.stream.tail(after.next()).await.map_err(|error| {
            warn!(%after, %error, "the log was not listed");
            fault(&error)
        })
    }

    pub(crate) async fn probe(&self) -> PublishEvent {
        match self.stream.probe_create_if_absent().await {
            Ok(()) => PublishEvent::ProbeKept,
            Err(StoreError::NoCreateIfAbsent { .. }) => PublishEvent::ProbeOverwritten,
            Err(error) => {
                warn!(%error, "the store was not probed");
                PublishEvent::Failed(fault(&error))
            }
        }
    }

    /// Creates an entry's object: one request. `None` after any error.
    pub async fn create(&self, entry: &Entry) -> Option<ObjectDigest> {
        let object = match SignedEntry::seal(entry, &self.signer) {
            Ok(object) => object,
            Err(error) => {
                warn!(seq = %entry.seq, %error, "an entry cannot be written");
                return None;
            }
        };
        let digest = object_digest(&object);
        match self.stream.create_entry(entry.seq, object).await {
            Ok(()) => Some(digest),
            Err(error) => {
                warn!(seq = %entry.seq, %error, "an entry was not seen to be created");
                None
            }
        }
    }

    /// Puts a blob of an epoch.
    ///
    /// # Errors
    /// Whatever the store meets.
    pub async fn put_blob(&self, epoch: Epoch, bytes: Bytes) -> Result<BlobRef, StoreError> {
        let put = self.stream.put_blob(epoch.counter, bytes).await;
        put.inspect_err(|error| warn!(%error, "a blob was not put"))
    }

    /// Puts what an entry names beside the writers' blobs.
    pub(crate) async fn seal(
        &self,
        task: Task,
        digests: &[Digest],
        writers: &[WriterManifest],
    ) -> PublishEvent {
        let put = async {
            let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.to_bytes()).collect();
            let digests = self.put_blob(task.epoch, bytes.into()).await?;
            let manifests = match inline(writers) {
                true => None,
                false => Some(self.put_blob(task.epoch, encode_writers(writers)?.into()).await?),
            };
            Ok::<_, LogIoError>(PublishEvent::Sealed { version: task.version, digests, manifests })
        };
        put.await.unwrap_or_else(|error| match error {
            LogIoError::Store(error) => PublishEvent::Failed(fault(&error)),
            error => {
                warn!(%error, "the manifests of a version cannot be written");
                PublishEvent::Failed(Fault::Denied)
            }
        })
    }

    /// Says whether all that an entry names is there.
    pub async fn presence(&self, stored: &Stored) -> Presence {
        let present = async {
            let Some(publication) = stored.entry.kind.publication() else { return Ok(true) };
            let mut blobs = vec![publication.digests];
            if let Writers::Blob(manifests) = publication.writers
                && !self.has(stored.entry.epoch, &manifests).await?
            {
                return Ok(false);
            }
            let writers = self.writers(stored.entry.epoch, publication).await?;
            blobs.extend(writers.into_iter().flat_map(|writer| writer.blobs));
            let asked =
                stream::iter(blobs).map(|blob| async move { self.has(stored.entry.epoch, &blob).await });
            let there: Vec<bool> = asked.buffer_unordered(ASKED_AT_A_TIME).try_collect().await?;
            Ok::<_, LogIoError>(there.into_iter().all(|there| there))
        };
        match present.await {
            Ok(true) => Presence::All,
            Ok(false) => Presence::Missing,
            Err(LogIoError::Store(StoreError::NotVisible { .. })) => Presence::Missing,
            Err(LogIoError::Store(error)) if !error.is_damage() => {
                warn!(seq = %stored.seq(), %error, "what an entry names was not looked for");
                Presence::Failed(fault(&error))
            }
            // Manifests that are damaged, or not those of the entry: what they would name is not there.
            Err(error) => {
                error!(seq = %stored.seq(), %error, "alarm: what an entry names is not what it says");
                Presence::Missing
            }
        }
    }

    async fn has(&self, epoch: u64, blob: &BlobRef) -> Result<bool, StoreError> {
        let found = self.stream.blob_bytes(epoch, &blob.digest).await?;
        Ok(found == Some(blob.stored_bytes))
    }

    /// The manifests of a version, in order of rank.
    ///
    /// # Errors
    /// Whatever the store meets; writers that are not all there once (LG-3).
    pub async fn writers(
        &self,
        epoch: u64,
        publication: &Publication,
    ) -> Result<Vec<WriterManifest>, LogIoError> {
        let expected = publication.writer_count;
        let writers = match &publication.writers {
            Writers::Inline(writers) => writers.clone(),
            Writers::Blob(blob) => decode_writers(&self.stream.get_blob(epoch, blob).await?, expected)?,
        };
        let ranks = writers.iter().map(|writer| writer.rank);
        if !ranks.eq(0..expected) {
            return Err(LogIoError::Writers { version: publication.version, expected });
        }
        Ok(writers)
    }

    /// The digest of every parameter at a version.
    ///
    /// # Errors
    /// Whatever the store meets; another number of parameters.
    pub async fn digests(
        &self,
        epoch: u64,
        publication: &Publication,
        params: usize,
    ) -> Result<Vec<Digest>, LogIoError> {
        let (what, expected) = ("the blob of digests", DIGEST_BYTES * params);
        let bytes = self.stream.get_blob(epoch, &publication.digests).await?;
        if bytes.len() != expected {
            return Err(LogIoError::Length { what, found: bytes.len(), expected });
        }
        Ok(bytes.as_chunks().0.iter().map(|bytes| Digest::from_bytes(*bytes)).collect())
    }

    /// The newest anchor or delta of the log, whatever its epoch; `None` if there is none within reach.
    ///
    /// # Errors
    /// Whatever the store meets; an entry that does not verify.
    pub async fn last(&self) -> Result<Option<Stored>, LogIoError> {
        let Some(last) = self.stream.tail(Seq::GENESIS).await? else { return Ok(None) };
        let lowest = last.0.saturating_sub(ORIGIN_LOOK_BACK);
        for seq in (lowest..=last.0).rev().map(Seq) {
            let object = self.stream.read_entry(seq, element_offset(MAX_ENTRY_BYTES)).await?;
            let signed = SignedEntry::verify(&object, &self.trust, seq)?;
            if signed.entry.kind.publication().is_some() {
                return Ok(Some(stored(signed)));
            }
        }
        Ok(None)
    }

    /// The last publication of this version, if its digests are these.
    pub(crate) async fn find(&self, version: Version, digests: &[Digest]) -> Option<Published> {
        let last = self.stream.tail(Seq::GENESIS).await.ok()??;
        let lowest = last.0.saturating_sub(ORIGIN_LOOK_BACK);
        for seq in (lowest..=last.0).rev().map(Seq) {
            let Reading::Found(stored) = self.read(seq).await else { return None };
            let (Some(published), Some(publication)) = (stored.published(), stored.entry.kind.publication())
            else {
                continue;
            };
            if published.version < version {
                return None;
            }
            if published.version == version {
                let found = self.digests(stored.entry.epoch, publication, digests.len()).await.ok()?;
                return (found == digests).then_some(published);
            }
        }
        None
    }

    /// Leaves the hint that the log reaches this place. Losing it loses nothing.
    pub(crate) async fn hint(&self, seq: Seq) {
        if let Err(error) = self.stream.write_head(seq).await {
            warn!(%seq, %error, "the hint was not written");
        }
    }
}

fn stored(signed: SignedEntry) -> Stored {
    Stored { entry: Arc::new(signed.entry), object: signed.object, signer: signed.key }
}

/// Whether manifests fit into an entry beside everything else.
fn inline(writers: &[WriterManifest]) -> bool {
    // A blob takes about 120 characters of JSON, a writer 40 more.
    let characters: usize = writers.iter().map(|writer| 64 + 160 * writer.blobs.len()).sum();
    characters < MAX_ENTRY_BYTES / 2
}
