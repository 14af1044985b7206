use crate::reader::{End, World, options, report};
use crate::words::{Log, RUN, anchor, delta, genesis_kind, reset, stored};
use driftless_proto::log::{
    Fault, Follow, FollowEvent as Event, FollowOptions, FollowStop, Goal, Leasing, LogTimer, Trouble, Writing,
};
use driftless_types::{AnchorRef, Entry, EntryKind, RunId, Seq, StreamId, Version};

const ONCE: FollowOptions = options(Goal::Once);
const FOREVER: FollowOptions = options(Goal::Forever);

/// Genesis, 1: anchor 1, 2: delta 2, 3: delta 3, 4: anchor 4, 5: delta 5.
fn log() -> Log {
    Log::founded()
        .then(1, anchor(1))
        .then(1, delta(1, 2))
        .then(1, delta(2, 3))
        .then(1, anchor(4))
        .then(1, delta(4, 5))
}

fn up_to(len: usize) -> Log {
    Log(log().0[..len].to_vec())
}

/// A reader that has read the first entries, and the world then grown to the log.
fn grown(len: usize, log: &Log) -> (World, Follow) {
    let mut world = World::of(&up_to(len));
    let (follow, end) = world.live(FOREVER);
    assert_eq!(end, End::Waits);
    world.told();
    world.log.clone_from(&log.0);
    (world, follow)
}

fn retire(keep_from: u64, log: &Log) -> EntryKind {
    let anchors = [4, 1].map(|seq| AnchorRef { seq: Seq(seq), object: log.at(seq).object });
    EntryKind::Retire { keep_from: Seq(keep_from), anchors: anchors.to_vec() }
}

fn version(world: &World) -> Option<u64> {
    Some(world.held()?.version.0)
}

#[test]
fn lg6_lg13_a_fresh_reader_begins_at_the_last_anchor_and_checks_before_it_writes() {
    let mut world = World::of(&log());
    let (follow, end) = world.live(ONCE);
    assert!(matches!(end, End::Done(done) if done.held.version == Version(5)), "{end:?}");
    assert_eq!(follow.serves(), world.held());
    let told = world.told();
    let expected = [
        "read 0", "lease 0", "list 0", "read 5", "read 4", "read 3", "read 2", "read 1", "read 0", "check 4",
        "dirty 4", "apply 4", "cursor 4", "serve 4", "read 5", "check 5", "dirty 5", "apply 5", "cursor 5",
        "serve 5", "read 6",
    ];
    assert_eq!(told, expected);
    assert_eq!(world.weights(), [4, 5]);
}

#[test]
fn lg1_lg7_a_reader_that_is_behind_jumps_to_an_anchor_that_continues_its_place() {
    let (mut world, _) = grown(3, &log());
    let (_, end) = world.live(FOREVER);
    assert_eq!(end, End::Waits);
    assert_eq!(world.weights(), [4, 5]);
    assert!(!world.told().contains(&"check 3".to_owned()));
}

#[test]
fn lg5_a_reader_goes_on_by_deltas_on_exactly_their_base() {
    let (mut world, mut follow) = grown(2, &up_to(4));
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert_eq!((world.weights(), version(&world)), (vec![1, 2, 3], Some(3)));
}

#[test]
fn lg5_a_delta_of_another_base_is_never_written_and_the_next_anchor_leads_on() {
    let bad = up_to(2).then(1, delta(0, 2)).then(1, delta(2, 3));
    let (mut world, mut follow) = grown(2, &bad);
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert_eq!(world.weights(), [1]);
    assert!(world.told().contains(&report(Trouble::LineageBroken(Seq(2)))));
    assert_eq!(follow.serves().map(|held| held.version), Some(Version(1)), "it goes on serving what it has");
    world.log = bad.then(1, anchor(4)).then(1, delta(4, 5)).0;
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert_eq!((world.weights(), version(&world)), (vec![4, 5], Some(5)));
}

#[test]
fn lg1_an_entry_that_names_another_parent_is_a_fork() {
    for is_live in [true, false] {
        let forked =
            Log(vec![up_to(2).at(0), stored(Entry { created_by: 5, ..(*log().at(1).entry).clone() })]);
        let (mine, found) = (log().at(1).object, forked.at(1).object);
        let (mut world, mut follow) = grown(2, &forked.then(1, delta(1, 2)));
        let end = if is_live { world.poll(&mut follow) } else { world.live(FOREVER).1 };
        assert_eq!(end, End::Stopped(FollowStop::Forked { seq: Seq(1), mine, found }));
        assert_eq!(world.weights(), [1]);
    }
}

