//! A reader of a stream: it goes through the log in order, and its weights are always of one entry of it.
//!
//! - **LG-5 (lineage).** A delta is written only on exactly its base; otherwise the reader looks for an anchor.
//! - **LG-6 (atomicity).** That the weights are being written, and for which entry, is durable before the first write;
//!   then they are written, synced and compared with the entry's digests; then the cursor is. A reader that starts in
//!   between writes that entry again, or an anchor.
//! - **LG-7 (ratchet).** The highest place that it acted on is durable, and it refuses less: another object at a place
//!   where it was is a fork, a version falls only after `epoch` and `reset`. While it comes back from an older anchor
//!   it serves nothing.
//! - **LG-8 (retention).** Its lease is written before it reads the bound, and renewed four times per `lease_ttl`.
//! - **LG-10 (no clock is compared).** It knows only timers of its own.
//! - **LG-11 (replay).** What it serves at an entry is the same whichever anchor it came from.
//! - **LG-13 (checked first).** Before it changes anything, parents, epoch and lineage are checked and every blob is
//!   there. A blob that is not visible yet is waited for within a bound, then reported, and never skipped.
//!
//! At the start and when it cannot go on it looks back from the end of the log for an anchor; otherwise it takes the
//! next entry.

mod entry;
mod search;
mod words;

pub use words::{
    Cursor, Dirty, Done, FollowCommand, FollowEvent, FollowOptions, FollowStop, Goal, Highest, Leasing,
    Memory, Trouble, Writing,
};

use super::chain::Chain;
use super::look_back::LookBack;
use super::words::{Failures, Lease, LogTimer, Published};
use driftless_types::{RunId, Seq};
use entry::Step;
use std::collections::BTreeSet;
use std::time::Duration;

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Follow {
    options: FollowOptions,
    memory: Memory,
    place: Option<Place>,
    lease: Renewal,
    failures: Failures,
    /// Entries that were found damaged: they are not tried again in this life.
    bad: BTreeSet<Seq>,
    /// Entries whose blobs were not there: they are tried again at the next poll.
    missing: BTreeSet<Seq>,
    reported: Option<Trouble>,
    /// What it said that it serves; nothing once it writes again.
    said: Option<Published>,
    state: State,
}

/// Where the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    run: RunId,
    chain: Chain,
    weights: Weights,
    highest: Highest,
}

/// What the weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Weights {
    /// Of no version.
    Torn,
    At(Published),
    /// Partly of the base and partly of the delta that follows it: that delta may be written again.
    Mixed(Published, Dirty),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Renewal {
    counter: u64,
    every: Duration,
    is_putting: bool,
    /// The one that is being put says too little: another follows.
    is_due: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    ReadingGenesis,
    /// The lease is written before the bound is read.
    Leasing,
    Listing,
    LookingBack(Box<LookBack>),
    ReadingNext,
    Checking(Box<Step>),
    Marking(Box<Step>),
    Writing(Box<Step>),
    Saving(Box<Place>, Option<Published>),
    /// Until it polls.
    Resting,
    /// Nothing can be done with what is in the log until it polls.
    Blocked,
    Ended,
}

impl Follow {
    /// A reader that begins by reading genesis.
    #[must_use]
    pub fn new(options: FollowOptions, memory: Memory) -> (Self, Vec<FollowCommand>) {
        let lease = Renewal {
            counter: options.lease_counter,
            every: Duration::ZERO,
            is_putting: false,
            is_due: false,
        };
        let machine = Self {
            options,
            memory,
            place: None,
            lease,
            failures: Failures::default(),
            bad: BTreeSet::new(),
            missing: BTreeSet::new(),
            reported: None,
            said: None,
            state: State::ReadingGenesis,
        };
        let commands = machine.due();
        (machine, commands)
    }

