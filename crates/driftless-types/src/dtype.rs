//! Element types of served weights.

use std::fmt;

/// The element type in which a parameter is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// Brain floating point, 16 bits: one word per element.
    Bf16,
    /// IEEE single precision: two 16-bit words per element, low half first.
    Fp32,
}

impl Dtype {
    /// 16-bit words per element: digests and live weights are counted in words.
    #[must_use]
    pub const fn words(self) -> usize {
        match self {
            Self::Bf16 => 1,
            Self::Fp32 => 2,
        }
    }

    /// Bytes per element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        2 * self.words()
    }

    /// The code of this dtype in formats.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Bf16 => 0,
            Self::Fp32 => 1,
        }
    }

    /// The dtype of a format's code; `None` for a code that no version defines.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Bf16),
            1 => Some(Self::Fp32),
            _ => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "BF16",
            Self::Fp32 => "F32",
        })
    }
}
