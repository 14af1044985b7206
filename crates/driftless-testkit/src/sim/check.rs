//! The promises that are checked at every event of a simulation.
//!
//! - **CM-1** While an engine serves, its receivers hold one committed version, whole and without an undo log.
//! - **CM-2** The bits of a version are the same in every replica: each part is the sender's at that version.
//! - **CM-3** Within a replica no attempt is sealed here and taken back there; after a rollback the old bits live.
//! - **CM-4** Nothing is sealed before every receiver of the replica has applied it.
//! - **CM-5** A word of an older lead or of an older coordinator changes nothing.
//! - **CM-6** What a sender sends covers all that changed since the receiver's base.
//! - **CM-10** A repeated decision changes nothing.
//! - **CM-11** No lead is at work on one attempt, and no engine paused, for longer than its deadlines add up to.
//! - **CM-12** After the last fault every replica reaches the last version, and every sender hears of it.
//! - **CM-14** No engine serves weights of no version.
//! - **EX-4** Both ends of a pair post the same sizes; and no machine ever calls an event a violation.

use super::binding::{Binding, Content};
use driftless_proto::{Engine, Weights};
use driftless_types::{Epoch, Fence, ReceiverId, ReplicaId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Its id, such as `CM-1`.
    pub invariant: &'static str,
    /// What was found.
    pub found: String,
}

impl Breach {
    pub(super) const fn new(invariant: &'static str, found: String) -> Self {
        Self { invariant, found }
    }
}

/// What happened to each attempt so far, seen from outside the machines.
#[derive(Debug, Default)]
pub(super) struct Checks {
    applied: BTreeMap<Fence, BTreeSet<ReceiverId>>,
    sealed: BTreeMap<Fence, BTreeSet<ReceiverId>>,
    undone: BTreeMap<Fence, BTreeSet<ReceiverId>>,
    /// The content of each receiver at its last seal.
    committed: BTreeMap<ReceiverId, Content>,
}

impl Checks {
    pub(super) fn applied(&mut self, fence: Fence, receiver: ReceiverId) {
        self.applied.entry(fence).or_default().insert(receiver);
    }

    pub(super) fn sealing(
        &self,
        fence: &Fence,
        receiver: ReceiverId,
        members: &BTreeSet<ReceiverId>,
    ) -> Result<(), Breach> {
        let applied = self.applied.get(fence).cloned().unwrap_or_default();
        if applied != *members {
            let found =
                format!("{receiver} seals {fence}, applied by {} of {}", applied.len(), members.len());
            return Err(Breach::new("CM-4", found));
        }
        if let Some(undone) = self.undone.get(fence) {
            return Err(Breach::new("CM-3", format!("{receiver} seals {fence}, taken back by {undone:?}")));
        }
        if self.sealed.get(fence).is_some_and(|sealed| sealed.contains(&receiver)) {
            return Err(Breach::new("CM-10", format!("{receiver} seals {fence} a second time")));
        }
        Ok(())
    }

    pub(super) fn sealed(
        &mut self,
        fence: Fence,
        receiver: ReceiverId,
        before: Version,
        binding: &Binding,
    ) -> Result<(), Breach> {
        if fence.version < before {
            return Err(Breach::new("CM-5", format!("{receiver} falls from {before} to {}", fence.version)));
        }
        self.sealed.entry(fence).or_default().insert(receiver);
        self.committed.insert(receiver, binding.content.clone());
        Ok(())
    }

    /// An attempt was taken back here, or never written.
    pub(super) fn rolled_back(
        &mut self,
        fence: Fence,
        receiver: ReceiverId,
        binding: &Binding,
    ) -> Result<(), Breach> {
        if let Some(sealed) = self.sealed.get(&fence) {
            return Err(Breach::new("CM-3", format!("{receiver} takes {fence} back, sealed by {sealed:?}")));
        }
        self.undone.entry(fence).or_default().insert(receiver);
        let old = self.committed.get(&receiver);
        let is_old = old.map_or_else(
            || binding.content.values().all(|&part| part == Version(0)),
            |old| *old == binding.content,
        );
        if !is_old || binding.writing.is_some() || binding.undo.is_some() {
            return Err(Breach::new("CM-3", format!("{receiver} rolled {fence} back and holds {binding:?}")));
        }
        Ok(())
    }

    /// An attempt in place was given up here.
    pub(super) fn torn(&mut self, fence: Fence, receiver: ReceiverId) -> Result<(), Breach> {
        if let Some(sealed) = self.sealed.get(&fence) {
            return Err(Breach::new("CM-3", format!("{receiver} gives {fence} up, sealed by {sealed:?}")));
        }
        self.undone.entry(fence).or_default().insert(receiver);
        Ok(())
    }

    /// CM-1 and CM-2 of one replica.
    pub(super) fn serving<'a>(
        replica: ReplicaId,
        engine: Engine,
        bindings: impl Iterator<Item = &'a Binding>,
    ) -> Result<(), Breach> {
        if engine == Engine::Paused {
            return Ok(());
        }
        let mut first = None;
        for binding in bindings {
            let version = *first.get_or_insert(binding.version);
            if binding.weights == Weights::Torn {
                return Err(Breach::new("CM-14", format!("replica {replica} serves {binding:?}")));
            }
            let is_whole = binding.writing.is_none() && binding.undo.is_none();
            if !is_whole || binding.version != version {
                let found = format!("replica {replica} serves {version} beside {binding:?}");
                return Err(Breach::new("CM-1", found));
            }
            if binding.content.values().any(|&part| part != version) {
                let found = format!("replica {replica} at {version} holds {:?}", binding.content);
                return Err(Breach::new("CM-2", found));
            }
        }
        Ok(())
    }
}

/// CM-5: an event of an older authority must leave the machine as it was.
pub(super) fn ignored<M: PartialEq, C>(who: String, before: &M, after: &M, out: &[C]) -> Result<(), Breach> {
    if before == after && out.is_empty() {
        return Ok(());
    }
    Err(Breach::new("CM-5", who))
}

/// The highest authority that a life has heard of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promised {
    pub(super) epoch: Epoch,
    pub(super) incarnation: u64,
}
