//! The collector of a stream: it names the two anchors that are kept, and deletes what nothing needs any more.
//!
//! - **LG-8 (retention).** The anchors that are kept are read again and verified first. Then a `retire` entry names
//!   them; then all leases are read, `lease_ttl` is waited for on the own clock, and they are read again. A lease that
//!   moved, or that is new, pins every blob from its place on. A reader writes its lease before it reads the bound, so
//!   either it sees the `retire`, or its lease is seen.
//! - **LG-9 (orphans).** A blob is deleted only if no entry that is kept names it *and* its key's epoch is older than
//!   the one in force: what the owner is writing right now is named by no entry yet.
//! - **LG-10 (no clock is compared).** A lease says only that it moved.
//! - **LG-14 (signed to the end).** Who signs nothing appends nothing to a log whose newest entry is signed.
//! - **LG-12 (append).** See [`Append`]: the entry goes after whatever the owner of the epoch writes meanwhile.

mod words;

pub use words::{BlobKey, RetireCommand, RetireEvent, RetireMode, RetireOptions, RetireStop};

use super::append::{Append, AppendCommand, AppendEvent};
use super::look_back::{Known, LookBack, Wanted};
use super::words::{Failures, Fault, Lease, LogTimer, Reading, Stored};
use driftless_types::{AnchorRef, Entry, EntryKind, Epoch, ObjectDigest, Seq, StreamId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Retire {
    options: RetireOptions,
    failures: Failures,
    facts: Facts,
    state: State,
}

/// What is known of the log so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Facts {
    genesis: Option<Stored>,
    /// Verified, the newest first.
    kept: Vec<Stored>,
    epoch: Epoch,
    tail: (Seq, ObjectDigest),
    /// Blobs of entries before this place may go.
    bound: Seq,
    /// Blobs that entries which are kept name.
    named: BTreeSet<BlobKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    ReadingGenesis,
    Listing(StreamId),
    LookingBack(Box<LookBack>),
    Verifying(Box<LookBack>, Stored),
    Appending(Append),
    ReadingLeases,
    Waiting(BTreeMap<String, Lease>),
    ReadingLeasesAgain(BTreeMap<String, Lease>),
    /// The object of the entry before it, unless this is the first.
    ReadingKept(Seq, Option<ObjectDigest>),
    Naming(Stored),
    ListingBlobs(Option<BlobKey>),
    Deleting(BTreeSet<BlobKey>, Option<BlobKey>),
    Ended,
}

impl Retire {
    /// A collector that begins by reading genesis.
    #[must_use]
    pub fn new(options: RetireOptions) -> (Self, Vec<RetireCommand>) {
        let state = State::ReadingGenesis;
        let machine = Self { options, failures: Failures::default(), facts: Facts::default(), state };
        let commands = machine.due();
        (machine, commands)
    }

    /// Takes one event; one that the state does not wait for changes nothing.
    pub fn handle(&mut self, event: RetireEvent) -> Vec<RetireCommand> {
        let mut out = Vec::new();
        match event {
            RetireEvent::Failed(fault) => self.failed(fault, &mut out),
            RetireEvent::TimerFired(id) => self.timer(id, &mut out),
            event if matches!(self.state, State::Appending(_)) => self.append(event, &mut out),
            event => self.answered(event, &mut out),
        }
        out
    }

