//! What must hold of a detection's arguments.

use super::area::{Area, check_cuts, param_of};
use crate::{Bits, ChangeSource, DetectOptions, DeviceError, Elements, Pending, PieceRule};
use driftless_layout::{ParamMeta, Piece, SourceTensor};
use driftless_numerics::Cast;
use driftless_types::{Dtype, index_of};
use std::ops::Range;

/// A piece of a source tensor in this process's index type, checked to fit.
pub(crate) struct Part<'a> {
    pub(crate) piece: &'a Piece,
    pub(crate) area: Area,
    pub(crate) dtype: Dtype,
    /// Where its elements lie in the owned range.
    pub(crate) source: Range<usize>,
    /// Its digest cells among those of the tensor.
    pub(crate) cells: Range<usize>,
}

/// Checks everything about a call but its boxes.
pub(crate) fn check(
    tensor: &SourceTensor,
    source: &ChangeSource<'_>,
    options: &DetectOptions<'_>,
) -> Result<(), DeviceError> {
    check_lengths(tensor, source)?;
    if let Pending::Drain(set) | Pending::Collect(set) = &options.pending {
        check_set("pending", set.bits(), tensor.elements())?;
    }
    check_casts(source, options.cast)
}

/// Checks every memory of `source` against the plan.
fn check_lengths(tensor: &SourceTensor, source: &ChangeSource<'_>) -> Result<(), DeviceError> {
    let elements = tensor.elements();
    if elements > u64::from(u32::MAX) {
        let (name, limit) = (tensor.name.clone(), u64::from(u32::MAX));
        return Err(DeviceError::Misfit { what: "the element count", name, found: elements, limit });
    }
    let pieces = tensor.pieces.len() as u64;
    check_length("master", master_of(source).len(), elements)?;
    match source {
        ChangeSource::Inversion { exp_avg, exp_avg_sq, rules, .. } => {
            check_length("exp_avg", exp_avg.len(), elements)?;
            if !exp_avg_sq.is_empty() || reads_second_moments(rules) {
                check_length("exp_avg_sq", exp_avg_sq.len(), elements)?;
            }
            check_length("rules of pieces", rules.len(), pieces)
        }
        ChangeSource::Snapshot { previous, diffs, .. } => {
            check_length("previous", previous.len(), elements)?;
            check_length("diffs of pieces", diffs.len(), pieces)
        }
        ChangeSource::PreCopy { model, diffs, .. } => {
            check_length("model", model.len(), elements)?;
            check_length("diffs of pieces", diffs.len(), pieces)
        }
        ChangeSource::InStep { changed, diffs, .. } => {
            check_set("changed", *changed, elements)?;
            check_length("diffs of pieces", diffs.len(), pieces)
        }
    }
}

fn check_length(what: &'static str, found: usize, expected: u64) -> Result<(), DeviceError> {
    if found as u64 == expected {
        return Ok(());
    }
    Err(DeviceError::Length { what, found: found as u64, expected })
}

/// One bit per element: a device's set is counted in words.
fn check_set(what: &'static str, set: Bits<'_>, elements: u64) -> Result<(), DeviceError> {
    if set.fits(index_of(elements)) {
        return Ok(());
    }
    let found = match set {
        Bits::Host(set) => set.len(),
        Bits::Device(memory) => memory.bytes().saturating_mul(8),
    };
    check_length(what, found, elements)
}

const fn master_of<'a>(source: &ChangeSource<'a>) -> Elements<'a, f32> {
    match source {
        ChangeSource::Inversion { master, .. }
        | ChangeSource::Snapshot { master, .. }
        | ChangeSource::PreCopy { master, .. }
        | ChangeSource::InStep { master, .. } => *master,
    }
}

fn reads_second_moments(rules: &[PieceRule]) -> bool {
    rules.iter().any(|rule| matches!(rule, PieceRule::Rule(rule) if rule.reads_second_moments()))
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
pub(crate) fn parts_of<'a>(
    tensor: &'a SourceTensor,
    params: &[ParamMeta],
) -> Result<Vec<Part<'a>>, DeviceError> {
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
