//! A transport that goes wrong on purpose, around any other: for tests of whoever uses one.
//!
//! Which fault hits which batch is decided by a function of the batch, so that a test names the member, the round and
//! the attempt, or draws from a seed of its own. Delays and reordering break no promise of a transport: the suite of
//! [`crate::conformance`] passes on them. The others do, each in a way that a network does.
//!
//! - **EX-6 (every wait ends).** A stalled batch still ends with its exchange: by an abort, by being retired, or by a
//!   newer epoch.
//! - **EX-7 (order).** Reordering keeps the order within each ordered pair of members.

use crate::{Batch, Capabilities, Transfer, Transport, TransportError};
use driftless_types::{Fence, Member, Payload};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::sleep;

/// What goes wrong with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is posted only after this time.
    Delay(Duration),
    /// It never moves: it ends when its exchange does.
    Stall,
    /// The connection breaks half-way: every second payload is sent, nothing is received.
    Reset,
    /// Its pairs move at different times, the last named first, each this much later than the one before.
    Reorder(Duration),
    /// Each of its payloads is sent twice.
    Duplicate,
}

/// Decides what goes wrong with a batch, if anything.
pub type FaultPlan = Box<dyn Fn(&Batch) -> Option<Fault> + Send + Sync>;

/// A transport around another one, with faults.
pub struct Faulty {
    inner: Arc<dyn Transport>,
    plan: FaultPlan,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("inner", &self.inner.capabilities()).finish_non_exhaustive()
    }
}

impl Faulty {
    /// The transport `inner`, whose batches go wrong as `plan` says.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Transport>,
        plan: impl Fn(&Batch) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        Self { inner, plan: Box::new(plan) }
    }

    async fn stall(&self, batch: Batch) -> Result<Vec<(Member, Payload)>, TransportError> {
        // A byte from itself that nobody sends: the exchange's end is all that can end this wait.
        let waits = Batch { sends: Vec::new(), receives: vec![(batch.me, 1)], ..batch };
        self.inner.transfer(waits).await
    }

    async fn reset(&self, batch: Batch) -> Result<Vec<(Member, Payload)>, TransportError> {
        let me = batch.me;
        let half = batch.sends.into_iter().step_by(2).collect();
        self.inner.transfer(Batch { sends: half, receives: Vec::new(), ..batch }).await?;
        Err(TransportError::Reset { at: me })
    }

    async fn reorder(&self, batch: Batch, step: Duration) -> Result<Vec<(Member, Payload)>, TransportError> {
        let Batch { fence, round, me, sends, receives } = batch;
        let mut pairs: BTreeMap<Member, Vec<(Member, Payload)>> = BTreeMap::new();
        for (to, payload) in sends {
            pairs.entry(to).or_default().push((to, payload));
        }
        let part = |sends, receives| Batch { fence, round, me, sends, receives };
        // EX-3: the receives are posted at once, whatever becomes of the sends.
        let mut running: Vec<Transfer<'_>> = vec![self.inner.transfer(part(Vec::new(), receives))];
        for (place, (_, sends)) in (0u32..).zip(pairs.into_iter().rev()) {
            let later = part(sends, Vec::new());
            running.push(Box::pin(async move {
                sleep(step * place).await;
                self.inner.transfer(later).await
            }));
        }
        let arrived = all(running).await?;
        Ok(arrived.into_iter().flatten().collect())
    }

    async fn duplicate(&self, batch: Batch) -> Result<Vec<(Member, Payload)>, TransportError> {
        let again = Batch { receives: Vec::new(), ..batch.clone() };
        let arrived = self.inner.transfer(batch).await?;
        self.inner.transfer(again).await?;
        Ok(arrived)
    }
}

/// Drives all of them at once; the first error drops the others.
async fn all(mut running: Vec<Transfer<'_>>) -> Result<Vec<Vec<(Member, Payload)>>, TransportError> {
    let mut arrived: Vec<Option<Vec<(Member, Payload)>>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (transfer, arrived) in running.iter_mut().zip(&mut arrived) {
            if arrived.is_some() {
                continue;
            }
            match transfer.as_mut().poll(context) {
                Poll::Ready(Ok(payloads)) => *arrived = Some(payloads),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if arrived.iter().all(Option::is_some) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    Ok(arrived.into_iter().flatten().collect())
}

impl Transport for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn transfer(&self, batch: Batch) -> Transfer<'_> {
        match (self.plan)(&batch) {
            None => self.inner.transfer(batch),
            Some(Fault::Delay(time)) => Box::pin(async move {
                sleep(time).await;
                self.inner.transfer(batch).await
            }),
            Some(Fault::Stall) => Box::pin(self.stall(batch)),
            Some(Fault::Reset) => Box::pin(self.reset(batch)),
            Some(Fault::Reorder(step)) => Box::pin(self.reorder(batch, step)),
            Some(Fault::Duplicate) => Box::pin(self.duplicate(batch)),
        }
    }

    fn abort(&self, fence: &Fence) {
        self.inner.abort(fence);
    }

    fn retire(&self, fence: &Fence) {
        self.inner.retire(fence);
    }
}
