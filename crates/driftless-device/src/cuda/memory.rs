//! Memory on a GPU: whose it is, how much there is, and what becomes of it.
//!
//! - **GT-6 (a call is an interval).** What the owner of a memory had put on its stream comes before everything that a
//!   call does with the memory; when the call returns, well or not, everything that it started is done.
#![expect(unsafe_code, reason = "memory of a trainer or an engine comes as a raw address")]

use super::CudaDevice;
use super::abi::Address;
use super::worker::Worker;
use crate::{DeviceBuffer, DeviceError, DeviceMemory, Element};
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What this process has allocated on a GPU; memory of others is not counted.
#[derive(Debug, Default)]
pub(super) struct Account {
    live: AtomicU64,
    peak: AtomicU64,
}

impl Account {
    pub(super) fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes as u64, Ordering::AcqRel) + bytes as u64;
        self.peak.fetch_max(live, Ordering::AcqRel);
    }

    pub(super) fn remove(&self, bytes: usize) {
        self.live.fetch_sub(bytes as u64, Ordering::AcqRel);
    }
}

/// Bytes that a [`CudaDevice`] has allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Now.
    pub live_bytes: u64,
    /// The most at any time since the device was opened, or since [`CudaDevice::reset_peak`].
    pub peak_bytes: u64,
}

impl Account {
    pub(super) fn read(&self) -> MemoryUse {
        MemoryUse {
            live_bytes: self.live.load(Ordering::Acquire),
            peak_bytes: self.peak.load(Ordering::Acquire),
        }
    }

    pub(super) fn reset_peak(&self) {
        self.peak.store(self.live.load(Ordering::Acquire), Ordering::Release);
    }
}

/// Memory that nobody holds any more, until the GPU's thread frees it: address and size in bytes.
#[derive(Debug, Default)]
pub(super) struct Trash(Mutex<Vec<(Address, usize)>>);

impl Trash {
    /// Puts memory there; gives whether there was none, so that somebody has to tell the thread.
    pub(super) fn put(&self, address: Address, bytes: usize) -> bool {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        memory.push((address, bytes));
        memory.len() == 1
    }

    pub(super) fn take(&self) -> Vec<(Address, usize)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A stream of somebody else, as a driver handle (`CUstream`): what was put on it before is done before anything of ours
/// touches the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalStream(pub u64);

/// Some bytes on a GPU.
pub(super) struct CudaMemory {
    worker: Arc<Worker>,
    address: Address,
    bytes: usize,
    holder: Holder,
}

enum Holder {
    /// Allocated here, this many bytes.
    Us(usize),
    /// Allocated by somebody else, who is kept alive.
    Other { stream: Option<ExternalStream>, _owner: Box<dyn Any + Send + Sync> },
}

impl CudaMemory {
    /// Zeroed or not, as `work` on the GPU's thread made it.
    pub(super) fn new(worker: &Arc<Worker>, address: Address, bytes: usize, allocated: usize) -> Self {
        Self { worker: Arc::clone(worker), address, bytes, holder: Holder::Us(allocated) }
    }

    pub(super) const fn address(&self) -> Address {
        self.address
    }

    /// The stream to order against.
    pub(super) const fn stream(&self) -> Option<ExternalStream> {
        match &self.holder {
            Holder::Us(_) => None,
            Holder::Other { stream, .. } => *stream,
        }
    }

    /// The memory behind a handle, if it is of this GPU.
    pub(super) fn of<'a>(memory: &'a dyn DeviceMemory, worker: &Worker) -> Result<&'a Self, DeviceError> {
        let found =
            memory.as_any().downcast_ref::<Self>().filter(|found| std::ptr::eq(&*found.worker, worker));
        found.ok_or_else(|| DeviceError::Place {
            found: memory.device().to_owned(),
            expected: worker.name().to_owned(),
        })
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<(), DeviceError> {
        let end = offset.saturating_add(bytes);
        if end > self.bytes {
            let (found, expected) = (end as u64, self.bytes as u64);
            return Err(DeviceError::Length { what: "bytes of a copy", found, expected });
        }
        Ok(())
    }
}

impl DeviceMemory for CudaMemory {
    fn device(&self) -> &str {
        self.worker.name()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, to.len())?;
        self.worker.run(|gpu| {
            gpu.follow(self)?;
            gpu.download(self.address + offset as u64, to)
        })
    }

    fn upload(&self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        self.check(offset, from.len())?;
        self.worker.run(|gpu| {
            gpu.follow(self)?;
            gpu.upload(self.address + offset as u64, from)?;
            gpu.finish()
        })
    }

    fn clear(&self) -> Result<(), DeviceError> {
        self.worker.run(|gpu| {
            gpu.follow(self)?;
            gpu.clear(self.address, self.bytes)?;
            gpu.finish()
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        if let Holder::Us(allocated) = self.holder
            && self.address != 0
        {
            self.worker.give_back(self.address, allocated);
        }
    }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMemory").field("device", &self.worker.name()).field("bytes", &self.bytes).finish()
    }
}

impl CudaDevice {
    /// A buffer of `len` elements over memory of this GPU that `owner` keeps alive: it is dropped with the last handle.
    /// The address must be a multiple of 16.
    ///
    /// # Errors
    /// An address that is not.
    ///
    /// # Safety
    /// Until `owner` is dropped, the caller guarantees that
    /// - `address` is a device address of this GPU's primary context, valid for reads and writes of `len` elements;
    /// - all work that writes it was put on `stream`, or is done, when a method of the device is called with it, and
    ///   nobody else writes it until that method returns, nor reads it while the method may write.
    pub unsafe fn adopt<T: Element>(
        &self,
        address: u64,
        len: usize,
        stream: Option<ExternalStream>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<DeviceBuffer<T>, DeviceError> {
        if !address.is_multiple_of(16) {
            let name = format!("memory at {address:#x}");
            return Err(DeviceError::Misfit { what: "the last 4 bits", name, found: address % 16, limit: 0 });
        }
        let bytes = len * size_of::<T>();
        let holder = Holder::Other { stream, _owner: owner };
        let memory = CudaMemory { worker: Arc::clone(self.worker()), address, bytes, holder };
        Ok(DeviceBuffer::new(Box::new(memory)))
    }
}
