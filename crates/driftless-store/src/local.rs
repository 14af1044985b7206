//! What makes a put on a local disk outlive a crash of the machine.
//!
//! `object_store` (fsync on) syncs, in this order: the staged file's data, the folders it makes, and, once the file
//! has its name (by hard link for a create, by rename for an overwrite), the folder of the name. Two things are left:
//! a folder that another process made a moment ago and has not synced, and a file that got its name in a request
//! that failed afterwards. So this module syncs the folders from the name up to the root once more, and it does
//! so as well before something that was found is taken as being there.

use crate::classify::classify_io;
use crate::error::StoreError;
use object_store::path::Path;
use std::fs::File;
use std::io::{self, ErrorKind};
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
    pub(crate) async fn sync_above(&self, key: &Path, deadline: Duration) -> Result<(), StoreError> {
        let root = self.root.clone();
        let file = key.parts().fold(root.clone(), |path, part| path.join(part.as_ref()));
        let synced = tokio::task::spawn_blocking(move || sync_above(&root, &file)).await;
        match synced {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(classify_io(key, error, deadline)),
            Err(error) => Err(classify_io(key, io::Error::other(error), deadline)),
        }
    }
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
