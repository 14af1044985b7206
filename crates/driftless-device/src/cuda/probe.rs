//! Whether there is a driver, asked once, and never by a call that panics without one.
#![expect(unsafe_code, reason = "calls of the driver")]

use super::errors::driver_failed;
use crate::DeviceError;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{result, sys};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// The driver must load what NVRTC 13.0 writes: `1000 * major + 10 * minor`.
const DRIVER_VERSION_MIN: i32 = 13_000;

/// The machine's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA that it knows: `1000 * major + 10 * minor`.
    pub version: i32,
    /// How many GPUs it shows.
    pub devices: u32,
}

/// Looks for the driver; the first answer holds for the life of the process.
///
/// # Errors
/// [`DeviceError::NoDriver`], [`DeviceError::OldDriver`], or what the driver says.
pub fn probe() -> Result<Driver, DeviceError> {
    static FOUND: OnceLock<Result<Driver, DeviceError>> = OnceLock::new();
    FOUND.get_or_init(|| catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| Err(broken()))).clone()
}

fn ask() -> Result<Driver, DeviceError> {
    // SAFETY: loads a library by its usual names; the initializers of NVIDIA's libraries may run at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver { library: "libcuda.so.1" });
    }
    match result::init() {
        Ok(()) => {}
        Err(error) if error.0 == CUresult::CUDA_ERROR_NO_DEVICE => {
            return Ok(Driver { version: DRIVER_VERSION_MIN, devices: 0 });
        }
        Err(error) => return Err(driver_failed("cuda", "starting the driver", error)),
    }
    let mut version = 0;
    // SAFETY: the pointer is that of a local integer.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
    asked.map_err(|error| driver_failed("cuda", "asking for the driver's version", error))?;
    if version < DRIVER_VERSION_MIN {
        return Err(DeviceError::OldDriver { found: version, expected: DRIVER_VERSION_MIN });
    }
    let devices =
        result::device::get_count().map_err(|error| driver_failed("cuda", "counting devices", error))?;
    Ok(Driver { version, devices: u32::try_from(devices).unwrap_or(0) })
}

/// A library of that name without the functions of a driver.
fn broken() -> DeviceError {
    DeviceError::Driver {
        device: "cuda".into(),
        doing: "loading libcuda.so.1",
        cause: "it lacks a function that every driver has".into(),
    }
}
