//! From the end of the log back to an anchor, or to the reader's own place.

use super::entry::Step;
use super::{Follow, FollowCommand, FollowStop, Goal, Highest, Place, State, Trouble, Weights};
use crate::log::chain::Chain;
use crate::log::look_back::{Broken, Known, LookBack, Wanted};
use crate::log::words::{Reading, Stored};
use driftless_types::{EntryKind, Genesis, Seq};
use std::time::Duration;

impl Follow {
    pub(super) fn genesis(&mut self, reading: Reading, out: &mut Vec<FollowCommand>) {
        let stored = match reading {
            Reading::Found(stored) => stored,
            Reading::Failed(fault) => return self.fail(Trouble::Store(fault), out),
            Reading::Invalid => return self.fail(Trouble::Invalid(Seq::GENESIS), out),
            Reading::Absent if self.options.goal == Goal::Once => return self.stop(FollowStop::Empty, out),
            // Whoever founds the stream may not have yet.
            Reading::Absent => return self.go(State::Resting, out),
        };
        let EntryKind::Genesis(genesis) = &stored.entry.kind else {
            return self.stop(FollowStop::NoGenesis, out);
        };
        self.lease.every = Duration::from_secs(genesis.lease_ttl_s.max(4)) / 4;
        let Some(cursor) = self.memory.cursor else {
            self.place = Some(Place::fresh(&stored, genesis));
            return self.search(out);
        };
        // LG-7: the reader's own stream, or none.
        if cursor.chain.stream != stored.entry.stream {
            let (expected, found) = (cursor.chain.stream, stored.entry.stream);
            return self.stop(FollowStop::OtherStream { expected, found }, out);
        }
        self.place = Some(Place::restored(&cursor, self.memory.dirty));
        self.search(out);
    }

    pub(super) fn listed(&mut self, last: Option<Seq>, out: &mut Vec<FollowCommand>) {
        let Some(place) = &self.place else { return };
        let (seq, object) = (place.highest.seq, place.highest.object);
        let known = match place.weights {
            Weights::At(_) | Weights::Mixed(..) => Known::Floor(place.chain),
            Weights::Torn => Known::Passed(seq, object),
        };
        let at_most = match self.options.goal {
            Goal::Exactly(version) => Some(version),
            Goal::Once | Goal::AtLeast(_) | Goal::Forever => None,
        };
        let avoid = self.bad.union(&self.missing).copied().collect();
        let tail = last.unwrap_or(place.chain.seq).max(place.chain.seq);
        let (stream, wanted) = (place.chain.stream, Wanted::Anchor { at_most, avoid });
        let search = LookBack::from(stream, tail, wanted, known, self.options.look_back_max);
        self.go(State::LookingBack(Box::new(search)), out);
    }

    pub(super) fn looked_back(&mut self, reading: Reading, out: &mut Vec<FollowCommand>) {
        let State::LookingBack(search) = &mut self.state else { return };
        let seq = search.next().unwrap_or_default();
        let stored = match reading {
            Reading::Found(stored) => stored,
            Reading::Failed(fault) => return self.fail(Trouble::Store(fault), out),
            Reading::Absent => return self.fail(Trouble::Invisible(seq), out),
            Reading::Invalid => return self.block(Trouble::Invalid(seq), out),
        };
        match search.take(&stored) {
            Ok(()) if search.next().is_some() => {
                self.failures = super::Failures::default();
                out.append(&mut self.due());
            }
            Ok(()) => self.searched(out),
            Err(Broken::Misplaced(seq)) => self.block(Trouble::Invalid(seq), out),
            Err(Broken::Forked { seq, mine, found }) => {
                self.stop(FollowStop::Forked { seq, mine, found }, out);
            }
        }
    }

    fn searched(&mut self, out: &mut Vec<FollowCommand>) {
        let (State::LookingBack(search), Some(place)) = (&self.state, &self.place) else { return };
        // LG-1: what is not known to continue the reader's own place is not used.
        let found = search.found().filter(|_| !search.is_exhausted());
        let Some(anchor) = found else { return self.nothing_found(out) };
        let Some(published) = anchor.published() else { return };
        let is_beyond = published.seq > place.highest.seq;
        // LG-7: over entries that were not read in order a version falls only if a `reset` among them allows it.
        if let Some(highest) = place.highest.version
            && is_beyond
            && published.version <= highest
            && published.version >= search.may_fall_below()
        {
            let stop = FollowStop::WentBack { seq: published.seq, version: published.version, highest };
            return self.stop(stop, out);
        }
        let step = Step { stored: anchor.clone(), published, chain: Chain::at_anchor(anchor) };
        self.go(State::Checking(Box::new(step)), out);
    }

    /// No anchor: the reader goes on from where it is, if it is anywhere.
    fn nothing_found(&mut self, out: &mut Vec<FollowCommand>) {
        let (State::LookingBack(search), Some(place)) = (&self.state, &self.place) else { return };
        let is_stuck = place.weights == Weights::Torn || self.bad.contains(&place.chain.seq.next());
        // What was not visible may be at the next poll. Otherwise a log that only grows leads there no more.
        if let (Goal::Exactly(wanted), Some(newest)) = (self.options.goal, search.newest())
            && (is_stuck && newest.version > wanted && self.missing.is_empty())
        {
            return self.stop(FollowStop::OutOfReach { wanted, newest: newest.version }, out);
        }
        if place.weights != Weights::Torn {
            return self.proceed(out);
        }
        if !search.is_bare() || search.is_exhausted() {
            return self.block(Trouble::NoAnchor, out);
        }
        match self.options.goal {
            Goal::Once => self.stop(FollowStop::Empty, out),
            Goal::AtLeast(_) | Goal::Exactly(_) | Goal::Forever => self.go(State::Resting, out),
        }
    }

    /// It is time to look whether the log has grown.
    pub(super) fn poll_end(&mut self, out: &mut Vec<FollowCommand>) {
        match &self.place {
            Some(place) if place.weights == Weights::Torn => self.search(out),
            Some(_) => self.go(State::ReadingNext, out),
            None => self.go(State::ReadingGenesis, out),
        }
    }
}

impl Place {
    fn fresh(genesis: &Stored, said: &Genesis) -> Self {
        let chain = Chain::at_genesis(genesis);
        let highest = Highest { epoch: chain.epoch, seq: chain.seq, object: chain.object, version: None };
        Self { run: said.run, chain, weights: Weights::Torn, highest }
    }
}
