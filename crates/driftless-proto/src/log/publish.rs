//! The publisher of a stream: it opens the log, takes it over, and publishes one version at a time.
//!
//! - **LG-2 (nothing changes).** Entries are only ever created, and blobs lie under the epoch of their writer.
//! - **LG-3 (blobs first).** An entry is created only after every blob it names was put and seen, with every writer of
//!   the plan exactly once.
//! - **LG-4 (fencing).** It takes over by an `epoch` entry before its first publication, and stops for good when it
//!   meets a newer one.
//! - **LG-5 (lineage).** A delta follows exactly the stream's last version, and only if the weights go on from it;
//!   otherwise an anchor is published.
//! - **LG-7 (versions rise).** If they must fall, because the trainer's past diverged, the anchor comes directly after
//!   `epoch` and `reset`.
//! - **LG-9 (orphans).** An epoch of its own on request lets the blobs of the last one be collected.
//! - **LG-12 (append).** See [`Append`].
//! - **LG-14 (signed to the end).** Who signs nothing appends nothing to a log whose newest entry is signed.
//!
//! The log is one more target: it takes a version when it is free, and its watermark says which one was last. What was
//! taken is kept until it is in the log, however long the store is down.

mod opening;
mod words;

pub use words::{
    Ask, Lineage, PublishCommand, PublishEvent, PublishOptions, PublishStop, Refusal, Task, TaskKind,
};

use super::append::{Append, AppendCommand, AppendEvent};
use super::chain::Chain;
use super::look_back::LookBack;
use super::words::{Failures, Fault, LogTimer, Published, Stored};
use driftless_types::{
    BlobRef, Entry, EntryKind, Epoch, Publication, Seq, StreamId, Version, WriterManifest, Writers,
};
use std::collections::BTreeMap;

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Publish {
    options: PublishOptions,
    failures: Failures,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Reading genesis.
    Looking,
    Probing,
    PuttingGenesis(Epoch),
    Founding(Append),
    /// Genesis is known.
    Listing(StreamId),
    LookingBack(Box<LookBack>),
    Open(Box<Open>, Doing),
    Stopped,
}

/// A log that is known to its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Open {
    chain: Chain,
    epoch: Epoch,
    /// The object that the trainer's weights go on from, if any.
    goes_on_from: Option<Published>,
    /// The last version whose values were gone before it was published: what a writer may still say of it is late.
    abandoned: Option<Version>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    TakingOver(Append),
    Nothing,
    Resetting(Append, Task),
    Writing(Task, BTreeMap<u32, WriterManifest>),
    Sealing(Task, BTreeMap<u32, WriterManifest>),
    Appending(Append, Task),
}

impl Publish {
    /// A publisher that begins by reading genesis.
    #[must_use]
    pub fn new(options: PublishOptions) -> (Self, Vec<PublishCommand>) {
        let machine = Self { options, failures: Failures::default(), state: State::Looking };
        let commands = machine.due();
        (machine, commands)
    }

    /// The stream's last publication, once the stream is open.
    #[must_use]
    pub fn watermark(&self) -> Option<Published> {
        match &self.state {
            State::Open(open, _) => open.chain.last,
            _ => None,
        }
    }

    /// Whether a version may be asked for.
    #[must_use]
    pub const fn is_free(&self) -> bool {
        matches!(self.state, State::Open(_, Doing::Nothing))
    }

    /// Takes one event; one that the state does not wait for changes nothing.
    pub fn handle(&mut self, event: PublishEvent) -> Vec<PublishCommand> {
        let mut out = Vec::new();
        match event {
            PublishEvent::Ask(ask) => self.ask(ask, &mut out),
            PublishEvent::Renew => self.renew(&mut out),
            PublishEvent::TimerFired(LogTimer::Retry) => self.retry(&mut out),
            PublishEvent::Failed(fault) => self.failed(fault, &mut out),
            PublishEvent::Created(object) => self.append(AppendEvent::Created(object), &mut out),
            PublishEvent::CreateFailed => self.append(AppendEvent::CreateFailed, &mut out),
            PublishEvent::Read(reading) if self.is_appending() => {
                self.append(AppendEvent::Read(reading), &mut out);
            }
            PublishEvent::Written(version, manifest) => self.written(version, manifest, &mut out),
            PublishEvent::WriteFailed(version, fault) if self.is_writing(version) => {
                self.failed(fault, &mut out);
            }
            PublishEvent::ValuesGone(version) => self.values_gone(version, &mut out),
            PublishEvent::Sealed { version, digests, manifests } => {
                self.sealed(version, digests, manifests, &mut out);
            }
            event => self.opening(event, &mut out),
        }
        out
    }

