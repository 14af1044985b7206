//! The source runs of a fragment, and what can be asked of them.

use crate::{ChangeList, Classes, DeviceError};
use driftless_layout::{Fragment, SourceRun};
use driftless_types::{Dtype, index_of};
use std::ops::Range;

/// A source run in this process's index type, checked against its fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) tensor: usize,
    pub(crate) src_offset: usize,
    pub(crate) src_row_stride: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Row-major position of its first element in the fragment's box.
    pub(crate) position: usize,
}

impl Run {
    /// Whether the run's rows follow each other without a gap in the source tensor.
    pub(crate) const fn is_contiguous(&self) -> bool {
        self.src_row_stride == self.cols || self.rows == 1
    }

    /// Where its elements lie in the source tensor, gaps included.
    pub(crate) const fn source(&self) -> Range<usize> {
        self.src_offset..self.src_offset + (self.rows - 1) * self.src_row_stride + self.cols
    }
}

/// The runs of a fragment that hold elements, checked to tile its box from the first row to the last.
pub(crate) fn runs_of(fragment: &Fragment, tensors: usize) -> Result<Vec<Run>, DeviceError> {
    let misfit = |what, found, limit| DeviceError::Misfit { what, name: name_of(fragment), found, limit };
    let elements = fragment.canonical.rows.saturating_mul(fragment.canonical.cols);
    if elements > u64::from(u32::MAX) {
        return Err(misfit("the element count", elements, u64::from(u32::MAX)));
    }
    let mut next_row = 0;
    let mut runs = Vec::with_capacity(fragment.sources.len());
    for source in &fragment.sources {
        if source.box_row != next_row || source.rows > fragment.canonical.rows - next_row {
            return Err(misfit("a run's first row", source.box_row, next_row));
        }
        if source.tensor as usize >= tensors {
            return Err(misfit("a run's tensor", u64::from(source.tensor), tensors.saturating_sub(1) as u64));
        }
        next_row += source.rows;
        if source.rows > 0 && fragment.canonical.cols > 0 {
            runs.push(run_of(fragment, source)?);
        }
    }
    if next_row != fragment.canonical.rows {
        return Err(misfit("the rows that runs leave out", fragment.canonical.rows - next_row, 0));
    }
    Ok(runs)
}

/// [`runs_of`] a fragment, each within its tensor's masters; `lengths` has one entry per source tensor.
pub(crate) fn runs_within(
    fragment: &Fragment,
    lengths: impl ExactSizeIterator<Item = usize>,
) -> Result<Vec<Run>, DeviceError> {
    let lengths: Vec<usize> = lengths.collect();
    let runs = runs_of(fragment, lengths.len())?;
    for run in &runs {
        let (found, limit) = (run.source().end as u64, lengths[run.tensor] as u64);
        if found > limit {
            return Err(DeviceError::Misfit { what: "a run's end", name: name_of(fragment), found, limit });
        }
    }
    Ok(runs)
}

fn run_of(fragment: &Fragment, source: &SourceRun) -> Result<Run, DeviceError> {
    let misfit = |what, found, limit| DeviceError::Misfit { what, name: name_of(fragment), found, limit };
    let cols = fragment.canonical.cols;
    if source.rows > 1 && source.src_row_stride < cols {
        return Err(misfit("the width", cols, source.src_row_stride));
    }
    // Indices of a source tensor are u32, and its elements at most 2^32: nothing beyond can be meant.
    let limit = 1_u64 << 32;
    let end = (source.rows - 1)
        .checked_mul(source.src_row_stride)
        .and_then(|rows| rows.checked_add(cols)?.checked_add(source.src_offset))
        .filter(|&end| end <= limit)
        .ok_or_else(|| misfit("a run's first source element", source.src_offset, limit))?;
    debug_assert!(end >= source.src_offset);
    Ok(Run {
        tensor: source.tensor as usize,
        src_offset: index_of(source.src_offset),
        src_row_stride: index_of(source.src_row_stride),
        rows: index_of(source.rows),
        cols: index_of(cols),
        position: index_of(source.box_row * cols),
    })
}

/// A fragment in error messages.
pub(super) fn name_of(fragment: &Fragment) -> String {
    format!("fragment {}", fragment.index)
}

/// Whether single elements of a fragment may be listed.
pub(crate) fn check_listable(fragment: &Fragment) -> Result<(), DeviceError> {
    if fragment.dtype != Dtype::Bf16 {
        return Err(DeviceError::ChangeSet {
            fragment: fragment.index,
            found: format!("dtype {}", fragment.dtype),
            expected: "BF16: others are sent whole".into(),
        });
    }
    Ok(())
}

/// Whether every list says of all its changes how far they moved.
pub(crate) fn check_classes(changes: &[ChangeList]) -> Result<(), DeviceError> {
    for list in changes {
        let found = match list {
            ChangeList::Host(changes) => changes.classes.as_ref().map_or(0, Vec::len),
            ChangeList::Device(changes) if changes.classes() == Classes::LeftOut => 0,
            ChangeList::Device(changes) => changes.count(),
        };
        if found != list.count() {
            let (found, expected) = (found as u64, list.count() as u64);
            return Err(DeviceError::Length { what: "the classes of a list", found, expected });
        }
    }
    Ok(())
}
