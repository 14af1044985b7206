//! Sorted source indices into the row-major positions of a fragment.

use crate::{Changes, DeviceError};
use driftless_layout::{Fragment, SourceRun};
use driftless_numerics::StepClass;
use driftless_types::{ChangeSet, Dtype, index_of};
use std::ops::Range;

/// A source run in this process's index type, checked against its fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) tensor: usize,
    pub(super) src_offset: usize,
    pub(super) src_row_stride: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Row-major position of its first element in the fragment's box.
    pub(super) position: usize,
}

impl Run {
    /// Whether the run's rows follow each other without a gap in the source tensor.
    pub(super) const fn is_contiguous(&self) -> bool {
        self.src_row_stride == self.cols || self.rows == 1
    }

    /// Where its elements lie in the source tensor, gaps included.
    pub(super) const fn source(&self) -> Range<usize> {
        self.src_offset..self.src_offset + (self.rows - 1) * self.src_row_stride + self.cols
    }
}

/// The runs of a fragment that hold elements, checked to tile its box from the first row to the last.
pub(super) fn runs_of(fragment: &Fragment, tensors: usize) -> Result<Vec<Run>, DeviceError> {
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

/// The changes of the source tensors that lie in a fragment, as positions of its box.
pub(super) fn remap(changes: &[Changes], fragment: &Fragment) -> Result<ChangeSet, DeviceError> {
    if fragment.dtype != Dtype::Bf16 {
        return Err(DeviceError::ChangeSet {
            fragment: fragment.index,
            found: format!("dtype {}", fragment.dtype),
            expected: "BF16: others are sent whole".into(),
        });
    }
    let mut positions = Vec::new();
    let mut values = Vec::new();
    for run in runs_of(fragment, changes.len())? {
        let Changes { indices, values: all } = &changes[run.tensor];
        let within = range_in(indices, &run.source());
        let (indices, bits) = (&indices[within.clone()], &all[within]);
        if run.is_contiguous() {
            let shift = run.position.wrapping_sub(run.src_offset);
            positions.extend(indices.iter().map(|&index| position(shift.wrapping_add(index as usize))));
            values.extend_from_slice(bits);
        } else {
            // What falls into these columns if changes are spread evenly: then the lists do not grow in the loop.
            let share = indices.len() / run.src_row_stride.div_ceil(run.cols);
            positions.reserve(share + share / 8);
            values.reserve(share + share / 8);
            for (at, k) in strided(&run, indices) {
                positions.push(position(at));
                values.push(bits[k]);
            }
        }
    }
    debug_assert!(positions.is_sorted_by(|a, b| a < b), "runs are disjoint and ascend, and so do indices");
    Ok(ChangeSet::Sparse { positions, values })
}

/// The classes of those changes.
pub(super) fn remap_classes(
    changes: &[Changes],
    classes: &[Vec<StepClass>],
    fragment: &Fragment,
) -> Result<Vec<StepClass>, DeviceError> {
    let lengths = |(changes, classes): (&Changes, &Vec<StepClass>)| changes.indices.len() == classes.len();
    if changes.len() != classes.len() || !changes.iter().zip(classes).all(lengths) {
        let count = |lists: usize, all: usize| format!("{all} in {lists} tensors");
        return Err(DeviceError::ChangeSet {
            fragment: fragment.index,
            found: count(classes.len(), classes.iter().map(Vec::len).sum()) + " classes",
            expected: count(changes.len(), changes.iter().map(|list| list.indices.len()).sum()),
        });
    }
    let mut mapped = Vec::new();
    for run in runs_of(fragment, changes.len())? {
        let (indices, classes) = (&changes[run.tensor].indices, &classes[run.tensor]);
        let within = range_in(indices, &run.source());
        let (indices, classes) = (&indices[within.clone()], &classes[within]);
        if run.is_contiguous() {
            mapped.extend_from_slice(classes);
        } else {
            mapped.extend(strided(&run, indices).map(|(_, k)| classes[k]));
        }
    }
    Ok(mapped)
}

/// Which of rising indices lie in `source`: that may be far less than all.
fn range_in(indices: &[u32], source: &Range<usize>) -> Range<usize> {
    let before = |bound: usize| indices.partition_point(|&index| (index as usize) < bound);
    before(source.start)..before(source.end)
}

/// The case of a run that is narrower than its source: positions in the fragment, and which index each is of. One
/// division per row that has changes, none per change.
fn strided<'a>(run: &'a Run, indices: &'a [u32]) -> impl Iterator<Item = (usize, usize)> + 'a {
    let mut row_start = run.src_offset;
    let mut row_position = run.position;
    indices.iter().enumerate().filter_map(move |(k, &index)| {
        let mut col = index as usize - row_start;
        if col >= run.src_row_stride {
            let rows = col / run.src_row_stride;
            row_start += rows * run.src_row_stride;
            row_position += rows * run.cols;
            col = index as usize - row_start;
        }
        (col < run.cols).then_some((row_position + col, k))
    })
}

#[expect(clippy::cast_possible_truncation, reason = "runs_of checked that a fragment's elements fit a u32")]
fn position(position: usize) -> u32 {
    debug_assert!(u32::try_from(position).is_ok());
    position as u32
}
