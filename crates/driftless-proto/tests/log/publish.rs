use crate::words::{
    Log, RUN, STREAM, anchor, blob, delta, epoch, genesis_kind, manifest, patience, publication, reset,
    stored,
};
use driftless_proto::log::{
    Ask, Fault, Lineage, LogTimer, Publish, PublishCommand as Command, PublishEvent as Event, PublishOptions,
    PublishStop, Published, Reading, Refusal, Stored, Task, TaskKind,
};
use driftless_types::{Entry, EntryKind, Epoch, KeyId, ObjectDigest, RunId, Seq, Version};
use std::sync::Arc;

fn options(counter: u64, lineage: Lineage) -> PublishOptions {
    PublishOptions {
        run: RUN,
        stream: STREAM,
        incarnation: epoch(counter).incarnation,
        counter,
        writer_count: 2,
        lineage,
        signer: None,
        patience: patience(),
        look_back_max: 100,
    }
}

fn creates(entry: Entry) -> Vec<Command> {
    vec![Command::Create(Arc::new(entry))]
}

fn found(stored: Stored) -> Event {
    Event::Read(Reading::Found(stored))
}

/// A publisher of epoch 2 that has read the log back, and what it says then.
fn read_back(log: &Log, lineage: Lineage) -> (Publish, Vec<Command>) {
    let (mut publish, commands) = Publish::new(options(2, lineage));
    assert_eq!(commands, [Command::Read(Seq(0))]);
    assert_eq!(publish.handle(found(log.at(0))), [Command::List { after: Seq(0) }]);
    let last = log.0.len() as u64 - 1;
    let mut commands = publish.handle(Event::Listed((last > 0).then_some(Seq(last))));
    while let [Command::Read(seq)] = commands[..] {
        commands = publish.handle(found(log.at(seq.0)));
    }
    (publish, commands)
}

/// The same with its epoch entry in the log.
fn opened(log: Log, lineage: Lineage) -> (Publish, Log) {
    let (mut publish, commands) = read_back(&log, lineage);
    assert_eq!(commands, creates(log.next(2, EntryKind::Epoch)));
    let last = log.0.iter().rev().find_map(Stored::published);
    let log = log.then(2, EntryKind::Epoch);
    let created = publish.handle(Event::Created(log.0[log.0.len() - 1].object));
    assert_eq!(created, [Command::Opened { epoch: epoch(2), last }]);
    (publish, log)
}

fn published_log() -> Log {
    Log::founded().then(1, anchor(1)).then(1, delta(1, 2))
}

fn continues(log: &Log) -> Lineage {
    Lineage::Continues(log.0[log.0.len() - 1].object)
}

const fn ask(base: Option<u64>, version: u64) -> Event {
    let base = match base {
        Some(base) => Some(Version(base)),
        None => None,
    };
    Event::Ask(Ask { version: Version(version), base })
}

fn writes(kind: TaskKind, version: u64) -> Vec<Command> {
    let task = Task { version: Version(version), kind, epoch: epoch(2) };
    vec![Command::Write { task, ranks: [0, 1].into() }]
}

/// Both writers write and the blobs are sealed: what is said then.
fn write(publish: &mut Publish, version: u64) -> Vec<Command> {
    assert_eq!(publish.handle(Event::Written(Version(version), manifest(0, version))), []);
    let sealing = publish.handle(Event::Written(Version(version), manifest(1, version)));
    assert!(matches!(sealing[..], [Command::Seal { .. }]), "{sealing:?}");
    let digests = blob(("digests", version));
    publish.handle(Event::Sealed { version: Version(version), digests, manifests: None })
}

fn is_published(publish: &mut Publish, log: &Log) {
    let last = &log.0[log.0.len() - 1];
    let expected: Published = last.published().expect("a publication");
    assert_eq!(publish.handle(Event::Created(last.object)), [Command::Published(expected)]);
    assert_eq!(publish.watermark(), Some(expected));
    assert!(publish.is_free());
}

#[test]
fn lg1_a_store_that_creates_what_exists_is_refused() {
    let (mut publish, _) = Publish::new(options(2, Lineage::Diverged));
    assert_eq!(publish.handle(Event::Read(Reading::Absent)), [Command::Probe]);
    let stop = Command::Stopped(PublishStop::IgnoresCondition);
    assert_eq!(publish.handle(Event::ProbeOverwritten), [stop]);
}

