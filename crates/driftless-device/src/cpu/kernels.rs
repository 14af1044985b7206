//! The innermost loops over one block: plain code that the compiler turns into vector code, compiled once per
//! instruction set and chosen once at start.
//!
//! Rust neither contracts nor reorders floating point, so every variant gives the same bits: they differ in speed alone.
#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "prefetches, and calls of code for instruction sets that were found at start"
    )
)]

use driftless_numerics::{Cast, DigestCursor, DigestKeys, MasterAudit, Rule, is_fit};
use driftless_types::{Digest, ParamId};

/// Elements that are judged, listed and digested together: their bits and masks fit the first-level cache.
pub(super) const BLOCK_ELEMENTS: usize = 1024;

const GROUP: usize = 64;

#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;

/// One bit per element of a block, bit `k % 64` of word `k / 64`: set if the element must be sent.
pub(super) type Mask = [u64; BLOCK_ELEMENTS / GROUP];

/// The optimizer's state of a block after a step: three slices of one length.
#[derive(Clone, Copy)]
pub(super) struct Stepped<'a> {
    pub(super) master: &'a [f32],
    pub(super) exp_avg: &'a [f32],
    pub(super) exp_avg_sq: &'a [f32],
}

/// Which loop asks for the masters of the next block: the one that has the most to compute besides, so that memory is
/// never idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefetch {
    /// The cast.
    Here,
    /// The judge.
    Elsewhere,
}

/// The loops of one instruction set, over blocks of at most [`BLOCK_ELEMENTS`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    /// Its name, for logs.
    pub(super) name: &'static str,
    /// Served BF16 bits of masters, and what these masters are to the next step's rule.
    pub(super) cast: fn(Cast, Prefetch, &[f32], &mut [u16]) -> MasterAudit,
    /// Marks what the rule does not certify; says whether all updates are within its bound.
    pub(super) invert: fn(&Rule, Stepped<'_>, &mut Mask) -> bool,
    /// Marks what differs from the previous bits, and replaces them.
    pub(super) compare: fn(&[u16], &mut [u16], &mut Mask),
    /// Marks what differs from the previous bits.
    pub(super) differ: fn(&[u16], &[u16], &mut Mask),
    /// The digest of consecutive words of a parameter.
    pub(super) digest: fn(&DigestKeys, ParamId, u64, &[u16]) -> Digest,
    /// Puts words in the place of others in a running digest.
    pub(super) replace: fn(&mut DigestCursor<'_>, &[u64], &[u16], &[u16]),
}

impl Kernels {
    /// The portable loops.
    pub(super) const PORTABLE: Self = Self { name: "cpu", cast, invert, compare, differ, digest, replace };

    /// The widest instruction set of this machine.
    pub(super) fn detect() -> Self {
        Self::available().into_iter().flatten().next().unwrap_or(Self::PORTABLE)
    }

    /// The same loops, but no digests.
    pub(super) fn without_digests(self) -> Self {
        Self { digest: |_, _, _, _| Digest::ZERO, replace: |_, _, _, _| (), ..self }
    }

    /// Those of this machine beside the portable one, widest first.
    pub(super) fn available() -> [Option<Self>; 2] {
        #[cfg(target_arch = "x86_64")]
        return x86::available();
        #[cfg(not(target_arch = "x86_64"))]
        [None; 2]
    }
}

/// A run's digest keys and the loop that uses them.
#[derive(Clone, Copy)]
pub(super) struct Hasher<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) keys: &'a DigestKeys,
}

impl Hasher<'_> {
    /// The digest of consecutive words of a parameter, the first of which is number `first_word`.
    pub(super) fn words(&self, param: ParamId, first_word: u64, words: &[u16]) -> Digest {
        (self.kernels.digest)(self.keys, param, first_word, words)
    }
}

#[inline(always)]
fn cast(rounding: Cast, prefetch: Prefetch, x: &[f32], bits: &mut [u16]) -> MasterAudit {
    // Each case as a literal, so that the inlined loop has no branch left in it.
    let are_fit = match (rounding, prefetch) {
        (Cast::NearestEven, Prefetch::Here) => cast_block(Cast::NearestEven, Prefetch::Here, x, bits),
        (Cast::NearestEven, Prefetch::Elsewhere) => {
            cast_block(Cast::NearestEven, Prefetch::Elsewhere, x, bits)
        }
        (Cast::HalfAway, prefetch) => cast_block(Cast::HalfAway, prefetch, x, bits),
    };
    if are_fit { MasterAudit::Fit } else { MasterAudit::Unfit }
}

#[inline(always)]
fn cast_block(rounding: Cast, prefetch: Prefetch, x: &[f32], bits: &mut [u16]) -> bool {
    let mut are_fit = true;
    let (xs, x) = x.as_chunks::<GROUP>();
    let (groups, bits) = bits.as_chunks_mut::<GROUP>();
    for (bits, x) in groups.iter_mut().zip(xs) {
        if prefetch == Prefetch::Here {
            prefetch_next_block(x);
        }
        are_fit &= cast_group(rounding, x, bits);
    }
    are_fit & cast_group(rounding, x, bits)
}

