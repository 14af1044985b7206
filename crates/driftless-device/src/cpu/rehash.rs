//! The digest of a whole destination tensor, from nothing but its words.

use super::kernels::Hasher;
use super::spans::{Area, SpanWalk, param_of};
use crate::DeviceError;
use driftless_layout::{DestBox, DestTensor, ParamMeta};
use driftless_types::{Digest, index_of};

/// The sum over the boxes of a destination tensor; padding lies in none of them.
pub(super) fn rehash(
    hasher: Hasher<'_>,
    words: &[u16],
    tensor: &DestTensor,
    params: &[ParamMeta],
) -> Result<Digest, DeviceError> {
    tensor.boxes.iter().map(|dest| rehash_box(hasher, words, tensor, dest, params)).sum()
}

fn rehash_box(
    hasher: Hasher<'_>,
    words: &[u16],
    tensor: &DestTensor,
    dest: &DestBox,
    params: &[ParamMeta],
) -> Result<Digest, DeviceError> {
    let area = Area::new(&dest.canonical, param_of(params, dest.param)?.cols(), &|| tensor.name.clone())?;
    let words_each = tensor.dtype.words();
    let target = Target::new(&area, dest.dst_offset, dest.dst_row_stride, words.len() / words_each, &|| {
        tensor.name.clone()
    })?;
    let mut walk = SpanWalk::new(area, &[], &[]);
    let mut digest = Digest::ZERO;
    let mut k = 0;
    while k < area.elements() {
        let start = target.element(&area, k);
        let span = walk.next_span(target.contiguous(&area, k));
        let span_words = &words[start * words_each..(start + span.len) * words_each];
        digest += hasher.words(dest.param, span.element * words_each as u64, span_words);
        k += span.len;
    }
    Ok(digest)
}

/// Where a box lies in a destination tensor, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) offset: usize,
    pub(super) row_stride: usize,
}

impl Target {
    /// A place for the box `area` in a tensor of `elements`.
    pub(super) fn new(
        area: &Area,
        dst_offset: u64,
        dst_row_stride: u64,
        elements: usize,
        name: &dyn Fn() -> String,
    ) -> Result<Self, DeviceError> {
        let misfit = |what, found, limit| DeviceError::Misfit { what, name: name(), found, limit };
        if area.rows > 1 && dst_row_stride < area.cols as u64 {
            return Err(misfit("the width", area.cols as u64, dst_row_stride));
        }
        if area.elements() == 0 {
            return Ok(Self { offset: 0, row_stride: area.cols });
        }
        let end = (area.rows as u64 - 1)
            .saturating_mul(dst_row_stride)
            .saturating_add(dst_offset)
            .saturating_add(area.cols as u64);
        if end > elements as u64 {
            return Err(misfit("the end in its tensor", end, elements as u64));
        }
        // The stride of a single row is never used, and might be anything.
        let row_stride = if area.rows > 1 { dst_row_stride } else { area.cols as u64 };
        Ok(Self { offset: index_of(dst_offset), row_stride: index_of(row_stride) })
    }

    /// The element of the tensor at row-major position `k` of the box.
    pub(super) const fn element(&self, area: &Area, k: usize) -> usize {
        self.offset + k / area.cols * self.row_stride + k % area.cols
    }

    /// How many elements from position `k` on follow each other in the tensor.
    pub(super) const fn contiguous(&self, area: &Area, k: usize) -> usize {
        if self.row_stride == area.cols { area.elements() - k } else { area.cols - k % area.cols }
    }
}
