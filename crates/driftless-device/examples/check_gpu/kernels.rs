//! How fast each kernel is, beside a copy on the same device in the same run.

use crate::Checked;
use crate::work::{COLS, RUN, RUNNING, State, Whole, lend, rule, rule_of, sent, there};
use driftless_device::cuda::{CudaDevice, kernel_names};
use driftless_device::{
    Bitset, Buffer, ChangeSource, DetectOptions, Detected, Device, DeviceBuffer, DeviceError, ElementsMut,
    Pending, PieceDiff, PieceRule, UndoLog,
};
use driftless_numerics::{Cast, DigestKeys, Family, Optimizer};
use driftless_types::ChangeSet;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

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
    timed: RefCell<BTreeSet<String>>,
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
        timed: RefCell::default(),
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
    bench.sets()?;
    bench.moves()?;
    bench.sections()?;
    let timed = bench.timed.into_inner();
    match kernel_names().find(|&kernel| !timed.contains(kernel)) {
        Some(kernel) => Err(format!("nothing here launches {kernel}").into()),
        None => Ok(()),
    }
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
        self.timed.borrow_mut().insert(name.to_owned());
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
        self.detect_with(source, DetectOptions::new(cast))
    }

    fn detect_with(
        &self,
        source: ChangeSource<'_>,
        options: DetectOptions<'_>,
    ) -> Result<Detected, DeviceError> {
        let Whole { tensor, params, .. } = &self.whole;
        self.gpu.detect(tensor, params, source, options, &self.keys, &RUNNING)
    }

    fn inversion<'b>(&'b self, rules: &'b [PieceRule]) -> ChangeSource<'b> {
        let (master, exp_avg, exp_avg_sq) = (&self.master, &self.exp_avg, &self.exp_avg_sq);
        ChangeSource::Inversion {
            master: lend(master),
            exp_avg: lend(exp_avg),
            exp_avg_sq: lend(exp_avg_sq),
            rules,
        }
    }

    fn invert(&self, rule: &PieceRule, cast: Cast) -> Result<Detected, DeviceError> {
        self.detect(self.inversion(std::slice::from_ref(rule)), cast)
    }

    fn detections(&self) -> Checked<()> {
        let elements = self.elements as u64;
        let adam_w = Family::ALL.map(|family| (Optimizer::AdamW, family));
        // A family of either cast: without decay they differ in nothing else.
        let others = [Optimizer::Adam, Optimizer::Sgd].into_iter().flat_map(|optimizer| {
            let of_cast = |cast| Family::ALL.into_iter().find(|family| family.cast() == cast);
            [Cast::NearestEven, Cast::HalfAway]
                .into_iter()
                .filter_map(of_cast)
                .map(move |family| (optimizer, family))
        });
        for (optimizer, family) in adam_w.into_iter().chain(others) {
            let rule = rule_of(optimizer, family)?;
            let changed = self.invert(&rule, family.cast())?.changes.count() as u64;
            let each = if optimizer == Optimizer::Sgd { 8 } else { 12 };
            self.lines(elements, each * elements + 6 * changed, || self.invert(&rule, family.cast()))?;
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
        self.lines_of("driftless_", elements, bytes, work)
    }

    /// The same, of kernels whose names begin like this.
    fn lines_of<R>(
        &self,
        prefix: &str,
        elements: u64,
        bytes: u64,
        work: impl FnMut() -> Result<R, DeviceError>,
    ) -> Checked<()> {
        let times = self.medians(work)?;
        let wanted = times.iter().filter(|(kernel, _)| kernel.starts_with(prefix));
        wanted.for_each(|(kernel, &ms)| self.line(kernel, elements, bytes, ms));
        Ok(())
    }

    /// Sets of pending changes, and a snapshot that is brought up to date.
    fn sets(&self) -> Checked<()> {
        let (gpu, elements) = (self.gpu, self.elements as u64);
        let changes = self.invert(&rule(Family::Torch)?, Cast::NearestEven)?.changes;
        let count = changes.count() as u64;
        let mut set = gpu.empty_set(self.elements)?;
        self.lines(count, 36 * count, || gpu.remember(&mut set, &changes))?;
        self.lines(elements, elements / 8, || gpu.count(&set))?;
        self.lines_of("driftless_fill_bits", elements, elements / 4, || {
            let options = DetectOptions::new(Cast::NearestEven).with_pending(Pending::Collect(set.lend()));
            self.detect_with(self.inversion(&[PieceRule::Dense]), options)
        })?;
        let old = self.old.view()?;
        let snapshot = there(gpu, &old)?;
        let diffs = [PieceDiff::Compare];
        self.lines_of("driftless_put", count, 70 * count, || {
            Buffer::from(snapshot.clone()).write(&old)?;
            let previous = ElementsMut::Device(snapshot.memory());
            let source = ChangeSource::Snapshot { master: lend(&self.master), previous, diffs: &diffs };
            self.detect_with(source, DetectOptions::new(Cast::NearestEven))
        })
    }

    /// Changes and whole tensors out of the trainer's memory and into the engine's: bytes are those that a kernel must
    /// move, 64 for each scattered change.
    fn moves(&self) -> Checked<()> {
        let (gpu, fragment, elements) = (self.gpu, &self.whole.fragment, self.elements as u64);
        let found = self.invert(&rule(Family::Torch)?, Cast::NearestEven)?;
        let (count, lists) = (found.changes.count() as u64, [found.changes]);
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
        if let ChangeSet::Sparse { positions, .. } = &changes {
            let live = self.old.lend();
            self.lines(count, 38 * count, || gpu.read_at(live.elements(), fragment, COLS, positions))?;
        }
        self.lines(elements, 2 * elements, || {
            gpu.digest(self.old.lend().elements(), &self.whole.dest, &self.whole.params, &self.keys)
        })
    }

    /// Sections as they are sent and as they arrive.
    fn sections(&self) -> Checked<()> {
        let (gpu, fragment) = (self.gpu, &self.whole.fragment);
        let lists = [self.invert(&rule(Family::Torch)?, Cast::NearestEven)?.changes];
        let count = lists[0].count() as u64;
        self.lines_of("driftless_block16", count, 10 * count, || gpu.pack(&lists, &[fragment]))?;
        let sent = sent(gpu, &lists, fragment)?;
        self.lines_of("driftless_block16", count, 10 * count, || gpu.load(vec![sent.clone()]))
    }
}