#[test]
fn lg1_a_chain_whose_parents_do_not_fit_is_refused() {
    let mut log = Log::founded().then(1, EntryKind::Epoch).then(1, EntryKind::Epoch);
    log.0[1] = stored(Entry { created_by: 0, ..(*log.0[1].entry).clone() });
    let (_, commands) = read_back(&log, Lineage::Diverged);
    assert_eq!(commands, [Command::Stopped(PublishStop::BrokenChain { seq: Seq(1) })]);
}

#[test]
fn lg3_lg4_who_founds_a_stream_puts_its_blobs_first_and_owns_it() {
    let (mut publish, _) = Publish::new(options(2, Lineage::Diverged));
    assert_eq!(publish.handle(Event::Read(Reading::Absent)), [Command::Probe]);
    assert_eq!(publish.handle(Event::ProbeKept), [Command::PutGenesis(epoch(2))]);
    let genesis = Log(Vec::new()).next(2, EntryKind::Genesis(genesis_kind(RUN)));
    let commands = publish.handle(Event::GenesisPut(genesis_kind(RUN)));
    assert_eq!(commands, creates(genesis.clone()));
    let log = Log(vec![stored(genesis)]);
    let created = publish.handle(Event::Created(log.at(0).object));
    assert_eq!(created, [Command::Opened { epoch: epoch(2), last: None }]);
    assert_eq!(publish.handle(ask(Some(0), 1)), writes(TaskKind::Anchor, 1));
}

#[test]
fn lg1_another_runs_genesis_is_refused() {
    let other = RunId([1; 16]);
    let genesis = Log(Vec::new()).then(1, EntryKind::Genesis(genesis_kind(other)));
    let (mut publish, _) = Publish::new(options(2, Lineage::Diverged));
    let stop = PublishStop::OtherRun { expected: RUN, found: other };
    assert_eq!(publish.handle(found(genesis.at(0))), [Command::Stopped(stop)]);
    assert_eq!(publish.handle(ask(None, 1)), [Command::Refused(Version(1), Refusal::Stopped)]);
}

/// A key that signed the entry at this place, as it is read.
fn signed(log: &Log, seq: u64, key: KeyId) -> Event {
    found(Stored { signer: Some(key), ..log.at(seq) })
}

#[test]
fn lg14_who_signs_nothing_appends_nothing_to_a_signed_stream() {
    let (log, key, other) = (published_log(), KeyId([1; 8]), KeyId([2; 8]));
    let begin = |signer| {
        let (mut publish, _) = Publish::new(PublishOptions { signer, ..options(2, Lineage::Diverged) });
        publish.handle(signed(&log, 0, key));
        assert_eq!(publish.handle(Event::Listed(Some(Seq(2)))), [Command::Read(Seq(2))]);
        publish
    };
    let mut unsigned = begin(None);
    let stop = PublishStop::Signed { seq: Seq(2), key };
    assert_eq!(unsigned.handle(signed(&log, 2, key)), [Command::Stopped(stop)]);
    assert!(stop.to_string().contains("entry 2, the newest, is signed by key 0101010101010101"));
    assert_eq!(unsigned.handle(ask(None, 3)), [Command::Refused(Version(3), Refusal::Stopped)]);
    // Another key may be one of the trusted.
    for own in [key, other] {
        let mut signs = begin(Some(own));
        assert_eq!(signs.handle(signed(&log, 2, key)), [Command::Read(Seq(1))]);
    }
    // What has an unsigned end already has no reader to lose by one more entry; nor has what never was signed.
    let mut mixed = begin(None);
    assert_eq!(mixed.handle(found(log.at(2))), [Command::Read(Seq(1))]);
    assert_eq!(mixed.handle(signed(&log, 1, key)), [Command::Read(Seq(0))]);
    assert_eq!(mixed.handle(signed(&log, 0, key)), creates(log.next(2, EntryKind::Epoch)));
    let mut signs = begin(Some(other));
    assert_eq!(signs.handle(found(log.at(2))), [Command::Read(Seq(1))]);
}

#[test]
fn lg12_a_stream_that_another_publisher_of_the_run_founded_first_is_taken_over() {
    let (mut publish, _) = Publish::new(options(2, Lineage::Diverged));
    publish.handle(Event::Read(Reading::Absent));
    publish.handle(Event::ProbeKept);
    publish.handle(Event::GenesisPut(genesis_kind(RUN)));
    assert_eq!(publish.handle(Event::CreateFailed), [Command::Read(Seq(0))]);
    let theirs =
        Entry { stream: driftless_types::StreamId([8; 16]), ..(*Log::founded().at(0).entry).clone() };
    assert_eq!(publish.handle(found(stored(theirs))), [Command::List { after: Seq(0) }]);
}