#[test]
fn lg7_a_reader_refuses_another_stream() {
    let (mut world, _) = grown(3, &log());
    let other = StreamId([1; 16]);
    world.log[0] = stored(Entry { stream: other, ..(*world.log[0].entry).clone() });
    let (_, end) = world.live(FOREVER);
    let expected = log().at(0).entry.stream;
    assert_eq!(end, End::Stopped(FollowStop::OtherStream { expected, found: other }));
    let no_genesis = Log(Vec::new()).then(1, EntryKind::Epoch);
    assert_eq!(World::of(&no_genesis).live(FOREVER).1, End::Stopped(FollowStop::NoGenesis));
    assert_eq!(genesis_kind(RunId([2; 16])).run, RunId([2; 16]));
    assert_eq!(world.cursor().run, RUN);
}

#[test]
fn lg7_a_version_does_not_fall_without_epoch_and_reset() {
    let above = up_to(4);
    let stop = |seq| FollowStop::WentBack { seq: Seq(seq), version: Version(2), highest: Version(3) };
    for (log, seq) in [
        (above.clone().then(1, anchor(2)), 4),
        (above.clone().then(1, reset(4)).then(1, anchor(2)), 5),
        (above.clone().then(2, EntryKind::Epoch).then(2, anchor(2)), 5),
        (above.clone().then(2, EntryKind::Epoch).then(2, reset(2)).then(2, anchor(2)), 6),
    ] {
        for is_live in [true, false] {
            let (mut world, mut follow) = grown(4, &log);
            let end = if is_live { world.poll(&mut follow) } else { world.live(FOREVER).1 };
            assert_eq!(end, End::Stopped(stop(seq)));
            assert_eq!(world.weights(), [1, 2, 3]);
        }
    }
}

#[test]
fn lg5_lg7_a_reader_that_is_ahead_follows_a_diverged_trainer_by_its_anchor() {
    let log =
        up_to(4).then(2, EntryKind::Epoch).then(2, retire(1, &log())).then(2, reset(4)).then(2, anchor(2));
    let log = log.then(2, delta(2, 3)).then(2, delta(3, 4));
    for is_live in [true, false] {
        // One ahead of the divergence, and one behind it.
        for behind in [4, 3] {
            let (mut world, mut follow) = grown(behind, &log);
            let end = if is_live { world.poll(&mut follow) } else { world.live(FOREVER).1 };
            assert_eq!(end, End::Waits);
            assert_eq!((world.weights(), version(&world)), (vec![7, 8, 9], Some(4)));
        }
    }
}

#[test]
fn lg7_the_leave_to_fall_outlives_the_reader() {
    let log = up_to(4).then(2, EntryKind::Epoch).then(2, reset(4));
    let (mut world, mut follow) = grown(4, &log);
    assert_eq!(world.poll(&mut follow), End::Waits);
    world.log = log.then(2, anchor(2)).0;
    assert_eq!(world.live(FOREVER).1, End::Waits);
    assert_eq!(version(&world), Some(2));
}

#[test]
fn lg4_what_an_older_epoch_writes_after_a_takeover_has_no_effect() {
    let log = up_to(3).then(2, EntryKind::Epoch).then(1, delta(2, 3)).then(1, anchor(9)).then(2, delta(2, 4));
    for len in [1, 3] {
        let (mut world, mut follow) = grown(len, &log);
        assert_eq!(world.poll(&mut follow), End::Waits);
        assert_eq!((world.weights(), version(&world)), (vec![1, 2, 6], Some(4)));
    }
}

#[test]
fn lg13_a_blob_that_is_not_there_is_waited_for_then_reported_and_never_skipped() {
    let (mut world, mut follow) = grown(2, &up_to(4));
    world.missing.insert(2);
    assert_eq!(world.poll(&mut follow), End::Waits);
    let told = world.told();
    assert!(told.iter().filter(|word| *word == "check 2").count() >= 3, "{told:?}");
    assert!(told.contains(&report(Trouble::Missing(Seq(2)))), "{told:?}");
    assert!(!told.iter().any(|word| word.starts_with("dirty") || word.starts_with("apply")), "{told:?}");
    assert_eq!(world.weights(), [1]);
    world.missing.clear();
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert_eq!(world.weights(), [1, 2, 3]);
}

#[test]
fn lg13_an_anchor_leads_over_blobs_that_are_gone() {
    let (mut world, mut follow) = grown(2, &log());
    world.missing.insert(2);
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert_eq!(world.weights(), [4, 5]);
}

#[test]
fn lg13_a_reader_that_was_to_read_once_stops_with_what_is_wrong() {
    let mut world = World::of(&log());
    world.missing.extend([1, 4]);
    let (_, end) = world.live(ONCE);
    assert_eq!(end, End::Stopped(FollowStop::Trouble(Trouble::NoAnchor)));
    let mut world = World::of(&log());
    world.invalid.insert(5);
    assert_eq!(world.live(ONCE).1, End::Stopped(FollowStop::Trouble(Trouble::Invalid(Seq(5)))));
    assert_eq!(World::of(&Log::founded()).live(ONCE).1, End::Stopped(FollowStop::Empty));
}

