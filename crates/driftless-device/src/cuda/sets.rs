//! Sets of elements on the device, and plain memory.

use super::CudaDevice;
use super::abi::{CountArgs, MarkArgs, bytes_of_mut};
use super::changes::CudaChanges;
use super::memory::CudaMemory;
use crate::{ChangeList, DeviceChanges, DeviceError, DeviceMemory, ElementSet, Elements};

impl CudaDevice {
    /// Memory of zeros.
    pub(super) fn zeroed(&self, bytes: usize) -> Result<CudaMemory, DeviceError> {
        self.worker().run(|gpu| {
            let memory = gpu.memory(self.worker(), bytes)?;
            gpu.clear(memory.address(), bytes)?;
            gpu.finish()?;
            Ok(memory)
        })
    }

    /// A copy of masters.
    pub(super) fn copied(&self, masters: Elements<'_, f32>) -> Result<CudaMemory, DeviceError> {
        let source = self.memory_of(masters)?;
        let bytes = source.map_or(0, DeviceMemory::bytes);
        self.worker().run(|gpu| {
            let memory = gpu.memory(self.worker(), bytes)?;
            if let Some(source) = source {
                gpu.follow(source)?;
                gpu.copy(memory.address(), source.address(), bytes)?;
            }
            gpu.finish()?;
            Ok(memory)
        })
    }

    /// See [`Device::remember`](crate::Device::remember).
    pub(super) fn mark(&self, set: &ElementSet, changes: &ChangeList) -> Result<(), DeviceError> {
        let memory = self.set_memory(set)?;
        let Some(changes) = CudaChanges::of(changes, self)? else { return Ok(()) };
        let args =
            MarkArgs { bits: memory.address(), indices: changes.indices(), count: changes.count() as u64 };
        self.worker().run(|gpu| {
            gpu.follow(memory)?;
            gpu.launch("driftless_mark", args.count, &args)?;
            gpu.finish()
        })
    }

    /// See [`Device::count`](crate::Device::count).
    pub(super) fn count_marks(&self, set: &ElementSet) -> Result<u64, DeviceError> {
        let memory = self.set_memory(set)?;
        let words = memory.bytes() as u64 / 4;
        let mut count = [0u64];
        self.worker().run(|gpu| {
            gpu.follow(memory)?;
            let at = gpu.window(size_of_val(&count))?;
            gpu.clear(at, size_of_val(&count))?;
            let args = CountArgs { bits: memory.address(), count: at, words };
            gpu.launch("driftless_count_bits", words, &args)?;
            gpu.download(at, bytes_of_mut(&mut count))
        })?;
        Ok(count[0])
    }

    fn set_memory<'a>(&self, set: &'a ElementSet) -> Result<&'a CudaMemory, DeviceError> {
        match set {
            ElementSet::Host(_) => Err(self.not_here()),
            ElementSet::Device(buffer) => CudaMemory::of(buffer.memory(), self.worker()),
        }
    }
}
