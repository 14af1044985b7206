//! The ten steps of one changed element's journey, as tracing spans below the span of its sync: one trace shows the
//! whole way, across actors and threads.

use crate::Shared;
use driftless_types::Version;
use std::fmt::Display;
use tracing::{Span, info_span};

/// A step of the journey, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// The training loop reports the step.
    StepDone,
    /// A rank's actor opens the sync.
    Open,
    /// The fragments of a replica, in the fixed order that all ranks share.
    Order,
    /// Reconstruct, round, compare.
    Detect,
    /// Into the receiver's coordinates, grouped by receiver, and into sections.
    Remap,
    /// A round of the exchange.
    Exchange,
    /// Every byte is checked, nothing is applied.
    Stage,
    /// From all staged to the decision carried out.
    Decide,
    /// Into the live weights, old values kept aside, digests compared.
    Scatter,
    /// The version moves.
    Watermark,
}

impl Step {
    /// Opens the span of this step of a version's sync, taken by `who`.
    pub fn span(self, shared: &Shared, version: Version, who: impl Display) -> Span {
        let sync = shared.ledger.span(version);
        match self {
            Self::StepDone => info_span!(parent: &sync, "step_done", %who),
            Self::Open => info_span!(parent: &sync, "open", %who),
            Self::Order => info_span!(parent: &sync, "order", %who),
            Self::Detect => info_span!(parent: &sync, "detect", %who),
            Self::Remap => info_span!(parent: &sync, "remap", %who),
            Self::Exchange => info_span!(parent: &sync, "exchange", %who),
            Self::Stage => info_span!(parent: &sync, "stage", %who),
            Self::Decide => info_span!(parent: &sync, "decide", %who),
            Self::Scatter => info_span!(parent: &sync, "scatter", %who),
            Self::Watermark => info_span!(parent: &sync, "watermark", %who),
        }
    }
}
