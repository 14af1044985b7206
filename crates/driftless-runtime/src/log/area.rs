//! Boxes of a parameter as a log's sections state them, and as plans do.

use driftless_codec::{CanonicalBox, CodecError};
use driftless_layout::{Box2, ParamMeta};

/// A plan's box, as a section states it.
///
/// # Errors
/// [`CodecError`] for an empty box, which no plan has.
pub(crate) fn stated(param: &ParamMeta, area: Box2) -> Result<CanonicalBox, CodecError> {
    let (origin, extent) = ([area.row, area.col], [area.rows, area.cols]);
    let first = 2 - param.shape.extents().len();
    CanonicalBox::new(&origin[first..], &extent[first..])
}

/// A section's box, as a plan states it. The section was checked to lie in the parameter.
pub(crate) fn planned(area: &CanonicalBox) -> Option<Box2> {
    let axes: Vec<(u64, u64)> = area.origin().zip(area.extent()).collect();
    match axes[..] {
        [(col, cols)] => Some(Box2::new(0, 1, col, cols)),
        [(row, rows), (col, cols)] => Some(Box2::new(row, rows, col, cols)),
        _ => None,
    }
}
