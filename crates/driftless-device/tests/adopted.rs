//! Memory of others, on the stand-in's GPU: their work on it comes first, and ours is done when a call returns.
//!
//! In every case the owner has a write in its queue that nobody has waited for, and so does our own work wait until
//! somebody asks for it. What is found, and what the owner then reads on its own stream, must be what the CPU makes of
//! the memory after that write.
#![expect(unsafe_code, reason = "the owner's part: raw addresses and a stream")]
#![expect(clippy::cast_possible_truncation, reason = "test data are small")]

#[path = "../../../tests/cuda/src/process.rs"]
#[expect(dead_code, unreachable_pub, reason = "shared with the tests of the whole backend")]
mod process;
mod support;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{DriverError, result};
use driftless_codec::{Expected, FramedSection, SectionStart, encode_section};
use driftless_device::cuda::{CudaDevice, CudaOptions, ExternalStream};
use driftless_device::{
    Bits, BitsMut, Bitset, Buffer, ChangeList, ChangeSource, CpuDevice, Delivery, DetectOptions, Detected,
    Device, DeviceBuffer, Element, ElementSet, Elements, ElementsMut, Pending, PieceDiff, PieceRule, UndoLog,
};
use driftless_layout::{Box2, DestBox, DestTensor, Fragment, ParamMeta, SourceRun, SourceTensor};
use driftless_numerics::{Cast, DigestKeys, Family};
use driftless_types::{ChangeSet, Dtype, ParamId, Shape, Version};
use process::{Standin, on_standin};
use std::sync::atomic::AtomicBool;
use support::{RUN, Rng, State, masters, params, tensor, usual_rule};

static RUNNING: AtomicBool = AtomicBool::new(false);
const ROWS: u64 = 40;
const COLS: u64 = 96;
/// More work than any case puts on all streams together.
const ALL_OF_IT: u32 = 1_000_000;

/// A trainer or an engine, with a stream of its own.
struct Owner {
    stream: CUstream,
    standin: Standin,
}

/// Some of its memory.
struct Foreign<T> {
    address: u64,
    buffer: DeviceBuffer<T>,
}

/// Everything that the cases work on.
struct Case {
    gpu: CudaDevice,
    owner: Owner,
    keys: DigestKeys,
    tensor: SourceTensor,
    params: Vec<ParamMeta>,
    state: State,
    old: Vec<u16>,
}

impl Owner {
    fn new() -> Result<Self> {
        let device = result::device::get(0)?;
        // SAFETY: the device is there; the context lives as long as the process.
        unsafe { result::ctx::set_current(result::primary_ctx::retain(device)?) }?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self { stream, standin: Standin::find()? })
    }

    /// Memory that holds `before`, and for which `after` waits in the owner's queue.
    fn memory<T: Element>(&self, gpu: &CudaDevice, before: &[T], after: &[T]) -> Result<Foreign<T>> {
        // SAFETY: written below before anybody reads it.
        let address = unsafe { result::malloc_sync(size_of_val(before)) }?;
        self.put(address, before)?;
        // SAFETY: the owner's own stream.
        unsafe { result::stream::synchronize(self.stream) }?;
        let stream = Some(ExternalStream(self.stream as u64));
        // SAFETY: nobody frees the memory, and everything that writes it is on the stream.
        let buffer = unsafe { gpu.adopt(address, before.len(), stream, Box::new(())) }?;
        let foreign = Foreign { address, buffer };
        self.rewrite(&foreign, after)?;
        Ok(foreign)
    }

    /// Puts a write into the queue; from here on all work is as late as it may be.
    fn rewrite<T: Element>(&self, memory: &Foreign<T>, after: &[T]) -> Result<()> {
        self.standin.hold(ALL_OF_IT)?;
        Ok(self.put(memory.address, after)?)
    }

    fn put<T: Element>(&self, address: u64, elements: &[T]) -> Result<(), DriverError> {
        // SAFETY: as many elements were allocated; the driver takes a copy of pageable memory before it returns.
        unsafe { result::memcpy_htod_async(address, elements, self.stream) }
    }

    /// What somebody finds who goes on on the owner's stream.
    fn read<T: Element>(&self, memory: &Foreign<T>) -> Result<Vec<T>> {
        let mut elements = vec![T::default(); memory.buffer.len()];
        // SAFETY: as many elements were allocated; the copy is waited for before anybody reads them.
        unsafe {
            result::memcpy_dtoh_async(&mut elements, memory.address, self.stream)?;
            result::stream::synchronize(self.stream)?;
        }
        Ok(elements)
    }
}

