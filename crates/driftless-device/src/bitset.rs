//! One bit per element: which elements may have changed, whoever found that out.

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
