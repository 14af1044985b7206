//! The loops of the vector units of x86-64 machines.

use super::{
    Cast, Digest, DigestCursor, DigestKeys, Kernels, Mask, MasterAudit, ParamId, Prefetch, Rule, Stepped,
};
use std::arch::x86_64::{
    _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_setzero_si256, _mm256_storeu_si256,
    _mm512_add_epi32, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_maskz_loadu_epi16,
    _mm512_reduce_add_epi32, _mm512_setzero_si512,
};

pub(super) fn available() -> [Option<Kernels>; 2] {
    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    [has_avx512.then_some(AVX512), is_x86_feature_detected!("avx2").then_some(AVX2)]
}

const AVX512: Kernels = Kernels {
    name: "cpu (avx512)",
    // SAFETY: `available` gives this table only to machines that have the features.
    cast: |cast, prefetch, x, bits| unsafe { cast_avx512(cast, prefetch, x, bits) },
    // SAFETY: as above.
    invert: |rule, block, mask| unsafe { invert_avx512(rule, block, mask) },
    // SAFETY: as above.
    compare: |bits, previous, mask| unsafe { compare_avx512(bits, previous, mask) },
    // SAFETY: as above.
    differ: |bits, previous, mask| unsafe { differ_avx512(bits, previous, mask) },
    // SAFETY: as above.
    digest: |keys, param, first_word, words| unsafe { digest_avx512(keys, param, first_word, words) },
    // SAFETY: as above.
    replace: |cursor, word_indices, old, new| unsafe { replace_avx512(cursor, word_indices, old, new) },
};

