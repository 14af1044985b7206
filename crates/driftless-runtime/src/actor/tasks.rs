//! Work that an actor has started: it ends with the actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinSet;

/// The running tasks of one actor. Dropping them, as a killed actor does, aborts what waits and tells what computes to
/// stop: a blocking loop cannot be aborted, so it looks at the cancel flag.
#[derive(Default)]
pub(crate) struct Tasks {
    running: JoinSet<()>,
    cancel: Arc<AtomicBool>,
}

impl Tasks {
    /// The flag that blocking loops of this actor look at.
    pub(crate) fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Starts a task.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        while self.running.try_join_next().is_some() {}
        self.running.spawn(task);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Release);
    }
}
