//! Bindings: live memory and everything else that must survive the actor that works on it.
//!
//! - **CM-9 (no reuse while a write may run).** A binding has one token. Whoever works on its memory holds the token,
//!   and a restarted actor gets it only after the task of its predecessor has ended.

mod receiver;
mod replica;
mod sender;

pub use receiver::{Live, LiveTensor, ReceiverBinding, Staged, TensorMemory};
pub use replica::{Hook, HookError, ReplicaBinding};
pub use sender::{
    DetectorState, FirstVersion, Knowledge, Patch, Pending, Publish, SenderBinding, SnapshotState,
    SourceBinding, StepRequest, plan_over,
};
