//! Batches of point-to-point transfers between the members of an exchange.
//!
//! A [`Transport`] moves one [`Batch`] per member and round: all sends and receives at once. What an *exchange* is,
//! is said by the fence: its epoch and attempt name it, and the rest of the fence must agree.
//!
//! - **EX-1 (same plan).** A batch whose run, version or plan is not that of its exchange is refused.
//! - **EX-3 (one batch per round).** A member posts all sends and receives of a round before it waits for any, and
//!   they progress independently. There is no barrier.
//! - **EX-6 (every wait ends).** A transfer ends by data, by an error of its own, or by [`Transport::abort`];
//!   deadlines are armed by those who call it.
//! - **EX-7 (order).** Payloads of one round keep their order per ordered pair of members, and only there.
//!
//! A new transport is a module beside `loopback`, proved by the functions of [`conformance`].
//!
//! ```
//! use driftless_transport::{Batch, Loopback, Transport};
//! use driftless_types::{Attempt, Epoch, Fence, Member, Payload, PlanDigest, Round, RunId, SenderId, Version};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), driftless_transport::TransportError> {
//! let [alice, bob] = [Member::Sender(SenderId(0)), Member::Sender(SenderId(1))];
//! let fence = Fence {
//!     run: RunId([7; 16]),
//!     epoch: Epoch { counter: 1, incarnation: 42 },
//!     attempt: Attempt(1),
//!     version: Version(1),
//!     plan: PlanDigest([0; 32]),
//! };
//! let hello = Payload::Host("hello".into());
//! let sends = Batch { fence, round: Round::Payload, me: alice, sends: vec![(bob, hello)], receives: vec![] };
//! let takes = Batch { fence, round: Round::Payload, me: bob, sends: vec![], receives: vec![(alice, 5)] };
//!
//! let loopback = Loopback::default();
//! let (sent, taken) = tokio::join!(loopback.transfer(sends), loopback.transfer(takes));
//! assert!(sent?.is_empty());
//! let (from, Payload::Host(bytes)) = &taken?[0];
//! assert_eq!((*from, &bytes[..]), (alice, &b"hello"[..]));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod batch;
pub mod conformance;
mod error;
mod faulty;
mod loopback;

pub use batch::{Batch, Capabilities, Transfer, Transport};
pub use error::TransportError;
pub use faulty::{Fault, FaultPlan, Faulty};
pub use loopback::{Loopback, LoopbackOptions};
