//! A stream with writers, readers and a collector, as a model.

use crate::state::{Collector, Faults, Reader, State, Weights, Writer};
use crate::words::{Bits, RUN, Values, digests_blob, genesis, manifest, names, stored, stream};
use driftless_proto::log::{
    Ask, Chain, Cursor, Fall, FollowCommand, Highest, Leasing, Memory, PublishCommand, Stored,
};
use driftless_types::{Entry, EntryKind, ObjectDigest, Publication, Seq, Version, Writers};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is done worse than it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Defect {
    None,
    /// A creation that finds its key taken counts as done.
    TrustedExists,
    /// Creations overwrite.
    Overwritten,
    /// Readers take any delta whose base has their version's number.
    NoLineage,
    /// Blobs lie under their digest alone, and what is there is not put again.
    KeysWithoutEpoch,
    /// Readers read the bound before their lease is there.
    LateLease,
    /// The collector does not wait for leases to move.
    NoWait,
}

/// A trainer and what it publishes.
#[derive(Clone, Debug)]
pub(crate) struct Trainer {
    pub(crate) history: u8,
    pub(crate) asks: Vec<Ask>,
    /// Whether the log's last entries are its own, and it goes on from them.
    pub(crate) is_owner: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) trainers: Vec<Trainer>,
    pub(crate) ranks: u32,
    /// What is in the log at the beginning: versions of history 0, each with the base of its delta.
    pub(crate) begins_with: Vec<(u64, Option<u64>)>,
    /// Where each reader is at the beginning: `None` if it has nothing yet.
    pub(crate) readers: Vec<Option<u64>>,
    pub(crate) leasing: Leasing,
    pub(crate) collects: bool,
    pub(crate) faults: Faults,
    pub(crate) defect: Defect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    StartWriter(usize),
    Write(usize),
    FailWrite(usize),
    LoseReply(usize),
    Delay(usize),
    Land(usize),
    /// With what was under way carried out, or not.
    KillWriter(usize, bool),
    Read(usize),
    FailApply(usize),
    KillReader(usize, bool),
    Poll(usize),
    PutLease(usize),
    RenewLease(usize),
    Stall(usize),
    Naive(usize),
    StartCollector,
    Collect,
    LeaseTtl,
}

impl Stream {
    /// The log at the beginning, with its blobs.
    fn initial_log(&self) -> Vec<Stored> {
        let mut log = Vec::new();
        if self.begins_with.is_empty() {
            return log;
        }
        self.push(&mut log, EntryKind::Genesis(genesis()));
        for &(version, base) in &self.begins_with {
            let to = Bits::of(0, Version(version));
            let values = Values { to, base: base.map(|base| Bits::of(0, Version(base))) };
            let writers = (0..self.ranks).map(|rank| manifest(rank, values)).collect();
            let publication = Publication {
                version: Version(version),
                writer_count: self.ranks,
                writers: Writers::Inline(writers),
                digests: digests_blob(to),
            };
            let kind = match base {
                None => EntryKind::Anchor(publication),
                Some(base) => EntryKind::Delta { base_version: Version(base), publication },
            };
            self.push(&mut log, kind);
        }
        log
    }

    fn push(&self, log: &mut Vec<Stored>, kind: EntryKind) {
        let parent = log.last().map_or(ObjectDigest::ZERO, |last: &Stored| last.object);
        let (seq, stream) = (Seq(log.len() as u64), stream(0));
        log.push(stored(Arc::new(Entry { stream, seq, epoch: 1, created_by: 0, parent, kind })));
    }

    fn initial_reader(&self, log: &[Stored], version: Option<u64>) -> Reader {
        let mut reader = self.new_reader();
        let is_there = |stored: &&Stored| stored.published().map(|held| held.version.0) == version;
        let at = version.and_then(|_| log.iter().find(is_there));
        let Some((entry, held)) = at.and_then(|entry| Some((entry, entry.published()?))) else {
            return reader;
        };
        let epoch = entry.entry.fence();
        let chain = Chain {
            stream: entry.entry.stream,
            seq: held.seq,
            object: held.object,
            epoch,
            last: Some(held),
            fall: Fall::Refused,
        };
        let highest = Highest { epoch, seq: held.seq, object: held.object, version: Some(held.version) };
        let cursor = Cursor { run: RUN, chain, held: Some(held), highest };
        reader.disk = Memory { cursor: Some(cursor), dirty: None };
        reader.weights = Weights::Whole(Bits::of(0, held.version));
        reader.served = Some(held);
        reader
    }

    fn writer_steps(&self, state: &State, index: usize, steps: &mut Vec<Step>) {
        let writer = &state.writers[index];
        if writer.machine.is_none() {
            return steps.push(Step::StartWriter(index));
        }
        let faults = &state.faults;
        match &writer.todo {
            Some(PublishCommand::Create(_)) => {
                steps.push(Step::Write(index));
                steps.extend((faults.lost_replies > 0).then_some(Step::LoseReply(index)));
                steps.extend((faults.delays > 0).then_some(Step::Delay(index)));
            }
            Some(_) => {
                steps.push(Step::Write(index));
                steps.extend((faults.io > 0).then_some(Step::FailWrite(index)));
            }
            None => return,
        }
        if faults.writer_deaths > 0 {
            steps.push(Step::KillWriter(index, false));
            let is_create = matches!(writer.todo, Some(PublishCommand::Create(_)));
            steps.extend(is_create.then_some(Step::KillWriter(index, true)));
        }
    }

