//! One pass over a source tensor on the device: the twin of `cpu/detect.rs`.
//!
//! - **DV-5 (pending changes are kept).** A set of pending changes is cleared only by a pass that listed all of them.
//!
//! The kernels list into the window; what they found is copied to memory of its exact size, and stays on the device.

use super::CudaDevice;
use super::abi::{
    Address, DETECT_COLLECT, DETECT_DIGEST, DETECT_DRAIN, DETECT_HALF_AWAY, DETECT_LIST, DETECT_UPDATE,
    DetectArgs, FillArgs, Part, PutArgs, bytes_of, bytes_of_mut,
};
use super::changes::{CudaChanges, Listed};
use super::gpu::{Gpu, Layout};
use super::memory::CudaMemory;
use super::parts::{Parts, goes_whole};
use crate::fit::{Part as Piece, check, parts_of};
use crate::{
    Bits, BitsMut, ChangeList, ChangeSource, Classes, DetectOptions, Detected, DeviceError, Pending,
};
use driftless_layout::{ParamMeta, SourceTensor};
use driftless_numerics::{Cast, DigestKeys, MasterAudit};
use driftless_types::{Digest, Dtype};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Kernels count elements in u32 and round up to tiles.
const ELEMENTS_MAX: u64 = (1 << 32) - (1 << 16);
/// The first room for a list, as a share of the elements: more than a usual step changes. A list that does not fit is
/// made again with all the room that it needs.
const FIRST_ROOM_SHARE: u64 = 16;
const FIRST_ROOM: u64 = 4096;
const WORD_BITS: u64 = 32;

/// What one detection works with.
struct Pass<'a> {
    device: &'a CudaDevice,
    tensor: &'a SourceTensor,
    pieces: Vec<Piece<'a>>,
    parts: Parts,
    goes_whole: Vec<bool>,
    addresses: Addresses,
    marks: Marks<'a>,
    pending: Pend,
    /// Whether older bits are ours, to be brought up to date.
    replaces: bool,
    flags: u32,
    classes: Classes,
    keys: &'a DigestKeys,
    cancel: &'a AtomicBool,
}

/// Where the source is.
#[derive(Clone, Copy, Default)]
struct Addresses {
    master: Address,
    exp_avg: Address,
    exp_avg_sq: Address,
    previous: Address,
    pending: Address,
}

/// The optimizer's marks.
#[derive(Clone, Copy)]
enum Marks<'a> {
    Absent,
    /// On the host: they are copied into the window.
    Host(&'a [u64]),
    Device(Address),
}

impl Marks<'_> {
    const fn uploaded(&self) -> &[u64] {
        match self {
            Self::Host(words) => words,
            Self::Absent | Self::Device(_) => &[],
        }
    }
}

/// What becomes of pending changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pend {
    Absent,
    Drain { bytes: usize },
    Collect,
}

/// Where things lie in the window: first what is zeroed and read back, then what is zeroed, then the rest.
struct Window {
    count: usize,
    exceeded: usize,
    unfit: usize,
    cells: usize,
    results_end: usize,
    tickets: usize,
    tile_state: usize,
    zeroed_end: usize,
    parts: usize,
    cuts: usize,
    changed: usize,
    indices: usize,
    values: usize,
    classes: usize,
    bytes: usize,
}

/// What the kernels wrote back.
struct Results {
    count: u64,
    exceeded: Vec<u32>,
    unfit: Vec<u32>,
    cells: Vec<u32>,
}

impl CudaDevice {
    /// See [`Device::detect`](crate::Device::detect).
    pub(super) fn detect_tensor(
        &self,
        tensor: &SourceTensor,
        params: &[ParamMeta],
        source: &ChangeSource<'_>,
        options: &DetectOptions<'_>,
        keys: &DigestKeys,
        cancel: &AtomicBool,
    ) -> Result<Detected, DeviceError> {
        check(tensor, source, options)?;
        if tensor.elements() > ELEMENTS_MAX {
            let (name, found) = (tensor.name.clone(), tensor.elements());
            return Err(DeviceError::Misfit { what: "the element count", name, found, limit: ELEMENTS_MAX });
        }
        let pieces = parts_of(tensor, params)?;
        let memories = self.memories(source, options)?;
        let pass = Pass {
            device: self,
            tensor,
            parts: Parts::of(&pieces, source, self.worker().threads),
            goes_whole: (0..pieces.len()).map(|index| goes_whole(source, index)).collect(),
            pieces,
            addresses: self.addresses(source, options)?,
            marks: self.marks(source)?,
            pending: pend(&options.pending),
            replaces: matches!(source, ChangeSource::Snapshot { .. }),
            flags: flags(source, options),
            classes: options.classes,
            keys,
            cancel,
        };
        self.worker().run(|gpu| {
            memories.into_iter().try_for_each(|memory| gpu.follow(memory))?;
            pass.run(gpu)
        })
    }

