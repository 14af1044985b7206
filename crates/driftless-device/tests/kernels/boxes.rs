//! Scatter, undo and digests: what a receiver does with its boxes.

use crate::abi::{
    Box, Divisor, FAULT_NOT_RISING, FAULT_OUT_OF_RANGE, RehashArgs, ScatterArgs, ScatterResult,
};
use crate::shim::{BLOCK_SIZES, Grid, launch};
use crate::support::{RUN, Rng, param};
use driftless_device::{CpuDevice, Device, UndoLog};
use driftless_layout::{Box2, DestBox, DestTensor, Fragment, ParamMeta};
use driftless_numerics::{DigestKeys, DigestTable};
use driftless_types::{ChangeSet, Digest, Dtype, ParamId, Shape};
use std::ptr::{null, null_mut};

/// Where a fragment lies; one whose rows follow each other, here and there, as one row.
pub(crate) fn area_of(fragment: &Fragment, param_cols: u64) -> Box {
    let canonical = &fragment.canonical;
    let is_one =
        canonical.rows == 1 || param_cols == canonical.cols && fragment.dst_row_stride == canonical.cols;
    let (rows, width) = if is_one { (1, canonical.elements()) } else { (canonical.rows, canonical.cols) };
    Box {
        origin: canonical.row * param_cols + canonical.col,
        row_stride: param_cols,
        dst_offset: fragment.dst_offset,
        dst_row_stride: fragment.dst_row_stride,
        rows: rows as u32,
        param: fragment.param.0,
        cols: Divisor::new(width),
    }
}

/// A box of parameter 0 in a destination tensor, with foreign elements around it.
struct Scene {
    fragment: Fragment,
    params: Vec<ParamMeta>,
    words: Vec<u16>,
    keys: DigestKeys,
    table: std::boxed::Box<DigestTable>,
}

impl Scene {
    fn new(dtype: Dtype, rows: u64, cols: u64, extra: [u64; 3], rng: &mut Rng) -> Self {
        let [left, right, gap] = extra;
        // Far from the first element, so that block numbers need more than 32 bits of words.
        let canonical = Box2::new(1 << 26, rows, left, cols);
        let offset = rng.below(9);
        let elements = (offset + rows * (cols + gap) + 3) as usize;
        let fragment = Fragment {
            index: 0,
            param: ParamId(0),
            dtype,
            canonical,
            dst_tensor: 0,
            dst_offset: offset,
            dst_row_stride: cols + gap,
            sources: Vec::new(),
            cells: Vec::new(),
            first_in_replica: true,
        };
        let keys = DigestKeys::new(RUN);
        let words = (0..elements * dtype.words()).map(|_| rng.word()).collect();
        let params = vec![param(0, 1 << 40, left + cols + right, dtype)];
        Self { fragment, params, words, table: std::boxed::Box::new(keys.table()), keys }
    }

    /// Of every shape: rows that follow each other or do not, here, there and in both.
    fn random(dtype: Dtype, rng: &mut Rng) -> Self {
        let (rows, cols) = if rng.below(3) == 0 {
            (1 + rng.below(3), 1 + rng.below(5000))
        } else {
            (1 + rng.below(40), 1 + rng.below(130))
        };
        let maybe = |most: u64, rng: &mut Rng| if rng.below(2) == 0 { 0 } else { rng.below(most) };
        let extra = [maybe(4, rng), maybe(4, rng), maybe(9, rng)];
        Self::new(dtype, rows, cols, extra, rng)
    }

    fn area(&self) -> Box {
        area_of(&self.fragment, self.params[0].cols())
    }

    fn tensor(&self) -> DestTensor {
        let Fragment { canonical, dst_offset, dst_row_stride, dtype, .. } = self.fragment;
        let dest = DestBox { param: ParamId(0), canonical, dst_offset, dst_row_stride };
        let shape = Shape::new([(self.words.len() / dtype.words()) as u64]);
        DestTensor { name: "t".into(), shape, dtype, boxes: vec![dest] }
    }

    fn digest(&self, words: &[u16]) -> Digest {
        let device = CpuDevice::new();
        device.digest(words.into(), &self.tensor(), &self.params, &self.keys).expect("the box fits")
    }

