//! From the end of a log back to the last publication that has effect, entry by entry along their parents.
//!
//! - **LG-1 (single history).** Each entry is of the stream that genesis begins and the one that the entry after it names
//!   as its parent, and at the reader's own place it is the one that the reader knows.
//! - **LG-4 (fencing).** A publication counts once the `epoch` entry, or the genesis, of its epoch is met behind it with
//!   no higher one in between: what an older epoch wrote later has no effect.
//!
//! Only what may still count is kept, never the way.

use super::chain::{Chain, Fall};
use super::words::{Published, Stored};
use driftless_types::{EntryKind, Epoch, KeyId, ObjectDigest, Seq, StreamId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// The last publication of any kind.
    Publication,
    /// The last anchor.
    Anchor {
        /// Of no higher version.
        at_most: Option<Version>,
        /// And none of these.
        avoid: BTreeSet<Seq>,
    },
}

impl Wanted {
    fn is(&self, stored: &Stored) -> bool {
        match (self, &stored.entry.kind) {
            (Self::Publication, kind) => kind.publication().is_some(),
            (Self::Anchor { at_most, avoid }, EntryKind::Anchor(publication)) => {
                at_most.is_none_or(|most| publication.version <= most) && !avoid.contains(&stored.seq())
            }
            (Self::Anchor { .. }, _) => false,
        }
    }
}

/// What a reader knows of the log already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Known {
    /// Nothing.
    Nothing,
    /// What was in force at this place; the search ends there.
    Floor(Chain),
    /// The object at this place; the search may go on behind it.
    Passed(Seq, ObjectDigest),
}

/// Why the search cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// The entry is of another place or stream, or the log's first is no genesis.
    Misplaced(Seq),
    /// The entry is not the one that the reader knows, or that the next entry names.
    Forked { seq: Seq, mine: ObjectDigest, found: ObjectDigest },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LookBack {
    stream: StreamId,
    wanted: Wanted,
    known: Known,
    left: u64,
    /// It ended where it was to end, not by the bound.
    is_whole: bool,
    /// Nothing is published by what was read.
    is_bare: bool,
    next: Option<Seq>,
    parent: Option<ObjectDigest>,
    tail: Option<(Seq, ObjectDigest)>,
    highest_counter: u64,
    /// The highest epoch that an `epoch` entry or genesis begins.
    epoch: Option<Epoch>,
    /// By epochs whose beginning is not met yet: the last that is wanted, the last bound, the last leave to fall.
    candidates: BTreeMap<Epoch, Stored>,
    bounds: BTreeMap<Epoch, Seq>,
    resets: BTreeMap<Epoch, (Seq, Version)>,
    /// Epochs whose beginning is not met yet, and that have published.
    published: BTreeSet<Epoch>,
    /// Whether the version after the end may be lower.
    fall: Fall,
    found: Option<Stored>,
    /// The last publication of any kind, as far as what was read tells.
    newest: Option<Published>,
    /// Blobs of entries before this place may be gone.
    keep_from: Seq,
    may_fall_below: Version,
}

impl LookBack {
    /// Begins at the end of the log; at most `most` entries are read.
    pub(crate) fn from(stream: StreamId, tail: Seq, wanted: Wanted, known: Known, most: u64) -> Self {
        let may_fall_below = match known {
            Known::Floor(Chain { fall: Fall::Below(below), .. }) => below,
            _ => Version(0),
        };
        Self {
            stream,
            wanted,
            known,
            left: most,
            is_whole: false,
            is_bare: true,
            next: Some(tail),
            parent: None,
            tail: None,
            highest_counter: 0,
            epoch: None,
            candidates: BTreeMap::new(),
            bounds: BTreeMap::new(),
            resets: BTreeMap::new(),
            published: BTreeSet::new(),
            fall: Fall::Refused,
            found: None,
            newest: None,
            keep_from: Seq::GENESIS,
            may_fall_below,
        }
    }

    /// Goes on behind what was found; at most `most` entries are read.
    pub(crate) fn behind(self, found: &Stored, most: u64) -> Self {
        let next = Seq(found.seq().0.saturating_sub(1));
        let fresh = Self::from(self.stream, next, self.wanted, self.known, most);
        Self {
            parent: Some(found.entry.parent),
            tail: self.tail,
            highest_counter: self.highest_counter,
            epoch: self.epoch,
            fall: self.fall,
            newest: self.newest,
            keep_from: self.keep_from,
            ..fresh
        }
    }

    /// The place to read next; `None` at the end.
    pub(crate) const fn next(&self) -> Option<Seq> {
        self.next
    }

    /// Whether the bound came before the end.
    pub(crate) const fn is_exhausted(&self) -> bool {
        self.next.is_none() && !self.is_whole
    }

    /// Whether nothing is published by any entry that was read.
    pub(crate) const fn is_bare(&self) -> bool {
        self.is_bare
    }

    /// What is wanted and has effect.
    pub(crate) const fn found(&self) -> Option<&Stored> {
        self.found.as_ref()
    }

    /// The last publication that has effect, whether it is wanted or not.
    pub(crate) const fn newest(&self) -> Option<Published> {
        self.newest
    }

    /// What is in force at the end of the log, with what was found as the last publication.
    pub(crate) fn tail(&self) -> Option<Chain> {
        let (stream, (seq, object)) = (self.stream, self.tail?);
        let last = self.found().and_then(Stored::published);
        Some(Chain { stream, seq, object, epoch: self.epoch?, last, fall: self.fall })
    }

