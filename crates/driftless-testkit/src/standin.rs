//! A stand-in for the NVIDIA driver, for programs that are tested on machines without a GPU.
//!
//! It is a `libcuda.so.1` made by `g++` of `tests/cuda/standin` and of the kernels' host shim: a process that finds it on
//! its library path has a GPU, whose kernels run on the CPU, and whose faults are asked for by the environment.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The folder that holds the stand-in, to be put on `LD_LIBRARY_PATH`; it is built if its sources have changed.
///
/// # Errors
/// A compiler that is missing, or that refuses the sources.
pub fn standin_folder() -> io::Result<PathBuf> {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _alone = BUILDING.lock();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let mut hasher = DefaultHasher::new();
    for folder in ["kernels", "kernels/include", "kernels/shim", "tests/cuda/standin"] {
        let entries = fs::read_dir(root.join(folder))?;
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind != "md")) {
            fs::read(file)?.hash(&mut hasher);
        }
    }
    let folder = products()?.join(format!("cuda-standin-{:016x}", hasher.finish()));
    if !folder.exists() {
        build(&root, &folder)?;
    }
    Ok(folder)
}

/// Beside the test that runs.
fn products() -> io::Result<PathBuf> {
    let exe = env::current_exe()?;
    let deps = exe.parent().ok_or(io::ErrorKind::NotFound)?;
    Ok(deps.to_owned())
}

fn build(root: &Path, folder: &Path) -> io::Result<()> {
    // Into a folder of its own first, so that nobody loads half a file.
    let partial = folder.with_extension(std::process::id().to_string());
    fs::create_dir_all(&partial)?;
    let mut command = Command::new("g++");
    // Contraction would round twice where a kernel rounds once.
    command.args([
        "-std=c++17",
        "-O2",
        "-ffp-contract=off",
        "-fno-strict-aliasing",
        "-fPIC",
        "-shared",
        "-pthread",
    ]);
    command.args(["-Wl,-soname,libcuda.so.1", "-DDRIFTLESS_SHIM", "-Wno-unknown-pragmas"]);
    if cfg!(target_arch = "x86_64") {
        command.arg("-mfma");
    }
    for include in ["kernels/include", "kernels/shim"] {
        command.arg("-I").arg(root.join(include));
    }
    for source in ["kernels/shim/kernels.cpp", "kernels/shim/fibers.cpp", "tests/cuda/standin/libcuda.cpp"] {
        command.arg(root.join(source));
    }
    let output = command.arg("-o").arg(partial.join("libcuda.so.1")).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    fs::rename(&partial, folder).or_else(|error| if folder.exists() { Ok(()) } else { Err(error) })
}
