//! A patch into fragments: the twin of `cpu/remap.rs`.
//!
//! What is made lies in the window and leaves the device from there, once, through pinned memory: as it is sent.

mod encode;

use super::CudaDevice;
use super::abi::{
    Address, Divisor, REMAP_ITEMS, RUN_RANGE_BYTES, RemapArgs, Run, TensorChanges, bytes_of, bytes_of_mut,
    class_of,
};
use super::changes::CudaChanges;
use super::gpu::{Gpu, Layout};
use super::parts::narrow;
use crate::fit::{Run as SourceRun, check_listable, runs_of};
use crate::{ChangeList, ClassedSet, Classes, DeviceError, Packed};
use bytes::Bytes;
use driftless_layout::Fragment;
use driftless_types::index_of;
use std::ops::Range;

/// Changes that are remapped together, at most, if single fragments do not need more: it bounds the window.
const BATCH_CHANGES: u64 = 16 << 20;

/// Takes the changes of a batch out of the window; the last argument says where each run's changes begin.
type Finish<T> = fn(&Batch, &mut Gpu, &Window, Address, &[u64]) -> Result<Vec<T>, DeviceError>;

/// Fragments whose changes are fetched together.
struct Batch {
    /// Per fragment its elements.
    elements: Vec<u64>,
    runs: Vec<Run>,
    /// Per fragment the number of runs up to its end.
    ends: Vec<usize>,
    /// Per run how many changes it can have at most.
    bounds: Vec<u64>,
    /// The sum over tensors of their changes: as many are expected at most.
    expected: u64,
    /// Changes that one block moves together.
    tile_changes: u32,
}

/// What the window has room for beside positions and values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Classes,
    Bodies,
}

/// Where things lie in the window.
struct Window {
    ticket: usize,
    tile_state: usize,
    zeroed_end: usize,
    tensors: usize,
    runs: usize,
    ranges: usize,
    starts: usize,
    positions: usize,
    values: usize,
    classes: Option<usize>,
    bodies: Option<usize>,
    bytes: usize,
}

impl CudaDevice {
    /// See [`Device::remap_all`](crate::Device::remap_all).
    pub(super) fn remap_fragments(
        &self,
        changes: &[ChangeList],
        fragments: &[&Fragment],
        classes: Classes,
    ) -> Result<Vec<ClassedSet>, DeviceError> {
        let beside = if classes == Classes::Listed { Beside::Classes } else { Beside::Nothing };
        self.remap_batches(changes, fragments, (beside, Batch::fetch), ClassedSet::default)
    }

    /// See [`Device::pack`](crate::Device::pack): `block16` bodies are made where the changes are.
    pub(super) fn pack_fragments(
        &self,
        changes: &[ChangeList],
        fragments: &[&Fragment],
    ) -> Result<Vec<Packed>, DeviceError> {
        let nothing = || Packed::Block16 { nnz: 0, body: Bytes::new() };
        self.remap_batches(changes, fragments, (Beside::Bodies, Batch::encode), nothing)
    }

    /// Remaps fragments, as many together as the window allows, and takes out what is in it.
    fn remap_batches<T: Send>(
        &self,
        changes: &[ChangeList],
        fragments: &[&Fragment],
        exit: (Beside, Finish<T>),
        nothing: impl Fn() -> T,
    ) -> Result<Vec<T>, DeviceError> {
        let lists = changes.iter().map(|list| CudaChanges::of(list, self)).collect::<Result<Vec<_>, _>>()?;
        let tensors: Vec<TensorChanges> = lists.iter().map(|list| tensor_changes(*list)).collect();
        let mut sets = Vec::with_capacity(fragments.len());
        let mut rest = fragments;
        while !rest.is_empty() {
            let (batch, taken) = Batch::take(rest, &tensors, self.worker().threads * REMAP_ITEMS)?;
            if batch.runs.is_empty() || batch.expected == 0 {
                sets.extend((0..taken).map(|_| nothing()));
            } else {
                sets.extend(self.worker().run(|gpu| batch.run(gpu, &tensors, exit))?);
            }
            rest = &rest[taken..];
        }
        Ok(sets)
    }
}

