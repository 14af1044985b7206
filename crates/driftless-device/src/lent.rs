//! What a backend is lent for the time of one call.

use crate::buffer::HOST;
use crate::{Bitset, DeviceError, DeviceMemory, Element};

/// Numbers that are lent for reading.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a, T> {
    /// On the host.
    Host(&'a [T]),
    /// On a device.
    Device(&'a dyn DeviceMemory),
}

impl<'a, T: Element> Elements<'a, T> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(elements) => elements.len(),
            Self::Device(memory) => memory.bytes() / size_of::<T>(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers themselves.
    ///
    /// # Errors
    /// [`DeviceError::Place`] if they are not on the host.
    pub fn on_host(self) -> Result<&'a [T], DeviceError> {
        match self {
            Self::Host(elements) => Ok(elements),
            Self::Device(memory) => Err(not_on_host(memory)),
        }
    }
}

impl<'a, T> From<&'a [T]> for Elements<'a, T> {
    fn from(elements: &'a [T]) -> Self {
        Self::Host(elements)
    }
}

impl<'a, T> From<&'a Vec<T>> for Elements<'a, T> {
    fn from(elements: &'a Vec<T>) -> Self {
        Self::Host(elements)
    }
}

/// Numbers that are lent for writing.
#[derive(Debug)]
pub enum ElementsMut<'a, T> {
    /// On the host.
    Host(&'a mut [T]),
    /// On a device.
    Device(&'a dyn DeviceMemory),
}

impl<'a, T: Element> ElementsMut<'a, T> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(elements) => elements.len(),
            Self::Device(memory) => memory.bytes() / size_of::<T>(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers themselves.
    ///
    /// # Errors
    /// [`DeviceError::Place`] if they are not on the host.
    pub fn on_host(self) -> Result<&'a mut [T], DeviceError> {
        match self {
            Self::Host(elements) => Ok(elements),
            Self::Device(memory) => Err(not_on_host(memory)),
        }
    }
}

impl<'a, T> From<&'a mut [T]> for ElementsMut<'a, T> {
    fn from(elements: &'a mut [T]) -> Self {
        Self::Host(elements)
    }
}

impl<'a, T> From<&'a mut Vec<T>> for ElementsMut<'a, T> {
    fn from(elements: &'a mut Vec<T>) -> Self {
        Self::Host(elements)
    }
}

/// A set of elements that is lent for reading: see [`Bitset`].
#[derive(Clone, Copy, Debug)]
pub enum Bits<'a> {
    /// On the host.
    Host(&'a Bitset),
    /// On a device, as [`BitsMut::Device`].
    Device(&'a dyn DeviceMemory),
}

impl<'a> Bits<'a> {
    /// Whether there is one bit for each of `elements` elements, and no more than a word needs.
    #[must_use]
    pub fn fits(&self, elements: usize) -> bool {
        match self {
            Self::Host(set) => set.len() == elements,
            Self::Device(memory) => memory.bytes() == elements.div_ceil(64) * 8,
        }
    }

    /// The set itself.
    ///
    /// # Errors
    /// [`DeviceError::Place`] if it is not on the host.
    pub fn on_host(self) -> Result<&'a Bitset, DeviceError> {
        match self {
            Self::Host(set) => Ok(set),
            Self::Device(memory) => Err(not_on_host(memory)),
        }
    }
}

impl<'a> From<&'a Bitset> for Bits<'a> {
    fn from(set: &'a Bitset) -> Self {
        Self::Host(set)
    }
}

/// A set of elements that is lent for writing: see [`Bitset`].
#[derive(Debug)]
pub enum BitsMut<'a> {
    /// On the host.
    Host(&'a mut Bitset),
    /// On a device: 64 elements a word, the lowest bit first, as many words as they fill.
    Device(&'a dyn DeviceMemory),
}

impl BitsMut<'_> {
    /// The same set, lent for reading.
    #[must_use]
    pub fn bits(&self) -> Bits<'_> {
        match self {
            Self::Host(set) => Bits::Host(set),
            Self::Device(memory) => Bits::Device(*memory),
        }
    }
}

impl<'a> BitsMut<'a> {
    /// The set itself.
    ///
    /// # Errors
    /// [`DeviceError::Place`] if it is not on the host.
    pub fn on_host(self) -> Result<&'a mut Bitset, DeviceError> {
        match self {
            Self::Host(set) => Ok(set),
            Self::Device(memory) => Err(not_on_host(memory)),
        }
    }
}

impl<'a> From<&'a mut Bitset> for BitsMut<'a> {
    fn from(set: &'a mut Bitset) -> Self {
        Self::Host(set)
    }
}

pub(crate) fn not_on_host(memory: &dyn DeviceMemory) -> DeviceError {
    DeviceError::Place { found: memory.device().to_owned(), expected: HOST.to_owned() }
}