    /// What the state waits for, as commands: said once, and again after a failure.
    fn due(&self) -> Vec<PublishCommand> {
        let command = match &self.state {
            State::Looking => PublishCommand::Read(Seq::GENESIS),
            State::Probing => PublishCommand::Probe,
            State::PuttingGenesis(epoch) => PublishCommand::PutGenesis(*epoch),
            State::Listing(_) => PublishCommand::List { after: Seq::GENESIS },
            State::LookingBack(search) => PublishCommand::Read(search.next().unwrap_or_default()),
            State::Open(_, Doing::Writing(task, written)) => {
                let ranks = (0..self.options.writer_count).filter(|rank| !written.contains_key(rank));
                PublishCommand::Write { task: *task, ranks: ranks.collect() }
            }
            State::Open(_, Doing::Sealing(task, written)) => {
                PublishCommand::Seal { task: *task, writers: written.values().cloned().collect() }
            }
            State::Founding(_) | State::Open(..) | State::Stopped => return Vec::new(),
        };
        vec![command]
    }

    fn go(&mut self, state: State, out: &mut Vec<PublishCommand>) {
        self.state = state;
        self.failures = Failures::default();
        out.append(&mut self.due());
    }

    fn stop(&mut self, stop: PublishStop, out: &mut Vec<PublishCommand>) {
        self.go(State::Stopped, out);
        out.push(PublishCommand::Stopped(stop));
    }

    fn failed(&mut self, fault: Fault, out: &mut Vec<PublishCommand>) {
        if self.due().is_empty() {
            return;
        }
        let (after, is_due) = self.failures.add(&self.options.patience);
        out.push(PublishCommand::ArmTimer { id: LogTimer::Retry, after });
        out.extend(is_due.then_some(PublishCommand::StoreDown(fault)));
    }

    fn retry(&mut self, out: &mut Vec<PublishCommand>) {
        if self.is_appending() {
            return self.append(AppendEvent::TimerFired, out);
        }
        if self.failures.resume() {
            out.append(&mut self.due());
        }
    }

    // Appending.

    fn appending(&mut self) -> Option<&mut Append> {
        match &mut self.state {
            State::Founding(append) => Some(append),
            State::Open(
                _,
                Doing::TakingOver(append) | Doing::Resetting(append, _) | Doing::Appending(append, _),
            ) => Some(append),
            _ => None,
        }
    }

    fn is_appending(&mut self) -> bool {
        self.appending().is_some()
    }

    fn append(&mut self, event: AppendEvent, out: &mut Vec<PublishCommand>) {
        let Some(append) = self.appending() else { return };
        let commands = append.handle(event);
        self.append_commands(commands, out);
    }

    fn append_commands(&mut self, commands: Vec<AppendCommand>, out: &mut Vec<PublishCommand>) {
        for command in commands {
            match command {
                AppendCommand::Create(entry) => out.push(PublishCommand::Create(entry)),
                AppendCommand::Read(entry) => out.push(PublishCommand::Read(entry.seq)),
                AppendCommand::ArmTimer(after) => {
                    out.push(PublishCommand::ArmTimer { id: LogTimer::Retry, after });
                }
                AppendCommand::StoreDown(fault) => out.push(PublishCommand::StoreDown(fault)),
                AppendCommand::Passed(stored) => self.passed(&stored, out),
                AppendCommand::Appended(stored) => self.appended(stored, out),
                AppendCommand::Fenced(by) => self.stop(PublishStop::Fenced { by }, out), // LG-4
                AppendCommand::Foreign(found) => self.foreign(found, out),
            }
        }
    }

    /// Another's entry took the place first, and mine goes after it.
    fn passed(&mut self, stored: &Stored, out: &mut Vec<PublishCommand>) {
        let State::Open(open, _) = &mut self.state else { return };
        if open.take(stored).is_none() {
            self.stop(PublishStop::BrokenChain { seq: stored.seq() }, out);
        }
    }

    fn appended(&mut self, stored: Stored, out: &mut Vec<PublishCommand>) {
        let (mut open, doing) = match std::mem::replace(&mut self.state, State::Stopped) {
            State::Founding(_) => return self.founded(&stored, out),
            State::Open(open, doing) => (open, doing),
            state => return self.state = state,
        };
        if open.take(&stored).is_none() {
            return self.stop(PublishStop::BrokenChain { seq: stored.seq() }, out);
        }
        match doing {
            Doing::TakingOver(_) => self.opened(open, out),
            Doing::Resetting(_, task) => {
                self.go(State::Open(open, Doing::Writing(task, BTreeMap::new())), out);
            }
            _ => {
                open.goes_on_from = open.chain.last;
                out.extend(open.chain.last.map(PublishCommand::Published));
                self.go(State::Open(open, Doing::Nothing), out);
            }
        }
    }

    fn foreign(&mut self, found: Option<Stored>, out: &mut Vec<PublishCommand>) {
        let seq = self.appending().map_or(Seq::GENESIS, |append| append.entry().seq);
        // Another publisher founded the stream in the meantime: it may be one of this run.
        if let (State::Founding(_), Some(genesis)) = (&self.state, found) {
            return self.genesis(genesis, out);
        }
        self.stop(PublishStop::Foreign { seq }, out);
    }

    // Publishing.

