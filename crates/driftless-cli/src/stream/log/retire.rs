//! `driftless log retire`: the collector's machine over a store.
//!
//! LG-8: anchors that are kept are read again and proven first; leases are read after the `retire` entry, and once more
//! after the lease time. LG-9: what a publisher writes meanwhile is of the epoch in force, and stays.

use crate::console::{Console, Lines, counted};
use crate::failure::{Failure, with_causes};
use crate::stream::args::RetireArgs;
use crate::stream::keys::{reading, without_key};
use crate::stream::replay::Replay;
use crate::stream::stream_failure;
use driftless::log::{
    BlobKey, Fault, Lease, LogIo, LogIoError, Patience, Retire, RetireCommand, RetireEvent, RetireMode,
    RetireOptions, RetireStop, StoreError, Stored, StreamModel, StreamUrl, fault, stream_model,
};
use driftless_types::{EntryKind, ObjectDigest, Writers};
use indicatif::HumanBytes;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// Blobs in one step of the collector.
const PAGE_BLOBS: usize = 1000;
/// So many entries are read back for two anchors.
const LOOK_BACK_MAX: u64 = 1 << 16;

/// What was done; keys in the documented order.
#[derive(Debug, Default, Serialize)]
struct RetireReport {
    stream: String,
    dry_run: bool,
    /// The place of the `retire` entry, if one was appended.
    seq: Option<u64>,
    /// The first entry whose blobs are kept.
    keep_from: u64,
    /// Blobs that were deleted, or would be.
    blobs: usize,
    bytes: u64,
}

/// Runs the collector to its end.
pub(super) async fn retire(args: RetireArgs) -> Result<(), Failure> {
    let (args, dry_run, key) = (args.stream, args.dry_run, args.key);
    let io = reading(&args, key.as_deref())?;
    let stream = stream_model(&io).await.map_err(|error| stream_failure(&args.url, error))?;
    let console = Console::waiting(Lines::beside(args.json.as_ref()));
    let mode = if dry_run { RetireMode::Rehearse } else { RetireMode::Retire };
    let signer = io.signer.key();
    let options = RetireOptions { mode, signer, patience: Patience::default(), look_back_max: LOOK_BACK_MAX };
    let (machine, commands) = Retire::new(options);
    let report = RetireReport { stream: args.url.to_string(), dry_run, ..RetireReport::default() };
    let mut collector = Collector {
        io: &io,
        url: &args.url,
        stream: &stream,
        machine,
        listed: BTreeMap::new(),
        report,
        console: &console,
    };
    collector.run(commands.into()).await?;
    let report = collector.report;
    console.line(&format!(
        "{} {}, {}; blobs are kept from entry {} on",
        if dry_run { "would delete" } else { "deleted" },
        counted(report.blobs, "blob"),
        HumanBytes(report.bytes),
        report.keep_from
    ));
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))
}

struct Collector<'a> {
    io: &'a LogIo,
    url: &'a StreamUrl,
    stream: &'a StreamModel,
    machine: Retire,
    /// All blobs with their lengths, as they were listed.
    listed: BTreeMap<BlobKey, u64>,
    report: RetireReport,
    console: &'a Console,
}

