//! Sections that arrived, decoded and checked on the device.
//!
//! - **GT-5 (believed when checked).** A section is handed out only after the kernel that decodes it has looked at every
//!   offset; of one that is refused the host says what is wrong.

use super::CudaDevice;
use super::abi::{Block16Args, bytes_of_mut};
use super::gpu::{Gpu, Layout};
use super::slots::{Extent, Slots};
use super::worker::Worker;
use crate::fit::FragmentFit;
use crate::{DeviceError, DeviceSection, Loaded};
use driftless_codec::{FramedBody, FramedSection, block16_blocks};
use driftless_types::{Dtype, index_of};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of bodies that are decoded together, at most, if no single one is longer: it bounds the window.
const DECODED_TOGETHER: usize = 32 << 20;

/// The changes of a section, every one of them checked.
#[derive(Debug)]
pub(super) struct CudaSection {
    worker: Arc<Worker>,
    slots: Slots,
    fragment: u32,
    dtype: Dtype,
    elements: u64,
}

impl CudaSection {
    /// A section of this GPU.
    pub(super) fn of(loaded: Loaded, worker: &Arc<Worker>) -> Result<Self, DeviceError> {
        let misplaced =
            |found: &str| DeviceError::Place { found: found.to_owned(), expected: worker.name().to_owned() };
        let Loaded::Device(section) = loaded else { return Err(misplaced(crate::HOST)) };
        let found = misplaced(section.device());
        let section = section.into_any().downcast::<Self>().map_err(|_| found.clone())?;
        if Arc::ptr_eq(&section.worker, worker) { Ok(*section) } else { Err(found) }
    }

    /// The changes, if they are of this fragment; `None` if there are none.
    ///
    /// DV-3: positions rise and lie below the section's elements, and so within the fragment.
    pub(super) fn slots_for(self, fit: &FragmentFit<'_>) -> Result<Option<Slots>, DeviceError> {
        let found = (self.fragment, self.dtype, self.elements);
        let expected = (fit.fragment.index, fit.fragment.dtype, fit.area.elements() as u64);
        if found != expected {
            let text = |(fragment, dtype, elements): (u32, Dtype, u64)| {
                format!("{elements} {dtype} elements of fragment {fragment}")
            };
            let (found, expected) = (text(found), text(expected));
            return Err(DeviceError::ChangeSet { fragment: fit.fragment.index, found, expected });
        }
        Ok(Some(self.slots).filter(|slots| slots.count > 0))
    }
}

impl DeviceSection for CudaSection {
    fn device(&self) -> &str {
        self.worker.name()
    }

    fn bytes(&self) -> usize {
        self.slots.extent.bytes(self.slots.count, self.slots.words_each)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl CudaDevice {
    /// See [`Device::load`](crate::Device::load): the sections share one piece of memory.
    pub(super) fn load_sections(&self, sections: &[FramedSection]) -> Result<Vec<Loaded>, DeviceError> {
        let mut layout = Layout::default();
        let rooms: Vec<usize> = sections.iter().map(|section| layout.room(room_bytes(section))).collect();
        let (refused, loaded) = self.worker().run(|gpu| {
            let memory = Arc::new(gpu.memory(self.worker(), layout.bytes())?);
            let loaded = |(section, &offset): (&FramedSection, &usize)| {
                let (header, (extent, count)) = (section.header(), counts(section));
                let slots = Slots::new(Arc::clone(&memory), offset, extent, count, header.dtype.words());
                let worker = Arc::clone(self.worker());
                let (fragment, dtype, elements) = (header.fragment, header.dtype, header.n);
                CudaSection { worker, slots, fragment, dtype, elements }
            };
            let loaded: Vec<CudaSection> = sections.iter().zip(&rooms).map(loaded).collect();
            for batch in batches(sections) {
                if let Some(bad) = decode(gpu, &sections[batch.clone()], &loaded[batch.clone()])? {
                    return Ok((Some(batch.start + bad), Vec::new()));
                }
            }
            Ok((None, loaded))
        })?;
        if let Some(section) = refused.and_then(|bad| sections.get(bad)) {
            return Err(self.refused(section));
        }
        Ok(loaded.into_iter().map(|section| Loaded::Device(Box::new(section))).collect())
    }

    /// What the host finds in a section that the device refuses.
    fn refused(&self, section: &FramedSection) -> DeviceError {
        let (device, fragment) = (self.worker().name().to_owned(), section.header().fragment);
        let disagree = DeviceError::Disagreement { device, fragment };
        section.clone().check().err().map_or(disagree, DeviceError::Section)
    }
}

fn counts(section: &FramedSection) -> (Extent, usize) {
    match section.body() {
        FramedBody::All(_) => (Extent::All, index_of(section.header().n)),
        FramedBody::Blocks(_) => (Extent::Some, index_of(section.header().nnz)),
    }
}

fn room_bytes(section: &FramedSection) -> usize {
    let (extent, count) = counts(section);
    extent.bytes(count, section.header().dtype.words())
}

/// Sections that are decoded together.
fn batches(sections: &[FramedSection]) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut together = 0;
    for (index, section) in sections.iter().enumerate() {
        let bytes = match section.body() {
            FramedBody::All(_) => 0,
            FramedBody::Blocks(body) => body.len(),
        };
        match batches.last_mut() {
            Some(batch) if together + bytes <= DECODED_TOGETHER => {
                batch.end += 1;
                together += bytes;
            }
            _ => {
                batches.push(index..index + 1);
                together = bytes;
            }
        }
    }
    batches
}

/// Decodes bodies into their slots; gives the first that is refused, if any.
fn decode(
    gpu: &mut Gpu,
    sections: &[FramedSection],
    loaded: &[CudaSection],
) -> Result<Option<usize>, DeviceError> {
    let mut faults = vec![0u32; sections.len()];
    let (mut bodies, mut launches): (Vec<u8>, Vec<_>) = (Vec::new(), Vec::new());
    for (index, (section, loaded)) in sections.iter().zip(loaded).enumerate() {
        match section.body() {
            FramedBody::All(words) => gpu.upload(loaded.slots.words(), words)?,
            FramedBody::Blocks(body) => {
                launches.push((index, bodies.len(), loaded));
                // Bodies are whole words of four bytes, so the next one begins where a kernel may read it.
                bodies.extend_from_slice(body);
            }
        }
    }
    let mut layout = Layout::default();
    let (at_faults, at_bodies) = (layout.room(size_of_val(&faults[..])), layout.room(bodies.len()));
    let base = gpu.window(layout.bytes())?;
    let at = |offset: usize| base + offset as u64;
    gpu.clear(at(at_faults), size_of_val(&faults[..]))?;
    gpu.upload(at(at_bodies), &bodies)?;
    for (index, body, CudaSection { slots, elements, .. }) in launches {
        let (body, fault) = (at(at_bodies + body), at(at_faults + 4 * index));
        let (positions, values, nnz) = (slots.positions(), slots.words(), slots.count as u64);
        let args = Block16Args { body, positions, values, fault, n: *elements, nnz };
        // A block of threads for each of elements; a section without changes has no directory to look at.
        let blocks = if nnz == 0 { 0 } else { block16_blocks(*elements) };
        gpu.launch("driftless_block16_decode", blocks * u64::from(gpu.threads()), &args)?;
    }
    gpu.download(at(at_faults), bytes_of_mut(&mut faults))?;
    Ok(faults.iter().position(|&fault| fault != 0))
}
