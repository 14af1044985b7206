//! Pieces of a source tensor as kernels walk them: boxes without cuts between their rows, cut into tiles.

use super::abi::{DetectArgs, Divisor, PART_FP32, PART_REPLACE, PART_WHOLE, Part};
use crate::fit::Part as Piece;
use crate::{ChangeSource, PieceDiff, PieceRule};
use driftless_numerics::RuleScalars;
use driftless_types::Dtype;
use std::ops::Range;

/// Elements of a tile for each thread of a block.
const ELEMENTS_EACH: u64 = 32;
/// Tiles begin at multiples of this, so that every load is whole.
const TILE_ALIGNMENT: u64 = 128;
/// Everything that the kernels need to know of a tensor's pieces.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) parts: Vec<Part>,
    pub(super) cuts: Vec<u32>,
    pub(super) launches: Vec<Launch>,
    pub(super) tiles: u32,
    tile_elements: u64,
}

/// Consecutive parts that one kernel judges by one rule.
pub(super) struct Launch {
    pub(super) kernel: String,
    pub(super) rule: RuleScalars,
    pub(super) parts: Range<usize>,
    pub(super) tiles: Range<u32>,
}

impl Parts {
    /// For blocks of so many threads.
    pub(super) fn of(pieces: &[Piece<'_>], source: &ChangeSource<'_>, threads: u32) -> Self {
        let mut all = Self { tile_elements: ELEMENTS_EACH * u64::from(threads), ..Self::default() };
        for (index, piece) in pieces.iter().enumerate() {
            let judge = Judge::of(source, index, piece.dtype);
            let (first_part, first_tile) = (all.parts.len(), all.tiles);
            all.add_bands(narrow(index), piece, judge.flags);
            let (parts, tiles) = (first_part..all.parts.len(), first_tile..all.tiles);
            if tiles.is_empty() {
                continue;
            }
            match all.launches.last_mut() {
                Some(last) if last.kernel == judge.kernel && last.rule == judge.rule => {
                    (last.parts.end, last.tiles.end) = (parts.end, tiles.end);
                }
                _ => all.launches.push(Launch { kernel: judge.kernel, rule: judge.rule, parts, tiles }),
            }
        }
        all
    }

    /// A band of rows is contiguous in the source, whatever its columns are.
    fn add_bands(&mut self, index: u32, piece: &Piece<'_>, flags: u32) {
        let cuts = &piece.piece.row_cuts;
        let rows = piece.area.rows as u64;
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([rows]);
        let bands = piece.piece.col_cuts.len() + 1;
        for (band, (start, end)) in starts.zip(ends).enumerate() {
            let first_cell = narrow(piece.cells.start + band * bands);
            self.add_band(&Band { index, piece, flags, rows: start..end, first_cell });
        }
    }

    fn add_band(&mut self, band: &Band<'_>) {
        let (area, col_cuts) = (&band.piece.area, &band.piece.piece.col_cuts);
        let rows = band.rows.end - band.rows.start;
        let cols = area.cols as u64;
        if rows == 1 {
            // A single row needs no cuts: each of its columns' bands is a row of its own.
            let starts = std::iter::once(0).chain(col_cuts.iter().copied());
            let ends = col_cuts.iter().copied().chain([cols]);
            for (at, (start, end)) in (0u32..).zip(starts.zip(ends)) {
                self.add(band, start, [1, end - start], band.first_cell + at, &[]);
            }
        } else if area.is_full_width() && col_cuts.is_empty() {
            self.add(band, 0, [1, rows * cols], band.first_cell, &[]);
        } else {
            self.add(band, 0, [rows, cols], band.first_cell, col_cuts);
        }
    }

    fn add(
        &mut self,
        band: &Band<'_>,
        first_col: u64,
        [rows, cols]: [u64; 2],
        first_cell: u32,
        cuts: &[u64],
    ) {
        let (area, count) = (&band.piece.area, rows * cols);
        if count == 0 {
            return;
        }
        let offset = band.rows.start * area.cols as u64 + first_col;
        let start = band.piece.source.start as u64 + offset;
        let tiles = (start % TILE_ALIGNMENT + count).div_ceil(self.tile_elements);
        self.parts.push(Part {
            origin: area.origin + band.rows.start * area.param_cols + first_col,
            row_stride: area.param_cols,
            start: narrow_u64(start),
            count: narrow_u64(count),
            first_tile: self.tiles,
            param: band.piece.piece.param.0,
            first_cell,
            first_cut: narrow(self.cuts.len()),
            cut_count: narrow(cuts.len()),
            piece: band.index,
            flags: band.flags,
            unused: 0,
            cols: Divisor::new(narrow_u64(cols)),
        });
        self.cuts.extend(cuts.iter().map(|&cut| narrow_u64(cut)));
        self.tiles += narrow_u64(tiles);
    }
}

/// Some rows of a piece between two of its cuts.
struct Band<'a> {
    index: u32,
    piece: &'a Piece<'a>,
    flags: u32,
    rows: Range<u64>,
    first_cell: u32,
}

