//! The members of a test, their endpoints and their messages.

use crate::{Batch, Transport, TransportError};
use bytes::Bytes;
use driftless_types::{
    Attempt, Epoch, Fence, Member, Payload, PlanDigest, ReceiverId, ReplicaId, Round, RunId, SenderId,
    Version,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Makes a fresh transport for these members: an endpoint for each, in their order. A transport that all share is
/// given as clones of one `Arc`.
pub type Fabric<'a> = &'a (dyn Fn(&[Member]) -> Vec<Arc<dyn Transport>> + Sync);

/// A batch with nothing left to wait for moves within this time.
pub const MOVES_WITHIN: Duration = Duration::from_secs(10);
/// An abort ends every transfer of its exchange within this time.
pub const UNBLOCKS_WITHIN: Duration = Duration::from_secs(1);
/// Long enough for a transfer that was posted to wait.
const SETTLES_WITHIN: Duration = Duration::from_millis(20);

/// What came in a batch: who sent it, and the bytes.
pub(super) type Arrived = Vec<(Member, Vec<u8>)>;
/// A transfer that runs by itself.
pub(super) type Running = JoinHandle<Result<Arrived, TransportError>>;

pub(super) const fn sender(index: u32) -> Member {
    Member::Sender(SenderId(index))
}

pub(super) const fn receiver(rank: u32) -> Member {
    Member::Receiver(ReceiverId { replica: ReplicaId(0), rank })
}

pub(super) const fn fence(attempt: u32) -> Fence {
    Fence {
        run: RunId([1; 16]),
        epoch: Epoch { counter: 1, incarnation: 1 },
        attempt: Attempt(attempt),
        version: Version(1),
        plan: PlanDigest([1; 32]),
    }
}

/// A batch without sends and receives.
pub(super) const fn batch(fence: Fence, me: Member) -> Batch {
    Batch { fence, round: Round::Payload, me, sends: Vec::new(), receives: Vec::new() }
}

impl Batch {
    pub(super) fn sending(mut self, to: Member, bytes: impl Into<Vec<u8>>) -> Self {
        self.sends.push((to, Payload::Host(Bytes::from(bytes.into()))));
        self
    }

    pub(super) fn receiving(mut self, from: Member, bytes: u64) -> Self {
        self.receives.push((from, bytes));
        self
    }

    pub(super) const fn in_round(mut self, round: Round) -> Self {
        self.round = round;
        self
    }
}

/// Some members and their endpoints.
pub(super) struct Stage {
    members: Vec<Member>,
    endpoints: Vec<Arc<dyn Transport>>,
}

impl Stage {
    pub(super) fn new(fabric: Fabric<'_>, members: &[Member]) -> Self {
        let endpoints = fabric(members);
        assert_eq!(endpoints.len(), members.len(), "an endpoint for each member");
        Self { members: members.to_vec(), endpoints }
    }

    pub(super) fn endpoint(&self, member: Member) -> Arc<dyn Transport> {
        let index = self.members.iter().position(|&other| other == member).expect("a member of the stage");
        Arc::clone(&self.endpoints[index])
    }

    /// Starts a transfer at the endpoint of its member.
    pub(super) fn start(&self, batch: Batch) -> Running {
        let endpoint = self.endpoint(batch.me);
        tokio::spawn(async move {
            let arrived = endpoint.transfer(batch).await?;
            Ok(arrived.into_iter().map(|(from, Payload::Host(bytes))| (from, bytes.to_vec())).collect())
        })
    }

    pub(super) fn abort(&self, fence: &Fence) {
        self.endpoints.iter().for_each(|endpoint| endpoint.abort(fence));
    }

    pub(super) fn retire(&self, fence: &Fence) {
        self.endpoints.iter().for_each(|endpoint| endpoint.retire(fence));
    }
}

/// Lets what was started get as far as it can.
pub(super) async fn settle() {
    sleep(SETTLES_WITHIN).await;
}

/// How a transfer ended, if it did in time.
pub(super) async fn ends(running: Running, within: Duration) -> Result<Arrived, TransportError> {
    let ended = timeout(within, running).await;
    ended.expect("the transfer ends in time").expect("the transfer does not panic")
}

/// What a transfer that must succeed brought.
pub(super) async fn moves(running: Running) -> Arrived {
    ends(running, MOVES_WITHIN).await.expect("the batch moves")
}

/// Why a transfer that must fail did.
pub(super) async fn fails(running: Running) -> TransportError {
    ends(running, UNBLOCKS_WITHIN).await.expect_err("the batch is refused")
}
