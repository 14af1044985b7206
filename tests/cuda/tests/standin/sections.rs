//! Sections are made and read on the device as the host makes and reads them.

use crate::support::{RUN, Rng};
use crate::twins::{both, on_device, stepped};
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use driftless_codec::{CodecError, Expected, FramedSection, SectionStart};
use driftless_cuda_tests::{gpu, on_standin};
use driftless_device::cuda::CudaDevice;
use driftless_device::{Buffer, CpuDevice, Delivery, Device, DeviceError, Packed, UndoLog};
use driftless_layout::{DestTensor, Fragment, RemapPlan};
use driftless_numerics::DigestKeys;
use driftless_types::{ChangeSet, Dtype, Version};

pub(crate) const fn start(fragment: &Fragment) -> SectionStart {
    SectionStart::new(fragment.index, fragment.dtype, fragment.elements(), Version(2))
}

/// A section as it is sent.
fn section(fragment: &Fragment, packed: &Packed) -> Vec<u8> {
    let mut out = Vec::new();
    packed.encode(&start(fragment), &mut out);
    out
}

/// A section of which the frame was checked.
pub(crate) fn framed(fragment: &Fragment, bytes: Vec<u8>) -> Result<FramedSection, CodecError> {
    let (dtype, elements) = (fragment.dtype, fragment.elements());
    let expected = Expected { fragment: fragment.index, dtype, elements, version: Version(2) };
    FramedSection::parse(&mut Bytes::from(bytes), &expected)
}

/// Loads sections on a backend and delivers them into a tensor of its own.
fn deliver(
    device: &dyn Device,
    tensor: &Buffer<u16>,
    fragments: &[&Fragment],
    sections: Vec<FramedSection>,
    plan: &RemapPlan,
    undo: &mut UndoLog,
) -> Result<Vec<driftless_device::Scattered>, DeviceError> {
    let loaded = device.load(sections)?.into_iter().zip(fragments);
    let deliveries = loaded.map(|(section, &fragment)| {
        let param_cols = plan.param(fragment.param).cols();
        Delivery { fragment, param_cols, section }
    });
    let deliveries = deliveries.collect();
    device.deliver(tensor.lend_mut().elements(), deliveries, &DigestKeys::new(RUN), undo)
}

#[test]
fn gt5_sections_are_made_and_read_on_the_device_as_on_the_host() -> Result<()> {
    on_standin("sections::gt5_sections_are_made_and_read_on_the_device_as_on_the_host", &[], || {
        let (gpu, host) = (gpu()?, CpuDevice::new());
        let (plan, trainer) = stepped("megatron:tp=2,pp=2,dp=2", &["vllm:tp=4", "hf"])?;
        let receivers: Vec<_> = plan.replicas().iter().flat_map(|replica| &replica.receivers).collect();
        for (rank, sender) in plan.senders().iter().enumerate() {
            let [on_host, on_gpu] = both(&gpu, &plan, &trainer, rank)?;
            for edge in &sender.edges {
                let receiver = receivers.iter().find(|receiver| receiver.id == edge.receiver);
                let tensors = &receiver.context("a receiver")?.tensors;
                for (index, tensor) in (0..).zip(tensors) {
                    let of_tensor = |fragment: &&Fragment| fragment.dst_tensor == index;
                    let fragments: Vec<&Fragment> = edge.fragments.iter().filter(of_tensor).collect();
                    let here = host.pack(&on_host, &fragments)?;
                    let there = gpu.pack(&on_gpu, &fragments)?;
                    round(&gpu, &plan, tensor, &fragments, &here, &there)?;
                }
            }
        }
        Ok(())
    })
}

