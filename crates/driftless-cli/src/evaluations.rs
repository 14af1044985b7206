//! A number of evaluations as people write it.

use std::str::FromStr;

/// How many evaluations: above zero, and exact however it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evaluations(pub(crate) u64);

/// What is wrong with a number of evaluations.
#[derive(thiserror::Error, Clone, Copy, Debug, PartialEq, Eq)]
#[error("expected a whole number above 0 and below 2^64, such as 1e8, 100_000_000 or 100000000")]
pub(crate) struct NoCount;

impl FromStr for Evaluations {
    type Err = NoCount;

    /// Digits with underscores between them, then perhaps a power of ten: `2_000`, `1e10`, `2.5E9`.
    fn from_str(text: &str) -> Result<Self, NoCount> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
        let fraction = digits(fraction)?;
        let fraction = fraction.trim_end_matches('0');
        let significant: u64 = format!("{}{fraction}", digits(whole)?).parse().map_err(|_| NoCount)?;
        let exponent: u32 = digits(exponent)?.parse().map_err(|_| NoCount)?;
        let places = u32::try_from(fraction.len()).map_err(|_| NoCount)?;
        let shift = exponent.checked_sub(places).ok_or(NoCount)?;
        let scale = 10u64.checked_pow(shift).ok_or(NoCount)?;
        match significant.checked_mul(scale) {
            None | Some(0) => Err(NoCount),
            Some(count) => Ok(Self(count)),
        }
    }
}

/// A run of digits without the underscores between them.
fn digits(text: &str) -> Result<String, NoCount> {
    let inside =
        text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with(|c: char| c.is_ascii_digit());
    if !inside || !text.chars().all(|c| c.is_ascii_digit() || c == '_') {
        return Err(NoCount);
    }
    Ok(text.replace('_', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_exact_however_it_is_written() {
        for text in ["1e8", "1E8", "100_000_000", "100000000", "0.1e9", "10_0e6", "1.0e8", "100000000.0"] {
            assert_eq!(text.parse(), Ok(Evaluations(100_000_000)), "{text}");
        }
        assert_eq!("2.5e3".parse(), Ok(Evaluations(2500)));
        assert_eq!("18446744073709551615".parse(), Ok(Evaluations(u64::MAX)));
    }

    #[test]
    fn what_is_no_count_is_refused() {
        let all = [
            "",
            "0",
            "0e5",
            "-1",
            "+1",
            "1e",
            "e8",
            "1e-2",
            "1.5",
            "1.25e1",
            "1e20",
            "1e99999999999",
            "_1",
            "1_",
            "1 000",
            "many",
            "inf",
            "nan",
            "18446744073709551616",
            "1e8e1",
            "1.",
            ".5e1",
        ];
        for text in all {
            assert_eq!(text.parse::<Evaluations>(), Err(NoCount), "{text}");
        }
    }
}
