//! How one version goes, as its reporter sees it.

use crate::trainer::detected;
use driftless_runtime::proto::{Cause, Engine, ReplicaOutcome, RootCause};
use driftless_runtime::types::{Member, ReceiverId, ReplicaId, Version};
use driftless_runtime::{Child, Shared, SyncReport};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// How a version ended everywhere, and what it cost.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The version.
    pub version: Version,
    /// Per attached replica how it ended.
    pub replicas: BTreeMap<ReplicaId, ReplicaOutcome>,
    /// What it cost.
    pub report: SyncReport,
}

impl Outcome {
    /// Whether every attached replica serves the version.
    #[must_use]
    pub fn is_committed_everywhere(&self) -> bool {
        self.replicas.values().all(|outcome| *outcome == ReplicaOutcome::Committed)
    }
}

/// A version under way. Clones speak of the same one.
#[derive(Clone)]
pub struct SyncHandle {
    shared: Arc<Shared>,
    version: Version,
    /// The version that was reported before it.
    base: Version,
    progress: Progress,
}

#[derive(Clone, Copy)]
enum Progress {
    /// Nothing was reported: there is nothing to wait for.
    Nothing,
    /// Reported; it ends at the deadline at the latest.
    Open { deadline: Instant, sequence: u64, trainers_gone: u64 },
}

impl SyncHandle {
    pub(crate) const fn nothing(shared: Arc<Shared>, version: Version) -> Self {
        Self { shared, version, base: version, progress: Progress::Nothing }
    }

    pub(crate) fn open(shared: Arc<Shared>, version: Version, base: Version, sequence: u64) -> Self {
        let deadline = Instant::now() + shared.options.version_deadline;
        let trainers_gone = shared.trainers_gone();
        Self { shared, version, base, progress: Progress::Open { deadline, sequence, trainers_gone } }
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match self.progress {
            Progress::Nothing => None,
            Progress::Open { deadline, .. } => Some(deadline),
        }
    }

    /// The version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Waits until every rank of the trainer holds its patch: from then on no sparse value is read from the trainer.
    ///
    /// It waits for no peer, and ends with the version's deadline at the latest.
    pub async fn detected(&self) {
        if let Progress::Open { deadline, sequence, .. } = self.progress {
            detected(&self.shared, sequence, Some(deadline)).await;
        }
    }

    /// Waits until the version has ended for every attached replica, committed or left behind. It never hangs: at the
    /// version's deadline whoever has not committed counts as left behind.
    pub async fn committed(&self) -> Outcome {
        let replicas = self.ended().await;
        let (elements, dense_bytes) = (self.shared.elements(), self.shared.dense_bytes());
        let report = self.shared.ledger.report(self.version, elements, dense_bytes);
        self.shared.ledger.close(self.version);
        Outcome { version: self.version, replicas, report }
    }

    async fn ended(&self) -> BTreeMap<ReplicaId, ReplicaOutcome> {
        let Progress::Open { deadline, .. } = self.progress else { return BTreeMap::new() };
        let ledger = &self.shared.ledger;
        let all = ledger.wait(|_| self.outcomes(|id| self.outcome(id)));
        match tokio::time::timeout_at(deadline, all).await {
            Ok(outcomes) => outcomes,
            Err(_) => self.outcomes_at_deadline(),
        }
    }

    /// Waits until the next version may be detected: each replica has committed this one, has failed an attempt at it,
    /// or was behind already. One that hangs delays the next version by one deadline, and no later one.
    ///
    /// Gives what each replica serves then.
    pub(crate) async fn passed(&self) -> BTreeMap<ReplicaId, Version> {
        if let Progress::Open { deadline, .. } = self.progress {
            let ledger = &self.shared.ledger;
            let gone_by = |id| self.outcome(id).map(|_| ()).or_else(|| self.is_left(id));
            let all = ledger.wait(|_| self.outcomes(gone_by));
            let _ = tokio::time::timeout_at(deadline, all).await;
        }
        let serves = |id| Some((id, self.shared.registry.replica(id)?.version()));
        self.shared.registry.bound_replicas().into_iter().filter_map(serves).collect()
    }

    fn is_left(&self, id: ReplicaId) -> Option<()> {
        let behind = self.shared.registry.replica(id).is_some_and(|replica| replica.version() < self.base);
        (behind || self.shared.ledger.has_failed(self.version, id)).then_some(())
    }

    fn outcomes<T>(&self, of: impl Fn(ReplicaId) -> Option<T>) -> Option<BTreeMap<ReplicaId, T>> {
        self.shared.registry.bound_replicas().into_iter().map(|id| Some((id, of(id)?))).collect()
    }

    /// The watermark outside every actor says what is committed, once the engine serves again; the coordinator's word
    /// says what was given up. Who is exhausted or stopped will not say anything.
    fn outcome(&self, id: ReplicaId) -> Option<ReplicaOutcome> {
        let replica = self.shared.registry.replica(id)?;
        let served = replica.version();
        if served > self.version || served == self.version && replica.engine() == Engine::Serving {
            return Some(ReplicaOutcome::Committed);
        }
        if self.shared.is_stopped() {
            return Some(left_behind(id, served, RootCause::Stopped));
        }
        let settled = self.shared.ledger.settled(self.version, id);
        settled.or_else(|| self.exhausted(id, served)).or_else(|| self.detached(id, served))
    }

    /// Nobody is left to send it.
    fn detached(&self, id: ReplicaId, at: Version) -> Option<ReplicaOutcome> {
        let Progress::Open { trainers_gone, .. } = self.progress else { return None };
        let is_gone = trainers_gone < self.shared.trainers_gone();
        is_gone.then(|| left_behind(id, at, RootCause::Detached))
    }

    fn exhausted(&self, id: ReplicaId, at: Version) -> Option<ReplicaOutcome> {
        let concerns = |child: &Child| match child {
            Child::Coordinator | Child::Member(Member::Sender(_)) => true,
            Child::Member(Member::Receiver(receiver)) => receiver.replica == id,
            // Nothing in the cluster waits for a log.
            Child::Publisher | Child::Follower(_) => false,
        };
        let child = self.shared.registry.unhealthy().into_iter().find(concerns)?;
        let Child::Member(member) = child else { return Some(left_behind(id, at, RootCause::Exhausted)) };
        Some(ReplicaOutcome::Lagging { at, cause: Cause::new(member, RootCause::Exhausted) })
    }

    fn outcomes_at_deadline(&self) -> BTreeMap<ReplicaId, ReplicaOutcome> {
        let late = |id: ReplicaId| {
            let at = self.shared.registry.replica(id).map_or(Version(0), |replica| replica.version());
            left_behind(id, at, RootCause::Deadline { step: "the version" })
        };
        let replicas = self.shared.registry.bound_replicas();
        replicas.into_iter().map(|id| (id, self.outcome(id).unwrap_or_else(|| late(id)))).collect()
    }
}

fn left_behind(id: ReplicaId, at: Version, root: RootCause) -> ReplicaOutcome {
    ReplicaOutcome::Lagging { at, cause: Cause::at(ReceiverId { replica: id, rank: 0 }, root) }
}
