//! Step 5 and the first half of step 6: a patch, seen by one replica, as records and sections per receiver.

use crate::binding::{Patch, SenderBinding};
use crate::{Phase, Shared, Step};
use bytes::Bytes;
use driftless_codec::{FragmentRecord, RECORD_BYTES, SectionStart, dense_is_smaller};
use driftless_device::{DeviceError, Elements, Lent, Packed};
use driftless_layout::{Edge, Fragment, SenderPlan};
use driftless_proto::{Needs, Offer, RootCause};
use driftless_types::{Digest, Fence, ReceiverId, ReplicaId, index_of};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Fragments whose changes leave the device together, and then are on the host until they are encoded.
const REMAPPED_TOGETHER: usize = 64;

/// What one sender sends to one receiver.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Round 1.
    pub(crate) records: Bytes,
    /// Round 2.
    pub(crate) payload: Bytes,
}

/// Why a fragment goes whole, or that it does not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Its changes.
    Sparse,
    /// Whole, from what the patch kept.
    Kept,
    /// Whole, because its tensor failed its digest.
    Repair,
}

struct Encoder<'a> {
    shared: &'a Shared,
    patch: &'a Patch,
    plan: &'a SenderPlan,
    needs: &'a Needs,
    kept: Vec<Elements<'a, f32>>,
    /// All masters at the patch's version: the trainer's, or what the patch kept if that is all of them.
    whole: Option<Vec<Elements<'a, f32>>>,
    remap: Duration,
    sent: u64,
    repaired: u64,
}

/// Encodes what a replica needs, per receiver.
///
/// # Errors
/// [`RootCause::WeightsMoved`] if dense values are needed that are gone, or a task failure of the device.
pub(crate) fn encode(
    shared: &Shared,
    binding: &SenderBinding,
    fence: &Fence,
    replica: ReplicaId,
    needs: &Needs,
) -> Result<BTreeMap<ReceiverId, Outgoing>, RootCause> {
    let started = Instant::now();
    let patch = binding.patch().filter(|patch| patch.range.version == fence.version);
    let patch = patch.ok_or_else(|| RootCause::Task("no patch is held for this version".into()))?;
    // CM-6: an older base takes everything, and in place.
    if patch.range.offer(needs.base) == Offer::All {
        return Err(RootCause::Uncovered { base: needs.base, since: patch.range.since });
    }
    let plan = binding.plan(&shared.plan);
    let ordered = Step::Order.span(shared, fence.version, &plan.name);
    let edges: Vec<&Edge> =
        ordered.in_scope(|| plan.edges.iter().filter(|edge| edge.receiver.replica == replica).collect());
    let _remapping = Step::Remap.span(shared, fence.version, &plan.name).entered();
    // As long as this is held the optimizer waits, at the speed of memory: no peer is waited for in here.
    let standing = shared.standing.read(fence.version);
    let live: Option<Vec<Lent<'_, f32>>> =
        standing.as_ref().map(|_| binding.memory.iter().map(|memory| memory.master.lend()).collect());
    let held: BTreeMap<u32, Lent<'_, f32>> = patch.kept.iter().map(|(&i, kept)| (i, kept.lend())).collect();
    let of_tensor = |i| held.get(&i).map_or(Elements::Host(&[][..]), Lent::elements);
    let kept: Vec<Elements<'_, f32>> = (0u32..).zip(&plan.tensors).map(|(i, _)| of_tensor(i)).collect();
    let whole = match &live {
        Some(live) => Some(live.iter().map(Lent::elements).collect()),
        None => (held.len() == kept.len()).then(|| kept.clone()),
    };
    let remap = Duration::ZERO;
    let mut encoder =
        Encoder { shared, patch: &patch, plan, needs, kept, whole, remap, sent: 0, repaired: 0 };
    let mut outgoing = BTreeMap::new();
    for edge in edges {
        outgoing.insert(edge.receiver, encoder.edge(edge, fence)?);
    }
    let bytes = outgoing.values().map(|out: &Outgoing| (out.records.len() + out.payload.len()) as u64).sum();
    let ledger = &shared.ledger;
    ledger.sent(fence.version, replica, bytes, encoder.sent, encoder.repaired);
    ledger.took(fence.version, Phase::Remap, encoder.remap);
    ledger.took(fence.version, Phase::Encode, started.elapsed().saturating_sub(encoder.remap));
    Ok(outgoing)
}

