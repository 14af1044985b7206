//! Batches of point-to-point transfers between the members of an exchange.
//!
//! A [`Transport`] moves one [`Batch`] per member and round: all sends and receives at once. What an *exchange* is,
//! is said by the fence: its epoch and attempt name it, and the rest of the fence must agree.
//!
//! - **EX-3 (one batch per round).** A member posts all sends and receives of a round before it waits for any, and
//!   they progress independently. There is no barrier.
//! - **EX-6 (every wait ends).** A transfer ends by data, by an error of its own, or by [`Transport::abort`];
//!   deadlines are armed by those who call it.
//! - **EX-7 (order).** Payloads of one round keep their order per ordered pair of members, and only there.
//!
//! A new transport is a module beside [`loopback`], proved by the functions of [`conformance`].
#![forbid(unsafe_code)]

mod batch;
pub mod conformance;
mod error;
pub mod loopback;

pub use batch::{Batch, Capabilities, Transfer, Transport};
pub use error::TransportError;
pub use loopback::{Loopback, LoopbackOptions};
