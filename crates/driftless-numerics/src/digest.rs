//! The element digest: proof of bit identity that is updated in the time of the changes.
//!
//! A parameter's digest has four 32-bit lanes, each a sum over its 16-bit words: word i of a BF16 parameter is
//! element i in canonical order, an FP32 element f is words 2f (low half) and 2f + 1. With blocks of 1024 words,
//!
//! > `D_l = sum over i of s_l(p, i / 1024) * k_l[i % 1024] * sext(word_i)  mod 2^32`, l = 0..3,
//!
//! where `sext` reads a word as signed and all factors are odd.
//! - **DG-1 (any order).** Digests of disjoint sets of words add up to the digest of their union.
//! - **DG-2 (no blind lane).** A single wrong word changes every lane.
//! - **DG-3 (one definition).** Terms, blocks and cursors compute the same sums, and the test vectors are part
//!   of the format.
//!
//! The keys come from BLAKE3 in its `derive_key` mode, from the run's UUID. It guards against accidents; against
//! an attacker stands the signature over BLAKE3 digests.

use driftless_types::{Digest, ParamId, RunId};

/// Words that share their scale factors.
const BLOCK_WORDS: usize = 1024;
const LANES: usize = 4;
/// Beyond every block: words are counted in 64 bits.
const NO_BLOCK: u64 = u64::MAX;
const CONTEXT: &str = "driftless element digest v1";
const KEY_BYTES: usize = 2 * LANES * BLOCK_WORDS;

/// The keys of one run: build them once and share them.
#[derive(Clone, Debug)]
pub struct DigestKeys {
    /// By lane, for sums over consecutive words.
    words: Box<[[i16; BLOCK_WORDS]; LANES]>,
    /// The same by word, so that a scattered word finds its factors in one place.
    by_word: Box<[[i16; LANES]; BLOCK_WORDS]>,
    seeds: [u64; 2],
}

impl DigestKeys {
    /// The keys of a run.
    #[must_use]
    pub fn new(run: RunId) -> Self {
        let mut bytes = [0; KEY_BYTES + 16];
        blake3::Hasher::new_derive_key(CONTEXT).update(&run.0).finalize_xof().fill(&mut bytes);
        let (keys, seeds) = bytes.split_at(KEY_BYTES);
        let mut words = Box::new([[0; BLOCK_WORDS]; LANES]);
        for (key, pair) in words.as_flattened_mut().iter_mut().zip(keys.as_chunks::<2>().0) {
            *key = i16::from_le_bytes(*pair) | 1;
        }
        let mut by_word = Box::new([[0; LANES]; BLOCK_WORDS]);
        for (place, factors) in by_word.iter_mut().enumerate() {
            *factors = std::array::from_fn(|lane| words[lane][place]);
        }
        let seeds = seeds.as_chunks::<8>().0;
        Self { words, by_word, seeds: [u64::from_le_bytes(seeds[0]), u64::from_le_bytes(seeds[1])] }
    }

    /// The keys in the layout that compiled kernels read.
    #[must_use]
    pub fn table(&self) -> DigestTable {
        DigestTable { factors: *self.by_word, seeds: self.seeds }
    }

    /// What one word of a parameter adds to its digest.
    #[must_use]
    pub fn term(&self, p: ParamId, word_index: u64, word: u16) -> Digest {
        let mut cursor = self.cursor(p);
        cursor.add(word_index, word);
        cursor.finish()
    }

    /// The digest of consecutive words of a parameter, the first of which is word `first_word`.
    ///
    /// Inlined, so that a caller compiled for wider vectors gets a sum over wider vectors.
    #[inline(always)]
    #[must_use]
    pub fn words(&self, p: ParamId, first_word: u64, words: &[u16]) -> Digest {
        self.words_by(p, first_word, words, |keys, words| keys.map(|keys| dot(keys, words)))
    }

