//! The exchanges of one transport, and which of them are over.

use super::LoopbackOptions;
use super::exchange::{Exchange, Outcome, Ticket};
use crate::{Batch, TransportError};
use driftless_types::{Attempt, Epoch, Fence};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// How many ended exchanges of an epoch are remembered one by one; older ones are all over.
const ENDED_KEPT: usize = 1024;

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Somebody aborted it.
    Aborted,
    /// It was retired.
    Over,
}

impl Fate {
    fn error(self, fence: &Fence) -> TransportError {
        let fence = Box::new(*fence);
        match self {
            Self::Aborted => TransportError::Aborted { fence },
            Self::Over => TransportError::Over { fence },
        }
    }
}

/// The exchanges of the newest epoch. Those of older epochs have ended, whatever their attempt.
#[derive(Debug, Default)]
pub(super) struct Hub {
    options: LoopbackOptions,
    epoch: Epoch,
    open: BTreeMap<Attempt, Exchange>,
    ended: Ended,
    tickets: u64,
}

impl Hub {
    pub(super) fn new(options: LoopbackOptions) -> Self {
        Self { options, ..Self::default() }
    }

    pub(super) const fn options(&self) -> LoopbackOptions {
        self.options
    }

    pub(super) fn post(
        &mut self,
        batch: Batch,
    ) -> Result<(Ticket, oneshot::Receiver<Outcome>), TransportError> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let outcome = self.enter(&batch.fence)?.post(ticket, batch)?;
        Ok((ticket, outcome))
    }

    /// The exchange of a fence, opened if it is the first of its members that posts.
    fn enter(&mut self, fence: &Fence) -> Result<&mut Exchange, TransportError> {
        self.see(fence.epoch)?;
        if !self.open.contains_key(&fence.attempt) {
            self.open(fence)?;
        }
        let exchange = self.open.get_mut(&fence.attempt).expect("it is open by now");
        check_fence(fence, exchange.fence())?;
        Ok(exchange)
    }

    fn open(&mut self, fence: &Fence) -> Result<(), TransportError> {
        if let Some(fate) = self.ended.fate(fence.attempt) {
            return Err(fate.error(fence));
        }
        let limit = self.options.open_exchanges_max;
        if self.open.len() >= limit {
            return Err(TransportError::OpenExchanges { limit });
        }
        self.open.insert(fence.attempt, Exchange::new(*fence, self.options.early_bytes_max));
        Ok(())
    }

    /// Refuses older epochs; a newer one ends everything of those before it.
    fn see(&mut self, epoch: Epoch) -> Result<(), TransportError> {
        let stale = |found, expected| TransportError::StaleEpoch { found, expected };
        if epoch < self.epoch {
            return Err(stale(epoch, self.epoch));
        }
        if epoch > self.epoch {
            let error = stale(self.epoch, epoch);
            std::mem::take(&mut self.open).into_values().for_each(|exchange| exchange.end(&error));
            self.ended = Ended::default();
            self.epoch = epoch;
        }
        Ok(())
    }

    /// Ends an exchange, before it begins if need be. What has ended stays as it ended.
    pub(super) fn end(&mut self, fence: &Fence, fate: Fate) {
        if self.see(fence.epoch).is_err() {
            return;
        }
        match self.open.get(&fence.attempt) {
            Some(exchange) if exchange.fence() != fence => return,
            None if self.ended.fate(fence.attempt).is_some() => return,
            _ => self.ended.insert(fence.attempt, fate),
        }
        if let Some(exchange) = self.open.remove(&fence.attempt) {
            exchange.end(&fate.error(fence));
        }
    }

    pub(super) fn withdraw(&mut self, fence: &Fence, ticket: Ticket) {
        if fence.epoch != self.epoch {
            return;
        }
        if let Some(exchange) = self.open.get_mut(&fence.attempt) {
            exchange.withdraw(ticket);
        }
    }

    #[cfg(test)]
    pub(super) fn exchange(&self, attempt: Attempt) -> Option<&Exchange> {
        self.open.get(&attempt)
    }
}

/// Which attempts of the newest epoch have ended.
#[derive(Debug, Default)]
struct Ended {
    fates: BTreeMap<Attempt, Fate>,
    /// Attempts below are over, if they are not open still: attempts are counted upwards.
    forgotten_below: u32,
}

impl Ended {
    fn fate(&self, attempt: Attempt) -> Option<Fate> {
        let forgotten = (attempt.0 < self.forgotten_below).then_some(Fate::Over);
        self.fates.get(&attempt).copied().or(forgotten)
    }

    fn insert(&mut self, attempt: Attempt, fate: Fate) {
        self.fates.insert(attempt, fate);
        if self.fates.len() > ENDED_KEPT
            && let Some((lowest, _)) = self.fates.pop_first()
        {
            self.forgotten_below = self.forgotten_below.max(lowest.0.saturating_add(1));
        }
    }
}

/// The members of an exchange agree on everything that its fence names.
fn check_fence(found: &Fence, expected: &Fence) -> Result<(), TransportError> {
    if found == expected {
        return Ok(());
    }
    let fence = Box::new(*found);
    let parts = [
        ("run", found.run.to_string(), expected.run.to_string()),
        ("version", found.version.to_string(), expected.version.to_string()),
        ("plan", found.plan.to_string(), expected.plan.to_string()),
    ];
    let differs = parts.into_iter().find(|(_, found, expected)| found != expected);
    let (what, found, expected) = differs.expect("fences of one epoch and attempt differ in one of the rest");
    Err(TransportError::ForeignFence { what, found, expected, fence })
}