/// The same bytes are sent, and the same words, digests and counts come of them; and all of it can be undone.
fn round(
    gpu: &CudaDevice,
    plan: &RemapPlan,
    tensor: &DestTensor,
    fragments: &[&Fragment],
    here: &[Packed],
    there: &[Packed],
) -> Result<()> {
    let mut rng = Rng(7);
    let mut sections = Vec::new();
    for ((&fragment, here), there) in fragments.iter().zip(here).zip(there) {
        let elements = fragment.elements();
        ensure!(here.nnz(elements) == there.nnz(elements), "fragment {}", fragment.index);
        // A set of all elements is sent dense by the host.
        if here.nnz(elements) < elements {
            ensure!(section(fragment, here) == section(fragment, there), "fragment {}", fragment.index);
        }
        sections.push(framed(fragment, section(fragment, there))?);
        let whole = (0..elements * fragment.dtype.words() as u64).map(|_| rng.word()).collect();
        sections.push(framed(fragment, section(fragment, &Packed::Set(ChangeSet::All(whole))))?);
    }
    // Each fragment twice: its changes, and then all of it.
    let fragments: Vec<&Fragment> = fragments.iter().flat_map(|&fragment| [fragment, fragment]).collect();
    let words = usize::try_from(tensor.shape.elements().unwrap_or(0))? * tensor.dtype.words();
    let before: Vec<u16> = (0..words).map(|_| rng.word()).collect();
    let (on_host, on_gpu) = (CpuDevice::new().words(before.clone())?, Buffer::from(on_device(gpu, &before)?));
    let (mut undo, mut undo_there) = (UndoLog::new(), UndoLog::new());
    let done = deliver(&CpuDevice::new(), &on_host, &fragments, sections.clone(), plan, &mut undo)?;
    let done_there = deliver(gpu, &on_gpu, &fragments, sections, plan, &mut undo_there)?;
    ensure!(done == done_there && on_host.view()?[..] == on_gpu.view()?[..], "{}", tensor.name);
    ensure!(undo.words() == undo_there.words(), "{}", tensor.name);
    gpu.undo(on_gpu.lend_mut().elements(), &mut undo_there)?;
    ensure!(on_gpu.view()?[..] == before[..] && undo_there.is_empty(), "{}", tensor.name);
    Ok(())
}

#[test]
fn gt5_a_damaged_section_is_refused_with_what_the_host_says_and_nothing_is_handed_out() -> Result<()> {
    let name = "sections::gt5_a_damaged_section_is_refused_with_what_the_host_says_and_nothing_is_handed_out";
    on_standin(name, &[], || {
        let gpu = gpu()?;
        let (plan, _) = stepped("hf", &["hf"])?;
        let fragment = Fragment { dtype: Dtype::Bf16, ..plan.senders()[0].edges[0].fragments[0].clone() };
        let body = |offsets: [u16; 3], directory: [u32; 2]| {
            let words = offsets.iter().chain(&[7, 8, 9]).flat_map(|word| word.to_le_bytes());
            Bytes::from_iter(directory.iter().flat_map(|offset| offset.to_le_bytes()).chain(words))
        };
        let last = u16::try_from(fragment.elements())?;
        let good = Packed::Block16 { nnz: 3, body: body([0, 4, 5], [0, 3]) };
        let bad = [
            body([0, 5, 5], [0, 3]),
            body([0, 5, 4], [0, 3]),
            body([0, 4, last], [0, 3]),
            body([0, 4, 5], [1, 3]),
            body([0, 4, 5], [0, 2]),
        ];
        for body in bad {
            let bad = section(&fragment, &Packed::Block16 { nnz: 3, body });
            let wanted = framed(&fragment, bad.clone())?.check().err().context("the host refuses it")?;
            let good = framed(&fragment, section(&fragment, &good))?;
            let live = gpu.memory_use().live_bytes;
            let refused = gpu.load(vec![good.clone(), framed(&fragment, bad)?, good]);
            ensure!(refused.as_ref().err() == Some(&DeviceError::Section(wanted)), "{refused:?}");
            drop(gpu.zeros(1)?);
            ensure!(gpu.memory_use().live_bytes <= live + 1024, "what was decoded is given back");
        }
        // What is loaded for one fragment goes into no other, and what is on the host into no device.
        let loaded = gpu.load(vec![framed(&fragment, section(&fragment, &good))?])?;
        let mut other = fragment.clone();
        other.canonical.rows -= 1;
        let tensor = Buffer::from(on_device(&gpu, &vec![1u16; usize::from(last)])?);
        let into =
            |fragment, section| vec![Delivery { fragment, param_cols: fragment.canonical.cols, section }];
        let keys = DigestKeys::new(RUN);
        for section in loaded
            .into_iter()
            .chain(CpuDevice::new().load(vec![framed(&fragment, section(&fragment, &good))?])?)
        {
            let mut undo = UndoLog::new();
            let refused = gpu.deliver(tensor.lend_mut().elements(), into(&other, section), &keys, &mut undo);
            ensure!(
                matches!(refused, Err(DeviceError::ChangeSet { .. } | DeviceError::Place { .. })),
                "{refused:?}"
            );
            ensure!(undo.is_empty() && tensor.view()?.iter().all(|&word| word == 1));
        }
        Ok(())
    })
}
