//! Writers: the shells of publishers, and the store that they write to.

use crate::state::State;
use crate::stream::{Defect, Stream};
use crate::words::{
    Bits, PATIENCE, RUN, Values, digests_blob, epoch_after, genesis, manifest, names, object, stored, stream,
};
use driftless_proto::log::{
    BlobKey, Fault, Lineage, LogTimer, Publish, PublishCommand as Command, PublishEvent as Event,
    PublishOptions, PublishStop, Reading, Task, TaskKind,
};
use driftless_types::{Entry, EntryKind, Seq};
use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) fn reading(state: &State, seq: Seq) -> Reading {
    state.at(seq).map_or(Reading::Absent, |stored| Reading::Found(stored.clone()))
}

pub(crate) fn last_after(state: &State, after: Seq) -> Option<Seq> {
    let last = Seq(state.log.len() as u64 - 1);
    (last > after).then_some(last)
}

impl Stream {
    /// A life of a writer begins.
    pub(crate) fn start_writer(&self, state: &mut State, index: usize) {
        let lives = state.writers.len() as u64;
        let writer = &mut state.writers[index];
        writer.life += 1;
        writer.bodies.clear();
        writer.put.clear();
        let options = PublishOptions {
            run: RUN,
            stream: stream(index as u64),
            incarnation: writer.life * lives + index as u64,
            counter: 0,
            writer_count: self.ranks,
            lineage: writer.published.map_or(Lineage::Diverged, Lineage::Continues),
            signer: None,
            patience: PATIENCE,
            look_back_max: 100,
        };
        let (machine, commands) = Publish::new(options);
        (writer.machine, writer.todo) = (Some(machine), None);
        self.writer_commands(state, index, commands);
    }

    pub(crate) fn writer_event(&self, state: &mut State, index: usize, event: Event) {
        let Some(machine) = &mut state.writers[index].machine else { return };
        let commands = machine.handle(event);
        self.writer_commands(state, index, commands);
    }

    /// What nobody else can come between is done at once; the rest becomes a step of its own.
    fn writer_commands(&self, state: &mut State, index: usize, commands: Vec<Command>) {
        let mut queue = VecDeque::from(commands);
        while let Some(command) = queue.pop_front() {
            let event = match command {
                Command::Create(_) | Command::Write { .. } => {
                    state.writers[index].todo = Some(command);
                    continue;
                }
                Command::Read(seq) => Event::Read(reading(state, seq)),
                Command::List { after } => Event::Listed(last_after(state, after)),
                Command::Probe => Event::ProbeKept,
                Command::PutGenesis(epoch) => {
                    let blob = genesis().parameters.digest;
                    state.blobs.insert(BlobKey { epoch: epoch.counter, digest: blob });
                    Event::GenesisPut(genesis())
                }
                Command::Seal { task, .. } => self.seal(state, index, task),
                Command::ArmTimer { .. } => Event::TimerFired(LogTimer::Retry),
                said => {
                    self.writer_says(state, index, &said);
                    continue;
                }
            };
            if let Some(machine) = &mut state.writers[index].machine {
                queue.extend(machine.handle(event));
            }
        }
        self.ask_next(state, index);
    }

    fn writer_says(&self, state: &mut State, index: usize, said: &Command) {
        match said {
            Command::Published(published) => {
                // LG-12: what is said to be published is.
                if state.at(published.seq).is_none_or(|stored| stored.object != published.object) {
                    state.breach("LG-12", "a version is said to be published that is not in the log");
                }
                let writer = &mut state.writers[index];
                writer.published = Some(published.object);
                writer.asks.retain(|ask| ask.version > published.version);
            }
            // If another has taken over since, the next append finds out.
            Command::Opened { epoch, .. } if epoch_after(&state.log) < *epoch => {
                state.breach("LG-4", "a publisher believes to own a stream that it does not");
            }
            Command::Refused(version, _) => state.writers[index].asks.retain(|ask| ask.version != *version),
            Command::Stopped(PublishStop::Fenced { by }) if epoch_after(&state.log) >= *by => {}
            Command::Stopped(PublishStop::Fenced { .. }) => {
                state.breach("LG-4", "a publisher is fenced by an epoch that is not in the log");
            }
            Command::Stopped(_) => state.breach("LG-12", "a publisher of a sound log stops"),
            _ => {}
        }
    }

    /// The trainer has its next version as soon as the stream is free.
    fn ask_next(&self, state: &mut State, index: usize) {
        let writer = &state.writers[index];
        let (Some(machine), Some(&ask)) = (&writer.machine, writer.asks.first()) else { return };
        if machine.is_free() {
            self.writer_event(state, index, Event::Ask(ask));
        }
    }

    fn values(&self, state: &State, index: usize, task: Task) -> Values {
        let history = state.writers[index].history;
        let base = match task.kind {
            TaskKind::Anchor => None,
            TaskKind::Delta(base) => Some(Bits::of(history, base)),
        };
        Values { to: Bits::of(history, task.version), base }
    }

    fn put(&self, state: &mut State, index: usize, key: BlobKey) {
        // A key without an epoch names the same object for every writer, and what is there is not put again.
        let key = if self.defect == Defect::KeysWithoutEpoch { BlobKey { epoch: 0, ..key } } else { key };
        state.blobs.insert(key);
        state.writers[index].put.insert(key);
    }

