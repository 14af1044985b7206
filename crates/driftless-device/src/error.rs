//! What can be wrong with a call on a device: always the arguments, or a caller that changed its mind.

use driftless_numerics::Cast;
use driftless_types::{ParamId, Retry};

/// Why a device did nothing, or stopped.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// The cancel flag was raised. A snapshot may be partly ahead: see [`ChangeSource::Snapshot`](crate::ChangeSource).
    #[error("canceled")]
    Canceled,
    /// A slice does not have the length that the plan says.
    #[error("{what}: found {found} elements, expected {expected}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Its length.
        found: u64,
        /// The plan's.
        expected: u64,
    },
    /// A rule judges bits that another cast makes than the one that was asked for.
    #[error("the rule of piece {piece} is that of a trainer whose cast is {found:?}, expected {expected:?}")]
    Cast {
        /// The piece's number in its tensor.
        piece: usize,
        /// The cast of the rule's family.
        found: Cast,
        /// The cast of the served bits.
        expected: Cast,
    },
    /// No backend has this name.
    #[error("no device is called {0:?}, expected cpu, or cuda:0 for the first GPU")]
    UnknownPlace(String),
    /// The program was built without the backend.
    #[error("{place} needs a program built with its feature `{feature}`: cargo build --features {feature}")]
    NotBuilt {
        /// The device.
        place: String,
        /// The cargo feature.
        feature: &'static str,
    },
    /// Memory is not where the backend works.
    #[error("the memory is on {found}, expected {expected}")]
    Place {
        /// Where it is.
        found: String,
        /// Where the backend works.
        expected: String,
    },
    /// A plan speaks of a parameter that the given table lacks.
    #[error("parameter {0} is not in the table of parameters")]
    UnknownParam(ParamId),
    /// Boxes, cuts, cells or runs of a plan contradict each other or the memory that they speak of.
    #[error("{what} of {name} does not fit: found {found}, expected at most {limit}")]
    Misfit {
        /// Which number of the plan.
        what: &'static str,
        /// The tensor's name, or the fragment's number.
        name: String,
        /// The number.
        found: u64,
        /// What it may be at most.
        limit: u64,
    },
    /// A change set is not one of the fragment's dtype, or its arrays differ in length.
    #[error("fragment {fragment}: the change set has {found}, expected {expected}")]
    ChangeSet {
        /// The fragment's number in the plan.
        fragment: u32,
        /// What the change set is.
        found: String,
        /// What it should be.
        expected: String,
    },
}

impl DeviceError {
    /// Work that was canceled can be done by the next attempt. What does not fit a plan or a rule never will.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Canceled => Retry::NewAttempt,
            _ => Retry::Never,
        }
    }
}