    /// What the weights are, if they are of a version that may be served.
    #[must_use]
    pub fn serves(&self) -> Option<Published> {
        let place = self.place.as_ref()?;
        match place.weights {
            Weights::At(held) if place.chain.seq >= place.highest.seq => Some(held),
            _ => None,
        }
    }

    /// Takes one event; one that the state does not wait for changes nothing.
    pub fn handle(&mut self, event: FollowEvent) -> Vec<FollowCommand> {
        let mut out = Vec::new();
        match (&self.state, event) {
            (State::Ended, _) => {}
            (_, FollowEvent::LeasePut | FollowEvent::LeaseFailed(_)) => self.lease_answered(&mut out),
            (_, FollowEvent::TimerFired(LogTimer::Lease)) => self.renew(&mut out),
            (State::Resting, FollowEvent::TimerFired(LogTimer::Poll)) => self.poll_end(&mut out),
            (State::Blocked, FollowEvent::TimerFired(LogTimer::Poll)) => {
                self.missing.clear();
                self.search(&mut out);
            }
            (_, FollowEvent::TimerFired(LogTimer::Retry)) if self.failures.resume() => {
                out.append(&mut self.due());
            }
            (State::ReadingGenesis, FollowEvent::Read(reading)) => self.genesis(reading, &mut out),
            (State::Listing, FollowEvent::Listed(last)) => self.listed(last, &mut out),
            (State::Listing, FollowEvent::ListFailed(fault)) => self.fail(Trouble::Store(fault), &mut out),
            (State::LookingBack(_), FollowEvent::Read(reading)) => self.looked_back(reading, &mut out),
            (State::ReadingNext, FollowEvent::Read(reading)) => self.next(reading, &mut out),
            (State::Checking(step), FollowEvent::Blobs(presence)) => {
                let step = step.clone();
                self.checked(step, presence, &mut out);
            }
            (State::Marking(step), FollowEvent::Persisted) => {
                let step = step.clone();
                self.marked(step, &mut out);
            }
            (State::Writing(step), FollowEvent::Written(writing)) => {
                let step = step.clone();
                self.written(step, writing, &mut out);
            }
            (State::Saving(place, published), FollowEvent::Persisted) => {
                let (place, published) = (**place, *published);
                self.saved(place, published, &mut out);
            }
            (State::Marking(_) | State::Saving(..), FollowEvent::PersistFailed(fault)) => {
                self.fail(Trouble::Disk(fault), &mut out);
            }
            _ => {}
        }
        out
    }

    /// What the state waits for, as commands: said once, and again after a failure.
    fn due(&self) -> Vec<FollowCommand> {
        let command = match &self.state {
            State::ReadingGenesis => FollowCommand::Read(Seq::GENESIS),
            State::Listing => FollowCommand::List { after: self.chain_seq() },
            State::LookingBack(search) => FollowCommand::Read(search.next().unwrap_or_default()),
            State::ReadingNext => FollowCommand::Read(self.chain_seq().next()),
            State::Checking(step) => FollowCommand::CheckBlobs(step.stored.clone()),
            State::Marking(step) => FollowCommand::PersistDirty(step.dirty()),
            State::Writing(step) => FollowCommand::Apply(step.stored.clone()),
            State::Saving(place, _) => FollowCommand::PersistCursor(Box::new(place.cursor())),
            State::Resting | State::Blocked => {
                FollowCommand::ArmTimer { id: LogTimer::Poll, after: self.options.poll_after }
            }
            State::Leasing | State::Ended => return Vec::new(),
        };
        vec![command]
    }

    fn go(&mut self, state: State, out: &mut Vec<FollowCommand>) {
        self.state = state;
        self.failures = Failures::default();
        out.append(&mut self.due());
    }

    fn chain_seq(&self) -> Seq {
        self.place.as_ref().map_or(Seq::GENESIS, |place| place.chain.seq)
    }

    // How it ends, and how it does not get on.

    fn stop(&mut self, stop: FollowStop, out: &mut Vec<FollowCommand>) {
        self.go(State::Ended, out);
        out.push(FollowCommand::Stopped(stop));
    }

