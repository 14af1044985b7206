//! The actors of Driftless and everything that outlives them.
//!
//! Bindings ([`binding`]) hold what must survive: weights, undo log, digests, patch. Actors hold the pure
//! machines of `driftless-proto` and execute their commands over the backends. A supervisor, itself watched by the [`Host`],
//! starts whoever died again with the binding it had. The [`Ledger`] knows of each version who has it and what it cost.
//!
//! What this crate keeps, beyond what the machines decide (the full text is the crate doc of `driftless-proto`):
//! - **CM-1** a replica's version moves only when its lead knows that all receivers have committed it;
//! - **CM-3** an undo restores every bit and is finished before anything else touches the memory;
//! - **CM-5** epochs and incarnations are counted outside the actors that bear them;
//! - **CM-7** a fragment without changes costs one record, whose digest proves it all the same;
//! - **CM-9** whoever works on a binding's memory holds its token;
//! - **CM-10** sealing twice is sealing once;
//! - **CM-13** no handler awaits peer IO, a hook or a token;
//! - **CM-14** a binding says that its weights are torn before the first word is written in place, and until they are
//!   sealed;
//! - **CM-15** a replica whose receiver rests is brought to one version without it;
//! - **EX-2** the sizes of round 1 are computed from the plan alone; **EX-6** every wait ends.
//!
//! Most programs use the crate `driftless`, which wraps all of this in `Node`, `Trainer` and `Rollout`.
#![forbid(unsafe_code)]

mod actor;
pub mod binding;
mod failpoints;
mod host;
mod journey;
mod ledger;
pub mod log;
mod options;
pub mod probe;
mod rest;
mod shared;
mod work;

pub use driftless_codec as codec;
pub use driftless_device as device;
pub use driftless_layout as layout;
pub use driftless_numerics as numerics;
pub use driftless_proto as proto;
pub use driftless_store as store;
pub use driftless_types as types;

pub use actor::Child;
pub use failpoints::{Failpoints, Fault, Site};
pub use host::{Host, HostError};
pub use journey::Step;
pub use ledger::{Ledger, Phase, SyncReport};
pub use options::{Detector, NodeOptions};
pub use shared::{Registry, Shared, Standing};
