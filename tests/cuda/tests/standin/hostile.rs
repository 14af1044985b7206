//! Sections of a hostile sender, and a device that refuses in the middle of them.

use crate::sections::{framed, start};
use crate::support::{RUN, Rng};
use crate::twins::{on_device, stepped};
use anyhow::{Context as _, Result, ensure};
use driftless_codec::{FramedSection, encode_block16, encode_section};
use driftless_cuda_tests::{Failure, Standin, gpu, on_standin};
use driftless_device::cuda::CudaDevice;
use driftless_device::{Buffer, CpuDevice, Delivery, Device, DeviceError, Scattered, UndoLog};
use driftless_layout::{Box2, Fragment};
use driftless_numerics::DigestKeys;
use driftless_types::{ChangeSet, Dtype};

/// The width of the parameter that all fragments here are of.
const COLS: u64 = 1000;

/// `rows` of `cols` columns, strided in the parameter and in the tensor.
fn fragment(index: u32, rows: u64, cols: u64) -> Result<Fragment> {
    let (plan, _) = stepped("hf", &["hf"])?;
    let some = plan.senders()[0].edges[0].fragments.first().context("a fragment")?.clone();
    let canonical = Box2 { row: 3, rows, col: COLS - cols, cols };
    Ok(Fragment { index, dtype: Dtype::Bf16, canonical, dst_offset: 17, dst_row_stride: cols + 5, ..some })
}

fn whole(fragment: &Fragment, rng: &mut Rng) -> Result<FramedSection> {
    let mut bytes = Vec::new();
    let words = (0..fragment.elements()).map(|_| rng.word()).collect();
    encode_section(&start(fragment), &ChangeSet::All(words), &mut bytes);
    Ok(framed(fragment, bytes)?)
}

/// The body of a section that changes one element in `step`.
fn body(fragment: &Fragment, step: u64, rng: &mut Rng) -> (u64, Vec<u8>) {
    let n = fragment.elements();
    let positions: Vec<u64> = (0..n).step_by(usize::try_from(step).unwrap_or(1)).collect();
    let mut body = Vec::new();
    let below = |end: u64| positions.partition_point(|&position| position < end);
    for block in 0..=n.div_ceil(1 << 16) {
        body.extend(u32::try_from(below(block << 16)).unwrap_or(0).to_le_bytes());
    }
    for block in positions.chunk_by(|a, b| a >> 16 == b >> 16) {
        block.iter().for_each(|position| body.extend(&position.to_le_bytes()[..2]));
        block.iter().for_each(|_| body.extend(rng.word().to_le_bytes()));
    }
    (positions.len() as u64, body)
}

fn section(fragment: &Fragment, nnz: u64, body: &[u8]) -> Result<FramedSection> {
    let mut bytes = Vec::new();
    encode_block16(&start(fragment), nnz, body, &mut bytes);
    Ok(framed(fragment, bytes)?)
}

fn deliver(
    device: &dyn Device,
    tensor: &Buffer<u16>,
    sections: Vec<(&Fragment, FramedSection)>,
    undo: &mut UndoLog,
) -> Result<Vec<Scattered>, DeviceError> {
    let (fragments, sections): (Vec<_>, Vec<_>) = sections.into_iter().unzip();
    let into = |(section, fragment)| Delivery { fragment, param_cols: COLS, section };
    let deliveries = device.load(sections)?.into_iter().zip(fragments).map(into).collect();
    device.deliver(tensor.lend_mut().elements(), deliveries, &DigestKeys::new(RUN), undo)
}

/// A tensor with room for a fragment, on the host and on the device.
fn tensors(gpu: &CudaDevice, words: usize) -> Result<(Vec<u16>, Buffer<u16>, Buffer<u16>)> {
    let mut rng = Rng(3);
    let before: Vec<u16> = (0..words).map(|_| rng.word()).collect();
    Ok((before.clone(), CpuDevice::new().words(before.clone())?, on_device(gpu, &before)?.into()))
}

fn room(fragment: &Fragment) -> Result<usize> {
    Ok(usize::try_from(fragment.dst_offset + fragment.dst_row_stride * fragment.canonical.rows)?)
}

