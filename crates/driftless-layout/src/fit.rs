//! Does an axis of a layout fit the model? The checks that trainers and engines share (LY-4).

use crate::config::ModelConfig;
use crate::error::LayoutError;

/// The most tensors and boxes that the ranks of one side may list together: bounds the memory of a plan.
const MAX_LISTED: u64 = 1 << 24;

/// Refuses a mesh whose `ranks` would list too much, `per_rank` each, before anything is listed.
pub(crate) fn check_listed(ranks: u64, per_rank: u64) -> Result<(), LayoutError> {
    let found = ranks.saturating_mul(per_rank);
    if found <= MAX_LISTED {
        return Ok(());
    }
    Err(LayoutError::TooLarge { what: "tensors and boxes of all ranks", found, limit: MAX_LISTED })
}

/// One axis of a layout with its size.
#[derive(Clone, Copy)]
pub(crate) struct Axis<'a> {
    /// The layout as text, for errors.
    pub(crate) layout: &'a str,
    pub(crate) name: &'static str,
    pub(crate) size: u64,
}

impl Axis<'_> {
    /// The axis must divide `total`, which errors call `what`.
    pub(crate) fn must_divide(self, what: &str, total: u64) -> Result<(), LayoutError> {
        if total.is_multiple_of(self.size) {
            return Ok(());
        }
        Err(self.misfit(format!("a divisor of {what} = {total}")))
    }

    /// The axis is a size that somebody set in code to something that no text can say.
    pub(crate) fn must_be_positive(self) -> Result<(), LayoutError> {
        match self.size {
            0 => Err(self.misfit("at least 1".into())),
            _ => Ok(()),
        }
    }

    /// The axis cuts attention heads: it divides the query heads; it divides the key-value heads, or they divide it.
    pub(crate) fn must_cut_heads(self, config: &ModelConfig) -> Result<(), LayoutError> {
        self.must_divide("num_attention_heads", config.attention_heads())?;
        let kv = config.key_value_heads();
        if kv.is_multiple_of(self.size) || self.size.is_multiple_of(kv) {
            return Ok(());
        }
        Err(self.misfit(format!("a divisor or a multiple of num_key_value_heads = {kv}")))
    }

    pub(crate) fn misfit(self, expected: String) -> LayoutError {
        LayoutError::AxisMisfit { layout: self.layout.into(), axis: self.name, found: self.size, expected }
    }
}
