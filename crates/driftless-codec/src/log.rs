//! Sections of a log: a box of a canonical parameter after the header, and the codec that is smallest.

mod plan;
mod section;

pub use plan::{LogChanges, LogSectionPlan, LogSectionStart, StepKnowledge};
pub use section::{LogExpected, LogSection, LogView, SparseBlocks};
