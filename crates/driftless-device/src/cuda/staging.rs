//! Host memory that a GPU copies to and from at full speed: two pinned buffers, used in turns.
//!
//! Whatever is copied goes through them, so that pinned memory is bounded and no copy reads memory of a caller after
//! the call has returned.
#![expect(unsafe_code, reason = "pinned memory comes as a raw pointer")]

use super::abi::Address;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};
use cudarc::driver::{DriverError, result};
use std::slice;

/// Pinned bytes per buffer: a copy of that size takes long enough to hide the work of starting the next.
pub(super) const STAGING_BYTES: usize = 8 << 20;
const BUFFERS: usize = 2;

/// The pinned buffers of one stream.
pub(super) struct Staging {
    stream: CUstream,
    buffers: [Pinned; BUFFERS],
    next: usize,
}

struct Pinned {
    bytes: *mut u8,
    /// Recorded after the last copy from or to it.
    done: CUevent,
}

impl Staging {
    /// Pins the buffers; the context must be current.
    pub(super) fn new(stream: CUstream) -> Result<Self, DriverError> {
        Ok(Self { stream, buffers: [Pinned::new()?, Pinned::new()?], next: 0 })
    }

    /// Copies bytes to the device: those of `from` may be reused at once, the copy is on the stream.
    pub(super) fn upload(&mut self, to: Address, from: &[u8]) -> Result<(), DriverError> {
        for (chunk, at) in from.chunks(STAGING_BYTES).zip((to..).step_by(STAGING_BYTES)) {
            let stream = self.stream;
            let buffer = self.turn();
            buffer.wait()?;
            let pinned = buffer.slice(chunk.len());
            pinned.copy_from_slice(chunk);
            // SAFETY: the caller vouches for the device's bytes; the pinned ones are not touched before `wait`.
            unsafe { result::memcpy_htod_async(at, pinned, stream) }?;
            buffer.record(stream)?;
        }
        Ok(())
    }

    /// Copies bytes from the device, after everything that is on the stream, and waits for them.
    pub(super) fn download(&mut self, from: Address, to: &mut [u8]) -> Result<(), DriverError> {
        let mut ahead = None;
        for (chunk, at) in to.chunks_mut(STAGING_BYTES).zip((from..).step_by(STAGING_BYTES)) {
            let stream = self.stream;
            let index = self.next;
            let buffer = self.turn();
            buffer.wait()?;
            // SAFETY: the caller vouches for the device's bytes; the pinned ones are not read before `wait`.
            unsafe { result::memcpy_dtoh_async(buffer.slice(chunk.len()), at, stream) }?;
            buffer.record(stream)?;
            if let Some((index, chunk)) = ahead.replace((index, chunk)) {
                self.collect(index, chunk)?;
            }
        }
        ahead.map_or(Ok(()), |(index, chunk)| self.collect(index, chunk))
    }

    fn collect(&mut self, index: usize, chunk: &mut [u8]) -> Result<(), DriverError> {
        let buffer = &mut self.buffers[index];
        buffer.wait()?;
        chunk.copy_from_slice(buffer.slice(chunk.len()));
        Ok(())
    }

    fn turn(&mut self) -> &mut Pinned {
        let index = self.next;
        self.next = (index + 1) % BUFFERS;
        &mut self.buffers[index]
    }
}

impl Pinned {
    fn new() -> Result<Self, DriverError> {
        // SAFETY: no flags; the memory is freed in `drop` alone.
        let bytes = unsafe { result::malloc_host(STAGING_BYTES, 0) }?.cast();
        match result::event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING) {
            Ok(done) => Ok(Self { bytes, done }),
            Err(error) => {
                // SAFETY: allocated above, and given to nobody.
                let _ = unsafe { result::free_host(bytes.cast()) };
                Err(error)
            }
        }
    }

    fn slice(&mut self, len: usize) -> &mut [u8] {
        debug_assert!(len <= STAGING_BYTES);
        // SAFETY: as many bytes were allocated; bytes have no invalid patterns; `&mut self` is the only way to them, and
        // a copy of the device is waited for before they are touched.
        unsafe { slice::from_raw_parts_mut(self.bytes, len) }
    }

    fn record(&self, stream: CUstream) -> Result<(), DriverError> {
        // SAFETY: event and stream live as long as the `Staging` that holds both.
        unsafe { result::event::record(self.done, stream) }
    }

    /// Waits for the last copy; for none if there was none.
    fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event lives as long as `self`.
        unsafe { result::event::synchronize(self.done) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: both were created in `new`, and nothing refers to them any more. A context that is broken refuses.
        let _ = unsafe { result::event::destroy(self.done) };
        // SAFETY: as above.
        let _ = unsafe { result::free_host(self.bytes.cast()) };
    }
}
