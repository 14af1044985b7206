use crate::words::{died, epoch, fence, receiver, sender};
use driftless_proto::{
    Cause, Coordinator, CoordinatorCommand, CoordinatorEvent, CoordinatorOptions, Intake, Needs, Outcome,
    PatchRange, ReplicaOutcome, RootCause, TimerId, TimerKind, Verdict,
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
        attempt_deadline: Duration::from_secs(20),
    };
    let senders = [SenderId(0), SenderId(1)];
    Coordinator::new(RunId::default(), PlanDigest::default(), epoch(counter), senders, receivers, options)
}

trait Hears {
    /// Feeds an event; the deadlines of attempts are left out of the answer.
    fn hears(&mut self, event: CoordinatorEvent) -> Vec<CoordinatorCommand>;
}

impl Hears for Coordinator {
    fn hears(&mut self, event: CoordinatorEvent) -> Vec<CoordinatorCommand> {
        let mut out = self.handle(event);
        out.retain(|command| !matches!(command, CoordinatorCommand::ArmTimer { id, .. } if is_deadline(id)));
        out
    }
}

const fn is_deadline(id: &TimerId) -> bool {
    matches!(id.kind, TimerKind::Attempt(_))
}

fn ready(id: u32, version: u64) -> CoordinatorEvent {
    CoordinatorEvent::SenderReady(
        SenderId(id),
        Some(PatchRange { version: Version(version), since: Version(0) }),
    )
}

fn serving(replica: u32, base: u64) -> CoordinatorEvent {
    let needs = Needs { base: Version(base), repair: BTreeMap::new(), intake: Intake::Staged };
    CoordinatorEvent::Serving(ReplicaId(replica), needs)
}

fn down(member: Member) -> CoordinatorEvent {
    CoordinatorEvent::MemberDown(member)
}

fn ended(replica: u32, fence: Fence, verdict: Verdict, serving: u64) -> CoordinatorEvent {
    let outcome = Outcome { fence, verdict, repair: BTreeMap::new(), intake: Intake::Staged };
    CoordinatorEvent::Ended(ReplicaId(replica), outcome, Version(serving))
}

fn settled(replica: u32, version: u64, outcome: ReplicaOutcome) -> CoordinatorCommand {
    CoordinatorCommand::Settle { replica: ReplicaId(replica), version: Version(version), outcome }
}

fn begin(replica: u32, fence: Fence, base: u64) -> CoordinatorCommand {
    let needs = Needs { base: Version(base), repair: BTreeMap::new(), intake: Intake::Staged };
    CoordinatorCommand::Begin { fence, replica: ReplicaId(replica), needs }
}

fn all_up(coordinator: &mut Coordinator) {
    for (replica, rank) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert!(coordinator.hears(CoordinatorEvent::ReceiverUp(receiver(replica, rank))).is_empty());
    }
}

/// Both replicas serve version 0 and are attempting version 1: attempts 1 and 2.
fn attempting() -> Coordinator {
    let mut coordinator = fresh(1);
    all_up(&mut coordinator);
    coordinator.hears(serving(0, 0));
    coordinator.hears(serving(1, 0));
    coordinator.hears(ready(0, 1));
    let begun = coordinator.hears(ready(1, 1));
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
    assert_eq!(coordinator.hears(lead), [abort]);
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    assert_eq!(coordinator.hears(serving(0, 1)), std::slice::from_ref(&committed));
    assert_eq!(coordinator.hears(CoordinatorEvent::ReceiverUp(receiver(0, 0))), []);
    // A coordinator that was not there when the version was committed.
    let mut next = fresh(2);
    all_up(&mut next);
    next.hears(serving(0, 1));
    next.hears(ready(0, 1));
    assert_eq!(next.hears(ready(1, 1)), [committed]);
}

#[test]
fn cm12_a_sender_that_comes_back_hears_every_outcome_again() {
    let mut coordinator = attempting();
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    let end = ended(0, fence(1, 1, 1), Verdict::Committed, 1);
    assert_eq!(coordinator.hears(end), std::slice::from_ref(&committed));
    let cause = died(1, 1);
    let mut attempt = fence(1, 2, 1);
    for tried in 1..=MAX_ATTEMPTS {
        let out = coordinator.hears(ended(1, attempt, Verdict::RolledBack(cause.clone()), 0));
        if tried == MAX_ATTEMPTS {
            break;
        }
        let [CoordinatorCommand::ArmTimer { id, .. }] = out[..] else { panic!("{out:?}") };
        attempt = fence(1, 2 + tried, 1);
        assert_eq!(coordinator.hears(CoordinatorEvent::TimerFired(id)), [begin(1, attempt, 0)]);
    }
    assert_eq!(coordinator.hears(down(sender(1))), []);
    let lagging = settled(1, 1, ReplicaOutcome::Lagging { at: Version(0), cause });
    assert_eq!(coordinator.hears(ready(1, 1)), [committed, lagging]);
}

