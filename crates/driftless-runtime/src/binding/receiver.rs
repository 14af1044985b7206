//! What a rollout rank owns: its live weights, their digests, and how to take a half-written version back.

use driftless_codec::Section;
use driftless_device::{Device, DeviceError, UndoLog, WordBuffer};
use driftless_layout::{ReceiverPlan, RemapPlan};
use driftless_numerics::DigestKeys;
use driftless_types::{Digest, Fence, ReceiverId, SenderId, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sections of an attempt, every byte checked, and the digests that the senders promise.
#[derive(Debug)]
pub struct Staged {
    /// The attempt.
    pub fence: Fence,
    /// Sections by sender, each with the index of its fragment within the edge.
    pub sections: BTreeMap<SenderId, Vec<(usize, Section)>>,
    /// Per local tensor, the digest of its bits at the new version.
    pub promised: Vec<Digest>,
}

/// The part of a binding that its token guards.
#[derive(Debug)]
pub struct Live {
    /// Digests of the live bits, per local tensor.
    pub digests: Vec<Digest>,
    /// Digests before the open attempt wrote anything.
    pub old_digests: Option<Vec<Digest>>,
    /// Old words, per local tensor.
    pub undo: Vec<UndoLog>,
    /// What was staged.
    pub staged: Option<Staged>,
    /// The attempt that is written and compared, but not decided.
    pub applied: Option<Fence>,
    /// The attempt that was committed last.
    pub committed: Option<Fence>,
    /// Tensors whose digest did not match: what is in memory is not what is remembered, so they are hashed anew.
    pub suspect: BTreeSet<u32>,
    /// Canonical elements changed by the open attempt of which this is the first holder in its replica.
    pub changed: u64,
}

/// The binding of one rollout rank.
#[derive(Debug)]
pub struct ReceiverBinding {
    /// The rank.
    pub id: ReceiverId,
    /// One per local tensor of the plan.
    pub memory: Vec<WordBuffer>,
    attached: Vec<Digest>,
    version: AtomicU64,
    live: Arc<tokio::sync::Mutex<Live>>,
}

impl ReceiverBinding {
    /// The binding of a rank whose memory holds `version`; hashes all of it once.
    ///
    /// # Errors
    /// [`DeviceError`] if the memory is not what the plan says.
    pub fn new(
        plan: &RemapPlan,
        receiver: &ReceiverPlan,
        memory: Vec<WordBuffer>,
        version: Version,
        device: &dyn Device,
        keys: &DigestKeys,
    ) -> Result<Self, DeviceError> {
        let hashed = receiver.tensors.iter().zip(&memory);
        let digests: Vec<Digest> = hashed
            .map(|(tensor, buffer)| device.digest(&buffer.read(), tensor, plan.params(), keys))
            .collect::<Result<_, _>>()?;
        let undo = memory.iter().map(|_| UndoLog::default()).collect();
        let attached = digests.clone();
        let live = Live {
            digests,
            old_digests: None,
            undo,
            staged: None,
            applied: None,
            committed: None,
            suspect: BTreeSet::new(),
            changed: 0,
        };
        let version = AtomicU64::new(version.0);
        Ok(Self { id: receiver.id, memory, attached, version, live: Arc::new(tokio::sync::Mutex::new(live)) })
    }

    /// Digests of the bits that were there when the memory was attached, per local tensor.
    #[must_use]
    pub fn attached(&self) -> &[Digest] {
        &self.attached
    }

    /// The version that this rank has committed.
    #[must_use]
    pub fn version(&self) -> Version {
        Version(self.version.load(Ordering::Acquire))
    }

    /// The rank has committed a version.
    pub fn set_version(&self, version: Version) {
        self.version.store(version.0, Ordering::Release);
    }

    /// The token of this binding: waits until the former holder's task has ended (CM-9).
    pub async fn token(&self) -> tokio::sync::OwnedMutexGuard<Live> {
        Arc::clone(&self.live).lock_owned().await
    }
}
