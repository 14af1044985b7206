//! What is known of each version, outside every actor: who has detected it, how it ended where, and what it cost.

use bytes::Bytes;
use driftless_numerics::NotInvertible;
use driftless_proto::ReplicaOutcome;
use driftless_types::{ReplicaId, SenderId, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tracing::Span;

/// Versions that are remembered: a handle that is awaited later than this many versions on has missed its outcome.
const VERSIONS_KEPT: usize = 64;

/// A phase of a sync, in the order of the journey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Reconstruct, round, compare.
    Detect,
    /// Into the receivers' coordinates.
    Remap,
    /// Into sections.
    Encode,
    /// Round 2 of the exchange.
    Transfer,
    /// Check every byte.
    Stage,
    /// From the pause hook to the resume hook; encloses apply and commit.
    Pause,
    /// Scatter and compare digests.
    Apply,
    /// Drop the undo log and move the version.
    Commit,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 8] = [
        Self::Detect,
        Self::Remap,
        Self::Encode,
        Self::Transfer,
        Self::Stage,
        Self::Pause,
        Self::Apply,
        Self::Commit,
    ];
}

/// What one version cost, over all ranks.
#[derive(Clone, Debug, Default)]
pub struct SyncReport {
    /// Canonical elements of the model.
    pub elements: u64,
    /// Canonical elements whose served bits differ from the version before, counted at their first receiver.
    pub changed: u64,
    /// Canonical elements that were sent, once each.
    pub sent: u64,
    /// Served bytes of all receivers.
    pub dense_bytes: u64,
    /// Bytes sent to all receivers by all attempts, records and headers included.
    pub wire_bytes: u64,
    /// The most bytes of windows that were in memory at once, from the cast to the write, over all ranks; 0 if nothing was
    /// taken in place.
    pub window_bytes_peak: u64,
    /// Per phase the time of the slowest rank.
    pub phases: BTreeMap<Phase, Duration>,
    /// Fragments that were sent whole because a digest had not matched.
    pub repaired: u64,
    /// Parameters that went dense because a gate failed, with the gate.
    pub dense: Vec<NotInvertible>,
}

#[derive(Debug, Default)]
struct Entry {
    settled: BTreeMap<ReplicaId, ReplicaOutcome>,
    failed: BTreeSet<ReplicaId>,
    changed: BTreeMap<ReplicaId, u64>,
    sent: BTreeMap<ReplicaId, u64>,
    gates: BTreeMap<(String, String), NotInvertible>,
    report: SyncReport,
    span: Option<Span>,
}

/// The ledger of a node.
#[derive(Debug)]
pub struct Ledger {
    entries: Mutex<BTreeMap<Version, Entry>>,
    detected: Mutex<BTreeMap<u64, BTreeSet<SenderId>>>,
    changed: watch::Sender<u64>,
    windows: Arc<AtomicU64>,
}

