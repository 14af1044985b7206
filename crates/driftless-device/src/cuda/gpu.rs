//! What the thread of a GPU owns: context, stream, kernels, pinned buffers and the window.
//!
//! - **GT-3 (one window).** Scratch memory is one allocation that grows to what the largest call needs and is shared by
//!   all: beside memory that is handed out, nothing else of this process is on the device but the digest's table.
#![expect(unsafe_code, reason = "calls of the driver")]

use super::CudaOptions;
use super::abi::{Address, KernelArgs, bytes_of};
use super::errors::{driver_failed, is_out_of_memory, launch_failed};
use super::image::Kernels;
use super::memory::{Account, CudaMemory, Trash};
use super::probe::probe;
use super::staging::Staging;
use super::worker::Worker;
use crate::DeviceError;
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUevent, CUevent_flags, CUstream};
use cudarc::driver::{DriverError, result};
use driftless_numerics::{DigestKeys, DigestTable};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Threads of a block, where the device allows as many: the kernels take any multiple of 32 up to 1024.
const THREADS: u32 = 256;
/// Blocks per multiprocessor: kernels loop over their tiles.
const BLOCKS_PER_PROCESSOR: u32 = 4;
/// What kernels need of addresses within the window.
const ALIGNMENT: usize = 256;
/// The oldest architecture of the checked-in PTX: of the GPUs that hold FP32 masters of today's models, the first.
const ARCHITECTURE_MIN: (i32, i32) = (8, 0);

pub(super) struct Gpu {
    name: Arc<str>,
    device: CUdevice,
    stream: CUstream,
    kernels: Option<Kernels>,
    staging: Option<Staging>,
    /// Address and size of the window.
    window: (Address, usize),
    /// The digest's keys that are on the device, and where they or others may be.
    table: Option<Box<DigestTable>>,
    table_at: Address,
    processors: u32,
    threads: u32,
    account: Arc<Account>,
    trash: Arc<Trash>,
    /// Every launch between two events, while somebody measures.
    profile: Option<Vec<(String, Event, Event)>>,
    /// GT-2: why nothing works any more.
    lost: Option<DeviceError>,
}

