//! The part of a local tensor that a rank owns, as pieces.

use crate::geometry::Box2;
use crate::local::LocalTensor;
use crate::plan::{Piece, SourceTensor};
use std::ops::Range;

/// `range` of a local tensor's flattened elements, as pieces.
///
/// A range that starts or ends in mid-row gives up to three pieces per box: a part of a row, whole rows, a part
/// of a row.
pub(super) fn owned(tensor: &LocalTensor, range: Range<u64>) -> SourceTensor {
    let mut pieces = Vec::new();
    for placed in &tensor.boxes {
        let canonical = placed.canonical;
        assert_eq!(placed.row_stride, canonical.cols, "trainer boxes are contiguous");
        let mut at = range.start.saturating_sub(placed.offset);
        let end = range.end.saturating_sub(placed.offset).min(canonical.elements());
        while at < end {
            let piece = next_run(canonical, at, end);
            let src_offset = placed.offset + at - range.start;
            at += piece.elements();
            pieces.push(Piece::uncut(src_offset, placed.param, piece));
        }
    }
    SourceTensor { name: tensor.name.clone(), range, pieces }
}

/// The longest box that starts at flat index `at` of `canonical` and ends by `end`.
fn next_run(canonical: Box2, at: u64, end: u64) -> Box2 {
    let (row, col) = (at / canonical.cols, at % canonical.cols);
    let whole_rows = (end - at) / canonical.cols;
    if col == 0 && whole_rows > 0 {
        return Box2::new(canonical.row + row, whole_rows, canonical.col, canonical.cols);
    }
    let cols = (canonical.cols - col).min(end - at);
    Box2::new(canonical.row + row, 1, canonical.col + col, cols)
}