/// A window in memory.
struct Held {
    bytes: Vec<u8>,
    windows: Arc<AtomicU64>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.windows.fetch_sub(self.bytes.len() as u64, Ordering::AcqRel);
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            entries: Mutex::default(),
            detected: Mutex::default(),
            changed: watch::Sender::new(0),
            windows: Arc::default(),
        }
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Version, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, version: Version, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.lock();
        change(entries.entry(version).or_default());
        while entries.len() > VERSIONS_KEPT {
            entries.pop_first();
        }
        drop(entries);
        self.wake();
    }

    /// Wakes whoever waits for a version: something that the waiter looks at has changed.
    pub fn wake(&self) {
        self.changed.send_modify(|tick| *tick = tick.wrapping_add(1));
    }

    /// Waits until `seen` gives something, looking again after each change.
    pub async fn wait<T>(&self, mut seen: impl FnMut(&Self) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(found) = seen(self) {
                return found;
            }
            // The sender lives in `self`: this wait ends with the next change.
            let _ = changes.changed().await;
        }
    }

    /// Counts a window of a version as long as any of its bytes is in use.
    pub(crate) fn hold(&self, version: Version, bytes: Vec<u8>) -> Bytes {
        let count = bytes.len() as u64;
        let now = self.windows.fetch_add(count, Ordering::AcqRel) + count;
        self.update(version, |entry| {
            entry.report.window_bytes_peak = entry.report.window_bytes_peak.max(now);
        });
        Bytes::from_owner(Held { bytes, windows: Arc::clone(&self.windows) })
    }

    /// Opens the trace of a version.
    pub fn open(&self, version: Version, span: Span) {
        self.update(version, |entry| entry.span = Some(span));
    }

    /// The span under which every step of a version is drawn.
    #[must_use]
    pub fn span(&self, version: Version) -> Span {
        self.lock().get(&version).and_then(|entry| entry.span.clone()).unwrap_or_else(Span::none)
    }

    /// Ends the trace of a version.
    pub fn close(&self, version: Version) {
        self.update(version, |entry| entry.span = None);
    }

    /// A sender has detected the step of this number.
    pub fn detected(&self, sequence: u64, sender: SenderId) {
        let mut detected = self.detected.lock().unwrap_or_else(PoisonError::into_inner);
        detected.entry(sequence).or_default().insert(sender);
        while detected.len() > VERSIONS_KEPT {
            detected.pop_first();
        }
        drop(detected);
        self.wake();
    }

    /// How many senders have detected the step of this number.
    #[must_use]
    pub fn detected_count(&self, sequence: u64) -> usize {
        let detected = self.detected.lock().unwrap_or_else(PoisonError::into_inner);
        detected.get(&sequence).map_or(0, BTreeSet::len)
    }

    /// Gates that failed at a sender.
    pub fn gated(&self, version: Version, gates: &[NotInvertible]) {
        self.update(version, |entry| {
            for gate in gates {
                entry.gates.insert((gate.group.clone(), gate.gate.to_string()), gate.clone());
            }
        });
    }

    /// A version has ended for a replica.
    pub fn settle(&self, version: Version, replica: ReplicaId, outcome: ReplicaOutcome) {
        self.update(version, |entry| {
            entry.settled.insert(replica, outcome);
        });
    }

    /// An attempt at a version has failed for a replica; the version may still be tried again.
    pub fn failed(&self, version: Version, replica: ReplicaId) {
        self.update(version, |entry| {
            entry.failed.insert(replica);
        });
    }

    /// Whether an attempt at a version has failed for a replica.
    #[must_use]
    pub fn has_failed(&self, version: Version, replica: ReplicaId) -> bool {
        self.lock().get(&version).is_some_and(|entry| entry.failed.contains(&replica))
    }

    /// How a version ended for a replica, if the coordinator has said so.
    #[must_use]
    pub fn settled(&self, version: Version, replica: ReplicaId) -> Option<ReplicaOutcome> {
        self.lock().get(&version)?.settled.get(&replica).cloned()
    }

    /// A rank took this long in a phase.
    pub fn took(&self, version: Version, phase: Phase, time: Duration) {
        self.update(version, |entry| {
            let slowest = entry.report.phases.entry(phase).or_default();
            *slowest = time.max(*slowest);
        });
    }

    /// A sender sent so many bytes to a replica, so many canonical elements among them, so many fragments repaired.
    pub fn sent(&self, version: Version, replica: ReplicaId, bytes: u64, elements: u64, repaired: u64) {
        self.update(version, |entry| {
            entry.report.wire_bytes += bytes;
            entry.report.repaired += repaired;
            *entry.sent.entry(replica).or_default() += elements;
        });
    }

    /// An attempt for a replica begins: what an earlier attempt sent is not counted as elements twice.
    pub fn begin_attempt(&self, version: Version, replica: ReplicaId) {
        self.update(version, |entry| {
            entry.sent.remove(&replica);
            entry.changed.remove(&replica);
        });
    }

    /// A receiver changed so many canonical elements of which it is the first holder in its replica.
    pub fn applied(&self, version: Version, replica: ReplicaId, changed: u64) {
        self.update(version, |entry| *entry.changed.entry(replica).or_default() += changed);
    }

    /// What a version cost so far. Elements are those of the first replica that has any.
    #[must_use]
    pub fn report(&self, version: Version, elements: u64, dense_bytes: u64) -> SyncReport {
        let entries = self.lock();
        let Some(entry) = entries.get(&version) else {
            return SyncReport { elements, dense_bytes, ..SyncReport::default() };
        };
        SyncReport {
            elements,
            dense_bytes,
            changed: entry.changed.values().next().copied().unwrap_or(0),
            sent: entry.sent.values().next().copied().unwrap_or(0),
            dense: entry.gates.values().cloned().collect(),
            ..entry.report.clone()
        }
    }
}
