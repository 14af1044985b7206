use crate::words::{Log, anchor, blob, delta, epoch, patience};
use driftless_proto::log::{
    BlobKey, Fault, Lease, LogTimer, Reading, Retire, RetireCommand as Command, RetireEvent as Event,
    RetireMode, RetireOptions, RetireStop, Stored,
};
use driftless_types::{AnchorRef, EntryKind, KeyId, ObjectDigest, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// 1: anchor 1, 2: delta 2, 3: anchor 3, 4: delta 4, 5: anchor 5, 6: epoch 2, 7: delta 6.
fn log() -> Log {
    let log = Log::founded().then(1, anchor(1)).then(1, delta(1, 2)).then(1, anchor(3)).then(1, delta(3, 4));
    log.then(1, anchor(5)).then(2, EntryKind::Epoch).then(2, delta(5, 6))
}

fn key(epoch: u64, seq: u64) -> BlobKey {
    BlobKey { epoch, digest: blob(seq).digest }
}

/// Each entry names one blob of its own.
fn names(seq: Seq) -> BTreeSet<ObjectDigest> {
    [blob(seq.0).digest].into()
}

struct World {
    log: Log,
    mode: RetireMode,
    leases: [BTreeMap<String, Lease>; 2],
    damaged: Option<u64>,
    /// What another writer appends first.
    rival: Option<(u64, EntryKind)>,
    blobs: BTreeSet<BlobKey>,
    deleted: BTreeSet<BlobKey>,
    trace: Vec<String>,
    /// The key that signed every entry of the log, and the collector's own.
    keys: [Option<KeyId>; 2],
}

impl World {
    fn of(log: Log) -> Self {
        let mut blobs: BTreeSet<BlobKey> =
            log.0.iter().map(|stored| key(stored.entry.epoch, stored.seq().0)).collect();
        // What nobody names: of the last epoch, and of the one in force.
        blobs.extend([key(1, 77), key(2, 88)]);
        let leases = [BTreeMap::new(), BTreeMap::new()];
        let (deleted, trace) = (BTreeSet::new(), Vec::new());
        Self {
            log,
            mode: RetireMode::Retire,
            leases,
            damaged: None,
            rival: None,
            blobs,
            deleted,
            trace,
            keys: [None; 2],
        }
    }

    fn run(&mut self) -> Command {
        let options =
            RetireOptions { mode: self.mode, signer: self.keys[1], patience: patience(), look_back_max: 100 };
        let (mut retire, mut commands) = Retire::new(options);
        loop {
            let mut answers = Vec::new();
            for command in commands {
                if matches!(command, Command::Done { .. } | Command::Stopped(_)) {
                    return command;
                }
                answers.extend(self.answer(command));
            }
            assert_eq!(answers.len(), 1, "one answer is awaited at a time");
            commands = answers.into_iter().flat_map(|event| retire.handle(event)).collect();
        }
    }

    fn answer(&mut self, command: Command) -> Option<Event> {
        let event = match command {
            Command::Read(seq) => {
                Event::Read(Reading::Found(Stored { signer: self.keys[0], ..self.log.at(seq.0) }))
            }
            Command::List { .. } => Event::Listed(Some(Seq(self.log.0.len() as u64 - 1))),
            Command::Verify(stored) => {
                self.trace.push(format!("verify {}", stored.seq()));
                if self.damaged == Some(stored.seq().0) { Event::Damaged } else { Event::Verified }
            }
            Command::Create(entry) => self.create(&entry),
            Command::ReadLeases => {
                let count = self.trace.iter().filter(|word| *word == "leases").count();
                self.trace.push("leases".to_owned());
                Event::Leases(self.leases[count.min(1)].clone())
            }
            Command::NameBlobs(stored) => Event::Named(names(stored.seq())),
            Command::ListBlobs { after } => {
                let rest = self.blobs.iter().filter(|key| Some(**key) > after);
                Event::Blobs(rest.take(2).copied().collect())
            }
            Command::Delete(keys) => {
                self.deleted.extend(keys);
                Event::Deleted
            }
            Command::WouldDelete(keys) => {
                self.deleted.extend(keys);
                return None;
            }
            Command::ArmTimer { id, after } => {
                self.trace.push(format!("{id:?} {after:?}"));
                Event::TimerFired(id)
            }
            Command::Retired(_) | Command::StoreDown(_) => return None,
            command => unreachable!("{command:?}"),
        };
        Some(event)
    }

    fn create(&mut self, entry: &Arc<driftless_types::Entry>) -> Event {
        if let Some((counter, kind)) = self.rival.take() {
            self.log = self.log.clone().then(counter, kind);
            return Event::CreateFailed;
        }
        self.trace.push("create".to_owned());
        let counter = entry.epoch;
        self.log = self.log.clone().then(counter, entry.kind.clone());
        assert_eq!(self.log.0.last().map(|last| &*last.entry), Some(&**entry));
        Event::Created(self.log.0[self.log.0.len() - 1].object)
    }
}

fn lease(counter: u64, pinned: u64) -> BTreeMap<String, Lease> {
    [("reader".to_owned(), Lease { counter, pinned: Seq(pinned) })].into()
}

#[test]
fn lg8_lg9_what_is_before_two_verified_anchors_goes_after_a_lease_time() {
    let mut world = World::of(log());
    assert_eq!(world.run(), Command::Done { keep_from: Seq(3) });
    assert_eq!(world.trace, ["verify 5", "verify 3", "create", "leases", "LeaseTtl 600s", "leases"]);
    let anchors = [5, 3].map(|seq| AnchorRef { seq: Seq(seq), object: world.log.at(seq).object }).to_vec();
    let entry = world.log.at(8);
    assert_eq!(entry.entry.kind, EntryKind::Retire { keep_from: Seq(3), anchors });
    assert_eq!(entry.entry.fence(), epoch(2));
    // LG-9: orphans of the last epoch go, what the epoch in force is writing stays, and genesis does.
    assert_eq!(world.deleted, [key(1, 1), key(1, 2), key(1, 77)].into());
}

#[test]
fn lg8_lg10_a_lease_that_moved_or_is_new_pins_and_one_that_stands_still_does_not() {
    let all: BTreeSet<BlobKey> = [key(1, 1), key(1, 2), key(1, 77)].into();
    let some: BTreeSet<BlobKey> = [key(1, 1), key(1, 77)].into();
    for (leases, expected) in [
        ([lease(4, 2), lease(5, 2)], &some),
        ([BTreeMap::new(), lease(4, 2)], &some),
        ([lease(5, 2), lease(4, 2)], &some),
        ([lease(4, 2), lease(4, 2)], &all),
        ([lease(4, 2), BTreeMap::new()], &all),
        ([lease(4, 9), lease(5, 9)], &all),
    ] {
        let mut world = World { leases, ..World::of(log()) };
        world.run();
        assert_eq!(world.deleted, *expected, "{:?}", world.leases);
    }
}

#[test]
fn lg8_a_damaged_anchor_is_never_kept_as_one_of_the_two() {
    for seq in [5, 3] {
        let mut world = World { damaged: Some(seq), ..World::of(log()) };
        assert_eq!(world.run(), Command::Stopped(RetireStop::DamagedAnchor { seq: Seq(seq) }));
        assert!(world.deleted.is_empty() && world.log.0.len() == 8);
    }
    let one = Log::founded().then(1, anchor(1)).then(1, delta(1, 2));
    assert_eq!(World::of(one).run(), Command::Stopped(RetireStop::TooFewAnchors));
}

#[test]
fn lg12_a_retire_goes_after_what_its_epoch_wrote_and_never_after_a_newer_one() {
    let mut world = World { rival: Some((2, delta(6, 7))), ..World::of(log()) };
    assert_eq!(world.run(), Command::Done { keep_from: Seq(3) });
    assert_eq!(world.log.at(9).entry.kind.name(), "retire");
    let mut world = World { rival: Some((3, EntryKind::Epoch)), ..World::of(log()) };
    assert_eq!(world.run(), Command::Stopped(RetireStop::Fenced { by: epoch(3) }));
    assert!(world.deleted.is_empty());
}

#[test]
fn lg8_a_rehearsal_changes_nothing() {
    let mut world =
        World { mode: RetireMode::Rehearse, leases: [lease(1, 2), lease(1, 2)], ..World::of(log()) };
    assert_eq!(world.run(), Command::Done { keep_from: Seq(2) });
    assert_eq!(world.trace, ["verify 5", "verify 3", "leases"]);
    assert_eq!((world.deleted.clone(), world.log.0.len()), ([key(1, 1), key(1, 77)].into(), 8));
}

#[test]
fn lg14_a_collector_without_a_key_appends_nothing_to_a_signed_stream() {
    let key = Some(KeyId([1; 8]));
    let mut world = World { keys: [key, None], ..World::of(log()) };
    let stop = RetireStop::Signed { seq: Seq(7), key: KeyId([1; 8]) };
    assert_eq!(world.run(), Command::Stopped(stop));
    assert_eq!((world.trace.len(), world.log.0.len()), (0, 8));
    for keys in [[key, key], [None, key]] {
        let mut world = World { keys, ..World::of(log()) };
        assert!(matches!(world.run(), Command::Done { .. }));
    }
    let mut rehearsal = World { mode: RetireMode::Rehearse, keys: [key, None], ..World::of(log()) };
    assert!(matches!(rehearsal.run(), Command::Done { .. }), "it writes nothing");
}

#[test]
fn a_collector_tries_on_while_the_store_is_down() {
    let options =
        RetireOptions { mode: RetireMode::Retire, signer: None, patience: patience(), look_back_max: 100 };
    let (mut retire, _) = Retire::new(options);
    let mut reports = 0;
    for _ in 0..6 {
        let said = retire.handle(Event::Failed(Fault::Unavailable));
        assert!(
            matches!(said[0], Command::ArmTimer { id: LogTimer::Retry, after } if after > Duration::ZERO)
        );
        reports += said.iter().filter(|&said| *said == Command::StoreDown(Fault::Unavailable)).count();
        assert_eq!(retire.handle(Event::TimerFired(LogTimer::Retry)), [Command::Read(Seq(0))]);
        assert_eq!(retire.handle(Event::TimerFired(LogTimer::Retry)), []);
    }
    assert_eq!(reports, 1);
}