#[test]
fn lg4_a_takeover_is_an_epoch_entry_above_every_other_before_the_first_publication() {
    let log = published_log().then(7, EntryKind::Epoch);
    let (mut publish, commands) = read_back(&log, Lineage::Diverged);
    let mine = Epoch { counter: 8, incarnation: epoch(2).incarnation };
    let entry = Entry { epoch: 8, created_by: mine.incarnation, ..log.next(2, EntryKind::Epoch) };
    assert_eq!(commands, creates(entry.clone()));
    assert_eq!(publish.handle(ask(None, 5)), [Command::Refused(Version(5), Refusal::Busy)]);
    let opened = publish.handle(Event::Created(stored(entry).object));
    assert!(matches!(opened[..], [Command::Opened { epoch, .. }] if epoch == mine), "{opened:?}");
}

#[test]
fn lg4_lg12_a_stale_publisher_is_fenced_for_good() {
    let log = published_log();
    let lineage = continues(&log);
    let (mut publish, log) = opened(log, lineage);
    publish.handle(ask(Some(2), 3));
    assert_eq!(write(&mut publish, 3), creates(log.next(2, delta(2, 3))));
    assert_eq!(publish.handle(Event::CreateFailed), [Command::Read(Seq(4))]);
    let taken = log.then(3, EntryKind::Epoch);
    let stop = Command::Stopped(PublishStop::Fenced { by: epoch(3) });
    assert_eq!(publish.handle(found(taken.at(4))), [stop]);
    assert_eq!(publish.handle(ask(None, 4)), [Command::Refused(Version(4), Refusal::Stopped)]);
    assert_eq!(publish.handle(Event::TimerFired(LogTimer::Retry)), []);
}

#[test]
fn lg5_a_delta_follows_only_the_last_version_of_an_unbroken_lineage() {
    let log = published_log();
    let lineage = continues(&log);
    let (mut publish, log) = opened(log, lineage);
    assert_eq!(
        publish.handle(ask(Some(2), 2)),
        [Command::Refused(Version(2), Refusal::NotAbove(Version(2)))]
    );
    let kinds =
        [(Some(2), TaskKind::Delta(Version(2))), (Some(1), TaskKind::Anchor), (None, TaskKind::Anchor)];
    for (base, kind) in kinds {
        assert_eq!(publish.clone().handle(ask(base, 4)), writes(kind, 4));
    }
    publish.handle(ask(Some(2), 4));
    assert_eq!(write(&mut publish, 4), creates(log.next(2, delta(2, 4))));
    is_published(&mut publish, &log.then(2, delta(2, 4)));
    assert_eq!(publish.handle(ask(Some(4), 5)), writes(TaskKind::Delta(Version(4)), 5));
}

#[test]
fn lg5_weights_that_do_not_go_on_from_the_stream_begin_with_an_anchor() {
    for lineage in [Lineage::Diverged, Lineage::Continues(ObjectDigest([3; 32]))] {
        let (mut publish, log) = opened(published_log(), lineage);
        assert_eq!(publish.handle(ask(Some(2), 3)), writes(TaskKind::Anchor, 3));
        assert_eq!(write(&mut publish, 3), creates(log.next(2, anchor(3))));
        is_published(&mut publish, &log.then(2, anchor(3)));
        assert_eq!(publish.handle(ask(Some(3), 4)), writes(TaskKind::Delta(Version(3)), 4));
    }
}

#[test]
fn lg5_what_a_predecessor_appended_meanwhile_breaks_the_lineage() {
    let log = published_log();
    let (mut publish, _) = read_back(&log, continues(&log));
    assert_eq!(publish.handle(Event::CreateFailed), [Command::Read(Seq(3))]);
    let log = log.then(1, delta(2, 3));
    assert_eq!(publish.handle(found(log.at(3))), creates(log.next(2, EntryKind::Epoch)));
    let log = log.then(2, EntryKind::Epoch);
    let last = log.at(3).published();
    assert_eq!(publish.handle(Event::Created(log.at(4).object)), [Command::Opened { epoch: epoch(2), last }]);
    assert_eq!(publish.handle(ask(Some(2), 4)), writes(TaskKind::Anchor, 4));
}

