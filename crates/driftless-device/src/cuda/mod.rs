//! NVIDIA GPUs: the kernels of `kernels/` through the driver, which is loaded when a device is opened.
//!
//! - **GT-1 (one thread).** Context, streams and modules of a GPU are touched by its own thread alone; callers hand it
//!   closures through a bounded queue, and wait for the answer.
//! - **GT-2 (broken once).** After an error that breaks the context every later call is that error, at once.
//! - **GT-3 (one window).** Scratch memory is one allocation that grows to what the largest call needs and is shared by
//!   all: beside memory that is handed out, nothing else of this process is on the device but the digest's table.
//! - **GT-4 (a cache is a copy).** A compiled image is named by all that it is made of, appears whole or not at all, and
//!   is made anew if it does not load: so a cache may be deleted, shared or damaged at any time.
//! - **GT-5 (believed when checked).** A section is handed out only after the kernel that decodes it has looked at every
//!   offset.
//! - **GT-6 (a call is an interval).** What the owner of a memory had put on its stream comes before everything that a
//!   call does with the memory; when the call returns, well or not, everything that it started is done. So memory of a
//!   caller is in use only while the caller waits, and whoever goes on afterwards, on any stream, finds it whole.
//!
//! The driver's calls are made without owning more than a stream: kernels, copies and answers of one call follow each
//! other.

mod abi;
mod changes;
mod detect;
mod errors;
mod gather;
mod gpu;
mod image;
mod memory;
mod parts;
mod peek;
mod probe;
mod remap;
mod scatter;
mod sections;
mod sets;
mod slots;
mod sources;
mod staging;
mod worker;

pub use memory::{ExternalStream, MemoryUse};
pub use probe::{Driver, probe};
pub use sources::kernel_names;

use crate::fit::{FragmentFit, check_classes};
use crate::{
    Buffer, ChangeList, ChangeSource, ClassedSet, Classes, Delivery, DetectOptions, Detected, Device,
    DeviceBuffer, DeviceError, Element, ElementSet, Elements, ElementsMut, HOST, Loaded, Packed, Scattered,
    UndoLog,
};
use driftless_codec::FramedSection;
use driftless_layout::{DestTensor, Fragment, ParamMeta, SourceTensor};
use driftless_numerics::{Cast, DigestKeys};
use driftless_types::{ChangeSet, Digest};
use memory::CudaMemory;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use worker::Worker;

/// How a GPU is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which one, as the driver counts them.
    pub ordinal: u32,
    /// Where compiled kernels are kept; `None`: nowhere, they are compiled at every start.
    pub cache: Option<PathBuf>,
}

impl CudaOptions {
    /// The GPU of this ordinal, with the cache in the user's folder for such things.
    #[must_use]
    pub fn new(ordinal: u32) -> Self {
        let of_user = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let of_home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        Self { ordinal, cache: of_user.or_else(of_home).map(|folder| folder.join("driftless")) }
    }
}

/// A GPU of this process. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct CudaDevice {
    worker: Arc<Worker>,
}

impl CudaDevice {
    /// Opens a GPU and loads the kernels: compiled for it, or from the cache, or from PTX where NVRTC is missing.
    ///
    /// # Errors
    /// No driver, an old one, no such device, one that is too old, or kernels that cannot be loaded.
    pub fn open(options: CudaOptions) -> Result<Self, DeviceError> {
        Ok(Self { worker: Worker::start(options)? })
    }

    /// What this handle and its clones have allocated; memory of others is not counted.
    #[must_use]
    pub fn memory_use(&self) -> MemoryUse {
        self.worker.account.read()
    }

    /// Forgets the peak: it is what is allocated now.
    pub fn reset_peak(&self) {
        self.worker.account.reset_peak();
    }

