//! What moves, and how.

use super::stage::{Fabric, Running, Stage, batch, fails, fence, moves, receiver, sender, settle};
use crate::TransportError;
use driftless_types::{Fence, Member, Round};

/// EX-3: a member's sends arrive although its own receives have not, and the other way round.
///
/// # Panics
/// If they wait for each other.
pub async fn ex3_sends_do_not_wait_for_receives(fabric: Fabric<'_>) {
    let [a, b, c] = [sender(0), receiver(0), sender(1)];
    let stage = Stage::new(fabric, &[a, b, c]);
    let fence = fence(1);
    let from_a = stage.start(batch(fence, a).sending(b, "to b").receiving(c, 4));
    let from_b = stage.start(batch(fence, b).receiving(a, 4));
    assert_eq!(moves(from_b).await, [(a, b"to b".to_vec())], "a's send waited for its receive");
    assert!(!from_a.is_finished(), "nothing has come from c yet");
    let from_c = stage.start(batch(fence, c).sending(a, "to a"));
    assert_eq!(moves(from_a).await, [(c, b"to a".to_vec())]);
    moves(from_c).await;
}

/// EX-3: every member sends to every member, itself included, whichever of them posts first.
///
/// # Panics
/// If a batch does not move, or brings other bytes.
pub async fn ex3_a_full_graph_moves_whatever_the_order(fabric: Fabric<'_>) {
    let members = [sender(0), sender(1), sender(2), receiver(0), receiver(1)];
    let stage = Stage::new(fabric, &members);
    for first in 0..members.len() {
        let fence = fence(u32::try_from(first).expect("a few members"));
        let mut running = Vec::new();
        for turn in 0..members.len() {
            running.push(start_full_batch(&stage, fence, &members, (first + turn) % members.len()));
            settle().await;
        }
        for (turn, running) in running.into_iter().enumerate() {
            let me = (first + turn) % members.len();
            let arrived = moves(running).await;
            let expected = members.iter().enumerate().map(|(from, &member)| (member, message(from, me)));
            assert_eq!(arrived, expected.collect::<Vec<_>>(), "payloads in the order of the receives");
        }
    }
}

fn start_full_batch(stage: &Stage, fence: Fence, members: &[Member], me: usize) -> Running {
    let mut full = batch(fence, members[me]);
    for (other, &member) in members.iter().enumerate() {
        full = full.sending(member, message(me, other));
        full = full.receiving(member, message(other, me).len() as u64);
    }
    stage.start(full)
}

/// The bytes of a pair: another length and other bytes for each.
fn message(from: usize, to: usize) -> Vec<u8> {
    let byte = u8::try_from(16 * from + to).expect("a few members");
    vec![byte; 10_000 * (from + 1) + to]
}

/// EX-7: payloads of one pair come in the order of their sends, each in its round, even if rounds overtake.
///
/// # Panics
/// If they come in another order.
pub async fn ex7_order_is_kept_per_pair(fabric: Fabric<'_>) {
    let [a, b] = [sender(0), receiver(0)];
    let stage = Stage::new(fabric, &[a, b]);
    let fence = fence(1);
    moves(stage.start(batch(fence, a).sending(b, "payload"))).await;
    let records =
        batch(fence, a).in_round(Round::Records).sending(b, "1st").sending(b, "2nd").sending(b, "3rd");
    moves(stage.start(records)).await;
    let records = batch(fence, b).in_round(Round::Records).receiving(a, 3).receiving(a, 3).receiving(a, 3);
    let expected = ["1st", "2nd", "3rd"].map(|text| (a, text.into()));
    assert_eq!(moves(stage.start(records)).await, expected, "the order of the sends");
    let payload = moves(stage.start(batch(fence, b).receiving(a, 7))).await;
    assert_eq!(payload, [(a, b"payload".to_vec())], "each round has its own bytes");
}

/// Messages of no bytes move as others do, beside very long ones.
///
/// # Panics
/// If one is lost, or cut.
pub async fn empty_and_uneven_messages_arrive(fabric: Fabric<'_>) {
    let [a, b, c] = [sender(0), receiver(0), receiver(1)];
    let stage = Stage::new(fabric, &[a, b, c]);
    let fence = fence(1);
    let long = vec![7; 3_000_001];
    let receivers = [
        stage.start(batch(fence, b).receiving(a, 0)),
        stage.start(batch(fence, c).receiving(a, long.len() as u64).receiving(a, 1).receiving(a, 0)),
    ];
    settle().await;
    assert!(receivers.iter().all(|running| !running.is_finished()), "an empty message has to be sent too");
    let sends = batch(fence, a).sending(b, "").sending(c, long.clone()).sending(c, "x").sending(c, "");
    moves(stage.start(sends)).await;
    let [at_b, at_c] = receivers;
    assert_eq!(moves(at_b).await, [(a, Vec::new())]);
    assert_eq!(moves(at_c).await, [(a, long), (a, b"x".to_vec()), (a, Vec::new())]);
    assert_eq!(moves(stage.start(batch(fence, a))).await, [], "a batch of nothing moves at once");
}

/// A member may send to itself.
///
/// # Panics
/// If that does not arrive.
pub async fn a_self_send_arrives(fabric: Fabric<'_>) {
    let a = sender(0);
    let stage = Stage::new(fabric, &[a]);
    let arrived = moves(stage.start(batch(fence(1), a).sending(a, "mine").receiving(a, 4))).await;
    assert_eq!(arrived, [(a, b"mine".to_vec())]);
}

/// A receiver may post long before or long after its sender.
///
/// # Panics
/// If the bytes are lost.
pub async fn late_joiners_find_their_bytes(fabric: Fabric<'_>) {
    let [a, b, c] = [sender(0), receiver(0), receiver(1)];
    let stage = Stage::new(fabric, &[a, b, c]);
    let fence = fence(1);
    let early = stage.start(batch(fence, b).receiving(a, 2));
    settle().await;
    moves(stage.start(batch(fence, a).sending(b, "to").sending(c, "too"))).await;
    settle().await;
    assert_eq!(moves(early).await, [(a, b"to".to_vec())]);
    let late = stage.start(batch(fence, c).receiving(a, 3));
    assert_eq!(moves(late).await, [(a, b"too".to_vec())]);
}

/// A payload of another size than was announced is an error of its receiver, whoever was first.
///
/// # Panics
/// If it is taken, or reported as something else.
pub async fn a_wrong_size_is_reported(fabric: Fabric<'_>) {
    let [a, b, c] = [sender(0), receiver(0), receiver(1)];
    let stage = Stage::new(fabric, &[a, b, c]);
    let fence = fence(1);
    let early = stage.start(batch(fence, b).receiving(a, 4));
    settle().await;
    moves(stage.start(batch(fence, a).sending(b, "five!").sending(c, "two"))).await;
    let expected = TransportError::SizeMismatch { from: a, found: 5, expected: 4 };
    assert_eq!(fails(early).await, expected);
    let late = stage.start(batch(fence, c).receiving(a, 0));
    let expected = TransportError::SizeMismatch { from: a, found: 3, expected: 0 };
    assert_eq!(fails(late).await, expected);
}