#[test]
fn lg5_lg7_a_diverged_trainer_that_is_not_above_the_stream_resets_it_first() {
    for version in [1, 2] {
        let (mut publish, log) = opened(published_log(), Lineage::Diverged);
        assert_eq!(publish.handle(ask(Some(0), version)), creates(log.next(2, reset(3))));
        let log = log.then(2, reset(3));
        assert_eq!(publish.handle(Event::Created(log.at(4).object)), writes(TaskKind::Anchor, version));
        // Values that are gone in between do not come back, and need no second reset.
        publish.handle(Event::Written(Version(version), manifest(0, version)));
        let gone = publish.handle(Event::ValuesGone(Version(version)));
        assert_eq!(gone, [Command::Abandoned(Version(version))]);
        let refused = Command::Refused(Version(version), Refusal::NotAbove(Version(version)));
        assert_eq!(publish.handle(ask(Some(0), version)), [refused]);
        if version == 2 {
            continue;
        }
        let version = 2;
        assert_eq!(publish.handle(ask(Some(0), version)), writes(TaskKind::Anchor, version));
        assert_eq!(publish.handle(Event::Written(Version(1), manifest(1, 1))), [], "late");
        assert_eq!(write(&mut publish, version), creates(log.next(2, anchor(version))));
        is_published(&mut publish, &log.then(2, anchor(version)));
    }
}

#[test]
fn lg3_an_entry_waits_for_every_writer_exactly_once() {
    let (mut publish, log) = opened(published_log(), Lineage::Diverged);
    publish.handle(ask(None, 3));
    let version = Version(3);
    assert_eq!(publish.handle(Event::Written(version, manifest(0, 9))), []);
    assert_eq!(publish.handle(Event::Written(version, manifest(0, 3))), [], "the same rank is one writer");
    assert_eq!(publish.handle(Event::Written(version, manifest(2, 3))), [], "no rank of the plan");
    assert_eq!(publish.handle(Event::Written(Version(2), manifest(1, 2))), [], "another version");
    let task = Task { version, kind: TaskKind::Anchor, epoch: epoch(2) };
    let sealing = publish.handle(Event::Written(version, manifest(1, 3)));
    assert_eq!(sealing, [Command::Seal { task, writers: vec![manifest(0, 3), manifest(1, 3)] }]);
    let EntryKind::Anchor(publication) = anchor(3) else { unreachable!() };
    let sealed = Event::Sealed { version, digests: publication.digests, manifests: None };
    assert_eq!(publish.handle(sealed), creates(log.next(2, EntryKind::Anchor(publication))));
}

#[test]
fn lg3_manifests_that_do_not_fit_are_named_as_a_blob() {
    let (mut publish, log) = opened(published_log(), Lineage::Diverged);
    publish.handle(ask(None, 3));
    publish.handle(Event::Written(Version(3), manifest(0, 3)));
    publish.handle(Event::Written(Version(3), manifest(1, 3)));
    let (digests, manifests) = (blob("d"), blob("m"));
    let sealed = Event::Sealed { version: Version(3), digests, manifests: Some(manifests) };
    let writers = driftless_types::Writers::Blob(manifests);
    let expected = driftless_types::Publication { digests, writers, ..publication(3) };
    assert_eq!(publish.handle(sealed), creates(log.next(2, EntryKind::Anchor(expected))));
}

#[test]
fn lg3_a_store_that_is_down_costs_time_and_nothing_else() {
    let (mut publish, log) = opened(published_log(), Lineage::Diverged);
    publish.handle(ask(None, 3));
    publish.handle(Event::Written(Version(3), manifest(1, 3)));
    let task = Task { version: Version(3), kind: TaskKind::Anchor, epoch: epoch(2) };
    let mut reports = 0;
    for _ in 0..5 {
        let commands = publish.handle(Event::WriteFailed(Version(3), Fault::Unavailable));
        reports += commands.iter().filter(|&said| *said == Command::StoreDown(Fault::Unavailable)).count();
        let again = publish.handle(Event::TimerFired(LogTimer::Retry));
        assert_eq!(again, [Command::Write { task, ranks: [0].into() }], "only who has not written yet");
        assert_eq!(publish.handle(Event::TimerFired(LogTimer::Retry)), [], "once");
    }
    assert_eq!(reports, 1);
    assert_eq!(publish.handle(ask(None, 4)), [Command::Refused(Version(4), Refusal::Busy)]);
    publish.handle(Event::Written(Version(3), manifest(0, 3)));
    publish.handle(Event::Failed(Fault::Full));
    let sealing = publish.handle(Event::TimerFired(LogTimer::Retry));
    assert!(matches!(sealing[..], [Command::Seal { .. }]), "{sealing:?}");
    let sealed = Event::Sealed { version: Version(3), digests: blob(("digests", 3_u64)), manifests: None };
    assert_eq!(publish.handle(sealed), creates(log.next(2, anchor(3))));
}

