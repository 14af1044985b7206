//! How much of a plain sum's bandwidth the kernels reach on one core: `cargo bench -p driftless-device`.
//!
//! Every arm is compared with a sum over the same bytes in the same run, the arms take turns, medians are printed.
#![allow(clippy::print_stdout, reason = "a table on stdout is what a benchmark is for")]

use driftless_device::{
    Bitset, ChangeList, ChangeSource, CpuDevice, DetectOptions, Detected, Device, PieceDiff, PieceRule,
    UndoLog,
};
use driftless_layout::{Box2, DestBox, DestTensor, Fragment, ParamMeta, Piece, SourceRun, SourceTensor};
use driftless_numerics::{DigestKeys, Family, GroupStep, Hyperparameters, Rule, bf16};
use driftless_types::{ChangeSet, Dtype, Fqn, ParamId, RunId, Shape};
use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const ROWS: u64 = 12_288;
const COLS: u64 = 4096;
const ROUNDS: usize = 7;
static RUNNING: AtomicBool = AtomicBool::new(false);

struct Bench {
    device: CpuDevice,
    keys: DigestKeys,
    params: Vec<ParamMeta>,
    tensor: SourceTensor,
    master: Vec<f32>,
    exp_avg: Vec<f32>,
    exp_avg_sq: Vec<f32>,
}

impl Bench {
    fn new() -> Self {
        let canonical = Box2::new(0, ROWS, 0, COLS);
        let piece = Piece {
            src_offset: 0,
            param: ParamId(0),
            canonical,
            row_cuts: Vec::new(),
            col_cuts: vec![COLS / 2],
            first_cell: 0,
        };
        let n = ROWS * COLS;
        let mut state = 1_u64;
        let mut normal = || {
            let mut sum = 0.0;
            for _ in 0..4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                sum += (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
            }
            // Within the bound of Adam's moments, which the gate checks.
            (sum * 1.732_f32).clamp(-3.0, 3.0)
        };
        let master = (0..n).map(|_| 0.02 * normal()).collect();
        let exp_avg: Vec<f32> = (0..n).map(|_| 1e-5 * normal()).collect();
        let exp_avg_sq = (0..n).map(|_| 1e-9 * (1.0 + normal().abs())).collect();
        Self {
            device: CpuDevice::new(),
            keys: DigestKeys::new(RunId([1; 16])),
            params: vec![ParamMeta {
                id: ParamId(0),
                fqn: Fqn::from("w"),
                shape: Shape::new([ROWS, COLS]),
                dtype: Dtype::Bf16,
            }],
            tensor: SourceTensor { name: "w".into(), range: 0..n, pieces: vec![piece] },
            master,
            exp_avg,
            exp_avg_sq,
        }
    }

    fn detect(&self, source: ChangeSource<'_>) -> Detected {
        self.detect_on(self.device, source)
    }

    fn detect_on(&self, device: CpuDevice, source: ChangeSource<'_>) -> Detected {
        device
            .detect(&self.tensor, &self.params, source, DetectOptions::default(), &self.keys, &RUNNING)
            .expect("the plan fits")
    }

    fn invert(&self, rule: &PieceRule) -> Detected {
        self.invert_on(self.device, rule)
    }

    fn invert_on(&self, device: CpuDevice, rule: &PieceRule) -> Detected {
        let rules = std::slice::from_ref(rule);
        let (master, exp_avg, exp_avg_sq) = (&self.master[..], &self.exp_avg[..], &self.exp_avg_sq[..]);
        self.detect_on(
            device,
            ChangeSource::Inversion {
                master: master.into(),
                exp_avg: exp_avg.into(),
                exp_avg_sq: exp_avg_sq.into(),
                rules,
            },
        )
    }

    fn fragment(&self) -> Fragment {
        let run = SourceRun { tensor: 0, src_offset: 0, src_row_stride: COLS, box_row: 0, rows: ROWS };
        Fragment {
            index: 0,
            param: ParamId(0),
            dtype: Dtype::Bf16,
            canonical: Box2::new(0, ROWS, 0, COLS / 2),
            dst_tensor: 0,
            dst_offset: 0,
            dst_row_stride: COLS / 2,
            sources: vec![run],
            cells: vec![0],
            first_in_replica: true,
        }
    }
}

