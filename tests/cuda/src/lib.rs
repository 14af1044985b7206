//! What the tests of the CUDA backend share: processes that find the stand-in, and what it counted in them.
#![cfg(feature = "cuda")]
#![forbid(unsafe_code)]

mod process;

pub use process::{Failure, Standin, in_child, on_standin};

use anyhow::Result;
use driftless_device::cuda::{CudaDevice, CudaOptions};

/// The stand-in's first GPU, without a cache.
///
/// # Errors
/// As [`CudaDevice::open`].
pub fn gpu() -> Result<CudaDevice> {
    Ok(CudaDevice::open(CudaOptions { ordinal: 0, cache: None })?)
}
