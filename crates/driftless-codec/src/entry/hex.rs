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
        let bytes = Hex::parse(&text);
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