fn tensor_changes(list: Option<&CudaChanges>) -> TensorChanges {
    use crate::DeviceChanges as _;
    list.map_or(TensorChanges { indices: 0, values: 0, classes: 0, count: 0 }, |list| TensorChanges {
        indices: list.indices(),
        values: list.values(),
        classes: list.class_codes(),
        count: list.count() as u64,
    })
}

/// A run as kernels read it: one whose rows follow each other is a single row.
pub(super) fn lowered(run: &SourceRun) -> Result<Run, DeviceError> {
    let word = |what, number: usize| {
        let limit = u64::from(u32::MAX);
        let misfit = |_| DeviceError::Misfit { what, name: "a fragment".into(), found: number as u64, limit };
        u32::try_from(number).map_err(misfit)
    };
    let (rows, cols, stride) = if run.is_contiguous() {
        (1, run.rows * run.cols, run.rows * run.cols)
    } else {
        (run.rows, run.cols, run.src_row_stride)
    };
    Ok(Run {
        tensor: word("a run's tensor", run.tensor)?,
        src_offset: word("a run's first source element", run.src_offset)?,
        rows: word("a run's rows", rows)?,
        position: word("a run's position", run.position)?,
        cols: Divisor::new(word("a run's width", cols)?),
        src_row_stride: Divisor::new(word("a run's stride", stride)?),
    })
}

impl Batch {
    /// The first fragments of `fragments`, as many as are remapped together; gives how many that are.
    fn take(
        fragments: &[&Fragment],
        tensors: &[TensorChanges],
        tile_changes: u32,
    ) -> Result<(Self, usize), DeviceError> {
        let mut batch = Self {
            elements: Vec::new(),
            runs: Vec::new(),
            ends: Vec::new(),
            bounds: Vec::new(),
            expected: 0,
            tile_changes,
        };
        let mut seen = std::collections::BTreeSet::new();
        for fragment in fragments {
            check_listable(fragment)?;
            let runs = runs_of(fragment, tensors.len())?;
            let fresh: u64 = {
                let new = runs.iter().map(|run| run.tensor).filter(|tensor| !seen.contains(tensor));
                let new: std::collections::BTreeSet<usize> = new.collect();
                new.iter().map(|&tensor| tensors[tensor].count).sum()
            };
            if !batch.ends.is_empty() && batch.expected + fresh > BATCH_CHANGES {
                break;
            }
            batch.expected += fresh;
            seen.extend(runs.iter().map(|run| run.tensor));
            for run in &runs {
                batch.runs.push(lowered(run)?);
                batch.bounds.push(tensors[run.tensor].count.min(run.source().len() as u64));
            }
            batch.ends.push(batch.runs.len());
            batch.elements.push(fragment.elements());
        }
        let taken = batch.ends.len();
        Ok((batch, taken))
    }

    /// As many tiles as there can be.
    fn tiles(&self) -> u64 {
        self.bounds.iter().map(|bound| bound / u64::from(self.tile_changes) + 1).sum::<u64>() + 1
    }

    fn run<T>(
        &self,
        gpu: &mut Gpu,
        tensors: &[TensorChanges],
        (beside, finish): (Beside, Finish<T>),
    ) -> Result<Vec<T>, DeviceError> {
        let mut capacity = self.expected;
        loop {
            let window = self.window(tensors, capacity, beside);
            let base = gpu.window(window.bytes)?;
            self.start(gpu, &window, base, tensors, capacity)?;
            let mut starts = vec![0u64; self.runs.len() + 1];
            gpu.download(base + window.starts as u64, bytes_of_mut(&mut starts))?;
            let total = starts[self.runs.len()];
            if total <= capacity {
                return finish(self, gpu, &window, base, &starts);
            }
            let bound = self.bounds.iter().sum::<u64>();
            if total > bound {
                let (name, found, limit) = ("a remap".into(), total, bound);
                return Err(DeviceError::Misfit { what: "the count of changes", name, found, limit });
            }
            // Elements that several fragments hold are listed for each of them.
            capacity = total;
        }
    }

