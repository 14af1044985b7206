use crate::words::{fence, receiver, sender};
use driftless_proto::{
    Exchange, ExchangeCommand, ExchangeEnd, ExchangeEvent, Limits, RootCause, Shape, TimerId, TimerKind,
};
use driftless_types::{Member, Round};
use std::collections::BTreeMap;
use std::time::Duration;

const LIMIT: u64 = 1000;

fn limits() -> Limits {
    Limits {
        staging_max_bytes: LIMIT,
        round_deadline: Duration::from_secs(2),
        bandwidth_bytes_per_s: 100,
        window_bytes: 8,
    }
}

fn bytes<const N: usize>(pairs: [(Member, u64); N]) -> BTreeMap<Member, u64> {
    BTreeMap::from(pairs)
}

/// A receiver that awaits records of two senders.
fn receiving() -> (Exchange, Vec<ExchangeCommand>) {
    let shape = Shape {
        sends: BTreeMap::new(),
        receives: bytes([(sender(0), 64), (sender(1), 32)]),
        windows: BTreeMap::from([(sender(0), 2), (sender(1), 0)]),
    };
    Exchange::open(fence(1, 1, 1), shape, BTreeMap::new(), limits())
}

/// A sender with two receivers, one of which gets no payload.
fn sending() -> (Exchange, Vec<ExchangeCommand>) {
    let (a, b) = (Member::Receiver(receiver(0, 0)), Member::Receiver(receiver(0, 1)));
    let shape = Shape {
        sends: bytes([(a, 32), (b, 32)]),
        receives: BTreeMap::new(),
        windows: BTreeMap::from([(a, 1), (b, 2)]),
    };
    Exchange::open(fence(1, 1, 1), shape, bytes([(a, 500), (b, 0)]), limits())
}

fn timer(kind: TimerKind) -> TimerId {
    TimerId::of(&fence(1, 1, 1), kind)
}

fn announced(first: u64, second: u64) -> ExchangeEvent {
    ExchangeEvent::RecordsMoved { announced: bytes([(sender(0), first), (sender(1), second)]) }
}

fn failed(root: RootCause) -> Option<ExchangeEnd> {
    Some(ExchangeEnd::Failed(root))
}

#[test]
fn ex2_ex3_round_one_is_posted_whole_before_anything_is_awaited() {
    let (exchange, commands) = receiving();
    let receives = bytes([(sender(0), 64), (sender(1), 32)]);
    let post = ExchangeCommand::Post { round: Round::Records, sends: BTreeMap::new(), receives };
    let arm = ExchangeCommand::ArmTimer { id: timer(TimerKind::Records), after: Duration::from_secs(2) };
    assert_eq!(commands, [post, arm]);
    assert_eq!(exchange.end(), None);
}

#[test]
fn ex4_the_second_round_holds_exactly_the_pairs_that_announced_bytes() {
    let (exchange, commands) = receiving().0.handle(announced(0, 700)).expect("records");
    let receives = bytes([(sender(1), 700)]);
    let post = ExchangeCommand::Post { round: Round::Payload, sends: BTreeMap::new(), receives };
    // Four times as long as 700 bytes take at 100 bytes per second.
    let arm = ExchangeCommand::ArmTimer { id: timer(TimerKind::Payload), after: Duration::from_secs(28) };
    assert_eq!(commands, [post, arm]);
    let (exchange, commands) = exchange.handle(ExchangeEvent::PayloadMoved).expect("payload");
    assert_eq!((exchange.end(), commands.len()), (Some(&ExchangeEnd::Complete), 0));

    let moved = ExchangeEvent::RecordsMoved { announced: BTreeMap::new() };
    let (_, commands) = sending().0.handle(moved).expect("records");
    let sends = bytes([(Member::Receiver(receiver(0, 0)), 500)]);
    let post = ExchangeCommand::Post { round: Round::Payload, sends, receives: BTreeMap::new() };
    assert_eq!(commands[0], post);
}

