//! What a simulated cluster looks like and what may go wrong in it.

use super::rng::Rng;
use std::collections::BTreeSet;

/// A kind of fault. Each is drawn at every opportunity until the budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultKind {
    /// A sender's actor dies.
    KillSender,
    /// A receiver's actor dies that leads no replica.
    KillReceiver,
    /// The actor of receiver 0 dies, and the lead with it.
    KillLead,
    /// The coordinator dies.
    KillCoordinator,
    /// A transfer fails at both ends.
    TransferFails,
    /// A transfer takes longer than its round's deadline.
    TransferStalls,
    /// A sender announces more than the receiver stages.
    Oversized,
    /// Bytes that arrived are damaged.
    PayloadDamaged,
    /// The pause hook returns an error.
    PauseFails,
    /// A hook takes longer than its deadline.
    HookStalls,
    /// A scatter takes longer than its deadline.
    ScatterStalls,
    /// A tensor's old bits are wrong: its digest differs until it is sent whole.
    DigestMismatch,
    /// A sender loses the positions of its patch: whoever is behind takes everything in place.
    PatchLost,
    /// A word between two members is lost.
    LoseWord,
    /// A word between two members comes a second time, up to some seconds later and out of order.
    RepeatWord,
}

impl FaultKind {
    /// Every kind that hits an actor, a transfer or a hook.
    pub const ALL: [Self; 13] = [
        Self::KillSender,
        Self::KillReceiver,
        Self::KillLead,
        Self::KillCoordinator,
        Self::TransferFails,
        Self::TransferStalls,
        Self::Oversized,
        Self::PayloadDamaged,
        Self::PauseFails,
        Self::HookStalls,
        Self::ScatterStalls,
        Self::DigestMismatch,
        Self::PatchLost,
    ];
    /// Every kind that hits a link between members. Members then say where they stand at every keep-alive.
    pub const LINKS: [Self; 2] = [Self::LoseWord, Self::RepeatWord];
}

/// A defect planted into the shell around one machine, to prove that the checks find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// None: the machines are executed as they ask.
    #[default]
    None,
    /// A receiver writes as soon as its own bytes are checked, without waiting for the others or for the pause.
    ApplyOnArrival,
    /// A receiver acknowledges a rollback without playing the undo log back.
    AcknowledgeWithoutUndo,
    /// A lead takes the first `Applied` for everyone's.
    CommitWhenSomeApplied,
    /// A lead resumes the engine together with the decision, before anyone acknowledged it.
    ResumeBeforeAcknowledged,
    /// A receiver forgets what it promised to a newer lead.
    ObeyOldLead,
    /// An applied attempt is forgotten when its actor restarts, and its undo log with it.
    ForgetApplied,
    /// Sender 0 sends the bits of the base for those of the version.
    SendOldBits,
    /// The coordinator's back-off timers never fire.
    NeverRetry,
    /// Tensors with a wrong digest are never sent whole.
    ForgetRepair,
    /// A sender leaves out what changed between the receiver's base and the version.
    AssumeNewerBase,
    /// That a receiver's weights are of no version is forgotten when its actor restarts.
    ForgetTorn,
    /// The resume hook is never called.
    NeverResume,
    /// A sender posts one byte more than its records announced.
    PostAnotherSize,
    /// No member says anything a second time: no keep-alive, and the deadline of an attempt never passes.
    SayOnce,
}

/// The shape of a cluster, its faults and its patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Trainer ranks.
    pub senders: u32,
    /// Rollout replicas.
    pub replicas: u32,
    /// Receivers of each replica.
    pub receivers: u32,
    /// Versions published in a row.
    pub versions: u64,
    /// Which faults may happen.
    pub faults: BTreeSet<FaultKind>,
    /// How many faults happen at most.
    pub fault_budget: u32,
    /// A fault happens once in so many opportunities.
    pub fault_one_in: u64,
    /// After so many failed attempts the coordinator leaves a replica behind.
    pub max_attempts: u32,
    /// The trainer goes on to the next version after this time, in ms, whatever became of the last.
    pub version_deadline_ms: u64,
    /// Receiver 1 of replica 0 (or its only one) never comes up.
    pub missing: Missing,
    /// A planted defect.
    pub sabotage: Sabotage,
}

/// Whether everybody takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// Everybody does.
    #[default]
    Nobody,
    /// The last receiver of replica 0 never comes up.
    OneReceiver,
}

impl SimOptions {
    /// A calm cluster: nothing fails.
    #[must_use]
    pub const fn calm(senders: u32, replicas: u32, receivers: u32, versions: u64) -> Self {
        Self {
            senders,
            replicas,
            receivers,
            versions,
            faults: BTreeSet::new(),
            fault_budget: 0,
            fault_one_in: 1,
            max_attempts: u32::MAX,
            version_deadline_ms: 60_000,
            missing: Missing::Nobody,
            sabotage: Sabotage::None,
        }
    }

    /// A cluster drawn from a seed: up to 4 senders x 3 replicas x 4 receivers, 3 versions, all faults.
    #[must_use]
    pub fn stormy(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5107_0000);
        let mut count = |most: u32| 1 + u32::try_from(rng.next() % u64::from(most)).unwrap_or_default();
        let calm = Self::calm(count(4), count(3), count(4), 3);
        Self {
            faults: FaultKind::ALL.into_iter().collect(),
            fault_budget: count(12),
            fault_one_in: u64::from(count(10) * count(10)) + 4,
            version_deadline_ms: u64::from(count(60)) * 500,
            ..calm
        }
    }

    /// A stormy cluster whose links lose and repeat words as well.
    #[must_use]
    pub fn lossy(seed: u64) -> Self {
        let stormy = Self::stormy(seed);
        let faults = stormy.faults.into_iter().chain(FaultKind::LINKS).collect();
        Self { faults, fault_budget: 3 * stormy.fault_budget, ..stormy }
    }

    /// A lossy cluster of up to 16 senders and up to 16 receivers.
    #[must_use]
    pub fn large(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1a46_e000);
        let mut count = |most: u32| 1 + u32::try_from(rng.next() % u64::from(most)).unwrap_or_default();
        let (senders, replicas) = (count(16), count(4));
        let receivers = count(16 / replicas);
        Self { senders, replicas, receivers, versions: 2, ..Self::lossy(seed) }
    }

    /// The same cluster with these faults alone.
    #[must_use]
    pub fn with_faults(mut self, kinds: impl IntoIterator<Item = FaultKind>) -> Self {
        self.faults = kinds.into_iter().collect();
        self
    }

    /// The same cluster with a planted defect.
    #[must_use]
    pub const fn with_sabotage(mut self, sabotage: Sabotage) -> Self {
        self.sabotage = sabotage;
        self
    }
}
