//! The actors of Driftless and everything that outlives them.
//!
//! Bindings ([`binding`]) hold what must survive: weights, undo log, digests, patch. Actors hold the pure
//! machines of `driftless-proto` and execute their commands over the backends. A supervisor, itself watched by the [`Host`],
//! starts whoever died again with the binding it had. The [`Ledger`] knows of each version who has it and what it cost.
//!
//! Most programs use the crate `driftless`, which wraps all of this in `Node`, `Trainer` and `Rollout`.
#![forbid(unsafe_code)]

mod actor;
pub mod binding;
mod failpoints;
mod host;
mod ledger;
mod options;
mod shared;
mod work;

pub use driftless_device as device;
pub use driftless_layout as layout;
pub use driftless_numerics as numerics;
pub use driftless_proto as proto;
pub use driftless_types as types;

pub use failpoints::{Failpoints, Fault, Site};
pub use host::{Host, HostError};
pub use ledger::{Ledger, Phase, SyncReport};
pub use options::{Detector, NodeOptions};
pub use shared::{Registry, Shared, Standing};
