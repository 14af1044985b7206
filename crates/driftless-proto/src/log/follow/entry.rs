//! One entry into the weights.

use super::{Dirty, Done, Follow, FollowCommand, FollowStop, Goal, Place, State, Trouble, Weights, Writing};
use crate::log::chain::{Breach, Chain, Effect};
use crate::log::words::{Presence, Published, Reading, Stored};
use driftless_types::EntryKind;

/// An entry that is to be written, and the place after it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Step {
    pub(super) stored: Stored,
    pub(super) published: Published,
    pub(super) chain: Chain,
}

impl Step {
    pub(super) fn dirty(&self) -> Dirty {
        Dirty { seq: self.stored.seq(), object: self.stored.object }
    }
}

impl Follow {
    /// Where the reader stands is known: it is done, or takes the next entry.
    pub(super) fn proceed(&mut self, out: &mut Vec<FollowCommand>) {
        let Some(held) = self.serves() else { return self.go(State::ReadingNext, out) };
        if self.said.replace(held) != Some(held) {
            out.push(FollowCommand::Serve(held));
        }
        let is_done = match self.options.goal {
            Goal::AtLeast(version) => held.version >= version,
            Goal::Exactly(version) => held.version == version,
            Goal::Once | Goal::Forever => false,
        };
        if is_done {
            return self.done(held, out);
        }
        self.go(State::ReadingNext, out);
    }

    fn done(&mut self, held: Published, out: &mut Vec<FollowCommand>) {
        self.go(State::Ended, out);
        out.push(FollowCommand::Done(Done { held }));
    }

    pub(super) fn next(&mut self, reading: Reading, out: &mut Vec<FollowCommand>) {
        let seq = self.chain_seq().next();
        match reading {
            Reading::Found(stored) => self.found(stored, out),
            Reading::Absent => self.end_of_log(out),
            Reading::Failed(fault) => self.fail(Trouble::Store(fault), out),
            Reading::Invalid => self.block(Trouble::Invalid(seq), out),
        }
    }

    fn end_of_log(&mut self, out: &mut Vec<FollowCommand>) {
        match (self.options.goal, self.serves()) {
            (Goal::Once, Some(held)) => self.done(held, out),
            (Goal::Once, None) => self.stop(FollowStop::Trouble(Trouble::NoAnchor), out),
            (Goal::Exactly(wanted), Some(held)) if held.version > wanted => {
                self.stop(FollowStop::NotPublished { wanted, next: held.version }, out);
            }
            _ => self.go(State::Resting, out),
        }
    }

    fn found(&mut self, stored: Stored, out: &mut Vec<FollowCommand>) {
        let Some(place) = self.place else { return };
        let seq = stored.seq();
        if let Some(stop) = place.forked(&stored) {
            return self.stop(stop, out);
        }
        let (chain, effect) = match place.chain.take(&stored) {
            Ok(taken) => taken,
            Err(Breach::Misplaced) => return self.block(Trouble::Invalid(seq), out),
            // LG-1: it names another parent than the entry that the reader went past.
            Err(Breach::Forked { mine, found }) => {
                return self.stop(FollowStop::Forked { seq: place.chain.seq, mine, found }, out);
            }
            Err(Breach::WentBack { version, highest }) => {
                return self.stop(FollowStop::WentBack { seq, version, highest }, out);
            }
        };
        let published = effect.published();
        if let Some(stop) = published.and_then(|published| self.passed(published)) {
            return self.stop(stop, out);
        }
        match effect {
            Effect::Silent => {
                let next = place.after(chain, place.weights);
                self.go(State::Saving(Box::new(next), None), out);
            }
            Effect::Anchor(published) => self.begin(Step { stored, published, chain }, out),
            // LG-5: on exactly its base, or on what an interrupted write of this delta left of it.
            Effect::Delta(published) if place.is_base(&stored) => {
                self.begin(Step { stored, published, chain }, out);
            }
            Effect::Delta(_) | Effect::OtherLineage(_) => self.give_up(Trouble::LineageBroken(seq), out),
        }
    }

    /// The next version is above the wanted one, and what is held below it.
    fn passed(&self, next: Published) -> Option<FollowStop> {
        let Goal::Exactly(wanted) = self.options.goal else { return None };
        let is_below = self.serves().is_none_or(|held| held.version < wanted);
        let next = next.version;
        (next > wanted && is_below).then_some(FollowStop::NotPublished { wanted, next })
    }