    /// Something failed and is tried again.
    fn fail(&mut self, trouble: Trouble, out: &mut Vec<FollowCommand>) {
        let (after, is_due) = self.failures.add(&self.options.patience);
        if is_due && self.options.goal == Goal::Once {
            return self.stop(FollowStop::Trouble(trouble), out);
        }
        out.push(FollowCommand::ArmTimer { id: LogTimer::Retry, after });
        if is_due {
            self.report(trouble, out);
        }
    }

    /// Nothing can be done with what is in the log.
    fn block(&mut self, trouble: Trouble, out: &mut Vec<FollowCommand>) {
        if self.options.goal == Goal::Once {
            return self.stop(FollowStop::Trouble(trouble), out);
        }
        self.report(trouble, out);
        self.go(State::Blocked, out);
    }

    fn report(&mut self, trouble: Trouble, out: &mut Vec<FollowCommand>) {
        if self.reported.replace(trouble) != Some(trouble) {
            out.push(FollowCommand::Report(trouble));
        }
    }

    // The lease.

    /// LG-8: puts the lease; what follows waits for it.
    fn search(&mut self, out: &mut Vec<FollowCommand>) {
        match self.options.leasing {
            Leasing::None => self.go(State::Listing, out),
            Leasing::Kept => {
                self.go(State::Leasing, out);
                self.renew(out);
            }
        }
    }

    fn renew(&mut self, out: &mut Vec<FollowCommand>) {
        if self.lease.is_putting {
            self.lease.is_due = matches!(self.state, State::Leasing);
            return;
        }
        self.lease.counter = self.lease.counter.wrapping_add(1);
        self.lease.is_putting = true;
        let lease = Lease { counter: self.lease.counter, pinned: self.pinned() };
        out.push(FollowCommand::PutLease(lease));
    }

    fn lease_answered(&mut self, out: &mut Vec<FollowCommand>) {
        self.lease.is_putting = false;
        if std::mem::take(&mut self.lease.is_due) {
            return self.renew(out);
        }
        // A lease that could not be put costs an anchor at worst: LG-13 finds what is gone.
        out.push(FollowCommand::ArmTimer { id: LogTimer::Lease, after: self.lease.every });
        if matches!(self.state, State::Leasing) {
            self.go(State::Listing, out);
        }
    }

    /// The lowest place whose blobs may be needed.
    fn pinned(&self) -> Seq {
        match &self.place {
            Some(Place { weights: Weights::At(_) | Weights::Mixed(..), chain, .. }) => chain.seq,
            _ => Seq::GENESIS,
        }
    }
}

impl Place {
    const fn cursor(&self) -> Cursor {
        let held = match self.weights {
            Weights::At(held) | Weights::Mixed(held, _) => Some(held),
            Weights::Torn => None,
        };
        Cursor { run: self.run, chain: self.chain, held, highest: self.highest }
    }

    /// LG-6: weights under a dirty mark are of the cursor's version only as far as the entry after it was not written.
    fn restored(cursor: &Cursor, dirty: Option<Dirty>) -> Self {
        let weights = match (cursor.held, dirty) {
            (Some(held), None) => Weights::At(held),
            (Some(held), Some(dirty)) if dirty.seq == cursor.chain.seq.next() => Weights::Mixed(held, dirty),
            _ => Weights::Torn,
        };
        Self { run: cursor.run, chain: cursor.chain, weights, highest: cursor.highest }
    }

    /// The place after an entry; LG-7: the highest only grows.
    fn after(&self, chain: Chain, weights: Weights) -> Self {
        let mut next = Self { chain, weights, ..*self };
        if chain.seq >= self.highest.seq {
            let version = chain.last.map(|last| last.version);
            next.highest = Highest { epoch: chain.epoch, seq: chain.seq, object: chain.object, version };
        }
        next
    }
}
