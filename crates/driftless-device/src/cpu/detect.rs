//! One pass over a source tensor: what may have changed, and the digest of what is there now.
//!
//! - **DV-4 (the digest is independent).** Every element of every piece is digested, whatever the detector says of it.
//!
//! Each piece is read once, block by block. A block's served bits and its bitmask live on the stack; nothing of the
//! size of the tensor is made but the changes themselves.

use super::gather::split;
use super::kernels::{BLOCK_ELEMENTS, Hasher, Kernels, Mask, Stepped};
use super::spans::{Area, SpanWalk, check_cuts, param_of};
use crate::{ChangeSource, Changes, Detected, DeviceError, PieceDiff, PieceRule};
use driftless_layout::{ParamMeta, Piece, SourceTensor};
use driftless_numerics::{Cast, MasterAudit, Rule};
use driftless_types::{Digest, Dtype, index_of};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// The places that one call works with, so that the loops below take few arguments.
pub(super) struct Pass<'a> {
    pub(super) hasher: Hasher<'a>,
    pub(super) cast: Cast,
    pub(super) cancel: &'a AtomicBool,
}

/// A piece of a source tensor in this process's index type, checked to fit.
struct Part<'a> {
    piece: &'a Piece,
    area: Area,
    dtype: Dtype,
    /// Where its elements lie in the owned range.
    source: Range<usize>,
    /// Its digest cells among those of the tensor.
    cells: Range<usize>,
}

