//! A reader with its disk and its weights, on a log in memory.

use crate::words::{Log, patience};
use driftless_proto::log::{
    Cursor, Done, Follow, FollowCommand as Command, FollowEvent as Event, FollowOptions, FollowStop, Goal,
    Lease, Leasing, LogTimer, Memory, Presence, Published, Reading, Trouble, Writing,
};
use driftless_types::{EntryKind, Seq};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// What a run ended with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done(Done),
    Stopped(FollowStop),
    /// At the end of the log, or blocked, until it polls.
    Waits,
    /// Cut off before this command was carried out.
    Cut,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) log: Vec<driftless_proto::log::Stored>,
    pub(crate) listed: Option<Option<Seq>>,
    pub(crate) missing: BTreeSet<u64>,
    pub(crate) invalid: BTreeSet<u64>,
    /// How writing an entry goes wrong, so often.
    pub(crate) faults: BTreeMap<u64, (Writing, u32)>,
    pub(crate) disk: Memory,
    /// What is in the weights, entry by entry: an anchor begins anew.
    pub(crate) weights: Vec<Seq>,
    /// The weights as they were at each cursor.
    pub(crate) is_torn: bool,
    /// What was said, in words.
    pub(crate) trace: Vec<String>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) cut_before: Option<&'static str>,
}

pub(crate) const fn options(goal: Goal) -> FollowOptions {
    FollowOptions {
        goal,
        leasing: Leasing::Kept,
        patience: patience(),
        poll_after: Duration::from_secs(1),
        look_back_max: 100,
        lease_counter: 40,
    }
}

impl World {
    pub(crate) fn of(log: &Log) -> Self {
        Self { log: log.0.clone(), ..Self::default() }
    }

    /// Runs a life of a reader until nothing more happens by itself.
    pub(crate) fn live(&mut self, options: FollowOptions) -> (Follow, End) {
        let (mut follow, commands) = Follow::new(options, self.disk);
        let end = self.run(&mut follow, commands);
        (follow, end)
    }

    /// The log has grown, or the world is better now, and the reader looks again.
    pub(crate) fn poll(&mut self, follow: &mut Follow) -> End {
        let commands = follow.handle(Event::TimerFired(LogTimer::Poll));
        self.run(follow, commands)
    }

    fn run(&mut self, follow: &mut Follow, commands: Vec<Command>) -> End {
        let mut queue = VecDeque::from(commands);
        while let Some(command) = queue.pop_front() {
            let word = word(&command);
            self.trace.extend(word.clone());
            if self.cut_before.is_some_and(|cut| word.is_some_and(|word| word.starts_with(cut))) {
                return End::Cut;
            }
            let event = match command {
                Command::Done(done) => return End::Done(done),
                Command::Stopped(stop) => return End::Stopped(stop),
                Command::ArmTimer { id: LogTimer::Retry, .. } => Event::TimerFired(LogTimer::Retry),
                Command::ArmTimer { .. } | Command::Serve(_) | Command::Report(_) => continue,
                command => self.answer(command),
            };
            queue.extend(follow.handle(event));
        }
        End::Waits
    }

    fn answer(&mut self, command: Command) -> Event {
        match command {
            Command::Read(seq) => Event::Read(self.read(seq)),
            Command::List { after } => {
                let last = Seq(self.log.len() as u64 - 1);
                Event::Listed(self.listed.unwrap_or_else(|| (last > after).then_some(last)))
            }
            Command::CheckBlobs(stored) => {
                let is_missing = self.missing.contains(&stored.seq().0);
                Event::Blobs(if is_missing { Presence::Missing } else { Presence::All })
            }
            Command::PersistDirty(dirty) => {
                self.disk.dirty = Some(dirty);
                Event::Persisted
            }
            Command::Apply(stored) => Event::Written(self.apply(stored.seq(), &stored.entry.kind)),
            Command::PersistCursor(cursor) => {
                self.disk = Memory { cursor: Some(*cursor), dirty: None };
                Event::Persisted
            }
            Command::PutLease(lease) => {
                self.leases.push(lease);
                Event::LeasePut
            }
            command => unreachable!("{command:?}"),
        }
    }

    fn read(&self, seq: Seq) -> Reading {
        if self.invalid.contains(&seq.0) {
            return Reading::Invalid;
        }
        let at = usize::try_from(seq.0).expect("small");
        self.log.get(at).map_or(Reading::Absent, |stored| Reading::Found(stored.clone()))
    }

    fn apply(&mut self, seq: Seq, kind: &EntryKind) -> Writing {
        assert!(self.disk.dirty.is_some_and(|dirty| dirty.seq == seq), "LG-6: marked before it is written");
        self.is_torn = true;
        if let Some((writing, left)) = self.faults.get_mut(&seq.0)
            && *left > 0
        {
            *left -= 1;
            return *writing;
        }
        if matches!(kind, EntryKind::Anchor(_)) {
            self.weights.clear();
        }
        if self.weights.last() != Some(&seq) {
            self.weights.push(seq);
        }
        self.is_torn = false;
        Writing::Applied
    }

    pub(crate) fn cursor(&self) -> Cursor {
        self.disk.cursor.expect("a cursor was persisted")
    }

    pub(crate) fn held(&self) -> Option<Published> {
        self.disk.cursor.and_then(|cursor| cursor.held)
    }

    /// What was said since the last time.
    pub(crate) fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.trace)
    }

    pub(crate) fn weights(&self) -> Vec<u64> {
        assert!(!self.is_torn);
        self.weights.iter().map(|seq| seq.0).collect()
    }
}

fn word(command: &Command) -> Option<String> {
    let word = match command {
        Command::Read(seq) => format!("read {seq}"),
        Command::List { after } => format!("list {after}"),
        Command::CheckBlobs(stored) => format!("check {}", stored.seq()),
        Command::PersistDirty(dirty) => format!("dirty {}", dirty.seq),
        Command::Apply(stored) => format!("apply {}", stored.seq()),
        Command::PersistCursor(cursor) => format!("cursor {}", cursor.chain.seq),
        Command::PutLease(lease) => format!("lease {}", lease.pinned),
        Command::Serve(published) => format!("serve {}", published.version),
        Command::Report(trouble) => format!("report {trouble:?}"),
        Command::ArmTimer { .. } | Command::Done(_) | Command::Stopped(_) => return None,
    };
    Some(word)
}

/// A trouble as the trace tells it.
pub(crate) fn report(trouble: Trouble) -> String {
    format!("report {trouble:?}")
}