impl Gpu {
    /// Opens a GPU for the calling thread.
    pub(super) fn open(
        options: &CudaOptions,
        name: Arc<str>,
        account: Arc<Account>,
        trash: Arc<Trash>,
    ) -> Result<Self, DeviceError> {
        let driver = probe()?;
        if options.ordinal >= driver.devices {
            return Err(DeviceError::NoDevice { device: name.to_string(), count: driver.devices });
        }
        let failed = |doing| {
            let name = Arc::clone(&name);
            move |error: DriverError| driver_failed(&name, doing, error)
        };
        let ordinal = i32::try_from(options.ordinal).unwrap_or(i32::MAX);
        let device = result::device::get(ordinal).map_err(failed("finding it"))?;
        let ask = |attribute| {
            // SAFETY: the device was just found.
            unsafe { result::device::get_attribute(device, attribute) }.map_err(failed("asking what it is"))
        };
        use CUdevice_attribute as Ask;
        let architecture = (
            ask(Ask::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            ask(Ask::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if architecture < ARCHITECTURE_MIN {
            let found = format!("sm_{}{}", architecture.0, architecture.1);
            return Err(DeviceError::Architecture { device: name.to_string(), found, expected: "sm_80" });
        }
        let processors = ask(Ask::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let threads = ask(Ask::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        // SAFETY: as above; released in `drop`.
        let context: CUcontext =
            unsafe { result::primary_ctx::retain(device) }.map_err(failed("opening its context"))?;
        // From here on `drop` releases the context.
        let mut gpu = Self {
            device,
            stream: std::ptr::null_mut(),
            kernels: None,
            staging: None,
            window: (0, 0),
            table: None,
            table_at: 0,
            processors: u32::try_from(processors).unwrap_or(1).max(1),
            threads: u32::try_from(threads).map_or(THREADS, |most| THREADS.min(most)),
            account,
            trash,
            profile: None,
            lost: None,
            name: Arc::clone(&name),
        };
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(failed("entering its context"))?;
        gpu.stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(failed("making a stream"))?;
        gpu.staging = Some(Staging::new(gpu.stream).map_err(failed("pinning memory"))?);
        gpu.kernels = Some(Kernels::load(&name, architecture, options.cache.as_deref())?);
        Ok(gpu)
    }

    /// Runs a job of a caller; a panic in it is an error of this device, for nobody knows what it left behind.
    pub(super) fn attempt<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&mut *self))).unwrap_or_else(|_| {
            let (device, cause) = (self.name.to_string(), "a panic on its thread".to_owned());
            Err(DeviceError::Lost { device, doing: "a job", cause })
        });
        match &outcome {
            Ok(_) => {}
            Err(lost @ DeviceError::Lost { .. }) => self.lost = Some(lost.clone()), // GT-2
            // GT-6: what was started before the failure may still use memory that is now given up.
            Err(_) => {
                if let Err(lost @ DeviceError::Lost { .. }) = self.finish() {
                    self.lost = Some(lost.clone());
                    return Err(lost);
                }
            }
        }
        outcome
    }

    fn failed(&self, doing: &'static str) -> impl Fn(DriverError) -> DeviceError + use<> {
        let name = Arc::clone(&self.name);
        move |error| driver_failed(&name, doing, error)
    }

    /// Frees what nobody holds any more.
    pub(super) fn sweep(&mut self) {
        for (address, bytes) in self.trash.take() {
            self.free(address, bytes);
        }
    }

    fn free(&self, address: Address, bytes: usize) {
        // SAFETY: allocated by `allocate`, whose only holder gave it up; every job waits for its work before it ends.
        let _ = unsafe { result::free_sync(address) };
        self.account.remove(bytes);
    }

    /// Memory of `bytes`, with any content; counted as allocated with the second number.
    fn allocate(&mut self, bytes: usize) -> Result<(Address, usize), DeviceError> {
        let rounded = bytes.next_multiple_of(ALIGNMENT);
        self.sweep();
        // SAFETY: whoever reads it writes it first.
        match unsafe { result::malloc_sync(rounded) } {
            Ok(address) => {
                self.account.add(rounded);
                Ok((address, rounded))
            }
            Err(error) if is_out_of_memory(error) => {
                let (free, total) = result::mem_get_info().unwrap_or_default();
                let (wanted, free, total) = (rounded as u64, free as u64, total as u64);
                Err(DeviceError::OutOfMemory { device: self.name.to_string(), wanted, free, total })
            }
            Err(error) => Err(driver_failed(&self.name, "allocating memory", error)),
        }
    }

    /// Memory to hand out; none is allocated for no bytes.
    pub(super) fn memory(&mut self, worker: &Arc<Worker>, bytes: usize) -> Result<CudaMemory, DeviceError> {
        let (address, allocated) = if bytes == 0 { (0, 0) } else { self.allocate(bytes)? };
        Ok(CudaMemory::new(worker, address, bytes, allocated))
    }

    /// GT-3: the window, of at least `bytes`, with any content. What was there before is lost.
    pub(super) fn window(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        if bytes > self.window.1 {
            let (address, size) = std::mem::take(&mut self.window);
            if size > 0 {
                self.free(address, size);
            }
            self.window = self.allocate(bytes)?;
        }
        Ok(self.window.0)
    }

    /// Copies bytes to the device.
    pub(super) fn upload(&mut self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        let failed = self.failed("a copy to the device");
        self.staging.as_mut().map_or(Ok(()), |staging| staging.upload(to, from)).map_err(failed)
    }

    /// Copies bytes from the device, after all work that was started.
    pub(super) fn download(&mut self, from: Address, to: &mut [u8]) -> Result<(), DeviceError> {
        let failed = self.failed("a copy from the device");
        self.staging.as_mut().map_or(Ok(()), |staging| staging.download(from, to)).map_err(failed)
    }

    /// Copies bytes on the device.
    pub(super) fn copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the callers' addresses are those of memory or of the window, with room for as many bytes.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream) };
        copied.map_err(self.failed("a copy on the device"))
    }

