//! The actors. A handler does four things: it feeds a machine, takes its commands, starts each against a backend, and
//! has the outcome mailed to itself.
//!
//! - **CM-13 (no blocked mailbox).** No handler awaits peer IO, a hook, or a token: all of that runs in [`Tasks`].

mod coordinator;
mod receiver;
mod shard;
mod supervisor;
mod tasks;

pub(crate) use coordinator::{CoordinatorActor, CoordinatorMsg};
pub(crate) use receiver::{ReceiverActor, ReceiverMsg};
pub(crate) use shard::{ShardActor, ShardMsg};
pub use supervisor::Child;
pub(crate) use supervisor::{Supervisor, SupervisorMsg};
pub(crate) use tasks::Tasks;
