//! A whole fragment out of the masters.

use super::remap::{Run, name_of, runs_of};
use crate::DeviceError;
use driftless_layout::Fragment;
use driftless_numerics::bf16;
use driftless_types::{ChangeSet, Dtype, index_of};

/// Every element of a fragment, in order, as served words.
pub(super) fn gather(masters: &[&[f32]], fragment: &Fragment) -> Result<ChangeSet, DeviceError> {
    let runs = runs_of(fragment, masters.len())?;
    for run in &runs {
        let (found, limit) = (run.source().end as u64, masters[run.tensor].len() as u64);
        if found > limit {
            return Err(DeviceError::Misfit { what: "a run's end", name: name_of(fragment), found, limit });
        }
    }
    let mut words = Vec::with_capacity(index_of(fragment.elements()) * fragment.dtype.words());
    for run in &runs {
        for row in rows_of(run, masters[run.tensor]) {
            push_served(fragment.dtype, row, &mut words);
        }
    }
    Ok(ChangeSet::All(words))
}

/// The rows of a run, or all of them as one where nothing lies between.
fn rows_of<'a>(run: &Run, master: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
    let (stride, width) = if run.is_contiguous() {
        (run.rows * run.cols, run.rows * run.cols)
    } else {
        (run.src_row_stride, run.cols)
    };
    master[run.source()].chunks(stride).map(move |row| &row[..width])
}

fn push_served(dtype: Dtype, row: &[f32], words: &mut Vec<u16>) {
    match dtype {
        Dtype::Bf16 => words.extend(row.iter().map(|&x| bf16::cast(x))),
        Dtype::Fp32 => words.extend(row.iter().flat_map(|&x| halves(x))),
    }
}

/// The two words of a served FP32 element, low half first.
#[expect(clippy::cast_possible_truncation, reason = "halves of 32 bits")]
pub(super) const fn halves(x: f32) -> [u16; 2] {
    let bits = x.to_bits();
    [bits as u16, (bits >> 16) as u16]
}
