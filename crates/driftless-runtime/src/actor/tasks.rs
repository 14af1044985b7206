//! Work that an actor has started: it ends with the actor.

use driftless_proto::TimerId;
use driftless_types::Fence;
use ractor::ActorCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

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
///
/// `T` names its timers.
pub(crate) struct Tasks<T = TimerId> {
    actor: ActorCell,
    running: JoinSet<()>,
    timers: BTreeMap<T, AbortHandle>,
    cancel: Arc<AtomicBool>,
}

impl<T: Ord> Tasks<T> {
    /// No task yet.
    pub(crate) fn new(actor: ActorCell) -> Self {
        Self { actor, running: JoinSet::new(), timers: BTreeMap::new(), cancel: Arc::default() }
    }

    /// The flag that blocking loops of this actor look at.
    pub(crate) fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Starts a task.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.start(task);
    }

    /// Calls `fire` once so much time has passed, unless the timer is armed again or its attempt ends before.
    pub(crate) fn arm(&mut self, id: T, after: Duration, fire: impl FnOnce() + Send + 'static) {
        let timer = self.start(async move {
            tokio::time::sleep(after).await;
            fire();
        });
        if let Some(replaced) = self.timers.insert(id, timer) {
            replaced.abort();
        }
    }

    /// Calls `fire` again and again, with so much time in between, as long as the actor lives.
    pub(crate) fn repeat(&mut self, every: Duration, fire: impl Fn() + Send + 'static) {
        self.start(async move {
            loop {
                tokio::time::sleep(every).await;
                fire();
            }
        });
    }

    fn start(&mut self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        while self.running.try_join_next().is_some() {}
        let guard = KillOnPanic(self.actor.clone());
        self.running.spawn(async move {
            let _guard = guard;
            task.await;
        })
    }
}

impl Tasks {
    /// An attempt is over here: its timers do not fire any more.
    pub(crate) fn disarm(&mut self, fence: &Fence) {
        self.timers.retain(|id, timer| {
            let over = (id.epoch, id.attempt) == (fence.epoch, fence.attempt);
            if over {
                timer.abort();
            }
            !over
        });
    }
}

impl<T> Drop for Tasks<T> {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Release);
    }
}
