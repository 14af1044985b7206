//! Whatever the host finds, the device finds, bit for bit.

use crate::support::{RUN, Rng, State, masters, params, tensor, usual_rule};
use anyhow::{Result, ensure};
use driftless_cuda_tests::{gpu, on_standin};
use driftless_device::cuda::CudaDevice;
use driftless_device::{
    Bitset, Buffer, ChangeList, ChangeSource, CpuDevice, DetectOptions, Detected, Device, DeviceBuffer,
    DeviceError, Element, ElementSet, Elements, Pending, PieceDiff, PieceRule, StepMask, UndoLog,
};
use driftless_layout::{DestBox, DestTensor, Fragment, RemapPlan};
use driftless_numerics::{Cast, DigestKeys, Family, bf16};
use driftless_testkit::{TinyTrainer, tiny_plan};
use driftless_types::{ChangeSet, Dtype, Shape};
use std::sync::atomic::AtomicBool;

pub(crate) static RUNNING: AtomicBool = AtomicBool::new(false);

pub(crate) fn on_device<T: Element>(gpu: &CudaDevice, elements: &[T]) -> Result<DeviceBuffer<T>> {
    let buffer = gpu.uninitialized(elements.len())?;
    Buffer::from(buffer.clone()).write(elements)?;
    Ok(buffer)
}

pub(crate) fn lend<T: Element>(buffer: &DeviceBuffer<T>) -> Elements<'_, T> {
    Elements::Device(buffer.memory())
}

/// The same, with its list on the host.
fn fetched(mut found: Detected) -> Result<Detected> {
    found.changes = found.changes.to_host()?.into();
    Ok(found)
}

/// What a pass does with pending changes.
#[derive(Clone, Copy, Debug)]
enum Pend {
    Absent,
    Drain,
    Collect,
}

/// One pass on the host and one on the device, over the same memory.
struct Case<'a> {
    gpu: &'a CudaDevice,
    state: &'a State,
    old: &'a [u16],
    pending: &'a Bitset,
    keys: &'a DigestKeys,
}