#[test]
fn lg2_lg12_the_same_entry_is_created_again_and_nothing_else_is_ever_written_to_the_log() {
    let (mut publish, log) = opened(published_log(), Lineage::Diverged);
    publish.handle(ask(None, 3));
    let entry = log.next(2, anchor(3));
    assert_eq!(write(&mut publish, 3), creates(entry.clone()));
    for _ in 0..5 {
        assert_eq!(publish.handle(Event::CreateFailed), [Command::Read(entry.seq)]);
        publish.handle(Event::Read(Reading::Absent));
        assert_eq!(publish.handle(Event::TimerFired(LogTimer::Retry)), creates(entry.clone()));
    }
    is_published(&mut publish, &log.then(2, anchor(3)));
}

#[test]
fn lg9_an_epoch_of_its_own_keeps_the_lineage_and_moves_new_blobs_to_a_new_key() {
    let log = published_log();
    let lineage = continues(&log);
    let (mut publish, log) = opened(log, lineage);
    let mine = Epoch { counter: 3, incarnation: epoch(2).incarnation };
    let entry = Entry { epoch: 3, ..log.next(2, EntryKind::Epoch) };
    assert_eq!(publish.handle(Event::Renew), creates(entry.clone()));
    let last = log.at(2).published();
    let renewed = publish.handle(Event::Created(stored(entry).object));
    assert_eq!(renewed, [Command::Opened { epoch: mine, last }]);
    let task = Task { version: Version(3), kind: TaskKind::Delta(Version(2)), epoch: mine };
    assert_eq!(publish.handle(ask(Some(2), 3)), [Command::Write { task, ranks: [0, 1].into() }]);
    assert_eq!(publish.handle(Event::Renew), [], "not while something is being published");
}

#[test]
fn lg4_what_an_older_epoch_wrote_after_a_takeover_is_not_the_streams_last() {
    let log = published_log().then(5, EntryKind::Epoch).then(1, delta(2, 9)).then(1, EntryKind::Epoch);
    let (mut publish, commands) = read_back(&log, Lineage::Diverged);
    let [Command::Create(entry)] = &commands[..] else { unreachable!("{commands:?}") };
    assert_eq!(entry.epoch, 6);
    let opened = publish.handle(Event::Created(stored((**entry).clone()).object));
    let last = log.at(2).published();
    assert_eq!(opened, [Command::Opened { epoch: entry.fence(), last }]);
}

#[test]
fn lg7_lg12_a_takeover_passes_a_reset_and_its_anchor_wherever_its_reading_ended() {
    let log = published_log().then(5, EntryKind::Epoch);
    let tails = [log.clone(), log.clone().then(5, reset(3)), log.then(5, reset(3)).then(5, anchor(1))];
    for read in tails {
        let (mut publish, commands) = read_back(&read, Lineage::Diverged);
        let mut commands = commands;
        let full = if read.0.len() < 5 { read.then(5, reset(3)) } else { read };
        let full = if full.0.len() < 6 { full.then(5, anchor(1)) } else { full };
        while let [Command::Create(entry)] = &commands[..] {
            let Ok(at) = usize::try_from(entry.seq.0) else { unreachable!() };
            let Some(theirs) = full.0.get(at) else { break };
            assert_eq!(publish.handle(Event::CreateFailed), [Command::Read(entry.seq)]);
            commands = publish.handle(found(theirs.clone()));
        }
        let [Command::Create(entry)] = &commands[..] else { unreachable!("{commands:?}") };
        assert_eq!((entry.seq, entry.epoch), (Seq(6), 6));
        let opened = publish.handle(Event::Created(stored((**entry).clone()).object));
        assert_eq!(opened, [Command::Opened { epoch: entry.fence(), last: full.at(5).published() }]);
    }
}
