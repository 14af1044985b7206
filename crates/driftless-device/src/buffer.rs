//! The memory of a tensor, wherever it is: on the host, or on a device that the host cannot reach into.
//!
//! A backend makes its own memory behind [`DeviceMemory`] and finds it again in what it is lent; memory of another place
//! is a [`DeviceError::Place`]. Nothing is moved silently: [`Buffer::view`], [`Buffer::write`] and
//! [`Buffer::write_range`] are the only ways between the two.

use crate::memory::{bytes_of, bytes_of_mut};
use crate::{
    Bits, BitsMut, Bitset, DeviceError, Element, Elements, ElementsMut, ReadGuard, SharedBuffer, WriteGuard,
};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Where memory is, as errors and `--device` name it: the host.
pub const HOST: &str = "cpu";

/// Memory of a device, as its backend made it.
pub trait DeviceMemory: fmt::Debug + Send + Sync + 'static {
    /// The device, such as `cuda:0`.
    fn device(&self) -> &str;

    /// Its size in bytes.
    fn bytes(&self) -> usize;

    /// Copies bytes from `offset` on to the host.
    ///
    /// # Errors
    /// Bytes beyond the end, or a device that fails.
    fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes of the host to `offset` and on.
    ///
    /// # Errors
    /// Bytes beyond the end, or a device that fails.
    fn upload(&self, offset: usize, from: &[u8]) -> Result<(), DeviceError>;

    /// Zeros all of it.
    ///
    /// # Errors
    /// A device that fails.
    fn clear(&self) -> Result<(), DeviceError>;

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// A set of elements, wherever it is kept.
#[derive(Debug)]
pub enum ElementSet {
    /// On the host.
    Host(Bitset),
    /// On a device, as [`BitsMut::Device`].
    Device(DeviceBuffer<u64>),
}

impl ElementSet {
    /// Lends the set for reading.
    #[must_use]
    pub fn bits(&self) -> Bits<'_> {
        match self {
            Self::Host(set) => Bits::Host(set),
            Self::Device(buffer) => Bits::Device(buffer.memory()),
        }
    }

    /// Lends the set for writing.
    pub fn lend(&mut self) -> BitsMut<'_> {
        match self {
            Self::Host(set) => BitsMut::Host(set),
            Self::Device(buffer) => BitsMut::Device(buffer.memory()),
        }
    }
}

/// A shared handle to numbers on a device. Clones are handles to the same memory.
pub struct DeviceBuffer<T> {
    shared: Arc<Lockable>,
    element: PhantomData<fn() -> T>,
}

struct Lockable {
    memory: Box<dyn DeviceMemory>,
    access: RwLock<()>,
}

impl<T: Element> DeviceBuffer<T> {
    /// A buffer over memory that a backend made.
    #[must_use]
    pub fn new(memory: Box<dyn DeviceMemory>) -> Self {
        Self { shared: Arc::new(Lockable { memory, access: RwLock::new(()) }), element: PhantomData }
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory().bytes() / size_of::<T>()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &dyn DeviceMemory {
        &*self.shared.memory
    }

    /// DV-1: the guard of a reader.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.shared.access.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// DV-1: the guard of a writer.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.shared.access.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for DeviceBuffer<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), element: PhantomData }
    }
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceBuffer").field(&self.shared.memory).finish()
    }
}

/// The memory of a tensor: a shared handle, wherever the numbers are.
///
/// ```
/// use driftless_device::{Buffer, SharedBuffer};
/// let live: Buffer<u16> = SharedBuffer::new(vec![0; 4]).into();
/// live.write_range(1..3, |words| words.fill(7))?;
/// assert_eq!(live.view()?[..], [0, 7, 7, 0]);
/// # Ok::<(), driftless_device::DeviceError>(())
/// ```
#[derive(Clone, Debug)]
pub enum Buffer<T: Element> {
    /// On the host.
    Host(SharedBuffer<T>),
    /// On a device.
    Device(DeviceBuffer<T>),
}

impl<T: Element> Buffer<T> {
    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(buffer) => buffer.len(),
            Self::Device(buffer) => buffer.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer, if it is on the host.
    #[must_use]
    pub const fn host(&self) -> Option<&SharedBuffer<T>> {
        match self {
            Self::Host(buffer) => Some(buffer),
            Self::Device(_) => None,
        }
    }