    /// All device memory of a call, to be ordered against.
    fn memories<'a>(
        &self,
        source: &'a ChangeSource<'_>,
        options: &'a DetectOptions<'_>,
    ) -> Result<Vec<&'a CudaMemory>, DeviceError> {
        let mut lent = match source {
            ChangeSource::Inversion { master, exp_avg, exp_avg_sq, .. } => {
                vec![self.memory_of(*master)?, self.memory_of(*exp_avg)?, self.memory_of(*exp_avg_sq)?]
            }
            ChangeSource::Snapshot { master, previous, .. } => {
                vec![self.memory_of(*master)?, self.memory_of_mut(previous)?]
            }
            ChangeSource::PreCopy { master, model, .. } => {
                vec![self.memory_of(*master)?, self.memory_of(*model)?]
            }
            ChangeSource::InStep { master, changed: Bits::Device(memory), .. } => {
                vec![self.memory_of(*master)?, Some(CudaMemory::of(*memory, self.worker())?)]
            }
            ChangeSource::InStep { master, changed: Bits::Host(_), .. } => vec![self.memory_of(*master)?],
        };
        if let Pending::Drain(set) | Pending::Collect(set) = &options.pending {
            lent.push(self.memory_of_set(set)?);
        }
        Ok(lent.into_iter().flatten().collect())
    }

    fn addresses(
        &self,
        source: &ChangeSource<'_>,
        options: &DetectOptions<'_>,
    ) -> Result<Addresses, DeviceError> {
        let address = |memory: Option<&CudaMemory>| memory.map_or(0, CudaMemory::address);
        let mut all = match source {
            ChangeSource::Inversion { master, exp_avg, exp_avg_sq, .. } => Addresses {
                master: address(self.memory_of(*master)?),
                exp_avg: address(self.memory_of(*exp_avg)?),
                exp_avg_sq: address(self.memory_of(*exp_avg_sq)?),
                ..Addresses::default()
            },
            ChangeSource::Snapshot { master, previous, .. } => Addresses {
                master: address(self.memory_of(*master)?),
                previous: address(self.memory_of_mut(previous)?),
                ..Addresses::default()
            },
            ChangeSource::PreCopy { master, model, .. } => Addresses {
                master: address(self.memory_of(*master)?),
                previous: address(self.memory_of(*model)?),
                ..Addresses::default()
            },
            ChangeSource::InStep { master, .. } => {
                Addresses { master: address(self.memory_of(*master)?), ..Addresses::default() }
            }
        };
        if let Pending::Drain(set) | Pending::Collect(set) = &options.pending {
            all.pending = address(self.memory_of_set(set)?);
        }
        Ok(all)
    }

    fn marks<'a>(&self, source: &ChangeSource<'a>) -> Result<Marks<'a>, DeviceError> {
        let ChangeSource::InStep { changed, .. } = source else { return Ok(Marks::Absent) };
        Ok(match changed {
            Bits::Host(set) => Marks::Host(set.words()),
            Bits::Device(memory) => Marks::Device(CudaMemory::of(*memory, self.worker())?.address()),
        })
    }

    fn memory_of_set<'a>(&self, set: &'a BitsMut<'_>) -> Result<Option<&'a CudaMemory>, DeviceError> {
        match set {
            BitsMut::Host(set) if set.bytes() == 0 => Ok(None),
            BitsMut::Host(_) => Err(self.not_here()),
            BitsMut::Device(memory) => CudaMemory::of(*memory, self.worker()).map(Some),
        }
    }
}

fn pend(pending: &Pending<'_>) -> Pend {
    match pending {
        Pending::Absent => Pend::Absent,
        Pending::Drain(BitsMut::Device(memory)) => Pend::Drain { bytes: memory.bytes() },
        Pending::Drain(BitsMut::Host(_)) => Pend::Drain { bytes: 0 },
        Pending::Collect(_) => Pend::Collect,
    }
}

