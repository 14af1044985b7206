//! Fences and members that every test speaks of.

use driftless_proto::{Cause, RootCause};
use driftless_types::{
    Attempt, Epoch, Fence, Member, PlanDigest, ReceiverId, ReplicaId, RunId, SenderId, Version,
};

pub(crate) fn epoch(counter: u64) -> Epoch {
    Epoch { counter, incarnation: 7 }
}

/// Attempt `attempt` at version `version` in epoch `counter`.
pub(crate) fn fence(counter: u64, attempt: u32, version: u64) -> Fence {
    Fence {
        run: RunId::default(),
        epoch: epoch(counter),
        attempt: Attempt(attempt),
        version: Version(version),
        plan: PlanDigest::default(),
    }
}

pub(crate) fn receiver(replica: u32, rank: u32) -> ReceiverId {
    ReceiverId { replica: ReplicaId(replica), rank }
}

pub(crate) fn sender(id: u32) -> Member {
    Member::Sender(SenderId(id))
}

pub(crate) fn died(replica: u32, rank: u32) -> Cause {
    Cause::at(receiver(replica, rank), RootCause::Died)
}
