//! Readers: the shells of followers, their disks and their weights.

use crate::state::{Reader, State, Weights};
use crate::stream::{Defect, Stream};
use crate::words::{PATIENCE, values};
use crate::writer::{last_after, reading};
use driftless_proto::log::{
    Dirty, Fault, Follow, FollowCommand as Command, FollowEvent as Event, FollowOptions, Goal, Leasing,
    LogTimer, Memory, Presence, Published, Stored, Writing,
};
use driftless_types::{EntryKind, Seq};
use std::collections::VecDeque;
use std::time::Duration;

fn follow(leasing: Leasing, life: u64, disk: Memory) -> (Follow, Vec<Command>) {
    let options = FollowOptions {
        goal: Goal::Forever,
        leasing,
        patience: PATIENCE,
        poll_after: Duration::from_secs(1),
        look_back_max: 100,
        lease_counter: life * 100,
    };
    Follow::new(options, disk)
}

impl Stream {
    /// A reader that has nothing, in its first life.
    pub(crate) fn new_reader(&self) -> Reader {
        Reader {
            life: 0,
            machine: follow(self.leasing, 0, Memory::default()).0,
            todo: None,
            lease: None,
            is_lease_armed: false,
            waits: None,
            disk: Memory::default(),
            weights: Weights::Nothing,
            checked: None,
            served: None,
            has_lease: false,
            has_renewed: false,
            has_stalled: false,
        }
    }

    pub(crate) fn start_reader(&self, state: &mut State, index: usize) {
        let reader = &mut state.readers[index];
        reader.life += 1;
        let (machine, commands) = follow(self.leasing, reader.life, reader.disk);
        reader.machine = machine;
        (reader.todo, reader.lease, reader.is_lease_armed) = (None, None, false);
        (reader.waits, reader.checked, reader.has_lease) = (None, None, false);
        self.reader_commands(state, index, commands);
    }

    pub(crate) fn reader_event(&self, state: &mut State, index: usize, event: Event) {
        let commands = state.readers[index].machine.handle(event);
        self.reader_commands(state, index, commands);
    }

    fn reader_commands(&self, state: &mut State, index: usize, commands: Vec<Command>) {
        let mut queue = VecDeque::from(commands);
        while let Some(command) = queue.pop_front() {
            let length = state.log.len();
            let reader = &mut state.readers[index];
            let event = match command {
                Command::Read(seq) => Event::Read(reading(state, seq)),
                Command::List { after } => Event::Listed(last_after(state, after)),
                Command::ArmTimer { id: LogTimer::Retry, .. } => Event::TimerFired(LogTimer::Retry),
                Command::ArmTimer { id, .. } => {
                    match id {
                        LogTimer::Poll => reader.waits = Some(length),
                        _ => reader.is_lease_armed = true,
                    }
                    continue;
                }
                Command::PutLease(lease) => {
                    (reader.lease, reader.is_lease_armed) = (Some(lease), false);
                    if self.defect != Defect::LateLease {
                        continue;
                    }
                    Event::LeasePut
                }
                Command::Serve(published) => {
                    self.serves(state, index, published);
                    continue;
                }
                Command::Stopped(_) => {
                    state.breach("LG-7", "a reader of a sound log stops");
                    continue;
                }
                Command::Report(_) | Command::Done(_) => continue,
                todo => {
                    reader.todo = Some(todo);
                    continue;
                }
            };
            queue.extend(state.readers[index].machine.handle(event));
        }
    }

    fn serves(&self, state: &mut State, index: usize, published: Published) {
        let reader = &state.readers[index];
        let truth = state.at(published.seq).and_then(|stored| values(&stored.entry)).map(|values| values.to);
        let is_true = truth.is_some_and(|bits| reader.weights == Weights::Whole(bits));
        let is_in_log = state.at(published.seq).is_some_and(|stored| stored.object == published.object);
        let last = reader.served;
        let falls = last.is_some_and(|last| published.version <= last.version);
        let may_fall = last.is_some_and(|last| {
            let between =
                state.log.iter().filter(|stored| stored.seq() > last.seq && stored.seq() < published.seq);
            let mut resets = between.filter_map(|stored| match stored.entry.kind {
                EntryKind::Reset { version_below } => Some(version_below),
                _ => None,
            });
            resets.any(|below| published.version < below)
        });
        state.readers[index].served = Some(published);
        if !is_true {
            state.breach("LG-11", "a version is served with other bits than its entry leads to");
        }
        if !is_in_log {
            state.breach("LG-1", "a version is served that is not in the log");
        }
        // A reader that comes back serves again what it served; never anything before it.
        if last.is_some_and(|last| published.seq < last.seq) || falls && !may_fall && last != Some(published)
        {
            state.breach("LG-7", "a reader goes back");
        }
    }

    /// The next thing that a reader does to its disk, or asks the store.
    pub(crate) fn reader_does(&self, state: &mut State, index: usize) {
        let Some(command) = state.readers[index].todo.take() else { return };
        let event = match &command {
            Command::CheckBlobs(stored) => self.check(state, index, stored),
            Command::Apply(stored) if !self.has_blobs(state, &stored.entry) => {
                self.meets_nothing(state, index);
                Event::Written(Writing::Missing)
            }
            Command::Apply(stored) => {
                let writing = self.apply(state, index, stored);
                Event::Written(writing)
            }
            command => {
                self.persist(state, index, command);
                Event::Persisted
            }
        };
        self.reader_event(state, index, event);
    }

    fn check(&self, state: &mut State, index: usize, stored: &Stored) -> Event {
        if !self.has_blobs(state, &stored.entry) {
            self.meets_nothing(state, index);
            return Event::Blobs(Presence::Missing);
        }
        state.readers[index].checked = Some(stored.seq());
        Event::Blobs(Presence::All)
    }