    fn reader_steps(&self, state: &State, index: usize, steps: &mut Vec<Step>) {
        if self.defect == Defect::NoLineage {
            return steps.push(Step::Naive(index));
        }
        let (reader, faults) = (&state.readers[index], &state.faults);
        steps.extend(reader.lease.is_some().then_some(Step::PutLease(index)));
        let is_waiting = matches!(&state.collector, Collector::Running(_, None));
        let is_renewable =
            reader.is_lease_armed && is_waiting && !reader.has_renewed && reader.lease.is_none();
        steps.extend(is_renewable.then_some(Step::RenewLease(index)));
        if let Some(command) = &reader.todo {
            steps.push(Step::Read(index));
            let is_apply = matches!(command, FollowCommand::Apply(_));
            steps.extend((is_apply && faults.io > 0).then_some(Step::FailApply(index)));
            if faults.reader_deaths > 0 {
                steps.push(Step::KillReader(index, false));
                let changes = !matches!(command, FollowCommand::CheckBlobs(_));
                steps.extend(changes.then_some(Step::KillReader(index, true)));
            }
            let may_stall = self.leasing == Leasing::Kept && faults.stalls > 0 && !reader.has_stalled;
            steps.extend(may_stall.then_some(Step::Stall(index)));
        }
        steps
            .extend(reader.waits.is_some_and(|length| length < state.log.len()).then_some(Step::Poll(index)));
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        if state.breach.is_some() {
            return steps;
        }
        (0..state.writers.len()).for_each(|index| self.writer_steps(state, index, &mut steps));
        (0..state.readers.len()).for_each(|index| self.reader_steps(state, index, &mut steps));
        steps.extend((0..state.on_the_way.len()).map(Step::Land));
        self.collector_steps(state, &mut steps);
        steps
    }

    fn spend(faults: &mut Faults, step: Step) {
        match step {
            Step::FailWrite(_) | Step::FailApply(_) => faults.io -= 1,
            Step::LoseReply(_) => faults.lost_replies -= 1,
            Step::Delay(_) => faults.delays -= 1,
            Step::KillWriter(..) => faults.writer_deaths -= 1,
            Step::KillReader(..) => faults.reader_deaths -= 1,
            Step::Stall(_) => faults.stalls -= 1,
            _ => {}
        }
    }

    /// What must hold when nothing more happens: whoever was not fenced is done, and every reader is at the end.
    fn is_at_rest_as_it_should(&self, state: &State) -> bool {
        let is_done = |writer: &Writer| {
            let is_idle = writer.machine.as_ref().is_some_and(|machine| machine.is_free());
            !is_idle || writer.asks.is_empty()
        };
        let last = Self::last(state);
        let is_current = |reader: &Reader| reader.machine.serves().map(|held| held.seq) == last;
        let is_collected = matches!(state.collector, Collector::None);
        state.writers.iter().all(is_done) && state.readers.iter().all(is_current) && is_collected
    }
}

impl Model for Stream {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let log = self.initial_log();
        let published = log.last().map(|last| last.object);
        let writer = |trainer: &Trainer| Writer {
            history: trainer.history,
            asks: trainer.asks.clone(),
            life: 0,
            published: published.filter(|_| trainer.is_owner),
            machine: None,
            todo: None,
            bodies: BTreeMap::new(),
            put: BTreeSet::new(),
        };
        let mut state = State {
            blobs: log.iter().flat_map(|stored| names(&stored.entry)).collect(),
            on_the_way: Vec::new(),
            writers: self.trainers.iter().map(writer).collect(),
            readers: self.readers.iter().map(|&version| self.initial_reader(&log, version)).collect(),
            leases: BTreeMap::new(),
            collector: if self.collects { Collector::Due } else { Collector::None },
            faults: self.faults,
            breach: None,
            log,
        };
        if self.defect == Defect::KeysWithoutEpoch {
            self.forget_epochs(&mut state);
        }
        if self.defect != Defect::NoLineage {
            (0..state.readers.len()).for_each(|index| self.start_reader(&mut state, index));
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        actions.extend(self.steps(state));
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        Self::spend(&mut state.faults, step);
        match step {
            Step::StartWriter(index) => self.start_writer(&mut state, index),
            Step::Write(index) => self.writer_does(&mut state, index),
            Step::FailWrite(index) => self.fail_write(&mut state, index),
            Step::LoseReply(index) => self.lose_reply(&mut state, index),
            Step::Delay(index) => self.delay(&mut state, index),
            Step::Land(at) => self.land(&mut state, at),
            Step::KillWriter(index, is_done) => self.kill_writer(&mut state, index, is_done),
            Step::Read(index) => self.reader_does(&mut state, index),
            Step::FailApply(index) => self.fail_apply(&mut state, index),
            Step::KillReader(index, is_done) => self.kill_reader(&mut state, index, is_done),
            Step::Poll(index) => self.poll(&mut state, index),
            Step::PutLease(index) => self.put_lease(&mut state, index),
            Step::RenewLease(index) => self.renew_lease(&mut state, index),
            Step::Stall(index) => state.readers[index].has_stalled = true,
            Step::Naive(index) => {
                if !self.naive_reader(&mut state, index) {
                    return None;
                }
            }
            Step::StartCollector => self.start_collector(&mut state),
            Step::Collect => self.collect(&mut state),
            Step::LeaseTtl => self.lease_ttl(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every promise", |_, state: &State| state.breach.is_none()),
            Property::always("at rest everyone is done", |model: &Self, state: &State| {
                state.breach.is_some()
                    || !model.steps(state).is_empty()
                    || model.is_at_rest_as_it_should(state)
            }),
            Property::sometimes("all is published and read", |model: &Self, state: &State| {
                state.writers.iter().any(|writer| writer.asks.is_empty())
                    && model.steps(state).is_empty()
                    && model.is_at_rest_as_it_should(state)
            }),
        ]
    }
}
