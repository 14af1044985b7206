//! One exchange: batches that wait, and payloads that came before their receivers posted.
//!
//! - **EX-7 (order).** A lane is one ordered pair in one round. It is a queue at both ends, so the n-th payload that
//!   was sent meets the n-th receive that was posted.

use crate::{Batch, TransportError};
use driftless_types::{Fence, Member, Payload, Round};
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::oneshot;

/// How a batch ended.
pub(super) type Outcome = Result<Vec<(Member, Payload)>, TransportError>;

/// The number of a posted batch, unique within its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lane {
    from: Member,
    to: Member,
    round: Round,
}

/// One receive of a batch that waits.
#[derive(Debug)]
struct Slot {
    lane: Lane,
    bytes: u64,
    arrived: Option<Payload>,
}

/// A batch with receives that have not arrived.
#[derive(Debug)]
struct Waiting {
    slots: Vec<Slot>,
    missing: usize,
    outcome: oneshot::Sender<Outcome>,
}

impl Waiting {
    /// The transfer may have been dropped meanwhile: then nobody wants the outcome.
    fn end(self, outcome: Outcome) {
        drop(self.outcome.send(outcome));
    }

    fn finish(mut self) {
        let arrived = self.slots.drain(..).filter_map(|slot| Some((slot.lane.from, slot.arrived?))).collect();
        self.end(Ok(arrived));
    }
}

/// The batches and payloads of one exchange.
#[derive(Debug)]
pub(super) struct Exchange {
    fence: Fence,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Receives that wait, first posted first: the batch, and the slot in it. No queue is empty.
    wanted: BTreeMap<Lane, VecDeque<(Ticket, usize)>>,
    /// Payloads that no receive waits for, first sent first. No queue is empty.
    early: BTreeMap<Lane, VecDeque<Payload>>,
    early_bytes: u64,
    early_bytes_max: u64,
}

impl Exchange {
    pub(super) const fn new(fence: Fence, early_bytes_max: u64) -> Self {
        Self {
            fence,
            waiting: BTreeMap::new(),
            wanted: BTreeMap::new(),
            early: BTreeMap::new(),
            early_bytes: 0,
            early_bytes_max,
        }
    }

    pub(super) const fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Posts a batch; its outcome comes through the channel.
    pub(super) fn post(
        &mut self,
        ticket: Ticket,
        batch: Batch,
    ) -> Result<oneshot::Receiver<Outcome>, TransportError> {
        let Batch { me, round, sends, receives, .. } = batch;
        let (sender, outcome) = oneshot::channel();
        let slot = |(from, bytes)| Slot { lane: Lane { from, to: me, round }, bytes, arrived: None };
        // EX-3: receives first, so that a member's own sends find them, and then every send before any wait.
        self.announce(ticket, receives.into_iter().map(slot).collect(), sender);
        for (to, payload) in sends {
            let delivered = self.deliver(Lane { from: me, to, round }, payload);
            delivered.inspect_err(|_| self.withdraw(ticket))?;
        }
        Ok(outcome)
    }

    fn announce(&mut self, ticket: Ticket, slots: Vec<Slot>, outcome: oneshot::Sender<Outcome>) {
        let lanes: Vec<Lane> = slots.iter().map(|slot| slot.lane).collect();
        let waiting = Waiting { missing: slots.len(), slots, outcome };
        if lanes.is_empty() {
            return waiting.finish();
        }
        self.waiting.insert(ticket, waiting);
        // All of them are wanted before any is filled: what ends the batch half-way withdraws all of them.
        for (index, &lane) in lanes.iter().enumerate() {
            self.wanted.entry(lane).or_default().push_back((ticket, index));
        }
        for lane in lanes {
            if let Some(payload) = self.pop_early(lane) {
                self.fill(lane, payload);
            }
        }
    }

    fn deliver(&mut self, lane: Lane, payload: Payload) -> Result<(), TransportError> {
        if self.wanted.contains_key(&lane) {
            self.fill(lane, payload);
            return Ok(());
        }
        let needed = self.early_bytes.saturating_add(payload.len() as u64);
        if needed > self.early_bytes_max {
            return Err(TransportError::EarlyBytes { needed, limit: self.early_bytes_max });
        }
        self.early_bytes = needed;
        self.early.entry(lane).or_default().push_back(payload);
        Ok(())
    }

    /// The first early payload of a lane, if some batch still wants it.
    fn pop_early(&mut self, lane: Lane) -> Option<Payload> {
        if !self.wanted.contains_key(&lane) {
            return None;
        }
        let payload = pop_front(&mut self.early, lane)?;
        self.early_bytes -= payload.len() as u64;
        Some(payload)
    }

    /// Gives a payload to the first receive that waits for one of its lane.
    fn fill(&mut self, lane: Lane, payload: Payload) {
        let Some((ticket, index)) = pop_front(&mut self.wanted, lane) else { return };
        let waiting = self.waiting.get_mut(&ticket).expect("only batches that wait want something");
        let slot = &mut waiting.slots[index];
        let (found, expected) = (payload.len() as u64, slot.bytes);
        if found != expected {
            let error = TransportError::SizeMismatch { from: lane.from, found, expected };
            return self.end_batch(ticket, error);
        }
        slot.arrived = Some(payload);
        waiting.missing -= 1;
        if waiting.missing == 0
            && let Some(done) = self.waiting.remove(&ticket)
        {
            done.finish();
        }
    }

    fn end_batch(&mut self, ticket: Ticket, error: TransportError) {
        if let Some(waiting) = self.take(ticket) {
            waiting.end(Err(error));
        }
    }

    /// Forgets a batch whose transfer is gone, with what has arrived for it. Does nothing once it has ended.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        drop(self.take(ticket));
    }

    /// Takes a batch out, with all its claims on payloads.
    fn take(&mut self, ticket: Ticket) -> Option<Waiting> {
        let waiting = self.waiting.remove(&ticket)?;
        for slot in &waiting.slots {
            if let Some(queue) = self.wanted.get_mut(&slot.lane) {
                queue.retain(|&(other, _)| other != ticket);
                if queue.is_empty() {
                    self.wanted.remove(&slot.lane);
                }
            }
        }
        Some(waiting)
    }

    /// EX-6: every batch that waits is told why it will never move.
    pub(super) fn end(self, error: &TransportError) {
        for waiting in self.waiting.into_values() {
            waiting.end(Err(error.clone()));
        }
    }

    /// Whether no batch waits and nothing is wanted.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.wanted.is_empty()
    }

    #[cfg(test)]
    pub(super) const fn early_bytes(&self) -> u64 {
        self.early_bytes
    }
}

/// Pops a queue of a map in which no queue is empty.
fn pop_front<T>(queues: &mut BTreeMap<Lane, VecDeque<T>>, lane: Lane) -> Option<T> {
    let queue = queues.get_mut(&lane)?;
    let first = queue.pop_front();
    if queue.is_empty() {
        queues.remove(&lane);
    }
    first
}
