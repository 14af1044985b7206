//! The sender's side of an attempt in place: dense values are cast window by window, as receivers ask for them.
//!
//! While the trainer's weights stand still a window is read from them when it is due, so that no more than windows lies
//! in memory. When the optimizer wants to step, all that is left is cast at once: it waits for memory, not for peers.

use super::window::{self, Window};
use crate::binding::{Patch, SenderBinding};
use crate::{Phase, Shared};
use bytes::Bytes;
use driftless_codec::RECORD_BYTES;
use driftless_device::{Buffer, Elements, Lent};
use driftless_layout::{Edge, Fragment};
use driftless_proto::RootCause;
use driftless_types::{Digest, Fence, ReceiverId, ReplicaId, index_of};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::OwnedRwLockReadGuard;

/// What one sender has for the receivers of one attempt in place.
pub(crate) struct Loan {
    shared: Arc<Shared>,
    binding: Arc<SenderBinding>,
    patch: Arc<Patch>,
    fence: Fence,
    state: Mutex<State>,
}

struct State {
    /// The trainer's weights stand still while this lives; `None` once all that is left was cast.
    standing: Option<OwnedRwLockReadGuard<()>>,
    pairs: BTreeMap<ReceiverId, Pair>,
}

struct Pair {
    windows: Vec<Window>,
    /// Those that were cast before they were asked for.
    cast: BTreeMap<usize, Bytes>,
    /// The first window that was not handed over.
    next: usize,
}

impl Loan {
    /// What `binding` has for a replica that takes everything at the version of `fence`.
    ///
    /// # Errors
    /// [`RootCause::WeightsMoved`] if the values are gone.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        binding: &Arc<SenderBinding>,
        fence: Fence,
        replica: ReplicaId,
    ) -> Result<Self, RootCause> {
        let patch = binding.patch().filter(|patch| patch.range.version == fence.version);
        let patch = patch.ok_or(RootCause::WeightsMoved)?;
        let standing = shared.standing.read(fence.version);
        let is_kept = patch.kept.len() == binding.memory.len();
        if standing.is_none() && !is_kept {
            return Err(RootCause::WeightsMoved);
        }
        let loan = Self {
            shared: Arc::clone(shared),
            binding: Arc::clone(binding),
            patch,
            fence,
            state: Mutex::new(State { standing: standing.filter(|_| !is_kept), pairs: BTreeMap::new() }),
        };
        let limit = shared.options.limits.window_bytes;
        let pairs = loan.edges(replica).map(|edge| {
            let windows = window::windows(&edge.fragments, limit);
            (edge.receiver, Pair { windows, cast: BTreeMap::new(), next: 0 })
        });
        let pairs: BTreeMap<_, _> = pairs.collect();
        loan.report(replica);
        loan.lock().pairs = pairs;
        Ok(loan)
    }

    fn edges(&self, replica: ReplicaId) -> impl Iterator<Item = &Edge> {
        let edges = &self.binding.plan(&self.shared.plan).edges;
        edges.iter().filter(move |edge| edge.receiver.replica == replica)
    }

    fn edge(&self, receiver: ReceiverId) -> Result<&Edge, RootCause> {
        let edge = self.edges(receiver.replica).find(|edge| edge.receiver == receiver);
        edge.ok_or_else(|| RootCause::Task(format!("the plan has nothing for {receiver}")))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, replica: ReplicaId) {
        let version = self.fence.version;
        let fragments = || self.edges(replica).flat_map(|edge| &edge.fragments);
        let first = fragments().filter(|fragment| fragment.first_in_replica).map(Fragment::elements).sum();
        let bytes = |fragment: &Fragment| {
            RECORD_BYTES as u64 + window::dense_header(fragment, fragment.elements(), version).section_bytes()
        };
        self.shared.ledger.sent(version, replica, fragments().map(bytes).sum(), first, 0);
    }

    /// The receivers, how many windows each takes, and its records: every fragment follows whole.
    pub(crate) fn records(&self) -> BTreeMap<ReceiverId, (u32, Bytes)> {
        let receivers: Vec<_> =
            self.lock().pairs.iter().map(|(&id, pair)| (id, pair.windows.len())).collect();
        let records = |receiver| {
            let mut records = Vec::new();
            for fragment in self.edge(receiver).map_or(&[][..], |edge| &edge.fragments) {
                let digest: Digest =
                    fragment.cells.iter().map(|&cell| self.patch.cells[index_of(cell.into())]).sum();
                records.extend(window::dense_record(fragment, digest, self.fence.version).encode());
            }
            Bytes::from(records)
        };
        let counted = |windows| u32::try_from(windows).unwrap_or(u32::MAX);
        receivers.into_iter().map(|(id, windows)| (id, (counted(windows), records(id)))).collect()
    }

    /// The next window of a receiver, cast now if it was not before.
    ///
    /// # Errors
    /// A window that there is not, or that the device could not read.
    pub(crate) fn hand_over(&self, receiver: ReceiverId, index: u32) -> Result<Bytes, RootCause> {
        let index = index_of(index.into());
        let mut state = self.lock();
        let State { standing, pairs } = &mut *state;
        let pair = pairs.get_mut(&receiver);
        let pair = pair.ok_or_else(|| RootCause::Task(format!("nothing was opened for {receiver}")))?;
        pair.next = index + 1;
        if let Some(bytes) = pair.cast.remove(&index) {
            return Ok(bytes);
        }
        let Some(window) = pair.windows.get(index).cloned() else {
            return Err(RootCause::Task(format!("there is no window {index} for {receiver}")));
        };
        // It must not move while it is read; other receivers of this attempt wait for memory only.
        let bytes = self.cast(receiver, &window)?;
        if pairs.values().all(|pair| pair.next >= pair.windows.len()) {
            *standing = None;
        }
        Ok(bytes)
    }

    /// The optimizer wants to step: casts all that is left, and lets it.
    pub(crate) fn let_go(&self) {
        let mut state = self.lock();
        if state.standing.is_none() {
            return;
        }
        let State { standing, pairs } = &mut *state;
        for (&receiver, pair) in pairs.iter_mut() {
            for (index, window) in pair.windows.iter().enumerate().skip(pair.next) {
                // What cannot be cast now fails when it is asked for: its values are gone.
                if let Ok(bytes) = self.cast(receiver, window) {
                    pair.cast.insert(index, bytes);
                }
            }
            pair.windows.truncate(pair.next);
        }
        *standing = None;
    }

    fn cast(&self, receiver: ReceiverId, window: &Window) -> Result<Bytes, RootCause> {
        let started = Instant::now();
        let edge = self.edge(receiver)?;
        let memory = &self.binding.memory;
        let lent: Vec<Lent<'_, f32>> = if self.patch.kept.len() == memory.len() {
            self.patch.kept.values().map(Buffer::lend).collect()
        } else {
            memory.iter().map(|memory| memory.master.lend()).collect()
        };
        let masters: Vec<Elements<'_, f32>> = lent.iter().map(Lent::elements).collect();
        let mut out = Vec::with_capacity(index_of(window::window_bytes(&edge.fragments, window)));
        for slab in window {
            let rows = window::rows_of(&edge.fragments[slab.fragment], &slab.rows);
            let words = self.shared.device.gather(&masters, &rows, self.patch.cast);
            let words = words.map_err(|error| RootCause::Task(error.to_string()))?;
            window::encode_rows(&rows, self.fence.version, &words, &mut out);
        }
        self.shared.ledger.took(self.fence.version, Phase::Encode, started.elapsed());
        Ok(self.shared.ledger.hold(self.fence.version, out))
    }
}
