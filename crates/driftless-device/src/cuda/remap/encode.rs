//! Remapped changes as bodies of `block16` sections: they are encoded in the window, and leave the device once.

use super::{Batch, Window};
use crate::cuda::abi::{Address, Block16Args, bytes_of_mut};
use crate::cuda::gpu::Gpu;
use crate::{DeviceError, Packed};
use bytes::Bytes;
use driftless_codec::{BLOCK16_UNIT_BYTES, block16_blocks, block16_bytes};
use driftless_types::index_of;

impl Batch {
    /// Room for all bodies, of `capacity` changes together.
    pub(super) fn bodies_room(&self, capacity: usize) -> usize {
        let of_one_change: u64 = self.elements.iter().map(|&elements| block16_bytes(elements, 1)).sum();
        index_of(of_one_change + BLOCK16_UNIT_BYTES * capacity as u64)
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
                gpu.launch("driftless_block16_directory", block16_blocks(n) + 1, &args)?;
                gpu.launch("driftless_block16_encode", nnz, &args)?;
            }
            end += index_of(block16_bytes(n, nnz));
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