    /// Memory of this GPU, with any content.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn uninitialized<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>, DeviceError> {
        let memory = self.worker.run(|gpu| gpu.memory(&self.worker, len * size_of::<T>()))?;
        Ok(DeviceBuffer::new(Box::new(memory)))
    }

    /// Copies one buffer into another on the device, `rounds` times; gives the median of the milliseconds that the device
    /// took for one: the bandwidth that kernels are measured against.
    ///
    /// # Errors
    /// Memory of another place or length, or a device that fails.
    pub fn time_copy(
        &self,
        to: &DeviceBuffer<f32>,
        from: &DeviceBuffer<f32>,
        rounds: usize,
    ) -> Result<f32, DeviceError> {
        let (to, from) =
            (CudaMemory::of(to.memory(), &self.worker)?, CudaMemory::of(from.memory(), &self.worker)?);
        let bytes = crate::DeviceMemory::bytes(to);
        if crate::DeviceMemory::bytes(from) != bytes {
            let (found, expected) = (crate::DeviceMemory::bytes(from) as u64, bytes as u64);
            return Err(DeviceError::Length { what: "the bytes of a copy", found, expected });
        }
        self.worker.run(|gpu| {
            gpu.follow(from)?;
            gpu.follow(to)?;
            let mut times = Vec::with_capacity(rounds);
            for _ in 0..rounds {
                times.push(gpu.time_copy(to.address(), from.address(), bytes)?);
            }
            times.sort_by(f32::total_cmp);
            Ok(times.get(rounds / 2).copied().unwrap_or_default())
        })
    }

    /// Times every kernel that `work` launches, by events; gives their names and milliseconds, in order.
    ///
    /// # Errors
    /// What `work` fails with, or a device that fails.
    pub fn profile<R>(
        &self,
        work: impl FnOnce() -> Result<R, DeviceError>,
    ) -> Result<(R, Vec<(String, f32)>), DeviceError> {
        self.worker.run(|gpu| {
            gpu.start_profile();
            Ok(())
        })?;
        let done = work();
        let launches = self.worker.run(|gpu| gpu.take_profile())?;
        Ok((done?, launches))
    }

    /// What the device is called, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// A device that fails.
    pub fn model(&self) -> Result<String, DeviceError> {
        self.worker.run(|gpu| gpu.model())
    }

    fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Memory of the host, where memory of this GPU is needed.
    fn not_here(&self) -> DeviceError {
        DeviceError::Place { found: HOST.to_owned(), expected: self.worker.name().to_owned() }
    }

    /// What is lent, if it is on this GPU; `None` for nothing at all, wherever it is.
    fn memory_of<'a, T: Element>(
        &self,
        lent: Elements<'a, T>,
    ) -> Result<Option<&'a CudaMemory>, DeviceError> {
        match lent {
            Elements::Host([]) => Ok(None),
            Elements::Host(_) => Err(self.not_here()),
            Elements::Device(memory) => CudaMemory::of(memory, &self.worker).map(Some),
        }
    }

    fn memory_of_mut<'a, T: Element>(
        &self,
        lent: &'a ElementsMut<'_, T>,
    ) -> Result<Option<&'a CudaMemory>, DeviceError> {
        match lent {
            ElementsMut::Host([]) => Ok(None),
            ElementsMut::Host(_) => Err(self.not_here()),
            ElementsMut::Device(memory) => CudaMemory::of(*memory, &self.worker).map(Some),
        }
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        self.worker.name()
    }

    fn detect(
        &self,
        tensor: &SourceTensor,
        params: &[ParamMeta],
        source: ChangeSource<'_>,
        options: DetectOptions<'_>,
        keys: &DigestKeys,
        cancel: &AtomicBool,
    ) -> Result<Detected, DeviceError> {
        self.detect_tensor(tensor, params, &source, &options, keys, cancel)
    }

    fn remap(&self, changes: &[ChangeList], fragment: &Fragment) -> Result<ChangeSet, DeviceError> {
        let mut sets = self.remap_fragments(changes, &[fragment], Classes::LeftOut)?;
        Ok(sets.pop().unwrap_or_default().into())
    }

    fn remap_all(
        &self,
        changes: &[ChangeList],
        fragments: &[&Fragment],
    ) -> Result<Vec<ChangeSet>, DeviceError> {
        let sets = self.remap_fragments(changes, fragments, Classes::LeftOut)?;
        Ok(sets.into_iter().map(ChangeSet::from).collect())
    }

    fn pack(&self, changes: &[ChangeList], fragments: &[&Fragment]) -> Result<Vec<Packed>, DeviceError> {
        self.pack_fragments(changes, fragments)
    }

    fn remap_classed(
        &self,
        changes: &[ChangeList],
        fragments: &[&Fragment],
    ) -> Result<Vec<ClassedSet>, DeviceError> {
        check_classes(changes)?;
        self.remap_fragments(changes, fragments, Classes::Listed)
    }

    fn gather(
        &self,
        masters: &[Elements<'_, f32>],
        fragment: &Fragment,
        cast: Cast,
    ) -> Result<ChangeSet, DeviceError> {
        self.gather_fragment(masters, fragment, cast)
    }

    fn scatter(
        &self,
        dst: ElementsMut<'_, u16>,
        fragment: &Fragment,
        param_cols: u64,
        changes: &ChangeSet,
        keys: &DigestKeys,
        undo: &mut UndoLog,
    ) -> Result<Scattered, DeviceError> {
        let fit = FragmentFit::new(dst.len(), fragment, param_cols)?;
        match self.memory_of_mut(&dst)? {
            Some(memory) => self.scatter_fragment(memory, &fit, changes, keys, undo),
            None => fit.check(changes).map(|()| Scattered::default()),
        }
    }

    fn load(&self, sections: Vec<FramedSection>) -> Result<Vec<Loaded>, DeviceError> {
        self.load_sections(&sections)
    }

    fn deliver(
        &self,
        dst: ElementsMut<'_, u16>,
        deliveries: Vec<Delivery<'_>>,
        keys: &DigestKeys,
        undo: &mut UndoLog,
    ) -> Result<Vec<Scattered>, DeviceError> {
        match self.memory_of_mut(&dst)? {
            Some(memory) => self.deliver_sections(memory, deliveries, keys, undo),
            None => Err(self.not_here()),
        }
    }

    fn read_at(
        &self,
        words: Elements<'_, u16>,
        fragment: &Fragment,
        param_cols: u64,
        positions: &[u32],
    ) -> Result<Vec<u16>, DeviceError> {
        let fit = FragmentFit::new(words.len(), fragment, param_cols)?;
        match self.memory_of(words)?.filter(|_| !positions.is_empty()) {
            Some(memory) => self.peek(memory, &fit, positions),
            None => fit.check_positions(positions).map(|()| Vec::new()),
        }
    }

    fn undo(&self, dst: ElementsMut<'_, u16>, undo: &mut UndoLog) -> Result<(), DeviceError> {
        match self.memory_of_mut(&dst)? {
            Some(memory) => self.undo_all(memory, undo),
            None if undo.is_empty() => Ok(()),
            None => Err(self.not_here()),
        }
    }

    fn digest(
        &self,
        words: Elements<'_, u16>,
        tensor: &DestTensor,
        params: &[ParamMeta],
        keys: &DigestKeys,
    ) -> Result<Digest, DeviceError> {
        match self.memory_of(words)? {
            Some(memory) => self.digest_tensor(memory, tensor, params, keys),
            None => crate::CpuDevice::portable().digest(words, tensor, params, keys),
        }
    }

    fn zeros(&self, elements: usize) -> Result<Buffer<f32>, DeviceError> {
        let memory = self.zeroed(elements * size_of::<f32>())?;
        Ok(DeviceBuffer::new(Box::new(memory)).into())
    }

    fn words(&self, words: Vec<u16>) -> Result<Buffer<u16>, DeviceError> {
        let buffer = Buffer::from(self.uninitialized::<u16>(words.len())?);
        buffer.write(&words)?;
        Ok(buffer)
    }

    fn copy(&self, masters: Elements<'_, f32>) -> Result<Buffer<f32>, DeviceError> {
        Ok(DeviceBuffer::new(Box::new(self.copied(masters)?)).into())
    }

    fn served_bits(&self, masters: Elements<'_, f32>, cast: Cast) -> Result<Buffer<u16>, DeviceError> {
        Ok(DeviceBuffer::new(Box::new(self.cast_all(masters, cast)?)).into())
    }

    fn empty_set(&self, elements: usize) -> Result<ElementSet, DeviceError> {
        let memory = self.zeroed(elements.div_ceil(64) * size_of::<u64>())?;
        Ok(ElementSet::Device(DeviceBuffer::new(Box::new(memory))))
    }

    fn remember(&self, set: &mut ElementSet, changes: &ChangeList) -> Result<(), DeviceError> {
        self.mark(set, changes)
    }

    fn count(&self, set: &ElementSet) -> Result<u64, DeviceError> {
        self.count_marks(set)
    }
}
