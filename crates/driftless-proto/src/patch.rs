//! Which bases a sender's patch is right for, and what the next patch must be read over.
//!
//! - **CM-6 (conservation).** A patch (since, version] holds the bits at `version` of every element that may have
//!   changed after `since`. Written absolutely it is right for *any* base from `since` on; an older or unknown base
//!   gets *all*. What a replica is not known to have committed stays pending, and the next patch is read over it.
//!
//! The next patch must not be made before the last version has ended on every replica, or was given up: a patch that
//! presumes a commit leaves out the elements of a version that was rolled back.

use crate::ReplicaOutcome;
use driftless_types::{ReplicaId, Version};
use std::collections::BTreeMap;

/// The versions that a patch spans; a later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PatchRange {
    /// The version of its bits.
    pub version: Version,
    /// The oldest base for which it is right.
    pub since: Version,
}

impl PatchRange {
    /// What a replica gets that serves `base`.
    #[must_use]
    pub fn offer(&self, base: Version) -> Offer {
        if (self.since..=self.version).contains(&base) { Offer::Patch } else { Offer::All }
    }
}

/// What becomes of the positions of the last patch when the next one is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pending {
    /// Every replica holds their bits, or is too far behind to use them.
    Dropped,
    /// Some replica may lack them: the next patch is read over them too.
    Kept,
}

/// What a replica is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offer {
    /// The patch.
    Patch,
    /// Every element.
    All,
}

/// What one sender knows of its patch and of the replicas that need it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PatchBook {
    max_lag_versions: u64,
    patch: PatchRange,
    /// How many versions the patch spans; their numbers may have gaps.
    spans: u64,
    /// The version that each replica is known to serve.
    served: BTreeMap<ReplicaId, Version>,
}

impl PatchBook {
    /// The book of a sender whose replicas all serve `base`. A replica that is more than `max_lag_versions` versions
    /// behind gets *all*.
    #[must_use]
    pub fn new(replicas: impl IntoIterator<Item = ReplicaId>, base: Version, max_lag_versions: u64) -> Self {
        let served = replicas.into_iter().map(|replica| (replica, base)).collect();
        Self { max_lag_versions, patch: PatchRange { since: base, version: base }, spans: 0, served }
    }

    /// The newest patch.
    #[must_use]
    pub const fn patch(&self) -> PatchRange {
        self.patch
    }

    /// A version has ended for a replica.
    pub fn ended(&mut self, replica: ReplicaId, version: Version, outcome: &ReplicaOutcome) {
        let serves = match outcome {
            ReplicaOutcome::Committed => version,
            ReplicaOutcome::Lagging { at, .. } => *at,
        };
        self.served.insert(replica, serves);
    }

    /// What every replica that is there serves, as far as it is known: whoever left is forgotten.
    pub fn serve(&mut self, served: BTreeMap<ReplicaId, Version>) {
        self.served = served;
    }

    /// The next patch is made: its range, and whether it is read over the positions of the last one too. Versions
    /// may have gaps, but do not fall.
    #[must_use]
    pub fn step(&mut self, version: Version) -> (PatchRange, Pending) {
        let PatchRange { since, version: last } = self.patch;
        let is_reached = self.spans < self.max_lag_versions;
        // CM-6: a base before `since` gets all, and needs nothing that is pending.
        let needs_pending = self.served.values().any(|&served| since <= served && served < last);
        let pending = if is_reached && needs_pending { Pending::Kept } else { Pending::Dropped };
        let (since, spans) = if pending == Pending::Kept { (since, self.spans) } else { (last, 0) };
        self.spans = spans + 1;
        self.patch = PatchRange { since, version };
        (self.patch, pending)
    }

    /// The positions of the patch were lost, or are more than may be kept: whoever is behind gets *all*.
    pub const fn forget(&mut self) {
        self.patch.since = self.patch.version;
    }

    /// What a replica gets that serves `base`. One that is there already is sent the patch again: it changes nothing
    /// (CM-10).
    #[must_use]
    pub fn offer(&self, base: Version) -> Offer {
        self.patch.offer(base)
    }
}
