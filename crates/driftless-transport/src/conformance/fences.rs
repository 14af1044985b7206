//! How exchanges end, and that they do not mix.

use super::stage::{Fabric, Stage, batch, fails, fence, moves, receiver, sender, settle};
use crate::TransportError;
use driftless_types::{Epoch, Fence, PlanDigest, RunId, Version};

/// EX-6: an abort ends what waits and what still comes, within [`super::UNBLOCKS_WITHIN`].
///
/// # Panics
/// If a transfer goes on waiting, or moves.
pub async fn ex6_abort_unblocks(fabric: Fabric<'_>) {
    let [a, b] = [sender(0), receiver(0)];
    let stage = Stage::new(fabric, &[a, b]);
    let fence = fence(1);
    let waits = [(a, b), (b, a)].map(|(me, other)| stage.start(batch(fence, me).receiving(other, 1)));
    settle().await;
    stage.abort(&fence);
    let aborted = TransportError::Aborted { fence: Box::new(fence) };
    for waiting in waits {
        assert_eq!(fails(waiting).await, aborted);
    }
    assert_eq!(fails(stage.start(batch(fence, a).sending(b, "late"))).await, aborted);
    assert_eq!(fails(stage.start(batch(fence, b).receiving(a, 4))).await, aborted);
    let next = super::stage::fence(2);
    moves(stage.start(batch(next, a).sending(b, "next"))).await;
    assert_eq!(moves(stage.start(batch(next, b).receiving(a, 4))).await, [(a, b"next".to_vec())]);
}

/// EX-6: an exchange that was aborted before it began, or retired, fails whoever comes.
///
/// # Panics
/// If a batch of it moves, or finds bytes that were left.
pub async fn ex6_what_is_over_stays_over(fabric: Fabric<'_>) {
    let [a, b] = [sender(0), receiver(0)];
    let stage = Stage::new(fabric, &[a, b]);
    let [never_begun, done] = [fence(1), fence(2)];
    stage.abort(&never_begun);
    let aborted = TransportError::Aborted { fence: Box::new(never_begun) };
    assert_eq!(fails(stage.start(batch(never_begun, b).receiving(a, 1))).await, aborted);
    stage.retire(&never_begun);
    assert_eq!(fails(stage.start(batch(never_begun, a))).await, aborted, "what ended first stays");

    moves(stage.start(batch(done, a).sending(b, "left behind"))).await;
    stage.retire(&done);
    let over = TransportError::Over { fence: Box::new(done) };
    assert_eq!(fails(stage.start(batch(done, b).receiving(a, 11))).await, over);
    stage.abort(&done);
    assert_eq!(fails(stage.start(batch(done, a).sending(b, "x"))).await, over, "what ended first stays");
}

/// EX-6: the first batch of a newer epoch ends all exchanges of older ones, and no more of them are let in.
///
/// # Panics
/// If an older exchange goes on.
pub async fn ex6_a_newer_epoch_ends_older_ones(fabric: Fabric<'_>) {
    let [a, b] = [sender(0), receiver(0)];
    let stage = Stage::new(fabric, &[a, b]);
    let old = fence(7);
    let new = Fence { epoch: Epoch { incarnation: 2, ..old.epoch }, ..old };
    let waiting = stage.start(batch(old, b).receiving(a, 1));
    settle().await;
    moves(stage.start(batch(new, b).sending(b, "x").receiving(b, 1))).await;
    let stale = TransportError::StaleEpoch { found: old.epoch, expected: new.epoch };
    assert_eq!(fails(waiting).await, stale);
    assert_eq!(fails(stage.start(batch(old, b).receiving(a, 1))).await, stale);
    stage.abort(&old);
    moves(stage.start(batch(new, b))).await;
}

/// EX-1: a batch that names the exchange of others with another run, version or plan is refused,
/// and theirs goes on.
///
/// # Panics
/// If it is let in, or ends theirs.
pub async fn ex1_a_foreign_fence_is_refused(fabric: Fabric<'_>) {
    let [a, b] = [sender(0), receiver(0)];
    let stage = Stage::new(fabric, &[a, b]);
    let ours = fence(1);
    let waiting = stage.start(batch(ours, b).receiving(b, 4));
    settle().await;
    let others = [
        ("run", Fence { run: RunId([2; 16]), ..ours }),
        ("version", Fence { version: Version(2), ..ours }),
        ("plan", Fence { plan: PlanDigest([2; 32]), ..ours }),
    ];
    for (part, other) in others {
        let error = fails(stage.start(batch(other, b).sending(b, "evil"))).await;
        assert!(
            matches!(&error, TransportError::ForeignFence { what, fence, .. } if *what == part && **fence == other),
            "another {part} was reported as: {error}"
        );
        stage.abort(&other);
    }
    moves(stage.start(batch(ours, b).sending(b, "good"))).await;
    assert_eq!(moves(waiting).await, [(b, b"good".to_vec())]);
}

/// Exchanges of one epoch run side by side between the same members, and the end of one leaves the others alone.
///
/// # Panics
/// If bytes go from one to the other, or an abort reaches both.
pub async fn exchanges_do_not_mix(fabric: Fabric<'_>) {
    let [a, b] = [sender(0), receiver(0)];
    let stage = Stage::new(fabric, &[a, b]);
    let [first, second] = [fence(1), fence(2)];
    let waiting = stage.start(batch(first, b).receiving(a, 3));
    moves(stage.start(batch(second, a).sending(b, "2nd"))).await;
    settle().await;
    assert!(!waiting.is_finished(), "those bytes belong to the second exchange");
    moves(stage.start(batch(first, a).sending(b, "1st"))).await;
    assert_eq!(moves(waiting).await, [(a, b"1st".to_vec())]);
    stage.abort(&first);
    assert_eq!(moves(stage.start(batch(second, b).receiving(a, 3))).await, [(a, b"2nd".to_vec())]);
}
