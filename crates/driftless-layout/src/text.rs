//! Layouts as text: `family:axis=value,...`, with the option `router=fp32`.

use crate::error::LayoutError;
use driftless_types::Dtype;
use std::collections::BTreeMap;
use std::fmt;

/// The most ranks that one side may have.
pub(crate) const MAX_WORLD: u32 = 65_536;

/// A layout's text, taken apart and checked against the axes that its family knows.
#[derive(Debug)]
pub(crate) struct LayoutText {
    axes: BTreeMap<&'static str, u32>,
    pub(crate) router: Option<Dtype>,
}

impl LayoutText {
    /// Takes the part of `text` after the family's name apart.
    ///
    /// # Errors
    /// [`LayoutError::LayoutText`] for an unknown axis, one named twice, zero, garbage, or too many ranks.
    pub(crate) fn parse(text: &str, axes_known: &[&'static str]) -> Result<Self, LayoutError> {
        let mut parsed = Self { axes: BTreeMap::new(), router: None };
        let Some((_, options)) = text.split_once(':') else {
            return Ok(parsed);
        };
        for option in options.split(',') {
            parsed.take(text, option, axes_known)?;
        }
        let world = parsed.axes.iter().filter(|(axis, _)| **axis != "ep");
        if world.fold(1u64, |ranks, (_, &size)| ranks.saturating_mul(size.into())) > MAX_WORLD.into() {
            return Err(refused(text, "a product of axes above it", format!("at most {MAX_WORLD} ranks")));
        }
        Ok(parsed)
    }

    fn take(&mut self, text: &str, option: &str, axes_known: &[&'static str]) -> Result<(), LayoutError> {
        let expected = || format!("axes among [{}] and router=fp32|bf16", axes_known.join(", "));
        let Some((name, value)) = option.split_once('=') else {
            return Err(refused(text, format!("{option:?}"), expected()));
        };
        if name == "router" {
            let dtype = router_dtype(text, value)?;
            if self.router.replace(dtype).is_some() {
                return Err(refused(text, "router twice", "it once"));
            }
            return Ok(());
        }
        let Some(axis) = axes_known.iter().find(|axis| **axis == name) else {
            return Err(refused(text, format!("axis {name:?}"), expected()));
        };
        if self.axes.insert(axis, size(text, axis, value)?).is_some() {
            return Err(refused(text, format!("axis {axis} twice"), "each axis once"));
        }
        Ok(())
    }

    /// The size of an axis; 1 where the text does not name it.
    pub(crate) fn axis(&self, name: &str) -> u32 {
        self.axes.get(name).copied().unwrap_or(1)
    }
}

fn router_dtype(text: &str, value: &str) -> Result<Dtype, LayoutError> {
    match value {
        "fp32" => Ok(Dtype::Fp32),
        "bf16" => Ok(Dtype::Bf16),
        _ => Err(refused(text, format!("router={value}"), "router=fp32 or router=bf16")),
    }
}

fn size(text: &str, axis: &str, value: &str) -> Result<u32, LayoutError> {
    // Only plain digits: the parser of u32 would also take a sign.
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse() {
        Ok(size) if digits && (1..=MAX_WORLD).contains(&size) => Ok(size),
        _ => Err(refused(text, format!("{axis}={value}"), format!("{axis}=1 to {MAX_WORLD}"))),
    }
}

/// The error of a text whose family or option is not understood.
pub(crate) fn refused(text: &str, found: impl Into<String>, expected: impl Into<String>) -> LayoutError {
    LayoutError::LayoutText { layout: text.into(), found: found.into(), expected: expected.into() }
}

/// The part of a text before its axes.
pub(crate) fn family(text: &str) -> &str {
    text.split_once(':').map_or(text, |(family, _)| family)
}

/// Writes the canonical text: `tp` always where the family has it, other axes only if they are not 1.
pub(crate) fn write(
    f: &mut fmt::Formatter<'_>,
    family: &str,
    axes: &[(&str, u32)],
    router: Option<Dtype>,
) -> fmt::Result {
    let mut options: Vec<String> = axes
        .iter()
        .filter(|(axis, size)| *axis == "tp" || *size != 1)
        .map(|(axis, size)| format!("{axis}={size}"))
        .collect();
    if let Some(dtype) = router {
        options.push(format!("router={}", if dtype == Dtype::Fp32 { "fp32" } else { "bf16" }));
    }
    f.write_str(family)?;
    if options.is_empty() {
        return Ok(());
    }
    write!(f, ":{}", options.join(","))
}