    /// Zeros bytes.
    pub(super) fn clear(&mut self, at: Address, bytes: usize) -> Result<(), DeviceError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as in `copy`.
        let cleared = unsafe { result::memset_d8_async(at, 0, bytes, self.stream) };
        cleared.map_err(self.failed("zeroing memory"))
    }

    /// Threads of a block.
    pub(super) const fn threads(&self) -> u32 {
        self.threads
    }

    /// Starts a kernel over work for so many threads, on fewer if there are not as many; on none for no work.
    pub(super) fn launch<A: KernelArgs>(
        &mut self,
        kernel: &str,
        work_threads: u64,
        args: &A,
    ) -> Result<(), DeviceError> {
        let blocks = work_threads.div_ceil(u64::from(self.threads));
        let grid = blocks.min(u64::from(self.processors * BLOCKS_PER_PROCESSOR));
        let grid = u32::try_from(grid).unwrap_or(u32::MAX);
        if grid == 0 {
            return Ok(());
        }
        let function = self.kernels.as_ref().and_then(|kernels| kernels.function(kernel));
        let function = function.ok_or_else(|| DeviceError::Kernels {
            device: self.name.to_string(),
            cause: format!("there is no kernel {kernel}"),
        })?;
        let mut params = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let (grid, block) = ((grid, 1, 1), (self.threads, 1, 1));
        let first = self.mark()?;
        // SAFETY: a kernel takes one structure, which is copied before the call returns; `A` is that of this kernel, and
        // its addresses are those of memory that the callers hold until `finish`.
        let launched = unsafe { result::launch_kernel(function, grid, block, 0, self.stream, &mut params) };
        launched.map_err(|error| launch_failed(&self.name, kernel, error))?;
        // What was launched is launched, whether or not it can be timed (DV-2).
        if let (Some(first), Ok(Some(last))) = (first, self.mark())
            && let Some(profile) = &mut self.profile
        {
            profile.push((kernel.to_owned(), first, last));
        }
        Ok(())
    }

    /// An event at this point of the stream, while somebody measures.
    fn mark(&self) -> Result<Option<Event>, DeviceError> {
        if self.profile.is_none() {
            return Ok(None);
        }
        let failed = self.failed("timing kernels");
        let event = Event::new(CUevent_flags::CU_EVENT_DEFAULT).map_err(&failed)?;
        // SAFETY: event and stream are alive.
        unsafe { result::event::record(event.0, self.stream) }.map_err(failed)?;
        Ok(Some(event))
    }

    /// Times every launch from now on.
    pub(super) fn start_profile(&mut self) {
        self.profile = Some(Vec::new());
    }

    /// The launches since then, in order, each with its milliseconds on the device.
    pub(super) fn take_profile(&mut self) -> Result<Vec<(String, f32)>, DeviceError> {
        self.finish()?;
        let failed = self.failed("timing kernels");
        let launches = self.profile.take().unwrap_or_default().into_iter();
        let timed = launches.map(|(kernel, first, last)| {
            // SAFETY: both were recorded on one stream, and have passed.
            let ms = unsafe { result::event::elapsed(first.0, last.0) }.map_err(&failed)?;
            Ok((kernel, ms))
        });
        timed.collect()
    }

    /// Waits for all work that was started.
    pub(super) fn finish(&mut self) -> Result<(), DeviceError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }.map_err(self.failed("waiting for kernels"))
    }

    /// Everything from here on comes after what the memory's owner has put on its own stream.
    pub(super) fn follow(&mut self, memory: &CudaMemory) -> Result<(), DeviceError> {
        let Some(stream) = memory.stream() else { return Ok(()) };
        let failed = self.failed("ordering behind a stream of somebody else");
        let event = Event::new(CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(&failed)?;
        let theirs = stream.0 as CUstream;
        // SAFETY: `adopt`'s caller vouches for the stream. The driver keeps what a wait needs after the event is gone.
        unsafe { result::event::record(event.0, theirs) }.map_err(&failed)?;
        let flags = cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: our own stream, and an event that was recorded.
        unsafe { result::stream::wait_event(self.stream, event.0, flags) }.map_err(failed)
    }

    /// The digest's keys on the device.
    pub(super) fn table(&mut self, keys: &DigestKeys) -> Result<Address, DeviceError> {
        let wanted = keys.table();
        if self.table_at == 0 {
            (self.table_at, _) = self.allocate(size_of::<DigestTable>())?;
        }
        let is_there = self.table.as_ref().is_some_and(|known| bytes_of(&[**known]) == bytes_of(&[wanted]));
        if !is_there {
            self.table = None;
            self.upload(self.table_at, bytes_of(&[wanted]))?;
            self.table = Some(Box::new(wanted));
        }
        Ok(self.table_at)
    }

    /// What the driver calls the device.
    pub(super) fn model(&self) -> Result<String, DeviceError> {
        result::device::get_name(self.device).map_err(self.failed("asking for its name"))
    }

    /// Milliseconds of the device for one copy.
    pub(super) fn time_copy(&mut self, to: Address, from: Address, bytes: usize) -> Result<f32, DeviceError> {
        let before = self.profile.replace(Vec::new());
        let (first, copied) = (self.mark()?, self.copy(to, from, bytes));
        let last = self.mark()?;
        self.profile = before;
        copied?;
        self.finish()?;
        let (Some(first), Some(last)) = (first, last) else { return Ok(0.0) };
        // SAFETY: both were recorded on one stream, and have passed.
        unsafe { result::event::elapsed(first.0, last.0) }.map_err(self.failed("timing a copy"))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.sweep();
        for (address, bytes) in [self.window, (self.table_at, size_of::<DigestTable>())] {
            if address != 0 {
                self.free(address, bytes.next_multiple_of(ALIGNMENT));
            }
        }
        (self.staging, self.kernels) = (None, None);
        if !self.stream.is_null() {
            // SAFETY: made in `open`; a context that is broken refuses.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
        // SAFETY: retained in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// An event that is destroyed when it is dropped.
struct Event(CUevent);

impl Event {
    fn new(flags: CUevent_flags) -> Result<Self, DriverError> {
        result::event::create(flags).map(Self)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed nowhere else.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Where things lie in one stretch of memory, each aligned for any kernel.
#[derive(Debug, Default)]
pub(super) struct Layout {
    bytes: usize,
}

impl Layout {
    /// Room for `bytes`; gives its offset.
    pub(super) fn room(&mut self, bytes: usize) -> usize {
        let offset = self.bytes;
        self.bytes = (offset + bytes).next_multiple_of(ALIGNMENT);
        offset
    }

    /// The whole stretch, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}