fn lend<T: Element>(buffer: &DeviceBuffer<T>) -> Elements<'_, T> {
    Elements::Device(buffer.memory())
}

/// The cast masters, every fifth one other.
fn old_bits(state: &State) -> Vec<u16> {
    let bits = |(index, &x): (usize, &f32)| Cast::NearestEven.bits(x) ^ u16::from(index % 5 == 0);
    state.master.iter().enumerate().map(bits).collect()
}

impl Case {
    fn new() -> Result<Self> {
        let (gpu, tensor) = (CudaDevice::open(CudaOptions { ordinal: 0, cache: None })?, tensor());
        let state = masters(&tensor);
        let (keys, old) = (DigestKeys::new(RUN), old_bits(&state));
        Ok(Self { gpu, owner: Owner::new()?, keys, tensor, params: params(), state, old })
    }

    fn ours<T: Element>(&self, elements: &[T]) -> Result<DeviceBuffer<T>> {
        let buffer = self.gpu.uninitialized(elements.len())?;
        Buffer::from(buffer.clone()).write(elements)?;
        Ok(buffer)
    }

    /// Zeros, and soon something else.
    fn late<T: Element>(&self, after: &[T]) -> Result<Foreign<T>> {
        self.owner.memory(&self.gpu, &vec![T::default(); after.len()], after)
    }

    fn detect_here(&self, source: ChangeSource<'_>, pending: Pending<'_>) -> Result<Detected> {
        let options = DetectOptions::default().with_classes().with_pending(pending);
        Ok(CpuDevice::new().detect(&self.tensor, &self.params, source, options, &self.keys, &RUNNING)?)
    }

    fn detect_there(&self, source: ChangeSource<'_>, pending: Pending<'_>) -> Result<Detected> {
        let options = DetectOptions::default().with_classes().with_pending(pending);
        let found = self.gpu.detect(&self.tensor, &self.params, source, options, &self.keys, &RUNNING)?;
        let changes = found.changes.to_host()?.into();
        Ok(Detected { changes, ..found })
    }

    /// A slot of the source: the owner's, still to be written, or ours.
    fn slot<T: Element>(&self, name: &str, late: &str, elements: &[T]) -> Result<Foreign<T>> {
        if name == late {
            return self.late(elements);
        }
        Ok(Foreign { address: 0, buffer: self.ours(elements)? })
    }

    fn inverts(&self, late: &str) -> Result<()> {
        let rules = vec![PieceRule::Rule(usual_rule(Family::Torch)); 7];
        let State { master, exp_avg, exp_avg_sq } = &self.state;
        let source = |master, exp_avg, exp_avg_sq| ChangeSource::Inversion {
            master,
            exp_avg,
            exp_avg_sq,
            rules: &rules,
        };
        let here = source(master.into(), exp_avg.into(), exp_avg_sq.into());
        let here = self.detect_here(here, Pending::Absent)?;
        let master = self.slot("master", late, master)?.buffer;
        let exp_avg = self.slot("exp_avg", late, exp_avg)?.buffer;
        let exp_avg_sq = self.slot("exp_avg_sq", late, exp_avg_sq)?.buffer;
        let there = source(lend(&master), lend(&exp_avg), lend(&exp_avg_sq));
        ensure!(self.detect_there(there, Pending::Absent)? == here, "a state before the write");
        Ok(())
    }

    fn compares(&self, late: &str) -> Result<()> {
        let diffs = vec![PieceDiff::Compare; 7];
        let source = |master, model| ChangeSource::PreCopy { master, model, diffs: &diffs };
        let here = source((&self.state.master).into(), (&self.old).into());
        let here = self.detect_here(here, Pending::Absent)?;
        let master = self.slot("master", late, &self.state.master)?.buffer;
        let model = self.slot("model", late, &self.old)?.buffer;
        let there = self.detect_there(source(lend(&master), lend(&model)), Pending::Absent)?;
        ensure!(there == here, "bits before the write");
        Ok(())
    }

