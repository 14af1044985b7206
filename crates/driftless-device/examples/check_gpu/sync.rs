//! A trainer and an engine on one GPU: how long a version takes, and what memory it needs beside theirs.

use crate::Checked;
use crate::work::{COLS, RUN, RUNNING, State, Whole, lend, rule, there};
use driftless_device::cuda::{CudaDevice, CudaOptions};
use driftless_device::{
    Buffer, ChangeSource, DetectOptions, Device, DeviceBuffer, PieceDiff, PieceRule, UndoLog,
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

/// Syncs by inversion and by a snapshot, and prints both.
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
        // A device that has done nothing yet: its window counts.
        let gpu = &CudaDevice::open(CudaOptions::new(0))?;
        let fleet = (0..layers)
            .map(|id| layer(gpu, u32::try_from(id)?, &state, &old))
            .collect::<Checked<Vec<_>>>()?;
        let attached = gpu.memory_use().live_bytes;
        let snapshots = if by_snapshot {
            fleet.iter().map(|_| Ok(Buffer::from(there(gpu, &old)?))).collect::<Checked<Vec<_>>>()?
        } else {
            Vec::new()
        };
        gpu.reset_peak();
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
        let set = gpu.remap(std::slice::from_ref(&found.changes), &layer.whole.fragment)?;
        let mut log = UndoLog::new();
        let mut live = layer.live.lend_mut();
        changed += gpu.scatter(live.elements(), &layer.whole.fragment, COLS, &set, &keys, &mut log)?.changed;
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