const AVX2: Kernels = Kernels {
    name: "cpu (avx2)",
    // SAFETY: `available` gives this table only to machines that have the feature.
    cast: |cast, prefetch, x, bits| unsafe { cast_avx2(cast, prefetch, x, bits) },
    // SAFETY: as above.
    invert: |rule, block, mask| unsafe { invert_avx2(rule, block, mask) },
    // SAFETY: as above.
    compare: |bits, previous, mask| unsafe { compare_avx2(bits, previous, mask) },
    // SAFETY: as above.
    differ: |bits, previous, mask| unsafe { differ_avx2(bits, previous, mask) },
    // SAFETY: as above.
    digest: |keys, param, first_word, words| unsafe { digest_avx2(keys, param, first_word, words) },
    // SAFETY: as above.
    replace: |cursor, word_indices, old, new| unsafe { replace_avx2(cursor, word_indices, old, new) },
};

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn cast_avx512(cast: Cast, prefetch: Prefetch, x: &[f32], bits: &mut [u16]) -> MasterAudit {
    super::cast(cast, prefetch, x, bits)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn invert_avx512(rule: &Rule, block: Stepped<'_>, mask: &mut Mask) -> bool {
    super::invert(rule, block, mask)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn compare_avx512(bits: &[u16], previous: &mut [u16], mask: &mut Mask) {
    super::compare(bits, previous, mask);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn digest_avx512(keys: &DigestKeys, param: ParamId, first_word: u64, words: &[u16]) -> Digest {
    keys.words_by(param, first_word, words, |keys, words| dots_avx512(keys, words))
}

/// Every lane's sum of products in one loop: 32 words at a time, the last of them under a mask.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn dots_avx512(keys: [&[i16]; 4], words: &[u16]) -> [u32; 4] {
    const WIDTH: usize = 32;
    let whole = words.len() / WIDTH * WIDTH;
    // Every slice is cut to the same length, so the loops below stay inside of it.
    let keys = keys.map(|keys| &keys[..words.len()]);
    let mut sums = [_mm512_setzero_si512(); 4];
    for start in (0..whole).step_by(WIDTH) {
        // SAFETY: start + 32 is at most the length of `words`.
        let word = unsafe { _mm512_loadu_si512(words.as_ptr().add(start).cast()) };
        for (sum, keys) in sums.iter_mut().zip(keys) {
            // SAFETY: and of each `keys`.
            let key = unsafe { _mm512_loadu_si512(keys.as_ptr().add(start).cast()) };
            *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(key, word));
        }
    }
    if whole < words.len() {
        let mask = u32::MAX >> (WIDTH - (words.len() - whole));
        // SAFETY: the mask lets through what lies before the end of `words` alone.
        let word = unsafe { _mm512_maskz_loadu_epi16(mask, words.as_ptr().add(whole).cast()) };
        for (sum, keys) in sums.iter_mut().zip(keys) {
            // SAFETY: and of each `keys`.
            let key = unsafe { _mm512_maskz_loadu_epi16(mask, keys.as_ptr().add(whole)) };
            *sum = _mm512_add_epi32(*sum, _mm512_madd_epi16(key, word));
        }
    }
    sums.map(|sum| _mm512_reduce_add_epi32(sum).cast_unsigned())
}

#[target_feature(enable = "avx2")]
fn cast_avx2(cast: Cast, prefetch: Prefetch, x: &[f32], bits: &mut [u16]) -> MasterAudit {
    super::cast(cast, prefetch, x, bits)
}

#[target_feature(enable = "avx2")]
fn invert_avx2(rule: &Rule, block: Stepped<'_>, mask: &mut Mask) -> bool {
    super::invert(rule, block, mask)
}

#[target_feature(enable = "avx2")]
fn compare_avx2(bits: &[u16], previous: &mut [u16], mask: &mut Mask) {
    super::compare(bits, previous, mask);
}

#[target_feature(enable = "avx2")]
fn digest_avx2(keys: &DigestKeys, param: ParamId, first_word: u64, words: &[u16]) -> Digest {
    keys.words_by(param, first_word, words, |keys, words| dots_avx2(keys, words))
}

/// Every lane's sum of products in one loop, 16 words at a time.
#[target_feature(enable = "avx2")]
fn dots_avx2(keys: [&[i16]; 4], words: &[u16]) -> [u32; 4] {
    const WIDTH: usize = 16;
    let whole = words.len() / WIDTH * WIDTH;
    // Every slice is cut to the same length, so the loops below stay inside of it.
    let keys = keys.map(|keys| &keys[..words.len()]);
    let mut sums = [_mm256_setzero_si256(); 4];
    for start in (0..whole).step_by(WIDTH) {
        // SAFETY: start + 16 is at most the length of `words`.
        let word = unsafe { _mm256_loadu_si256(words.as_ptr().add(start).cast()) };
        for (sum, keys) in sums.iter_mut().zip(keys) {
            // SAFETY: and of each `keys`.
            let key = unsafe { _mm256_loadu_si256(keys.as_ptr().add(start).cast()) };
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(key, word));
        }
    }
    let mut lanes = [0; 4];
    for ((lane, sum), keys) in lanes.iter_mut().zip(sums).zip(keys) {
        let mut parts = [0_u32; 8];
        // SAFETY: `parts` has the 32 bytes that are written.
        unsafe { _mm256_storeu_si256(parts.as_mut_ptr().cast(), sum) };
        let rest = super::dot(&keys[whole..], &words[whole..]);
        *lane = parts.iter().fold(rest, |total, part| total.wrapping_add(*part));
    }
    lanes
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn replace_avx512(cursor: &mut DigestCursor<'_>, word_indices: &[u64], old: &[u16], new: &[u16]) {
    super::replace(cursor, word_indices, old, new);
}

#[target_feature(enable = "avx2")]
fn replace_avx2(cursor: &mut DigestCursor<'_>, word_indices: &[u64], old: &[u16], new: &[u16]) {
    super::replace(cursor, word_indices, old, new);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn differ_avx512(bits: &[u16], previous: &[u16], mask: &mut Mask) {
    super::differ(bits, previous, mask);
}

#[target_feature(enable = "avx2")]
fn differ_avx2(bits: &[u16], previous: &[u16], mask: &mut Mask) {
    super::differ(bits, previous, mask);
}