#[test]
fn cm12_a_report_from_before_the_attempt_does_not_fail_it() {
    let mut coordinator = attempting();
    assert_eq!(coordinator.hears(serving(0, 0)), []);
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    assert_eq!(coordinator.hears(ended(0, fence(1, 1, 1), Verdict::Committed, 1)), [committed]);
}

#[test]
fn cm10_a_failed_replay_of_a_served_version_is_no_failure() {
    let mut coordinator = attempting();
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    assert_eq!(coordinator.hears(ended(0, fence(1, 1, 1), Verdict::Committed, 1)), [committed]);
    for attempt in 10..10 + MAX_ATTEMPTS {
        let verdict = Verdict::RolledBack(died(0, 1));
        assert_eq!(coordinator.hears(ended(0, fence(1, attempt, 1), verdict, 1)), []);
    }
}

#[test]
fn cm10_a_report_that_is_heard_twice_counts_once() {
    let mut coordinator = attempting();
    let rolled_back = ended(0, fence(1, 1, 1), Verdict::RolledBack(died(0, 1)), 0);
    let out = coordinator.hears(rolled_back.clone());
    let [CoordinatorCommand::ArmTimer { id, .. }] = out[..] else { panic!("{out:?}") };
    assert_eq!(coordinator.hears(rolled_back.clone()), []);
    assert_eq!(coordinator.hears(CoordinatorEvent::TimerFired(id)), [begin(0, fence(1, 3, 1), 0)]);
    let before = coordinator.clone();
    assert_eq!(coordinator.hears(rolled_back.clone()), []);
    assert_eq!(coordinator, before);
    // From a lead that came back it says that the lead is there.
    coordinator.hears(down(Member::Receiver(receiver(0, 0))));
    assert_eq!(coordinator.hears(rolled_back), []);
    let up = CoordinatorEvent::ReceiverUp(receiver(0, 0));
    assert_eq!(coordinator.hears(up), [begin(0, fence(1, 4, 1), 0)]);
}

#[test]
fn cm10_older_news_of_a_sender_is_no_news() {
    let mut coordinator = attempting();
    coordinator.hears(ready(0, 2));
    let before = coordinator.clone();
    assert_eq!(coordinator.hears(ready(0, 1)), []);
    assert_eq!(coordinator, before);
    // A sender that lost its patch has died before it says so.
    coordinator.hears(down(sender(0)));
    let before = coordinator.clone();
    coordinator.hears(ready(0, 1));
    assert_ne!(coordinator, before);
}

#[test]
fn cm11_an_attempt_of_which_nothing_is_heard_is_given_up_until_its_lead_answers() {
    let mut coordinator = attempting();
    let mine = fence(1, 1, 1);
    let id = TimerId::of(&mine, TimerKind::Attempt(ReplicaId(0)));
    let cause = Cause::at(receiver(0, 0), RootCause::Deadline { step: "the attempt" });
    let abort = CoordinatorCommand::Abort { fence: mine, replica: ReplicaId(0), cause: cause.clone() };
    let again = CoordinatorCommand::ArmTimer { id, after: Duration::from_secs(20) };
    for _ in 0..2 {
        let out = coordinator.handle(CoordinatorEvent::TimerFired(id));
        assert_eq!(out, [abort.clone(), again.clone()]);
    }
    coordinator.hears(ended(0, mine, Verdict::RolledBack(cause), 0));
    assert_eq!(coordinator.handle(CoordinatorEvent::TimerFired(id)), []);
}

#[test]
fn cm5_attempts_carry_the_epoch_and_rise_within_it() {
    let mut coordinator = attempting();
    assert_eq!(coordinator.epoch(), epoch(1));
    coordinator.hears(ended(0, fence(1, 1, 1), Verdict::Committed, 1));
    coordinator.hears(ended(1, fence(1, 2, 1), Verdict::Committed, 1));
    assert_eq!(coordinator.hears(ready(0, 2)), []);
    let begun = coordinator.hears(ready(1, 2));
    assert_eq!(begun, [begin(0, fence(1, 3, 2), 1), begin(1, fence(1, 4, 2), 1)]);
}

#[test]
fn cm4_nothing_begins_before_every_member_is_up_and_every_sender_holds_the_version() {
    let mut coordinator = fresh(1);
    assert_eq!(coordinator.hears(serving(0, 0)), []);
    assert_eq!(coordinator.hears(ready(0, 2)), []);
    assert_eq!(coordinator.hears(ready(1, 1)), []);
    assert_eq!(coordinator.hears(CoordinatorEvent::ReceiverUp(receiver(0, 0))), []);
    assert_eq!(coordinator.hears(ready(1, 2)), []);
    let last = CoordinatorEvent::ReceiverUp(receiver(0, 1));
    assert_eq!(coordinator.hears(last), [begin(0, fence(1, 1, 2), 0)]);
    // The other replica's lead has not reported: it is unheard.
    assert_eq!(coordinator.hears(CoordinatorEvent::ReceiverUp(receiver(1, 0))), []);
    assert_eq!(coordinator.hears(CoordinatorEvent::ReceiverUp(receiver(1, 1))), []);
    assert_eq!(coordinator.hears(serving(1, 0)), [begin(1, fence(1, 2, 2), 0)]);
}

