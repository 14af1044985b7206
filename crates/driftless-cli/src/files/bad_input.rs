//! The one error of bad input: where it is, what was found, what was expected, how to fix it.

use std::fmt;
use std::path::{Path, PathBuf};

/// What is wrong with a file, in the words of the person who can fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadInput {
    file: PathBuf,
    /// The tensor or metadata key, if one is to blame rather than the whole file.
    item: Option<String>,
    found: String,
    expected: String,
    fix: String,
}

impl BadInput {
    /// Something wrong with a file as a whole.
    pub(crate) fn file(file: &Path, found: impl Into<String>, expected: impl Into<String>) -> Self {
        let (found, expected) = (found.into(), expected.into());
        Self { file: file.to_owned(), item: None, found, expected, fix: String::new() }
    }

    /// Blames a tensor of the file.
    pub(crate) fn tensor(self, name: &str) -> Self {
        Self { item: Some(format!("tensor `{name}`")), ..self }
    }

    /// Blames a metadata key of the file.
    pub(crate) fn key(self, key: &str) -> Self {
        Self { item: Some(format!("metadata key `{key}`")), ..self }
    }

    /// Says what to do about it.
    pub(crate) fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: fix.into(), ..self }
    }
}

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if let Some(item) = &self.item {
            write!(f, "{item}: ")?;
        }
        write!(f, "found {}, expected {}", self.found, self.expected)?;
        if self.fix.is_empty() {
            return Ok(());
        }
        write!(f, "; {}", self.fix)
    }
}

impl std::error::Error for BadInput {}
