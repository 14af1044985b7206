//! What makes a put on a local disk outlive a crash of the machine.
//!
//! `object_store` (fsync on) syncs, in this order: the staged file's data, the folders it makes, and, once the file
//! has its name (by hard link for a create, by rename for an overwrite), the folder of the name. Two things are left:
//! a folder that another process made a moment ago and has not synced, and a file that got its name in a request
//! that failed afterwards. So this module syncs the folders from the name up to the root once more, and it does
//! so as well before something that was found is taken as being there.

use crate::call::Caller;
use crate::classify::classify_io;
use crate::error::StoreError;
use crate::key::Keys;
use object_store::path::Path;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path as FilePath, PathBuf};

/// The root of a stream on a local disk.
#[derive(Clone, Debug)]
pub(crate) struct LocalFolder {
    root: PathBuf,
}

impl LocalFolder {
    pub(crate) const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Syncs the folders above a key, up to the root.
    pub(crate) async fn sync_above(&self, key: &Path, caller: &Caller) -> Result<(), StoreError> {
        let (root, file) = (self.root.clone(), self.file(key));
        aside(key, caller, move || sync_above(&root, &file)).await
    }

    /// Deletes staged blobs of epochs below one, and says how many there were.
    pub(crate) async fn delete_staged(
        &self,
        keys: &Keys,
        epoch_below: u64,
        caller: &Caller,
    ) -> Result<usize, StoreError> {
        let key = keys.blobs();
        let folder = self.file(&key);
        aside(&key, caller, move || delete_staged(&folder, epoch_below)).await
    }

    fn file(&self, key: &Path) -> PathBuf {
        key.parts().fold(self.root.clone(), |path, part| path.join(part.as_ref()))
    }
}

/// Work on the disk, on a thread that may wait, given up at the deadline.
async fn aside<T: Send + 'static>(
    key: &Path,
    caller: &Caller,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let deadline = caller.options.deadline;
    let done = async {
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
        done.map_err(|error| classify_io(key, error, deadline))
    };
    caller.within(key, 0, done).await
}

/// Whether the name is one that `object_store` gives to a file until it is complete.
fn is_staged(name: &str) -> bool {
    let number = name.rsplit_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A live writer stages files in its own epoch's folder only, so those of older epochs belong to nobody (LG-9).
fn delete_staged(blobs: &FilePath, epoch_below: u64) -> io::Result<usize> {
    let is_old = |name: &str| Keys::parse_epoch(name).is_some_and(|epoch| epoch < epoch_below);
    let mut deleted = 0;
    for folder in names(blobs, is_old)? {
        for staged in names(&folder, is_staged)? {
            std::fs::remove_file(staged)?;
            deleted += 1;
        }
    }
    Ok(deleted)
}

/// What a folder has under names of a kind; nothing if there is no such folder.
fn names(folder: &FilePath, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut wanted = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&is_wanted) {
            wanted.push(entry.path());
        }
    }
    Ok(wanted)
}

fn sync_above(root: &FilePath, file: &FilePath) -> io::Result<()> {
    for folder in file.ancestors().skip(1) {
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // Nothing was written there, so there is nothing to keep.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // A mount for reading: whoever writes to it syncs it.
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => {}
            other => other?,
        }
        if folder == root {
            break;
        }
    }
    Ok(())
}
