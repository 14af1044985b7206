//! Layouts as text: `family:axis=value,option=word,...`, with the option `router=fp32` everywhere.

use crate::error::LayoutError;
use driftless_types::Dtype;
use std::collections::BTreeMap;
use std::fmt;

/// The most ranks that one side may have.
pub(crate) const MAX_WORLD: u32 = 65_536;
/// The axes whose product is the number of ranks; the others cut what these span.
const RANK_AXES: [&str; 4] = ["tp", "pp", "dp", "world"];

/// What the texts of one family may say.
pub(crate) struct Grammar {
    /// Sizes from 1, and 1 where a text does not name them.
    pub(crate) axes: &'static [&'static str],
    /// Everything else that is understood, `router` apart.
    pub(crate) options: &'static [&'static str],
    /// What is known and refused by name (LY-4).
    pub(crate) refused: &'static [RefusedOption],
}

/// An option that a framework has and this version does not.
pub(crate) struct RefusedOption {
    pub(crate) name: &'static str,
    pub(crate) feature: &'static str,
    pub(crate) needed: &'static str,
}

/// A layout's text, taken apart and checked against its family's grammar.
#[derive(Debug)]
pub(crate) struct LayoutText<'a> {
    text: &'a str,
    axes: BTreeMap<&'static str, u32>,
    options: BTreeMap<&'static str, &'a str>,
    pub(crate) router: Option<Dtype>,
}

impl<'a> LayoutText<'a> {
    /// Takes the part of `text` after the family's name apart.
    ///
    /// # Errors
    /// [`LayoutError::LayoutText`] for an unknown axis, one named twice, zero, garbage, or too many ranks;
    /// [`LayoutError::UnsupportedOption`] for one that is refused by name.
    pub(crate) fn parse(text: &'a str, grammar: &Grammar) -> Result<Self, LayoutError> {
        let mut parsed = Self { text, axes: BTreeMap::new(), options: BTreeMap::new(), router: None };
        let Some((_, options)) = text.split_once(':') else {
            return Ok(parsed);
        };
        for option in options.split(',') {
            parsed.take(option, grammar)?;
        }
        let world = parsed.axes.iter().filter(|(axis, _)| RANK_AXES.contains(axis));
        if world.fold(1u64, |ranks, (_, &size)| ranks.saturating_mul(size.into())) > MAX_WORLD.into() {
            return Err(refused(text, "a product of axes above it", format!("at most {MAX_WORLD} ranks")));
        }
        Ok(parsed)
    }

    fn take(&mut self, option: &'a str, grammar: &Grammar) -> Result<(), LayoutError> {
        let text = self.text;
        let expected = || {
            let known = [grammar.axes, grammar.options].concat().join(", ");
            format!("axes among [{known}] and router=fp32|bf16")
        };
        let Some((name, value)) = option.split_once('=') else {
            return Err(refused(text, format!("{option:?}"), expected()));
        };
        if let Some(refused) = grammar.refused.iter().find(|refused| refused.name == name) {
            return Err(refused.error(text, option));
        }
        let is_first = if name == "router" {
            self.router.replace(router_dtype(text, value)?).is_none()
        } else if let Some(axis) = grammar.axes.iter().find(|axis| **axis == name) {
            self.axes.insert(axis, size(text, axis, value)?).is_none()
        } else if let Some(option) = grammar.options.iter().find(|option| **option == name) {
            self.options.insert(option, value).is_none()
        } else {
            return Err(refused(text, format!("axis {name:?}"), expected()));
        };
        if !is_first {
            let kind = if grammar.axes.contains(&name) { "axis " } else { "" };
            return Err(refused(text, format!("{kind}{name} twice"), "each axis once"));
        }
        Ok(())
    }

    /// The size of an axis; 1 where the text does not name it.
    pub(crate) fn axis(&self, name: &str) -> u32 {
        self.axes.get(name).copied().unwrap_or(1)
    }

