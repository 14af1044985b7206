//! Trainer layouts: which rank owns which run of which local tensor.
//!
//! To add one: a module that lists its ranks, a variant of [`TrainerKind`], and its arms in this file.

mod hf;
mod megatron;
mod zero;

use crate::error::LayoutError;
use crate::geometry::Box2;
use crate::local::LocalTensor;
use crate::model::Model;
use crate::plan::{Piece, SourceTensor};
use crate::text::{self, LayoutText};
use driftless_types::Dtype;
use megatron::Megatron;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How a trainer lays a model out in memory, as text `hf` or `megatron:tp=,pp=,dp=,ep=`, option `router=fp32`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrainerLayout {
    /// The framework and its mesh.
    pub kind: TrainerKind,
    /// The served dtype of routers, where this layout names one.
    pub router: Option<Dtype>,
}

/// A trainer framework and the sizes of its mesh, each at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrainerKind {
    /// One process that holds every parameter whole, under its Hugging Face name.
    Hf,
    /// Megatron-Core with the distributed optimizer (ZeRO-1). World = tp * pp * dp; expert parallelism runs over
    /// the tp * dp ranks of a stage, with an expert tensor parallelism of 1.
    Megatron {
        /// Tensor parallel size.
        tp: u32,
        /// Pipeline parallel size: a divisor of the number of layers.
        pp: u32,
        /// Data parallel size.
        dp: u32,
        /// Expert parallel size: a divisor of tp * dp and of the number of experts.
        ep: u32,
    },
}

/// One rank of a trainer.
pub(crate) struct TrainerRank {
    pub(crate) name: String,
    pub(crate) tensors: Vec<SourceTensor>,
}

impl TrainerLayout {
    /// The ranks in order of their sender ids. LY-1: over all of them every canonical element has one owner.
    ///
    /// # Errors
    /// [`LayoutError::AxisMisfit`] if the mesh does not fit the model.
    pub(crate) fn ranks(&self, model: &Model) -> Result<Vec<TrainerRank>, LayoutError> {
        match self.kind {
            TrainerKind::Hf => hf::ranks(model),
            TrainerKind::Megatron { tp, pp, dp, ep } => {
                Megatron::new(model, self, [tp, pp, dp, ep].map(u64::from))?.ranks()
            }
        }
    }
}

impl FromStr for TrainerLayout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let (kind, router) = match text::family(text) {
            "hf" => (TrainerKind::Hf, LayoutText::parse(text, &[])?.router),
            "megatron" => {
                let parsed = LayoutText::parse(text, &["tp", "pp", "dp", "ep"])?;
                let [tp, pp, dp, ep] = ["tp", "pp", "dp", "ep"].map(|axis| parsed.axis(axis));
                (TrainerKind::Megatron { tp, pp, dp, ep }, parsed.router)
            }
            family => return Err(text::refused(text, format!("trainer {family:?}"), "hf or megatron")),
        };
        Ok(Self { kind, router })
    }
}

impl fmt::Display for TrainerLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TrainerKind::Hf => text::write(f, "hf", &[], self.router),
            TrainerKind::Megatron { tp, pp, dp, ep } => {
                text::write(f, "megatron", &[("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep)], self.router)
            }
        }
    }
}

/// The part of a local tensor that a rank owns: `range` of its flattened elements, as pieces.
///
/// A range that starts or ends in mid-row gives up to three pieces per box: a part of a row, whole rows, a part
/// of a row.
fn owned(tensor: &LocalTensor, range: Range<u64>) -> SourceTensor {
    let mut pieces = Vec::new();
    for placed in &tensor.boxes {
        let canonical = placed.canonical;
        assert_eq!(placed.row_stride, canonical.cols, "trainer boxes are contiguous");
        let mut at = range.start.saturating_sub(placed.offset);
        let end = range.end.saturating_sub(placed.offset).min(canonical.elements());
        while at < end {
            let piece = next_run(canonical, at, end);
            let src_offset = placed.offset + at - range.start;
            at += piece.elements();
            pieces.push(Piece::uncut(src_offset, placed.param, piece));
        }
    }
    SourceTensor { name: tensor.name.clone(), range, pieces }
}

/// The longest box that starts at flat index `at` of `canonical` and ends by `end`.
fn next_run(canonical: Box2, at: u64, end: u64) -> Box2 {
    let (row, col) = (at / canonical.cols, at % canonical.cols);
    let whole_rows = (end - at) / canonical.cols;
    if col == 0 && whole_rows > 0 {
        return Box2::new(canonical.row + row, whole_rows, canonical.col, canonical.cols);
    }
    let cols = (canonical.cols - col).min(end - at);
    Box2::new(canonical.row + row, 1, canonical.col + col, cols)
}
