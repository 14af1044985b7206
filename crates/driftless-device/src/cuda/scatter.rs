//! Change sets into live weights on the device, back out of them, and digests of what is there: the twins of
//! `cpu/scatter.rs`, `undo.rs` and `cpu/rehash.rs`.
//!
//! - **DV-2 (undo is exact).** Positions and old words of every scatter stay on the device until the log is cleared.
//! - **DV-3 (all or nothing per fragment).** The kernel that looks at the positions runs before the one that writes, and
//!   that one writes nothing if a position is bad.

use super::CudaDevice;
use super::abi::{
    Address, Box as Place, Divisor, FAULT_NOT_RISING, RehashArgs, ScatterArgs, ScatterResult, bytes_of,
    bytes_of_mut,
};
use super::gpu::{Gpu, Layout};
use super::memory::CudaMemory;
use super::parts::{narrow, narrow_u64};
use super::worker::Worker;
use crate::fit::{Area, FragmentFit, Target, param_of};
use crate::{DeviceError, DeviceMemory, DeviceUndo, Scattered, UndoLog};
use driftless_layout::{DestBox, DestTensor, ParamMeta};
use driftless_numerics::DigestKeys;
use driftless_types::{ChangeSet, Digest};
use std::any::Any;
use std::sync::Arc;

/// Words that a thread handles of a box that is written or hashed whole.
const WORDS_EACH_THREAD: u64 = 8;
/// Elements of a box that is hashed by one launch.
const BOX_ELEMENTS_MAX: u64 = 1 << 31;

/// Old words of one fragment: positions, if only some were written, and behind them the words.
#[derive(Debug)]
pub(super) struct CudaUndo {
    worker: Arc<Worker>,
    memory: CudaMemory,
    place: Place,
    /// Words of the tensor that was written.
    tensor_words: usize,
    count: usize,
    words_each: usize,
    extent: Extent,
}

/// Whether a scatter named its positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Some,
    All,
}

impl CudaUndo {
    fn new(
        worker: &Arc<Worker>,
        gpu: &mut Gpu,
        place: Place,
        tensor_words: usize,
        changes: &ChangeSet,
        words_each: usize,
    ) -> Result<Self, DeviceError> {
        let (extent, count) = match changes {
            ChangeSet::All(words) => (Extent::All, words.len() / words_each),
            ChangeSet::Sparse { positions, .. } => (Extent::Some, positions.len()),
        };
        let bytes = words_offset(extent, count) + 2 * words_each * count;
        let memory = gpu.memory(worker, bytes)?;
        let worker = Arc::clone(worker);
        Ok(Self { worker, memory, place, tensor_words, count, words_each, extent })
    }

    fn args(&self, words: Address) -> ScatterArgs {
        ScatterArgs {
            words,
            positions: if self.extent == Extent::Some { self.memory.address() } else { 0 },
            values: 0,
            undo: self.memory.address() + words_offset(self.extent, self.count) as u64,
            table: 0,
            result: 0,
            count: self.count as u64,
            words_each: narrow(self.words_each),
            unused: 0,
            place: self.place,
        }
    }

    /// The work, in threads.
    fn threads(&self) -> u64 {
        match self.extent {
            Extent::Some => self.count as u64,
            Extent::All => {
                let words = (self.count * self.words_each) as u64;
                words.div_ceil(WORDS_EACH_THREAD)
            }
        }
    }
}

const fn words_offset(extent: Extent, count: usize) -> usize {
    match extent {
        Extent::Some => (4 * count).next_multiple_of(16),
        Extent::All => 0,
    }
}

impl DeviceUndo for CudaUndo {
    fn device(&self) -> &str {
        self.worker.name()
    }

