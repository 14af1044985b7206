//! How fast each kernel is, beside a copy on the same device in the same run.

use crate::Checked;
use crate::work::{COLS, RUN, RUNNING, State, Whole, lend, rule, there};
use bytes::Bytes;
use driftless_codec::{Expected, FramedSection, SectionStart, encode_block16, encode_section};
use driftless_device::cuda::CudaDevice;
use driftless_device::{
    Bitset, Buffer, ChangeList, ChangeSource, DetectOptions, Detected, Device, DeviceBuffer, DeviceError,
    Packed, Pending, PieceDiff, PieceRule, UndoLog,
};
use driftless_numerics::{Cast, DigestKeys, Family};
use driftless_types::{Digest, Version};
use std::collections::BTreeMap;

const WARM_UPS: usize = 2;
/// What is generated on the host; longer states repeat it.
const PATTERN: usize = 8 << 20;

/// The state, the tensor that it is of, and the engine's weights.
struct Bench<'a> {
    gpu: &'a CudaDevice,
    whole: Whole,
    keys: DigestKeys,
    master: DeviceBuffer<f32>,
    exp_avg: DeviceBuffer<f32>,
    exp_avg_sq: DeviceBuffer<f32>,
    old: Buffer<u16>,
    elements: usize,
    rounds: usize,
    copy_rate: f64,
}

/// Prints a line per kernel.
pub(crate) fn table(gpu: &CudaDevice, elements: usize, rounds: usize) -> Checked<()> {
    let cols = usize::try_from(COLS)?;
    let elements = elements / cols * cols;
    let mut state = State::usual(PATTERN.min(elements), 5);
    let old: Vec<u16> = state.master.iter().map(|&x| Cast::NearestEven.bits(x)).collect();
    state.step();
    let bench = Bench {
        gpu,
        whole: Whole::new(0, (elements / cols) as u64),
        keys: DigestKeys::new(RUN),
        master: repeated(gpu, &state.master, elements)?,
        exp_avg: repeated(gpu, &state.exp_avg, elements)?,
        exp_avg_sq: repeated(gpu, &state.exp_avg_sq, elements)?,
        old: repeated(gpu, &old, elements)?.into(),
        elements,
        rounds,
        copy_rate: 0.0,
    };
    let to = gpu.uninitialized::<f32>(elements)?;
    let ms = f64::from(gpu.time_copy(&to, &bench.master, rounds + WARM_UPS)?);
    drop(to);
    let bytes = 8 * elements as u64;
    let bench = Bench { copy_rate: rate(bytes, ms), ..bench };
    println!(
        "{:<36} {:>12} {:>14} {:>10} {:>8} {:>7}",
        "kernel", "elements", "bytes", "median us", "GB/s", "share"
    );
    bench.line("(a copy on the device)", elements as u64, bytes, ms);
    bench.detections()?;
    bench.moves()
}

fn repeated<T: driftless_device::Element>(
    gpu: &CudaDevice,
    pattern: &[T],
    elements: usize,
) -> Result<DeviceBuffer<T>, DeviceError> {
    let buffer = gpu.uninitialized(elements)?;
    let whole = Buffer::from(buffer.clone());
    for first in (0..elements).step_by(pattern.len()) {
        let end = (first + pattern.len()).min(elements);
        whole.write_range(first..end, |to| to.copy_from_slice(&pattern[..end - first]))?;
    }
    Ok(buffer)
}

/// GB/s, from bytes and milliseconds.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn rate(bytes: u64, ms: f64) -> f64 {
    bytes as f64 / ms / 1e6
}