    /// What the state waits for, as commands: said once, and again after a failure.
    fn due(&self) -> Vec<RetireCommand> {
        let command = match &self.state {
            State::ReadingGenesis => RetireCommand::Read(Seq::GENESIS),
            State::Listing(_) => RetireCommand::List { after: Seq::GENESIS },
            State::LookingBack(search) => RetireCommand::Read(search.next().unwrap_or_default()),
            State::Verifying(_, anchor) => RetireCommand::Verify(anchor.clone()),
            State::ReadingLeases | State::ReadingLeasesAgain(_) => RetireCommand::ReadLeases,
            State::Waiting(_) => RetireCommand::ArmTimer { id: LogTimer::LeaseTtl, after: self.lease_ttl() },
            State::ReadingKept(seq, _) => RetireCommand::Read(*seq),
            State::Naming(stored) => RetireCommand::NameBlobs(stored.clone()),
            State::ListingBlobs(after) => RetireCommand::ListBlobs { after: *after },
            State::Deleting(keys, _) => RetireCommand::Delete(keys.clone()),
            State::Appending(_) | State::Ended => return Vec::new(),
        };
        vec![command]
    }

    fn lease_ttl(&self) -> Duration {
        let genesis = self.facts.genesis.as_ref().map(|genesis| &genesis.entry.kind);
        match genesis {
            Some(EntryKind::Genesis(genesis)) => Duration::from_secs(genesis.lease_ttl_s),
            _ => Duration::MAX,
        }
    }

    fn go(&mut self, state: State, out: &mut Vec<RetireCommand>) {
        self.state = state;
        self.failures = Failures::default();
        out.append(&mut self.due());
    }

    fn stop(&mut self, stop: RetireStop, out: &mut Vec<RetireCommand>) {
        self.go(State::Ended, out);
        out.push(RetireCommand::Stopped(stop));
    }

    fn failed(&mut self, fault: Fault, out: &mut Vec<RetireCommand>) {
        if self.due().is_empty() || matches!(self.state, State::Waiting(_)) {
            return;
        }
        let (after, is_due) = self.failures.add(&self.options.patience);
        out.push(RetireCommand::ArmTimer { id: LogTimer::Retry, after });
        out.extend(is_due.then_some(RetireCommand::StoreDown(fault)));
    }

    fn timer(&mut self, id: LogTimer, out: &mut Vec<RetireCommand>) {
        match (id, &mut self.state) {
            (LogTimer::Retry, State::Appending(append)) => {
                let commands = append.handle(AppendEvent::TimerFired);
                self.append_commands(commands, out);
            }
            (LogTimer::LeaseTtl, State::Waiting(before)) => {
                let before = std::mem::take(before);
                self.go(State::ReadingLeasesAgain(before), out);
            }
            (LogTimer::Retry, _) if self.failures.resume() => out.append(&mut self.due()),
            _ => {}
        }
    }

