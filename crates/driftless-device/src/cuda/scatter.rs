//! Change sets into live weights on the device, back out of them, and digests of what is there: the twins of
//! `cpu/scatter.rs`, `undo.rs` and `cpu/rehash.rs`.
//!
//! - **DV-2 (undo is exact).** Positions and old words of every scatter stay on the device until the log is cleared: the old
//!   words where the new ones were, so that the log takes no memory beside the changes.
//! - **DV-3 (all or nothing per fragment).** The kernel that looks at the positions runs before the one that writes, and
//!   that one writes nothing if a position is bad.

use super::CudaDevice;
use super::abi::{
    Address, Box as Place, Divisor, FAULT_NOT_RISING, RehashArgs, ScatterArgs, ScatterResult, bytes_of_mut,
};
use super::gpu::Gpu;
use super::memory::CudaMemory;
use super::parts::{narrow, narrow_u64};
use super::sections::CudaSection;
use super::slots::{Extent, Slots};
use super::worker::Worker;
use crate::fit::{Area, FragmentFit, Target, param_of};
use crate::{Delivery, DeviceError, DeviceMemory, DeviceUndo, Scattered, UndoLog};
use driftless_layout::{DestBox, DestTensor, ParamMeta};
use driftless_numerics::DigestKeys;
use driftless_types::{ChangeSet, Digest};
use std::any::Any;
use std::sync::Arc;

/// Words that a thread handles of a box that is written or hashed whole.
const WORDS_EACH_THREAD: u64 = 8;
/// Elements of a box that is hashed by one launch.
const BOX_ELEMENTS_MAX: u64 = 1 << 31;

/// Old words of one fragment, where the new ones were.
#[derive(Debug)]
pub(super) struct CudaUndo {
    worker: Arc<Worker>,
    slots: Slots,
    place: Place,
    /// Words of the tensor that was written.
    tensor_words: usize,
}

impl CudaUndo {
    pub(super) fn new(worker: &Arc<Worker>, slots: Slots, fit: &FragmentFit<'_>, dst: &CudaMemory) -> Self {
        let place = place(&fit.area, &fit.target, fit.fragment.param.0);
        Self { worker: Arc::clone(worker), slots, place, tensor_words: dst.bytes() / 2 }
    }

    /// DV-2: whoever writes a word puts the old one where the new one was.
    fn args(&self, words: Address) -> ScatterArgs {
        ScatterArgs {
            words,
            positions: self.slots.positions(),
            values: self.slots.words(),
            undo: self.slots.words(),
            table: 0,
            result: 0,
            count: self.slots.count as u64,
            words_each: narrow(self.slots.words_each),
            unused: 0,
            place: self.place,
        }
    }

    /// The work, in threads.
    fn threads(&self) -> u64 {
        match self.slots.extent {
            Extent::Some => self.slots.count as u64,
            Extent::All => {
                let words = (self.slots.count * self.slots.words_each) as u64;
                words.div_ceil(WORDS_EACH_THREAD)
            }
        }
    }
}

impl DeviceUndo for CudaUndo {
    fn device(&self) -> &str {
        self.worker.name()
    }

    fn words(&self) -> usize {
        self.slots.count * self.slots.words_each
    }

    fn bytes(&self) -> usize {
        self.slots.extent.bytes(self.slots.count, self.slots.words_each)
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
        let found = self.worker().run(|gpu| {
            gpu.follow(dst)?;
            let slots = Slots::upload(self.worker(), gpu, changes, fit.fragment.dtype.words())?;
            let log = CudaUndo::new(self.worker(), slots, fit, dst);
            // DV-3: what is bad is known before the launch that writes, so that the log has no record of it.
            match positions_fault(gpu, &log)? {
                0 => Ok(Ok(write(gpu, dst, vec![log], keys, undo)?.pop().unwrap_or_default())),
                fault => Ok(Err(fault)),
            }
        })?;
        found.map_err(|fault| bad_positions(fit, fault))
    }