fn rule(family: Family) -> PieceRule {
    let hyper = Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let rule = Rule::new(&Fqn::from("w"), family, &GroupStep::new(100, hyper));
    PieceRule::Rule(rule.expect("a usual step is invertible"))
}

/// Reads slices side by side and does next to nothing with them: the bandwidth that a pass could have.
fn plain_sum(x: &[f32], m: &[f32], v: &[f32]) -> u32 {
    let mut sums = [0_u32; 16];
    let [x, m, v] = [x, m, v].map(|slice| slice.as_chunks::<16>().0);
    for ((x, m), v) in x.iter().zip(m).zip(v) {
        for (((sum, x), m), v) in sums.iter_mut().zip(x).zip(m).zip(v) {
            *sum = sum.wrapping_add(x.to_bits()).wrapping_add(m.to_bits()).wrapping_add(v.to_bits());
        }
    }
    sums.into_iter().fold(0, u32::wrapping_add)
}

fn plain_sum_of_masters(master: &[f32]) -> u32 {
    let mut sums = [0_u32; 16];
    for x in master.as_chunks::<16>().0 {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = sum.wrapping_add(x.to_bits());
        }
    }
    sums.into_iter().fold(0, u32::wrapping_add)
}

fn plain_sum_snapshot(master: &[f32], previous: &[u16]) -> u32 {
    let mut sums = [0_u32; 16];
    for (x, old) in master.as_chunks::<16>().0.iter().zip(previous.as_chunks::<16>().0) {
        for ((sum, x), old) in sums.iter_mut().zip(x).zip(old) {
            *sum = sum.wrapping_add(x.to_bits()).wrapping_add(u32::from(*old));
        }
    }
    sums.into_iter().fold(0, u32::wrapping_add)
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Runs two arms, which time themselves, in turns; prints the first one's bandwidth and its share of the second's.
fn compare(name: &str, bytes: u64, mut arm: impl FnMut() -> f64, mut floor: impl FnMut() -> f64) {
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        times.1.push(floor());
        times.0.push(arm());
    }
    let (arm, floor) = (median(times.0), median(times.1));
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    println!(
        "{name:<28} {:>6.2} GB/s  plain sum {:>6.2} GB/s  share {:>4.0} %",
        rate(arm),
        rate(floor),
        100.0 * floor / arm
    );
}

fn detection(bench: &Bench) {
    let sum = || {
        seconds(|| {
            black_box(plain_sum(&bench.master, &bench.exp_avg, &bench.exp_avg_sq));
        })
    };
    let bare = bench.device.without_digests();
    for family in [Family::Torch, Family::Agnostic] {
        let rule = rule(family);
        let found = bench.invert(&rule);
        let share = found.changes.count() as f64 / bench.master.len() as f64;
        let name = format!("detect {family} ({:.2} %)", 100.0 * share);
        compare(&name, 12 * ROWS * COLS, || seconds(|| drop(black_box(bench.invert(&rule)))), sum);
        let name = format!("detect {family}, no digest");
        compare(&name, 12 * ROWS * COLS, || seconds(|| drop(black_box(bench.invert_on(bare, &rule)))), sum);
    }
    compare(
        "cast and digest alone",
        4 * ROWS * COLS,
        || seconds(|| drop(black_box(bench.invert(&PieceRule::Untouched)))),
        || {
            seconds(|| {
                black_box(plain_sum_of_masters(&bench.master));
            })
        },
    );
}

fn snapshot(bench: &Bench) {
    let mut previous: Vec<u16> = bench.master.iter().map(|&x| bf16::cast(x)).collect();
    let stale = previous.clone();
    compare(
        "snapshot (1 %)",
        6 * ROWS * COLS,
        || {
            previous.iter_mut().step_by(100).for_each(|word| *word ^= 1);
            let (master, diffs) = (&bench.master[..], &[PieceDiff::Compare][..]);
            let source =
                ChangeSource::Snapshot { master: master.into(), previous: (&mut previous).into(), diffs };
            seconds(|| drop(black_box(bench.detect(source))))
        },
        || {
            seconds(|| {
                black_box(plain_sum_snapshot(&bench.master, &stale));
            })
        },
    );
}