    fn snapshots(&self, late: &str) -> Result<()> {
        let (diffs, mut previous) = (vec![PieceDiff::Compare; 7], self.old.clone());
        let mut pending = Bitset::new(self.old.len());
        (0..self.old.len()).step_by(31).for_each(|index| pending.insert(index));
        let marks = pending.words().to_vec();
        let (master, old) = ((&self.state.master).into(), (&mut previous).into());
        let source = ChangeSource::Snapshot { master, previous: old, diffs: &diffs };
        let here = self.detect_here(source, Pending::Drain((&mut pending).into()))?;
        let master = self.slot("master", late, &self.state.master)?.buffer;
        let old = self.slot("previous", late, &self.old)?;
        let set = self.slot("pending", late, &marks)?;
        let source = ChangeSource::Snapshot {
            master: lend(&master),
            previous: ElementsMut::Device(old.buffer.memory()),
            diffs: &diffs,
        };
        let there = self.detect_there(source, Pending::Drain(BitsMut::Device(set.buffer.memory())))?;
        ensure!(there == here, "bits before the write");
        if late == "previous" {
            ensure!(self.owner.read(&old)? == previous, "a snapshot that is not up to date");
        }
        if late == "pending" {
            ensure!(self.owner.read(&set)? == pending.words(), "a set that is not drained");
        }
        Ok(())
    }

    fn follows_marks(&self, late: &str) -> Result<()> {
        let diffs = vec![PieceDiff::Compare; 7];
        let mut marks = Bitset::new(self.old.len());
        (0..self.old.len()).step_by(13).for_each(|index| marks.insert(index));
        let source = |master, changed| ChangeSource::InStep { master, changed, diffs: &diffs };
        let here = source((&self.state.master).into(), Bits::Host(&marks));
        let here = self.detect_here(here, Pending::Absent)?;
        let master = self.slot("master", late, &self.state.master)?.buffer;
        let set = self.slot("marks", late, marks.words())?.buffer;
        let there = source(lend(&master), Bits::Device(set.memory()));
        ensure!(self.detect_there(there, Pending::Absent)? == here, "marks before the write");
        Ok(())
    }

    fn clears(&self) -> Result<()> {
        let set = self.late(&[7_u64; 100])?;
        set.buffer.memory().clear()?;
        ensure!(self.owner.read(&set)? == [0; 100], "a set cleared before the write");
        Ok(())
    }

    fn reads(&self) -> Result<()> {
        let foreign = self.late(&self.old)?;
        ensure!(Buffer::from(foreign.buffer).view()?[..] == self.old, "words before the write");
        Ok(())
    }

    fn writes(&self) -> Result<()> {
        let foreign = self.late(&self.old)?;
        let words: Vec<u16> = self.old.iter().map(|word| !word).collect();
        Buffer::from(foreign.buffer.clone()).write(&words)?;
        ensure!(self.owner.read(&foreign)? == words, "words of before the call");
        Ok(())
    }

    fn copies(&self) -> Result<()> {
        let master = self.late(&self.state.master)?.buffer;
        let copy = self.gpu.copy(lend(&master))?;
        ensure!(same(&copy.view()?, &self.state.master), "masters before the write");
        Ok(())
    }

    fn times_copies(&self) -> Result<()> {
        let from = self.late(&self.state.master)?;
        let to = self.late(&vec![1.0; self.state.master.len()])?;
        self.gpu.time_copy(&to.buffer, &from.buffer, 1)?;
        ensure!(same(&self.owner.read(&to)?, &self.state.master), "masters before the write");
        Ok(())
    }

    fn casts(&self) -> Result<()> {
        let master = self.late(&self.state.master)?.buffer;
        let here = CpuDevice::new().served_bits((&self.state.master).into(), Cast::HalfAway)?;
        let there = self.gpu.served_bits(lend(&master), Cast::HalfAway)?;
        ensure!(there.view()?[..] == here.view()?[..], "masters before the write");
        Ok(())
    }

    fn gathers(&self) -> Result<()> {
        let words = &self.state.master[..(ROWS * COLS) as usize];
        let master = self.late(words)?.buffer;
        let here = CpuDevice::new().gather(&[words.into()], &fragment(), Cast::NearestEven)?;
        let there = self.gpu.gather(&[lend(&master)], &fragment(), Cast::NearestEven)?;
        ensure!(there == here, "masters before the write");
        Ok(())
    }

    fn digests(&self) -> Result<()> {
        let words = &self.old[..(ROWS * COLS) as usize];
        let place = DestBox {
            param: ParamId(0),
            canonical: fragment().canonical,
            dst_offset: 0,
            dst_row_stride: COLS,
        };
        let shape = Shape::new([ROWS, COLS]);
        let dest = DestTensor { name: "d".into(), shape, dtype: Dtype::Bf16, boxes: vec![place] };
        let live = self.late(words)?.buffer;
        let here = CpuDevice::new().digest(words.into(), &dest, &self.params, &self.keys)?;
        let there = self.gpu.digest(lend(&live), &dest, &self.params, &self.keys)?;
        ensure!(there == here, "words before the write");
        Ok(())
    }

