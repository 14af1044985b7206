//! What can be wrong with a call on a device: its arguments, a caller that changed its mind, or the device.

use driftless_codec::CodecError;
use driftless_numerics::Cast;
use driftless_types::{ParamId, Retry};

/// Why a device did nothing, or stopped.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// The cancel flag was raised. A snapshot may be partly ahead: see [`ChangeSource::Snapshot`](crate::ChangeSource).
    #[error("canceled")]
    Canceled,
    /// A slice does not have the length that the plan says.
    #[error("{what}: found {found} elements, expected {expected}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// Its length.
        found: u64,
        /// The plan's.
        expected: u64,
    },
    /// A rule judges bits that another cast makes than the one that was asked for.
    #[error("the rule of piece {piece} is that of a trainer whose cast is {found:?}, expected {expected:?}")]
    Cast {
        /// The piece's number in its tensor.
        piece: usize,
        /// The cast of the rule's family.
        found: Cast,
        /// The cast of the served bits.
        expected: Cast,
    },
    /// No backend has this name.
    #[error("no device is called {0:?}, expected cpu, or cuda:0 for the first GPU")]
    UnknownPlace(String),
    /// The program was built without the backend.
    #[error("{place} needs a program built with its feature `{feature}`: cargo build --features {feature}")]
    NotBuilt {
        /// The device.
        place: String,
        /// The cargo feature.
        feature: &'static str,
    },
    /// There is no driver.
    #[error("no NVIDIA driver: {library} was not found (install the driver, or use cpu)")]
    NoDriver {
        /// What was looked for.
        library: &'static str,
    },
    /// The driver does not load what the kernels' compiler writes.
    #[error("the NVIDIA driver is made for CUDA {}, expected at least {} (install a newer driver)", cuda(*.found), cuda(*.expected))]
    OldDriver {
        /// `1000 * major + 10 * minor`.
        found: i32,
        /// The least that works.
        expected: i32,
    },
    /// The driver shows fewer devices.
    #[error("{device} is not there: the driver shows {count} devices")]
    NoDevice {
        /// The device.
        device: String,
        /// How many there are.
        count: u32,
    },
    /// The kernels are not made for so old a GPU.
    #[error("{device} is of architecture {found}, expected {expected} or newer")]
    Architecture {
        /// The device.
        device: String,
        /// Its architecture.
        found: String,
        /// The oldest one that works.
        expected: &'static str,
    },
    /// An allocation failed.
    #[error("{device} has {free} bytes free of {total}, {wanted} more are needed")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What was asked for.
        wanted: u64,
        /// What is free.
        free: u64,
        /// What there is.
        total: u64,
    },
    /// The kernels could not be made or loaded.
    #[error("the kernels could not be loaded on {device}: {cause}")]
    Kernels {
        /// The device.
        device: String,
        /// Why.
        cause: String,
    },
    /// A kernel was not launched; nothing was written.
    #[error("kernel {kernel} was not launched on {device}: {cause}")]
    Launch {
        /// The device.
        device: String,
        /// The kernel.
        kernel: String,
        /// The driver's name for the error.
        cause: String,
    },
    /// The driver refused a call.
    #[error("{doing} failed on {device}: {cause}")]
    Driver {
        /// The device.
        device: String,
        /// What was being done.
        doing: &'static str,
        /// The driver's name for the error.
        cause: String,
    },
    /// The device is gone, or what this process has on it: nothing works there any more until the process starts anew.
    #[error("{device} is lost since {doing} failed: {cause} (start the process anew)")]
    Lost {
        /// The device.
        device: String,
        /// What was being done when it was found.
        doing: &'static str,
        /// The driver's name for the error.
        cause: String,
    },
    /// Memory is not where the backend works.
    #[error("the memory is on {found}, expected {expected}")]
    Place {
        /// Where it is.
        found: String,
        /// Where the backend works.
        expected: String,
    },
    /// A plan speaks of a parameter that the given table lacks.
    #[error("parameter {0} is not in the table of parameters")]
    UnknownParam(ParamId),
    /// Boxes, cuts, cells or runs of a plan contradict each other or the memory that they speak of.
    #[error("{what} of {name} does not fit: found {found}, expected at most {limit}")]
    Misfit {
        /// Which number of the plan.
        what: &'static str,
        /// The tensor's name, or the fragment's number.
        name: String,
        /// The number.
        found: u64,
        /// What it may be at most.
        limit: u64,
    },
    /// A change set is not one of the fragment's dtype, or its arrays differ in length.
    #[error("fragment {fragment}: the change set has {found}, expected {expected}")]
    ChangeSet {
        /// The fragment's number in the plan.
        fragment: u32,
        /// What the change set is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// A section that arrived is damaged.
    #[error(transparent)]
    Section(CodecError),
    /// A device refused a section in which the host finds nothing wrong.
    #[error("{device} refuses the section of fragment {fragment}, in which the host finds no fault")]
    Disagreement {
        /// The device.
        device: String,
        /// The fragment's number in the plan.
        fragment: u32,
    },
}

impl DeviceError {
    /// Work that was canceled, or that a device refused, can be done by the next attempt. What does not fit a plan or a rule never will.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            // Memory may be free by then, and a launch that failed has done nothing.
            Self::Canceled | Self::OutOfMemory { .. } | Self::Launch { .. } | Self::Driver { .. } => {
                Retry::NewAttempt
            }
            Self::Section(error) => error.retry(),
            _ => Retry::Never,
        }
    }
}

/// A version of CUDA as people write it.
fn cuda(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
