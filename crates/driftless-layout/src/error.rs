//! What can be wrong with a config, a layout, or the two together (LY-4).

use driftless_types::{Dtype, Fqn, Retry};
use std::sync::Arc;

/// Why no plan was made. Every variant names what was found and what was expected; nothing was changed.
#[derive(thiserror::Error, Clone, Debug)]
#[non_exhaustive]
pub enum LayoutError {
    /// The model config is not JSON at all.
    #[error("the model config is not valid JSON")]
    ConfigNotJson {
        /// Where and why the parser stopped.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// A key of the model config is missing, has the wrong type, or a value that no model has.
    #[error("model config key {key}: found {found}, expected {expected}")]
    ConfigKey {
        /// The key.
        key: String,
        /// Its value, or `nothing`.
        found: String,
        /// What would have been accepted.
        expected: String,
    },
    /// The config asks for something that this version cannot keep bit-identical.
    #[error(
        "model config key {key}: found {found}, expected none: {feature} is not supported, it needs {needed}"
    )]
    Unsupported {
        /// The key that shows it.
        key: String,
        /// Its value.
        found: String,
        /// The name of what is refused.
        feature: &'static str,
        /// What would have to be there first.
        needed: &'static str,
    },
    /// A layout asks for something that this version cannot keep bit-identical.
    #[error(
        "layout {layout:?}: found {option}, expected none: {feature} is not supported, it needs {needed}"
    )]
    UnsupportedOption {
        /// The whole text.
        layout: String,
        /// The option that shows it.
        option: String,
        /// The name of what is refused.
        feature: &'static str,
        /// What would have to be there first.
        needed: &'static str,
    },
    /// The starting policy holds a tensor of a kind that this version cannot keep bit-identical.
    #[error("the starting policy names {fqn}, expected none: {feature} is not supported, it needs {needed}")]
    UnsupportedTensor {
        /// Its name.
        fqn: Fqn,
        /// The name of what is refused.
        feature: &'static str,
        /// What would have to be there first.
        needed: &'static str,
    },
    /// A layout has no rule for a model whose tensors are only known by a table.
    #[error(
        "layout {layout}: found a model of generic tensors, expected a model type with a converter for it"
    )]
    NoConverter {
        /// The layout as text.
        layout: String,
    },
    /// A layout's text cannot be read.
    #[error("layout {layout:?}: found {found}, expected {expected}")]
    LayoutText {
        /// The whole text.
        layout: String,
        /// The offending part, with the axis it belongs to.
        found: String,
        /// What would have been accepted.
        expected: String,
    },
    /// An axis of a layout does not fit the model or the other axes.
    #[error("layout {layout}: {axis}={found} does not fit: expected {expected}")]
    AxisMisfit {
        /// The layout as text.
        layout: String,
        /// The axis.
        axis: &'static str,
        /// Its value.
        found: u64,
        /// What would fit, with the numbers of the model.
        expected: String,
    },
    /// Two sources name different served dtypes for one parameter or one fused tensor.
    #[error("served dtype of {name}: found {found} by {found_in}, expected {expected} by {expected_in}")]
    DtypeContradiction {
        /// The parameter, fused tensor or option.
        name: String,
        /// One dtype.
        found: Dtype,
        /// Who says so.
        found_in: String,
        /// The other dtype.
        expected: Dtype,
        /// Who says so.
        expected_in: String,
    },
    /// The starting policy holds a tensor that the model does not have.
    #[error("the starting policy names {fqn}, expected only parameters of the model")]
    UnknownParameter {
        /// Its name.
        fqn: Fqn,
    },
    /// A tensor lies in memory in a way that is not supported, or that does not fit it.
    #[error("tensor {tensor}: found {found}, expected {expected}")]
    Strides {
        /// The tensor.
        tensor: String,
        /// Its shape, strides or buffer.
        found: String,
        /// What would have been accepted.
        expected: String,
    },
    /// The plan would be larger than its numbers can count.
    #[error("the plan has {found} {what}, expected at most {limit}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        found: u64,
        /// The limit.
        limit: u64,
    },
}

impl LayoutError {
    /// A model or a layout that is refused is refused until somebody changes it.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        Retry::Never
    }
}