    fn ask(&mut self, ask: Ask, out: &mut Vec<PublishCommand>) {
        let refusal = match std::mem::replace(&mut self.state, State::Stopped) {
            State::Open(open, Doing::Nothing) => match open.task(ask) {
                Ok(task) => return self.begin(open, task, out),
                Err(refusal) => {
                    self.state = State::Open(open, Doing::Nothing);
                    refusal
                }
            },
            State::Stopped => Refusal::Stopped,
            state => {
                self.state = state;
                Refusal::Busy
            }
        };
        out.push(PublishCommand::Refused(ask.version, refusal));
    }

    fn begin(&mut self, open: Box<Open>, task: Task, out: &mut Vec<PublishCommand>) {
        // LG-7: where versions fall, the log says so first.
        let Some(version_below) = open.needed_reset(task.version) else {
            return self.go(State::Open(open, Doing::Writing(task, BTreeMap::new())), out);
        };
        let entry = open.next(self.options.incarnation, EntryKind::Reset { version_below });
        let (append, commands) = Append::new(entry, self.options.patience);
        self.go(State::Open(open, Doing::Resetting(append, task)), out);
        self.append_commands(commands, out);
    }

    const fn is_writing(&self, version: Version) -> bool {
        matches!(&self.state, State::Open(_, Doing::Writing(task, _)) if task.version.0 == version.0)
    }

    fn written(&mut self, version: Version, manifest: WriterManifest, out: &mut Vec<PublishCommand>) {
        let State::Open(open, Doing::Writing(task, written)) = &mut self.state else { return };
        if task.version != version || manifest.rank >= self.options.writer_count {
            return;
        }
        written.insert(manifest.rank, manifest);
        // LG-3: every writer of the plan, exactly once.
        if u32::try_from(written.len()) != Ok(self.options.writer_count) {
            return;
        }
        let (open, task, written) = (open.clone(), *task, std::mem::take(written));
        self.go(State::Open(open, Doing::Sealing(task, written)), out);
    }

    fn values_gone(&mut self, version: Version, out: &mut Vec<PublishCommand>) {
        if !self.is_writing(version) {
            return;
        }
        let State::Open(open, _) = &self.state else { return };
        let mut open = open.clone();
        open.abandoned = Some(version);
        out.push(PublishCommand::Abandoned(version));
        self.go(State::Open(open, Doing::Nothing), out);
    }

    fn sealed(
        &mut self,
        version: Version,
        digests: BlobRef,
        manifests: Option<BlobRef>,
        out: &mut Vec<PublishCommand>,
    ) {
        let State::Open(open, Doing::Sealing(task, written)) = &mut self.state else { return };
        if task.version != version {
            return;
        }
        let inline = || Writers::Inline(std::mem::take(written).into_values().collect());
        let writers = manifests.map_or_else(inline, Writers::Blob);
        let publication = Publication { version, writer_count: self.options.writer_count, writers, digests };
        let kind = match task.kind {
            TaskKind::Anchor => EntryKind::Anchor(publication),
            TaskKind::Delta(base_version) => EntryKind::Delta { base_version, publication },
        };
        let (append, commands) =
            Append::new(open.next(self.options.incarnation, kind), self.options.patience);
        let (open, task) = (open.clone(), *task);
        self.go(State::Open(open, Doing::Appending(append, task)), out);
        self.append_commands(commands, out);
    }

    /// LG-9: from here on the blobs of the last epoch are of an older one.
    fn renew(&mut self, out: &mut Vec<PublishCommand>) {
        let State::Open(open, Doing::Nothing) = &self.state else { return };
        let open = open.clone();
        self.take_over(open, out);
    }
}

impl Open {
    /// The entry that comes next.
    fn next(&self, incarnation: u64, kind: EntryKind) -> Entry {
        Entry {
            stream: self.chain.stream,
            seq: self.chain.seq.next(),
            epoch: self.epoch.counter,
            created_by: incarnation,
            parent: self.chain.object,
            kind,
        }
    }

    fn take(&mut self, stored: &Stored) -> Option<()> {
        (self.chain, _) = self.chain.take(stored).ok()?;
        Some(())
    }

    /// LG-5: a delta on exactly the stream's last version, if the weights go on from it; else everything.
    fn task(&self, ask: Ask) -> Result<Task, Refusal> {
        let task = |kind| Ok(Task { version: ask.version, kind, epoch: self.epoch });
        if let Some(abandoned) = self.abandoned.filter(|abandoned| ask.version <= *abandoned) {
            return Err(Refusal::NotAbove(abandoned));
        }
        let Some(last) = self.chain.last else { return task(TaskKind::Anchor) };
        if self.goes_on_from != Some(last) {
            return task(TaskKind::Anchor);
        }
        if ask.version <= last.version {
            return Err(Refusal::NotAbove(last.version));
        }
        if ask.base == Some(last.version) {
            task(TaskKind::Delta(last.version))
        } else {
            task(TaskKind::Anchor)
        }
    }

    /// LG-7: the bound of the `reset` without which this version may not follow; `None` if it may.
    fn needed_reset(&self, version: Version) -> Option<Version> {
        let last = self.chain.last.filter(|last| version <= last.version)?;
        let is_allowed = matches!(self.chain.fall, super::Fall::Below(below) if version < below);
        (!is_allowed).then_some(Version(last.version.0.saturating_add(1)))
    }
}
