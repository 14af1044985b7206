//! The loops below the actors: each is a plain function over a binding that its caller holds the token of. They run
//! on blocking threads, look at a cancel flag, and answer with a value that the actor turns into an event.

mod apply;
mod detect;
mod encode;
mod hook;
mod pending;
mod stage;

pub(crate) use apply::{recover, scatter, seal, undo};
pub(crate) use detect::detect;
pub(crate) use encode::{Outgoing, encode};
pub(crate) use hook::call;
pub(crate) use stage::{announced_bytes, stage};
