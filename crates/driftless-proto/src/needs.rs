//! What a replica needs from the senders, and how it takes it.

use driftless_types::{ReceiverId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// How the receivers of a replica take an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Intake {
    /// Changes are staged beside the live weights, and written while the engine stands still for a moment.
    #[default]
    Staged,
    /// Everything is written window by window into the live weights, while the engine is out of service.
    InPlace,
}

/// Whether a receiver's live weights are a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weights {
    /// They are the bits of one version, or an undo log leads back to it.
    #[default]
    Whole,
    /// They are of no version: a joiner's that is blank, or what an attempt in place left half written.
    Torn,
}

/// What a replica needs from the senders, as its lead reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Needs {
    /// The version that the replica serves, or served last.
    pub base: Version,
    /// Tensors whose digest did not match: their fragments are sent whole.
    pub repair: BTreeMap<ReceiverId, BTreeSet<u32>>,
    /// Whether changes are of use to it.
    pub intake: Intake,
}

impl Needs {
    /// The same, given that patches lead from `since` on: an older base takes everything, and in place.
    #[must_use]
    pub fn given(&self, since: Version) -> Self {
        let intake = if self.base < since { Intake::InPlace } else { self.intake };
        Self { intake, ..self.clone() }
    }
}
