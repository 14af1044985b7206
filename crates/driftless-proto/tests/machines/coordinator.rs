use crate::words::{died, epoch, fence, receiver, sender};
use driftless_proto::{
    Coordinator, CoordinatorCommand, CoordinatorEvent, CoordinatorOptions, Needs, Outcome, ReplicaOutcome,
    Verdict,
};
use driftless_types::{Fence, Member, PlanDigest, ReplicaId, RunId, SenderId, Version};
use std::collections::BTreeMap;
use std::time::Duration;

const MAX_ATTEMPTS: u32 = 3;

/// Two senders, two replicas of two receivers each.
fn fresh(counter: u64) -> Coordinator {
    let receivers = [receiver(0, 0), receiver(0, 1), receiver(1, 0), receiver(1, 1)];
    let options = CoordinatorOptions {
        max_attempts: MAX_ATTEMPTS,
        first_back_off: Duration::from_millis(100),
        longest_back_off: Duration::from_millis(150),
    };
    let senders = [SenderId(0), SenderId(1)];
    Coordinator::new(RunId::default(), PlanDigest::default(), epoch(counter), senders, receivers, options)
}

fn ready(id: u32, version: u64) -> CoordinatorEvent {
    CoordinatorEvent::SenderReady(SenderId(id), Some(Version(version)))
}

fn serving(replica: u32, base: u64) -> CoordinatorEvent {
    let needs = Needs { base: Version(base), repair: BTreeMap::new() };
    CoordinatorEvent::Serving(ReplicaId(replica), needs)
}

fn down(member: Member) -> CoordinatorEvent {
    CoordinatorEvent::MemberDown(member)
}

fn ended(replica: u32, fence: Fence, verdict: Verdict, serving: u64) -> CoordinatorEvent {
    let outcome = Outcome { fence, verdict, repair: BTreeMap::new() };
    CoordinatorEvent::Ended(ReplicaId(replica), outcome, Version(serving))
}

fn settled(replica: u32, version: u64, outcome: ReplicaOutcome) -> CoordinatorCommand {
    CoordinatorCommand::Settle { replica: ReplicaId(replica), version: Version(version), outcome }
}

fn begin(replica: u32, fence: Fence, base: u64) -> CoordinatorCommand {
    let needs = Needs { base: Version(base), repair: BTreeMap::new() };
    CoordinatorCommand::Begin { fence, replica: ReplicaId(replica), needs }
}

fn all_up(coordinator: &mut Coordinator) {
    for (replica, rank) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert!(coordinator.handle(CoordinatorEvent::ReceiverUp(receiver(replica, rank))).is_empty());
    }
}

/// Both replicas serve version 0 and are attempting version 1: attempts 1 and 2.
fn attempting() -> Coordinator {
    let mut coordinator = fresh(1);
    all_up(&mut coordinator);
    coordinator.handle(serving(0, 0));
    coordinator.handle(serving(1, 0));
    coordinator.handle(ready(0, 1));
    let begun = coordinator.handle(ready(1, 1));
    assert_eq!(begun, [begin(0, fence(1, 1, 1), 0), begin(1, fence(1, 2, 1), 0)]);
    coordinator
}

#[test]
fn cm12_an_outcome_that_died_with_a_lead_or_a_coordinator_is_told_all_the_same() {
    // The lead committed and died before its report.
    let mut coordinator = attempting();
    let lead = down(Member::Receiver(receiver(0, 0)));
    let cause = died(0, 0);
    let abort = CoordinatorCommand::Abort { fence: fence(1, 1, 1), replica: ReplicaId(0), cause };
    assert_eq!(coordinator.handle(lead), [abort]);
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    assert_eq!(coordinator.handle(serving(0, 1)), std::slice::from_ref(&committed));
    assert_eq!(coordinator.handle(CoordinatorEvent::ReceiverUp(receiver(0, 0))), []);
    // A coordinator that was not there when the version was committed.
    let mut next = fresh(2);
    all_up(&mut next);
    next.handle(serving(0, 1));
    next.handle(ready(0, 1));
    assert_eq!(next.handle(ready(1, 1)), [committed]);
}

#[test]
fn cm12_a_sender_that_comes_back_hears_every_outcome_again() {
    let mut coordinator = attempting();
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    let end = ended(0, fence(1, 1, 1), Verdict::Committed, 1);
    assert_eq!(coordinator.handle(end), std::slice::from_ref(&committed));
    let cause = died(1, 1);
    let mut attempt = fence(1, 2, 1);
    for tried in 1..=MAX_ATTEMPTS {
        let out = coordinator.handle(ended(1, attempt, Verdict::RolledBack(cause.clone()), 0));
        if tried == MAX_ATTEMPTS {
            break;
        }
        let [CoordinatorCommand::ArmTimer { id, .. }] = out[..] else { panic!("{out:?}") };
        attempt = fence(1, 2 + tried, 1);
        assert_eq!(coordinator.handle(CoordinatorEvent::TimerFired(id)), [begin(1, attempt, 0)]);
    }
    assert_eq!(coordinator.handle(down(sender(1))), []);
    let lagging = settled(1, 1, ReplicaOutcome::Lagging { at: Version(0), cause });
    assert_eq!(coordinator.handle(ready(1, 1)), [committed, lagging]);
}

#[test]
fn cm12_a_report_from_before_the_attempt_does_not_fail_it() {
    let mut coordinator = attempting();
    assert_eq!(coordinator.handle(serving(0, 0)), []);
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    assert_eq!(coordinator.handle(ended(0, fence(1, 1, 1), Verdict::Committed, 1)), [committed]);
}