    fn window(&self, tensors: &[TensorChanges], capacity: u64, beside: Beside) -> Window {
        let mut layout = Layout::default();
        let (capacity, tiles) = (index_of(capacity), index_of(self.tiles()));
        let (ticket, tile_state) = (layout.room(4), layout.room(8 * tiles));
        let zeroed_end = layout.bytes();
        let (at_tensors, runs) =
            (layout.room(size_of_val(tensors)), layout.room(size_of_val(&self.runs[..])));
        let entries = self.runs.len() + 1;
        let (ranges, starts) = (layout.room(RUN_RANGE_BYTES * entries), layout.room(8 * entries));
        let (positions, values) = (layout.room(4 * capacity), layout.room(2 * capacity));
        let classes = (beside == Beside::Classes).then(|| layout.room(capacity));
        let bodies = (beside == Beside::Bodies).then(|| layout.room(self.bodies_room(capacity)));
        let bytes = layout.bytes();
        Window {
            ticket,
            tile_state,
            zeroed_end,
            tensors: at_tensors,
            runs,
            ranges,
            starts,
            positions,
            values,
            classes,
            bodies,
            bytes,
        }
    }

    fn start(
        &self,
        gpu: &mut Gpu,
        window: &Window,
        base: Address,
        tensors: &[TensorChanges],
        capacity: u64,
    ) -> Result<(), DeviceError> {
        let at = |offset: usize| base + offset as u64;
        gpu.clear(base, window.zeroed_end)?;
        gpu.upload(at(window.tensors), bytes_of(tensors))?;
        gpu.upload(at(window.runs), bytes_of(&self.runs))?;
        let args = RemapArgs {
            tensors: at(window.tensors),
            runs: at(window.runs),
            ranges: at(window.ranges),
            tile_state: at(window.tile_state),
            ticket: at(window.ticket),
            starts: at(window.starts),
            positions: at(window.positions),
            values: at(window.values),
            classes: window.classes.map_or(0, at),
            capacity,
            run_count: narrow(self.runs.len()),
            tile_changes: self.tile_changes,
            tile_capacity: narrow(index_of(self.tiles())),
            unused: 0,
        };
        gpu.launch("driftless_remap_plan", 1, &args)?;
        gpu.launch("driftless_remap", self.tiles() * u64::from(gpu.threads()), &args)
    }

    fn fetch(
        &self,
        gpu: &mut Gpu,
        window: &Window,
        base: Address,
        starts: &[u64],
    ) -> Result<Vec<ClassedSet>, DeviceError> {
        let total = index_of(starts[self.runs.len()]);
        let (mut positions, mut values) = (vec![0u32; total], vec![0u16; total]);
        gpu.download(base + window.positions as u64, bytes_of_mut(&mut positions))?;
        gpu.download(base + window.values as u64, bytes_of_mut(&mut values))?;
        let mut classes = vec![0u8; window.classes.map_or(0, |_| total)];
        if let Some(from) = window.classes {
            gpu.download(base + from as u64, &mut classes)?;
        }
        let set = |of_fragment: Range<usize>| {
            let classes = classes.get(of_fragment.clone()).unwrap_or_default().iter().map(class_of).collect();
            let (positions, values) = (positions[of_fragment.clone()].to_vec(), values[of_fragment].to_vec());
            ClassedSet { positions, values, classes }
        };
        Ok(self.of_fragments(starts).map(set).collect())
    }

    /// Where each fragment's changes lie among all of them.
    fn of_fragments<'a>(&'a self, starts: &'a [u64]) -> impl Iterator<Item = Range<usize>> + 'a {
        let firsts = std::iter::once(0).chain(self.ends.iter().copied());
        firsts.zip(&self.ends).map(|(first, &end)| index_of(starts[first])..index_of(starts[end]))
    }
}
