//! What ends the program other than success, and its exit code.

use crate::files::BadInput;
use driftless::{DeviceError, Place};
use driftless_layout::LayoutError;
use std::error::Error;
use std::process::ExitCode;

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A file is not what it should be.
    #[error(transparent)]
    BadInput(#[from] BadInput),
    /// The config, a layout, or the two together cannot be planned.
    #[error("{place}")]
    Layout {
        /// The file and the layouts.
        place: String,
        /// What does not fit.
        source: LayoutError,
    },
    /// Options that do not go together.
    #[error("{0}")]
    Usage(String),
    /// The device that was asked for is not there.
    #[error("--device {device}")]
    Device {
        /// The device.
        device: Place,
        /// Why.
        source: DeviceError,
    },
    /// A stream cannot be opened, or is not what it should be.
    #[error("{place}")]
    Stream {
        /// Its address.
        place: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A publisher or a reader has stopped for good before it reached what it was to reach.
    #[error("{place}: stopped")]
    Ended {
        /// The stream's address.
        place: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A stream does not hold what its entries say.
    #[error("not proven: {0}")]
    Damaged(String),
    /// A file could not be written.
    #[error("{path}: not written")]
    Write {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The runtime could not start, or refused the memory it was given.
    #[error("the sync could not run")]
    Runtime(#[source] Box<dyn Error + Send + Sync>),
    /// Some receiver is not identical at some version; the report says which.
    #[error("not identical: {0}")]
    NotIdentical(String),
    /// The certified rule left out a changed element; the lines above say which.
    #[error("missed: {0}")]
    Missed(String),
    /// The user stopped the program.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// 1: not identical or not certified, 2: bad input, 130: interrupted.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::NotIdentical(_)
            | Self::Missed(_)
            | Self::Damaged(_)
            | Self::Runtime(_)
            | Self::Ended { .. } => 1,
            Self::BadInput(_)
            | Self::Layout { .. }
            | Self::Usage(_)
            | Self::Device { .. }
            | Self::Stream { .. }
            | Self::Write { .. } => 2,
            Self::Interrupted => 130,
        })
    }

    /// The failure and its causes in one line.
    pub(crate) fn line(&self) -> String {
        with_causes(self)
    }
}

/// An error and its causes in one line.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if !line.ends_with(&error.to_string()) {
            line = format!("{line}: {error}");
        }
        cause = error.source();
    }
    line
}