    /// Single words.
    fn peeks(&self) -> Result<()> {
        let (words, positions) = (&self.old[..(ROWS * COLS) as usize], [0, 3, 70]);
        let live = self.late(words)?.buffer;
        let found = self.gpu.read_at(lend(&live), &fragment(), COLS, &positions)?;
        ensure!(found == positions.map(|at| words[at as usize]), "words before the write");
        Ok(())
    }

    /// A scatter over a late write, and an undo over another.
    fn scatters(&self, set: &ChangeSet) -> Result<()> {
        let cpu = CpuDevice::new();
        let (fragment, words) = (fragment(), &self.old[..(ROWS * COLS) as usize]);
        let (mut here, mut undo, mut undo_there) = (words.to_vec(), UndoLog::new(), UndoLog::new());
        let live = self.late(words)?;
        let dst = || ElementsMut::Device(live.buffer.memory());
        let done = cpu.scatter((&mut here).into(), &fragment, COLS, set, &self.keys, &mut undo)?;
        let there = self.gpu.scatter(dst(), &fragment, COLS, set, &self.keys, &mut undo_there)?;
        ensure!(there == done && self.owner.read(&live)? == here, "a scatter before the write");
        here.iter_mut().for_each(|word| *word = word.rotate_left(3));
        self.owner.rewrite(&live, &here)?;
        cpu.undo((&mut here).into(), &mut undo)?;
        self.gpu.undo(dst(), &mut undo_there)?;
        ensure!(self.owner.read(&live)? == here, "an undo before the write");
        Ok(())
    }

    /// A section that arrived, into memory with a late write.
    fn delivers(&self) -> Result<()> {
        let (fragment, words) = (fragment(), &self.old[..(ROWS * COLS) as usize]);
        let (dtype, n, version) = (fragment.dtype, fragment.elements(), Version(2));
        let start = SectionStart::new(0, dtype, n, version);
        let mut bytes = Vec::new();
        encode_section(&start, &sparse(), &mut bytes);
        let expected = Expected { fragment: 0, dtype, elements: n, version };
        let section = FramedSection::parse(&mut Bytes::from(bytes), &expected)?;
        let section = self.gpu.load(vec![section])?.pop().context("one section")?;
        let (mut here, mut undo) = (words.to_vec(), UndoLog::new());
        let done = CpuDevice::new().scatter(
            (&mut here).into(),
            &fragment,
            COLS,
            &sparse(),
            &self.keys,
            &mut undo,
        )?;
        let (live, mut undo) = (self.late(words)?, UndoLog::new());
        let dst = ElementsMut::Device(live.buffer.memory());
        let delivery = Delivery { fragment: &fragment, param_cols: COLS, section };
        let there = self.gpu.deliver(dst, vec![delivery], &self.keys, &mut undo)?;
        ensure!(there == [done] && self.owner.read(&live)? == here, "a delivery before the write");
        Ok(())
    }

    fn remembers(&self) -> Result<()> {
        let (cpu, changes) = (CpuDevice::new(), self.changes()?);
        let mut bits = Bitset::new(self.old.len());
        (0..self.old.len()).step_by(31).for_each(|index| bits.insert(index));
        let set = self.late(bits.words())?;
        let mut there = ElementSet::Device(set.buffer.clone());
        ensure!(self.gpu.count(&there)? == bits.count(), "a set counted before the write");
        self.owner.rewrite(&set, bits.words())?;
        self.gpu.remember(&mut there, &changes)?;
        let marked = self.owner.read(&set)?;
        let mut here = ElementSet::Host(bits);
        cpu.remember(&mut here, &changes.to_host()?.into())?;
        let ElementSet::Host(here) = here else { anyhow::bail!("a set of the host") };
        ensure!(marked == here.words(), "a set marked before the write");
        Ok(())
    }

    /// Changes that are on the device.
    fn changes(&self) -> Result<ChangeList> {
        let (diffs, master, model) =
            (vec![PieceDiff::Compare; 7], self.ours(&self.state.master)?, self.ours(&self.old)?);
        let source = ChangeSource::PreCopy { master: lend(&master), model: lend(&model), diffs: &diffs };
        let options = DetectOptions::default();
        Ok(self.gpu.detect(&self.tensor, &self.params, source, options, &self.keys, &RUNNING)?.changes)
    }
}

fn same(found: &[f32], expected: &[f32]) -> bool {
    found.iter().map(|x| x.to_bits()).eq(expected.iter().map(|x| x.to_bits()))
}

