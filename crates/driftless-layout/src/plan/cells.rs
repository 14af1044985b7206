//! Digest cells: the common refinement of the fragments of all receivers over one piece.
//!
//! A sender hashes each element once, into its cell; the digest of a fragment is the sum over its cells.

use super::Piece;
use crate::error::LayoutError;
use crate::geometry::Box2;
use std::collections::BTreeSet;
use std::ops::Range;

/// Cuts `piece` along the borders of `parts`, boxes within it, and numbers its cells from `next_cell` on.
///
/// # Errors
/// [`LayoutError::TooLarge`] if a sender's cells outgrow their numbers.
pub(super) fn cut(
    piece: &mut Piece,
    parts: impl Iterator<Item = Box2>,
    next_cell: &mut u32,
) -> Result<(), LayoutError> {
    let whole = piece.canonical;
    let (mut rows, mut cols) = (BTreeSet::new(), BTreeSet::new());
    for part in parts {
        rows.extend([part.row - whole.row, part.row_end() - whole.row]);
        cols.extend([part.col - whole.col, part.col_end() - whole.col]);
    }
    piece.row_cuts = rows.into_iter().filter(|&cut| 0 < cut && cut < whole.rows).collect();
    piece.col_cuts = cols.into_iter().filter(|&cut| 0 < cut && cut < whole.cols).collect();
    piece.first_cell = *next_cell;
    let cells = (piece.row_cuts.len() as u64 + 1) * (piece.col_cuts.len() as u64 + 1);
    let found = u64::from(*next_cell) + cells;
    let too_large =
        |_| LayoutError::TooLarge { what: "digest cells of a sender", found, limit: u32::MAX.into() };
    *next_cell = u32::try_from(found).map_err(too_large)?;
    Ok(())
}

/// The cells of `piece` that make up `part`, whose borders are among the piece's cuts.
pub(super) fn within(piece: &Piece, part: Box2) -> Vec<u32> {
    let whole = piece.canonical;
    let rows = bands(&piece.row_cuts, part.row - whole.row, part.row_end() - whole.row);
    let cols = bands(&piece.col_cuts, part.col - whole.col, part.col_end() - whole.col);
    let width = piece.col_cuts.len() + 1;
    let cell = |row: usize, col: usize| {
        let within_piece =
            u32::try_from(row * width + col).expect("`cut` has checked the numbers of all cells");
        piece.first_cell + within_piece
    };
    rows.flat_map(|row| cols.clone().map(move |col| (row, col))).map(|(row, col)| cell(row, col)).collect()
}

/// The bands between `cuts` that lie in `start..end`.
fn bands(cuts: &[u64], start: u64, end: u64) -> Range<usize> {
    cuts.partition_point(|&cut| cut <= start)..cuts.partition_point(|&cut| cut < end) + 1
}