#[test]
fn lg6_a_reader_that_was_killed_anywhere_writes_the_entry_again_or_an_anchor() {
    for cut in ["check", "dirty", "apply", "cursor", "serve"] {
        for (len, number) in [(1, 1), (2, 2)] {
            let (mut world, mut follow) = grown(len, &up_to(4));
            world.cut_before = Some(cut);
            assert_eq!(world.poll(&mut follow), End::Cut, "{cut} {number}");
            world.is_torn |= world.disk.dirty.is_some();
            world.cut_before = None;
            let (_, end) = world.live(ONCE);
            assert!(matches!(end, End::Done(_)), "{end:?}");
            assert_eq!((world.weights(), version(&world)), (vec![1, 2, 3], Some(3)), "{cut}");
        }
    }
}

#[test]
fn lg6_a_dirty_delta_whose_blobs_are_gone_leaves_only_an_anchor() {
    let (mut world, mut follow) = grown(2, &up_to(4));
    world.faults.insert(2, (Writing::Failed(Fault::Unavailable), 1));
    world.cut_before = Some("apply");
    assert_eq!(world.poll(&mut follow), End::Cut);
    world.is_torn = true;
    world.cut_before = None;
    world.missing.insert(2);
    let (mut follow, end) = world.live(FOREVER);
    assert_eq!(end, End::Waits);
    // It came back from the anchor, and serves it, for it never went past it.
    assert_eq!(world.weights(), [1]);
    assert_eq!(follow.serves().map(|held| held.version), Some(Version(1)));
    world.log = log().0;
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert_eq!(world.weights(), [4, 5]);
}

#[test]
fn lg6_lg7_wrong_digests_lead_back_to_an_anchor_and_nothing_older_is_served_on_the_way() {
    let (mut world, mut follow) = grown(3, &up_to(4));
    world.faults.insert(3, (Writing::WrongDigest, 1));
    world.told();
    assert_eq!(world.poll(&mut follow), End::Waits);
    let told = world.told();
    assert!(told.contains(&report(Trouble::WrongDigest(Seq(3)))), "{told:?}");
    assert_eq!(world.weights(), [1, 2], "as far as it was right");
    let serves: Vec<&String> = told.iter().filter(|word| word.starts_with("serve")).collect();
    assert_eq!(serves, ["serve 2"]);
    world.log = log().0;
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert_eq!(world.weights(), [4, 5]);
}

#[test]
fn lg11_every_anchor_and_the_deltas_after_it_lead_to_the_same() {
    let log = up_to(4).then(1, delta(3, 4));
    let (mut world, mut follow) = grown(1, &log);
    assert_eq!(world.poll(&mut follow), End::Waits);
    let all = Log(log.0.clone());
    let (mut late, _) = grown(3, &all);
    assert_eq!(late.live(FOREVER).1, End::Waits);
    assert_eq!((world.weights(), world.cursor()), (late.weights(), late.cursor()));
}

#[test]
fn lg13_damaged_blobs_are_read_again_and_then_given_up() {
    let (mut world, mut follow) = grown(2, &up_to(3));
    world.faults.insert(2, (Writing::BadBlob, 2));
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert_eq!(world.weights(), [1, 2]);
    let (mut world, mut follow) = grown(2, &up_to(3));
    world.faults.insert(2, (Writing::BadBlob, 9));
    assert_eq!(world.poll(&mut follow), End::Waits);
    assert!(world.told().contains(&report(Trouble::BadBlob(Seq(2)))));
    assert_eq!(world.weights(), [1], "back at the anchor");
}

#[test]
fn lg8_the_lease_is_put_before_the_bound_is_read_and_renewed_by_its_own_timer() {
    let (mut world, mut follow) = grown(4, &log());
    let pinned: Vec<(u64, u64)> = world.leases.iter().map(|lease| (lease.counter, lease.pinned.0)).collect();
    assert_eq!(pinned, [(41, 0)]);
    let commands = follow.handle(Event::TimerFired(LogTimer::Lease));
    assert_eq!(format!("{commands:?}").matches("pinned: Seq(3)").count(), 1, "{commands:?}");
    assert_eq!(follow.handle(Event::TimerFired(LogTimer::Lease)), [], "one at a time");
    let armed = follow.handle(Event::LeasePut);
    assert!(format!("{armed:?}").contains("Lease, after: 150s"), "a quarter of the ttl: {armed:?}");
    world.live(FOREVER);
    assert_eq!(world.told()[..3], ["read 0", "lease 3", "list 3"]);
    world.live(FollowOptions { leasing: Leasing::None, ..FOREVER });
    assert_eq!(world.told()[..2], ["read 0", "list 5"]);
}