#[test]
fn cm10_a_failed_replay_of_a_served_version_is_no_failure() {
    let mut coordinator = attempting();
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    assert_eq!(coordinator.handle(ended(0, fence(1, 1, 1), Verdict::Committed, 1)), [committed]);
    for attempt in 10..10 + MAX_ATTEMPTS {
        let verdict = Verdict::RolledBack(died(0, 1));
        assert_eq!(coordinator.handle(ended(0, fence(1, attempt, 1), verdict, 1)), []);
    }
}

#[test]
fn cm5_attempts_carry_the_epoch_and_rise_within_it() {
    let mut coordinator = attempting();
    assert_eq!(coordinator.epoch(), epoch(1));
    coordinator.handle(ended(0, fence(1, 1, 1), Verdict::Committed, 1));
    coordinator.handle(ended(1, fence(1, 2, 1), Verdict::Committed, 1));
    assert_eq!(coordinator.handle(ready(0, 2)), []);
    let begun = coordinator.handle(ready(1, 2));
    assert_eq!(begun, [begin(0, fence(1, 3, 2), 1), begin(1, fence(1, 4, 2), 1)]);
}

#[test]
fn cm4_nothing_begins_before_every_member_is_up_and_every_sender_holds_the_version() {
    let mut coordinator = fresh(1);
    assert_eq!(coordinator.handle(serving(0, 0)), []);
    assert_eq!(coordinator.handle(ready(0, 2)), []);
    assert_eq!(coordinator.handle(ready(1, 1)), []);
    assert_eq!(coordinator.handle(CoordinatorEvent::ReceiverUp(receiver(0, 0))), []);
    assert_eq!(coordinator.handle(ready(1, 2)), []);
    let last = CoordinatorEvent::ReceiverUp(receiver(0, 1));
    assert_eq!(coordinator.handle(last), [begin(0, fence(1, 1, 2), 0)]);
    // The other replica's lead has not reported: it is unheard.
    assert_eq!(coordinator.handle(CoordinatorEvent::ReceiverUp(receiver(1, 0))), []);
    assert_eq!(coordinator.handle(CoordinatorEvent::ReceiverUp(receiver(1, 1))), []);
    assert_eq!(coordinator.handle(serving(1, 0)), [begin(1, fence(1, 2, 2), 0)]);
}

#[test]
fn cm15_a_receiver_that_dies_aborts_its_own_replica_alone() {
    let mut coordinator = attempting();
    let member = Member::Receiver(receiver(1, 1));
    let abort = CoordinatorCommand::Abort { fence: fence(1, 2, 1), replica: ReplicaId(1), cause: died(1, 1) };
    assert_eq!(coordinator.handle(down(member)), [abort]);
    // The lead alone ends it: while the receiver is down nothing begins, not even after the back-off.
    let out = coordinator.handle(ended(1, fence(1, 2, 1), Verdict::RolledBack(died(1, 1)), 0));
    let [CoordinatorCommand::ArmTimer { id, .. }] = out[..] else { panic!("{out:?}") };
    assert_eq!(coordinator.handle(CoordinatorEvent::TimerFired(id)), []);
    let up = CoordinatorEvent::ReceiverUp(receiver(1, 1));
    assert_eq!(coordinator.handle(up), [begin(1, fence(1, 3, 1), 0)]);
}

#[test]
fn cm12_a_sender_that_dies_aborts_every_attempt_and_all_are_tried_again() {
    let mut coordinator = attempting();
    let out = coordinator.handle(down(sender(0)));
    let aborted = |command: &CoordinatorCommand| matches!(command, CoordinatorCommand::Abort { .. });
    assert_eq!((out.len(), out.iter().all(aborted)), (2, true));
    let cause = died(0, 0);
    let mut timers = Vec::new();
    for (replica, attempt) in [(0, 1), (1, 2)] {
        let verdict = Verdict::RolledBack(cause.clone());
        let out = coordinator.handle(ended(replica, fence(1, attempt, 1), verdict, 0));
        let [CoordinatorCommand::ArmTimer { id, after }] = out[..] else { panic!("{out:?}") };
        assert_eq!(after, Duration::from_millis(100));
        timers.push(id);
    }
    for id in timers {
        assert_eq!(coordinator.handle(CoordinatorEvent::TimerFired(id)), []);
    }
    let begun = coordinator.handle(ready(0, 1));
    assert_eq!(begun, [begin(0, fence(1, 3, 1), 0), begin(1, fence(1, 4, 1), 0)]);
}

#[test]
fn cm12_back_off_doubles_up_to_its_bound_and_a_newer_version_starts_afresh() {
    let mut coordinator = attempting();
    let mut pauses = Vec::new();
    let mut attempt = fence(1, 2, 1);
    for tried in 1..MAX_ATTEMPTS {
        let out = coordinator.handle(ended(1, attempt, Verdict::RolledBack(died(1, 1)), 0));
        let [CoordinatorCommand::ArmTimer { id, after }] = out[..] else { panic!("{out:?}") };
        pauses.push(after.as_millis());
        attempt = fence(1, 2 + tried, 1);
        assert_eq!(coordinator.handle(CoordinatorEvent::TimerFired(id)), [begin(1, attempt, 0)]);
    }
    assert_eq!(pauses, [100, 150]);
    let cause = died(1, 0);
    let lagging = settled(1, 1, ReplicaOutcome::Lagging { at: Version(0), cause: cause.clone() });
    assert_eq!(coordinator.handle(ended(1, attempt, Verdict::RolledBack(cause), 0)), [lagging]);
    assert_eq!(coordinator.handle(ready(0, 2)), []);
    assert_eq!(coordinator.handle(ready(1, 2)), [begin(1, fence(1, 5, 2), 0)]);
}
