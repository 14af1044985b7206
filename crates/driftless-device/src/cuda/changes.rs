//! A patch as it stays on the device.

use super::CudaDevice;
use super::abi::{Address, bytes_of_mut};
use super::gpu::Gpu;
use super::memory::CudaMemory;
use super::worker::Worker;
use crate::{ChangeList, Changes, DeviceChanges, DeviceError, DeviceMemory};
use std::any::Any;
use std::sync::Arc;

/// Changes of one source tensor: indices, and behind them values, in one piece of memory of their exact size.
#[derive(Debug)]
pub(super) struct CudaChanges {
    worker: Arc<Worker>,
    memory: CudaMemory,
    count: usize,
}

impl CudaChanges {
    /// Copies a list out of the window; the copy is on the stream.
    pub(super) fn copied(
        device: &CudaDevice,
        gpu: &mut Gpu,
        indices: Address,
        values: Address,
        count: usize,
    ) -> Result<Self, DeviceError> {
        let worker = Arc::clone(device.worker());
        let memory = gpu.memory(&worker, values_offset(count) + 2 * count)?;
        gpu.copy(memory.address(), indices, 4 * count)?;
        gpu.copy(memory.address() + values_offset(count) as u64, values, 2 * count)?;
        Ok(Self { worker, memory, count })
    }

    pub(super) const fn indices(&self) -> Address {
        self.memory.address()
    }

    pub(super) const fn values(&self) -> Address {
        self.memory.address() + values_offset(self.count) as u64
    }

    /// The list behind a handle, if it is on this GPU; `None` for an empty list of anywhere.
    pub(super) fn of<'a>(list: &'a ChangeList, device: &CudaDevice) -> Result<Option<&'a Self>, DeviceError> {
        if list.count() == 0 {
            return Ok(None);
        }
        let ChangeList::Device(changes) = list else { return Err(device.not_here()) };
        let found = changes.as_any().downcast_ref::<Self>();
        let found = found.filter(|found| Arc::ptr_eq(&found.worker, device.worker()));
        let misplaced = || DeviceError::Place {
            found: changes.device().to_owned(),
            expected: device.worker().name().to_owned(),
        };
        found.map(Some).ok_or_else(misplaced)
    }
}

/// Values begin where any kernel may read them.
const fn values_offset(count: usize) -> usize {
    (4 * count).next_multiple_of(16)
}

impl DeviceChanges for CudaChanges {
    fn device(&self) -> &str {
        self.worker.name()
    }

    fn count(&self) -> usize {
        self.count
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn to_host(&self) -> Result<Changes, DeviceError> {
        let (mut indices, mut values) = (vec![0u32; self.count], vec![0u16; self.count]);
        if self.count > 0 {
            self.worker.run(|gpu| {
                gpu.download(self.indices(), bytes_of_mut(&mut indices))?;
                gpu.download(self.values(), bytes_of_mut(&mut values))
            })?;
        }
        Ok(Changes { indices, values })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
