//! Memory that others own, and the kernels that run on it: detect, remap, gather, scatter with undo, digest.
//!
//! [`Device`] is the trait of a backend; [`CpuDevice`] is the one for host memory, and a product of its own: trainers
//! that offload the optimizer run it in place. Kernels are loops over slices that somebody lends; [`SharedBuffer`]
//! is how the memory of a trainer or an engine is lent safely, and [`Buffer`] says where it is.
//!
//! - **DV-1 (no torn access).** A buffer is read and written under guards only.
//! - **DV-2 (undo is exact).** Old words are logged before they are overwritten, and restored in reverse.
//! - **DV-3 (all or nothing per fragment).** A fragment is checked whole before its first write.
//! - **DV-4 (the digest is independent).** Detection digests every element, whatever the detector says of it.
//! - **DV-5 (pending changes are kept).** A set of pending changes is cleared only by a pass that listed all of them.
#![deny(unsafe_op_in_unsafe_fn)]

mod bitset;
mod buffer;
mod changes;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod error;
mod fit;
mod lent;
mod mask;
mod memory;
mod place;
mod sections;
mod undo;

pub use bitset::Bitset;
pub use buffer::{Buffer, DeviceBuffer, DeviceMemory, ElementSet, HOST, HostView, Lent, LentMut};
pub use changes::{ChangeList, DeviceChanges};
pub use cpu::CpuDevice;
pub use device::{
    ChangeSource, Changes, ClassedSet, Classes, DetectOptions, Detected, Device, Pending, PieceDiff,
    PieceRule, Scattered,
};
pub use error::DeviceError;
pub use lent::{Bits, BitsMut, Elements, ElementsMut};
pub use mask::{LentMask, StepMask};
pub use memory::{Element, ReadGuard, SharedBuffer, StateBuffer, WordBuffer, WriteGuard};
pub use place::Place;
pub use sections::{Delivery, DeviceSection, Loaded, Packed};
pub use undo::{DeviceUndo, UndoLog};
