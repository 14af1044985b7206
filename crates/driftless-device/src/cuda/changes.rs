//! A patch as it stays on the device.

use super::CudaDevice;
use super::abi::{Address, bytes_of_mut, class_of};
use super::gpu::Gpu;
use super::memory::CudaMemory;
use super::worker::Worker;
use crate::{ChangeList, Changes, Classes, DeviceChanges, DeviceError, DeviceMemory};
use std::any::Any;
use std::sync::Arc;

/// Changes of one source tensor: indices, behind them values, and behind those classes, if they were asked for, in one
/// piece of memory of their exact size.
#[derive(Debug)]
pub(super) struct CudaChanges {
    worker: Arc<Worker>,
    memory: CudaMemory,
    count: usize,
    classes: Classes,
}

/// A list in the window.
#[derive(Clone, Copy)]
pub(super) struct Listed {
    pub(super) indices: Address,
    pub(super) values: Address,
    /// 0: there are none.
    pub(super) classes: Address,
    pub(super) count: usize,
}

impl CudaChanges {
    /// Copies a list out of the window; the copy is on the stream.
    pub(super) fn copied(device: &CudaDevice, gpu: &mut Gpu, listed: Listed) -> Result<Self, DeviceError> {
        let (worker, count) = (Arc::clone(device.worker()), listed.count);
        let (classes, end) = match listed.classes {
            0 => (Classes::LeftOut, classes_offset(count)),
            _ => (Classes::Listed, classes_offset(count) + count),
        };
        let changes = Self { memory: gpu.memory(&worker, end)?, worker, count, classes };
        gpu.copy(changes.indices(), listed.indices, 4 * count)?;
        gpu.copy(changes.values(), listed.values, 2 * count)?;
        if classes == Classes::Listed {
            gpu.copy(changes.class_codes(), listed.classes, count)?;
        }
        Ok(changes)
    }

    pub(super) const fn indices(&self) -> Address {
        self.memory.address()
    }

    pub(super) const fn values(&self) -> Address {
        self.memory.address() + values_offset(self.count) as u64
    }

    /// 0 if there are none.
    pub(super) fn class_codes(&self) -> Address {
        match self.classes {
            Classes::LeftOut => 0,
            Classes::Listed => self.memory.address() + classes_offset(self.count) as u64,
        }
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

const fn classes_offset(count: usize) -> usize {
    values_offset(count) + 2 * count
}

impl DeviceChanges for CudaChanges {
    fn device(&self) -> &str {
        self.worker.name()
    }

    fn count(&self) -> usize {
        self.count
    }

    fn classes(&self) -> Classes {
        self.classes
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn to_host(&self) -> Result<Changes, DeviceError> {
        let (mut indices, mut values) = (vec![0u32; self.count], vec![0u16; self.count]);
        let mut classes = (self.classes == Classes::Listed).then(|| vec![0u8; self.count]);
        if self.count > 0 {
            self.worker.run(|gpu| {
                gpu.download(self.indices(), bytes_of_mut(&mut indices))?;
                gpu.download(self.values(), bytes_of_mut(&mut values))?;
                classes.iter_mut().try_for_each(|classes| gpu.download(self.class_codes(), classes))
            })?;
        }
        let classes = classes.map(|classes| classes.iter().map(class_of).collect());
        Ok(Changes { indices, values, classes })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
