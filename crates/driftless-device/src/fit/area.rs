//! A walk over a box in row-major order, in stretches whose canonical elements are contiguous.

use crate::DeviceError;
use driftless_layout::{Box2, ParamMeta};
use driftless_types::{ParamId, index_of};

/// The parameter that a plan names, or an error.
pub(crate) fn param_of(params: &[ParamMeta], id: ParamId) -> Result<&ParamMeta, DeviceError> {
    params.get(id.0 as usize).ok_or(DeviceError::UnknownParam(id))
}

/// A box within the width of its parameter, in this process's index type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The canonical flat index of the box's first element.
    pub(crate) origin: u64,
    /// The width of the parameter.
    pub(crate) param_cols: u64,
}

impl Area {
    /// A box that must lie within the columns of a parameter of width `param_cols`, and be countable.
    pub(crate) fn new(
        canonical: &Box2,
        param_cols: u64,
        name: &dyn Fn() -> String,
    ) -> Result<Self, DeviceError> {
        let misfit = |what, found, limit| DeviceError::Misfit { what, name: name(), found, limit };
        let col_end = canonical.col.saturating_add(canonical.cols);
        if col_end > param_cols {
            return Err(misfit("the last column", col_end, param_cols));
        }
        let row_end = canonical.row.saturating_add(canonical.rows);
        // Words are counted two to an FP32 element, so a parameter may hold half of what a u64 counts.
        if row_end.checked_mul(param_cols).is_none_or(|elements| elements > u64::MAX / 2) {
            return Err(misfit("the last row", row_end, u64::MAX / 2 / param_cols.max(1)));
        }
        Ok(Self {
            rows: index_of(canonical.rows),
            cols: index_of(canonical.cols),
            origin: canonical.row * param_cols + canonical.col,
            param_cols,
        })
    }

    pub(crate) const fn elements(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether its rows follow each other without a gap in the parameter.
    pub(crate) const fn is_full_width(&self) -> bool {
        self.cols as u64 == self.param_cols
    }

    /// The canonical flat index of the element at (`row`, `col`) of the box.
    pub(crate) const fn canonical(&self, row: usize, col: usize) -> u64 {
        self.origin + row as u64 * self.param_cols + col as u64
    }
}

/// A stretch of a box: some elements in a row, both in the box and in the parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) len: usize,
    /// The canonical flat index of its first element.
    pub(crate) element: u64,
    /// Its digest cell, counted from the first one of the box.
    pub(crate) cell: usize,
}

/// Where a walk over a box stands.
///
/// The cuts that bound digest cells also bound spans, so that each span lies in one cell.
#[derive(Clone, Debug)]
pub(crate) struct SpanWalk<'a> {
    area: Area,
    row_cuts: &'a [u64],
    col_cuts: &'a [u64],
    row: usize,
    col: usize,
    row_band: usize,
    col_band: usize,
}

impl<'a> SpanWalk<'a> {
    /// A walk from the first element of a box, cut at `row_cuts` and `col_cuts` (rising, relative to the box).
    pub(crate) const fn new(area: Area, row_cuts: &'a [u64], col_cuts: &'a [u64]) -> Self {
        Self { area, row_cuts, col_cuts, row: 0, col: 0, row_band: 0, col_band: 0 }
    }

    /// The next span, of at most `limit` elements; the caller stops after the last element of the box.
    #[inline]
    pub(crate) fn next_span(&mut self, limit: usize) -> Span {
        let (row, col) = (self.row, self.col);
        let cell = self.row_band * (self.col_cuts.len() + 1) + self.col_band;
        let len = self.reach().min(limit);
        self.advance(len);
        Span { len, element: self.area.canonical(row, col), cell }
    }

    /// How many elements follow in the same span.
    fn reach(&self) -> usize {
        if self.area.is_full_width() && self.col_cuts.is_empty() {
            let band_end = self.row_cuts.get(self.row_band).map_or(self.area.rows, |&cut| index_of(cut));
            return (band_end - self.row) * self.area.cols - self.col;
        }
        self.col_cuts.get(self.col_band).map_or(self.area.cols, |&cut| index_of(cut)) - self.col
    }

    fn advance(&mut self, len: usize) {
        self.col += len;
        if self.col >= self.area.cols {
            self.row += self.col / self.area.cols;
            self.col %= self.area.cols;
            self.col_band = 0;
            while self.row_cuts.get(self.row_band).is_some_and(|&cut| index_of(cut) <= self.row) {
                self.row_band += 1;
            }
        }
        while self.col_cuts.get(self.col_band).is_some_and(|&cut| index_of(cut) <= self.col) {
            self.col_band += 1;
        }
    }
}

/// Refuses cuts that do not rise strictly inside `0..extent`.
pub(crate) fn check_cuts(cuts: &[u64], extent: u64, name: &dyn Fn() -> String) -> Result<(), DeviceError> {
    let mut floor = 0;
    for &cut in cuts {
        if cut <= floor || cut >= extent {
            let limit = extent.saturating_sub(1);
            return Err(DeviceError::Misfit { what: "a digest cut", name: name(), found: cut, limit });
        }
        floor = cut;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(canonical: Box2, param_cols: u64, row_cuts: &[u64], col_cuts: &[u64], limit: usize) -> Vec<Span> {
        let area = Area::new(&canonical, param_cols, &|| "test".into()).expect("the box fits");
        let mut walk = SpanWalk::new(area, row_cuts, col_cuts);
        let mut left = area.elements();
        let mut spans = Vec::new();
        while left > 0 {
            let span = walk.next_span(limit.min(left));
            left -= span.len;
            spans.push(span);
        }
        spans
    }

    #[test]
    fn full_width_rows_are_one_span_per_band() {
        let spans = walk(Box2 { row: 2, rows: 5, col: 0, cols: 4 }, 4, &[3], &[], 1000);
        assert_eq!(spans, [Span { len: 12, element: 8, cell: 0 }, Span { len: 8, element: 20, cell: 1 }]);
    }

    #[test]
    fn every_element_meets_its_cell_whatever_the_limit() {
        let canonical = Box2 { row: 1, rows: 4, col: 2, cols: 7 };
        let (row_cuts, col_cuts) = ([1, 3], [2, 5]);
        for limit in 1..10 {
            let mut k = 0;
            for span in walk(canonical, 11, &row_cuts, &col_cuts, limit) {
                for step in 0..span.len as u64 {
                    let (row, col) = (k / 7, k % 7);
                    assert_eq!(span.element + step, (1 + row) * 11 + 2 + col);
                    let bands = row_cuts.map(|cut| usize::from(row >= cut)).iter().sum::<usize>();
                    let col_band = col_cuts.map(|cut| usize::from(col >= cut)).iter().sum::<usize>();
                    assert_eq!(span.cell, bands * 3 + col_band);
                    k += 1;
                }
            }
            assert_eq!(k, 28);
        }
    }

    #[test]
    fn boxes_and_cuts_that_do_not_fit_are_refused() {
        let name: &dyn Fn() -> String = &|| "test".into();
        assert!(Area::new(&Box2 { row: 0, rows: 1, col: 3, cols: 2 }, 4, name).is_err());
        assert!(Area::new(&Box2 { row: u64::MAX, rows: 1, col: 0, cols: 2 }, 4, name).is_err());
        assert!(check_cuts(&[1, 1], 4, name).is_err());
        assert!(check_cuts(&[4], 4, name).is_err());
        assert!(check_cuts(&[0], 4, name).is_err());
        assert!(check_cuts(&[1, 3], 4, name).is_ok());
    }
}
