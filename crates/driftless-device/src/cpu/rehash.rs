//! The digest of a whole destination tensor, from nothing but its words.

use super::kernels::Hasher;
use crate::DeviceError;
use crate::fit::{Area, SpanWalk, Target, param_of};
use driftless_layout::{DestBox, DestTensor, ParamMeta};
use driftless_types::Digest;

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
