//! One pass over a source tensor: what may have changed, and the digest of what is there now.
//!
//! - **DV-4 (the digest is independent).** Every element of every piece is digested, whatever the detector says of it.
//! - **DV-5 (pending changes are kept).** A set of pending changes is cleared only by a pass that listed all of them.
//!
//! Each piece is read once, block by block. A block's served bits and its bitmask live on the stack; nothing of the
//! size of the tensor is made but the changes themselves.

mod judge;

use super::gather::split;
use super::kernels::{BLOCK_ELEMENTS, Hasher, Mask};
use crate::fit::{Part, SpanWalk, check, parts_of};
use crate::{Bitset, ChangeSource, Changes, Classes, DetectOptions, Detected, DeviceError, Pending};
use driftless_layout::{ParamMeta, SourceTensor};
use driftless_numerics::{Cast, MasterAudit, StepClass};
use driftless_types::{Digest, Dtype};
use judge::{HostSource, Judge};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// The places that one call works with, so that the loops below take few arguments.
pub(super) struct Pass<'a> {
    pub(super) hasher: Hasher<'a>,
    pub(super) cancel: &'a AtomicBool,
}

impl Pass<'_> {
    /// Detects in every piece of `tensor`.
    pub(super) fn run(
        &self,
        tensor: &SourceTensor,
        params: &[ParamMeta],
        source: ChangeSource<'_>,
        options: DetectOptions<'_>,
    ) -> Result<Detected, DeviceError> {
        check(tensor, &source, &options)?;
        let parts = parts_of(tensor, params)?;
        let mut source = HostSource::of(source)?;
        let mut detected = Detected {
            first_cell: tensor.pieces.first().map_or(0, |piece| piece.first_cell),
            cells: vec![Digest::ZERO; parts.last().map_or(0, |part| part.cells.end)],
            ..Detected::default()
        };
        let DetectOptions { cast, classes, pending } = options;
        let pending = HostPending::of(pending)?;
        let wanted = (classes == Classes::Listed).then(Vec::new);
        let mut lister = Lister { changes: Changes { classes: wanted, ..Changes::default() }, pending };
        for (index, part) in parts.iter().enumerate() {
            let (master, judge) = Judge::of(&mut source, index, part);
            let cells = &mut detected.cells[part.cells.clone()];
            let swept = self.sweep(part, cast, &master[part.source.clone()], judge, &mut lister, cells)?;
            detected.bound_exceeded.push(swept.exceeded);
            detected.audits.push(swept.audit);
        }
        detected.changes = lister.finish().into();
        Ok(detected)
    }

    /// Reads one piece block by block.
    fn sweep(
        &self,
        part: &Part<'_>,
        cast: Cast,
        master: &[f32],
        mut judge: Judge<'_>,
        lister: &mut Lister<'_>,
        cells: &mut [Digest],
    ) -> Result<Swept, DeviceError> {
        let mut walk = SpanWalk::new(part.area, &part.piece.row_cuts, &part.piece.col_cuts);
        let mut words = [0; 2 * BLOCK_ELEMENTS];
        let mut swept = Swept::new(part.dtype);
        for (block, x) in master.chunks(BLOCK_ELEMENTS).enumerate() {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(DeviceError::Canceled);
            }
            let start = block * BLOCK_ELEMENTS;
            let words = &mut words[..x.len() * part.dtype.words()];
            match part.dtype {
                Dtype::Fp32 => split(x, words),
                Dtype::Bf16 => {
                    let audit = (self.hasher.kernels.cast)(cast, judge.prefetch(), x, words);
                    let block = Block { first: part.source.start + start, start, x, bits: words };
                    let exceeded = lister.judge(self.hasher, &mut judge, &block);
                    swept.note(audit, exceeded);
                }
            }
            // DV-4: whatever the verdict was.
            if lister.publishes() {
                self.digest(part, &mut walk, words, cells);
            }
        }
        if part.dtype == Dtype::Bf16 && (judge.goes_whole() || swept.exceeded.is_some()) {
            lister.remember_all(part.source.clone());
        }
        Ok(swept)
    }

    /// Adds the words of a block to the cells in which they lie.
    fn digest(&self, part: &Part<'_>, walk: &mut SpanWalk<'_>, words: &[u16], cells: &mut [Digest]) {
        let each = part.dtype.words();
        let mut rest = words;
        while !rest.is_empty() {
            let span = walk.next_span(rest.len() / each);
            let (head, tail) = rest.split_at(span.len * each);
            let first_word = span.element * each as u64;
            cells[span.cell] += self.hasher.words(part.piece.param, first_word, head);
            rest = tail;
        }
    }
}

/// What a sweep over a piece found beside its changes and its digests.
struct Swept {
    /// The largest update beyond its rule's bound, if any.
    exceeded: Option<f32>,
    audit: MasterAudit,
}

impl Swept {
    const fn new(dtype: Dtype) -> Self {
        let audit = match dtype {
            Dtype::Bf16 => MasterAudit::Fit,
            Dtype::Fp32 => MasterAudit::Unknown,
        };
        Self { exceeded: None, audit }
    }