    /// [`Self::words`], by a caller's own `dots`: the sums of `key * sext(word)` mod 2^32 of each lane, over words
    /// of one block and the keys of their places.
    #[inline(always)]
    #[must_use]
    pub fn words_by(
        &self,
        p: ParamId,
        first_word: u64,
        words: &[u16],
        dots: impl Fn([&[i16]; LANES], &[u16]) -> [u32; LANES],
    ) -> Digest {
        let (mut block, mut offset) = split(first_word);
        let (mut digest, mut rest) = (Digest::ZERO, words);
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.len().min(BLOCK_WORDS - offset));
            let keys = self.words.each_ref().map(|keys| &keys[offset..offset + head.len()]);
            digest += scaled(self.scale(p, block), dots(keys, head));
            (block, offset, rest) = (block + 1, 0, tail);
        }
        digest
    }

    /// A sum over scattered words of one parameter; fastest if they come in ascending order.
    #[must_use]
    pub const fn cursor(&self, p: ParamId) -> DigestCursor<'_> {
        DigestCursor { keys: self, param: p, block: NO_BLOCK, sums: [0; LANES], digest: Digest::ZERO }
    }

    /// Adds a value at a place of some block to the sums of that block.
    #[inline(always)]
    fn accumulate(&self, sums: &mut [u32; LANES], offset: usize, value: i32) {
        for (sum, &key) in sums.iter_mut().zip(&self.by_word[offset]) {
            *sum = sum.wrapping_add(i32::from(key).wrapping_mul(value).cast_unsigned());
        }
    }

    /// The scale factors of a block of 1024 words.
    #[inline]
    fn scale(&self, p: ParamId, block: u64) -> [u32; LANES] {
        let position = ((u64::from(p.0) << 32) | block).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let [first, second] = self.seeds.map(|seed| mix(seed.wrapping_add(position)));
        [low_half(first), low_half(first >> 32), low_half(second), low_half(second >> 32)]
            .map(|half| half | 1)
    }
}

/// The keys of a run in the layout that compiled kernels read: 8,208 bytes, C order, no padding.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DigestTable {
    /// The factors of all lanes, by the place of a word in its block; all odd.
    pub factors: [[i16; LANES]; BLOCK_WORDS],
    /// What the scale factors of blocks are made of.
    pub seeds: [u64; 2],
}

/// A running sum over words of one parameter, in any order.
#[derive(Clone, Debug)]
pub struct DigestCursor<'a> {
    keys: &'a DigestKeys,
    param: ParamId,
    /// The block of the words that came last.
    block: u64,
    /// Sums of that block, not scaled yet.
    sums: [u32; LANES],
    digest: Digest,
}

impl DigestCursor<'_> {
    /// Adds a word.
    #[inline]
    pub fn add(&mut self, word_index: u64, word: u16) {
        self.accumulate(word_index, i32::from(word.cast_signed()));
    }

    /// Adds a word in the place of another: the sum of such calls is new digest minus old.
    #[inline(always)]
    pub fn replace(&mut self, word_index: u64, old: u16, new: u16) {
        self.accumulate(word_index, difference(old, new));
    }

    /// [`Self::replace`] for each of some words, of which `old[i]` gives way to `new[i]` at `word_indices[i]`.
    ///
    /// Inlined, so that a caller compiled for wider vectors multiplies four lanes at once.
    #[inline(always)]
    pub fn replace_all(&mut self, word_indices: &[u64], old: &[u16], new: &[u16]) {
        let mut words = word_indices.iter().zip(old.iter().zip(new)).peekable();
        while let Some(&(&word_index, _)) = words.peek() {
            let (block, _) = split(word_index);
            self.enter(block);
            // In a place of their own, so that they stay in registers over all words of the block.
            let mut sums = self.sums;
            while let Some((&word_index, (&old, &new))) =
                words.next_if(|(index, _)| split(**index).0 == block)
            {
                self.keys.accumulate(&mut sums, split(word_index).1, difference(old, new));
            }
            self.sums = sums;
        }
    }

    /// The sum of all that was added.
    #[must_use]
    pub fn finish(mut self) -> Digest {
        self.flush();
        self.digest
    }

    #[inline(always)]
    fn accumulate(&mut self, word_index: u64, value: i32) {
        let (block, offset) = split(word_index);
        self.enter(block);
        self.keys.accumulate(&mut self.sums, offset, value);
    }

    #[inline(always)]
    fn enter(&mut self, block: u64) {
        if self.block != block {
            self.flush();
            self.block = block;
        }
    }

    #[inline(never)]
    fn flush(&mut self) {
        self.digest += scaled(self.keys.scale(self.param, self.block), self.sums);
        self.sums = [0; LANES];
    }
}

/// The block of a word and its place in it.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the remainder is below 1024")]
const fn split(word_index: u64) -> (u64, usize) {
    (word_index / BLOCK_WORDS as u64, (word_index % BLOCK_WORDS as u64) as usize)
}

/// What a word adds in the place of another, before its factors.
#[inline(always)]
const fn difference(old: u16, new: u16) -> i32 {
    new.cast_signed() as i32 - old.cast_signed() as i32
}

/// The unscaled sum of one lane; a multiply-add over pairs, which compilers vectorize.
#[inline(always)]
fn dot(keys: &[i16], words: &[u16]) -> u32 {
    let products = keys.iter().zip(words).map(|(&key, &word)| i32::from(key) * i32::from(word.cast_signed()));
    products.fold(0i32, i32::wrapping_add).cast_unsigned()
}