/// The kernel of a piece.
struct Judge {
    kernel: String,
    rule: RuleScalars,
    flags: u32,
}

impl Judge {
    fn of(source: &ChangeSource<'_>, index: usize, dtype: Dtype) -> Self {
        if dtype == Dtype::Fp32 {
            return Self::new("rest", PART_FP32 | PART_WHOLE);
        }
        match source {
            ChangeSource::Inversion { rules, .. } => match &rules[index] {
                PieceRule::Rule(rule) => Self { rule: rule.lowered(), ..Self::new(rule.form(), 0) },
                PieceRule::Dense => Self::new("rest", PART_WHOLE),
                PieceRule::Untouched => Self::new("rest", 0),
            },
            ChangeSource::Snapshot { diffs, .. } => match diffs[index] {
                PieceDiff::Compare => Self::new("compare", 0),
                PieceDiff::Dense => Self::new("rest", PART_WHOLE | PART_REPLACE),
            },
            ChangeSource::PreCopy { diffs, .. } => match diffs[index] {
                PieceDiff::Compare => Self::new("compare", 0),
                PieceDiff::Dense => Self::new("rest", PART_WHOLE),
            },
            ChangeSource::InStep { diffs, .. } => match diffs[index] {
                PieceDiff::Compare => Self::new("marked", 0),
                PieceDiff::Dense => Self::new("rest", PART_WHOLE),
            },
        }
    }

    fn new(form: &str, flags: u32) -> Self {
        Self { kernel: format!("driftless_detect_{form}"), rule: RuleScalars::NONE, flags }
    }
}

/// Whether a piece goes whole, its changes unlisted.
pub(super) fn goes_whole(source: &ChangeSource<'_>, index: usize) -> bool {
    match source {
        ChangeSource::Inversion { rules, .. } => matches!(rules[index], PieceRule::Dense),
        ChangeSource::Snapshot { diffs, .. }
        | ChangeSource::PreCopy { diffs, .. }
        | ChangeSource::InStep { diffs, .. } => diffs[index] == PieceDiff::Dense,
    }
}

impl DetectArgs {
    /// The arguments of one launch, from those that all have in common.
    pub(super) fn of_launch(self, launch: &Launch, ticket: u64) -> Self {
        Self {
            parts: self.parts + (launch.parts.start * size_of::<Part>()) as u64,
            ticket: self.ticket + 4 * ticket,
            part_count: narrow(launch.parts.len()),
            first_tile: launch.tiles.start,
            tile_count: launch.tiles.end - launch.tiles.start,
            rule: launch.rule,
            ..self
        }
    }
}

/// Counts of parts and cells, and positions in a tensor: `detect` refused tensors beyond u32 indices.
pub(super) fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("a tensor's elements, cells and pieces are counted in u32")
}

pub(super) fn narrow_u64(count: u64) -> u32 {
    u32::try_from(count).expect("a tensor's elements, cells and pieces are counted in u32")
}
