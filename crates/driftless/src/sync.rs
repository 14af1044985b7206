//! How one version goes, as its reporter sees it.

use crate::trainer::detected;
use driftless_runtime::proto::{Cause, ReplicaOutcome, RootCause};
use driftless_runtime::types::{Member, ReceiverId, ReplicaId, Version};
use driftless_runtime::{Shared, SyncReport};
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
    progress: Progress,
}

#[derive(Clone, Copy)]
enum Progress {
    /// Nothing was reported: there is nothing to wait for.
    Nothing,
    /// Reported; it ends at the deadline at the latest.
    Open { deadline: Instant, sequence: u64 },
}

impl SyncHandle {
    pub(crate) const fn nothing(shared: Arc<Shared>, version: Version) -> Self {
        Self { shared, version, progress: Progress::Nothing }
    }

    pub(crate) fn open(shared: Arc<Shared>, version: Version, sequence: u64) -> Self {
        let deadline = Instant::now() + shared.options.version_deadline;
        Self { shared, version, progress: Progress::Open { deadline, sequence } }
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
        if let Progress::Open { deadline, sequence } = self.progress {
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

    pub(crate) async fn ended(&self) -> BTreeMap<ReplicaId, ReplicaOutcome> {
        let Progress::Open { deadline, .. } = self.progress else { return BTreeMap::new() };
        let ledger = &self.shared.ledger;
        let all = ledger.wait(|_| self.outcomes());
        match tokio::time::timeout_at(deadline, all).await {
            Ok(outcomes) => outcomes,
            Err(_) => self.outcomes_at_deadline(),
        }
    }

    fn outcomes(&self) -> Option<BTreeMap<ReplicaId, ReplicaOutcome>> {
        let replicas = self.shared.registry.bound_replicas();
        replicas.into_iter().map(|id| Some((id, self.outcome(id)?))).collect()
    }

    /// The watermark outside every actor says what is committed; the coordinator's word says what was given up.
    fn outcome(&self, id: ReplicaId) -> Option<ReplicaOutcome> {
        let replica = self.shared.registry.replica(id)?;
        if replica.version() >= self.version {
            return Some(ReplicaOutcome::Committed);
        }
        self.shared.ledger.settled(self.version, id)
    }

    fn outcomes_at_deadline(&self) -> BTreeMap<ReplicaId, ReplicaOutcome> {
        let replicas = self.shared.registry.bound_replicas();
        replicas
            .into_iter()
            .map(|id| (id, self.outcome(id).unwrap_or_else(|| self.left_behind(id))))
            .collect()
    }

    fn left_behind(&self, id: ReplicaId) -> ReplicaOutcome {
        let at = self.shared.registry.replica(id).map_or(Version(0), |replica| replica.version());
        let member = Member::Receiver(ReceiverId { replica: id, rank: 0 });
        ReplicaOutcome::Lagging {
            at,
            cause: Cause { member, root: RootCause::Deadline { step: "the version" } },
        }
    }
}
