//! The transport between members of one process: payloads change hands without a copy.
//!
//! - **EX-3 (one batch per round).** A batch is posted under one lock, receives first, so that nothing of it waits
//!   for anything else of it.
//! - **EX-6 (every wait ends).** Whatever ends an exchange tells each batch that waits in it; a transfer that is
//!   dropped withdraws its batch.
//!
//! All state lives in a hub behind a mutex that is never held over an await.

mod exchange;
mod hub;

use crate::{Batch, Capabilities, Transfer, Transport, TransportError};
use driftless_types::Fence;
use exchange::{Outcome, Ticket};
use hub::{Fate, Hub};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Bounds of a [`Loopback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackOptions {
    /// The most bytes of one exchange that wait for members that have not posted. They are the sender's own memory,
    /// shared with it.
    pub early_bytes_max: u64,
    /// The most exchanges that are open at once.
    pub open_exchanges_max: usize,
}

impl Default for LoopbackOptions {
    fn default() -> Self {
        Self { early_bytes_max: 1 << 32, open_exchanges_max: 1024 }
    }
}

/// The transport between members of one process. All of them share one, by reference or in an `Arc`.
#[derive(Debug, Default)]
pub struct Loopback {
    hub: Mutex<Hub>,
}

impl Loopback {
    /// A transport with these bounds, without any exchange.
    #[must_use]
    pub fn new(options: LoopbackOptions) -> Self {
        Self { hub: Mutex::new(Hub::new(options)) }
    }

    /// A panic under the lock would be a broken invariant of the hub, which leaves no half-made change behind.
    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a batch; the outcome comes through the channel, at once if nothing is missing.
    fn post(&self, batch: Batch) -> Result<(Posted<'_>, oneshot::Receiver<Outcome>), TransportError> {
        let fence = batch.fence;
        let (ticket, outcome) = self.hub().post(batch)?;
        Ok((Posted { loopback: self, fence, ticket }, outcome))
    }
}

impl Transport for Loopback {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("loopback", self.hub().options().early_bytes_max)
    }

    fn transfer(&self, batch: Batch) -> Transfer<'_> {
        Box::pin(async move {
            let (_posted, outcome) = self.post(batch)?;
            outcome.await.expect("a batch is never forgotten without an outcome")
        })
    }

    fn abort(&self, fence: &Fence) {
        self.hub().end(fence, Fate::Aborted);
    }

    fn retire(&self, fence: &Fence) {
        self.hub().end(fence, Fate::Over);
    }
}

/// A batch that may still wait. Dropped with its transfer, so that no entry outlives the one who waits for it.
struct Posted<'a> {
    loopback: &'a Loopback,
    fence: Fence,
    ticket: Ticket,
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.loopback.hub().withdraw(&self.fence, self.ticket);
    }
}

#[cfg(test)]
mod tests;
