//! Golden folders, copies of them that a test may damage, and runs of the program.

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder of golden vectors in the source tree.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// How a run of the program ended.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the program to its end.
pub(crate) fn driftless(args: &[&str]) -> Run {
    run_with(&[], args)
}

/// The same with these variables in its environment.
pub(crate) fn run_with(variables: &[(&str, &str)], args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftless"));
    let output = command.args(args).envs(variables.iter().copied()).output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program prints UTF-8");
    let code = output.status.code().expect("no signal ends the program");
    Run { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Run {
    /// Standard output as JSON.
    pub(crate) fn report(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("standard output carries JSON and nothing else")
    }

    /// The one line that says why the run failed.
    pub(crate) fn error(&self) -> &str {
        let mut errors = self.stderr.lines().filter(|line| line.starts_with("error: "));
        let error = errors.next().unwrap_or_default();
        assert_eq!(errors.next(), None, "one error, not several: {}", self.stderr);
        error
    }
}

/// Runs `sync` on a folder with a report on standard output.
pub(crate) fn sync(dir: &Path, layouts: &[&str]) -> Run {
    let dir = dir.to_str().expect("test folders have plain names");
    driftless(&[&["sync", dir, "--json", "-"], layouts].concat())
}

/// A copy of a golden folder's first step, to be damaged.
pub(crate) struct Copied {
    folder: TempDir,
}

impl Copied {
    /// The files that one sync from step 6 to step 7 needs.
    pub(crate) fn of(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for file in ["config.json", POLICY_6, POLICY_7, TRAINER_7] {
            fs::copy(golden(name).join(file), folder.path().join(file)).expect("a golden file");
        }
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Names and sizes of all files: what a run that writes nothing leaves as it was.
    pub(crate) fn listing(&self) -> BTreeMap<PathBuf, u64> {
        let entries =
            fs::read_dir(self.path()).expect("the folder is there").map(|entry| entry.expect("an entry"));
        entries.map(|entry| (entry.path(), entry.metadata().expect("a file").len())).collect()
    }

    /// Changes the text of a file.
    pub(crate) fn edit_text(&self, file: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.file(file)).expect("a text file");
        assert!(text.contains(from), "{from} is not in {file}");
        fs::write(self.file(file), text.replace(from, to)).expect("a writable file");
    }

    /// Changes the tensors and the metadata of a file.
    pub(crate) fn edit(&self, file: &str, change: impl FnOnce(&mut Tensors)) {
        let path = self.file(file);
        let mut tensors = Tensors::read(&path);
        change(&mut tensors);
        tensors.write(&path);
    }
}

pub(crate) const POLICY_6: &str = "policy-step-0006.safetensors";
pub(crate) const POLICY_7: &str = "policy-step-0007.safetensors";
pub(crate) const TRAINER_7: &str = "trainer-step-0007.safetensors";

/// A safetensors file in memory.
pub(crate) struct Tensors {
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) metadata: HashMap<String, String>,
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensors {
    pub(crate) fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("a readable file");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors header");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensor = |view: TensorView<'_>| Tensor {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        let tensors = file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect();
        Self { tensors, metadata: header.metadata().clone().unwrap_or_default() }
    }

    pub(crate) fn write(&self, path: &Path) {
        let views = self.tensors.iter().map(|(name, tensor)| {
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
            (name, view.expect("bytes that fit the shape"))
        });
        serialize_to_file(views, Some(self.metadata.clone()), path).expect("a writable file");
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.get_mut(name).expect("a tensor of the golden policy")
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) {
        self.metadata.insert(key.to_owned(), value.to_owned());
    }
}

impl Tensor {
    /// Replaces one element's little-endian bytes.
    pub(crate) fn put<const N: usize>(&mut self, element: usize, bytes: [u8; N]) {
        self.bytes[element * N..(element + 1) * N].copy_from_slice(&bytes);
    }
}
