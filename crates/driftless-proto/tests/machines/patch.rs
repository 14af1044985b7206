use crate::words::died;
use driftless_proto::{Offer, PatchBook, PatchRange, Pending, ReplicaOutcome};
use driftless_types::{ReplicaId, Version};

const fn range(since: u64, version: u64) -> PatchRange {
    PatchRange { since: Version(since), version: Version(version) }
}

fn ended(book: &mut PatchBook, replica: u32, version: u64) {
    book.ended(ReplicaId(replica), Version(version), &ReplicaOutcome::Committed);
}

/// Two replicas at version 0, and the patch of version 1.
fn stepped() -> PatchBook {
    let mut book = PatchBook::new([ReplicaId(0), ReplicaId(1)], Version(0), 8);
    assert_eq!(book.step(Version(1)), (range(0, 1), Pending::Dropped));
    book
}

#[test]
fn cm6_a_patch_that_every_replica_committed_is_dropped() {
    let mut book = stepped();
    ended(&mut book, 0, 1);
    ended(&mut book, 1, 1);
    assert_eq!(book.step(Version(3)), (range(1, 3), Pending::Dropped));
    let offers = [0, 1, 2, 3, 4].map(|base| book.offer(Version(base)));
    assert_eq!(offers, [Offer::All, Offer::Patch, Offer::Patch, Offer::Patch, Offer::All]);
}

#[test]
fn cm6_what_a_replica_lacks_or_may_lack_stays_pending() {
    // One lagged, of the other nothing was heard.
    for heard in [true, false] {
        let mut book = stepped();
        ended(&mut book, 0, 1);
        if heard {
            let lagging = ReplicaOutcome::Lagging { at: Version(0), cause: died(1, 0) };
            book.ended(ReplicaId(1), Version(1), &lagging);
        }
        assert_eq!(book.step(Version(2)), (range(0, 2), Pending::Kept));
        assert_eq!([0, 1].map(|base| book.offer(Version(base))), [Offer::Patch; 2]);
        ended(&mut book, 0, 2);
        ended(&mut book, 1, 2);
        assert_eq!(book.step(Version(3)), (range(2, 3), Pending::Dropped));
    }
}

#[test]
fn cm6_a_replica_beyond_the_lag_bound_gets_all() {
    let mut book = stepped();
    for version in 2..=8 {
        ended(&mut book, 0, version - 1);
        assert_eq!(book.step(Version(version)), (range(0, version), Pending::Kept));
    }
    ended(&mut book, 0, 8);
    assert_eq!(book.step(Version(9)), (range(8, 9), Pending::Dropped));
    assert_eq!(book.offer(Version(0)), Offer::All);
    // It is behind the patch and so needs nothing pending.
    ended(&mut book, 0, 9);
    assert_eq!(book.step(Version(10)), (range(9, 10), Pending::Dropped));
}

#[test]
fn cm6_a_sender_that_lost_its_positions_sends_all_to_whoever_is_behind() {
    let mut book = stepped();
    book.forget();
    assert_eq!([0, 1].map(|base| book.offer(Version(base))), [Offer::All, Offer::Patch]);
    assert_eq!(book.step(Version(2)), (range(1, 2), Pending::Dropped));
}