    /// The arguments of a scatter of `count` changes, or elements, into `words`.
    fn args(
        &self,
        words: &mut [u16],
        values: &[u16],
        undo: &mut [u16],
        result: &mut ScatterResult,
    ) -> ScatterArgs {
        ScatterArgs {
            words: words.as_mut_ptr(),
            positions: null(),
            values: values.as_ptr(),
            undo: undo.as_mut_ptr(),
            table: &raw const *self.table,
            result,
            count: 0,
            words_each: self.fragment.dtype.words() as u32,
            unused: 0,
            area: self.area(),
        }
    }
}

fn sparse(scene: &Scene, every: u64, rng: &mut Rng) -> (Vec<u32>, Vec<u16>) {
    let positions: Vec<u32> =
        (0..scene.fragment.elements() as u32).filter(|_| rng.below(every) == 0).collect();
    // Some changes are none.
    let values = positions.iter().map(|_| if rng.below(4) == 0 { scene.words[0] } else { rng.word() });
    let values = values.collect();
    (positions, values)
}

#[test]
fn gp3_scattered_changes_and_their_undo() {
    let mut rng = Rng(51);
    for (seed, threads) in (0..).zip(BLOCK_SIZES.repeat(8)) {
        let (scene, grid) = (Scene::random(Dtype::Bf16, &mut rng), Grid::new(threads, seed));
        let (positions, values) = sparse(&scene, 1 + rng.below(20), &mut rng);
        let changes = ChangeSet::Sparse { positions: positions.clone(), values: values.clone() };
        let [mut ours, mut theirs] = [scene.words.clone(), scene.words.clone()];
        let wanted = CpuDevice::new()
            .scatter(
                (&mut theirs).into(),
                &scene.fragment,
                scene.params[0].cols(),
                &changes,
                &scene.keys,
                &mut UndoLog::new(),
            )
            .expect("the fragment fits");
        let (mut result, mut undo) = (ScatterResult::default(), vec![0; positions.len()]);
        let mut args = scene.args(&mut ours, &values, &mut undo, &mut result);
        (args.positions, args.count) = (positions.as_ptr(), positions.len() as u64);
        launch("driftless_scatter_check", grid, &args);
        launch("driftless_scatter", grid, &args);
        assert_eq!(result.fault, 0);
        assert_eq!((result.changed, Digest(result.delta)), (wanted.changed, wanted.delta), "{grid:?}");
        assert_eq!(ours, theirs, "{grid:?}");
        assert_eq!(scene.digest(&scene.words) + Digest(result.delta), scene.digest(&ours));
        launch("driftless_undo", grid, &args);
        assert_eq!(ours, scene.words, "dv2: every old word is back");
        // The words that were put back, one by one.
        let mut peeked = vec![0; positions.len()];
        let mut args = scene.args(&mut ours, &values, &mut peeked, &mut result);
        (args.positions, args.count) = (positions.as_ptr(), positions.len() as u64);
        launch("driftless_peek", grid, &args);
        let cols = scene.params[0].cols();
        let wanted = CpuDevice::new().read_at((&scene.words).into(), &scene.fragment, cols, &positions);
        assert_eq!(Ok(peeked), wanted, "{grid:?}");
    }
}

#[test]
fn gp3_bad_positions_are_reported_and_nothing_is_written() {
    let mut rng = Rng(61);
    let scene = Scene::new(Dtype::Bf16, 9, 40, [1, 0, 2], &mut rng);
    let faults: [(&[u32], u32); 6] = [
        (&[3, 3], FAULT_NOT_RISING),
        (&[3, 9, 5], FAULT_NOT_RISING),
        (&[360], FAULT_OUT_OF_RANGE),
        (&[0, 5, u32::MAX], FAULT_OUT_OF_RANGE),
        (&[u32::MAX, 5], FAULT_OUT_OF_RANGE),
        (&[359, 358, 360], FAULT_OUT_OF_RANGE),
    ];
    for (seed, threads) in (0..).zip(BLOCK_SIZES) {
        for (positions, fault) in faults {
            let (mut words, values, mut undo) = (scene.words.clone(), [7; 3], [9; 3]);
            let mut result = ScatterResult::default();
            let mut args = scene.args(&mut words, &values, &mut undo, &mut result);
            (args.positions, args.count) = (positions.as_ptr(), positions.len() as u64);
            for kernel in ["driftless_scatter_check", "driftless_scatter", "driftless_peek", "driftless_undo"]
            {
                launch(kernel, Grid::new(threads, seed), &args);
            }
            assert_eq!((result.fault, result.changed, result.delta), (fault, 0, [0; 4]), "{positions:?}");
            assert_eq!((words, undo), (scene.words.clone(), [9; 3]));
        }
    }
}