    /// See [`Device::deliver`](crate::Device::deliver). All is checked before the first word is written, and the host
    /// waits for the device once.
    pub(super) fn deliver_sections(
        &self,
        dst: &CudaMemory,
        deliveries: Vec<Delivery<'_>>,
        keys: &DigestKeys,
        undo: &mut UndoLog,
    ) -> Result<Vec<Scattered>, DeviceError> {
        let mut scattered = vec![Scattered::default(); deliveries.len()];
        let (mut logs, mut of_log) = (Vec::new(), Vec::new());
        for (index, Delivery { fragment, param_cols, section }) in deliveries.into_iter().enumerate() {
            let fit = FragmentFit::new(dst.bytes() / 2, fragment, param_cols)?;
            if let Some(slots) = CudaSection::of(section, self.worker())?.slots_for(&fit)? {
                logs.push(CudaUndo::new(self.worker(), slots, &fit, dst));
                of_log.push(index);
            }
        }
        if logs.is_empty() {
            return Ok(scattered);
        }
        let written = self.worker().run(|gpu| {
            gpu.follow(dst)?;
            write(gpu, dst, logs, keys, undo)
        })?;
        for (index, done) in of_log.into_iter().zip(written) {
            scattered[index] = done;
        }
        Ok(scattered)
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
                    let kernel = match record.slots.extent {
                        Extent::Some => "driftless_undo",
                        Extent::All => "driftless_undo_all",
                    };
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

/// What a kernel found wrong with the positions of a fragment.
pub(super) fn bad_positions(fit: &FragmentFit<'_>, fault: u32) -> DeviceError {
    match fault {
        FAULT_NOT_RISING => fit.bad_positions("positions that do not rise"),
        _ => fit.bad_positions("a position outside the fragment"),
    }
}

/// What is wrong with the positions of a change set that nobody has checked: a `FAULT_*`, or 0.
fn positions_fault(gpu: &mut Gpu, log: &CudaUndo) -> Result<u32, DeviceError> {
    if log.slots.extent == Extent::All {
        return Ok(0);
    }
    let mut found = [ScatterResult::default()];
    let result = gpu.window(size_of_val(&found))?;
    gpu.clear(result, size_of_val(&found))?;
    let args = ScatterArgs { result, ..log.args(0) };
    gpu.launch("driftless_scatter_check", log.threads(), &args)?;
    gpu.download(result, bytes_of_mut(&mut found))?;
    Ok(found[0].fault)
}

/// Writes changes whose positions are right, each one's record in the log before anything can fail that comes after its
/// first write.
fn write(
    gpu: &mut Gpu,
    dst: &CudaMemory,
    logs: Vec<CudaUndo>,
    keys: &DigestKeys,
    undo: &mut UndoLog,
) -> Result<Vec<Scattered>, DeviceError> {
    let table = gpu.table(keys)?;
    let mut results = vec![ScatterResult::default(); logs.len()];
    let base = gpu.window(size_of_val(&results[..]))?;
    gpu.clear(base, size_of_val(&results[..]))?;
    for (log, result) in logs.into_iter().zip((base..).step_by(size_of::<ScatterResult>())) {
        let args = ScatterArgs { table, result, ..log.args(dst.address()) };
        let kernel = match log.slots.extent {
            Extent::Some => "driftless_scatter",
            Extent::All => "driftless_scatter_all",
        };
        gpu.launch(kernel, log.threads(), &args)?;
        // DV-2: a launch that was refused wrote nothing; after one that was not, only losing the device can fail.
        undo.record_on_device(Arc::new(log));
    }
    gpu.download(base, bytes_of_mut(&mut results))?;
    let scattered = |of: &ScatterResult| Scattered { changed: of.changed, delta: Digest(of.delta) };
    Ok(results.iter().map(scattered).collect())
}

/// A box in a destination tensor as kernels read it: one whose rows follow each other everywhere is a single row.
pub(super) fn place(area: &Area, target: &Target, param: u32) -> Place {
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