    fn note(&mut self, audit: MasterAudit, exceeded: Option<f32>) {
        self.audit = self.audit.and(audit);
        self.exceeded = self.exceeded.into_iter().chain(exceeded).reduce(f32::max);
    }
}

/// Some consecutive elements of a piece.
struct Block<'a> {
    /// The index of its first element in the owned range.
    first: usize,
    /// The same in the piece.
    start: usize,
    x: &'a [f32],
    bits: &'a [u16],
}

/// [`Pending`] on the host.
enum HostPending<'a> {
    Absent,
    Drain(&'a mut Bitset),
    Collect(&'a mut Bitset),
}

impl<'a> HostPending<'a> {
    fn of(pending: Pending<'a>) -> Result<Self, DeviceError> {
        Ok(match pending {
            Pending::Absent => Self::Absent,
            Pending::Drain(set) => Self::Drain(set.on_host()?),
            Pending::Collect(set) => Self::Collect(set.on_host()?),
        })
    }
}

/// Where marked elements go: to the list, or to the set of those that are published later.
struct Lister<'a> {
    changes: Changes,
    pending: HostPending<'a>,
}

impl Lister<'_> {
    /// Whether the changes of this pass are published, so that their digest is needed.
    const fn publishes(&self) -> bool {
        !matches!(self.pending, HostPending::Collect(_))
    }

    /// Judges a block, and lists or remembers its changes; gives the largest update beyond its bound.
    fn judge(&mut self, hasher: Hasher<'_>, judge: &mut Judge<'_>, block: &Block<'_>) -> Option<f32> {
        let &Block { first, start, x, bits } = block;
        let old = if self.changes.classes.is_some() { judge.old_bits(start, x.len()) } else { None };
        let mut verdict = judge.block(hasher.kernels, start, x, bits);
        let before = self.settle(judge, first, x.len(), &mut verdict.mask);
        self.list(&verdict.mask, first, bits);
        self.classify(judge, block, &verdict.mask, old, &before);
        verdict.exceeded
    }

    /// Exchanges a block's marks with the pending set; gives those that were pending.
    fn settle(&mut self, judge: &Judge<'_>, first: usize, len: usize, mask: &mut Mask) -> Mask {
        let mut before = Mask::default();
        match &mut self.pending {
            HostPending::Absent => {}
            HostPending::Drain(set) if !judge.goes_whole() => {
                set.copy_bits(first, len, &mut before);
                mask.iter_mut().zip(&before).for_each(|(marks, before)| *marks |= before);
            }
            HostPending::Drain(_) => {}
            HostPending::Collect(set) => {
                set.insert_bits(first, mask);
                *mask = Mask::default();
            }
        }
        before
    }

    /// Lists the marked elements of a block whose first element has index `first` in the owned range.
    #[inline]
    fn list(&mut self, mask: &Mask, first: usize, bits: &[u16]) {
        for (k, _) in marked(mask) {
            self.changes.indices.push(source_index(first + k));
            self.changes.values.push(bits[k]);
        }
    }

    /// Lists their classes, if they are wanted; of one that is pending nothing is known, for bounds of several steps do not add up.
    fn classify(
        &mut self,
        judge: &Judge<'_>,
        block: &Block<'_>,
        mask: &Mask,
        old: Option<[u16; BLOCK_ELEMENTS]>,
        before: &Mask,
    ) {
        let Some(classes) = &mut self.changes.classes else { return };
        for (k, group) in marked(mask) {
            let is_older = before[group] >> (k % 64) & 1 == 1;
            let old = old.map(|old| old[k]);
            let class = || judge.class(block.start + k, block.x[k], old, block.bits[k]);
            classes.push(if is_older { StepClass::Far } else { class() });
        }
    }

    /// Remembers a whole piece whose changes are not known, if it is published later.
    fn remember_all(&mut self, piece: Range<usize>) {
        if let HostPending::Collect(set) = &mut self.pending {
            set.insert_range(piece);
        }
    }

    /// What was listed, once every piece has been.
    fn finish(self) -> Changes {
        // DV-5: after the last piece.
        if let HostPending::Drain(set) = self.pending {
            set.clear();
        }
        self.changes
    }
}

/// The marked elements of a block, and the groups in which they are.
#[inline]
fn marked(mask: &Mask) -> impl Iterator<Item = (usize, usize)> {
    mask.iter().enumerate().flat_map(|(group, &marks)| {
        let mut marks = marks;
        std::iter::from_fn(move || {
            let k = (marks != 0).then(|| 64 * group + marks.trailing_zeros() as usize)?;
            marks &= marks - 1;
            Some((k, group))
        })
    })
}

#[expect(clippy::cast_possible_truncation, reason = "the checks refused tensors beyond u32 indices")]
fn source_index(index: usize) -> u32 {
    debug_assert!(u32::try_from(index).is_ok());
    index as u32
}
