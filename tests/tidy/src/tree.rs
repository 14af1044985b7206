//! The files of the repository, in memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tracked files by their path from the root, with `/` between its parts.
pub(crate) struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    /// The repository that this test belongs to: what git tracks, or without git whatever lies there.
    pub(crate) fn of_this_repository() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/tidy has a root");
        let paths = tracked(root).unwrap_or_else(|| lying(root));
        let read = |path: String| fs::read(root.join(&path)).ok().map(|bytes| (path, bytes));
        let files: BTreeMap<_, _> = paths.into_iter().filter_map(read).collect();
        assert!(files.contains_key("Cargo.toml"), "{} is the root of the workspace", root.display());
        Self { files }
    }

    /// A tree of these files, for tests of the checks.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let owned = |&(path, text): &(&str, &str)| (path.to_owned(), text.as_bytes().to_vec());
        Self { files: files.iter().map(owned).collect() }
    }

    /// Paths and sizes of all files.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.files.iter().map(|(path, bytes)| (path.as_str(), bytes.len()))
    }

    /// All files that are text, with their paths.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, bytes)| Some((path.as_str(), str::from_utf8(bytes).ok()?)))
    }

    /// The text files whose path ends like this.
    pub(crate) fn ending(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| path.ends_with(end))
    }

    /// Whether there is such a file.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }
}

/// The package that a file belongs to, such as `crates/driftless-types`; the path's first part if it is elsewhere.
pub(crate) fn package(path: &str) -> &str {
    let depth =
        if ["crates/", "tests/", "examples/"].iter().any(|top| path.starts_with(top)) { 2 } else { 1 };
    let end = path.match_indices('/').nth(depth - 1).map_or(path.len(), |(at, _)| at);
    &path[..end]
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let listed = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().ok()?;
    let names = String::from_utf8(listed.stdout).ok()?;
    let paths: Vec<_> = names.split_terminator('\0').map(str::to_owned).collect();
    // A folder that is no checkout, or a git that will not read it, lists nothing.
    (listed.status.success() && !paths.is_empty()).then_some(paths)
}

fn lying(root: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).expect("the folder can be listed").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            match entry.file_type() {
                Ok(kind) if kind.is_file() => paths.push(path.to_string_lossy().replace('\\', "/")),
                Ok(kind) if kind.is_dir() && name != ".git" && !name.starts_with("target") => {
                    folders.push(path)
                }
                _ => (),
            }
        }
    }
    paths
}

#[test]
fn packages_are_named_by_their_folder() {
    assert_eq!(package("crates/driftless-types/src/lib.rs"), "crates/driftless-types");
    assert_eq!(package("tests/tidy/src/tree.rs"), "tests/tidy");
    assert_eq!(package("Cargo.toml"), "Cargo.toml");
    assert_eq!(package("config/a.toml"), "config");
}

#[test]
fn git_and_the_folder_agree_on_this_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(lying(root).contains(&"src/tree.rs".to_owned()));
    assert!(Tree::of_this_repository().has("tests/tidy/src/tree.rs"));
}
