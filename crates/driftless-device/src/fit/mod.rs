//! What must hold of a call's arguments before anything is read or written: one place for every backend.
//!
//! - **DV-3 (all or nothing per fragment).** Everything that can be wrong with a fragment and its change set is found
//!   before the first word is written.

mod area;
mod parts;
mod runs;
mod target;

pub(crate) use area::{Area, SpanWalk, param_of};
pub(crate) use parts::{Part, check, parts_of};
pub(crate) use runs::{Run, check_classes, check_listable, runs_of, runs_within};
pub(crate) use target::{FragmentFit, Target};
