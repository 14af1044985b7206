//! What a reader of a log writes down: where it is, and what it is about to overwrite.

use super::memo;
use super::reading::FollowBinding;
use driftless_proto::log::{Fault, Memory};
use driftless_types::Version;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use tracing::{error, warn};

/// How the names of files begin that have not got their place yet.
const UNPLACED: &str = ".driftless-";

/// Why a reader's state is not kept, or cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeepError {
    /// The disk failed.
    #[error("{}: it cannot be read or written", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What is in the file is no state of a reader.
    #[error("{}: {reason}; remove it to begin again from an anchor", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl KeepError {
    /// What it means to the reader's machine.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Malformed { .. } => Fault::Denied,
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    Fault::Full
                }
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Fault::Denied,
                _ => Fault::Unavailable,
            },
        }
    }
}

/// Where a reader keeps what must survive it. Calls block; they are made on blocking threads.
pub trait Keep: fmt::Debug + Send + Sync {
    /// What was kept last.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of ours.
    fn load(&self) -> Result<Memory, KeepError>;

    /// Keeps where the reader is, in place of what was kept before, all or nothing. LG-6: durable once it returns.
    ///
    /// # Errors
    /// A disk that fails.
    fn save(&self, memory: &Memory) -> Result<(), KeepError>;

    /// The live weights are those of `version`, proven by digest. Who keeps weights on a disk writes them now: durable
    /// once it returns.
    ///
    /// # Errors
    /// A disk that fails.
    fn weights(&self, version: Version) -> Result<(), KeepError>;
}

/// For weights that live in this process alone: they and this end together.
#[derive(Debug, Default)]
pub struct InProcess {
    memory: Mutex<Memory>,
}

impl Keep for InProcess {
    fn load(&self) -> Result<Memory, KeepError> {
        Ok(*self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn save(&self, memory: &Memory) -> Result<(), KeepError> {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = *memory;
        Ok(())
    }

    fn weights(&self, _version: Version) -> Result<(), KeepError> {
        Ok(())
    }
}

/// A file with a reader's state, such as `state.json`.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The state in this file, which need not exist yet.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// What the file holds; a reader's first state if there is no file.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of ours.
    pub fn load(&self) -> Result<Memory, KeepError> {
        match std::fs::read(&self.path) {
            Ok(text) => {
                memo::parse(&text).map_err(|reason| KeepError::Malformed { path: self.path.clone(), reason })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Memory::default()),
            Err(source) => Err(KeepError::Io { path: self.path.clone(), source }),
        }
    }

    /// Replaces the file; durable once it returns.
    ///
    /// # Errors
    /// A disk that fails.
    pub fn save(&self, memory: &Memory) -> Result<(), KeepError> {
        replace(&self.path, |file| file.write_all(&memo::text(memory)))
    }
}

/// [`write_whole`] for what a reader keeps.
///
/// # Errors
/// [`KeepError::Io`] naming the file; it is as it was then.
pub fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), KeepError> {
    write_whole(path, write).map_err(|source| KeepError::Io { path: path.to_owned(), source })
}

/// Replaces a file as a whole: whoever reads it, now or after a crash, finds the old one or the new one.
///
/// # Errors
/// What the system says; the file is as it was then.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let mut file = tempfile::Builder::new().prefix(UNPLACED).tempfile_in(folder)?;
    readable_by_all(file.as_file())?;
    let mut buffered = io::BufWriter::with_capacity(1 << 20, file.as_file_mut());
    write(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    // LG-6: the bytes before the name, and the name before anything that builds on it.
    file.as_file().sync_all()?;
    file.persist(path).map_err(|refused| refused.error)?;
    std::fs::File::open(folder)?.sync_all()
}

/// Removes what [`replace`] had not finished in a folder when its process was killed: such a file may be as large as
/// the weights. Nobody else may be replacing files there.
///
/// # Errors
/// [`KeepError::Io`] naming the folder.
pub fn remove_unfinished(folder: &Path) -> Result<(), KeepError> {
    let run = || {
        for found in std::fs::read_dir(folder)? {
            let found = found?;
            if found.file_name().as_encoded_bytes().starts_with(UNPLACED.as_bytes()) {
                std::fs::remove_file(found.path())?;
            }
        }
        Ok(())
    };
    run().map_err(|source| KeepError::Io { path: folder.to_owned(), source })
}

/// Runs a blocking call of what keeps a reader's state. LG-6: one at a time, and none for an actor that has died, so
/// that nothing of its own comes after what its successor keeps.
pub(super) async fn keeping<T: Send + 'static>(
    binding: &FollowBinding,
    cancel: &Arc<AtomicBool>,
    run: impl FnOnce(&dyn Keep) -> Result<T, KeepError> + Send + 'static,
) -> Result<T, Fault> {
    let (keep, cancel, token) = (Arc::clone(&binding.keep), Arc::clone(cancel), binding.keeping().await);
    let kept = tokio::task::spawn_blocking(move || {
        let kept = (!cancel.load(Ordering::Acquire)).then(|| run(&*keep));
        drop(token);
        kept
    });
    match kept.await {
        Ok(Some(kept)) => kept.map_err(|error| {
            warn!(%error, "what a reader keeps was not written or read");
            error.fault()
        }),
        Ok(None) => Err(Fault::Unavailable),
        Err(panicked) => {
            error!(%panicked, "keeping a reader's state failed");
            Err(Fault::Unavailable)
        }
    }
}

/// Temporary files are private; weights and their state are ordinary files.
#[cfg(unix)]
fn readable_by_all(file: &std::fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable_by_all(_file: &std::fs::File) -> io::Result<()> {
    Ok(())
}