impl Collector<'_> {
    async fn run(&mut self, mut commands: VecDeque<RetireCommand>) -> Result<(), Failure> {
        while let Some(command) = commands.pop_front() {
            if let Some(event) = self.execute(command).await? {
                commands.extend(self.machine.handle(event));
            }
        }
        Ok(())
    }

    async fn execute(&mut self, command: RetireCommand) -> Result<Option<RetireEvent>, Failure> {
        Ok(Some(match command {
            RetireCommand::Read(seq) => RetireEvent::Read(self.io.read(seq).await),
            RetireCommand::List { after } => {
                self.io.last_after(after).await.map_or_else(RetireEvent::Failed, RetireEvent::Listed)
            }
            RetireCommand::Verify(anchor) => self.verify(&anchor).await,
            RetireCommand::Create(entry) => {
                self.io.create(&entry).await.map_or(RetireEvent::CreateFailed, RetireEvent::Created)
            }
            RetireCommand::ReadLeases => self.answer(self.leases().await, RetireEvent::Leases),
            RetireCommand::NameBlobs(stored) => self.names(&stored).await,
            RetireCommand::ListBlobs { after } => {
                let page = self.page(after).await;
                self.answer(page, RetireEvent::Blobs)
            }
            RetireCommand::Delete(keys) => {
                let deleted = self.delete(&keys).await;
                self.answer(deleted, |()| RetireEvent::Deleted)
            }
            RetireCommand::ArmTimer { id, after } => {
                self.console.doing(format!("waits {} s", after.as_secs_f32()));
                tokio::time::sleep(after).await;
                RetireEvent::TimerFired(id)
            }
            RetireCommand::WouldDelete(keys) => {
                self.count(&keys);
                return Ok(None);
            }
            RetireCommand::Retired(stored) => {
                self.report.seq = Some(stored.seq().0);
                let wait = self.stream.lease_ttl_s;
                self.console.line(&format!("entry {} says so; leases have {wait} s to move", stored.seq()));
                return Ok(None);
            }
            RetireCommand::StoreDown(fault) => {
                self.console.warn(&format!("the store fails, trying on: {fault}"));
                return Ok(None);
            }
            RetireCommand::Done { keep_from } => {
                self.report.keep_from = keep_from.0;
                return Ok(None);
            }
            RetireCommand::Stopped(RetireStop::Signed { seq, key }) => {
                return Err(without_key(&self.url.to_string(), seq, key));
            }
            RetireCommand::Stopped(stop) => {
                return Err(Failure::Ended { place: self.url.to_string(), source: stop.into() });
            }
        }))
    }

    /// LG-8: an anchor that is kept is read again and proven.
    async fn verify(&self, anchor: &Stored) -> RetireEvent {
        self.console.doing(format!("proving the anchor at entry {}", anchor.seq()));
        match Replay::new(self.stream).take(self.io, anchor).await {
            Ok(proven) => {
                self.console.line(&format!(
                    "v{} proven, the anchor at entry {}",
                    proven.version,
                    anchor.seq()
                ));
                RetireEvent::Verified
            }
            Err(damage) => match damage.outage() {
                Some(error) => self.failed(error),
                None => {
                    self.console.warn(&format!("entry {}: {}", anchor.seq(), with_causes(&damage)));
                    RetireEvent::Damaged
                }
            },
        }
    }

    async fn leases(&self) -> Result<BTreeMap<String, Lease>, StoreError> {
        let leases = self.io.stream.read_leases().await?.into_iter();
        let leases = leases
            .map(|lease| (lease.reader.to_string(), Lease { counter: lease.counter, pinned: lease.pinned }));
        Ok(leases.collect())
    }

    async fn names(&self, stored: &Stored) -> RetireEvent {
        match named(self.io, stored).await {
            Ok(digests) => RetireEvent::Named(digests),
            Err(LogIoError::Store(error)) => self.failed(&error),
            // What a manifest names is not known: nothing may go.
            Err(_) => RetireEvent::Failed(Fault::Unavailable),
        }
    }

    /// A page of the listing, which is taken once: what comes later is of the epoch in force and stays.
    async fn page(&mut self, after: Option<BlobKey>) -> Result<BTreeSet<BlobKey>, StoreError> {
        let Some(after) = after else {
            self.console.doing("listing blobs".to_owned());
            let blobs = self.io.stream.list_blobs().await?.into_iter();
            let keyed =
                blobs.map(|blob| (BlobKey { epoch: blob.epoch, digest: blob.digest }, blob.stored_bytes));
            self.listed = keyed.collect();
            return Ok(self.listed.keys().take(PAGE_BLOBS).copied().collect());
        };
        let rest = self.listed.range((Bound::Excluded(after), Bound::Unbounded));
        Ok(rest.take(PAGE_BLOBS).map(|(key, _)| *key).collect())
    }

    async fn delete(&mut self, keys: &BTreeSet<BlobKey>) -> Result<(), StoreError> {
        for key in keys {
            self.io.stream.delete_blob(key.epoch, &key.digest).await?;
        }
        self.count(keys);
        Ok(())
    }

    fn answer<T>(
        &self,
        answered: Result<T, StoreError>,
        event: impl FnOnce(T) -> RetireEvent,
    ) -> RetireEvent {
        answered.map_or_else(|error| self.failed(&error), event)
    }

    fn failed(&self, error: &StoreError) -> RetireEvent {
        self.console.warn(&format!("{error}; trying on"));
        RetireEvent::Failed(fault(error))
    }

    fn count(&mut self, keys: &BTreeSet<BlobKey>) {
        self.report.blobs += keys.len();
        self.report.bytes += keys.iter().filter_map(|key| self.listed.get(key)).sum::<u64>();
        self.console.doing(counted(self.report.blobs, "blob"));
    }
}

/// Every blob that an entry names, those in its manifests included.
async fn named(io: &LogIo, stored: &Stored) -> Result<BTreeSet<ObjectDigest>, LogIoError> {
    let mut digests = BTreeSet::new();
    if let EntryKind::Genesis(genesis) = &stored.entry.kind {
        digests.extend([genesis.parameters.digest, genesis.model_config.digest]);
    }
    let Some(publication) = stored.entry.kind.publication() else { return Ok(digests) };
    digests.insert(publication.digests.digest);
    if let Writers::Blob(manifests) = publication.writers {
        digests.insert(manifests.digest);
    }
    let writers = io.writers(stored.entry.epoch, publication).await?;
    digests.extend(writers.iter().flat_map(|writer| &writer.blobs).map(|blob| blob.digest));
    Ok(digests)
}