/// Old bits that are there already: the model's own, and a mask that the optimizer wrote.
fn old_bits(bench: &Bench) {
    let mut model: Vec<u16> = bench.master.iter().map(|&x| bf16::cast(x)).collect();
    model.iter_mut().step_by(100).for_each(|word| *word ^= 1);
    let mut mask = Bitset::new(bench.master.len());
    (0..bench.master.len()).step_by(100).for_each(|index| mask.insert(index));
    let (master, diffs) = (&bench.master[..], &[PieceDiff::Compare][..]);
    compare(
        "pre-copy (1 %)",
        6 * ROWS * COLS,
        || {
            let source = ChangeSource::PreCopy { master: master.into(), model: (&model).into(), diffs };
            seconds(|| drop(black_box(bench.detect(source))))
        },
        || {
            seconds(|| {
                black_box(plain_sum_snapshot(master, &model));
            })
        },
    );
    compare(
        "in-step (1 %)",
        4 * ROWS * COLS + ROWS * COLS / 8,
        || {
            let source = ChangeSource::InStep { master: master.into(), changed: (&mask).into(), diffs };
            seconds(|| drop(black_box(bench.detect(source))))
        },
        || {
            seconds(|| {
                black_box(plain_sum_of_masters(master));
                black_box(mask.words().iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
            })
        },
    );
}

/// Remap and scatter, in nanoseconds per changed element; the digest is what a scatter without it does not take.
fn after_detection(bench: &Bench) {
    let changes: Vec<ChangeList> = vec![bench.invert(&rule(Family::Torch)).changes];
    let fragment = bench.fragment();
    let mut dst = vec![0; bench.master.len() / 2];
    let mut undo = UndoLog::new();
    let mut set = bench.device.remap(&changes, &fragment).expect("the fragment fits");
    let mut scatter = |device: CpuDevice, set: &ChangeSet| {
        let time = seconds(|| {
            let done = device.scatter((&mut dst).into(), &fragment, COLS, set, &bench.keys, &mut undo);
            black_box(done.expect("the fragment fits"));
        });
        device.undo((&mut dst).into(), &mut undo).expect("the same tensor");
        time
    };
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        times[0].push(seconds(|| set = bench.device.remap(&changes, &fragment).expect("the fragment fits")));
        times[1].push(scatter(bench.device, &set));
        times[2].push(scatter(bench.device.without_digests(), &set));
    }
    let [remap, whole, bare] = times.map(|times| median(times) / set.nnz(0) as f64);
    for (name, per_change) in [
        ("remap (half of the columns)", remap),
        ("scatter, undo log, digest", whole),
        ("receiver's digest in it", whole - bare),
    ] {
        println!("{name:<28} {:>6.2} ns per change, {:>4.0} M/s", 1e9 * per_change, 1e-6 / per_change);
    }
}

/// The digest of words in the first-level cache.
fn digest_of_words(bench: &Bench) {
    const WORDS: usize = 1024;
    const BLOCKS: u64 = 20_000;
    let words: Vec<u16> = bench.master[..WORDS].iter().map(|&x| bf16::cast(x)).collect();
    let dest = DestTensor {
        name: "w".into(),
        shape: Shape::new([1, WORDS as u64]),
        dtype: Dtype::Bf16,
        boxes: vec![DestBox {
            param: ParamId(0),
            canonical: Box2::new(0, 1, 0, WORDS as u64),
            dst_offset: 0,
            dst_row_stride: WORDS as u64,
        }],
    };
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(seconds(|| {
            for _ in 0..BLOCKS {
                let digest = bench.device.digest(black_box(&words).into(), &dest, &bench.params, &bench.keys);
                black_box(digest.expect("the box fits"));
            }
        }));
    }
    let per_word = median(times) / (BLOCKS * WORDS as u64) as f64;
    println!("{:<28} {:>6.1} ms per 0.5 G words", "digest of cached words", 0.5e12 * per_word);
}

fn main() {
    let bench = Bench::new();
    println!("{ROWS} x {COLS} elements, one core, {}, medians of {ROUNDS}", bench.device.name());
    detection(&bench);
    snapshot(&bench);
    old_bits(&bench);
    digest_of_words(&bench);
    after_detection(&bench);
}
