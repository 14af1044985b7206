//! Remap and gather: what a sender makes of its lists and of its masters.

use crate::abi::{Divisor, GatherArgs, REMAP_ITEMS, RemapArgs, Run, RunRange, TensorChanges};
use crate::shim::{BLOCK_SIZES, Grid, launch};
use crate::support::{Rng, State};
use driftless_device::{ChangeList, Changes, CpuDevice, Device, Elements};
use driftless_layout::{Box2, Fragment, SourceRun};
use driftless_numerics::{Cast, StepClass};
use driftless_types::{ChangeSet, Dtype, ParamId};
use std::ptr::null_mut;

const TENSORS: u64 = 5;

/// A fragment whose rows lie in a few source tensors of `elements`, gaps between rows or not.
fn fragment(index: u32, dtype: Dtype, elements: u64, rng: &mut Rng) -> Fragment {
    let cols = 1 + rng.below(60);
    let (mut rows, mut sources) = (0, Vec::new());
    for _ in 0..rng.below(4) {
        let src_row_stride = cols + if rng.below(2) == 0 { 0 } else { rng.below(90) };
        let most = (elements - cols) / src_row_stride + 1;
        let count = rng.below(most.min(40) + 1);
        let span = count.saturating_sub(1) * src_row_stride + cols;
        let (tensor, src_offset) = (rng.below(TENSORS) as u32, rng.below(elements - span + 1));
        sources.push(SourceRun { tensor, src_offset, src_row_stride, box_row: rows, rows: count });
        rows += count;
    }
    Fragment {
        index,
        param: ParamId(0),
        dtype,
        canonical: Box2::new(0, rows, 0, cols),
        dst_tensor: 0,
        dst_offset: 0,
        dst_row_stride: cols,
        sources,
        cells: Vec::new(),
        first_in_replica: true,
    }
}

/// The runs of a fragment that hold elements; those without gaps as one row.
pub(crate) fn runs_of(fragment: &Fragment) -> Vec<Run> {
    let cols = fragment.canonical.cols;
    let with_elements = fragment.sources.iter().filter(|run| run.rows > 0 && cols > 0);
    let runs = with_elements.map(|run| {
        let is_one = run.rows == 1 || run.src_row_stride == cols;
        let (rows, cols, stride) =
            if is_one { (1, run.rows * cols, run.rows * cols) } else { (run.rows, cols, run.src_row_stride) };
        Run {
            tensor: run.tensor,
            src_offset: run.src_offset as u32,
            rows: rows as u32,
            position: (run.box_row * fragment.canonical.cols) as u32,
            cols: Divisor::new(cols),
            src_row_stride: Divisor::new(stride),
        }
    });
    runs.collect()
}

/// Changes at a density of one in `every`, of every class.
fn changes(elements: u64, every: u64, rng: &mut Rng) -> Changes {
    let indices: Vec<u32> = (0..elements as u32).filter(|_| rng.below(every) == 0).collect();
    let values = indices.iter().map(|_| rng.word()).collect();
    let classes = indices.iter().map(|_| class_of(&(rng.below(3) as u8))).collect();
    Changes { indices, values, classes: Some(classes) }
}

fn class_of(class: &u8) -> StepClass {
    [StepClass::Unit, StepClass::Near, StepClass::Far][usize::from(*class)]
}

/// Positions, values and classes of all runs back to back, and where each run begins.
pub(crate) struct Remapped {
    pub(crate) positions: Vec<u32>,
    pub(crate) values: Vec<u16>,
    pub(crate) classes: Vec<u8>,
    pub(crate) starts: Vec<u64>,
}

pub(crate) fn remap(grid: Grid, lists: &[Changes], runs: &[Run], capacity: usize) -> Remapped {
    remap_within(grid, lists, runs, capacity, u32::MAX).0
}

/// The same with room for the states of at most so many tiles; those states at the end too.
fn remap_within(
    grid: Grid,
    lists: &[Changes],
    runs: &[Run],
    capacity: usize,
    tiles_max: u32,
) -> (Remapped, Vec<u64>) {
    let bytes_of = |class: &StepClass| *class as u8;
    let classes = lists.iter().flat_map(|changes| &changes.classes);
    let classes: Vec<Vec<u8>> = classes.map(|classes| classes.iter().map(bytes_of).collect()).collect();
    let tensors = lists.iter().zip(&classes).map(|(changes, classes)| TensorChanges {
        indices: changes.indices.as_ptr(),
        values: changes.values.as_ptr(),
        classes: classes.as_ptr(),
        count: changes.indices.len() as u64,
    });
    let tensors: Vec<_> = tensors.collect();
    let tile_changes = grid.threads * REMAP_ITEMS;
    let tiles: u64 =
        runs.iter().map(|run| tensors[run.tensor as usize].count / u64::from(tile_changes) + 1).sum();
    let (mut ranges, mut tile_state, mut ticket) =
        (vec![RunRange::default(); runs.len() + 1], vec![0; tiles as usize], 0);
    let mut found = Remapped {
        positions: vec![u32::MAX; capacity + 1],
        values: vec![0; capacity + 1],
        classes: vec![9; capacity + 1],
        starts: vec![0; runs.len() + 1],
    };
    let args = RemapArgs {
        tensors: tensors.as_ptr(),
        runs: runs.as_ptr(),
        ranges: ranges.as_mut_ptr(),
        tile_state: tile_state.as_mut_ptr(),
        ticket: &raw mut ticket,
        starts: found.starts.as_mut_ptr(),
        positions: found.positions.as_mut_ptr(),
        values: found.values.as_mut_ptr(),
        classes: if grid.seed.is_multiple_of(3) { null_mut() } else { found.classes.as_mut_ptr() },
        capacity: capacity as u64,
        run_count: runs.len() as u32,
        tile_changes,
        tile_capacity: (tiles as u32).min(tiles_max),
        unused: 0,
    };
    launch("driftless_remap_plan", Grid { blocks: 1, ..grid }, &args);
    launch("driftless_remap", grid, &args);
    assert_eq!(
        (found.positions[capacity], found.classes[capacity]),
        (u32::MAX, 9),
        "nothing beyond its room"
    );
    (found, tile_state)
}

