//! What a pass listed, where the backend keeps it.

use crate::buffer::HOST;
use crate::{Changes, Classes, DeviceError};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Changes that a device keeps: they leave it when they are remapped, and never before.
pub trait DeviceChanges: fmt::Debug + Send + Sync + 'static {
    /// The device, such as `cuda:0`.
    fn device(&self) -> &str;

    /// How many there are.
    fn count(&self) -> usize;

    /// Whether the device knows how far each has moved.
    fn classes(&self) -> Classes;

    /// The memory that they take on the device, in bytes.
    fn bytes(&self) -> usize;

    /// Copies them to the host.
    ///
    /// # Errors
    /// A device that fails.
    fn to_host(&self) -> Result<Changes, DeviceError>;

    /// The backend's own type.
    fn as_any(&self) -> &dyn Any;
}

/// What a pass listed, where the backend keeps it.
#[derive(Clone, Debug)]
pub enum ChangeList {
    /// On the host.
    Host(Changes),
    /// On a device.
    Device(Arc<dyn DeviceChanges>),
}

impl ChangeList {
    /// How many changes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Host(changes) => changes.indices.len(),
            Self::Device(changes) => changes.count(),
        }
    }

    /// Whether it says how far each has moved.
    #[must_use]
    pub fn classes(&self) -> Classes {
        match self {
            Self::Host(Changes { classes: None, .. }) => Classes::LeftOut,
            Self::Host(_) => Classes::Listed,
            Self::Device(changes) => changes.classes(),
        }
    }

    /// The list itself.
    ///
    /// # Errors
    /// [`DeviceError::Place`] if it is not on the host.
    pub fn on_host(&self) -> Result<&Changes, DeviceError> {
        match self {
            Self::Host(changes) => Ok(changes),
            Self::Device(changes) => {
                Err(DeviceError::Place { found: changes.device().to_owned(), expected: HOST.to_owned() })
            }
        }
    }

    /// A copy on the host.
    ///
    /// # Errors
    /// A device that fails.
    pub fn to_host(&self) -> Result<Changes, DeviceError> {
        match self {
            Self::Host(changes) => Ok(changes.clone()),
            Self::Device(changes) => changes.to_host(),
        }
    }
}

impl Default for ChangeList {
    fn default() -> Self {
        Self::Host(Changes::default())
    }
}

impl From<Changes> for ChangeList {
    fn from(changes: Changes) -> Self {
        Self::Host(changes)
    }
}

/// Lists are equal if they hold the same changes on the host, or are one list of a device.
impl PartialEq for ChangeList {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Host(a), Self::Host(b)) => a == b,
            (Self::Device(a), Self::Device(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}