#[test]
fn lg8_an_anchor_below_the_bound_is_not_begun_with() {
    let log = log().then(1, retire(4, &log()));
    let mut world = World::of(&log);
    let exactly = options(Goal::Exactly(Version(3)));
    let stop = FollowStop::OutOfReach { wanted: Version(3), newest: Version(5) };
    assert_eq!(world.live(exactly).1, End::Stopped(stop), "it will never be there again");
    // What has not come yet is waited for.
    assert_eq!(World::of(&log).live(options(Goal::Exactly(Version(6)))).1, End::Waits);
    assert!(matches!(World::of(&log).live(ONCE).1, End::Done(_)));
}

#[test]
fn lg10_a_reader_is_told_no_time() {
    // The same events lead to the same state, whatever time passes between them.
    let (world, follow) = grown(3, &log());
    let (again, twin) = grown(3, &log());
    assert_eq!((follow, world.cursor()), (twin, again.cursor()));
}

#[test]
fn goals_end_where_they_say() {
    let ends = |goal| World::of(&log()).live(options(goal)).1;
    let at = |end: &End| match end {
        End::Done(done) => Some(done.held.version.0),
        _ => None,
    };
    assert_eq!(at(&ends(Goal::AtLeast(Version(2)))), Some(4), "an anchor does as well");
    assert_eq!(at(&ends(Goal::Exactly(Version(3)))), Some(3));
    assert_eq!(at(&ends(Goal::Exactly(Version(5)))), Some(5));
    assert_eq!(ends(Goal::Exactly(Version(6))), End::Waits);
    assert_eq!(ends(Goal::AtLeast(Version(6))), End::Waits);
    let gap = Log::founded().then(1, anchor(1)).then(1, delta(1, 3));
    let stop = FollowStop::NotPublished { wanted: Version(2), next: Version(3) };
    assert_eq!(World::of(&gap).live(options(Goal::Exactly(Version(2)))).1, End::Stopped(stop));
}

#[test]
fn an_exact_version_that_nothing_leads_to_any_more_ends_the_wait() {
    let exactly = |version| options(Goal::Exactly(Version(version)));
    // A delta on the way is of another lineage.
    let broken = Log::founded().then(1, anchor(1)).then(1, delta(4, 5));
    let stop = FollowStop::NotPublished { wanted: Version(3), next: Version(5) };
    assert_eq!(World::of(&broken).live(exactly(3)).1, End::Stopped(stop));
    // A delta on the way does not have its digests.
    let faults = [(2, (Writing::WrongDigest, 9))].into();
    let mut world = World { faults, ..World::of(&log()) };
    let (mut follow, end) = world.live(exactly(3));
    assert_eq!(end, End::Waits);
    let stop = FollowStop::OutOfReach { wanted: Version(3), newest: Version(5) };
    assert_eq!(world.poll(&mut follow), End::Stopped(stop));
    // Blobs that are not visible may come.
    let mut world = World { missing: [1].into(), ..World::of(&log()) };
    let (mut follow, end) = world.live(exactly(3));
    assert_eq!((end, world.poll(&mut follow)), (End::Waits, End::Waits));
    world.missing.clear();
    assert!(matches!(world.poll(&mut follow), End::Done(done) if done.held.version == Version(3)));
    // What a stale publisher wrote behind a takeover is no later version.
    let fenced = Log::founded().then(1, delta(1, 2)).then(2, EntryKind::Epoch).then(1, anchor(9));
    assert_eq!(World::of(&fenced).live(exactly(5)).1, End::Waits);
}

#[test]
fn lg1_what_cannot_be_connected_to_the_readers_place_is_not_jumped_to() {
    let (mut world, _) = grown(2, &log());
    assert_eq!(world.live(FollowOptions { look_back_max: 2, ..FOREVER }).1, End::Waits);
    // It went entry by entry.
    assert!(world.told().contains(&"apply 2".to_owned()));
    let mut fresh = World::of(&up_to(4));
    assert_eq!(fresh.live(FollowOptions { look_back_max: 2, ..FOREVER }).1, End::Waits);
    assert!(fresh.told().contains(&report(Trouble::NoAnchor)));
}

#[test]
fn lg7_a_reader_that_starts_again_serves_what_it_has_once_the_log_confirmed_it() {
    let (mut world, _) = grown(4, &up_to(4));
    assert_eq!(world.live(FOREVER).1, End::Waits);
    assert_eq!(world.told(), ["read 0", "lease 3", "list 3", "read 3", "serve 3", "read 4"]);
}

#[test]
fn a_stale_listing_costs_nothing_but_reads() {
    let mut world = World::of(&log());
    world.listed = Some(Some(Seq(2)));
    assert!(matches!(world.live(ONCE).1, End::Done(done) if done.held.version == Version(5)));
    assert_eq!(world.weights(), [4, 5]);
}
