//! Remapped changes as bodies of `block16` sections: they are encoded in the window, and leave the device once.

use super::{Batch, Window};
use crate::cuda::abi::{Address, Block16Args, bytes_of_mut};
use crate::cuda::gpu::Gpu;
use crate::{DeviceError, Packed};
use bytes::Bytes;
use driftless_types::index_of;

/// Bytes of a directory's offset, and of a change.
const UNIT_BYTES: usize = 4;
/// Elements of a block.
const BLOCK_ELEMENTS: u64 = 1 << 16;

/// Offsets of a directory.
fn offsets(elements: u64) -> usize {
    index_of(elements.div_ceil(BLOCK_ELEMENTS)) + 1
}

impl Batch {
    /// Room for all bodies, of `capacity` changes together.
    pub(super) fn bodies_room(&self, capacity: usize) -> usize {
        let directories: usize = self.elements.iter().map(|&elements| offsets(elements)).sum();
        UNIT_BYTES * (directories + capacity)
    }

    /// Makes the bodies and copies them to the host.
    pub(super) fn encode(
        &self,
        gpu: &mut Gpu,
        window: &Window,
        base: Address,
        starts: &[u64],
    ) -> Result<Vec<Packed>, DeviceError> {
        let Some(bodies) = window.bodies else { return Ok(Vec::new()) };
        let at = |offset: usize| base + offset as u64;
        let (mut ends, mut counts) =
            (Vec::with_capacity(self.ends.len()), Vec::with_capacity(self.ends.len()));
        let mut end = 0;
        for (changes, &n) in self.of_fragments(starts).zip(&self.elements) {
            let nnz = changes.len() as u64;
            if nnz > 0 {
                let args = Block16Args {
                    body: at(bodies + end),
                    positions: at(window.positions + 4 * changes.start),
                    values: at(window.values + 2 * changes.start),
                    fault: 0,
                    n,
                    nnz,
                };
                gpu.launch("driftless_block16_directory", offsets(n) as u64, &args)?;
                gpu.launch("driftless_block16_encode", nnz, &args)?;
                end += UNIT_BYTES * (offsets(n) + changes.len());
            }
            ends.push(end);
            counts.push(nnz);
        }
        let mut made = vec![0u8; end];
        gpu.download(at(bodies), bytes_of_mut(&mut made))?;
        let made = Bytes::from(made);
        let firsts = std::iter::once(0).chain(ends.iter().copied());
        let packed = |((first, &end), nnz)| Packed::Block16 { nnz, body: made.slice(first..end) };
        Ok(firsts.zip(&ends).zip(counts).map(packed).collect())
    }
}
