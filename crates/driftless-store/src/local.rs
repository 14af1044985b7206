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
use crate::stream::length;
use bytes::Bytes;
use object_store::path::Path;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

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

/// Reads a file to its end, or to the first byte that is too many.
pub(crate) async fn read(
    key: &Path,
    file: File,
    expected: u64,
    limit: u64,
    deadline: Duration,
) -> Result<Bytes, StoreError> {
    let read = move || {
        let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map(|_| Bytes::from(bytes))
    };
    let bytes = tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    let bytes = bytes.map_err(|error| classify_io(key, error, deadline))?;
    let found = length(&bytes);
    if found > limit {
        return Err(StoreError::TooLarge { key: key.to_string(), found, limit });
    }
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    /// A file may grow or shrink between its description and its reading.
    #[tokio::test]
    async fn a_file_is_read_no_further_than_its_limit() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[7; 100]).expect("it is written");
        let key = Path::from("key");
        for (limit, is_read) in [(99, false), (100, true), (u64::MAX, true)] {
            file.rewind().expect("a file has a beginning");
            let again = file.try_clone().expect("a second handle");
            let read = read(&key, again, 50, limit, Duration::from_secs(1)).await;
            assert_eq!(read.is_ok_and(|bytes| bytes == vec![7; 100]), is_read, "limit {limit}");
        }
    }
}
