//! Work that an actor has started: it ends with the actor.

use ractor::ActorCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinSet;

/// Kills the actor of a task that panics: an actor must not wait for an event that nobody will send (EX-6).
struct KillOnPanic(ActorCell);

impl Drop for KillOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.kill();
        }
    }
}

/// The running tasks of one actor. Dropping them, as a killed actor does, aborts what waits and tells what computes to
/// stop: a blocking loop cannot be aborted, so it looks at the cancel flag.
pub(crate) struct Tasks {
    actor: ActorCell,
    running: JoinSet<()>,
    cancel: Arc<AtomicBool>,
}

impl Tasks {
    /// No task yet.
    pub(crate) fn new(actor: ActorCell) -> Self {
        Self { actor, running: JoinSet::new(), cancel: Arc::default() }
    }

    /// The flag that blocking loops of this actor look at.
    pub(crate) fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Starts a task.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.running.try_join_next().is_some() {}
        let guard = KillOnPanic(self.actor.clone());
        self.running.spawn(async move {
            let _guard = guard;
            task.await;
        });
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Release);
    }
}