/// A pass, and what it left of the pending set and the snapshot.
#[derive(Debug, PartialEq)]
struct Left {
    found: Detected,
    pending: Vec<u64>,
    previous: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
enum Old<'a> {
    Inversion(&'a [PieceRule]),
    Snapshot(&'a [PieceDiff]),
    PreCopy(&'a [PieceDiff]),
    InStep(&'a [PieceDiff]),
    /// The same, whose mask is where its device is.
    InStepThere(&'a [PieceDiff]),
}

impl Case<'_> {
    fn check(&self, old: Old<'_>, cast: Cast, pend: Pend) -> Result<()> {
        let (host, device) = (self.on_host(old, cast, pend)?, self.on_device(old, cast, pend)?);
        ensure!(
            host.found.changes.to_host()? == device.found.changes.to_host()?,
            "{old:?} {pend:?}: the lists"
        );
        // NaN differs from itself, and is the largest update where it is one.
        let bits = |found: &Detected| -> Vec<Option<u32>> {
            found.bound_exceeded.iter().map(|update| update.map(f32::to_bits)).collect()
        };
        ensure!(bits(&host.found) == bits(&device.found), "{pend:?}: {:?}", device.found.bound_exceeded);
        ensure!(host.found.cells == device.found.cells, "{old:?} {pend:?}: the digests");
        ensure!(host.found.audits == device.found.audits, "{old:?} {pend:?}: the audits");
        ensure!(host.found.first_cell == device.found.first_cell);
        ensure!(host.pending == device.pending, "{old:?} {pend:?}: the pending set");
        ensure!(host.previous == device.previous, "{old:?} {pend:?}: the snapshot");
        Ok(())
    }

    fn changed(&self) -> Bitset {
        let mut changed = Bitset::new(self.old.len());
        (0..self.old.len()).step_by(7).for_each(|index| changed.insert(index));
        changed
    }

    fn on_host(&self, old: Old<'_>, cast: Cast, pend: Pend) -> Result<Left> {
        let State { master, exp_avg, exp_avg_sq } = self.state;
        let (mut previous, mut pending, changed) = (self.old.to_vec(), self.pending.clone(), self.changed());
        let source = match old {
            Old::Inversion(rules) => ChangeSource::Inversion {
                master: master.into(),
                exp_avg: exp_avg.into(),
                exp_avg_sq: exp_avg_sq.into(),
                rules,
            },
            Old::Snapshot(diffs) => {
                ChangeSource::Snapshot { master: master.into(), previous: (&mut previous).into(), diffs }
            }
            Old::PreCopy(diffs) => {
                ChangeSource::PreCopy { master: master.into(), model: self.old.into(), diffs }
            }
            Old::InStep(diffs) | Old::InStepThere(diffs) => {
                ChangeSource::InStep { master: master.into(), changed: (&changed).into(), diffs }
            }
        };
        let options = DetectOptions::new(cast).with_classes().with_pending(match pend {
            Pend::Absent => Pending::Absent,
            Pend::Drain => Pending::Drain((&mut pending).into()),
            Pend::Collect => Pending::Collect((&mut pending).into()),
        });
        let device = CpuDevice::new();
        let found = device.detect(&tensor(), &params(), source, options, self.keys, &RUNNING)?;
        Ok(Left { found, pending: pending.words().to_vec(), previous })
    }

    fn on_device(&self, old: Old<'_>, cast: Cast, pend: Pend) -> Result<Left> {
        let gpu = self.gpu;
        let state = [&self.state.master, &self.state.exp_avg, &self.state.exp_avg_sq];
        let [master, exp_avg, exp_avg_sq] = state.map(|slot| on_device(gpu, slot));
        let (master, exp_avg, exp_avg_sq) = (master?, exp_avg?, exp_avg_sq?);
        let (previous, changed) = (on_device(gpu, self.old)?, self.changed());
        let mask_words = on_device(gpu, changed.words())?;
        let mask = StepMask::over(mask_words.clone(), changed.len())?;
        let mask_there = mask.lend();
        let mut pending = ElementSet::Device(on_device(gpu, self.pending.words())?);
        let source = match old {
            Old::Inversion(rules) => ChangeSource::Inversion {
                master: lend(&master),
                exp_avg: lend(&exp_avg),
                exp_avg_sq: lend(&exp_avg_sq),
                rules,
            },
            Old::Snapshot(diffs) => ChangeSource::Snapshot {
                master: lend(&master),
                previous: driftless_device::ElementsMut::Device(previous.memory()),
                diffs,
            },
            Old::PreCopy(diffs) => {
                ChangeSource::PreCopy { master: lend(&master), model: lend(&previous), diffs }
            }
            Old::InStep(diffs) => {
                ChangeSource::InStep { master: lend(&master), changed: (&changed).into(), diffs }
            }
            Old::InStepThere(diffs) => {
                ChangeSource::InStep { master: lend(&master), changed: mask_there.bits(), diffs }
            }
        };
        let options = DetectOptions::new(cast).with_classes().with_pending(match pend {
            Pend::Absent => Pending::Absent,
            Pend::Drain => Pending::Drain(pending.lend()),
            Pend::Collect => Pending::Collect(pending.lend()),
        });
        let found = gpu.detect(&tensor(), &params(), source, options, self.keys, &RUNNING)?;
        drop(mask_there);
        mask.clear()?;
        ensure!(gpu.count(&ElementSet::Device(mask_words))? == 0, "a mask that was cleared");
        let ElementSet::Device(pending) = pending else { anyhow::bail!("a set of the device") };
        let (pending, previous) = (Buffer::from(pending), Buffer::from(previous));
        Ok(Left { found, pending: pending.view()?.to_vec(), previous: previous.view()?.to_vec() })
    }
}

#[test]
fn dv4_dv5_every_source_and_family_finds_what_the_host_finds() -> Result<()> {
    on_standin("twins::dv4_dv5_every_source_and_family_finds_what_the_host_finds", &[], || {
        let (gpu, keys, mut rng) = (gpu()?, DigestKeys::new(RUN), Rng(17));
        let mut state = masters(&tensor());
        // Moments that no Adam makes, in the piece of two words per row.
        let at = state.master.len() - 300;
        (state.exp_avg[at], state.exp_avg_sq[at]) = (1.0, 1e-12);
        let old: Vec<u16> =
            state.master.iter().map(|&x| bf16::cast(x) ^ u16::from(rng.below(9) == 0)).collect();
        let mut pending = Bitset::new(old.len());
        (0..old.len()).step_by(31).for_each(|index| pending.insert(index));
        let case = Case { gpu: &gpu, state: &state, old: &old, pending: &pending, keys: &keys };
        for family in Family::ALL {
            let mut rules = vec![PieceRule::Rule(usual_rule(family)); 7];
            (rules[2], rules[3]) = (PieceRule::Dense, PieceRule::Untouched);
            for pend in [Pend::Absent, Pend::Drain, Pend::Collect] {
                case.check(Old::Inversion(&rules), family.cast(), pend)?;
            }
        }
        let mut diffs = vec![PieceDiff::Compare; 7];
        diffs[1] = PieceDiff::Dense;
        for cast in [Cast::NearestEven, Cast::HalfAway] {
            for pend in [Pend::Absent, Pend::Drain, Pend::Collect] {
                for old in [
                    Old::Snapshot(&diffs),
                    Old::PreCopy(&diffs),
                    Old::InStep(&diffs),
                    Old::InStepThere(&diffs),
                ] {
                    case.check(old, cast, pend)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn dv5_a_list_longer_than_its_first_room_is_made_again() -> Result<()> {
    on_standin("twins::dv5_a_list_longer_than_its_first_room_is_made_again", &[], || {
        let (gpu, keys) = (gpu()?, DigestKeys::new(RUN));
        let state = masters(&tensor());
        // Every element differs: far more than a sixteenth.
        let old: Vec<u16> = state.master.iter().map(|&x| bf16::cast(x) ^ 1).collect();
        let pending = Bitset::new(old.len());
        let case = Case { gpu: &gpu, state: &state, old: &old, pending: &pending, keys: &keys };
        let diffs = [PieceDiff::Compare; 7];
        case.check(Old::Snapshot(&diffs), Cast::NearestEven, Pend::Drain)?;
        case.check(Old::PreCopy(&diffs), Cast::NearestEven, Pend::Absent)
    })
}

/// Every tensor of a rank: changes on the host and on the device.
pub(crate) fn both(
    gpu: &CudaDevice,
    plan: &RemapPlan,
    trainer: &TinyTrainer,
    rank: usize,
) -> Result<[Vec<ChangeList>; 2]> {
    let (keys, sender) = (DigestKeys::new(RUN), &plan.senders()[rank]);
    let (mut on_host, mut on_gpu) = (Vec::new(), Vec::new());
    for (tensor, state) in sender.tensors.iter().zip(&trainer.memory()[rank]) {
        let diffs = vec![PieceDiff::Compare; tensor.pieces.len()];
        let (master, model) = (state.master.read(), state.model.read());
        let (there, model_there) = (on_device(gpu, &master)?, on_device(gpu, &model)?);
        let source =
            ChangeSource::PreCopy { master: (&*master).into(), model: (&*model).into(), diffs: &diffs };
        let options = || DetectOptions::default().with_classes();
        let host = CpuDevice::new().detect(tensor, plan.params(), source, options(), &keys, &RUNNING)?;
        let source = ChangeSource::PreCopy { master: lend(&there), model: lend(&model_there), diffs: &diffs };
        let device = gpu.detect(tensor, plan.params(), source, options(), &keys, &RUNNING)?;
        on_gpu.push(device.changes.clone());
        ensure!(fetched(device)? == host, "{}", tensor.name);
        on_host.push(host.changes);
    }
    Ok([on_host, on_gpu])
}

pub(crate) fn stepped(trainer: &str, rollouts: &[&str]) -> Result<(RemapPlan, TinyTrainer)> {
    let rollouts = rollouts.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
    let plan = tiny_plan(&trainer.parse()?, &rollouts)?;
    let mut trainer = TinyTrainer::new(&plan, 3);
    trainer.step();
    Ok((plan, trainer))
}

#[test]
fn dv2_dv3_fragments_go_out_and_in_as_on_the_host() -> Result<()> {
    on_standin("twins::dv2_dv3_fragments_go_out_and_in_as_on_the_host", &[], || {
        let gpu = gpu()?;
        let (plan, trainer) = stepped("megatron:tp=2,pp=2,dp=2", &["vllm:tp=4", "hf"])?;
        let receivers: Vec<_> = plan.replicas().iter().flat_map(|replica| &replica.receivers).collect();
        for (rank, sender) in plan.senders().iter().enumerate() {
            let [on_host, on_gpu] = both(&gpu, &plan, &trainer, rank)?;
            for edge in &sender.edges {
                let fragments: Vec<&Fragment> = edge.fragments.iter().collect();
                let wanted = CpuDevice::new().remap_all(&on_host, &fragments)?;
                ensure!(
                    gpu.remap_all(&on_gpu, &fragments)? == wanted,
                    "{} to {}",
                    sender.name,
                    edge.receiver
                );
                let receiver = receivers.iter().find(|receiver| receiver.id == edge.receiver);
                let tensors = &receiver.ok_or_else(|| anyhow::anyhow!("a receiver"))?.tensors;
                for (fragment, set) in fragments.iter().zip(&wanted).take(12) {
                    into_place(&gpu, &plan, fragment, &tensors[fragment.dst_tensor as usize], set)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn classes_go_where_their_changes_go_as_on_the_host() -> Result<()> {
    on_standin("twins::classes_go_where_their_changes_go_as_on_the_host", &[], || {
        let (gpu, host) = (gpu()?, CpuDevice::new());
        for (trainer, rollouts) in [
            ("megatron:tp=2,pp=2,dp=2", &["vllm:tp=4", "hf"][..]),
            ("fsdp:world=3", &["sglang:tp=2"]),
            ("hf", &["vllm:tp=2", "hf"]),
        ] {
            let (plan, trainer) = stepped(trainer, rollouts)?;
            let mut counts = [0; 3];
            for (rank, sender) in plan.senders().iter().enumerate() {
                let [on_host, on_gpu] = both(&gpu, &plan, &trainer, rank)?;
                for fragments in sender.edges.iter().flat_map(|edge| edge.fragments.chunks(64)) {
                    let fragments: Vec<&Fragment> = fragments.iter().collect();
                    let wanted = host.remap_classed(&on_host, &fragments)?;
                    ensure!(gpu.remap_classed(&on_gpu, &fragments)? == wanted, "{}", sender.name);
                    let classes = wanted.iter().flat_map(|set| &set.classes);
                    classes.for_each(|&class| counts[class as usize] += 1);
                }
                refuses_lists_without_classes(&gpu, &on_gpu, &plan, rank)?;
            }
            ensure!(counts.iter().filter(|&&count| count > 20).count() > 1, "{counts:?}");
        }
        Ok(())
    })
}

/// One list of a rank among those with classes that says nothing of them.
fn refuses_lists_without_classes(
    gpu: &CudaDevice,
    lists: &[ChangeList],
    plan: &RemapPlan,
    rank: usize,
) -> Result<()> {
    let sender = &plan.senders()[rank];
    let Some(at) = lists.iter().position(|list| list.count() > 0) else { return Ok(()) };
    let master = on_device(gpu, &vec![1.0; usize::try_from(sender.tensors[at].elements())?])?;
    let model = on_device(gpu, &vec![7u16; master.len()])?;
    let diffs = vec![PieceDiff::Compare; sender.tensors[at].pieces.len()];
    let source = ChangeSource::PreCopy { master: lend(&master), model: lend(&model), diffs: &diffs };
    let (keys, options) = (DigestKeys::new(RUN), DetectOptions::default());
    let found = gpu.detect(&sender.tensors[at], plan.params(), source, options, &keys, &RUNNING)?;
    let mut lists = lists.to_vec();
    lists[at] = found.changes;
    let refused = gpu.remap_classed(&lists, &[&sender.edges[0].fragments[0]]);
    ensure!(matches!(refused, Err(DeviceError::Length { what: "the classes of a list", .. })), "{refused:?}");
    Ok(())
}

/// A change set into a tensor of noise and out of it again, on both, and the digest at each step.
fn into_place(
    gpu: &CudaDevice,
    plan: &RemapPlan,
    fragment: &Fragment,
    tensor: &DestTensor,
    set: &ChangeSet,
) -> Result<()> {
    let (host, keys, mut rng) = (CpuDevice::new(), DigestKeys::new(RUN), Rng(u64::from(fragment.index)));
    let words = usize::try_from(tensor.shape.elements().unwrap_or(0))? * tensor.dtype.words();
    let before: Vec<u16> = (0..words).map(|_| rng.word()).collect();
    let (mut here, there) = (before.clone(), Buffer::from(on_device(gpu, &before)?));
    let (mut undo, mut undo_there) = (UndoLog::new(), UndoLog::new());
    let cols = plan.param(fragment.param).cols();
    let whole = (0..fragment.elements() * fragment.dtype.words() as u64).map(|_| rng.word()).collect();
    for set in [set, &ChangeSet::All(whole), set] {
        let done = host.scatter((&mut here).into(), fragment, cols, set, &keys, &mut undo)?;
        let done_there =
            gpu.scatter(there.lend_mut().elements(), fragment, cols, set, &keys, &mut undo_there)?;
        ensure!(done == done_there, "fragment {}", fragment.index);
        ensure!(here == there.view()?[..], "fragment {}", fragment.index);
    }
    peeks(gpu, fragment, cols, &here, &there)?;
    let digest = host.digest((&here).into(), tensor, plan.params(), &keys)?;
    ensure!(gpu.digest(there.lend().elements(), tensor, plan.params(), &keys)? == digest);
    gpu.undo(there.lend_mut().elements(), &mut undo_there)?;
    ensure!(there.view()?[..] == before[..] && undo_there.is_empty());
    // DV-3: a bad position writes nothing and leaves nothing to undo.
    let bad = |positions: Vec<u32>| ChangeSet::Sparse { values: vec![9; positions.len()], positions };
    let last = u32::try_from(fragment.elements())?;
    for bad in [bad(vec![0, last]), bad(vec![1, 1]), bad(vec![1, 0])] {
        let refused = gpu.scatter(there.lend_mut().elements(), fragment, cols, &bad, &keys, &mut undo_there);
        ensure!(refused.is_err() && undo_there.is_empty() && there.view()?[..] == before[..], "{refused:?}");
    }
    Ok(())
}

/// Single words out of the same tensor, here and there.
fn peeks(gpu: &CudaDevice, fragment: &Fragment, cols: u64, here: &[u16], there: &Buffer<u16>) -> Result<()> {
    let (host, lent) = (CpuDevice::new(), there.lend());
    let read = |positions: &[u32]| gpu.read_at(lent.elements(), fragment, cols, positions);
    let every =
        |step| (0..fragment.elements()).step_by(step).map(u32::try_from).collect::<Result<Vec<_>, _>>();
    if fragment.dtype != Dtype::Bf16 {
        ensure!(read(&[]).is_err() && read(&[0]).is_err(), "single elements of an FP32 fragment");
        return Ok(());
    }
    for positions in [every(1)?, every(3)?, Vec::new()] {
        let wanted = host.read_at(here.into(), fragment, cols, &positions)?;
        ensure!(read(&positions)? == wanted, "fragment {}: single words", fragment.index);
    }
    let last = u32::try_from(fragment.elements())?;
    for bad in [vec![0, last], vec![1, 1], vec![1, 0]] {
        let refused = (read(&bad), host.read_at(here.into(), fragment, cols, &bad));
        ensure!(matches!(refused, (Err(_), Err(_))), "{refused:?}");
    }
    Ok(())
}

#[test]
fn whole_fragments_are_gathered_as_on_the_host() -> Result<()> {
    on_standin("twins::whole_fragments_are_gathered_as_on_the_host", &[], || {
        let gpu = gpu()?;
        let (plan, trainer) = stepped("fsdp:world=3", &["sglang:tp=2"])?;
        for (sender, states) in plan.senders().iter().zip(trainer.memory()) {
            let guards: Vec<_> = states.iter().map(|state| state.master.read()).collect();
            let there = guards.iter().map(|master| on_device(&gpu, master)).collect::<Result<Vec<_>>>()?;
            let masters: Vec<Elements<'_, f32>> =
                guards.iter().map(|master| Elements::Host(master)).collect();
            let masters_there: Vec<Elements<'_, f32>> = there.iter().map(lend).collect();
            for fragment in sender.edges.iter().flat_map(|edge| &edge.fragments).step_by(3) {
                for (dtype, cast) in [
                    (Dtype::Bf16, Cast::NearestEven),
                    (Dtype::Bf16, Cast::HalfAway),
                    (Dtype::Fp32, Cast::NearestEven),
                ] {
                    let fragment = Fragment { dtype, ..fragment.clone() };
                    let wanted = CpuDevice::new().gather(&masters, &fragment, cast)?;
                    ensure!(gpu.gather(&masters_there, &fragment, cast)? == wanted, "{fragment:?}");
                }
            }
            for (here, there) in masters.iter().zip(&masters_there) {
                let wanted = CpuDevice::new().served_bits(*here, Cast::HalfAway)?;
                ensure!(gpu.served_bits(*there, Cast::HalfAway)?.view()?[..] == wanted.view()?[..]);
                ensure!(gpu.copy(*there)?.view()?[..] == *here.on_host()?);
            }
        }
        Ok(())
    })
}

#[test]
fn words_of_fp32_tensors_are_written_and_hashed_in_pairs() -> Result<()> {
    on_standin("twins::words_of_fp32_tensors_are_written_and_hashed_in_pairs", &[], || {
        let gpu = gpu()?;
        let (plan, _) = stepped("hf", &["hf"])?;
        let fragment = plan.senders()[0].edges[0].fragments[0].clone();
        let fragment = Fragment { dtype: Dtype::Fp32, dst_offset: 3, dst_row_stride: 70, ..fragment };
        let rows = fragment.canonical.rows;
        let place = DestBox {
            param: fragment.param,
            canonical: fragment.canonical,
            dst_offset: 3,
            dst_row_stride: 70.max(fragment.canonical.cols),
        };
        let stride = place.dst_row_stride;
        let fragment = Fragment { dst_row_stride: stride, ..fragment };
        let shape = Shape::new([rows * stride + 3]);
        let tensor = DestTensor { name: "fp32".into(), shape, dtype: Dtype::Fp32, boxes: vec![place] };
        let all = ChangeSet::All(vec![0x3f80; usize::try_from(fragment.elements())? * 2]);
        into_place(&gpu, &plan, &fragment, &tensor, &all)
    })
}

#[test]
fn sets_are_filled_and_counted_as_on_the_host() -> Result<()> {
    on_standin("twins::sets_are_filled_and_counted_as_on_the_host", &[], || {
        let gpu = gpu()?;
        let (plan, trainer) = stepped("megatron:tp=2", &["hf"])?;
        let [on_host, on_gpu] = both(&gpu, &plan, &trainer, 1)?;
        for (tensor, (here, there)) in plan.senders()[1].tensors.iter().zip(on_host.iter().zip(&on_gpu)) {
            let elements = usize::try_from(tensor.elements())?;
            let host = CpuDevice::new();
            let (mut set, mut set_there) = (host.empty_set(elements)?, gpu.empty_set(elements)?);
            for _ in 0..2 {
                host.remember(&mut set, here)?;
                gpu.remember(&mut set_there, there)?;
            }
            ensure!(gpu.count(&set_there)? == host.count(&set)?);
            let (ElementSet::Host(set), ElementSet::Device(buffer)) = (set, set_there) else {
                anyhow::bail!("each set is where its device is")
            };
            ensure!(Buffer::from(buffer).view()?[..] == *set.words());
        }
        Ok(())
    })
}
