//! Keeps a fleet of rollout engines bit-identical to their trainer by sending only what changed.
//!
//! A [`Node`] is built from a [`RemapPlan`], which model, trainer layout and rollout layouts give. A trainer attaches
//! its FP32 masters and moments, a rollout attaches its live weights, both as memory that they go on owning. After
//! each optimizer step the training loop says [`Trainer::step_done`]; what changed is found, moved, proven and
//! switched to by actors that restart whatever dies.
//!
//! `examples/embedded` is a whole orchestrator in about a hundred lines.
#![forbid(unsafe_code)]

mod error;
pub mod log;
mod node;
mod rollout;
mod sync;
mod trainer;

pub use error::NodeError;
pub use node::Node;
pub use rollout::{LayoutClaim, Rollout, RolloutMemory, Serving};
pub use sync::{Outcome, SyncHandle};
pub use trainer::{StepGuard, Trainer, TrainerMemory};

pub use driftless_runtime::binding::{HookError, SourceBinding, TensorMemory};
pub use driftless_runtime::device::{
    Bitset, Buffer, CpuDevice, Device, DeviceError, HostView, Place, StateBuffer, StepMask, WordBuffer,
};
pub use driftless_runtime::layout::{
    DestTensor, LayoutError, Model, ModelConfig, ReceiverPlan, RemapPlan, RolloutLayout, SenderPlan,
    ServedDtypes, SourceTensor, Strides, TrainerLayout,
};
pub use driftless_runtime::numerics::bf16;
pub use driftless_runtime::numerics::{
    Family, GroupStep, Hyperparameters, Moments, NotInvertible, Optimizer, StepParams,
};
pub use driftless_runtime::proto::{AttemptStep, Cause, Effect, ReplicaOutcome, RootCause};
pub use driftless_runtime::types::{
    Digest, Dtype, Epoch, Fqn, Member, ReceiverId, ReplicaId, RunId, SenderId, Shape, Version,
};
pub use driftless_runtime::{Detector, Failpoints, Fault, NodeOptions, Phase, Site, SyncReport};
