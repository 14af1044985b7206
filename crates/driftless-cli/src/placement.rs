//! Dense conversion by the plan's boxes: canonical parameters into the ranks' local memory, and back for comparison.
//!
//! This is independent of how changes travel: what a receiver must hold follows from the boxes alone.

use driftless_layout::{Box2, DestBox, ParamMeta, RemapPlan};
use driftless_numerics::DigestKeys;
use driftless_types::{Digest, index_of};
use std::ops::Range;

/// Where the elements of every parameter lie with senders and receivers.
pub(crate) struct Placement {
    sources: Vec<Vec<SourcePlace>>,
    destinations: Vec<Vec<DestPlace>>,
}

/// A box of a parameter that lies contiguously in a sender's tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourcePlace {
    /// The index of the sender.
    pub(crate) sender: usize,
    /// The index of its tensor.
    pub(crate) tensor: usize,
    offset: usize,
    canonical: Box2,
}

/// A box of a parameter that a receiver holds, row by row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DestPlace {
    /// The index of the replica.
    pub(crate) replica: usize,
    /// The index of the receiver in it.
    pub(crate) rank: usize,
    /// The index of its tensor.
    pub(crate) tensor: usize,
    held: DestBox,
}

/// The first word in which a receiver differs from what it must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Its index in the receiver's tensor, in words.
    pub(crate) local_word: usize,
    /// Its index in the canonical parameter, in words.
    pub(crate) canonical_word: usize,
    /// What the receiver holds.
    pub(crate) found: u16,
    /// What it must hold.
    pub(crate) expected: u16,
}

impl Placement {
    /// Sorts the plan's boxes by parameter.
    pub(crate) fn new(plan: &RemapPlan) -> Self {
        let params = plan.params().len();
        let mut placement =
            Self { sources: vec![Vec::new(); params], destinations: vec![Vec::new(); params] };
        placement.add_sources(plan);
        placement.add_destinations(plan);
        placement
    }

    fn add_sources(&mut self, plan: &RemapPlan) {
        for (sender, sender_plan) in plan.senders().iter().enumerate() {
            for (tensor, source) in sender_plan.tensors.iter().enumerate() {
                for piece in &source.pieces {
                    let (offset, canonical) = (index_of(piece.src_offset), piece.canonical);
                    self.sources[piece.param.0 as usize].push(SourcePlace {
                        sender,
                        tensor,
                        offset,
                        canonical,
                    });
                }
            }
        }
    }

    fn add_destinations(&mut self, plan: &RemapPlan) {
        for (replica, replica_plan) in plan.replicas().iter().enumerate() {
            for (rank, receiver) in replica_plan.receivers.iter().enumerate() {
                for (tensor, dest) in receiver.tensors.iter().enumerate() {
                    for held in &dest.boxes {
                        let place = DestPlace { replica, rank, tensor, held: *held };
                        self.destinations[held.param.0 as usize].push(place);
                    }
                }
            }
        }
    }

    /// Where senders own elements of a parameter.
    pub(crate) fn sources(&self, param: &ParamMeta) -> &[SourcePlace] {
        &self.sources[param.id.0 as usize]
    }

    /// Where receivers hold elements of a parameter.
    pub(crate) fn destinations(&self, param: &ParamMeta) -> &[DestPlace] {
        &self.destinations[param.id.0 as usize]
    }
}

impl SourcePlace {
    /// Where the box lies in the sender's tensor.
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + index_of(self.canonical.elements())
    }

    /// Copies the box out of a parameter in canonical order into its range of the sender's tensor.
    pub(crate) fn fill(&self, param: &ParamMeta, canonical: &[f32], local: &mut [f32]) {
        let width = index_of(self.canonical.cols);
        for (row, to) in (0..).zip(local.chunks_exact_mut(width)) {
            to.copy_from_slice(&canonical[canonical_row(param, &self.canonical, row)]);
        }
    }
}

impl DestPlace {
    /// Copies the box out of a parameter's served words into the receiver's tensor.
    pub(crate) fn fill(&self, param: &ParamMeta, canonical: &[u16], local: &mut [u16]) {
        for (from, to) in self.rows(param) {
            local[to].copy_from_slice(&canonical[from]);
        }
    }

    /// The first word that differs from the parameter's served words.
    pub(crate) fn difference(
        &self,
        param: &ParamMeta,
        canonical: &[u16],
        local: &[u16],
    ) -> Option<Difference> {
        self.rows(param).find_map(|(from, to)| {
            let (expected, found) = (&canonical[from.clone()], &local[to.clone()]);
            let at = expected.iter().zip(found).position(|(expected, found)| expected != found)?;
            Some(Difference {
                local_word: to.start + at,
                canonical_word: from.start + at,
                found: found[at],
                expected: expected[at],
            })
        })
    }

    /// What the box adds to the receiver's digest if it holds the parameter's served words.
    pub(crate) fn digest(&self, param: &ParamMeta, canonical: &[u16], keys: &DigestKeys) -> Digest {
        self.rows(param).map(|(from, _)| keys.words(param.id, from.start as u64, &canonical[from])).sum()
    }

    /// Per row of the box: its words in the canonical parameter, and in the receiver's tensor.
    fn rows(&self, param: &ParamMeta) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let words = param.dtype.words();
        let DestBox { canonical, dst_offset, dst_row_stride, .. } = self.held;
        (0..canonical.rows).map(move |row| {
            let Range { start, end } = canonical_row(param, &canonical, row);
            let to = index_of(dst_offset + row * dst_row_stride) * words;
            (start * words..end * words, to..to + (end - start) * words)
        })
    }
}

/// One row of a box in a parameter's canonical order, in elements.
fn canonical_row(param: &ParamMeta, canonical: &Box2, row: u64) -> Range<usize> {
    let start = index_of((canonical.row + row) * param.cols() + canonical.col);
    start..start + index_of(canonical.cols)
}