    fn answered(&mut self, event: RetireEvent, out: &mut Vec<RetireCommand>) {
        match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::ReadingGenesis, RetireEvent::Read(Reading::Found(genesis))) => {
                let stream = genesis.entry.stream;
                self.facts.genesis = Some(genesis);
                self.go(State::Listing(stream), out);
            }
            (State::Listing(stream), RetireEvent::Listed(last)) => {
                let wanted = Wanted::Anchor { at_most: None, avoid: BTreeSet::new() };
                let tail = last.unwrap_or(Seq::GENESIS);
                let search = LookBack::from(stream, tail, wanted, Known::Nothing, self.options.look_back_max);
                self.go(State::LookingBack(Box::new(search)), out);
            }
            (State::LookingBack(search), RetireEvent::Read(Reading::Found(stored))) => {
                self.looked_back(search, &stored, out);
            }
            (State::Verifying(search, anchor), RetireEvent::Verified) => self.verified(*search, anchor, out),
            (State::Verifying(_, anchor), RetireEvent::Damaged) => {
                self.stop(RetireStop::DamagedAnchor { seq: anchor.seq() }, out);
            }
            (State::ReadingLeases, RetireEvent::Leases(leases)) => self.go(State::Waiting(leases), out),
            (State::ReadingLeasesAgain(before), RetireEvent::Leases(leases)) => {
                self.bind(&before, &leases, out);
            }
            (State::ReadingKept(seq, parent), RetireEvent::Read(Reading::Found(stored))) => {
                if stored.seq() != seq || parent.is_some_and(|parent| parent != stored.entry.parent) {
                    return self.stop(RetireStop::BrokenChain { seq }, out);
                }
                self.go(State::Naming(stored), out);
            }
            (State::Naming(stored), RetireEvent::Named(digests)) => self.named(&stored, digests, out),
            (State::ListingBlobs(_), RetireEvent::Blobs(page)) => self.page(page, out),
            (State::Deleting(_, last), RetireEvent::Deleted) => self.go(State::ListingBlobs(last), out),
            (state, event) => {
                self.state = state;
                self.unread(&event, out);
            }
        }
    }

    /// An entry that is listed, or that the next one names, is not there or does not verify.
    fn unread(&mut self, event: &RetireEvent, out: &mut Vec<RetireCommand>) {
        let seq = match &self.state {
            State::ReadingGenesis => Seq::GENESIS,
            State::LookingBack(search) => search.next().unwrap_or_default(),
            State::ReadingKept(seq, _) => *seq,
            _ => return,
        };
        match event {
            RetireEvent::Read(Reading::Failed(fault)) => self.failed(*fault, out),
            RetireEvent::Read(Reading::Absent) => self.failed(Fault::Unavailable, out),
            RetireEvent::Read(Reading::Invalid) => self.stop(RetireStop::BrokenChain { seq }, out),
            _ => {}
        }
    }

    fn looked_back(&mut self, mut search: Box<LookBack>, stored: &Stored, out: &mut Vec<RetireCommand>) {
        // LG-14: a rehearsal writes nothing.
        let is_writing = self.options.mode == RetireMode::Retire;
        if is_writing && let Some(key) = search.locked_by(stored, self.options.signer) {
            return self.stop(RetireStop::Signed { seq: stored.seq(), key }, out);
        }
        if search.take(stored).is_err() {
            return self.stop(RetireStop::BrokenChain { seq: stored.seq() }, out);
        }
        if search.next().is_some() {
            return self.go(State::LookingBack(search), out);
        }
        if let Some(anchor) = search.found().cloned() {
            return self.go(State::Verifying(search, anchor), out);
        }
        let stop = if search.is_exhausted() {
            RetireStop::LookBack { entries: self.options.look_back_max }
        } else {
            RetireStop::TooFewAnchors
        };
        self.stop(stop, out);
    }

    fn verified(&mut self, search: LookBack, anchor: Stored, out: &mut Vec<RetireCommand>) {
        if self.facts.kept.is_empty()
            && let Some(tail) = search.tail()
        {
            (self.facts.tail, self.facts.epoch) = ((tail.seq, tail.object), tail.epoch);
        }
        self.facts.bound = anchor.seq();
        self.facts.kept.push(anchor.clone());
        if self.facts.kept.len() < 2 {
            let search = search.behind(&anchor, self.options.look_back_max);
            return self.go(State::LookingBack(Box::new(search)), out);
        }
        if self.options.mode == RetireMode::Rehearse {
            return self.go(State::ReadingLeasesAgain(BTreeMap::new()), out);
        }
        let Some(entry) = self.facts.entry() else { return };
        let (append, commands) = Append::new(entry, self.options.patience);
        self.go(State::Appending(append), out);
        self.append_commands(commands, out);
    }

    fn append(&mut self, event: RetireEvent, out: &mut Vec<RetireCommand>) {
        let event = match event {
            RetireEvent::Created(object) => AppendEvent::Created(object),
            RetireEvent::CreateFailed => AppendEvent::CreateFailed,
            RetireEvent::Read(reading) => AppendEvent::Read(reading),
            _ => return,
        };
        let State::Appending(append) = &mut self.state else { return };
        let commands = append.handle(event);
        self.append_commands(commands, out);
    }

    fn append_commands(&mut self, commands: Vec<AppendCommand>, out: &mut Vec<RetireCommand>) {
        for command in commands {
            match command {
                AppendCommand::Create(entry) => out.push(RetireCommand::Create(entry)),
                AppendCommand::Read(entry) => out.push(RetireCommand::Read(entry.seq)),
                AppendCommand::ArmTimer(after) => {
                    out.push(RetireCommand::ArmTimer { id: LogTimer::Retry, after });
                }
                AppendCommand::StoreDown(fault) => out.push(RetireCommand::StoreDown(fault)),
                AppendCommand::Passed(_) => {}
                AppendCommand::Appended(stored) => {
                    self.facts.tail = (stored.seq(), stored.object);
                    out.push(RetireCommand::Retired(stored));
                    self.go(State::ReadingLeases, out); // LG-8: after the entry, never before it
                }
                AppendCommand::Fenced(by) => self.stop(RetireStop::Fenced { by }, out),
                AppendCommand::Foreign(_) => {
                    let seq = self.facts.tail.0.next();
                    self.stop(RetireStop::BrokenChain { seq }, out);
                }
            }
        }
    }

    /// LG-8: what leases that moved pin stays.
    fn bind(
        &mut self,
        before: &BTreeMap<String, Lease>,
        now: &BTreeMap<String, Lease>,
        out: &mut Vec<RetireCommand>,
    ) {
        let moving = now.iter().filter(|(reader, lease)| {
            before.get(*reader).is_none_or(|before| before.counter != lease.counter) // LG-10
        });
        let pinned = moving.map(|(_, lease)| lease.pinned);
        self.facts.bound = pinned.fold(self.facts.bound, Seq::min);
        if let Some(genesis) = self.facts.genesis.clone() {
            self.go(State::Naming(genesis), out);
        }
    }

    fn named(&mut self, stored: &Stored, digests: BTreeSet<ObjectDigest>, out: &mut Vec<RetireCommand>) {
        let epoch = stored.entry.epoch;
        self.facts.named.extend(digests.into_iter().map(|digest| BlobKey { epoch, digest }));
        let (next, parent) = if stored.seq() < self.facts.bound || stored.seq() == Seq::GENESIS {
            (self.facts.bound.max(Seq(1)), None)
        } else {
            (stored.seq().next(), Some(stored.object))
        };
        let is_kept = next <= self.facts.tail.0;
        self.go(if is_kept { State::ReadingKept(next, parent) } else { State::ListingBlobs(None) }, out);
    }

    fn page(&mut self, page: BTreeSet<BlobKey>, out: &mut Vec<RetireCommand>) {
        let Some(&last) = page.last() else {
            self.go(State::Ended, out);
            return out.push(RetireCommand::Done { keep_from: self.facts.bound });
        };
        let garbage: BTreeSet<BlobKey> = page.into_iter().filter(|key| self.facts.is_garbage(key)).collect();
        if garbage.is_empty() {
            return self.go(State::ListingBlobs(Some(last)), out);
        }
        if self.options.mode == RetireMode::Rehearse {
            out.push(RetireCommand::WouldDelete(garbage));
            return self.go(State::ListingBlobs(Some(last)), out);
        }
        self.go(State::Deleting(garbage, Some(last)), out);
    }
}

impl Facts {
    fn entry(&self) -> Option<Entry> {
        let (seq, object) = self.tail;
        let anchor = |stored: &Stored| AnchorRef { seq: stored.seq(), object: stored.object };
        Some(Entry {
            stream: self.genesis.as_ref()?.entry.stream,
            seq: seq.next(),
            epoch: self.epoch.counter,
            created_by: self.epoch.incarnation,
            parent: object,
            kind: EntryKind::Retire {
                keep_from: self.bound,
                anchors: self.kept.iter().map(anchor).collect(),
            },
        })
    }

    /// LG-9: named by nothing that is kept, and of an older epoch than the one in force.
    fn is_garbage(&self, key: &BlobKey) -> bool {
        key.epoch < self.epoch.counter && !self.named.contains(key)
    }
}