impl Pass<'_> {
    /// Detects in every piece of `tensor`.
    pub(super) fn run(
        &self,
        tensor: &SourceTensor,
        params: &[ParamMeta],
        mut source: ChangeSource<'_>,
    ) -> Result<Detected, DeviceError> {
        check_lengths(tensor, &source)?;
        check_casts(&source, self.cast)?;
        let parts = parts_of(tensor, params)?;
        let mut detected = Detected {
            first_cell: tensor.pieces.first().map_or(0, |piece| piece.first_cell),
            cells: vec![Digest::ZERO; parts.last().map_or(0, |part| part.cells.end)],
            ..Detected::default()
        };
        for (index, part) in parts.iter().enumerate() {
            let (master, judge) = judge_of(&mut source, index, part);
            let changes = &mut detected.changes;
            let cells = &mut detected.cells[part.cells.clone()];
            let swept = self.sweep(part, &master[part.source.clone()], judge, changes, cells)?;
            detected.bound_exceeded.push(swept.exceeded);
            detected.audits.push(swept.audit);
        }
        Ok(detected)
    }

    /// Reads one piece block by block.
    fn sweep(
        &self,
        part: &Part<'_>,
        master: &[f32],
        mut judge: Judge<'_>,
        changes: &mut Changes,
        cells: &mut [Digest],
    ) -> Result<Swept, DeviceError> {
        let mut walk = SpanWalk::new(part.area, &part.piece.row_cuts, &part.piece.col_cuts);
        let mut words = [0; 2 * BLOCK_ELEMENTS];
        let mut swept = Swept::default();
        if part.dtype == Dtype::Bf16 {
            swept.audit = MasterAudit::Fit;
        }
        for (block, x) in master.chunks(BLOCK_ELEMENTS).enumerate() {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(DeviceError::Canceled);
            }
            let start = block * BLOCK_ELEMENTS;
            let words = &mut words[..x.len() * part.dtype.words()];
            match part.dtype {
                Dtype::Fp32 => split(x, words),
                Dtype::Bf16 => {
                    swept.audit = swept.audit.and((self.hasher.kernels.cast)(self.cast, x, words));
                    let verdict = judge.block(self.hasher.kernels, start, x, words);
                    swept.exceeded = larger(swept.exceeded, verdict.exceeded);
                    push_marked(&verdict.mask, part.source.start + start, words, changes);
                }
            }
            // DV-4: whatever the verdict was.
            self.digest(part, &mut walk, words, cells);
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
#[derive(Default)]
struct Swept {
    /// The largest update beyond its rule's bound, if any.
    exceeded: Option<f32>,
    audit: MasterAudit,
}

/// What says which elements of a piece may have changed. Slices hold the elements of the piece alone.
enum Judge<'a> {
    Rule { rule: &'a Rule, exp_avg: &'a [f32], exp_avg_sq: &'a [f32] },
    Compare { previous: &'a mut [u16] },
    Replace { previous: &'a mut [u16] },
    Nothing,
}

/// What a judge found in a block.
#[derive(Default)]
struct Verdict {
    mask: Mask,
    exceeded: Option<f32>,
}

impl Judge<'_> {
    /// Judges the elements from `start` on, whose new bits are `bits`.
    fn block(&mut self, kernels: &Kernels, start: usize, x: &[f32], bits: &[u16]) -> Verdict {
        let range = start..start + x.len();
        match self {
            Self::Rule { rule, exp_avg, exp_avg_sq } => {
                let (m, v) = (&exp_avg[range.clone()], &exp_avg_sq[range]);
                let mut mask = Mask::default();
                let block = Stepped { master: x, exp_avg: m, exp_avg_sq: v };
                let is_within = (kernels.invert)(rule, block, &mut mask);
                Verdict { mask, exceeded: if is_within { None } else { worst_update(rule, m, v) } }
            }
            Self::Compare { previous } => {
                let mut mask = Mask::default();
                (kernels.compare)(bits, &mut previous[range], &mut mask);
                Verdict { mask, exceeded: None }
            }
            Self::Replace { previous } => {
                previous[range].copy_from_slice(bits);
                Verdict::default()
            }
            Self::Nothing => Verdict::default(),
        }
    }
}

/// The largest update beyond the bound; a slow path, for a gate that fails.
#[cold]
fn worst_update(rule: &Rule, m: &[f32], v: &[f32]) -> Option<f32> {
    let updates = m.iter().zip(v).filter(|&(&m, &v)| !rule.update_within_bound(m, v));
    updates.map(|(&m, &v)| rule.update(m, v).abs()).reduce(f32::max)
}

fn larger(a: Option<f32>, b: Option<f32>) -> Option<f32> {
    a.into_iter().chain(b).reduce(f32::max)
}

/// The masters of the whole tensor, and what judges its piece number `index`.
fn judge_of<'a>(source: &'a mut ChangeSource<'_>, index: usize, part: &Part<'_>) -> (&'a [f32], Judge<'a>) {
    let range = part.source.clone();
    match source {
        ChangeSource::Inversion { master, exp_avg, exp_avg_sq, rules } => match &rules[index] {
            PieceRule::Rule(rule) => (
                master,
                Judge::Rule { rule, exp_avg: &exp_avg[range.clone()], exp_avg_sq: &exp_avg_sq[range] },
            ),
            PieceRule::Dense | PieceRule::Untouched => (master, Judge::Nothing),
        },
        ChangeSource::Snapshot { master, previous, diffs } => match diffs[index] {
            PieceDiff::Compare => (master, Judge::Compare { previous: &mut previous[range] }),
            PieceDiff::Dense => (master, Judge::Replace { previous: &mut previous[range] }),
        },
    }
}

/// Lists the marked elements of a block whose first element has index `first` in the owned range.
#[inline]
fn push_marked(mask: &Mask, first: usize, bits: &[u16], changes: &mut Changes) {
    for (group, &marks) in mask.iter().enumerate() {
        let mut marks = marks;
        while marks != 0 {
            let k = 64 * group + marks.trailing_zeros() as usize;
            changes.indices.push(source_index(first + k));
            changes.values.push(bits[k]);
            marks &= marks - 1;
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "check_lengths refused tensors beyond u32 indices")]
fn source_index(index: usize) -> u32 {
    debug_assert!(u32::try_from(index).is_ok());
    index as u32
}

/// Checks every slice of `source` against the plan.
fn check_lengths(tensor: &SourceTensor, source: &ChangeSource<'_>) -> Result<(), DeviceError> {
    let elements = tensor.elements();
    if elements > u64::from(u32::MAX) {
        let (name, limit) = (tensor.name.clone(), u64::from(u32::MAX));
        return Err(DeviceError::Misfit { what: "the element count", name, found: elements, limit });
    }
    let check = |what, found: usize, expected: u64| {
        if found as u64 == expected {
            return Ok(());
        }
        Err(DeviceError::Length { what, found: found as u64, expected })
    };
    let pieces = tensor.pieces.len() as u64;
    match source {
        ChangeSource::Inversion { master, exp_avg, exp_avg_sq, rules } => {
            check("master", master.len(), elements)?;
            check("exp_avg", exp_avg.len(), elements)?;
            check("exp_avg_sq", exp_avg_sq.len(), elements)?;
            check("rules of pieces", rules.len(), pieces)
        }
        ChangeSource::Snapshot { master, previous, diffs } => {
            check("master", master.len(), elements)?;
            check("previous", previous.len(), elements)?;
            check("diffs of pieces", diffs.len(), pieces)
        }
    }
}

/// Checks that every rule judges the bits that are served.
fn check_casts(source: &ChangeSource<'_>, expected: Cast) -> Result<(), DeviceError> {
    let ChangeSource::Inversion { rules, .. } = source else { return Ok(()) };
    for (piece, rule) in rules.iter().enumerate() {
        if let PieceRule::Rule(rule) = rule
            && rule.family().cast() != expected
        {
            return Err(DeviceError::Cast { piece, found: rule.family().cast(), expected });
        }
    }
    Ok(())
}

/// The pieces of a tensor, checked to be disjoint, ascending, inside the owned range and inside their parameters.
fn parts_of<'a>(tensor: &'a SourceTensor, params: &[ParamMeta]) -> Result<Vec<Part<'a>>, DeviceError> {
    let name: &dyn Fn() -> String = &|| tensor.name.clone();
    let misfit = |what, found, limit| DeviceError::Misfit { what, name: name(), found, limit };
    let first_cell = tensor.pieces.first().map_or(0, |piece| piece.first_cell);
    let (mut floor, mut next_cell) = (0, 0);
    let mut parts = Vec::with_capacity(tensor.pieces.len());
    for piece in &tensor.pieces {
        let meta = param_of(params, piece.param)?;
        let area = Area::new(&piece.canonical, meta.cols(), name)?;
        check_cuts(&piece.row_cuts, piece.canonical.rows, name)?;
        check_cuts(&piece.col_cuts, piece.canonical.cols, name)?;
        let elements = piece.canonical.rows.saturating_mul(piece.canonical.cols);
        let end = piece.src_offset.saturating_add(elements);
        if piece.src_offset < floor || end > tensor.elements() {
            return Err(misfit("the end of a piece", end, tensor.elements()));
        }
        let cell = u64::from(piece.first_cell);
        if cell != u64::from(first_cell) + next_cell as u64 {
            return Err(misfit("the first cell of a piece", cell, u64::from(first_cell) + next_cell as u64));
        }
        let cells = next_cell..next_cell + (piece.row_cuts.len() + 1) * (piece.col_cuts.len() + 1);
        (floor, next_cell) = (end, cells.end);
        let source = index_of(piece.src_offset)..index_of(end);
        parts.push(Part { piece, area, dtype: meta.dtype, source, cells });
    }
    Ok(parts)
}