#[inline]
fn scaled(scale: [u32; LANES], sums: [u32; LANES]) -> Digest {
    let mut lanes = sums;
    for (lane, factor) in lanes.iter_mut().zip(scale) {
        *lane = lane.wrapping_mul(factor);
    }
    Digest(lanes)
}

/// The finalizer of splitmix64.
#[inline]
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half is asked for")]
const fn low_half(value: u64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Vec<u16> {
        (0..5000u32).map(|i| u16::try_from(i.wrapping_mul(2_654_435_761) >> 16).unwrap()).collect()
    }

    fn counting_run() -> RunId {
        RunId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    }

    #[test]
    fn dg3_test_vectors() {
        let first = DigestKeys::new(RunId([0; 16])).words(ParamId(0), 0, &sample());
        assert_eq!(first, Digest([0x71f3_dac4, 0x9470_2886, 0xfb15_90a0, 0x11bb_e7b0]));
        let second = DigestKeys::new(counting_run()).words(ParamId(7), 0, &sample());
        assert_eq!(second, Digest([0x7e3c_b9f6, 0x9e8a_31cc, 0x64e7_06f4, 0x2155_cbbe]));
    }

    #[test]
    fn dg2_one_wrong_word_changes_every_lane() {
        let keys = DigestKeys::new(counting_run());
        let mut words = sample();
        let right = keys.words(ParamId(3), 0, &words);
        for index in (0..words.len()).step_by(37) {
            for flip in [1, 0x8000, 0xffff] {
                words[index] ^= flip;
                let wrong = keys.words(ParamId(3), 0, &words);
                assert!(
                    right.0.iter().zip(wrong.0).all(|(a, b)| *a != b),
                    "word {index} flipped by {flip:x}"
                );
                words[index] ^= flip;
            }
        }
    }

    #[test]
    fn parameters_and_blocks_have_keys_of_their_own() {
        let keys = DigestKeys::new(counting_run());
        assert_ne!(keys.term(ParamId(0), 5, 1), keys.term(ParamId(1), 5, 1));
        assert_ne!(keys.term(ParamId(0), 5, 1), keys.term(ParamId(0), 5 + 1024, 1));
        assert_ne!(keys.term(ParamId(0), 5, 1), keys.term(ParamId(0), 5 + (1 << 40), 1));
    }

    proptest! {
        #[test]
        fn dg1_any_cut_in_any_order_sums_to_the_whole(first in 0u64..5000, cuts in prop::collection::vec(0usize..5000, 0..5)) {
            let (keys, words) = (DigestKeys::new(counting_run()), sample());
            let mut cuts = [cuts, vec![0, words.len()]].concat();
            cuts.sort_unstable();
            let shards = cuts.windows(2).rev();
            let sum = shards.map(|cut| keys.words(ParamId(2), first + cut[0] as u64, &words[cut[0]..cut[1]])).sum::<Digest>();
            prop_assert_eq!(sum, keys.words(ParamId(2), first, &words));
        }

        #[test]
        fn dg3_terms_and_blocks_agree(first in 0u64..(1 << 40), length in 0usize..2500) {
            let (keys, words) = (DigestKeys::new(counting_run()), sample());
            let terms = words[..length].iter().zip(first..).map(|(&word, index)| keys.term(ParamId(9), index, word));
            prop_assert_eq!(terms.sum::<Digest>(), keys.words(ParamId(9), first, &words[..length]));
        }

        #[test]
        fn dg3_replacing_words_keeps_up_with_a_rehash(changes in prop::collection::vec((0usize..5000, any::<u16>()), 0..200)) {
            let (keys, mut words) = (DigestKeys::new(counting_run()), sample());
            let before = keys.words(ParamId(1), 0, &words);
            let mut cursor = keys.cursor(ParamId(1));
            for (index, new) in changes {
                cursor.replace(index as u64, words[index], new);
                words[index] = new;
            }
            let places: Vec<u64> = (0..5000).collect();
            let old: Vec<u16> = words.iter().map(|word| word.rotate_left(3)).collect();
            let mut at_once = keys.cursor(ParamId(1));
            at_once.replace_all(&places, &old, &words);
            prop_assert_eq!(keys.words(ParamId(1), 0, &old) + at_once.finish(), keys.words(ParamId(1), 0, &words));
            prop_assert_eq!(before + cursor.finish(), keys.words(ParamId(1), 0, &words));
        }
    }
}
