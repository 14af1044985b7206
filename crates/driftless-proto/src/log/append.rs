//! One entry at one place of a log.
//!
//! - **LG-12 (append).** The body is built once per place. After *any* error, that the place is taken included, it is
//!   read back: my bytes, then it is done; nothing there, then the *same* bytes are created again; a higher epoch,
//!   then its writer is fenced and stops for good; a `retire` of my epoch, or for an `epoch` entry any entry of a
//!   lower one, then it is appended after that; anything else is foreign, and its writer stops. No other body for a
//!   place is built before this is settled.
//! - **LG-4 (fencing).** Who finds a newer epoch never writes again.
//!
//! A `retire` may be appended beside the owner of its epoch, so it goes after whatever that epoch wrote first.

use super::words::{Failures, Fault, Patience, Reading, Stored};
use driftless_types::{Entry, EntryKind, Epoch, ObjectDigest};
use std::sync::Arc;
use std::time::Duration;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AppendEvent {
    /// The store says that it created the object; its digest.
    Created(ObjectDigest),
    /// The store says anything else, that the key exists included.
    CreateFailed,
    /// What is at the place.
    Read(Reading),
    /// The pause is over.
    TimerFired,
}

/// What the shell must do. [`Self::Appended`], [`Self::Fenced`] and [`Self::Foreign`] are the last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AppendCommand {
    /// Encode and sign this entry, the same bytes each time, and create its object if its key is absent. One request:
    /// the client's own retries are off.
    Create(Arc<Entry>),
    /// Read what is at the entry's place.
    Read(Arc<Entry>),
    /// Say when this much time has passed.
    ArmTimer(Duration),
    /// The store fails for long; it is tried on.
    StoreDown(Fault),
    /// Another entry took the place, and the entry goes after it.
    Passed(Stored),
    /// It is in the log.
    Appended(Stored),
    /// A newer epoch has taken over.
    Fenced(Epoch),
    /// What is there no correct writer puts there; the entry, if it verified at all.
    Foreign(Option<Stored>),
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Append {
    entry: Arc<Entry>,
    patience: Patience,
    failures: Failures,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Creating,
    Reading,
    /// Then create again.
    PausingToCreate,
    /// Then read again.
    PausingToRead,
    Ended,
}

/// What is found at the place of an entry, judged by LG-12.
enum Verdict {
    Mine,
    After,
    Fenced(Epoch),
    Foreign,
}

impl Append {
    /// Appends the entry at its place, or after what may stand there.
    #[must_use]
    pub fn new(entry: Entry, patience: Patience) -> (Self, Vec<AppendCommand>) {
        let entry = Arc::new(entry);
        let create = AppendCommand::Create(Arc::clone(&entry));
        (Self { entry, patience, failures: Failures::default(), state: State::Creating }, vec![create])
    }

    /// The entry, at the place where it is tried.
    #[must_use]
    pub const fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Takes one event; one that the state does not wait for changes nothing.
    pub fn handle(&mut self, event: AppendEvent) -> Vec<AppendCommand> {
        match (self.state, event) {
            (State::Creating, AppendEvent::Created(object)) => {
                let stored = Stored { entry: Arc::clone(&self.entry), object, signer: None };
                self.end(AppendCommand::Appended(stored))
            }
            (State::Creating, AppendEvent::CreateFailed)
            | (State::PausingToRead, AppendEvent::TimerFired) => {
                self.state = State::Reading;
                vec![AppendCommand::Read(Arc::clone(&self.entry))]
            }
            (State::PausingToCreate, AppendEvent::TimerFired) => self.create(),
            (State::Reading, AppendEvent::Read(reading)) => self.read(reading),
            _ => Vec::new(),
        }
    }

    fn read(&mut self, reading: Reading) -> Vec<AppendCommand> {
        match reading {
            Reading::Found(found) => self.found(found),
            Reading::Absent => self.pause(State::PausingToCreate, Fault::Unavailable),
            Reading::Failed(fault) => self.pause(State::PausingToRead, fault),
            Reading::Invalid => self.end(AppendCommand::Foreign(None)),
        }
    }

    fn found(&mut self, found: Stored) -> Vec<AppendCommand> {
        match self.judge(&found) {
            Verdict::Mine => self.end(AppendCommand::Appended(found)),
            Verdict::Fenced(by) => self.end(AppendCommand::Fenced(by)),
            Verdict::Foreign => self.end(AppendCommand::Foreign(Some(found))),
            Verdict::After => {
                // LG-12: the place is settled, so there may be a body for the next one.
                let body = Entry { seq: found.seq().next(), parent: found.object, ..(*self.entry).clone() };
                self.entry = Arc::new(body);
                let mut out = vec![AppendCommand::Passed(found)];
                out.append(&mut self.create());
                out
            }
        }
    }

    fn judge(&self, found: &Stored) -> Verdict {
        let (mine, theirs) = (self.entry.as_ref(), found.entry.as_ref());
        if mine == theirs {
            return Verdict::Mine;
        }
        if (mine.stream, mine.seq, mine.parent) != (theirs.stream, theirs.seq, theirs.parent) {
            return Verdict::Foreign;
        }
        let (my_epoch, their_epoch) = (mine.fence(), theirs.fence());
        if my_epoch == their_epoch {
            let retires = [mine, theirs].iter().any(|entry| matches!(entry.kind, EntryKind::Retire { .. }));
            return if retires { Verdict::After } else { Verdict::Foreign };
        }
        // LG-4: counters are taken once, so who finds its own with another incarnation has lost it.
        if their_epoch.counter >= my_epoch.counter {
            return Verdict::Fenced(their_epoch);
        }
        if mine.kind == EntryKind::Epoch { Verdict::After } else { Verdict::Foreign }
    }

    fn create(&mut self) -> Vec<AppendCommand> {
        self.state = State::Creating;
        vec![AppendCommand::Create(Arc::clone(&self.entry))]
    }

    fn pause(&mut self, next: State, fault: Fault) -> Vec<AppendCommand> {
        self.state = next;
        let (pause, is_due) = self.failures.add(&self.patience);
        let mut out = vec![AppendCommand::ArmTimer(pause)];
        out.extend(is_due.then_some(AppendCommand::StoreDown(fault)));
        out
    }

    fn end(&mut self, command: AppendCommand) -> Vec<AppendCommand> {
        self.state = State::Ended;
        vec![command]
    }
}