fn mode(patch: &Patch, needs: &Needs, edge: &Edge, fragment: &Fragment) -> Mode {
    let marked =
        needs.repair.get(&edge.receiver).is_some_and(|tensors| tensors.contains(&fragment.dst_tensor));
    if patch.dense.contains(&fragment.param) {
        return Mode::Kept;
    }
    if marked { Mode::Repair } else { Mode::Sparse }
}

impl Encoder<'_> {
    fn edge(&mut self, edge: &Edge, fence: &Fence) -> Result<Outgoing, RootCause> {
        let mut records = Vec::with_capacity(edge.fragments.len() * RECORD_BYTES);
        let mut payload = Vec::new();
        for fragments in edge.fragments.chunks(REMAPPED_TOGETHER) {
            let mut packed = self.packed(edge, fragments)?.into_iter();
            for fragment in fragments {
                let changes = self.changes(edge, fragment, &mut packed)?;
                let digest: Digest =
                    fragment.cells.iter().map(|&cell| self.patch.cells[index_of(cell.into())]).sum();
                let n = fragment.elements();
                let nnz = changes.nnz(n);
                if nnz == 0 {
                    // CM-7: nothing changed, and the digest says so.
                    records.extend(FragmentRecord::unchanged(digest).encode());
                    continue;
                }
                if fragment.first_in_replica {
                    self.sent += nnz;
                }
                // Absolute values are right for any base.
                let start = SectionStart::new(fragment.index, fragment.dtype, n, fence.version);
                let start = SectionStart { new_digest: digest, ..start };
                records.extend(changes.encode(&start, &mut payload).encode());
            }
        }
        Ok(Outgoing { records: records.into(), payload: payload.into() })
    }

    /// The changes of those fragments that are sent by their changes, in order.
    fn packed(&mut self, edge: &Edge, fragments: &[Fragment]) -> Result<Vec<Packed>, RootCause> {
        let started = Instant::now();
        let is_sparse = |fragment: &&Fragment| mode(self.patch, self.needs, edge, fragment) == Mode::Sparse;
        let sparse: Vec<&Fragment> = fragments.iter().filter(is_sparse).collect();
        let packed = self.shared.device.pack(&self.patch.changes, &sparse);
        self.remap += started.elapsed();
        packed.map_err(|error| RootCause::Task(format!("{}: {error}", self.plan.name)))
    }

    fn changes(
        &mut self,
        edge: &Edge,
        fragment: &Fragment,
        packed: &mut impl Iterator<Item = Packed>,
    ) -> Result<Packed, RootCause> {
        let started = Instant::now();
        let mode = mode(self.patch, self.needs, edge, fragment);
        if mode == Mode::Repair {
            self.repaired += 1;
        }
        let changes = match mode {
            Mode::Sparse => self.sparse(fragment, packed.next()),
            Mode::Kept => {
                let kept = self.shared.device.gather(&self.kept, fragment, self.patch.cast);
                self.named(fragment, kept).map(Packed::Set)
            }
            Mode::Repair => self.whole(fragment)?.ok_or(RootCause::WeightsMoved),
        };
        self.remap += started.elapsed();
        changes
    }

    /// The changes of a fragment; all of it, where that is smaller and the values are still there.
    fn sparse(&self, fragment: &Fragment, packed: Option<Packed>) -> Result<Packed, RootCause> {
        let sparse = packed.ok_or_else(|| RootCause::Task("a remap has lost a fragment".into()))?;
        if dense_is_smaller(fragment.elements(), sparse.nnz(fragment.elements())) {
            return Ok(self.whole(fragment)?.unwrap_or(sparse));
        }
        Ok(sparse)
    }

    fn whole(&self, fragment: &Fragment) -> Result<Option<Packed>, RootCause> {
        let Some(masters) = &self.whole else { return Ok(None) };
        let whole = self.shared.device.gather(masters, fragment, self.patch.cast);
        self.named(fragment, whole).map(|whole| Some(Packed::Set(whole)))
    }

    fn named<T>(&self, fragment: &Fragment, outcome: Result<T, DeviceError>) -> Result<T, RootCause> {
        outcome.map_err(|error| {
            RootCause::Task(format!("fragment {} of {}: {error}", fragment.index, self.plan.name))
        })
    }
}
