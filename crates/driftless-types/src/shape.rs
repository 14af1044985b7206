//! Tensor shapes.

use std::fmt;

/// The extents of a tensor, outermost axis first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape(Vec<u64>);

impl Shape {
    /// A shape of these extents.
    #[must_use]
    pub fn new(extents: impl Into<Vec<u64>>) -> Self {
        Self(extents.into())
    }

    /// The extents, outermost first.
    #[must_use]
    pub fn extents(&self) -> &[u64] {
        &self.0
    }

    /// The number of elements; `None` if it overflows.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        self.0.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
