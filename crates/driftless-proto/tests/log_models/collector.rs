//! The collector: its shell, and what may not be deleted.

use crate::state::{Collector, State};
use crate::stream::{Defect, Step, Stream};
use crate::words::{PATIENCE, epoch_after, names, object};
use crate::writer::{last_after, reading};
use driftless_proto::log::{
    BlobKey, FollowEvent, Leasing, LogTimer, Retire, RetireCommand as Command, RetireEvent as Event,
    RetireMode, RetireOptions, Stored,
};
use driftless_types::{Entry, EntryKind, Seq};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

impl Stream {
    pub(crate) fn collector_steps(&self, state: &State, steps: &mut Vec<Step>) {
        let anchors =
            state.log.iter().filter(|stored| matches!(stored.entry.kind, EntryKind::Anchor(_))).count();
        match &state.collector {
            Collector::Due if anchors > 1 => steps.push(Step::StartCollector),
            Collector::Running(_, Some(_)) => steps.push(Step::Collect),
            // Whoever has a lease and does not stand still has renewed it in that time; one that begins may be slow.
            Collector::Running(_, None) => {
                let mut readers = state.readers.iter();
                let is_over =
                    readers.all(|reader| !reader.has_lease || reader.has_renewed || reader.has_stalled);
                let is_over = is_over || self.leasing == Leasing::None || self.defect == Defect::NoWait;
                steps.extend(is_over.then_some(Step::LeaseTtl));
            }
            Collector::Due | Collector::None => {}
        }
    }

    pub(crate) fn start_collector(&self, state: &mut State) {
        let options =
            RetireOptions { mode: RetireMode::Retire, signer: None, patience: PATIENCE, look_back_max: 100 };
        let (machine, commands) = Retire::new(options);
        state.collector = Collector::Running(Box::new(machine), None);
        self.collector_commands(state, commands);
    }

    fn collector_event(&self, state: &mut State, event: Event) {
        let Collector::Running(machine, _) = &mut state.collector else { return };
        let commands = machine.handle(event);
        self.collector_commands(state, commands);
    }

    fn collector_commands(&self, state: &mut State, commands: Vec<Command>) {
        let mut queue = VecDeque::from(commands);
        while let Some(command) = queue.pop_front() {
            let event = match command {
                Command::Read(seq) => Event::Read(reading(state, seq)),
                Command::List { after } => Event::Listed(last_after(state, after)),
                Command::Verify(stored) if self.has_blobs(state, &stored.entry) => Event::Verified,
                Command::Verify(_) => Event::Damaged,
                Command::NameBlobs(stored) => {
                    Event::Named(names(&stored.entry).into_iter().map(|key| key.digest).collect())
                }
                Command::ArmTimer { id: LogTimer::Retry, .. } => Event::TimerFired(LogTimer::Retry),
                Command::ArmTimer { .. } => {
                    state.readers.iter_mut().for_each(|reader| reader.has_renewed = false);
                    continue;
                }
                Command::Done { .. } | Command::Stopped(_) => {
                    state.collector = Collector::None;
                    return;
                }
                Command::Retired(_) | Command::StoreDown(_) | Command::WouldDelete(_) => continue,
                todo => {
                    if let Collector::Running(_, due) = &mut state.collector {
                        *due = Some(todo);
                    }
                    continue;
                }
            };
            let Collector::Running(machine, _) = &mut state.collector else { return };
            queue.extend(machine.handle(event));
        }
    }

    pub(crate) fn collect(&self, state: &mut State) {
        let Collector::Running(_, todo) = &mut state.collector else { return };
        let event = match todo.take() {
            Some(Command::Create(entry)) => self.append(state, &entry),
            Some(Command::ReadLeases) => Event::Leases(state.leases.clone()),
            Some(Command::ListBlobs { after: None }) => Event::Blobs(self.page(state)),
            Some(Command::ListBlobs { .. }) => Event::Blobs(BTreeSet::new()),
            Some(Command::Delete(keys)) => {
                keys.iter().for_each(|key| self.delete(state, key));
                Event::Deleted
            }
            _ => return,
        };
        self.collector_event(state, event);
    }

    fn append(&self, state: &mut State, entry: &Arc<Entry>) -> Event {
        if self.create_if_absent(state, entry) { Event::Created(object(entry)) } else { Event::CreateFailed }
    }

    /// Keys without an epoch do not say whose they are: what the owner did not put in this life counts as older.
    fn page(&self, state: &State) -> BTreeSet<BlobKey> {
        if self.defect != Defect::KeysWithoutEpoch {
            return state.blobs.clone();
        }
        let epoch = epoch_after(&state.log).counter;
        let shown = |key: &BlobKey| {
            let named = state.log.iter().rev().find(|stored| is_named(stored, key));
            let is_own =
                state.writers.iter().any(|writer| writer.put.contains(key) && writer.machine.is_some());
            let whose = if is_own { epoch } else { 0 };
            BlobKey { epoch: named.map_or(whose, |stored| stored.entry.epoch), ..*key }
        };
        state.blobs.iter().map(shown).collect()
    }

    fn delete(&self, state: &mut State, key: &BlobKey) {
        let is_bare = self.defect == Defect::KeysWithoutEpoch;
        let key = if is_bare { BlobKey { epoch: 0, ..*key } } else { *key };
        state.blobs.remove(&key);
        let mut bounds = state.log.iter().filter_map(|stored| match stored.entry.kind {
            EntryKind::Retire { keep_from, .. } => Some(keep_from),
            _ => None,
        });
        let Some(keep_from) = bounds.next_back() else { return };
        let is_kept = |stored: &&Stored| stored.seq() >= keep_from || stored.seq() == Seq::GENESIS;
        if state.log.iter().filter(is_kept).any(|stored| !self.has_blobs(state, &stored.entry)) {
            state.breach("LG-9", "a blob is deleted that an entry which is kept names");
        }
    }

    pub(crate) fn lease_ttl(&self, state: &mut State) {
        self.collector_event(state, Event::TimerFired(LogTimer::LeaseTtl));
    }

    pub(crate) fn renew_lease(&self, state: &mut State, index: usize) {
        state.readers[index].is_lease_armed = false;
        self.reader_event(state, index, FollowEvent::TimerFired(LogTimer::Lease));
    }

    pub(crate) fn forget_epochs(&self, state: &mut State) {
        let bare = |key: BlobKey| {
            let is_genesis = state.log.first().is_some_and(|genesis| names(&genesis.entry).contains(&key));
            if is_genesis { key } else { BlobKey { epoch: 0, ..key } }
        };
        state.blobs = state.blobs.iter().copied().map(bare).collect();
    }
}

fn is_named(stored: &Stored, key: &BlobKey) -> bool {
    names(&stored.entry).iter().any(|named| named.digest == key.digest)
}
