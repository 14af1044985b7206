//! What is in force at a place of the log, folded entry by entry.
//!
//! - **LG-1 (single history).** An entry names the digest of the whole object before it; what does not fit is refused.
//! - **LG-4 (fencing).** An `epoch` entry with a higher counter than any before it begins an epoch. An entry of any other
//!   epoch than the one in force keeps its place and has no effect.
//! - **LG-5 (lineage).** A delta continues the last publication, or it is of another lineage.
//! - **LG-7 (versions rise).** They fall only at an anchor directly after `epoch` and `reset`, and below its bound;
//!   a `retire` may stand in between.

use super::words::{Published, Stored};
use driftless_types::{EntryKind, Epoch, ObjectDigest, Seq, StreamId, Version};
use thiserror::Error;

/// Whether the next version may be lower than the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fall {
    /// It may not.
    Refused,
    /// An `epoch` entry came last: a `reset` may follow.
    AfterEpoch,
    /// A `reset` came last: an anchor below this version may follow.
    Below(Version),
}

/// A place in the log, and what is in force there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    /// The stream.
    pub stream: StreamId,
    /// The place.
    pub seq: Seq,
    /// The digest of the object there.
    pub object: ObjectDigest,
    /// The epoch in force.
    pub epoch: Epoch,
    /// The last publication that has effect.
    pub last: Option<Published>,
    /// Whether the next version may be lower.
    pub fall: Fall,
}

/// What an entry means for who reads it in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing is published by it.
    Silent,
    /// A complete set of weights.
    Anchor(Published),
    /// Changes to exactly the last publication.
    Delta(Published),
    /// Changes to something else.
    OtherLineage(Published),
}

impl Effect {
    /// What is published by it.
    pub(crate) const fn published(self) -> Option<Published> {
        match self {
            Self::Silent => None,
            Self::Anchor(published) | Self::Delta(published) | Self::OtherLineage(published) => {
                Some(published)
            }
        }
    }
}

/// Why an entry does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Breach {
    /// It is of another stream or place.
    #[error("it is of another stream, or of another place")]
    Misplaced,
    /// It names another parent.
    #[error("it names {found} as the entry before it, which is {mine}")]
    Forked {
        /// The object before it.
        mine: ObjectDigest,
        /// The one that it names.
        found: ObjectDigest,
    },
    /// Its version falls without leave.
    #[error("it goes back to version {version} from {highest} without a reset")]
    WentBack {
        /// Its version.
        version: Version,
        /// The last before it.
        highest: Version,
    },
}

impl Chain {
    /// The place of genesis.
    #[must_use]
    pub fn at_genesis(genesis: &Stored) -> Self {
        let entry = &genesis.entry;
        Self {
            stream: entry.stream,
            seq: entry.seq,
            object: genesis.object,
            epoch: entry.fence(),
            last: None,
            fall: Fall::Refused,
        }
    }

    /// The place of an anchor that is known to have effect.
    pub(crate) fn at_anchor(anchor: &Stored) -> Self {
        Self { last: anchor.published(), ..Self::at_genesis(anchor) }
    }

    /// The place after one more entry, and what that entry means.
    ///
    /// # Errors
    /// A [`Breach`], if the entry is not the next one of this chain.
    pub fn take(&self, next: &Stored) -> Result<(Self, Effect), Breach> {
        let entry = next.entry.as_ref();
        if entry.stream != self.stream || entry.seq != self.seq.next() {
            return Err(Breach::Misplaced);
        }
        // LG-1
        if entry.parent != self.object {
            return Err(Breach::Forked { mine: self.object, found: entry.parent });
        }
        let mut after = Self { seq: entry.seq, object: next.object, ..*self };
        if entry.kind == EntryKind::Epoch && entry.epoch > self.epoch.counter {
            after.epoch = entry.fence();
            after.fall = Fall::AfterEpoch;
            return Ok((after, Effect::Silent));
        }
        if entry.fence() != self.epoch {
            return Ok((after, Effect::Silent)); // LG-4: it keeps its place and has no effect
        }
        let effect = after.follow(next)?;
        Ok((after, effect))
    }

    fn follow(&mut self, next: &Stored) -> Result<Effect, Breach> {
        if let EntryKind::Reset { version_below } = next.entry.kind
            && self.fall == Fall::AfterEpoch
        {
            self.fall = Fall::Below(version_below);
        }
        let Some(published) = next.published() else { return Ok(Effect::Silent) };
        let effect = match next.entry.kind {
            // LG-5
            EntryKind::Delta { base_version, .. } if !self.is_continued(base_version, published.version) => {
                Effect::OtherLineage(published)
            }
            EntryKind::Delta { .. } => Effect::Delta(published),
            _ => {
                self.allow(published.version)?;
                Effect::Anchor(published)
            }
        };
        self.last = Some(published);
        self.fall = Fall::Refused;
        Ok(effect)
    }

    fn is_continued(&self, base: Version, version: Version) -> bool {
        let is_fresh = matches!(self.fall, Fall::Below(_));
        !is_fresh && version > base && self.last.is_some_and(|last| last.version == base)
    }

    fn allow(&self, version: Version) -> Result<(), Breach> {
        let Some(last) = self.last else { return Ok(()) };
        let may_fall = matches!(self.fall, Fall::Below(below) if version < below);
        // LG-7
        if version > last.version || may_fall {
            return Ok(());
        }
        Err(Breach::WentBack { version, highest: last.version })
    }
}