#[test]
fn gp3_whole_boxes_and_their_undo() {
    let mut rng = Rng(71);
    for (seed, threads) in (0..).zip(BLOCK_SIZES.repeat(6)) {
        for dtype in [Dtype::Bf16, Dtype::Fp32] {
            let (scene, grid) = (Scene::random(dtype, &mut rng), Grid::new(threads, seed));
            let count = scene.fragment.elements();
            let values: Vec<u16> = (0..count as usize * dtype.words()).map(|_| rng.word()).collect();
            // Nine words of ten stay as they were.
            let mut before = scene.words.clone();
            let mut old = values.clone();
            old.iter_mut().for_each(|word| *word ^= u16::from(rng.below(10) == 0) << rng.below(16));
            let mut scratch = UndoLog::new();
            let write = |words: &mut Vec<u16>, new: &[u16], undo: &mut UndoLog| {
                let (changes, cols) = (ChangeSet::All(new.to_vec()), scene.params[0].cols());
                let device = CpuDevice::new();
                device.scatter(words.into(), &scene.fragment, cols, &changes, &scene.keys, undo)
            };
            write(&mut before, &old, &mut scratch).expect("the fragment fits");
            let [mut ours, mut theirs] = [before.clone(), before.clone()];
            let wanted = write(&mut theirs, &values, &mut scratch).expect("the fragment fits");
            let (mut result, mut undo) = (ScatterResult::default(), vec![0; values.len()]);
            let mut args = scene.args(&mut ours, &values, &mut undo, &mut result);
            args.count = count;
            launch("driftless_scatter_all", grid, &args);
            assert_eq!((result.changed, Digest(result.delta)), (wanted.changed, wanted.delta), "{grid:?}");
            assert_eq!(ours, theirs);
            assert_eq!(undo, old, "dv2: the old words of the box, in order");
            launch("driftless_undo_all", grid, &args);
            assert_eq!(ours, before);
        }
    }
}

#[test]
fn a_rehash_is_the_digest_of_the_box() {
    let mut rng = Rng(81);
    for (seed, threads) in (0..).zip(BLOCK_SIZES.repeat(8)) {
        for dtype in [Dtype::Bf16, Dtype::Fp32] {
            let scene = Scene::random(dtype, &mut rng);
            let mut digest = [0; 4];
            let args = RehashArgs {
                words: scene.words.as_ptr(),
                table: &raw const *scene.table,
                digest: digest.as_mut_ptr(),
                words_each: dtype.words() as u32,
                unused: 0,
                area: scene.area(),
            };
            launch("driftless_rehash", Grid::new(threads, seed), &args);
            assert_eq!(Digest(digest), scene.digest(&scene.words), "{threads} threads");
        }
    }
}

/// Without changes nothing is touched: pointers may be null.
#[test]
fn an_empty_scatter_does_nothing() {
    let scene = Scene::new(Dtype::Bf16, 2, 2, [0; 3], &mut Rng(1));
    let mut result = ScatterResult::default();
    let mut args = scene.args(&mut [], &[], &mut [], &mut result);
    (args.words, args.undo) = (null_mut(), null_mut());
    for kernel in ["driftless_scatter_check", "driftless_scatter", "driftless_scatter_all", "driftless_undo"]
    {
        launch(kernel, Grid::new(64, 1), &args);
    }
    assert_eq!((result.fault, result.changed), (0, 0));
}