#[test]
fn cm15_a_receiver_that_dies_aborts_its_own_replica_alone() {
    let mut coordinator = attempting();
    let member = Member::Receiver(receiver(1, 1));
    let abort = CoordinatorCommand::Abort { fence: fence(1, 2, 1), replica: ReplicaId(1), cause: died(1, 1) };
    assert_eq!(coordinator.hears(down(member)), [abort]);
    // The lead alone ends it: while the receiver is down nothing begins, not even after the back-off.
    let out = coordinator.hears(ended(1, fence(1, 2, 1), Verdict::RolledBack(died(1, 1)), 0));
    let [CoordinatorCommand::ArmTimer { id, .. }] = out[..] else { panic!("{out:?}") };
    assert_eq!(coordinator.hears(CoordinatorEvent::TimerFired(id)), []);
    let up = CoordinatorEvent::ReceiverUp(receiver(1, 1));
    assert_eq!(coordinator.hears(up), [begin(1, fence(1, 3, 1), 0)]);
}

#[test]
fn cm12_a_sender_that_dies_aborts_every_attempt_and_all_are_tried_again() {
    let mut coordinator = attempting();
    let out = coordinator.hears(down(sender(0)));
    let aborted = |command: &CoordinatorCommand| matches!(command, CoordinatorCommand::Abort { .. });
    assert_eq!((out.len(), out.iter().all(aborted)), (2, true));
    let cause = died(0, 0);
    let mut timers = Vec::new();
    for (replica, attempt) in [(0, 1), (1, 2)] {
        let verdict = Verdict::RolledBack(cause.clone());
        let out = coordinator.hears(ended(replica, fence(1, attempt, 1), verdict, 0));
        let [CoordinatorCommand::ArmTimer { id, after }] = out[..] else { panic!("{out:?}") };
        assert_eq!(after, Duration::from_millis(100));
        timers.push(id);
    }
    for id in timers {
        assert_eq!(coordinator.hears(CoordinatorEvent::TimerFired(id)), []);
    }
    let begun = coordinator.hears(ready(0, 1));
    assert_eq!(begun, [begin(0, fence(1, 3, 1), 0), begin(1, fence(1, 4, 1), 0)]);
}

#[test]
fn cm12_back_off_doubles_up_to_its_bound_and_a_newer_version_starts_afresh() {
    let mut coordinator = attempting();
    let mut pauses = Vec::new();
    let mut attempt = fence(1, 2, 1);
    for tried in 1..MAX_ATTEMPTS {
        let out = coordinator.hears(ended(1, attempt, Verdict::RolledBack(died(1, 1)), 0));
        let [CoordinatorCommand::ArmTimer { id, after }] = out[..] else { panic!("{out:?}") };
        pauses.push(after.as_millis());
        attempt = fence(1, 2 + tried, 1);
        assert_eq!(coordinator.hears(CoordinatorEvent::TimerFired(id)), [begin(1, attempt, 0)]);
    }
    assert_eq!(pauses, [100, 150]);
    let cause = died(1, 0);
    let lagging = settled(1, 1, ReplicaOutcome::Lagging { at: Version(0), cause: cause.clone() });
    assert_eq!(coordinator.hears(ended(1, attempt, Verdict::RolledBack(cause), 0)), [lagging]);
    assert_eq!(coordinator.hears(ready(0, 2)), []);
    assert_eq!(coordinator.hears(ready(1, 2)), [begin(1, fence(1, 5, 2), 0)]);
}

#[test]
fn cm12_the_end_of_an_older_attempt_does_not_fail_the_open_one() {
    let mut coordinator = attempting();
    coordinator.hears(down(Member::Receiver(receiver(0, 0))));
    coordinator.hears(CoordinatorEvent::ReceiverUp(receiver(0, 0)));
    assert_eq!(coordinator.hears(serving(0, 0)), [begin(0, fence(1, 3, 1), 0)]);
    let older = ended(0, fence(1, 1, 1), Verdict::RolledBack(died(0, 0)), 0);
    assert_eq!(coordinator.hears(older), []);
    let committed = settled(0, 1, ReplicaOutcome::Committed);
    assert_eq!(coordinator.hears(ended(0, fence(1, 3, 1), Verdict::Committed, 1)), [committed]);
}