/// Whatever one bit or one number of a body says, the device believes what the host believes, and refuses in its words.
#[test]
fn gt5_the_device_refuses_what_the_host_refuses_whatever_a_body_says() -> Result<()> {
    on_standin("hostile::gt5_the_device_refuses_what_the_host_refuses_whatever_a_body_says", &[], || {
        let gpu = gpu()?;
        let mut rng = Rng(11);
        let (mut refused, mut taken) = (0, 0);
        // One element; a block less one element, a whole one and one more; several.
        for (rows, cols, step) in
            [(1, 1, 1), (257, 255, 9), (256, 256, 1), (65_537, 1, 3), (300, 701, 2), (211, 997, 70_001)]
        {
            let fragment = fragment(5, rows, cols)?;
            let (nnz, good) = body(&fragment, step, &mut rng);
            let directory = 4 * usize::try_from(fragment.elements().div_ceil(1 << 16) + 1)?;
            for round in 0..24 {
                let mut body = good.clone();
                let at = usize::from(rng.word()) * 4099;
                match round % 4 {
                    0 => {}
                    1 => body[at % directory] ^= 1 << (rng.word() % 8),
                    2 => {
                        let at = at % good.len();
                        body[at] ^= 1 << (rng.word() % 8);
                    }
                    _ => {
                        let at = at % (good.len() - 1);
                        body[at..at + 2].copy_from_slice(&rng.word().to_le_bytes());
                    }
                }
                let bad = section(&fragment, nnz, &body)?;
                let says = bad.clone().check().err().map(DeviceError::Section);
                let (before, host, there) = tensors(&gpu, room(&fragment)?)?;
                let (mut undo, mut undo_there) = (UndoLog::new(), UndoLog::new());
                let wanted = deliver(&CpuDevice::new(), &host, vec![(&fragment, bad.clone())], &mut undo);
                let found = deliver(&gpu, &there, vec![(&fragment, bad)], &mut undo_there);
                ensure!(found == wanted && found.as_ref().err() == says.as_ref(), "{found:?}, {wanted:?}");
                ensure!(host.view()?[..] == there.view()?[..], "{rows} x {cols}, round {round}");
                if says.is_some() {
                    refused += 1;
                    ensure!(undo_there.is_empty() && there.view()?[..] == before[..]);
                } else {
                    taken += 1;
                    gpu.undo(there.lend_mut().elements(), &mut undo_there)?;
                    ensure!(there.view()?[..] == before[..], "{rows} x {cols}, round {round}: undone");
                }
            }
        }
        ensure!(refused > 30 && taken > 30, "{refused} refused, {taken} taken");
        Ok(())
    })
}

/// More bodies than are decoded together, one of them wrong near the end.
#[test]
fn gt5_sections_of_several_batches_are_all_checked() -> Result<()> {
    on_standin("hostile::gt5_sections_of_several_batches_are_all_checked", &[], || {
        let gpu = gpu()?;
        let mut rng = Rng(12);
        let fragment = fragment(5, 3000, 1000)?;
        let (nnz, good) = body(&fragment, 1, &mut rng);
        let all = 4;
        let good_one = section(&fragment, nnz, &good)?;
        let mut sections = vec![(&fragment, good_one); all];
        let mut bad = good.clone();
        let last = good.len() - 3;
        bad[last - 2 * usize::try_from(nnz % (1 << 16))?] ^= 0x80;
        let bad = section(&fragment, nnz, &bad)?;
        let says = bad.clone().check().err().map(DeviceError::Section);
        ensure!(says.is_some(), "the host refuses it");
        let (before, host, there) = tensors(&gpu, room(&fragment)?)?;
        let (mut undo, mut undo_there) = (UndoLog::new(), UndoLog::new());
        sections.push((&fragment, bad));
        let found = deliver(&gpu, &there, sections.clone(), &mut undo_there);
        ensure!(found.as_ref().err() == says.as_ref(), "{found:?}");
        ensure!(undo_there.is_empty() && there.view()?[..] == before[..]);
        sections.pop();
        let wanted = deliver(&CpuDevice::new(), &host, sections.clone(), &mut undo)?;
        ensure!(deliver(&gpu, &there, sections, &mut undo_there)? == wanted);
        ensure!(host.view()?[..] == there.view()?[..]);
        Ok(())
    })
}

/// Whichever launch or allocation is refused, all that was written can be taken back, and no memory is lost.
#[test]
fn dv2_gt3_whatever_is_refused_is_undone_and_given_back() -> Result<()> {
    on_standin("hostile::dv2_gt3_whatever_is_refused_is_undone_and_given_back", &[], || {
        let (gpu, standin) = (gpu()?, Standin::find()?);
        let mut rng = Rng(13);
        let fragments = [fragment(1, 90, 900)?, fragment(2, 70, 1000)?, fragment(3, 1, 40)?];
        let (before, _, there) = tensors(&gpu, room(&fragments[0])?.max(room(&fragments[1])?))?;
        let mut sections = Vec::new();
        for fragment in &fragments {
            let (nnz, body) = body(fragment, 4, &mut rng);
            sections.push((fragment, section(fragment, nnz, &body)?));
            sections.push((fragment, whole(fragment, &mut rng)?));
            sections.push((fragment, section(fragment, 0, &[])?));
        }
        // The window, and the keys of the digest, are there after the first round; a call of any kind comes after what
        // was dropped before it is given back.
        let mut undo = UndoLog::new();
        deliver(&gpu, &there, sections.clone(), &mut undo)?;
        gpu.undo(there.lend_mut().elements(), &mut undo)?;
        gpu.model()?;
        let live = gpu.memory_use().live_bytes;
        let mut failures = 0;
        for (failure, up_to) in [(Failure::Launch, 16), (Failure::Allocation, 3)] {
            for after in 0..up_to {
                standin.inject(failure, after)?;
                let mut undo = UndoLog::new();
                let done = deliver(&gpu, &there, sections.clone(), &mut undo);
                failures += usize::from(done.is_err());
                // The undo log may be refused, too, and is played back again.
                while gpu.undo(there.lend_mut().elements(), &mut undo).is_err() {}
                ensure!(there.view()?[..] == before[..], "{failure:?} after {after}");
                standin.inject(failure, 1000)?;
                gpu.model()?;
                ensure!(gpu.memory_use().live_bytes == live, "{failure:?} after {after}");
                ensure!(standin.live_bytes()? == live);
            }
        }
        ensure!(failures >= 9, "{failures} failures");
        Ok(())
    })
}
