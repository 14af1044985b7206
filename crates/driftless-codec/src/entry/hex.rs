//! Bytes as lower-case hexadecimal, and integers that every JSON reader keeps whole.

use driftless_types::Hex;
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The first integer that does not fit: from here on a JSON reader may round.
pub(super) const INTEGER_END: u64 = 1 << 53;

/// `N` bytes as `2 * N` lower-case digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HexBytes<const N: usize>(pub(super) [u8; N]);

/// An integer below [`INTEGER_END`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Integer(pub(super) u64);

/// The bytes that exactly `2 * N` lower-case digits mean.
pub(super) fn parse<const N: usize>(text: &str) -> Option<[u8; N]> {
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

const fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl<const N: usize> Default for HexBytes<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> Serialize for HexBytes<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Hex(&self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for HexBytes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = format!("{} lower-case hexadecimal digits", 2 * N);
        let bytes = parse(&text);
        bytes.map(Self).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &expected.as_str()))
    }
}

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u64::deserialize(deserializer)?;
        if value >= INTEGER_END {
            return Err(D::Error::invalid_value(Unexpected::Unsigned(value), &"an integer below 2^53"));
        }
        Ok(Self(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_lower_case_and_all_there() {
        assert_eq!(parse("00ff1a"), Some([0, 255, 26]));
        for text in ["00ff1", "00ff1aa", "00FF1A", "00ff1g", "", "00ff1é"] {
            assert_eq!(parse::<3>(text), None, "{text}");
        }
    }
}
