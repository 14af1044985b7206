//! Boxes in a parameter's canonical coordinates.

use driftless_types::ParamId;

/// A box of a parameter's two-dimensional view; a 1-D parameter of n elements is one row of n columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Box2 {
    /// The first row.
    pub row: u64,
    /// How many rows.
    pub rows: u64,
    /// The first column.
    pub col: u64,
    /// How many columns.
    pub cols: u64,
}

impl Box2 {
    /// The box of `rows` x `cols` elements whose first element is (`row`, `col`).
    #[must_use]
    pub const fn new(row: u64, rows: u64, col: u64, cols: u64) -> Self {
        Self { row, rows, col, cols }
    }

    /// How many elements it holds.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.rows * self.cols
    }

    /// One past the last row.
    #[must_use]
    pub const fn row_end(&self) -> u64 {
        self.row + self.rows
    }

    /// One past the last column.
    #[must_use]
    pub const fn col_end(&self) -> u64 {
        self.col + self.cols
    }

    /// The elements that both boxes hold; `None` if there are none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let (row, row_end) = (self.row.max(other.row), self.row_end().min(other.row_end()));
        let (col, col_end) = (self.col.max(other.col), self.col_end().min(other.col_end()));
        (row < row_end && col < col_end).then(|| Self::new(row, row_end - row, col, col_end - col))
    }
}

/// A canonical box and where its rows lie in some rank's flat tensor, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedBox {
    pub(crate) param: ParamId,
    pub(crate) canonical: Box2,
    pub(crate) offset: u64,
    pub(crate) row_stride: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_that_only_touch_do_not_intersect() {
        let a = Box2::new(0, 4, 2, 3);
        assert_eq!(a.intersection(&Box2::new(4, 1, 2, 3)), None);
        assert_eq!(a.intersection(&Box2::new(0, 4, 5, 1)), None);
        assert_eq!(a.intersection(&Box2::new(3, 9, 0, 3)), Some(Box2::new(3, 1, 2, 1)));
        assert_eq!(a.intersection(&a), Some(a));
    }
}
