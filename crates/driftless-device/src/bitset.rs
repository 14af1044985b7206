//! One bit per element: which elements may have changed, whoever found that out.

use std::ops::Range;

/// A set of elements of one source tensor, one bit each.
///
/// ```
/// use driftless_device::Bitset;
/// let mut set = Bitset::new(100);
/// set.insert_all(&[3, 64, 99]);
/// assert_eq!(set.indices().collect::<Vec<_>>(), [3, 64, 99]);
/// assert_eq!((set.count(), set.bytes()), (3, 16));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bitset {
    words: Vec<u64>,
    len: usize,
}

impl Bitset {
    /// The empty set of `len` possible elements.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len }
    }

    /// How many elements there could be.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no element is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// How many elements are in it.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Memory of the bits, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Puts one element in.
    ///
    /// # Panics
    /// If the index is not below [`Self::len`].
    pub fn insert(&mut self, index: usize) {
        assert!(index < self.len, "index {index} of {} elements", self.len);
        self.words[index / 64] |= 1 << (index % 64);
    }

    /// Puts elements in, by index.
    ///
    /// # Panics
    /// If an index is not below [`Self::len`]: indices come from a pass over the same tensor.
    pub fn insert_all(&mut self, indices: &[u32]) {
        for &index in indices {
            let index = index as usize;
            assert!(index < self.len, "index {index} of {} elements", self.len);
            self.words[index / 64] |= 1 << (index % 64);
        }
    }

    /// Puts consecutive elements in: those of `first..` whose bit is set in `marks`, the lowest bit of the first word
    /// first.
    ///
    /// # Panics
    /// If a set bit stands for an element at or above [`Self::len`].
    pub fn insert_bits(&mut self, first: usize, marks: &[u64]) {
        let (word, shift) = (first / 64, first % 64);
        for (at, &marks) in (word..).zip(marks).filter(|&(_, &marks)| marks != 0) {
            let last = 64 * (at - word) + 63 - marks.leading_zeros() as usize;
            assert!(first + last < self.len, "index {} of {} elements", first + last, self.len);
            self.words[at] |= marks << shift;
            let carried = if shift == 0 { 0 } else { marks >> (64 - shift) };
            if carried != 0 {
                self.words[at + 1] |= carried;
            }
        }
    }

    /// Puts all elements of a range in.
    ///
    /// # Panics
    /// If the range ends above [`Self::len`].
    pub fn insert_range(&mut self, elements: Range<usize>) {
        assert!(elements.end <= self.len, "index {} of {} elements", elements.end, self.len);
        for index in elements {
            self.words[index / 64] |= 1 << (index % 64);
        }
    }

    /// The bits of the `len` elements from `first` on, into the words of `out` that they fill; bits of the last word
    /// beyond `len` are zero.
    ///
    /// # Panics
    /// If the elements reach beyond [`Self::len`], or the bits beyond `out`.
    pub fn copy_bits(&self, first: usize, len: usize, out: &mut [u64]) {
        assert!(first + len <= self.len && len <= 64 * out.len(), "{len} bits from {first} of {}", self.len);
        let (word, shift) = (first / 64, first % 64);
        let filled = len.div_ceil(64);
        for (at, bits) in (word..).zip(&mut out[..filled]) {
            let next = self.words.get(at + 1).copied().unwrap_or_default();
            *bits = self.words[at] >> shift | if shift == 0 { 0 } else { next << (64 - shift) };
        }
        if !len.is_multiple_of(64) {
            out[filled - 1] &= u64::MAX >> (64 - len % 64);
        }
    }

    /// Takes every element out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The elements in it, ascending.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.words).flat_map(|(at, &word)| Ones(word).map(move |bit| at * 64 + bit))
    }

    /// The bits, 64 elements a word, the lowest bit first.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The bits, to be written by an optimizer; bits at and above [`Self::len`] must stay zero.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

/// The ones of a word, ascending.
struct Ones(u64);

impl Iterator for Ones {
    type Item = u32;
    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_of_bits_are_their_elements(
            len in 1_usize..400, start: prop::sample::Index, count: prop::sample::Index, marks: [u64; 6], old: [u64; 7],
        ) {
            let first = start.index(len);
            let count = count.index(len - first) + 1;
            let is_in = |words: &[u64], k: usize| words[k / 64] >> (k % 64) & 1 == 1;
            let mut marks = marks[..count.div_ceil(64).min(6)].to_vec();
            let count = count.min(64 * marks.len());
            if !count.is_multiple_of(64) {
                *marks.last_mut().expect("some") &= u64::MAX >> (64 - count % 64);
            }
            let olds: Vec<u32> = (0..).zip(0..len).filter(|&(_, k)| is_in(&old, k)).map(|(index, _)| index).collect();
            let mut set = Bitset::new(len);
            set.insert_all(&olds);
            set.insert_bits(first, &marks);
            let marked = |k: usize| k >= first && k < first + count && is_in(&marks, k - first);
            for k in 0..len {
                prop_assert_eq!(is_in(set.words(), k), is_in(&old, k) || marked(k), "element {}", k);
            }
            let mut out = [u64::MAX; 7];
            set.copy_bits(first, count, &mut out);
            for k in 0..count.next_multiple_of(64) {
                prop_assert_eq!(is_in(&out, k), k < count && is_in(set.words(), first + k), "bit {}", k);
            }
            set.insert_range(first..first + count);
            prop_assert!((first..first + count).all(|k| is_in(set.words(), k)));
        }
    }
}
