//! The name of a backend, as options and configurations have it.

use crate::{CpuDevice, Device, DeviceError};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Where weights are and kernels run: `cpu`, or `cuda:0` for the first GPU.
///
/// ```
/// use driftless_device::Place;
/// let place: Place = "cpu".parse()?;
/// assert_eq!(place.open()?.zeros(3)?.len(), 3);
/// assert_eq!("cuda:1".parse(), Ok(Place::Cuda(1)));
/// # Ok::<(), driftless_device::DeviceError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// The host.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its ordinal.
    Cuda(u32),
}

impl Place {
    /// Opens the backend. Nothing else takes over if that fails.
    ///
    /// # Errors
    /// A program without this backend, or a machine without this device.
    pub fn open(self) -> Result<Arc<dyn Device>, DeviceError> {
        match self {
            Self::Cpu => Ok(Arc::new(CpuDevice::new())),
            Self::Cuda(ordinal) => open_cuda(ordinal),
        }
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(ordinal: u32) -> Result<Arc<dyn Device>, DeviceError> {
    use crate::cuda::{CudaDevice, CudaOptions};
    Ok(Arc::new(CudaDevice::open(CudaOptions::new(ordinal))?))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(ordinal: u32) -> Result<Arc<dyn Device>, DeviceError> {
    Err(DeviceError::NotBuilt { place: Place::Cuda(ordinal).to_string(), feature: "cuda" })
}

impl FromStr for Place {
    type Err = DeviceError;
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        if text == "cpu" {
            return Ok(Self::Cpu);
        }
        let ordinal = text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
        ordinal.map(Self::Cuda).ok_or_else(|| DeviceError::UnknownPlace(text.to_owned()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
