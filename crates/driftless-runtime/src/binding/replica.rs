//! What a replica owns as a whole: its hooks, whether its engine stands still, and the version it serves.

use driftless_proto::Engine;
use driftless_types::{Epoch, Incarnation, ReplicaId, Version};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::watch;

/// What an engine's hook answers when it cannot do what it is asked.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;
/// A hook of the engine: called with the version that the replica serves at that moment.
pub type Hook =
    Arc<dyn Fn(Version) -> Pin<Box<dyn Future<Output = Result<(), HookError>> + Send>> + Send + Sync>;

/// The binding of one replica.
pub struct ReplicaBinding {
    /// The replica.
    pub id: ReplicaId,
    on_pause: RwLock<Option<Hook>>,
    on_resume: RwLock<Option<Hook>>,
    paused: AtomicBool,
    incarnations: AtomicU64,
    serving: watch::Sender<(Epoch, Version)>,
}

impl ReplicaBinding {
    /// The binding of a replica that serves `version`, or that is out of service until it has taken everything.
    #[must_use]
    pub fn new(id: ReplicaId, version: Version, engine: Engine) -> Self {
        Self {
            id,
            on_pause: RwLock::default(),
            on_resume: RwLock::default(),
            paused: AtomicBool::new(engine == Engine::Paused),
            incarnations: AtomicU64::new(0),
            serving: watch::Sender::new((Epoch::default(), version)),
        }
    }

    /// Sets what is called before live weights are written.
    pub fn set_on_pause(&self, hook: Hook) {
        *self.on_pause.write().unwrap_or_else(PoisonError::into_inner) = Some(hook);
    }

    /// Sets what is called after they were written, or taken back.
    pub fn set_on_resume(&self, hook: Hook) {
        *self.on_resume.write().unwrap_or_else(PoisonError::into_inner) = Some(hook);
    }

    pub(crate) fn on_pause(&self) -> Option<Hook> {
        self.on_pause.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn on_resume(&self) -> Option<Hook> {
        self.on_resume.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the engine was told to stand still and not yet to go on.
    #[must_use]
    pub fn engine(&self) -> Engine {
        if self.paused.load(Ordering::Acquire) { Engine::Paused } else { Engine::Serving }
    }

    pub(crate) fn set_engine(&self, engine: Engine) {
        self.paused.store(engine == Engine::Paused, Ordering::Release);
    }

    /// The incarnation of a lead that starts now.
    pub(crate) fn next_incarnation(&self) -> Incarnation {
        Incarnation(self.incarnations.fetch_add(1, Ordering::AcqRel) + 1) // CM-5
    }

    /// What the replica serves, and a way to wait for it to change.
    #[must_use]
    pub fn serving(&self) -> watch::Receiver<(Epoch, Version)> {
        self.serving.subscribe()
    }

    /// The version that the replica serves.
    #[must_use]
    pub fn version(&self) -> Version {
        self.serving.borrow().1
    }

    /// The replica serves another version: called once all its receivers have committed it.
    pub(crate) fn serve(&self, epoch: Epoch, version: Version) {
        self.serving.send_if_modified(|serving| {
            // CM-1: versions only grow, but after a reset in a log, which has an epoch of its own.
            let moved = (epoch.counter, version) > (serving.0.counter, serving.1);
            if moved {
                *serving = (epoch, version);
            }
            moved
        });
    }
}

impl fmt::Debug for ReplicaBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaBinding")
            .field("id", &self.id)
            .field("serving", &*self.serving.borrow())
            .finish()
    }
}
