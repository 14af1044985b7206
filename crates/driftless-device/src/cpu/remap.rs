//! Sorted source indices into the row-major positions of a fragment.

use crate::fit::{Run, check_listable, runs_of};
use crate::{Changes, ClassedSet, DeviceError};
use driftless_layout::Fragment;
use driftless_numerics::StepClass;
use std::ops::Range;

/// The changes of the source tensors that lie in a fragment: positions in its box, and values.
pub(super) fn remap(changes: &[&Changes], fragment: &Fragment) -> Result<(Vec<u32>, Vec<u16>), DeviceError> {
    check_listable(fragment)?;
    let mut positions = Vec::new();
    let mut values = Vec::new();
    for run in runs_of(fragment, changes.len())? {
        let Changes { indices, values: all, .. } = changes[run.tensor];
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
    Ok((positions, values))
}

/// The same with classes, of which each list has as many as changes.
pub(super) fn remap_classed(changes: &[&Changes], fragment: &Fragment) -> Result<ClassedSet, DeviceError> {
    let (positions, values) = remap(changes, fragment)?;
    let classes = classes(changes, fragment)?;
    Ok(ClassedSet { positions, values, classes })
}

fn classes(changes: &[&Changes], fragment: &Fragment) -> Result<Vec<StepClass>, DeviceError> {
    let mut mapped = Vec::new();
    for run in runs_of(fragment, changes.len())? {
        let Changes { indices, classes, .. } = changes[run.tensor];
        let classes = classes.as_deref().unwrap_or_default();
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