    fn seal(&self, state: &mut State, index: usize, task: Task) -> Event {
        let digests = digests_blob(self.values(state, index, task).to);
        self.put(state, index, BlobKey { epoch: task.epoch.counter, digest: digests.digest });
        Event::Sealed { version: task.version, digests, manifests: None }
    }

    /// The next thing that a writer does to the store.
    pub(crate) fn writer_does(&self, state: &mut State, index: usize) {
        match state.writers[index].todo.take() {
            Some(Command::Create(entry)) => self.create(state, index, &entry),
            Some(Command::Write { task, mut ranks }) => {
                let Some(rank) = ranks.pop_first() else { return };
                let values = self.values(state, index, task);
                let written = manifest(rank, values);
                for blob in &written.blobs {
                    self.put(state, index, BlobKey { epoch: task.epoch.counter, digest: blob.digest });
                }
                let rest = Command::Write { task, ranks: ranks.clone() };
                state.writers[index].todo = (!ranks.is_empty()).then_some(rest);
                self.writer_event(state, index, Event::Written(task.version, written));
            }
            _ => {}
        }
    }

    fn create(&self, state: &mut State, index: usize, entry: &Arc<Entry>) {
        self.note_body(state, index, entry);
        let is_created = self.create_if_absent(state, entry);
        let is_trusted = self.defect == Defect::TrustedExists;
        let event =
            if is_created || is_trusted { Event::Created(object(entry)) } else { Event::CreateFailed };
        self.writer_event(state, index, event);
    }

    /// LG-12: one body for a place.
    fn note_body(&self, state: &mut State, index: usize, entry: &Entry) {
        let mine = object(entry);
        if *state.writers[index].bodies.entry(entry.seq).or_insert(mine) != mine {
            state.breach("LG-12", "a publisher tries two bodies at one place");
        }
    }

    /// Create if absent: whether it was created.
    pub(crate) fn create_if_absent(&self, state: &mut State, entry: &Arc<Entry>) -> bool {
        let at = usize::try_from(entry.seq.0).expect("small");
        if self.defect == Defect::Overwritten && at < state.log.len() {
            state.log[at] = stored(Arc::clone(entry));
            return true;
        }
        if at != state.log.len() {
            if at > state.log.len() {
                state.breach("LG-1", "an entry is created behind a gap");
            }
            return false;
        }
        let epoch = epoch_after(&state.log);
        let begins = matches!(entry.kind, EntryKind::Epoch | EntryKind::Genesis(_));
        if begins && entry.epoch <= epoch.counter || !begins && entry.fence() != epoch {
            state.breach("LG-4", "an older epoch appends after a newer one");
        }
        if state.log.last().is_some_and(|last| last.object != entry.parent) {
            state.breach("LG-1", "an entry does not continue the log");
        }
        if !self.has_blobs(state, entry) {
            state.breach("LG-3", "an entry is created, and a blob that it names is not there");
        }
        state.log.push(stored(Arc::clone(entry)));
        true
    }

    /// Whether all blobs of an entry are there.
    pub(crate) fn has_blobs(&self, state: &State, entry: &Entry) -> bool {
        let keyed = |key: BlobKey| {
            let is_bare = self.defect == Defect::KeysWithoutEpoch && entry.kind.publication().is_some();
            if is_bare { BlobKey { epoch: 0, ..key } } else { key }
        };
        names(entry).into_iter().all(|key| state.blobs.contains(&keyed(key)))
    }

    /// The creation is carried out, and its sender is told of an error.
    pub(crate) fn lose_reply(&self, state: &mut State, index: usize) {
        let Some(Command::Create(entry)) = state.writers[index].todo.take() else { return };
        self.note_body(state, index, &entry);
        self.create_if_absent(state, &entry);
        self.writer_event(state, index, Event::CreateFailed);
    }

    /// The sender is told of an error, and the creation is carried out later, or never.
    pub(crate) fn delay(&self, state: &mut State, index: usize) {
        let Some(Command::Create(entry)) = state.writers[index].todo.take() else { return };
        self.note_body(state, index, &entry);
        state.on_the_way.push(entry);
        self.writer_event(state, index, Event::CreateFailed);
    }

    pub(crate) fn land(&self, state: &mut State, at: usize) {
        let entry = state.on_the_way.remove(at);
        if usize::try_from(entry.seq.0).expect("small") == state.log.len() {
            self.create_if_absent(state, &entry);
        }
    }

    /// A blob is not put, and the writer is told so.
    pub(crate) fn fail_write(&self, state: &mut State, index: usize) {
        let Some(Command::Write { task, .. }) = state.writers[index].todo.take() else { return };
        self.writer_event(state, index, Event::WriteFailed(task.version, Fault::Unavailable));
    }

    /// A writer dies; what it had sent may still be carried out. Its trainer lives, and knows what was published.
    pub(crate) fn kill_writer(&self, state: &mut State, index: usize, is_done: bool) {
        if let Some(Command::Create(entry)) = state.writers[index].todo.take()
            && is_done
        {
            self.create_if_absent(state, &entry);
        }
        self.start_writer(state, index);
    }
}
