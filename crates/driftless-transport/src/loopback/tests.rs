use super::*;
use bytes::Bytes;
use driftless_types::{Attempt, Epoch, Member, Payload, PlanDigest, ReceiverId, ReplicaId, Round, RunId};
use driftless_types::{SenderId, Version};

const A: Member = Member::Sender(SenderId(0));
const B: Member = Member::Receiver(ReceiverId { replica: ReplicaId(0), rank: 0 });

fn fence(attempt: u32) -> Fence {
    let epoch = Epoch { counter: 3, incarnation: 9 };
    Fence {
        run: RunId([1; 16]),
        epoch,
        attempt: Attempt(attempt),
        version: Version(1),
        plan: PlanDigest([1; 32]),
    }
}

fn sends(attempt: u32, bytes: &'static [u8]) -> Batch {
    let sends = vec![(B, Payload::Host(Bytes::from_static(bytes)))];
    Batch { fence: fence(attempt), round: Round::Payload, me: A, sends, receives: vec![] }
}

fn receives(attempt: u32, bytes: &[u64]) -> Batch {
    let receives = bytes.iter().map(|&bytes| (A, bytes)).collect();
    Batch { fence: fence(attempt), round: Round::Payload, me: B, sends: vec![], receives }
}

/// Polls a transfer until it waits, then drops it.
async fn start_and_drop(loopback: &Loopback, batch: Batch) {
    tokio::select! {
        biased;
        outcome = loopback.transfer(batch) => panic!("ended with {outcome:?}"),
        () = std::future::ready(()) => (),
    }
}

fn is_idle(loopback: &Loopback, attempt: u32) -> bool {
    loopback.hub().exchange(Attempt(attempt)).is_some_and(exchange::Exchange::is_idle)
}

#[tokio::test]
async fn ex6_a_dropped_transfer_leaves_nothing_that_waits() {
    let loopback = Loopback::default();
    loopback.transfer(sends(1, b"1st")).await.unwrap();
    start_and_drop(&loopback, receives(1, &[3, 3])).await;
    assert!(is_idle(&loopback, 1));
    loopback.transfer(sends(1, b"2nd")).await.unwrap();
    let arrived = loopback.transfer(receives(1, &[3])).await.unwrap();
    assert!(matches!(&arrived[..], [(A, Payload::Host(bytes))] if bytes[..] == b"2nd"[..]));
    assert!(is_idle(&loopback, 1));
}

#[tokio::test]
async fn a_transfer_that_fails_leaves_nothing_that_waits() {
    let loopback = Loopback::default();
    loopback.transfer(sends(1, b"four")).await.unwrap();
    let error = loopback.transfer(receives(1, &[5, 1, 1])).await.unwrap_err();
    assert_eq!(error, TransportError::SizeMismatch { from: A, found: 4, expected: 5 });
    assert!(is_idle(&loopback, 1));
}

#[tokio::test]
async fn a_transfer_that_is_never_polled_does_nothing() {
    let loopback = Loopback::default();
    drop(loopback.transfer(sends(1, b"x")));
    assert!(loopback.hub().exchange(Attempt(1)).is_none());
}

#[tokio::test]
async fn early_bytes_are_bounded_and_given_back() {
    let options = LoopbackOptions { early_bytes_max: 8, ..LoopbackOptions::default() };
    let loopback = Loopback::new(options);
    assert_eq!(loopback.capabilities(), Capabilities::new("loopback", 8));
    loopback.transfer(sends(1, b"12345")).await.unwrap();
    let error = loopback.transfer(sends(1, b"6789")).await.unwrap_err();
    assert_eq!(error, TransportError::EarlyBytes { needed: 9, limit: 8 });
    loopback.transfer(sends(2, b"another")).await.expect("the bound is per exchange");
    loopback.transfer(receives(1, &[5])).await.unwrap();
    assert_eq!(loopback.hub().exchange(Attempt(1)).unwrap().early_bytes(), 0);
    loopback.transfer(sends(1, b"6789")).await.expect("the first five were taken");
}

#[tokio::test]
async fn bytes_that_somebody_waits_for_are_not_early() {
    let loopback = Loopback::new(LoopbackOptions { early_bytes_max: 0, ..LoopbackOptions::default() });
    let (arrived, sent) =
        tokio::join!(biased; loopback.transfer(receives(1, &[4])), loopback.transfer(sends(1, b"four")));
    sent.unwrap();
    assert_eq!(arrived.unwrap().len(), 1);
}

#[tokio::test]
async fn a_batch_that_hits_the_bound_withdraws_its_receives() {
    let loopback = Loopback::new(LoopbackOptions { early_bytes_max: 0, ..LoopbackOptions::default() });
    let batch = Batch { receives: vec![(B, 1)], ..sends(1, b"x") };
    loopback.transfer(batch).await.unwrap_err();
    assert!(is_idle(&loopback, 1));
}

#[tokio::test]
async fn open_exchanges_are_bounded() {
    let loopback = Loopback::new(LoopbackOptions { open_exchanges_max: 1, ..LoopbackOptions::default() });
    loopback.transfer(sends(1, b"x")).await.unwrap();
    let error = loopback.transfer(sends(2, b"x")).await.unwrap_err();
    assert_eq!(error, TransportError::OpenExchanges { limit: 1 });
    loopback.retire(&fence(1));
    loopback.transfer(sends(2, b"x")).await.expect("the first is over");
}

#[tokio::test]
async fn ex6_exchanges_that_ended_long_ago_stay_over() {
    let loopback = Loopback::default();
    loopback.transfer(sends(1, b"x")).await.unwrap();
    for attempt in 2..3000 {
        loopback.abort(&fence(attempt));
    }
    for (attempt, aborted) in [(2, false), (1975, false), (1976, true), (2999, true)] {
        let error = loopback.transfer(sends(attempt, b"x")).await.unwrap_err();
        let fence = Box::new(fence(attempt));
        let expected =
            if aborted { TransportError::Aborted { fence } } else { TransportError::Over { fence } };
        assert_eq!(error, expected, "attempt {attempt}");
    }
    loopback.transfer(receives(1, &[1])).await.expect("an old exchange that is open goes on");
    loopback.transfer(sends(3000, b"x")).await.expect("a new exchange opens");
}
