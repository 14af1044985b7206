//! What the faulty transport does to its batches, and that it breaks no other promise.

use bytes::Bytes;
use driftless_transport::{Batch, Fault, Faulty, Loopback, Transport, TransportError, conformance};
use driftless_types::{
    Attempt, Epoch, Fence, Member, Payload, PlanDigest, Retry, Round, RunId, SenderId, Version,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const A: Member = Member::Sender(SenderId(0));
const B: Member = Member::Sender(SenderId(1));
const C: Member = Member::Sender(SenderId(2));
const SOON: Duration = Duration::from_secs(5);

const fn fence() -> Fence {
    Fence {
        run: RunId([1; 16]),
        epoch: Epoch { counter: 1, incarnation: 1 },
        attempt: Attempt(1),
        version: Version(1),
        plan: PlanDigest([1; 32]),
    }
}

fn sends(me: Member, to: &[(Member, &'static str)]) -> Batch {
    let payload = |&(to, text): &(Member, &'static str)| (to, Payload::Host(Bytes::from(text)));
    let sends = to.iter().map(payload).collect();
    Batch { fence: fence(), round: Round::Payload, me, sends, receives: Vec::new() }
}

fn takes(me: Member, from: Member, bytes: u64) -> Batch {
    Batch { fence: fence(), round: Round::Payload, me, sends: Vec::new(), receives: vec![(from, bytes)] }
}

/// A loopback on which this happens to everything that a member sends.
fn with(fault: Fault) -> Faulty {
    Faulty::new(Arc::new(Loopback::default()), move |batch| (batch.me == A).then_some(fault))
}

/// What arrives, as text.
async fn arrives(transport: &Faulty, batch: Batch) -> String {
    let arrived = timeout(SOON, transport.transfer(batch)).await.expect("in time").expect("it moves");
    arrived.iter().map(|(_, Payload::Host(bytes))| String::from_utf8_lossy(bytes).into_owned()).collect()
}

async fn keeps_every_promise(fault: Fault) {
    conformance::all(&|members| {
        let shared: Arc<dyn Transport> =
            Arc::new(Faulty::new(Arc::new(Loopback::default()), move |_| Some(fault)));
        members.iter().map(|_| Arc::clone(&shared)).collect()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ex7_delays_and_reordering_break_no_promise() {
    keeps_every_promise(Fault::Delay(Duration::from_millis(1))).await;
    keeps_every_promise(Fault::Reorder(Duration::from_millis(1))).await;
}

#[tokio::test]
async fn ex7_the_pair_that_is_named_last_moves_first() {
    let transport = with(Fault::Reorder(Duration::from_millis(100)));
    let batch = sends(A, &[(B, "to b"), (C, "to c")]);
    let sending =
        async { timeout(SOON, transport.transfer(batch)).await.expect("in time").expect("it moves") };
    let racing = async {
        let mut to_b = std::pin::pin!(arrives(&transport, takes(B, A, 4)));
        let to_c = tokio::select! {
            biased;
            _ = &mut to_b => panic!("the first pair moved first"),
            text = arrives(&transport, takes(C, A, 4)) => text,
        };
        (to_b.await, to_c)
    };
    let (_, texts) = tokio::join!(sending, racing);
    assert_eq!(texts, ("to b".to_owned(), "to c".to_owned()));
}

#[tokio::test]
async fn ex6_a_stalled_batch_ends_with_its_exchange() {
    let transport = with(Fault::Stall);
    let mut stalled = transport.transfer(sends(A, &[(B, "never")]));
    assert!(timeout(Duration::from_millis(30), &mut stalled).await.is_err(), "it moved");
    transport.abort(&fence());
    let error = timeout(SOON, stalled).await.expect("in time").expect_err("it was aborted");
    assert_eq!(error, TransportError::Aborted { fence: Box::new(fence()) });
}

#[tokio::test]
async fn a_reset_sends_half_and_fails() {
    let transport = with(Fault::Reset);
    let error = transport.transfer(sends(A, &[(B, "one"), (C, "two")])).await.expect_err("it was reset");
    assert_eq!((error.clone(), error.retry()), (TransportError::Reset { at: A }, Retry::NewAttempt));
    assert_eq!(arrives(&transport, takes(B, A, 3)).await, "one");
    let lost = timeout(Duration::from_millis(30), transport.transfer(takes(C, A, 3))).await;
    assert!(lost.is_err(), "the other half arrived");
}

#[tokio::test]
async fn a_duplicate_arrives_twice_and_a_delay_late() {
    let transport = with(Fault::Duplicate);
    assert_eq!(arrives(&transport, sends(A, &[(B, "again")])).await, "");
    assert_eq!(arrives(&transport, takes(B, A, 5)).await, "again");
    assert_eq!(arrives(&transport, takes(B, A, 5)).await, "again");

    let transport = with(Fault::Delay(Duration::from_millis(60)));
    let mut late = transport.transfer(sends(A, &[(B, "late")]));
    assert!(timeout(Duration::from_millis(20), &mut late).await.is_err(), "it moved at once");
    assert!(late.await.is_ok());
}
