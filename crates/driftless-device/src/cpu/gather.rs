//! A whole fragment out of the masters.

use super::kernels::{Kernels, Prefetch};
use crate::DeviceError;
use crate::fit::{Run, runs_within};
use driftless_layout::Fragment;
use driftless_numerics::Cast;
use driftless_types::{ChangeSet, Dtype, index_of};

/// Every element of a fragment, in order, as served words.
pub(super) fn gather(
    kernels: &Kernels,
    masters: &[&[f32]],
    fragment: &Fragment,
    cast: Cast,
) -> Result<ChangeSet, DeviceError> {
    let runs = runs_within(fragment, masters.iter().map(|master| master.len()))?;
    let mut words = vec![0; index_of(fragment.elements()) * fragment.dtype.words()];
    let mut rest = &mut words[..];
    for row in runs.iter().flat_map(|run| rows_of(run, masters[run.tensor])) {
        let served;
        (served, rest) = rest.split_at_mut(row.len() * fragment.dtype.words());
        match fragment.dtype {
            Dtype::Bf16 => {
                (kernels.cast)(cast, Prefetch::Here, row, served);
            }
            Dtype::Fp32 => split(row, served),
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

/// FP32 elements as words, low half first.
#[expect(clippy::cast_possible_truncation, reason = "halves of 32 bits")]
pub(super) fn split(elements: &[f32], words: &mut [u16]) {
    for (pair, x) in words.as_chunks_mut::<2>().0.iter_mut().zip(elements) {
        let bits = x.to_bits();
        *pair = [bits as u16, (bits >> 16) as u16];
    }
}