#[test]
fn ex4_nothing_announced_ends_after_round_one() {
    let (exchange, commands) = receiving().0.handle(announced(0, 0)).expect("records");
    assert_eq!((exchange.end(), commands.len()), (Some(&ExchangeEnd::Complete), 0));
}

#[test]
fn ex5_more_than_the_limit_is_refused_and_exactly_the_limit_is_taken() {
    let (exchange, commands) = receiving().0.handle(announced(1, LIMIT)).expect("records");
    let refused = RootCause::Refused { bytes: LIMIT + 1, limit: LIMIT };
    assert_eq!((exchange.end().cloned(), commands), (failed(refused), vec![ExchangeCommand::AbortTransfers]));
    let (exchange, _) = receiving().0.handle(announced(1, LIMIT - 1)).expect("records");
    assert_eq!(exchange.end(), None);
    // No sum of hostile announcements wraps around to something small.
    let (exchange, _) = receiving().0.handle(announced(u64::MAX, u64::MAX)).expect("records");
    let refused = RootCause::Refused { bytes: u64::MAX, limit: LIMIT };
    assert_eq!(exchange.end().cloned(), failed(refused));
}

#[test]
fn ex6_every_wait_ends_by_its_own_deadline_and_tells_the_others() {
    let (counting, _) = receiving();
    let (counting, commands) =
        counting.handle(ExchangeEvent::TimerFired(timer(TimerKind::Payload))).expect("a timer");
    assert_eq!((counting.end(), commands.len()), (None, 0), "the other round's timer ends nothing");
    let (late, commands) =
        counting.clone().handle(ExchangeEvent::TimerFired(timer(TimerKind::Records))).expect("a timer");
    assert_eq!(late.end().cloned(), failed(RootCause::Deadline { step: "round 1 (records)" }));
    assert_eq!(commands, [ExchangeCommand::AbortTransfers]);

    let (moving, _) = counting.handle(announced(5, 5)).expect("records");
    let old = TimerId::of(&fence(1, 2, 1), TimerKind::Payload);
    let (moving, _) = moving.handle(ExchangeEvent::TimerFired(old)).expect("a timer");
    assert_eq!(moving.end(), None, "another attempt's timer ends nothing");
    let (late, _) = moving.handle(ExchangeEvent::TimerFired(timer(TimerKind::Payload))).expect("a timer");
    assert_eq!(late.end().cloned(), failed(RootCause::Deadline { step: "round 2 (payload)" }));
}

#[test]
fn ex6_a_failure_ends_it_once_and_later_events_change_nothing() {
    let (moving, _) = receiving().0.handle(announced(5, 5)).expect("records");
    let (ended, commands) = moving.handle(ExchangeEvent::Failed(RootCause::Died)).expect("a failure");
    assert_eq!(
        (ended.end().cloned(), commands),
        (failed(RootCause::Died), vec![ExchangeCommand::AbortTransfers])
    );
    for event in [ExchangeEvent::PayloadMoved, ExchangeEvent::Failed(RootCause::Aborted), announced(1, 1)] {
        let (after, commands) = ended.clone().handle(event).expect("ignored");
        assert_eq!((after, commands), (ended.clone(), Vec::new()));
    }
}

#[test]
fn ex3_events_of_the_wrong_round_are_violations() {
    assert!(receiving().0.handle(ExchangeEvent::PayloadMoved).is_err());
    let stranger = ExchangeEvent::RecordsMoved { announced: bytes([(sender(0), 1), (sender(7), 1)]) };
    assert!(receiving().0.handle(stranger).is_err());
    let (moving, _) = receiving().0.handle(announced(5, 5)).expect("records");
    let violation = moving.handle(announced(5, 5)).expect_err("a second round one");
    assert_eq!(violation.to_string(), "records moved arrived in state moving");
}
