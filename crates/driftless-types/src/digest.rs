//! The element digest as a value: four wrapping 32-bit lanes that add up over any sharding.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A digest of some set of words: four `u32` lanes, each a sum mod 2^32.
///
/// How a word contributes is defined in `driftless-numerics`; here is only the group: partial digests of
/// disjoint sets of words add up to the digest of their union, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u32; 4]);

impl Digest {
    /// The digest of no words at all.
    pub const ZERO: Self = Self([0; 4]);

    /// The lanes in order, each little-endian: the 16 bytes that formats carry.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (chunk, lane) in bytes.chunks_exact_mut(4).zip(self.0) {
            chunk.copy_from_slice(&lane.to_le_bytes());
        }
        bytes
    }

    /// The inverse of [`Self::to_bytes`].
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let mut lanes = [0; 4];
        for (lane, chunk) in lanes.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *lane = u32::from_le_bytes(*chunk);
        }
        Self(lanes)
    }
}

impl AddAssign for Digest {
    fn add_assign(&mut self, other: Self) {
        for (lane, term) in self.0.iter_mut().zip(other.0) {
            *lane = lane.wrapping_add(term);
        }
    }
}

impl SubAssign for Digest {
    fn sub_assign(&mut self, other: Self) {
        for (lane, term) in self.0.iter_mut().zip(other.0) {
            *lane = lane.wrapping_sub(term);
        }
    }
}

impl Add for Digest {
    type Output = Self;
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Sub for Digest {
    type Output = Self;
    fn sub(mut self, other: Self) -> Self {
        self -= other;
        self
    }
}

impl Sum for Digest {
    fn sum<I: Iterator<Item = Self>>(terms: I) -> Self {
        terms.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.to_bytes()), f)
    }
}

/// Bytes that print as lower-case hexadecimal.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Hex<'_> {
    /// The bytes that exactly `2 * N` lower-case digits mean: what printing `N` bytes gives.
    #[must_use]
    pub fn parse<const N: usize>(text: &str) -> Option<[u8; N]> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != N || !rest.is_empty() {
            return None;
        }
        let mut bytes = [0; N];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(bytes)
    }
}

const fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_lower_case_and_all_there() {
        assert_eq!(Hex::parse("00ff1a"), Some([0, 255, 26]));
        for text in ["00ff1", "00ff1aa", "00FF1A", "00ff1g", "", "00ff1é"] {
            assert_eq!(Hex::parse::<3>(text), None, "{text}");
        }
    }

    #[test]
    fn lanes_wrap_and_cancel() {
        let a = Digest([u32::MAX, 1, 2, 3]);
        let b = Digest([1, 1, 1, 1]);
        assert_eq!(a + b, Digest([0, 2, 3, 4]));
        assert_eq!(a + b - b, a);
        assert_eq!([a, b].into_iter().sum::<Digest>(), a + b);
    }

    #[test]
    fn bytes_are_little_endian_lanes() {
        let digest = Digest([0x0403_0201, 0x0807_0605, 9, 10]);
        assert_eq!(digest.to_bytes()[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Digest::from_bytes(digest.to_bytes()), digest);
        assert_eq!(digest.to_string(), "0102030405060708090000000a000000");
    }
}
