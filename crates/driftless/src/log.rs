//! Across clusters: a trainer publishes its versions into a log over any object store, replicas elsewhere follow it.
//!
//! [`Node::publish`](crate::Node::publish) and [`Node::attach_follower`](crate::Node::attach_follower) begin it.

pub use driftless_runtime::codec::entry::{
    EntryError, PublicKey, Role, SecretKey, Signer, Trust, TrustedKeys,
};
pub use driftless_runtime::codec::{BaseWords, CodecError, LogSection, LogView};
pub use driftless_runtime::log::{
    FollowEnd, FollowOptions, FollowState, InProcess, Keep, KeepError, LogIo, LogIoError, NotApplied,
    Publication, PublishOptions, PublishState, StateFile, StreamError, StreamModel, WholeValues, fault,
    remove_unfinished, replace, sections, stream_model, write_whole,
};
pub use driftless_runtime::proto::log::{
    BlobKey, Breach, Chain, Effect, Fault, FollowStop, Goal, Lease, Leasing, LogTimer, Memory, Patience,
    Presence, PublishStop, Published, Reading, Retire, RetireCommand, RetireEvent, RetireMode, RetireOptions,
    RetireStop, Stored, Trouble,
};
pub use driftless_runtime::store::{ReaderId, StoreError, StoreOptions, Stream, StreamUrl, create, open};

use driftless_runtime::Shared;
use driftless_runtime::log::FollowBinding;
use driftless_runtime::types::Version;
use std::sync::Arc;
use tokio::sync::watch;

/// The handle of a node's publisher.
pub struct Publishing {
    shared: Arc<Shared>,
}

impl Publishing {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Where the publisher is, and a way to wait for it to get on.
    ///
    /// # Panics
    /// Never: the node publishes as long as it lives.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<PublishState> {
        self.shared.log().expect("the handle of a log is made with it").status()
    }

    /// Waits until the stream holds `at_least` this version, or the publisher has stopped for good, or the node has.
    ///
    /// # Errors
    /// [`PublishState::Stopped`] in full; where the publisher was when the node was stopped.
    pub async fn published(&self, at_least: Version) -> Result<Published, PublishState> {
        let mut status = self.status();
        let ended = |state: &PublishState| match state {
            PublishState::Open { last: Some(last), .. } => last.version >= at_least,
            PublishState::Stopped(_) => true,
            _ => false,
        };
        let stopped = self.shared.ledger.wait(|_| self.shared.is_stopped().then_some(()));
        tokio::select! {
            biased;
            reached = status.wait_for(ended) => match reached.as_deref() {
                Ok(PublishState::Open { last: Some(last), .. }) => Ok(*last),
                Ok(state) => Err(state.clone()),
                Err(_) => Err(PublishState::Opening),
            },
            () = stopped => Err(self.status().borrow().clone()),
        }
    }
}

/// How a replica follows a log.
pub struct Follow {
    /// The stream, and whom to believe.
    pub io: LogIo,
    /// Where the reader keeps what must survive it.
    pub keep: Arc<dyn Keep>,
    /// When it is done, and its bounds.
    pub options: FollowOptions,
    /// Whether the weights are exactly those of the version that `keep` knows, or may be a mix of it and of the entry
    /// that was being written.
    pub base: BaseWords,
}

/// The handle of a replica's reader.
pub struct Following {
    binding: Arc<FollowBinding>,
}

impl Following {
    pub(crate) const fn new(binding: Arc<FollowBinding>) -> Self {
        Self { binding }
    }

    /// Where the reader is, and a way to wait for it to get on.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<FollowState> {
        self.binding.status()
    }

    /// Waits until the reader has ended: if it is to follow forever, until it stops for good or its replica leaves.
    pub async fn ended(&self) -> FollowEnd {
        let mut status = self.status();
        loop {
            if let Some(ended) = status.borrow_and_update().ended {
                return ended;
            }
            // The sender lives in the binding.
            let _ = status.changed().await;
        }
    }
}