impl Bench<'_> {
    fn line(&self, name: &str, elements: u64, bytes: u64, ms: f64) {
        let rate = rate(bytes, ms);
        let share = 100.0 * rate / self.copy_rate;
        println!("{name:<36} {elements:>12} {bytes:>14} {:>10.1} {rate:>8.1} {share:>5.1} %", 1e3 * ms);
    }

    /// Runs some work often enough, and gives the median of the milliseconds that each kernel takes in one run of it.
    fn medians<R>(&self, mut work: impl FnMut() -> Result<R, DeviceError>) -> Checked<BTreeMap<String, f64>> {
        let mut times: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        for round in 0..self.rounds + WARM_UPS {
            let (_, launches) = self.gpu.profile(&mut work)?;
            let mut sums: BTreeMap<String, f32> = BTreeMap::new();
            for (kernel, ms) in launches {
                *sums.entry(kernel).or_default() += ms;
            }
            if round >= WARM_UPS {
                sums.into_iter().for_each(|(kernel, ms)| times.entry(kernel).or_default().push(ms));
            }
        }
        let median = |mut times: Vec<f32>| {
            times.sort_by(f32::total_cmp);
            f64::from(times[times.len() / 2])
        };
        Ok(times.into_iter().map(|(kernel, times)| (kernel, median(times))).collect())
    }

    fn detect(&self, source: ChangeSource<'_>, cast: Cast) -> Result<Detected, DeviceError> {
        let Whole { tensor, params, .. } = &self.whole;
        self.gpu.detect(tensor, params, source, DetectOptions::new(cast), &self.keys, &RUNNING)
    }

    fn invert(&self, rule: &PieceRule, cast: Cast) -> Result<Detected, DeviceError> {
        let source = ChangeSource::Inversion {
            master: lend(&self.master),
            exp_avg: lend(&self.exp_avg),
            exp_avg_sq: lend(&self.exp_avg_sq),
            rules: std::slice::from_ref(rule),
        };
        self.detect(source, cast)
    }

    fn detections(&self) -> Checked<()> {
        let elements = self.elements as u64;
        for family in Family::ALL {
            let rule = rule(family)?;
            let changed = self.invert(&rule, family.cast())?.changes.count() as u64;
            self.lines(elements, 12 * elements + 6 * changed, || self.invert(&rule, family.cast()))?;
        }
        self.lines(elements, 4 * elements, || self.invert(&PieceRule::Untouched, Cast::NearestEven))?;
        let diffs = [PieceDiff::Compare];
        let compare = || {
            let old = self.old.lend();
            self.detect(
                ChangeSource::PreCopy { master: lend(&self.master), model: old.elements(), diffs: &diffs },
                Cast::NearestEven,
            )
        };
        let changed = compare()?.changes.count() as u64;
        self.lines(elements, 6 * elements + 6 * changed, compare)?;
        let mut marks = Bitset::new(self.elements);
        (0..self.elements).step_by(100).for_each(|index| marks.insert(index));
        self.lines(elements, 4 * elements + elements / 8, || {
            self.detect(
                ChangeSource::InStep { master: lend(&self.master), changed: (&marks).into(), diffs: &diffs },
                Cast::NearestEven,
            )
        })
    }

    /// Prints what some work launches, all of it over so many elements and bytes.
    fn lines<R>(
        &self,
        elements: u64,
        bytes: u64,
        work: impl FnMut() -> Result<R, DeviceError>,
    ) -> Checked<()> {
        for (kernel, ms) in self.medians(work)? {
            self.line(&kernel, elements, bytes, ms);
        }
        Ok(())
    }

    /// What comes after a detection: bytes are those that a kernel must move, 64 for each scattered change.
    fn moves(&self) -> Checked<()> {
        let (gpu, fragment, elements) = (self.gpu, &self.whole.fragment, self.elements as u64);
        let found = self.invert(&rule(Family::Torch)?, Cast::NearestEven)?;
        let (count, lists) = (found.changes.count() as u64, [found.changes]);
        let mut set = gpu.empty_set(self.elements)?;
        self.lines(count, 36 * count, || gpu.remember(&mut set, &lists[0]))?;
        self.lines(elements, elements / 8, || gpu.count(&set))?;
        self.lines(count, 12 * count, || gpu.remap(&lists, fragment))?;
        self.lines(elements, 6 * elements, || {
            gpu.gather(&[lend(&self.master)], fragment, Cast::NearestEven)
        })?;
        let changes = gpu.remap(&lists, fragment)?;
        let all = gpu.gather(&[lend(&self.master)], fragment, Cast::NearestEven)?;
        for (set, elements, bytes) in [(&changes, count, 64 * count), (&all, elements, 8 * elements)] {
            self.lines(elements, bytes, || {
                let (mut live, mut undo) = (self.old.lend_mut(), UndoLog::new());
                gpu.scatter(live.elements(), fragment, COLS, set, &self.keys, &mut undo)?;
                gpu.undo(live.elements(), &mut undo)
            })?;
        }
        self.lines(elements, 2 * elements, || {
            gpu.digest(self.old.lend().elements(), &self.whole.dest, &self.whole.params, &self.keys)
        })?;
        self.sections(&lists, count)?;
        self.snapshots()?;
        self.collects()
    }

    /// Sections of codec `block16`, made and read.
    fn sections(&self, lists: &[ChangeList], count: u64) -> Checked<()> {
        let (gpu, fragment) = (self.gpu, &self.whole.fragment);
        let of_codec = |(kernel, _): &(String, f64)| kernel.contains("block16");
        let made = self.medians(|| gpu.pack(lists, &[fragment]))?;
        for (kernel, ms) in made.into_iter().filter(of_codec) {
            self.line(&kernel, count, 10 * count, ms);
        }
        let (dtype, elements, version) = (fragment.dtype, fragment.elements(), Version(1));
        let start = SectionStart {
            fragment: fragment.index,
            dtype,
            n: elements,
            base: None,
            version,
            base_digest: Digest::ZERO,
            new_digest: Digest::ZERO,
        };
        let mut bytes = Vec::new();
        match gpu.pack(lists, &[fragment])?.pop().ok_or("a pack of nothing")? {
            Packed::Set(changes) => encode_section(&start, &changes, &mut bytes),
            Packed::Block16 { nnz, body } => encode_block16(&start, nnz, &body, &mut bytes),
        }
        let expected = Expected { fragment: fragment.index, dtype, elements, version };
        let section = FramedSection::parse(&mut Bytes::from(bytes), &expected)?;
        let read = self.medians(|| gpu.load(vec![section.clone()]))?;
        for (kernel, ms) in read.into_iter().filter(of_codec) {
            self.line(&kernel, count, 10 * count, ms);
        }
        Ok(())
    }

    /// A snapshot that is behind by a step, every time.
    fn snapshots(&self) -> Checked<()> {
        let (elements, diffs, old) = (self.elements as u64, [PieceDiff::Compare], self.old.view()?.to_vec());
        let snapshot = Buffer::from(there(self.gpu, &old)?);
        let mut changed = 0;
        let ms = self.medians(|| {
            snapshot.write(&old)?;
            let mut previous = snapshot.lend_mut();
            let source = ChangeSource::Snapshot {
                master: lend(&self.master),
                previous: previous.elements(),
                diffs: &diffs,
            };
            let found = self.detect(source, Cast::NearestEven)?;
            changed = found.changes.count() as u64;
            Ok(())
        })?;
        for (kernel, ms) in ms {
            if kernel == "driftless_put" {
                self.line(&kernel, changed, 70 * changed, ms);
            } else {
                self.line(&format!("{kernel} (snapshot)"), elements, 6 * elements + 6 * changed, ms);
            }
        }
        Ok(())
    }

    /// A step that is not published: what it changed becomes pending, here everything.
    fn collects(&self) -> Checked<()> {
        let Whole { tensor, params, .. } = &self.whole;
        let (elements, mut set) = (self.elements as u64, self.gpu.empty_set(self.elements)?);
        let ms = self.medians(|| {
            let source = ChangeSource::Inversion {
                master: lend(&self.master),
                exp_avg: lend(&self.exp_avg),
                exp_avg_sq: lend(&self.exp_avg_sq),
                rules: &[PieceRule::Dense],
            };
            let options = DetectOptions::default().with_pending(Pending::Collect(set.lend()));
            self.gpu.detect(tensor, params, source, options, &self.keys, &RUNNING)
        })?;
        ms.get("driftless_fill_bits")
            .into_iter()
            .for_each(|ms| self.line("driftless_fill_bits", elements, elements / 8, *ms));
        Ok(())
    }
}