#[test]
fn a_remap_without_room_for_its_tiles_says_so_and_writes_nothing() {
    let (mut rng, grid) = (Rng(7), Grid { blocks: 2, threads: 64, seed: 1 });
    let lists = [changes(6000, 2, &mut rng)];
    let run = |src_offset| Run {
        tensor: 0,
        src_offset,
        rows: 1,
        position: 0,
        cols: Divisor::new(2000),
        src_row_stride: Divisor::new(2000),
    };
    let runs = [run(0), run(3000)];
    let (found, states) = remap_within(grid, &lists, &runs, 4000, u32::MAX);
    let tiles = states.iter().filter(|&&state| state != 0).count() as u32;
    assert!(tiles > 4 && found.starts[2] > 1800);
    let (found, _) = remap_within(grid, &lists, &runs, 4000, tiles);
    assert!(found.starts[2] > 1800, "room for each is enough");
    let (found, states) = remap_within(grid, &lists, &runs, 4000, tiles - 1);
    assert_eq!(found.starts[2], u64::MAX);
    assert!(
        states.iter().all(|&state| state == 0)
            && found.positions.iter().all(|&position| position == u32::MAX)
    );
}

#[test]
fn gp1_remapped_lists_are_those_of_every_fragment_in_order() {
    let mut rng = Rng(31);
    for (seed, threads) in (0..).zip(BLOCK_SIZES.repeat(4)) {
        let elements = 6000;
        let every = [1, 3, 40, 4000][seed as usize % 4];
        let lists: Vec<_> = (0..TENSORS).map(|_| changes(elements, every, &mut rng)).collect();
        let fragments: Vec<_> =
            (0..70).map(|index| fragment(index, Dtype::Bf16, elements, &mut rng)).collect();
        let runs: Vec<_> = fragments.iter().map(runs_of).collect();
        let grid = Grid::new(threads, seed);
        let all: Vec<_> = runs.concat();
        let room = all.iter().map(|run| (run.rows * run.cols.divisor) as usize).sum();
        let found = remap(grid, &lists, &all, room);
        let host: Vec<ChangeList> = lists.iter().cloned().map(ChangeList::from).collect();
        let (mut first_run, device) = (0, CpuDevice::new());
        for (fragment, runs) in fragments.iter().zip(&runs) {
            let ends = [first_run, first_run + runs.len()].map(|run| found.starts[run] as usize);
            first_run += runs.len();
            let wanted = device.remap(&host, fragment).expect("the fragment fits");
            let (positions, values) = (&found.positions[ends[0]..ends[1]], &found.values[ends[0]..ends[1]]);
            let ours = ChangeSet::Sparse { positions: positions.to_vec(), values: values.to_vec() };
            assert_eq!(ours, wanted, "{grid:?}, fragment {}", fragment.index);
            if !seed.is_multiple_of(3) {
                let wanted = device.remap_classed(&host, &[fragment]).expect("the fragment fits");
                let ours = found.classes[ends[0]..ends[1]].iter().map(class_of);
                assert!(ours.eq(wanted[0].classes.iter().copied()));
            }
        }
        // Half of the room holds the first half.
        let total = found.starts[all.len()] as usize;
        let cut = remap(grid, &lists, &all, total / 2);
        assert_eq!(cut.starts, found.starts);
        assert_eq!(cut.positions[..total / 2], found.positions[..total / 2]);
    }
}

#[test]
fn a_remap_of_nothing_gives_nothing() {
    for threads in BLOCK_SIZES {
        let found = remap(Grid::new(threads, 1), &[changes(100, 2, &mut Rng(1))], &[], 0);
        assert_eq!(found.starts, [0]);
    }
}

#[test]
fn gathered_fragments_are_words_of_the_masters() {
    let mut rng = Rng(41);
    let elements = 4000;
    let states: Vec<_> = (0..TENSORS).map(|_| State::random(elements as usize, &mut rng)).collect();
    let masters: Vec<Elements<'_, f32>> = states.iter().map(|state| (&state.master).into()).collect();
    let pointers: Vec<*const f32> = states.iter().map(|state| state.master.as_ptr()).collect();
    for (seed, threads) in (0..).zip(BLOCK_SIZES.repeat(3)) {
        for (dtype, cast, form) in [
            (Dtype::Bf16, Cast::NearestEven, 0),
            (Dtype::Bf16, Cast::HalfAway, 1),
            (Dtype::Fp32, Cast::NearestEven, 2),
        ] {
            let fragment = fragment(0, dtype, elements, &mut rng);
            let runs = runs_of(&fragment);
            let mut words = vec![0xabcd; fragment.elements() as usize * dtype.words() + 1];
            let args = GatherArgs {
                masters: pointers.as_ptr(),
                runs: runs.as_ptr(),
                words: words.as_mut_ptr(),
                count: fragment.elements(),
                run_count: runs.len() as u32,
                form,
            };
            launch("driftless_gather", Grid::new(threads, seed), &args);
            assert_eq!(words.pop(), Some(0xabcd));
            let wanted = CpuDevice::new().gather(&masters, &fragment, cast).expect("the fragment fits");
            assert_eq!(ChangeSet::All(words), wanted);
        }
    }
}
