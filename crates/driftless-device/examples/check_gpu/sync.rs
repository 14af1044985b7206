//! A trainer and an engine on one GPU: how long a version takes, and what memory it needs beside theirs.

use crate::Checked;
use crate::work::{COLS, RUN, RUNNING, State, Whole, lend, rule, sent, there};
use driftless_device::cuda::{CudaDevice, CudaOptions};
use driftless_device::{
    Buffer, ChangeSource, Delivery, DetectOptions, Device, DeviceBuffer, PieceDiff, PieceRule, UndoLog,
};
use driftless_numerics::{Cast, DigestKeys, Family};
use std::time::Instant;

/// Elements of a tensor, at most: that of a large layer.
const TENSOR: usize = 16 << 20;

/// A tensor of the trainer and what the engine serves of it.
struct Layer {
    whole: Whole,
    master: DeviceBuffer<f32>,
    exp_avg: DeviceBuffer<f32>,
    exp_avg_sq: DeviceBuffer<f32>,
    live: Buffer<u16>,
}

/// Syncs by inversion and by a snapshot, and prints both. Each opens the GPU anew: so its scratch memory is counted.
pub(crate) fn table(elements: usize) -> Checked<()> {
    let cols = usize::try_from(COLS)?;
    let each = TENSOR.min(elements / cols * cols).max(cols);
    let layers = (elements / each).max(1);
    let mut state = State::usual(each, 11);
    let old: Vec<u16> = state.master.iter().map(|&x| Cast::NearestEven.bits(x)).collect();
    state.step();
    let new: Vec<u16> = state.master.iter().map(|&x| Cast::NearestEven.bits(x)).collect();
    println!("sync of {} elements in {layers} tensors, trainer to engine on one GPU", layers * each);
    for by_snapshot in [false, true] {
        let gpu = &CudaDevice::open(CudaOptions::new(0))?;
        warm_up(gpu, by_snapshot)?;
        let fleet = (0..layers)
            .map(|id| layer(gpu, u32::try_from(id)?, &state, &old))
            .collect::<Checked<Vec<_>>>()?;
        let attached = gpu.memory_use().live_bytes;
        gpu.reset_peak();
        let snapshots = snapshots(gpu, if by_snapshot { &fleet } else { &[] }, &old)?;
        let started = Instant::now();
        let changed = version(gpu, &fleet, &snapshots)?;
        let seconds = started.elapsed().as_secs_f64();
        let beside = gpu.memory_use().peak_bytes - attached;
        for layer in [&fleet[0], &fleet[layers - 1]] {
            if layer.live.view()?[..] != new[..] {
                return Err("the engine's weights are not the trainer's".into());
            }
        }
        let name = if by_snapshot { "snapshot" } else { "inversion" };
        println!(
            "{name:<10} {changed:>12} changed {:>9.1} ms {:>10.1} MiB at the peak beside the trainer's and the engine's own",
            1e3 * seconds,
            f64::from(u32::try_from(beside >> 10)?) / 1024.0,
        );
    }
    Ok(())
}

/// A version of one row: every kernel is loaded after it, and next to no scratch memory is taken.
fn warm_up(gpu: &CudaDevice, by_snapshot: bool) -> Checked<()> {
    let mut state = State::usual(usize::try_from(COLS)?, 3);
    let old: Vec<u16> = state.master.iter().map(|&x| Cast::NearestEven.bits(x)).collect();
    state.step();
    let fleet = [layer(gpu, 0, &state, &old)?];
    let snapshots = snapshots(gpu, if by_snapshot { &fleet } else { &[] }, &old)?;
    version(gpu, &fleet, &snapshots).map(drop)
}

/// A copy of what was published, for each layer.
fn snapshots(gpu: &CudaDevice, fleet: &[Layer], old: &[u16]) -> Checked<Vec<Buffer<u16>>> {
    fleet.iter().map(|_| Ok(Buffer::from(there(gpu, old)?))).collect()
}

fn layer(gpu: &CudaDevice, id: u32, state: &State, old: &[u16]) -> Checked<Layer> {
    Ok(Layer {
        whole: Whole::new(id, state.master.len() as u64 / COLS),
        master: there(gpu, &state.master)?,
        exp_avg: there(gpu, &state.exp_avg)?,
        exp_avg_sq: there(gpu, &state.exp_avg_sq)?,
        live: there(gpu, old)?.into(),
    })
}

/// Detects everything, then moves and applies it, and proves it by digest; gives how many elements changed.
fn version(gpu: &CudaDevice, fleet: &[Layer], snapshots: &[Buffer<u16>]) -> Checked<u64> {
    let (keys, rules, diffs) = (DigestKeys::new(RUN), [rule(Family::Torch)?], [PieceDiff::Compare]);
    let mut patch = Vec::new();
    for (index, layer) in fleet.iter().enumerate() {
        let mut previous = snapshots.get(index).map(Buffer::lend_mut);
        let source = match &mut previous {
            Some(previous) => ChangeSource::Snapshot {
                master: lend(&layer.master),
                previous: previous.elements(),
                diffs: &diffs,
            },
            None => inversion(layer, &rules),
        };
        let Whole { tensor, params, .. } = &layer.whole;
        patch.push(gpu.detect(tensor, params, source, DetectOptions::default(), &keys, &RUNNING)?);
    }
    let (mut changed, mut undo) = (0, Vec::new());
    for (layer, found) in fleet.iter().zip(&patch) {
        let fragment = &layer.whole.fragment;
        // Through the memory of the host, as between processes.
        let sent = sent(gpu, std::slice::from_ref(&found.changes), fragment)?;
        let deliver = |section| Delivery { fragment, param_cols: COLS, section };
        let deliveries = gpu.load(vec![sent])?.into_iter().map(deliver).collect();
        let (mut log, mut live) = (UndoLog::new(), layer.live.lend_mut());
        let done = gpu.deliver(live.elements(), deliveries, &keys, &mut log)?;
        changed += done.iter().map(|done| done.changed).sum::<u64>();
        undo.push(log);
    }
    for (layer, found) in fleet.iter().zip(&patch) {
        let Whole { dest, params, .. } = &layer.whole;
        if gpu.digest(layer.live.lend().elements(), dest, params, &keys)? != found.cells[0] {
            return Err("a digest is not the trainer's".into());
        }
    }
    Ok(changed)
}

fn inversion<'a>(layer: &'a Layer, rules: &'a [PieceRule]) -> ChangeSource<'a> {
    ChangeSource::Inversion {
        master: lend(&layer.master),
        exp_avg: lend(&layer.exp_avg),
        exp_avg_sq: lend(&layer.exp_avg_sq),
        rules,
    }
}