    /// LG-8: who keeps its lease never meets what retention deleted.
    fn meets_nothing(&self, state: &mut State, index: usize) {
        let reader = &state.readers[index];
        if self.leasing == Leasing::Kept && !reader.has_stalled {
            state.breach("LG-8", "a reader whose lease moves meets a blob that is gone");
        }
    }

    fn persist(&self, state: &mut State, index: usize, command: &Command) {
        let reader = &mut state.readers[index];
        match command {
            Command::PersistDirty(dirty) => {
                reader.disk.dirty = Some(*dirty);
                if reader.checked != Some(dirty.seq) {
                    state.breach("LG-13", "weights are about to change, and no one saw every blob");
                }
            }
            Command::PersistCursor(cursor) => {
                reader.disk = Memory { cursor: Some(**cursor), dirty: None };
                let held = cursor.held;
                let weights = reader.weights;
                let truth = held.and_then(|held| values(&state.at(held.seq)?.entry));
                if held.is_some() && truth.is_none_or(|values| weights != Weights::Whole(values.to)) {
                    state.breach("LG-6", "the cursor says that the weights are what they are not");
                }
            }
            _ => {}
        }
    }

    /// Begins to write: what is in the weights if it goes no further.
    fn begin(&self, state: &mut State, index: usize, stored: &Stored) {
        let seq = stored.seq();
        let reader = &mut state.readers[index];
        let is_marked = reader.disk.dirty == Some(Dirty { seq, object: stored.object });
        let written = values(&stored.entry);
        let base = written.and_then(|values| values.base);
        let before = reader.weights;
        // A delta that was written and not yet remembered may be written again.
        let is_again = is_marked && written.is_some_and(|values| before == Weights::Whole(values.to));
        let fits = match (base, before) {
            (None, _) => true,
            (Some(_), Weights::Whole(_)) if is_again => true,
            (Some(base), Weights::Whole(bits)) => bits == base,
            (Some(base), Weights::Mixed(bits, of)) => bits == base && of == seq,
            (Some(_), Weights::Nothing | Weights::Torn) => false,
        };
        reader.weights = match base {
            Some(base) if fits => Weights::Mixed(base, seq),
            _ => Weights::Torn,
        };
        if !is_marked {
            state.breach("LG-6", "weights are written without a mark that names the entry");
        }
        if !fits {
            state.breach("LG-5", "a delta is written on another base");
        }
    }

    fn apply(&self, state: &mut State, index: usize, stored: &Stored) -> Writing {
        self.begin(state, index, stored);
        let to = values(&stored.entry).map(|values| values.to);
        let reader = &mut state.readers[index];
        match to {
            Some(bits) => reader.weights = Weights::Whole(bits),
            None => return Writing::BadBlob,
        }
        Writing::Applied
    }

    /// Writing fails half way.
    pub(crate) fn fail_apply(&self, state: &mut State, index: usize) {
        let Some(Command::Apply(stored)) = state.readers[index].todo.take() else { return };
        self.begin(state, index, &stored);
        self.reader_event(state, index, Event::Written(Writing::Failed(Fault::Unavailable)));
    }

    /// A reader dies before or after what it was doing took effect; a write, before it began or half way.
    pub(crate) fn kill_reader(&self, state: &mut State, index: usize, is_done: bool) {
        match state.readers[index].todo.take() {
            Some(Command::Apply(stored)) if is_done => self.begin(state, index, &stored),
            Some(command) if is_done => self.persist(state, index, &command),
            _ => {}
        }
        self.start_reader(state, index);
    }

    pub(crate) fn poll(&self, state: &mut State, index: usize) {
        state.readers[index].waits = None;
        self.reader_event(state, index, Event::TimerFired(LogTimer::Poll));
    }

    pub(crate) fn put_lease(&self, state: &mut State, index: usize) {
        let Some(lease) = state.readers[index].lease.take() else { return };
        state.leases.insert(format!("r{index}"), lease);
        (state.readers[index].has_renewed, state.readers[index].has_lease) = (true, true);
        if self.defect != Defect::LateLease {
            self.reader_event(state, index, Event::LeasePut);
        }
    }

    /// A reader that believes any delta whose base has its own version's number.
    pub(crate) fn naive_reader(&self, state: &mut State, index: usize) -> bool {
        if self.defect != Defect::NoLineage {
            return false;
        }
        let reader = &state.readers[index];
        let is_next = |stored: &&Stored| match (&stored.entry.kind, reader.weights) {
            (EntryKind::Delta { base_version, .. }, Weights::Whole(bits)) => {
                base_version.0 == u64::from(bits.version)
            }
            (EntryKind::Anchor(_), Weights::Nothing) => true,
            _ => false,
        };
        let Some(stored) = state.log.iter().rev().find(is_next).cloned() else { return false };
        let dirty = Dirty { seq: stored.seq(), object: stored.object };
        state.readers[index].disk.dirty = Some(dirty);
        self.apply(state, index, &stored);
        true
    }

    /// The last publication that has effect.
    pub(crate) fn last(state: &State) -> Option<Seq> {
        let mut epoch = None;
        let mut last = None;
        for stored in &state.log {
            if matches!(stored.entry.kind, EntryKind::Epoch | EntryKind::Genesis(_)) {
                epoch = epoch.max(Some(stored.entry.fence()));
            }
            if epoch == Some(stored.entry.fence()) && stored.entry.kind.publication().is_some() {
                last = Some(stored.seq());
            }
        }
        last
    }
}