/// Casts some masters; says whether all of them are fit.
#[inline(always)]
fn cast_group(rounding: Cast, x: &[f32], bits: &mut [u16]) -> bool {
    let mut are_fit = true;
    for (bits, &x) in bits.iter_mut().zip(x) {
        *bits = rounding.bits(x);
        are_fit &= is_fit(x);
    }
    are_fit
}

/// Asks for what lies one block after a group: hardware prefetchers stop at the end of a page, which is a block long.
#[inline(always)]
fn prefetch_next_block<T>(group: &[T; GROUP]) {
    #[cfg(target_arch = "x86_64")]
    for line in group.chunks(CACHE_LINE_BYTES / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let ahead = line.as_ptr().wrapping_add(BLOCK_ELEMENTS);
        // SAFETY: a prefetch is a hint. It loads nothing and faults nowhere, even beyond the end of the slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = group;
}

#[inline(always)]
fn invert(rule: &Rule, block: Stepped<'_>, mask: &mut Mask) -> bool {
    // Groups of known length, so that the loops inside have no remainder.
    let (xs, x) = block.master.as_chunks::<GROUP>();
    let (ms, m) = block.exp_avg.as_chunks::<GROUP>();
    let (vs, v) = block.exp_avg_sq.as_chunks::<GROUP>();
    let mut all_within = true;
    for (((marks, x), m), v) in mask.iter_mut().zip(xs).zip(ms).zip(vs) {
        prefetch_next_block(x);
        prefetch_next_block(m);
        prefetch_next_block(v);
        let (send, within) = rule.send_mask_and_bound(x, m, v);
        *marks = send;
        all_within &= within;
    }
    if !x.is_empty() {
        let (send, within) = rule.send_mask_and_bound(x, m, v);
        mask[xs.len()] = send;
        all_within &= within;
    }
    all_within
}

#[inline(always)]
fn compare(bits: &[u16], previous: &mut [u16], mask: &mut Mask) {
    let (groups, bits) = bits.as_chunks::<GROUP>();
    let (old_groups, previous) = previous.as_chunks_mut::<GROUP>();
    for ((marks, bits), previous) in mask.iter_mut().zip(groups).zip(old_groups) {
        prefetch_next_block(previous);
        *marks = differences(bits, previous);
        *previous = *bits;
    }
    if !bits.is_empty() {
        mask[groups.len()] = differences(bits, previous);
        previous.copy_from_slice(bits);
    }
}

#[inline(always)]
fn differ(bits: &[u16], previous: &[u16], mask: &mut Mask) {
    let (groups, bits) = bits.as_chunks::<GROUP>();
    let (old_groups, previous) = previous.as_chunks::<GROUP>();
    for ((marks, bits), previous) in mask.iter_mut().zip(groups).zip(old_groups) {
        prefetch_next_block(previous);
        *marks = differences(bits, previous);
    }
    if !bits.is_empty() {
        mask[groups.len()] = differences(bits, previous);
    }
}

/// One bit for each of at most 64 words that differ.
#[inline(always)]
fn differences(new: &[u16], old: &[u16]) -> u64 {
    let mut flags = [0; GROUP];
    for ((flag, new), old) in flags.iter_mut().zip(new).zip(old) {
        *flag = u8::from(new != old);
    }
    pack(&flags)
}

#[inline(always)]
fn replace(cursor: &mut DigestCursor<'_>, word_indices: &[u64], old: &[u16], new: &[u16]) {
    cursor.replace_all(word_indices, old, new);
}

/// The sum of products of one lane.
#[cfg(target_arch = "x86_64")]
fn dot(keys: &[i16], words: &[u16]) -> u32 {
    let products = keys.iter().zip(words).map(|(&key, &word)| i32::from(key) * i32::from(word.cast_signed()));
    products.fold(0, i32::wrapping_add).cast_unsigned()
}

#[inline(always)]
fn digest(keys: &DigestKeys, param: ParamId, first_word: u64, words: &[u16]) -> Digest {
    keys.words(param, first_word, words)
}

/// Bytes that are 0 or 1 as bits, the first one lowest.
#[inline(always)]
fn pack(flags: &[u8; GROUP]) -> u64 {
    // The product moves bit 8k of the factor to bit 56 + k, and no two of its terms meet.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut bits = 0;
    for (byte, flags) in flags.as_chunks::<8>().0.iter().enumerate() {
        bits |= (u64::from_le_bytes(*flags).wrapping_mul(GATHER) >> 56) << (8 * byte);
    }
    bits
}

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests {
    use super::*;
    use driftless_numerics::{Family, GroupStep, Hyperparameters};
    use driftless_types::{Fqn, RunId};

    /// Bit patterns of every kind: a step through all exponents, both signs, NaN and infinities among them.
    fn patterns(count: u32, stride: u32) -> Vec<f32> {
        (0..count).map(|k| f32::from_bits(k.wrapping_mul(stride).rotate_left(k % 7))).collect()
    }

    /// Moments of a usual size, so that the rule has something to decide.
    fn usual(count: u32, scale: f32) -> Vec<f32> {
        (0..count).map(|k| scale * f32::from_bits(0x3f80_0000 | (k.wrapping_mul(0x9E37_79B9) >> 9))).collect()
    }

    fn rule(family: Family) -> Rule {
        let hyper = Hyperparameters { lr: 1e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
        Rule::new(&Fqn::from("w"), family, &GroupStep::new(9, hyper)).expect("a usual step")
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_scalar_rule() {
        for count in [0, 1, 63, 64, 65, 1000, 1024] {
            let wild =
                [patterns(count, 0x0123_4567), patterns(count, 0x0765_4321), patterns(count, 0x0bad_cafe)];
            let tame = [usual(count, 0.01), usual(count, 1e-4), usual(count, 1e-8)];
            for kernels in Kernels::available().into_iter().flatten().chain([Kernels::PORTABLE]) {
                for [x, m, v] in [&wild, &tame] {
                    let master_bits = check_cast(&kernels, x);
                    check_compare(&kernels, &master_bits);
                    check_digest(&kernels, &master_bits);
                    let block = Stepped { master: x, exp_avg: m, exp_avg_sq: v };
                    Family::ALL.iter().for_each(|&family| check_invert(&kernels, &rule(family), block));
                }
            }
        }
    }

    fn check_cast(kernels: &Kernels, x: &[f32]) -> Vec<u16> {
        let mut bits = vec![0; x.len()];
        for cast in [Cast::HalfAway, Cast::NearestEven] {
            let audit = (kernels.cast)(cast, Prefetch::Elsewhere, x, &mut bits);
            assert_eq!(audit, (kernels.cast)(cast, Prefetch::Here, x, &mut bits), "{}", kernels.name);
            assert!(bits.iter().zip(x).all(|(&bits, &x)| bits == cast.bits(x)), "{}", kernels.name);
            assert_eq!(audit, MasterAudit::of(x), "{}", kernels.name);
        }
        bits
    }

    fn check_invert(kernels: &Kernels, rule: &Rule, block: Stepped<'_>) {
        let mut mask = Mask::default();
        let all_within = (kernels.invert)(rule, block, &mut mask);
        let mut wanted = (Mask::default(), true);
        for k in 0..block.master.len() {
            let (x, m, v) = (block.master[k], block.exp_avg[k], block.exp_avg_sq[k]);
            wanted.0[k / GROUP] |= u64::from(!rule.is_certified_unchanged(x, m, v)) << (k % GROUP);
            wanted.1 &= rule.update_within_bound(m, v);
        }
        assert_eq!((mask, all_within), wanted, "{}", kernels.name);
    }

    fn check_compare(kernels: &Kernels, bits: &[u16]) {
        let mut previous: Vec<u16> =
            bits.iter().zip(0_u16..).map(|(bits, k)| bits ^ u16::from(k % 3 == 0)).collect();
        let (mut mask, mut marked) = (Mask::default(), Mask::default());
        (kernels.differ)(bits, &previous, &mut marked);
        (kernels.compare)(bits, &mut previous, &mut mask);
        assert_eq!(mask, marked, "{}", kernels.name);
        assert_eq!(previous, bits, "{}", kernels.name);
        for k in 0..BLOCK_ELEMENTS {
            let is_marked = mask[k / GROUP] >> (k % GROUP) & 1 == 1;
            assert_eq!(is_marked, k < bits.len() && k % 3 == 0, "{} at {k}", kernels.name);
        }
    }

    fn check_digest(kernels: &Kernels, words: &[u16]) {
        let keys = DigestKeys::new(RunId([5; 16]));
        let terms = words.iter().zip(700..).map(|(&word, at)| keys.term(ParamId(3), at, word));
        assert_eq!((kernels.digest)(&keys, ParamId(3), 700, words), terms.sum(), "{}", kernels.name);
        let mut cursor = keys.cursor(ParamId(3));
        let (places, old): (Vec<u64>, Vec<u16>) = (700..).zip(words).map(|(at, word)| (at, !word)).unzip();
        (kernels.replace)(&mut cursor, &places, &old, words);
        let delta =
            (kernels.digest)(&keys, ParamId(3), 700, words) - (kernels.digest)(&keys, ParamId(3), 700, &old);
        assert_eq!(cursor.finish(), delta, "{}", kernels.name);
    }

    #[test]
    fn packed_flags_keep_their_order() {
        for pattern in [0, 1, 1 << 63, 0x8000_0000_0000_0001, 0x0123_4567_89ab_cdef, u64::MAX] {
            let mut flags = [0; GROUP];
            for (k, flag) in flags.iter_mut().enumerate() {
                *flag = u8::from(pattern >> k & 1 == 1);
            }
            assert_eq!(pack(&flags), pattern);
        }
    }
}
