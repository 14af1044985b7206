//! Sections on their way out of a backend and into it, so that a device makes and reads them itself.

use crate::DeviceError;
use crate::buffer::HOST;
use bytes::Bytes;
use driftless_codec::{FragmentRecord, Section, SectionStart, encode_block16, encode_section};
use driftless_layout::Fragment;
use driftless_types::ChangeSet;
use std::any::Any;
use std::fmt;

/// The changes of a fragment, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packed {
    /// Positions and values, to be encoded.
    Set(ChangeSet),
    /// The body of a `block16` section, which a device made.
    Block16 {
        /// Its changes.
        nnz: u64,
        /// Directory and blocks.
        body: Bytes,
    },
}

impl Packed {
    /// How many of a fragment's `elements` it changes.
    #[must_use]
    pub fn nnz(&self, elements: u64) -> u64 {
        match self {
            Self::Set(changes) => changes.nnz(elements),
            Self::Block16 { nnz, .. } => *nnz,
        }
    }

    /// Appends the section of these changes; gives the record that announces it.
    ///
    /// # Panics
    /// As [`encode_section`] and [`encode_block16`]: these are no changes of such a fragment.
    pub fn encode(&self, start: &SectionStart, out: &mut Vec<u8>) -> FragmentRecord {
        match self {
            Self::Set(changes) => {
                encode_section(start, changes, out);
                FragmentRecord::announcing(start.dtype, start.n, changes, start.new_digest)
            }
            Self::Block16 { nnz, body } => {
                encode_block16(start, *nnz, body, out);
                FragmentRecord::block16(start.n, *nnz, start.new_digest)
            }
        }
    }
}

/// The changes of one section, checked, as a device keeps them.
pub trait DeviceSection: fmt::Debug + Send + Sync + 'static {
    /// The device, such as `cuda:0`.
    fn device(&self) -> &str;

    /// The memory that they take on the device, in bytes.
    fn bytes(&self) -> usize;

    /// The backend's own type.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// A section that arrived, every byte of it checked, where the backend works.
#[derive(Debug)]
pub enum Loaded {
    /// On the host, as it came.
    Host(Section),
    /// On a device, decoded.
    Device(Box<dyn DeviceSection>),
}

impl Loaded {
    /// The section itself.
    ///
    /// # Errors
    /// [`DeviceError::Place`] if it is not on the host.
    pub fn on_host(self) -> Result<Section, DeviceError> {
        match self {
            Self::Host(section) => Ok(section),
            Self::Device(section) => {
                Err(DeviceError::Place { found: section.device().to_owned(), expected: HOST.to_owned() })
            }
        }
    }
}

/// A section, and the fragment of a destination tensor that it goes into.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The fragment, as it lies in the tensor.
    pub fragment: &'a Fragment,
    /// The width of the fragment's parameter.
    pub param_cols: u64,
    /// What arrived for it.
    pub section: Loaded,
}