    /// Waits for writers to leave, then lends the elements for reading (DV-1).
    #[must_use]
    pub fn lend(&self) -> Lent<'_, T> {
        match self {
            Self::Host(buffer) => Lent::Host(buffer.read()),
            Self::Device(buffer) => Lent::Device(buffer.read(), buffer.memory()),
        }
    }

    /// Waits for everyone to leave, then lends the elements for writing (DV-1).
    #[must_use]
    pub fn lend_mut(&self) -> LentMut<'_, T> {
        match self {
            Self::Host(buffer) => LentMut::Host(buffer.write()),
            Self::Device(buffer) => LentMut::Device(buffer.write(), buffer.memory()),
        }
    }

    /// All elements on the host: lent if they are there, a copy if they are not.
    ///
    /// # Errors
    /// A device that fails.
    pub fn view(&self) -> Result<HostView<'_, T>, DeviceError> {
        match self.lend() {
            Lent::Host(guard) => Ok(HostView::Lent(guard)),
            Lent::Device(_guard, memory) => {
                let mut elements = vec![T::default(); self.len()];
                memory.download(0, bytes_of_mut(&mut elements))?;
                Ok(HostView::Copied(elements))
            }
        }
    }

    /// Replaces all elements.
    ///
    /// # Errors
    /// [`DeviceError::Length`] if there are not as many, or a device that fails.
    pub fn write(&self, elements: &[T]) -> Result<(), DeviceError> {
        if elements.len() != self.len() {
            let (found, expected) = (elements.len() as u64, self.len() as u64);
            return Err(DeviceError::Length { what: "what is written into a buffer", found, expected });
        }
        match self.lend_mut().elements() {
            ElementsMut::Host(to) => to.copy_from_slice(elements),
            ElementsMut::Device(memory) => memory.upload(0, bytes_of(elements))?,
        }
        Ok(())
    }

    /// Replaces the elements of a range by those that `fill` writes, which it finds with any values.
    ///
    /// # Errors
    /// A range beyond the end, or a device that fails.
    pub fn write_range(&self, range: Range<usize>, fill: impl FnOnce(&mut [T])) -> Result<(), DeviceError> {
        if range.end > self.len() || range.start > range.end {
            let (found, expected) = (range.end as u64, self.len() as u64);
            return Err(DeviceError::Length { what: "a range to write", found, expected });
        }
        match self.lend_mut().elements() {
            ElementsMut::Host(to) => fill(&mut to[range]),
            ElementsMut::Device(memory) => {
                let mut elements = vec![T::default(); range.len()];
                fill(&mut elements);
                memory.upload(range.start * size_of::<T>(), bytes_of(&elements))?;
            }
        }
        Ok(())
    }
}

impl<T: Element> From<SharedBuffer<T>> for Buffer<T> {
    fn from(buffer: SharedBuffer<T>) -> Self {
        Self::Host(buffer)
    }
}

impl<T: Element> From<DeviceBuffer<T>> for Buffer<T> {
    fn from(buffer: DeviceBuffer<T>) -> Self {
        Self::Device(buffer)
    }
}

/// The elements of a [`Buffer`], lent for reading: a guard.
pub enum Lent<'a, T: Element> {
    /// Of the host.
    Host(ReadGuard<'a, T>),
    /// Of a device.
    Device(RwLockReadGuard<'a, ()>, &'a dyn DeviceMemory),
}

impl<T: Element> Lent<'_, T> {
    /// The elements, for as long as the guard lives.
    #[must_use]
    pub fn elements(&self) -> Elements<'_, T> {
        match self {
            Self::Host(guard) => Elements::Host(guard),
            Self::Device(_, memory) => Elements::Device(*memory),
        }
    }
}

/// The elements of a [`Buffer`] as the host sees them.
pub enum HostView<'a, T: Element> {
    /// Lent: a guard.
    Lent(ReadGuard<'a, T>),
    /// A copy of what was there.
    Copied(Vec<T>),
}

impl<T: Element> Deref for HostView<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Lent(guard) => guard,
            Self::Copied(elements) => elements,
        }
    }
}

/// The elements of a [`Buffer`], lent for writing: a guard.
pub enum LentMut<'a, T: Element> {
    /// Of the host.
    Host(WriteGuard<'a, T>),
    /// Of a device.
    Device(RwLockWriteGuard<'a, ()>, &'a dyn DeviceMemory),
}

impl<T: Element> LentMut<'_, T> {
    /// The elements, for as long as the guard lives.
    pub fn elements(&mut self) -> ElementsMut<'_, T> {
        match self {
            Self::Host(guard) => ElementsMut::Host(guard),
            Self::Device(_, memory) => ElementsMut::Device(*memory),
        }
    }
}