    fn words(&self) -> usize {
        self.count * self.words_each
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl CudaDevice {
    /// See [`Device::scatter`](crate::Device::scatter).
    pub(super) fn scatter_fragment(
        &self,
        dst: &CudaMemory,
        fit: &FragmentFit<'_>,
        changes: &ChangeSet,
        keys: &DigestKeys,
        undo: &mut UndoLog,
    ) -> Result<Scattered, DeviceError> {
        // DV-3: lengths here, positions by a kernel.
        fit.check_shape(changes)?;
        if fit.area.elements() == 0
            || matches!(changes, ChangeSet::Sparse { positions, .. } if positions.is_empty())
        {
            return Ok(Scattered::default());
        }
        let words_each = fit.fragment.dtype.words();
        let place = place(&fit.area, &fit.target, fit.fragment.param.0);
        let result = self.worker().run(|gpu| {
            gpu.follow(dst)?;
            let log = CudaUndo::new(self.worker(), gpu, place, dst.bytes() / 2, changes, words_each)?;
            write(gpu, dst, log, changes, keys, undo)
        })?;
        match result.fault {
            0 => Ok(Scattered { changed: result.changed, delta: Digest(result.delta) }),
            FAULT_NOT_RISING => Err(fit.bad_positions("positions that do not rise")),
            _ => Err(fit.bad_positions("a position outside the fragment")),
        }
    }

    /// See [`Device::undo`](crate::Device::undo).
    pub(super) fn undo_all(&self, dst: &CudaMemory, undo: &mut UndoLog) -> Result<(), DeviceError> {
        let mut records = Vec::new();
        for record in undo.on_device() {
            let found = record.as_any().downcast_ref::<CudaUndo>();
            let found = found.filter(|found| Arc::ptr_eq(&found.worker, self.worker()));
            let (record, expected) = (record.device().to_owned(), self.worker().name().to_owned());
            records.push(found.ok_or(DeviceError::Place { found: record, expected })?);
        }
        let extent = records.iter().map(|record| record.tensor_words).max().unwrap_or(0);
        if dst.bytes() / 2 < extent {
            let (found, expected) = ((dst.bytes() / 2) as u64, extent as u64);
            return Err(DeviceError::Length { what: "the tensor to undo", found, expected });
        }
        if !records.is_empty() {
            self.worker().run(|gpu| {
                gpu.follow(dst)?;
                // What has no fault is undone: only such scatters have a record.
                let result = gpu.window(size_of::<ScatterResult>())?;
                gpu.clear(result, size_of::<ScatterResult>())?;
                // DV-2: the last words that were written are the first to go.
                for record in records.iter().rev() {
                    let kernel =
                        if record.extent == Extent::Some { "driftless_undo" } else { "driftless_undo_all" };
                    let args = ScatterArgs { result, ..record.args(dst.address()) };
                    gpu.launch(kernel, record.threads(), &args)?;
                }
                gpu.finish()
            })?;
        }
        undo.clear();
        Ok(())
    }

    /// See [`Device::digest`](crate::Device::digest).
    pub(super) fn digest_tensor(
        &self,
        words: &CudaMemory,
        tensor: &DestTensor,
        params: &[ParamMeta],
        keys: &DigestKeys,
    ) -> Result<Digest, DeviceError> {
        let each = tensor.dtype.words();
        let place_of = |dest: &DestBox| {
            let name: &dyn Fn() -> String = &|| tensor.name.clone();
            let area = Area::new(&dest.canonical, param_of(params, dest.param)?.cols(), name)?;
            let elements = words.bytes() / 2 / each;
            let target = Target::new(&area, dest.dst_offset, dest.dst_row_stride, elements, name)?;
            Ok::<_, DeviceError>(slabs(&area, &target, dest.param.0))
        };
        let places = tensor.boxes.iter().map(place_of).collect::<Result<Vec<_>, _>>()?.concat();
        let mut lanes = [0u32; 4];
        self.worker().run(|gpu| {
            gpu.follow(words)?;
            let table = gpu.table(keys)?;
            let digest = gpu.window(size_of_val(&lanes))?;
            gpu.clear(digest, size_of_val(&lanes))?;
            for place in places {
                let box_words = u64::from(place.rows) * u64::from(place.cols.divisor) * each as u64;
                let threads = box_words / WORDS_EACH_THREAD + 2;
                let (words, words_each) = (words.address(), narrow(each));
                let args = RehashArgs { words, table, digest, words_each, unused: 0, place };
                gpu.launch("driftless_rehash", threads, &args)?;
            }
            gpu.download(digest, bytes_of_mut(&mut lanes))
        })?;
        Ok(Digest(lanes))
    }
}

/// Writes a change set, its record in the log before anything can fail that comes after the first write.
fn write(
    gpu: &mut Gpu,
    dst: &CudaMemory,
    log: CudaUndo,
    changes: &ChangeSet,
    keys: &DigestKeys,
    undo: &mut UndoLog,
) -> Result<ScatterResult, DeviceError> {
    let table = gpu.table(keys)?;
    let new: &[u16] = match changes {
        ChangeSet::All(words) => words,
        ChangeSet::Sparse { positions, values } => {
            gpu.upload(log.memory.address(), bytes_of(positions))?;
            values
        }
    };
    let mut layout = Layout::default();
    let (at_result, at_values) = (layout.room(size_of::<ScatterResult>()), layout.room(size_of_val(new)));
    let base = gpu.window(layout.bytes())?;
    let (result_at, values) = (base + at_result as u64, base + at_values as u64);
    gpu.clear(result_at, size_of::<ScatterResult>())?;
    gpu.upload(values, bytes_of(new))?;
    let args = ScatterArgs { values, table, result: result_at, ..log.args(dst.address()) };
    let threads = log.threads();
    if log.extent == Extent::Some {
        gpu.launch("driftless_scatter_check", threads, &args)?;
        // DV-3: what is bad is known before the launch that writes, so that the log has no record of it.
        let found = result(gpu, result_at)?;
        if found.fault != 0 {
            return Ok(found);
        }
        gpu.launch("driftless_scatter", threads, &args)?;
    } else {
        gpu.launch("driftless_scatter_all", threads, &args)?;
    }
    // DV-2: a launch that was refused wrote nothing; after one that was not, only losing the device can fail.
    undo.record_on_device(Arc::new(log));
    result(gpu, result_at)
}

fn result(gpu: &mut Gpu, at: Address) -> Result<ScatterResult, DeviceError> {
    let mut result = [ScatterResult::default()];
    gpu.download(at, bytes_of_mut(&mut result))?;
    Ok(result[0])
}

/// A box in a destination tensor as kernels read it: one whose rows follow each other everywhere is a single row.
fn place(area: &Area, target: &Target, param: u32) -> Place {
    let (rows, cols) = (area.rows as u64, area.cols as u64);
    let is_flat = rows == 1 || (area.is_full_width() && target.row_stride == area.cols);
    let (rows, cols) = if is_flat { (1, rows * cols) } else { (rows, cols) };
    Place {
        origin: area.origin,
        row_stride: area.param_cols,
        dst_offset: target.offset as u64,
        dst_row_stride: target.row_stride as u64,
        rows: narrow_u64(rows),
        param,
        cols: Divisor::new(narrow_u64(cols)),
    }
}

/// The same in slabs of rows, each small enough for one launch.
fn slabs(area: &Area, target: &Target, param: u32) -> Vec<Place> {
    if area.elements() == 0 {
        return Vec::new();
    }
    let rows_each = usize::try_from((BOX_ELEMENTS_MAX / area.cols as u64).max(1)).unwrap_or(usize::MAX);
    let slab = |first: usize| {
        let rows = rows_each.min(area.rows - first);
        let origin = area.canonical(first, 0);
        let offset = target.offset + first * target.row_stride;
        place(&Area { rows, origin, ..*area }, &Target { offset, ..*target }, param)
    };
    (0..area.rows).step_by(rows_each).map(slab).collect()
}