    /// Whether the text names this option.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    /// The meaning of an option's word; that of the first word where the text does not name it.
    pub(crate) fn choice<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T, LayoutError> {
        let Some(&found) = self.options.get(name) else {
            return Ok(words[0].1);
        };
        let known = || words.iter().map(|(word, _)| format!("{name}={word}")).collect::<Vec<_>>();
        let chosen = words.iter().find(|(word, _)| *word == found).map(|&(_, meaning)| meaning);
        chosen.ok_or_else(|| refused(self.text, format!("{name}={found}"), known().join(" or ")))
    }

    /// A count of elements, if the text names it.
    pub(crate) fn count(&self, name: &str) -> Result<Option<u64>, LayoutError> {
        let Some(&value) = self.options.get(name) else {
            return Ok(None);
        };
        match whole(value).filter(|count| *count <= MAX_COUNT) {
            Some(count) => Ok(Some(count)),
            None => Err(refused(self.text, format!("{name}={value}"), format!("{name}=0 to {MAX_COUNT}"))),
        }
    }

    /// Whole numbers joined by `+`, if the text names them.
    pub(crate) fn sum(&self, name: &str) -> Result<Option<Vec<u32>>, LayoutError> {
        let Some(&value) = self.options.get(name) else {
            return Ok(None);
        };
        let term = |term| whole(term).and_then(|size| u32::try_from(size).ok());
        match value.split('+').map(term).collect::<Option<Vec<_>>>() {
            Some(terms) => Ok(Some(terms)),
            None => Err(refused(self.text, format!("{name}={value}"), format!("{name}=a+b+.."))),
        }
    }
}

/// The largest count of elements that a text may name: far above any buffer, far below an overflow.
const MAX_COUNT: u64 = 1 << 40;

impl RefusedOption {
    /// The error of a text that holds this `option`.
    fn error(&self, text: &str, option: &str) -> LayoutError {
        LayoutError::UnsupportedOption {
            layout: text.into(),
            option: option.into(),
            feature: self.feature,
            needed: self.needed,
        }
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
    let size = whole(value).and_then(|size| u32::try_from(size).ok());
    match size.filter(|size| (1..=MAX_WORLD).contains(size)) {
        Some(size) => Ok(size),
        None => Err(refused(text, format!("{axis}={value}"), format!("{axis}=1 to {MAX_WORLD}"))),
    }
}

/// A number of plain digits: the parser of integers would also take a sign.
fn whole(value: &str) -> Option<u64> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| digits)
}

/// The error of a text whose family or option is not understood.
pub(crate) fn refused(text: &str, found: impl Into<String>, expected: impl Into<String>) -> LayoutError {
    LayoutError::LayoutText { layout: text.into(), found: found.into(), expected: expected.into() }
}

/// The part of a text before its axes.
pub(crate) fn family(text: &str) -> &str {
    text.split_once(':').map_or(text, |(family, _)| family)
}

/// Writes the canonical text: `tp` and `world` always where the family has them, other axes only if they are not 1,
/// options only if they are not the default.
pub(crate) fn write(
    f: &mut fmt::Formatter<'_>,
    family: &str,
    axes: &[(&str, u32)],
    options: impl IntoIterator<Item = String>,
    router: Option<Dtype>,
) -> fmt::Result {
    let mut parts: Vec<String> = axes
        .iter()
        .filter(|(axis, size)| matches!(*axis, "tp" | "world") || *size != 1)
        .map(|(axis, size)| format!("{axis}={size}"))
        .collect();
    parts.extend(options);
    if let Some(dtype) = router {
        parts.push(format!("router={}", if dtype == Dtype::Fp32 { "fp32" } else { "bf16" }));
    }
    f.write_str(family)?;
    if parts.is_empty() {
        return Ok(());
    }
    write!(f, ":{}", parts.join(","))
}
