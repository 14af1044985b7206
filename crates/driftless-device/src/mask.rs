//! What an optimizer marks in its step.

use crate::memory::{bytes_of, bytes_of_mut};
use crate::{Bits, Bitset, Device, DeviceBuffer, DeviceError, DeviceMemory, ElementSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard};

/// One bit per element of a source tensor, which the optimizer sets where a step changes the served bits: it has the
/// old weight and the new one in registers. The runtime clears it when the step is detected. Clones share it.
///
/// ```
/// use driftless_device::{Bitset, StepMask};
/// let mask = StepMask::new(100);
/// mask.host().expect("a mask on the host").insert(3);
/// let mut others = Bitset::new(100);
/// others.insert_all(&[64, 99]);
/// mask.mark(&others)?;
/// assert_eq!(mask.host().expect("a mask on the host").count(), 3);
/// # Ok::<(), driftless_device::DeviceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepMask {
    len: usize,
    bits: MaskBits,
}

#[derive(Clone, Debug)]
enum MaskBits {
    Host(Arc<Mutex<Bitset>>),
    /// Words on a device.
    Device(DeviceBuffer<u64>),
}

impl StepMask {
    /// A mask of `len` elements on the host, none of them marked.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len, bits: MaskBits::Host(Arc::new(Mutex::new(Bitset::new(len)))) }
    }

    /// A mask of `len` elements where `device` works, none of them marked.
    ///
    /// # Errors
    /// A device without so much memory.
    pub fn on(device: &dyn Device, len: usize) -> Result<Self, DeviceError> {
        let bits = match device.empty_set(len)? {
            ElementSet::Host(set) => MaskBits::Host(Arc::new(Mutex::new(set))),
            ElementSet::Device(words) => MaskBits::Device(words),
        };
        Ok(Self { len, bits })
    }

    /// A mask of `len` elements in memory of a device, which its optimizer writes there: 64 elements a word, the lowest
    /// bit first; bits at and above `len` must stay zero.
    ///
    /// # Errors
    /// [`DeviceError::Length`] unless there are as many words as the elements fill.
    pub fn over(words: DeviceBuffer<u64>, len: usize) -> Result<Self, DeviceError> {
        if words.len() != len.div_ceil(64) {
            let (found, expected) = (words.len() as u64, len.div_ceil(64) as u64);
            return Err(DeviceError::Length { what: "the words of a mask", found, expected });
        }
        Ok(Self { len, bits: MaskBits::Device(words) })
    }

    /// How many elements there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none, marked or not.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bits of a mask on the host, for as long as the guard lives.
    #[must_use]
    pub fn host(&self) -> Option<MutexGuard<'_, Bitset>> {
        match &self.bits {
            MaskBits::Host(set) => Some(locked(set)),
            MaskBits::Device(_) => None,
        }
    }

    /// Waits for writers to leave, then lends the bits for reading (DV-1).
    #[must_use]
    pub fn lend(&self) -> LentMask<'_> {
        match &self.bits {
            MaskBits::Host(set) => LentMask::Host(locked(set)),
            MaskBits::Device(words) => LentMask::Device(words.read(), words.memory()),
        }
    }

    /// Marks the elements of a set beside those that are marked: for an optimizer that does not run where the mask is.
    ///
    /// # Errors
    /// [`DeviceError::Length`] for a set of another length, or a device that fails.
    pub fn mark(&self, changed: &Bitset) -> Result<(), DeviceError> {
        if changed.len() != self.len {
            let (found, expected) = (changed.len() as u64, self.len as u64);
            return Err(DeviceError::Length { what: "the elements of a step's marks", found, expected });
        }
        match &self.bits {
            MaskBits::Host(set) => locked(set).insert_bits(0, changed.words()),
            MaskBits::Device(words) => {
                let _alone = words.write();
                let mut marked = vec![0u64; words.len()];
                words.memory().download(0, bytes_of_mut(&mut marked))?;
                marked.iter_mut().zip(changed.words()).for_each(|(word, more)| *word |= more);
                words.memory().upload(0, bytes_of(&marked))?;
            }
        }
        Ok(())
    }

    /// Takes every mark off, where the mask is.
    ///
    /// # Errors
    /// A device that fails.
    pub fn clear(&self) -> Result<(), DeviceError> {
        match &self.bits {
            MaskBits::Host(set) => locked(set).clear(),
            MaskBits::Device(words) => {
                let _alone = words.write();
                words.memory().clear()?;
            }
        }
        Ok(())
    }
}

/// A panic while somebody marks leaves marks, and nothing worse.
fn locked(set: &Mutex<Bitset>) -> MutexGuard<'_, Bitset> {
    set.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bits of a [`StepMask`], lent for reading: a guard.
pub enum LentMask<'a> {
    /// Of the host.
    Host(MutexGuard<'a, Bitset>),
    /// Of a device.
    Device(RwLockReadGuard<'a, ()>, &'a dyn DeviceMemory),
}

impl LentMask<'_> {
    /// The bits, for as long as the guard lives.
    #[must_use]
    pub fn bits(&self) -> Bits<'_> {
        match self {
            Self::Host(guard) => Bits::Host(guard),
            Self::Device(_, memory) => Bits::Device(*memory),
        }
    }
}
