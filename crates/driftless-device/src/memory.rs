//! Memory that the caller owns, behind guards.
//!
//! - **DV-1 (no torn access).** Whoever reads or writes a buffer through this crate holds a guard, and the guard of a
//!   writer is alone. Memory that somebody else allocated enters by one `unsafe` door, whose contract extends this
//!   promise to the foreign owner.
//!
//! A guard must not be held over an await: it would block every other thread that wants the buffer.
#![expect(unsafe_code, reason = "memory of a trainer or an engine comes as a raw pointer")]

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What a buffer may hold: plain numbers, of which every bit pattern is a value.
pub trait Element: Copy + Default + fmt::Debug + Send + Sync + 'static {}
impl Element for f32 {}
impl Element for u16 {}
impl Element for u32 {}
impl Element for u64 {}

/// The bytes of plain numbers.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: the elements are plain numbers without padding, so their bytes are initialized; a byte has no alignment.
    unsafe { slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of plain numbers, to be written.
pub(crate) fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`, and every bit pattern is a value of an `Element`; the borrow is exclusive.
    unsafe { slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

/// FP32 optimizer state or master weights, one `f32` per element.
pub type StateBuffer = SharedBuffer<f32>;
/// Live served weights as 16-bit words: one per BF16 element, two per FP32 element, low half first.
pub type WordBuffer = SharedBuffer<u16>;

/// A shared handle to one contiguous run of numbers that stays where its owner put it.
///
/// Clones are handles to the same memory.
///
/// ```
/// use driftless_device::WordBuffer;
/// let live = WordBuffer::new(vec![0; 4]);
/// live.clone().write()[2] = 7;
/// assert_eq!(*live.read(), [0, 0, 7, 0]);
/// ```
pub struct SharedBuffer<T: Element> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    len: usize,
    memory: RwLock<Memory<T>>,
}

impl<T: Element> SharedBuffer<T> {
    /// A buffer over memory of this process, which lives until the last handle is gone.
    #[must_use]
    pub fn new(values: Vec<T>) -> Self {
        Self::over(values.len(), Memory::Owned(values))
    }

    /// A buffer of `len` elements over memory that `owner` keeps alive: it is dropped with the last handle.
    ///
    /// # Safety
    /// Until `owner` is dropped, the caller guarantees that
    /// - `ptr` is aligned for `T` and valid for reads and writes of `len` elements, all initialized, in one allocation
    ///   of at most `isize::MAX` bytes, from any thread;
    /// - nobody else writes the memory while a read guard lives, and nobody else reads or writes it while a write
    ///   guard lives. A trainer that steps in place, or an engine that runs a forward pass, must therefore be outside
    ///   the window in which the runtime detects, or applies.
    pub unsafe fn from_raw(ptr: NonNull<T>, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self::over(len, Memory::Raw(RawMemory { ptr, len, _owner: owner }))
    }

    fn over(len: usize, memory: Memory<T>) -> Self {
        Self { shared: Arc::new(Shared { len, memory: RwLock::new(memory) }) }
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether two handles share one memory.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Waits for writers to leave, then lends the elements for reading.
    ///
    /// A writer that panicked leaves no poison behind. The lock promises that nobody else is in the memory, not that
    /// the weights in it make sense: that is what the undo log restores and what the digest proves. A runtime that
    /// refused the buffer for ever could do neither.
    #[must_use]
    pub fn read(&self) -> ReadGuard<'_, T> {
        ReadGuard(self.shared.memory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for everyone to leave, then lends the elements for writing; poison is taken off as in [`Self::read`].
    #[must_use]
    pub fn write(&self) -> WriteGuard<'_, T> {
        WriteGuard(self.shared.memory.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Element> Clone for SharedBuffer<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Element> From<Vec<T>> for SharedBuffer<T> {
    fn from(values: Vec<T>) -> Self {
        Self::new(values)
    }
}

impl<T: Element> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The elements of a [`SharedBuffer`], lent for reading.
pub struct ReadGuard<'a, T: Element>(RwLockReadGuard<'a, Memory<T>>);

impl<T: Element> Deref for ReadGuard<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0.elements()
    }
}

/// The elements of a [`SharedBuffer`], lent for writing.
pub struct WriteGuard<'a, T: Element>(RwLockWriteGuard<'a, Memory<T>>);

impl<T: Element> Deref for WriteGuard<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0.elements()
    }
}

impl<T: Element> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.elements_mut()
    }
}

enum Memory<T> {
    Owned(Vec<T>),
    Raw(RawMemory<T>),
}

impl<T: Element> Memory<T> {
    fn elements(&self) -> &[T] {
        match self {
            Self::Owned(values) => values,
            // SAFETY: `from_raw`'s caller vouches for pointer and length, and for no foreign writer while we read.
            // DV-1: the guard around `self` keeps our own writers out for as long as the slice lives.
            Self::Raw(raw) => unsafe { slice::from_raw_parts(raw.ptr.as_ptr(), raw.len) },
        }
    }

    fn elements_mut(&mut self) -> &mut [T] {
        match self {
            Self::Owned(values) => values,
            // SAFETY: as in `elements`, and DV-1: the write guard around `self` is the only access of ours, while
            // `from_raw`'s caller vouches that no foreign one exists.
            Self::Raw(raw) => unsafe { slice::from_raw_parts_mut(raw.ptr.as_ptr(), raw.len) },
        }
    }
}

struct RawMemory<T> {
    ptr: NonNull<T>,
    len: usize,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory may be used from any thread by the contract of `from_raw`; the owner is `Send`; `T` is `Send`.
unsafe impl<T: Element> Send for RawMemory<T> {}
// SAFETY: shared access only reads plain numbers (`T` is `Sync`), which `from_raw` allows from any thread; the owner
// is `Sync`.
unsafe impl<T: Element> Sync for RawMemory<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dv1_raw_memory_is_shared_and_its_owner_outlives_every_handle() {
        let mut values = Box::new([1.0_f32, 2.0, 3.0]);
        let ptr = NonNull::from(values.as_mut()).cast::<f32>();
        let alive = Arc::new(());
        let weak = Arc::downgrade(&alive);
        // SAFETY: `values` outlives the buffer, is not touched while it lives, and has three elements.
        let buffer = unsafe { StateBuffer::from_raw(ptr, 3, Box::new(alive)) };
        let other = buffer.clone();
        drop(buffer);
        assert!(weak.upgrade().is_some());
        other.write()[1] = -2.0;
        assert_eq!(*other.read(), [1.0, -2.0, 3.0]);
        drop(other);
        assert!(weak.upgrade().is_none());
        assert_eq!(values[1].to_bits(), (-2.0_f32).to_bits());
    }

    #[test]
    fn a_writer_that_panics_poisons_nobody() {
        let buffer = WordBuffer::new(vec![0; 4]);
        let handle = buffer.clone();
        let writer = std::thread::spawn(move || {
            let mut words = handle.write();
            words[0] = 9;
            assert_eq!(words.len(), 5, "the writer dies with the guard in its hands");
        });
        assert!(writer.join().is_err());
        assert_eq!(*buffer.read(), [9, 0, 0, 0]);
        buffer.write()[0] = 0;
        assert_eq!(*buffer.read(), [0; 4]);
    }

    #[test]
    fn handles_know_their_memory() {
        let buffer = WordBuffer::new(vec![0; 2]);
        assert!(buffer.is_same(&buffer.clone()));
        assert!(!buffer.is_same(&WordBuffer::new(vec![0; 2])));
        assert!(!buffer.is_empty());
    }
}
