//! Changes of one fragment in memory of the device: new words before they are written, old ones after.

use super::abi::{Address, bytes_of};
use super::gpu::Gpu;
use super::memory::CudaMemory;
use super::worker::Worker;
use crate::DeviceError;
use driftless_types::ChangeSet;
use std::sync::Arc;

/// Whether changes name their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Some,
    All,
}

impl Extent {
    /// Where words begin behind `count` positions: where any kernel may read them.
    const fn words_offset(self, count: usize) -> usize {
        match self {
            Self::Some => (4 * count).next_multiple_of(16),
            Self::All => 0,
        }
    }

    /// What so many changes take.
    pub(super) const fn bytes(self, count: usize, words_each: usize) -> usize {
        self.words_offset(count) + 2 * words_each * count
    }
}

/// Positions, if only some elements changed, and behind them words.
#[derive(Debug)]
pub(super) struct Slots {
    /// Shared by those that came together.
    memory: Arc<CudaMemory>,
    offset: usize,
    pub(super) extent: Extent,
    pub(super) count: usize,
    pub(super) words_each: usize,
}

impl Slots {
    /// Room at `offset` of some memory, which has as many bytes from there on as [`Extent::bytes`] says.
    pub(super) const fn new(
        memory: Arc<CudaMemory>,
        offset: usize,
        extent: Extent,
        count: usize,
        words_each: usize,
    ) -> Self {
        Self { memory, offset, extent, count, words_each }
    }

    /// A change set of the host, in memory of its own; the copy is on the stream.
    pub(super) fn upload(
        worker: &Arc<Worker>,
        gpu: &mut Gpu,
        changes: &ChangeSet,
        words_each: usize,
    ) -> Result<Self, DeviceError> {
        let (extent, count, positions, words): (_, _, &[u32], &[u16]) = match changes {
            ChangeSet::All(words) => (Extent::All, words.len() / words_each, &[], words),
            ChangeSet::Sparse { positions, values } => (Extent::Some, positions.len(), positions, values),
        };
        let memory = Arc::new(gpu.memory(worker, extent.bytes(count, words_each))?);
        let slots = Self::new(memory, 0, extent, count, words_each);
        gpu.upload(slots.positions(), bytes_of(positions))?;
        gpu.upload(slots.words(), bytes_of(words))?;
        Ok(slots)
    }

    /// Positions; of no meaning where all elements changed.
    pub(super) fn positions(&self) -> Address {
        self.memory.address() + self.offset as u64
    }

    pub(super) fn words(&self) -> Address {
        self.positions() + self.extent.words_offset(self.count) as u64
    }
}
