//! What the driver says, as errors of this crate.

use crate::DeviceError;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// A call of the driver that failed, on `device`.
pub(super) fn driver_failed(device: &str, doing: &'static str, error: DriverError) -> DeviceError {
    let (device, cause) = (device.to_owned(), name_of(error));
    if is_lost(error) {
        return DeviceError::Lost { device, doing, cause };
    }
    DeviceError::Driver { device, doing, cause }
}

/// A kernel that was not launched.
pub(super) fn launch_failed(device: &str, kernel: &str, error: DriverError) -> DeviceError {
    let (device, cause) = (device.to_owned(), name_of(error));
    if is_lost(error) {
        return DeviceError::Lost { device, doing: "launching a kernel", cause };
    }
    DeviceError::Launch { device, kernel: kernel.to_owned(), cause }
}

/// Whether an allocation failed for want of memory.
pub(super) fn is_out_of_memory(error: DriverError) -> bool {
    error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// Errors after which no call on this context succeeds: the memory in it is gone.
fn is_lost(error: DriverError) -> bool {
    use CUresult as Code;
    matches!(
        error.0,
        Code::CUDA_ERROR_DEINITIALIZED
            | Code::CUDA_ERROR_DEVICE_UNAVAILABLE
            | Code::CUDA_ERROR_NO_DEVICE
            | Code::CUDA_ERROR_INVALID_DEVICE
            | Code::CUDA_ERROR_INVALID_CONTEXT
            | Code::CUDA_ERROR_ECC_UNCORRECTABLE
            | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_SYSTEM_NOT_READY
            | Code::CUDA_ERROR_UNKNOWN
    )
}

/// The driver's name for an error, such as `CUDA_ERROR_LAUNCH_FAILED`.
fn name_of(error: DriverError) -> String {
    let name = error.error_name().ok().and_then(|name| name.to_str().ok());
    name.map_or_else(|| format!("error {:?}", error.0), str::to_owned)
}