fn flags(source: &ChangeSource<'_>, options: &DetectOptions<'_>) -> u32 {
    let what = match (&options.pending, source) {
        (Pending::Absent, _) => DETECT_LIST | DETECT_DIGEST,
        (Pending::Drain(_), _) => DETECT_LIST | DETECT_DIGEST | DETECT_DRAIN,
        (Pending::Collect(_), ChangeSource::Snapshot { .. }) => DETECT_COLLECT | DETECT_UPDATE,
        (Pending::Collect(_), _) => DETECT_COLLECT,
    };
    what | if options.cast == Cast::HalfAway { DETECT_HALF_AWAY } else { 0 }
}

impl Pass<'_> {
    fn run(&self, gpu: &mut Gpu) -> Result<Detected, DeviceError> {
        let first = self.tensor.elements() / FIRST_ROOM_SHARE + FIRST_ROOM;
        let mut capacity = if self.publishes() { first.min(self.tensor.elements()) } else { 0 };
        loop {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(DeviceError::Canceled);
            }
            let window = self.window(capacity);
            let base = gpu.window(window.bytes)?;
            self.sweep(gpu, &window, base, capacity)?;
            let results = self.results(gpu, &window, base)?;
            if results.count <= capacity {
                return self.conclude(gpu, &window, base, results);
            }
            capacity = results.count;
        }
    }

    /// Whether the changes of this pass are published, and so listed.
    fn publishes(&self) -> bool {
        self.pending != Pend::Collect
    }

    fn window(&self, capacity: u64) -> Window {
        let mut layout = Layout::default();
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        let (count, pieces) = (layout.room(8), 4 * self.pieces.len());
        let (exceeded, unfit) = (layout.room(pieces), layout.room(pieces));
        let cells = layout.room(16 * self.cells());
        let results_end = layout.bytes();
        let tickets = layout.room(4 * self.parts.launches.len());
        let tile_state = layout.room(8 * self.parts.tiles as usize);
        let zeroed_end = layout.bytes();
        let parts = layout.room(size_of::<Part>() * self.parts.parts.len());
        let cuts = layout.room(4 * self.parts.cuts.len());
        let changed = layout.room(size_of_val(self.marks.uploaded()));
        let (indices, values) = (layout.room(4 * capacity), layout.room(2 * capacity));
        let classes = layout.room(if self.classes == Classes::Listed { capacity } else { 0 });
        let bytes = layout.bytes();
        Window {
            count,
            exceeded,
            unfit,
            cells,
            results_end,
            tickets,
            tile_state,
            zeroed_end,
            parts,
            cuts,
            changed,
            indices,
            values,
            classes,
            bytes,
        }
    }

    fn cells(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.cells.end)
    }

    /// Starts all kernels.
    fn sweep(&self, gpu: &mut Gpu, window: &Window, base: Address, capacity: u64) -> Result<(), DeviceError> {
        let at = |offset: usize| base + offset as u64;
        let table = gpu.table(self.keys)?;
        gpu.clear(base, window.zeroed_end)?;
        gpu.upload(at(window.parts), bytes_of(&self.parts.parts))?;
        gpu.upload(at(window.cuts), bytes_of(&self.parts.cuts))?;
        gpu.upload(at(window.changed), bytes_of(self.marks.uploaded()))?;
        let Addresses { master, exp_avg, exp_avg_sq, previous, pending } = self.addresses;
        let Some(first) = self.parts.launches.first() else { return Ok(()) };
        let args = DetectArgs {
            master,
            exp_avg,
            // A rule that reads no second moment is content with anything.
            exp_avg_sq: if exp_avg_sq == 0 { exp_avg } else { exp_avg_sq },
            previous,
            changed: match self.marks {
                Marks::Absent => 0,
                Marks::Host(_) => at(window.changed),
                Marks::Device(address) => address,
            },
            pending,
            parts: at(window.parts),
            cuts: at(window.cuts),
            table,
            tile_state: at(window.tile_state),
            ticket: at(window.tickets),
            count: at(window.count),
            indices: at(window.indices),
            values: at(window.values),
            classes: if self.classes == Classes::Listed { at(window.classes) } else { 0 },
            cells: at(window.cells),
            exceeded: at(window.exceeded),
            unfit: at(window.unfit),
            capacity,
            part_count: 0,
            first_tile: 0,
            tile_count: 0,
            tensor_tiles: self.parts.tiles,
            flags: self.flags,
            unused: 0,
            rule: first.rule,
        };
        for (ticket, launch) in (0..).zip(&self.parts.launches) {
            if self.cancel.load(Ordering::Relaxed) {
                gpu.finish()?;
                return Err(DeviceError::Canceled);
            }
            let threads = launch.tiles.len() as u64 * u64::from(gpu.threads());
            gpu.launch(&launch.kernel, threads, &args.of_launch(launch, ticket))?;
        }
        Ok(())
    }

    fn results(&self, gpu: &mut Gpu, window: &Window, base: Address) -> Result<Results, DeviceError> {
        let mut words = vec![0u32; window.results_end / 4];
        gpu.download(base, bytes_of_mut(&mut words))?;
        let some = |offset: usize, count: usize| words[offset / 4..offset / 4 + count].to_vec();
        let count = some(window.count, 2);
        Ok(Results {
            count: u64::from(count[0]) | u64::from(count[1]) << 32,
            exceeded: some(window.exceeded, self.pieces.len()),
            unfit: some(window.unfit, self.pieces.len()),
            cells: some(window.cells, 4 * self.cells()),
        })
    }

    /// Takes the list out of the window, and brings snapshot and pending set up to date.
    fn conclude(
        &self,
        gpu: &mut Gpu,
        window: &Window,
        base: Address,
        results: Results,
    ) -> Result<Detected, DeviceError> {
        let at = |offset: usize| base + offset as u64;
        let count = usize::try_from(results.count).unwrap_or(usize::MAX);
        let classes = if self.classes == Classes::Listed { at(window.classes) } else { 0 };
        let (indices, values) = (at(window.indices), at(window.values));
        let changes = CudaChanges::copied(self.device, gpu, Listed { indices, values, classes, count })?;
        if self.replaces && self.publishes() {
            let args = PutArgs {
                words: self.addresses.previous,
                indices: at(window.indices),
                values: at(window.values),
                count: results.count,
            };
            gpu.launch("driftless_put", results.count, &args)?;
        }
        match self.pending {
            Pend::Absent => {}
            // DV-5: everything that was pending is in the list.
            Pend::Drain { bytes } => gpu.clear(self.addresses.pending, bytes)?,
            Pend::Collect => self.remember_whole_pieces(gpu, &results)?,
        }
        gpu.finish()?;
        Ok(self.detected(results, changes))
    }

    /// Pieces whose changes are not known are pending whole.
    fn remember_whole_pieces(&self, gpu: &mut Gpu, results: &Results) -> Result<(), DeviceError> {
        for ((piece, &whole), &exceeded) in self.pieces.iter().zip(&self.goes_whole).zip(&results.exceeded) {
            if piece.dtype == Dtype::Bf16 && (whole || exceeded != 0) {
                let (first, count) = (piece.source.start as u64, piece.source.len() as u64);
                let args = FillArgs { bits: self.addresses.pending, first, count };
                gpu.launch("driftless_fill_bits", count / WORD_BITS + 2, &args)?;
            }
        }
        Ok(())
    }

    fn detected(&self, results: Results, changes: CudaChanges) -> Detected {
        let audit = |(piece, &unfit): (&Piece<'_>, &u32)| match (piece.dtype, unfit) {
            (Dtype::Fp32, _) => MasterAudit::Unknown,
            (Dtype::Bf16, 0) => MasterAudit::Fit,
            (Dtype::Bf16, _) => MasterAudit::Unfit,
        };
        Detected {
            changes: ChangeList::Device(Arc::new(changes)),
            first_cell: self.tensor.pieces.first().map_or(0, |piece| piece.first_cell),
            cells: results.cells.as_chunks::<4>().0.iter().map(|&lanes| Digest(lanes)).collect(),
            bound_exceeded: results.exceeded.iter().map(|&code| exceeded(code)).collect(),
            audits: self.pieces.iter().zip(&results.unfit).map(audit).collect(),
        }
    }
}

/// The largest update beyond a bound, as the kernels encode it.
const fn exceeded(code: u32) -> Option<f32> {
    match code {
        0 => None,
        1 => Some(f32::NAN),
        code => Some(f32::from_bits(code - 2)),
    }
}
