//! Whole fragments out of masters: the twin of `cpu/gather.rs`.

use super::CudaDevice;
use super::abi::{Address, Divisor, GATHER_FP32, GATHER_HALF_AWAY, GatherArgs, Run, bytes_of, bytes_of_mut};
use super::gpu::{Gpu, Layout};
use super::memory::CudaMemory;
use super::parts::narrow;
use super::remap::lowered;
use crate::fit::runs_within;
use crate::{DeviceError, Elements};
use driftless_layout::Fragment;
use driftless_numerics::Cast;
use driftless_types::{ChangeSet, Dtype, index_of};

/// Words that one thread writes.
const GATHERED_EACH: u64 = 4;

impl CudaDevice {
    /// See [`Device::gather`](crate::Device::gather).
    pub(super) fn gather_fragment(
        &self,
        masters: &[Elements<'_, f32>],
        fragment: &Fragment,
        cast: Cast,
    ) -> Result<ChangeSet, DeviceError> {
        let runs = runs_within(fragment, masters.iter().map(Elements::len))?;
        let memories = masters.iter().map(|&lent| self.memory_of(lent)).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<Address> =
            memories.iter().map(|memory| memory.map_or(0, CudaMemory::address)).collect();
        let mut words = vec![0u16; index_of(fragment.elements()) * fragment.dtype.words()];
        if !words.is_empty() {
            let runs: Vec<Run> = runs.iter().map(lowered).collect::<Result<_, _>>()?;
            let form = form(fragment.dtype, cast);
            self.worker().run(|gpu| {
                let used = runs.iter().filter_map(|run| memories[run.tensor as usize]);
                used.into_iter().try_for_each(|memory| gpu.follow(memory))?;
                let mut layout = Layout::default();
                let (at_masters, at_runs) =
                    (layout.room(8 * addresses.len()), layout.room(size_of_val(&runs[..])));
                let at_words = layout.room(size_of_val(&words[..]));
                let base = gpu.window(layout.bytes())?;
                let at = |offset: usize| base + offset as u64;
                gpu.upload(at(at_masters), bytes_of(&addresses))?;
                gpu.upload(at(at_runs), bytes_of(&runs))?;
                gather(
                    gpu,
                    at(at_masters),
                    at(at_runs),
                    narrow(runs.len()),
                    fragment.elements(),
                    form,
                    at(at_words),
                )?;
                gpu.download(at(at_words), bytes_of_mut(&mut words))
            })?;
        }
        Ok(ChangeSet::All(words))
    }

    /// All of `masters` as served words, into memory of the device.
    pub(super) fn cast_all(&self, masters: Elements<'_, f32>, cast: Cast) -> Result<CudaMemory, DeviceError> {
        let count = masters.len();
        let memory = self.memory_of(masters)?;
        self.worker().run(|gpu| {
            let words = gpu.memory(self.worker(), 2 * count)?;
            let Some(memory) = memory.filter(|_| count > 0) else { return Ok(words) };
            gpu.follow(memory)?;
            let whole = Divisor::new(narrow(count));
            let run =
                Run { tensor: 0, src_offset: 0, rows: 1, position: 0, cols: whole, src_row_stride: whole };
            let mut layout = Layout::default();
            let (at_masters, at_runs) = (layout.room(8), layout.room(size_of::<Run>()));
            let base = gpu.window(layout.bytes())?;
            let at = |offset: usize| base + offset as u64;
            gpu.upload(at(at_masters), bytes_of(&[memory.address()]))?;
            gpu.upload(at(at_runs), bytes_of(&[run]))?;
            let form = form(Dtype::Bf16, cast);
            gather(gpu, at(at_masters), at(at_runs), 1, count as u64, form, words.address())?;
            gpu.finish()?;
            Ok(words)
        })
    }
}

fn gather(
    gpu: &mut Gpu,
    masters: Address,
    runs: Address,
    run_count: u32,
    count: u64,
    form: u32,
    words: Address,
) -> Result<(), DeviceError> {
    let args = GatherArgs { masters, runs, words, count, run_count, form };
    gpu.launch("driftless_gather", count.div_ceil(GATHERED_EACH), &args)
}

const fn form(dtype: Dtype, cast: Cast) -> u32 {
    match (dtype, cast) {
        (Dtype::Fp32, _) => GATHER_FP32,
        (Dtype::Bf16, Cast::HalfAway) => GATHER_HALF_AWAY,
        (Dtype::Bf16, Cast::NearestEven) => 0,
    }
}
