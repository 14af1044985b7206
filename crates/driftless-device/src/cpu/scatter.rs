//! Change sets into live weights, the old words kept aside.

use super::kernels::Hasher;
use crate::fit::{FragmentFit, SpanWalk};
use crate::{DeviceError, Scattered, UndoLog};
use driftless_layout::Fragment;
use driftless_types::{ChangeSet, Digest, Dtype};

/// Elements that are noted in the undo log, and then overwritten, together: their words stay in the first-level cache.
const BLOCK_ELEMENTS: usize = 1024;

/// Writes `changes` of `fragment` into the tensor `dst`.
pub(super) fn apply(
    hasher: Hasher<'_>,
    dst: &mut [u16],
    fragment: &Fragment,
    param_cols: u64,
    changes: &ChangeSet,
    undo: &mut UndoLog,
) -> Result<Scattered, DeviceError> {
    // DV-3: both checks come before any write.
    let fit = FragmentFit::new(dst.len(), fragment, param_cols)?;
    fit.check(changes)?;
    let scatter = Scatter { fit, hasher };
    Ok(match changes {
        ChangeSet::All(words) => scatter.write_all(dst, words, undo),
        ChangeSet::Sparse { positions, values } => scatter.write_sparse(dst, positions, values, undo),
    })
}

/// The words of `fragment` in the tensor `words` at some of its positions.
pub(super) fn read_at(
    words: &[u16],
    fragment: &Fragment,
    param_cols: u64,
    positions: &[u32],
) -> Result<Vec<u16>, DeviceError> {
    let fit = FragmentFit::new(words.len(), fragment, param_cols)?;
    fit.check_positions(positions)?;
    Ok(positions.iter().map(|&position| words[fit.target.element(&fit.area, position as usize)]).collect())
}

/// A fragment in its place, and the run's digests.
struct Scatter<'a> {
    fit: FragmentFit<'a>,
    hasher: Hasher<'a>,
}

impl Scatter<'_> {
    fn write_all(&self, dst: &mut [u16], words: &[u16], undo: &mut UndoLog) -> Scattered {
        let each = self.fit.fragment.dtype.words();
        let mut walk = SpanWalk::new(self.fit.area, &[], &[]);
        let mut scattered = Scattered::default();
        let mut k = 0;
        while k < self.fit.area.elements() {
            let len = self.fit.target.contiguous(&self.fit.area, k).min(BLOCK_ELEMENTS);
            let start = self.fit.target.element(&self.fit.area, k) * each;
            let new = &words[k * each..(k + len) * each];
            let old = &mut dst[start..start + len * each];
            scattered.changed += count_changed(self.fit.fragment.dtype, old, new);
            scattered.delta += self.digest_delta(&mut walk, old, new);
            // DV-2: in the log before it is overwritten.
            undo.record_run(start, old);
            old.copy_from_slice(new);
            k += len;
        }
        scattered
    }

    /// The digest of the next words of the box less that of the words that stood there.
    fn digest_delta(&self, walk: &mut SpanWalk<'_>, old: &[u16], new: &[u16]) -> Digest {
        let each = self.fit.fragment.dtype.words();
        let mut delta = Digest::ZERO;
        let mut done = 0;
        while done < new.len() {
            let span = walk.next_span((new.len() - done) / each);
            let (first_word, words) = (span.element * each as u64, done..done + span.len * each);
            delta += self.hasher.words(self.fit.fragment.param, first_word, &new[words.clone()]);
            delta -= self.hasher.words(self.fit.fragment.param, first_word, &old[words.clone()]);
            done = words.end;
        }
        delta
    }

    fn write_sparse(
        &self,
        dst: &mut [u16],
        positions: &[u32],
        values: &[u16],
        undo: &mut UndoLog,
    ) -> Scattered {
        let mut cursor = self.hasher.keys.cursor(self.fit.fragment.param);
        let mut places = PlaceWalk { scatter: self, row: 0, row_start: 0 };
        let mut targets = [0; BLOCK_ELEMENTS];
        let mut words = [0; BLOCK_ELEMENTS];
        let mut old = [0; BLOCK_ELEMENTS];
        let mut changed = 0;
        for (positions, values) in positions.chunks(BLOCK_ELEMENTS).zip(values.chunks(BLOCK_ELEMENTS)) {
            for ((&position, target), word) in positions.iter().zip(&mut targets).zip(&mut words) {
                (*target, *word) = places.place(position as usize);
            }
            let (targets, old) = (&targets[..positions.len()], &mut old[..positions.len()]);
            // DV-2: in the log before they are overwritten.
            undo.record_scattered(dst, targets);
            for ((&target, old), &new) in targets.iter().zip(&mut *old).zip(values) {
                *old = std::mem::replace(&mut dst[target], new);
            }
            changed += old.iter().zip(values).filter(|(old, new)| old != new).count() as u64;
            (self.hasher.kernels.replace)(&mut cursor, &words, old, values);
        }
        Scattered { changed, delta: cursor.finish() }
    }
}

/// Rising positions of a box, each taken to its place: one division per row that has changes.
struct PlaceWalk<'a> {
    scatter: &'a Scatter<'a>,
    row: usize,
    row_start: usize,
}

impl PlaceWalk<'_> {
    /// Where a BF16 element lies in the tensor, and its canonical word.
    #[inline]
    fn place(&mut self, position: usize) -> (usize, u64) {
        let FragmentFit { area, target, .. } = &self.scatter.fit;
        let mut col = position - self.row_start;
        if col >= area.cols {
            let rows = col / area.cols;
            self.row += rows;
            self.row_start += rows * area.cols;
            col = position - self.row_start;
        }
        (target.offset + self.row * target.row_stride + col, area.canonical(self.row, col))
    }
}

/// How many elements differ.
fn count_changed(dtype: Dtype, old: &[u16], new: &[u16]) -> u64 {
    let count = match dtype {
        Dtype::Bf16 => old.iter().zip(new).filter(|(old, new)| old != new).count(),
        Dtype::Fp32 => {
            let (old, new) = (old.as_chunks::<2>().0, new.as_chunks::<2>().0);
            old.iter().zip(new).filter(|(old, new)| old != new).count()
        }
    };
    count as u64
}
