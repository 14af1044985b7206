//! Adversarial states: whatever the CPU finds, the GPU finds.

use crate::Checked;
use crate::work::{COLS, RUN, RUNNING, Rng, State, Whole, lend, rule, there};
use driftless_device::cuda::CudaDevice;
use driftless_device::{
    Buffer, ChangeSource, CpuDevice, DetectOptions, Detected, Device, ElementsMut, PieceDiff, PieceRule,
    UndoLog,
};
use driftless_numerics::{Cast, DigestKeys, Family};
use driftless_types::ChangeSet;

/// Checks all of them; gives how many there were.
pub(crate) fn check(gpu: &CudaDevice) -> Checked<u32> {
    let mut cases = 0;
    for (seed, rows) in [(1, 1), (2, 3), (3, 65), (4, 700)] {
        let state = hostile(usize::try_from(rows * COLS)?, seed);
        let whole = Whole::new(2, rows);
        for family in Family::ALL {
            let found = inverted(gpu, &whole, &state, &rule(family)?, family.cast())?;
            moves(gpu, &whole, &found, family.cast(), &state)?;
            cases += 1;
        }
        compares(gpu, &whole, &state)?;
        cases += 1;
    }
    Ok(cases)
}

/// Patterns of every kind among usual values: zeros of both signs, subnormals, ties, infinities, NaN.
fn hostile(elements: usize, seed: u64) -> State {
    let (mut state, mut rng) = (State::usual(elements, seed), Rng(seed));
    let specials =
        [0.0, -0.0, 1e-40, -1e-40, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.003_906_2, 1e-30];
    for at in (0..elements).step_by(13) {
        let special = specials[at / 13 % specials.len()];
        match rng.next() % 6 {
            0 => state.master[at] = special,
            1 => state.exp_avg[at] = special,
            2 => state.exp_avg_sq[at] = special,
            3 => state.master[at] = f32::from_bits(state.master[at].to_bits() & 0xffff_0000 | 0x8000),
            _ => state.master[at] = f32::from_bits(state.master[at].to_bits() & 0xffff_0000 | 0x7fff),
        }
    }
    state
}

/// Inversion on both; the CPU's findings.
pub(crate) fn inverted(
    gpu: &CudaDevice,
    whole: &Whole,
    state: &State,
    rule: &PieceRule,
    cast: Cast,
) -> Checked<Detected> {
    let (keys, rules) = (DigestKeys::new(RUN), std::slice::from_ref(rule));
    let options = || DetectOptions::new(cast).with_classes();
    let source = ChangeSource::Inversion {
        master: (&state.master).into(),
        exp_avg: (&state.exp_avg).into(),
        exp_avg_sq: (&state.exp_avg_sq).into(),
        rules,
    };
    let here = CpuDevice::new().detect(&whole.tensor, &whole.params, source, options(), &keys, &RUNNING)?;
    let (master, exp_avg) = (there(gpu, &state.master)?, there(gpu, &state.exp_avg)?);
    let exp_avg_sq = there(gpu, &state.exp_avg_sq)?;
    let source = ChangeSource::Inversion {
        master: lend(&master),
        exp_avg: lend(&exp_avg),
        exp_avg_sq: lend(&exp_avg_sq),
        rules,
    };
    let found = gpu.detect(&whole.tensor, &whole.params, source, options(), &keys, &RUNNING)?;
    same(&here, &found, "inversion")?;
    Ok(here)
}

fn same(here: &Detected, found: &Detected, what: &str) -> Checked<()> {
    let bits =
        |found: &Detected| found.bound_exceeded.iter().map(|u| u.map(f32::to_bits)).collect::<Vec<_>>();
    let equal = here.changes.to_host()? == found.changes.to_host()?
        && (&here.cells, &here.audits) == (&found.cells, &found.audits)
        && bits(here) == bits(found);
    if equal { Ok(()) } else { Err(format!("{what} differs from the CPU's").into()) }
}

fn compares(gpu: &CudaDevice, whole: &Whole, state: &State) -> Checked<()> {
    let (keys, diffs) = (DigestKeys::new(RUN), [PieceDiff::Compare]);
    let mut previous: Vec<u16> = state.master.iter().map(|&x| Cast::NearestEven.bits(x)).collect();
    previous.iter_mut().step_by(50).for_each(|word| *word ^= 3);
    let (master, old) = (there(gpu, &state.master)?, there(gpu, &previous)?);
    let source = ChangeSource::Snapshot {
        master: (&state.master).into(),
        previous: (&mut previous).into(),
        diffs: &diffs,
    };
    let options = || DetectOptions::default().with_classes();
    let here = CpuDevice::new().detect(&whole.tensor, &whole.params, source, options(), &keys, &RUNNING)?;
    let source = ChangeSource::Snapshot {
        master: lend(&master),
        previous: ElementsMut::Device(old.memory()),
        diffs: &diffs,
    };
    let found = gpu.detect(&whole.tensor, &whole.params, source, options(), &keys, &RUNNING)?;
    same(&here, &found, "a snapshot")?;
    if Buffer::from(old).view()?[..] == previous[..] { Ok(()) } else { Err("the snapshot differs".into()) }
}

/// Remap, gather, scatter, digest and undo of what was found.
fn moves(gpu: &CudaDevice, whole: &Whole, found: &Detected, cast: Cast, state: &State) -> Checked<()> {
    let (cpu, keys) = (CpuDevice::new(), DigestKeys::new(RUN));
    let changes = found.changes.to_host()?;
    let set = cpu.remap(&[changes.into()], &whole.fragment)?;
    let master = there(gpu, &state.master)?;
    let all = gpu.gather(&[lend(&master)], &whole.fragment, cast)?;
    if all != cpu.gather(&[(&state.master).into()], &whole.fragment, cast)? {
        return Err("a gather differs from the CPU's".into());
    }
    let ChangeSet::All(words) = &all else { return Err("a gather gives all".into()) };
    let before: Vec<u16> = words.iter().map(|word| word.rotate_left(3)).collect();
    let (mut here, live) = (before.clone(), Buffer::from(there(gpu, &before)?));
    let (mut undo, mut undo_there) = (UndoLog::new(), UndoLog::new());
    for set in [&set, &all] {
        let done = cpu.scatter((&mut here).into(), &whole.fragment, COLS, set, &keys, &mut undo)?;
        let found =
            gpu.scatter(live.lend_mut().elements(), &whole.fragment, COLS, set, &keys, &mut undo_there)?;
        if done != found || live.view()?[..] != here[..] {
            return Err("a scatter differs from the CPU's".into());
        }
    }
    let digest = cpu.digest((&here).into(), &whole.dest, &whole.params, &keys)?;
    if gpu.digest(live.lend().elements(), &whole.dest, &whole.params, &keys)? != digest {
        return Err("a digest differs from the CPU's".into());
    }
    gpu.undo(live.lend_mut().elements(), &mut undo_there)?;
    if live.view()?[..] == before[..] { Ok(()) } else { Err("an undo differs".into()) }
}
