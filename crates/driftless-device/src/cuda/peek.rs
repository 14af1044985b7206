//! Single words out of live weights: what values that are stated relative to a base need of it. The twin of
//! `read_at` in `cpu/scatter.rs`.

use super::CudaDevice;
use super::abi::{FAULT_NOT_RISING, ScatterArgs, ScatterResult, bytes_of, bytes_of_mut};
use super::gpu::{Gpu, Layout};
use super::memory::CudaMemory;
use super::scatter::{bad_positions, place};
use crate::DeviceError;
use crate::fit::{FragmentFit, check_listable};

/// Words that are read together, at most: it bounds the window.
const WORDS_TOGETHER: usize = 16 << 20;

impl CudaDevice {
    /// See [`Device::read_at`](crate::Device::read_at): no other word leaves the device.
    pub(super) fn peek(
        &self,
        live: &CudaMemory,
        fit: &FragmentFit<'_>,
        positions: &[u32],
    ) -> Result<Vec<u16>, DeviceError> {
        check_listable(fit.fragment)?;
        // A batch does not see the last position of the one before.
        let mut seams = (WORDS_TOGETHER..positions.len()).step_by(WORDS_TOGETHER);
        if seams.any(|at| positions[at - 1] >= positions[at]) {
            return Err(bad_positions(fit, FAULT_NOT_RISING));
        }
        let mut words = vec![0u16; positions.len()];
        for (positions, words) in positions.chunks(WORDS_TOGETHER).zip(words.chunks_mut(WORDS_TOGETHER)) {
            let fault = self.worker().run(|gpu| {
                gpu.follow(live)?;
                read(gpu, live, fit, positions, words)
            })?;
            if fault != 0 {
                return Err(bad_positions(fit, fault));
            }
        }
        Ok(words)
    }
}

/// Reads the words at some positions; gives what is wrong with the positions, a `FAULT_*` or 0.
fn read(
    gpu: &mut Gpu,
    live: &CudaMemory,
    fit: &FragmentFit<'_>,
    positions: &[u32],
    words: &mut [u16],
) -> Result<u32, DeviceError> {
    let mut found = [ScatterResult::default()];
    let mut layout = Layout::default();
    let at_result = layout.room(size_of_val(&found));
    let (at_positions, at_words) = (layout.room(size_of_val(positions)), layout.room(size_of_val(words)));
    let base = gpu.window(layout.bytes())?;
    let at = |offset: usize| base + offset as u64;
    gpu.clear(at(at_result), size_of_val(&found))?;
    gpu.upload(at(at_positions), bytes_of(positions))?;
    let args = ScatterArgs {
        words: live.address(),
        positions: at(at_positions),
        values: 0,
        undo: at(at_words),
        table: 0,
        result: at(at_result),
        count: positions.len() as u64,
        words_each: 1,
        unused: 0,
        place: place(&fit.area, &fit.target, fit.fragment.param.0),
    };
    gpu.launch("driftless_scatter_check", args.count, &args)?;
    gpu.launch("driftless_peek", args.count, &args)?;
    gpu.download(at(at_result), bytes_of_mut(&mut found))?;
    if found[0].fault == 0 {
        gpu.download(at(at_words), bytes_of_mut(words))?;
    }
    Ok(found[0].fault)
}
