//! The loops below the actors: each is a plain function over a binding that its caller holds the token of. They run
//! on blocking threads, look at a cancel flag, and answer with a value that the actor turns into an event.

mod apply;
mod detect;
mod encode;
mod hook;
mod lend;
mod pending;
mod place;
mod stage;
mod window;

pub(crate) use apply::{recover, scatter, seal, undo};
pub(crate) use detect::detect;
pub(crate) use encode::{Outgoing, encode};
pub(crate) use hook::{call, resume};
pub(crate) use lend::Loan;
pub(crate) use place::{promised, prove, write_window};
pub(crate) use stage::{announced_bytes, stage};
pub(crate) use window::{Window, window_bytes, window_count, windows};

use apply::{differing, named};