    /// LG-14: the key that signed the end of the log, if this is its end and who reads it signs nothing.
    pub(crate) const fn locked_by(&self, end: &Stored, own: Option<KeyId>) -> Option<KeyId> {
        match (self.tail, own) {
            (None, None) => end.signer,
            _ => None,
        }
    }

    /// The highest counter of any entry that was read.
    pub(crate) const fn highest_counter(&self) -> u64 {
        self.highest_counter
    }

    /// Between the reader's place and what was found, versions may have fallen if they are below this one.
    pub(crate) const fn may_fall_below(&self) -> Version {
        self.may_fall_below
    }

    /// Takes the entry at the next place.
    pub(crate) fn take(&mut self, stored: &Stored) -> Result<(), Broken> {
        let seq = stored.seq();
        // LG-1: of the stream that genesis begins, whoever signed it.
        if self.next != Some(seq) || self.stream != stored.entry.stream {
            return Err(Broken::Misplaced(seq));
        }
        same(seq, self.parent.unwrap_or(stored.object), stored.object)?;
        self.tail.get_or_insert((seq, stored.object));
        self.left = self.left.saturating_sub(1);
        if let Known::Floor(chain) = self.known
            && chain.seq == seq
        {
            same(seq, chain.object, stored.object)?;
            if chain.fall != Fall::AfterEpoch {
                self.resets.remove(&chain.epoch);
            }
            self.announce(chain.epoch);
            (self.next, self.is_whole) = (None, true);
            return Ok(());
        }
        if let Known::Passed(place, mine) = self.known
            && place == seq
        {
            same(seq, mine, stored.object)?;
        }
        self.note(stored);
        self.step(stored)
    }

    fn note(&mut self, stored: &Stored) {
        let (entry, fence) = (&stored.entry, stored.entry.fence());
        self.highest_counter = self.highest_counter.max(entry.epoch);
        self.newest = self.newest.or_else(|| stored.published());
        if self.wanted.is(stored) {
            self.candidates.entry(fence).or_insert_with(|| stored.clone());
        }
        match &entry.kind {
            EntryKind::Retire { keep_from, .. } => {
                self.bounds.entry(fence).or_insert(*keep_from);
            }
            EntryKind::Reset { version_below } => {
                self.resets.insert(fence, (entry.seq, *version_below));
            }
            EntryKind::Epoch => {
                self.note_fall(fence);
                self.announce(fence);
            }
            EntryKind::Genesis(_) => self.announce(fence),
            // A `reset` gives leave only directly after its `epoch` entry.
            EntryKind::Anchor(_) | EntryKind::Delta { .. } => {
                self.resets.remove(&fence);
                self.published.insert(fence);
                self.is_bare = false;
            }
        }
    }

    fn step(&mut self, stored: &Stored) -> Result<(), Broken> {
        let seq = stored.seq();
        let is_genesis = matches!(stored.entry.kind, EntryKind::Genesis(_));
        if is_genesis != (seq == Seq::GENESIS) {
            return Err(Broken::Misplaced(seq));
        }
        let is_checked = match self.known {
            Known::Nothing => true,
            Known::Floor(_) => false,
            Known::Passed(place, _) => seq <= place,
        };
        self.is_whole = is_genesis || is_checked && self.found.is_some();
        self.next = if self.is_whole || self.left == 0 { None } else { seq.0.checked_sub(1).map(Seq) };
        self.parent = Some(stored.entry.parent);
        Ok(())
    }

    /// If this is the epoch in force at the end: what it allows there.
    fn note_fall(&mut self, epoch: Epoch) {
        if self.epoch.is_some_and(|other| other >= epoch) {
            return;
        }
        self.fall = match self.resets.get(&epoch) {
            _ if self.published.contains(&epoch) => Fall::Refused,
            Some(&(_, below)) => Fall::Below(below),
            None => Fall::AfterEpoch,
        };
    }

    /// LG-4: an epoch begins here, and what is of an older one has no effect behind it in the log.
    fn announce(&mut self, epoch: Epoch) {
        self.epoch = self.epoch.max(Some(epoch));
        self.newest = self.newest.filter(|newest| newest.epoch >= epoch);
        let found = take_of(&mut self.candidates, epoch);
        if let Some(bound) = take_of(&mut self.bounds, epoch) {
            self.keep_from = self.keep_from.max(bound);
        }
        let reset = take_of(&mut self.resets, epoch);
        self.published = self.published.split_off(&epoch);
        self.published.remove(&epoch);
        if self.found.is_none() {
            self.found = found.filter(|found| found.seq() >= self.keep_from);
        }
        if let Some((seq, below)) = reset
            && self.found.as_ref().is_some_and(|found| seq < found.seq())
        {
            self.may_fall_below = self.may_fall_below.max(below);
        }
    }
}

/// Takes what is of this epoch and forgets what is of older ones.
fn take_of<T>(of: &mut BTreeMap<Epoch, T>, epoch: Epoch) -> Option<T> {
    let newer = of.split_off(&epoch);
    *of = newer;
    of.remove(&epoch)
}

fn same(seq: Seq, mine: ObjectDigest, found: ObjectDigest) -> Result<(), Broken> {
    if mine == found { Ok(()) } else { Err(Broken::Forked { seq, mine, found }) }
}
