//! The rollout's side of the API.

use driftless_runtime::Shared;
use driftless_runtime::binding::{Hook, HookError, TensorMemory};
use driftless_runtime::device::Buffer;
use driftless_runtime::proto::Engine;
use driftless_runtime::types::{Digest, Epoch, ReplicaId, RunId, Version};
use std::fmt;
use std::sync::Arc;

/// The live weights of one replica, owned by the caller.
pub struct RolloutMemory {
    /// Per rank of the replica, per tensor of the rank.
    pub ranks: Vec<Vec<TensorMemory>>,
    /// Whether the layout is proven when the memory is attached.
    pub layout: LayoutClaim,
    /// Called before live weights are written; see [`Rollout::on_pause`].
    pub on_pause: Option<Hook>,
    /// Called after they were written; see [`Rollout::on_resume`].
    pub on_resume: Option<Hook>,
}

impl RolloutMemory {
    /// Memory without gaps: 16-bit words, two per FP32 element, low half first.
    #[must_use]
    pub fn new<B: Into<Buffer<u16>>>(ranks: Vec<Vec<B>>, layout: LayoutClaim) -> Self {
        let rank = |rank: Vec<B>| rank.into_iter().map(Into::into).map(TensorMemory::from).collect();
        Self::of_tensors(ranks.into_iter().map(rank).collect(), layout)
    }

    /// Memory of which each tensor says how it lies there.
    #[must_use]
    pub const fn of_tensors(ranks: Vec<Vec<TensorMemory>>, layout: LayoutClaim) -> Self {
        Self { ranks, layout, on_pause: None, on_resume: None }
    }

    /// The same, with the hook that [`Rollout::on_pause`] would set: what is attached may be written to at once.
    #[must_use]
    pub fn with_on_pause<F, R>(self, hook: F) -> Self
    where
        F: Fn(Version) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        Self { on_pause: Some(Arc::new(move |version| Box::pin(hook(version)))), ..self }
    }

    /// The same, with the hook that [`Rollout::on_resume`] would set: an engine that joins out of service must not miss
    /// its first call.
    #[must_use]
    pub fn with_on_resume<F, R>(self, hook: F) -> Self
    where
        F: Fn(Version) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        Self { on_resume: Some(Arc::new(move |version| Box::pin(hook(version)))), ..self }
    }
}

/// How sure the caller is that an engine's memory is laid out as its plan says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayoutClaim {
    /// The memory holds a version that the engine itself loaded: its digests must equal the trainer's, tensor by tensor,
    /// or the engine is refused before a byte is written. An engine that re-packed its weights is found this way.
    #[default]
    Proven,
    /// Nothing is proven now, as for an engine with dummy weights. The first version's digests prove the rest.
    Trusted,
    /// The memory holds no version yet. The engine counts as paused and must not serve before its resume hook is called:
    /// everything is sent, written in place and proven first, at the next version that the trainer has ready.
    Blank,
}

/// What a replica serves: enough to salt a prefix cache with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serving {
    /// The training run.
    pub run: RunId,
    /// The epoch in which the version was committed.
    pub epoch: Epoch,
    /// The version.
    pub version: Version,
}

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {} epoch {} version {}", self.run, self.epoch, self.version)
    }
}

/// The handle of one replica.
pub struct Rollout {
    shared: Arc<Shared>,
    replica: ReplicaId,
}

impl Rollout {
    pub(crate) const fn new(shared: Arc<Shared>, replica: ReplicaId) -> Self {
        Self { shared, replica }
    }

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    fn binding(&self) -> Option<Arc<driftless_runtime::binding::ReplicaBinding>> {
        self.shared.registry.replica(self.replica)
    }

    /// What the replica serves now.
    #[must_use]
    pub fn version(&self) -> Serving {
        let serving = self.binding().map(|replica| *replica.serving().borrow());
        let (epoch, version) = serving.unwrap_or_default();
        Serving { run: self.shared.options.run, epoch, version }
    }

    /// Waits until the replica serves `at_least` this version, or the node is stopped; gives what it serves then.
    pub async fn wait_for(&self, at_least: Version) -> Serving {
        let Some(replica) = self.binding() else { return self.version() };
        let mut serving = replica.serving();
        // The channel lives in the binding, which outlives every actor.
        let reached = serving.wait_for(|(_, version)| *version >= at_least);
        let stopped = self.shared.ledger.wait(|_| self.shared.is_stopped().then_some(()));
        tokio::select! {
            _ = reached => {}
            () = stopped => {}
        }
        self.version()
    }

    /// Whether the engine may serve now: it was not paused, or was resumed since. `false` as well where the replica was
    /// detached.
    #[must_use]
    pub fn is_in_service(&self) -> bool {
        self.binding().is_some_and(|replica| replica.engine() == Engine::Serving)
    }

    /// Its number in the plan.
    #[must_use]
    pub const fn id(&self) -> ReplicaId {
        self.replica
    }

    /// Waits until the engine serves: its version moves just before the resume hook is called, so that the hook sees it.
    pub async fn settled(&self) {
        let Some(replica) = self.binding() else { return };
        let serves = || replica.engine() == Engine::Serving || self.shared.is_stopped();
        self.shared.ledger.wait(|_| serves().then_some(())).await;
    }

    /// Sets the hook that is called once per replica before live weights are written; it must drain or hold requests.
    pub fn on_pause<F, R>(&self, hook: F)
    where
        F: Fn(Version) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        if let Some(replica) = self.binding() {
            replica.set_on_pause(Arc::new(move |version| Box::pin(hook(version))));
        }
    }

    /// Sets the hook that is called once per replica after the weights were written, or taken back.
    pub fn on_resume<F, R>(&self, hook: F)
    where
        F: Fn(Version) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        if let Some(replica) = self.binding() {
            replica.set_on_resume(Arc::new(move |version| Box::pin(hook(version))));
        }
    }

    /// Per receiver its name and the digest of all its live weights, hashed anew: what is in memory, not what is
    /// remembered. Waits for an open attempt to release the weights.
    pub async fn digests(&self) -> Vec<(String, Digest)> {
        let mut digests = Vec::new();
        let plans = self.shared.plan.replicas().iter().filter(|plan| plan.id == self.replica);
        for receiver in plans.flat_map(|plan| &plan.receivers) {
            let Some(binding) = self.shared.registry.receiver(receiver.id) else { continue };
            let token = binding.token().await;
            let (shared, name) = (Arc::clone(&self.shared), receiver.name.clone());
            let hashed = tokio::task::spawn_blocking(move || {
                let _token = token;
                let tensors = 0u32..u32::try_from(binding.memory.len()).unwrap_or(u32::MAX);
                let of = |tensor| binding.digest(&shared.plan, tensor, &*shared.device, &shared.keys);
                // The binding was made from this plan and these buffers: the device has accepted them before.
                tensors.flat_map(of).sum::<Digest>()
            });
            digests.extend(hashed.await.map(|digest| (name, digest)));
        }
        digests
    }
}
