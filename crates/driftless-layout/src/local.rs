//! A tensor as one rank holds it: what both trainer and engine layouts are made of.

use crate::error::LayoutError;
use crate::geometry::{Box2, PlacedBox};
use crate::model::{Model, ParamMeta};
use driftless_types::{Dtype, ParamId, Shape};
use std::ops::Range;

/// One tensor of one rank, under the name that its framework gives it.
#[derive(Clone, Debug)]
pub(crate) struct LocalTensor {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
    /// Ascending offset, disjoint; padding is covered by none.
    pub(crate) boxes: Vec<PlacedBox>,
}

impl LocalTensor {
    /// A tensor with no boxes yet, which holds (parts of) the parameters `of`.
    ///
    /// # Errors
    /// [`LayoutError::DtypeContradiction`] if those parameters are served in different dtypes: one tensor has one.
    pub(crate) fn new(
        model: &Model,
        name: String,
        shape: impl Into<Vec<u64>>,
        of: &[ParamId],
    ) -> Result<Self, LayoutError> {
        let first = model.meta(of[0]);
        for other in of.iter().map(|&id| model.meta(id)) {
            if other.dtype != first.dtype {
                return Err(LayoutError::DtypeContradiction {
                    name,
                    found: other.dtype,
                    found_in: other.fqn.to_string(),
                    expected: first.dtype,
                    expected_in: first.fqn.to_string(),
                });
            }
        }
        Ok(Self { name, shape: Shape::new(shape), dtype: first.dtype, boxes: Vec::new() })
    }

    /// The whole of one parameter, in canonical order.
    pub(crate) fn whole(model: &Model, name: String, param: ParamId) -> Result<Self, LayoutError> {
        let meta = model.meta(param);
        let (rows, cols) = (meta.rows(), meta.cols());
        let tensor = Self::new(model, name, meta.shape.extents(), &[param])?;
        Ok(tensor.with(param, Box2::new(0, rows, 0, cols), 0, cols))
    }

    /// Adds a box at `offset`; an empty one is left out.
    pub(crate) fn with(mut self, param: ParamId, canonical: Box2, offset: u64, row_stride: u64) -> Self {
        if canonical.elements() > 0 {
            self.boxes.push(PlacedBox { param, canonical, offset, row_stride });
        }
        self
    }

    /// Adds `rows` of a parameter from row `at` of this tensor on; the rows of a 1-D parameter are its elements.
    pub(crate) fn with_rows(self, meta: &ParamMeta, rows: Range<u64>, at: u64) -> Self {
        let count = rows.end - rows.start;
        match meta.shape.extents() {
            [_, cols] => self.with(meta.id, Box2::new(rows.start, count, 0, *cols), at * cols, *cols),
            _ => self.with(meta.id, Box2::new(0, 1, rows.start, count), at, count),
        }
    }

    /// The number of elements, padding included.
    pub(crate) fn elements(&self) -> u64 {
        self.shape.extents().iter().product()
    }
}