/// The whole first parameter.
fn fragment() -> Fragment {
    let run = SourceRun { tensor: 0, src_offset: 0, src_row_stride: COLS, box_row: 0, rows: ROWS };
    Fragment {
        index: 0,
        param: ParamId(0),
        dtype: Dtype::Bf16,
        canonical: Box2::new(0, ROWS, 0, COLS),
        dst_tensor: 0,
        dst_offset: 0,
        dst_row_stride: COLS,
        sources: vec![run],
        cells: vec![0],
        first_in_replica: true,
    }
}

fn sparse() -> ChangeSet {
    let positions: Vec<u32> = (0..(ROWS * COLS) as u32).step_by(7).collect();
    ChangeSet::Sparse { values: positions.iter().map(|&at| at as u16 ^ 0x5555).collect(), positions }
}

fn whole() -> ChangeSet {
    let mut rng = Rng(5);
    ChangeSet::All((0..ROWS * COLS).map(|_| rng.word()).collect())
}

type Check = fn(&Case) -> Result<()>;

/// Every call that takes memory of somebody else, once for each memory that it takes.
const CHECKS: [(&str, Check); 25] = [
    ("inversion, masters", |case| case.inverts("master")),
    ("inversion, first moments", |case| case.inverts("exp_avg")),
    ("inversion, second moments", |case| case.inverts("exp_avg_sq")),
    ("pre-copy, masters", |case| case.compares("master")),
    ("pre-copy, model", |case| case.compares("model")),
    ("snapshot, masters", |case| case.snapshots("master")),
    ("snapshot, older bits", |case| case.snapshots("previous")),
    ("snapshot, pending set", |case| case.snapshots("pending")),
    ("in-step, masters", |case| case.follows_marks("master")),
    ("in-step, marks", |case| case.follows_marks("marks")),
    ("clear", Case::clears),
    ("deliver", Case::delivers),
    ("download", Case::reads),
    ("upload", Case::writes),
    ("copy", Case::copies),
    ("copy with a clock", Case::times_copies),
    ("cast", Case::casts),
    ("gather", Case::gathers),
    ("digest", Case::digests),
    ("words at positions", Case::peeks),
    ("scatter and undo, some", |case| case.scatters(&sparse())),
    ("scatter and undo, all", |case| case.scatters(&whole())),
    ("count and remember", Case::remembers),
    ("a refused scatter", refused_scatter),
    ("a refused detection", refused_detection),
];

/// GT-6 for a call that fails: nothing of it is still to be done, for its memory is freed at once.
fn refused_scatter(case: &Case) -> Result<()> {
    let live = case.ours(&case.old)?;
    let mut undo = UndoLog::new();
    case.owner.standin.hold(ALL_OF_IT)?;
    case.owner.standin.inject(process::Failure::Launch, 0)?;
    let dst = ElementsMut::Device(live.memory());
    let refused = case.gpu.scatter(dst, &fragment(), COLS, &sparse(), &case.keys, &mut undo);
    ensure!(refused.is_err() && undo.is_empty(), "{refused:?}");
    ensure!(Buffer::from(live).view()?[..] == case.old, "work that outlived its call");
    Ok(())
}

fn refused_detection(case: &Case) -> Result<()> {
    let foreign = case.late(&case.state.master)?;
    let diffs = vec![PieceDiff::Compare; 7];
    let model = case.ours(&case.old)?;
    // The second launch: the first is on its way.
    case.owner.standin.inject(process::Failure::Launch, 1)?;
    let source = ChangeSource::PreCopy { master: lend(&foreign.buffer), model: lend(&model), diffs: &diffs };
    ensure!(case.detect_there(source, Pending::Absent).is_err(), "the injected failure");
    // SAFETY: the owner's own memory, which the call no longer uses: its stream has been waited for.
    unsafe { result::free_sync(foreign.address) }?;
    ensure!(Buffer::from(model).view()?[..] == case.old, "work that outlived its call");
    Ok(())
}

#[test]
fn gt6_a_call_comes_after_its_owners_work_and_before_what_follows() -> Result<()> {
    on_standin("gt6_a_call_comes_after_its_owners_work_and_before_what_follows", &[], || {
        let case = Case::new()?;
        let mut failures = Vec::new();
        for (name, check) in CHECKS {
            if let Err(error) = check(&case) {
                failures.push(format!("{name}: {error}"));
            }
        }
        ensure!(failures.is_empty(), "{}", failures.join("\n"));
        Ok(())
    })
}