    fn begin(&mut self, step: Step, out: &mut Vec<FollowCommand>) {
        let seq = step.stored.seq();
        if self.bad.contains(&seq) {
            return self.block(Trouble::NoAnchor, out);
        }
        self.go(State::Checking(Box::new(step)), out);
    }

    /// LG-13: nothing is changed before every blob is there.
    pub(super) fn checked(&mut self, step: Box<Step>, presence: Presence, out: &mut Vec<FollowCommand>) {
        match presence {
            Presence::All => self.go(State::Marking(step), out),
            Presence::Missing => self.wait_for(Trouble::Missing(step.stored.seq()), out),
            Presence::Failed(fault) => self.fail(Trouble::Store(fault), out),
        }
    }

    /// LG-6: the mark is durable, and the weights may be written.
    pub(super) fn marked(&mut self, step: Box<Step>, out: &mut Vec<FollowCommand>) {
        if let Some(place) = &mut self.place {
            place.weights = place.under(&step);
        }
        self.said = None;
        self.go(State::Writing(step), out);
    }

    pub(super) fn written(&mut self, step: Box<Step>, writing: Writing, out: &mut Vec<FollowCommand>) {
        let Some(place) = self.place else { return };
        let seq = step.stored.seq();
        match writing {
            Writing::Applied => {
                let next = place.after(step.chain, Weights::At(step.published));
                self.go(State::Saving(Box::new(next), Some(step.published)), out);
            }
            Writing::WrongDigest => self.give_up(Trouble::WrongDigest(seq), out),
            Writing::BadBlob => self.wait_for(Trouble::BadBlob(seq), out),
            Writing::Missing => self.wait_for(Trouble::Missing(seq), out),
            Writing::Failed(fault) => self.fail(Trouble::Store(fault), out),
        }
    }

    pub(super) fn saved(&mut self, place: Place, published: Option<Published>, out: &mut Vec<FollowCommand>) {
        self.place = Some(place);
        if published.is_some() {
            self.reported = None;
        }
        self.proceed(out);
    }

    /// Tries again what a store may still make good, and gives the entry up after the bound.
    fn wait_for(&mut self, trouble: Trouble, out: &mut Vec<FollowCommand>) {
        let (after, is_due) = self.failures.add(&self.options.patience);
        if is_due || self.failures.is_spent(&self.options.patience) {
            return self.give_up(trouble, out);
        }
        out.push(FollowCommand::ArmTimer { id: super::LogTimer::Retry, after });
    }

    /// The entry cannot be used: only an anchor after it leads on, or one before it back.
    fn give_up(&mut self, trouble: Trouble, out: &mut Vec<FollowCommand>) {
        let is_torn = matches!(self.state, State::Writing(_));
        let is_known = match trouble {
            Trouble::Missing(seq) => !self.missing.insert(seq),
            Trouble::WrongDigest(seq) | Trouble::BadBlob(seq) | Trouble::LineageBroken(seq) => {
                !self.bad.insert(seq)
            }
            _ => true,
        };
        if let Some(place) = &mut self.place
            && (is_torn || matches!(place.weights, Weights::Mixed(..)))
        {
            place.weights = Weights::Torn;
        }
        if is_known {
            return self.block(trouble, out);
        }
        self.report(trouble, out);
        self.search(out);
    }
}

impl Place {
    /// LG-7: another object at a place that the reader knows.
    fn forked(&self, stored: &Stored) -> Option<FollowStop> {
        let mut known = vec![(self.highest.seq, self.highest.object)];
        if let Weights::Mixed(_, dirty) = self.weights {
            known.push((dirty.seq, dirty.object));
        }
        let seq = stored.seq();
        let (_, mine) = known.into_iter().find(|&(place, mine)| place == seq && mine != stored.object)?;
        Some(FollowStop::Forked { seq, mine, found: stored.object })
    }

    /// LG-5
    fn is_base(&self, delta: &Stored) -> bool {
        match self.weights {
            Weights::At(held) => self.chain.last == Some(held),
            Weights::Mixed(held, dirty) => self.chain.last == Some(held) && dirty.object == delta.object,
            Weights::Torn => false,
        }
    }

    /// What the weights are while an entry is written into them.
    fn under(&self, step: &Step) -> Weights {
        match (self.weights, &step.stored.entry.kind) {
            (Weights::At(held) | Weights::Mixed(held, _), EntryKind::Delta { .. }) => {
                Weights::Mixed(held, step.dirty())
            }
            _ => Weights::Torn,
        }
    }
}
