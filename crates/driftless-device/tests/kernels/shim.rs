//! The kernels as a library of this machine, built once per state of their sources.

use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Block sizes that every kernel is run with: whole warps, from one to the largest.
pub(crate) const BLOCK_SIZES: [u32; 6] = [32, 64, 128, 256, 512, 1024];

type LaunchFn =
    unsafe extern "C" fn(*const c_char, c_uint, c_uint, c_uint, *mut *mut c_void, c_ulonglong) -> c_int;
type ErrorFn = unsafe extern "C" fn() -> *const c_char;

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    let path = built("library", &["-O2", "-fPIC", "-shared"], &["kernels.cpp", "fibers.cpp"]);
    // SAFETY: the library was just built from this repository; loading it runs no code beyond its static data.
    unsafe { Library::new(&path) }.expect("the library that g++ made loads")
});

/// One launch: how many blocks of how many threads, and the order in which they run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) seed: u64,
}

impl Grid {
    /// A few blocks of this size; the seed also says how many.
    pub(crate) const fn new(threads: u32, seed: u64) -> Self {
        Self { blocks: 1 + (seed % 4) as u32, threads, seed }
    }
}

/// Runs a kernel to its end.
pub(crate) fn launch<Args>(name: &str, grid: Grid, args: &Args) {
    if let Err(error) = try_launch(name, grid, args) {
        panic!("{name} with {grid:?}: {error}");
    }
}

/// Runs a kernel to its end, or to the error that the shim finds.
pub(crate) fn try_launch<Args>(name: &str, grid: Grid, args: &Args) -> Result<(), String> {
    let name = CString::new(name).expect("a name without zeros");
    let mut place = std::ptr::from_ref(args).cast_mut().cast::<c_void>();
    // SAFETY: the symbol has this type in `kernels/shim/kernels.cpp`.
    let launch: Symbol<'_, LaunchFn> =
        unsafe { LIBRARY.get(b"shim_launch\0") }.expect("an entry of the shim");
    // SAFETY: as above.
    let error: Symbol<'_, ErrorFn> =
        unsafe { LIBRARY.get(b"shim_last_error\0") }.expect("an entry of the shim");
    // SAFETY: `args` is the structure of this kernel, whose pointers are valid for all that it may touch.
    let code = unsafe { launch(name.as_ptr(), grid.blocks, grid.threads, 0, &raw mut place, grid.seed) };
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the text lives until the next launch of this thread.
    let text = unsafe { CStr::from_ptr(error()) };
    Err(text.to_string_lossy().into_owned())
}

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels")
}

/// What `g++` makes of some files of `kernels/shim`, kept by the hash of all sources and options.
pub(crate) fn built(what: &str, options: &[&str], files: &[&str]) -> PathBuf {
    let root = kernels();
    let mut hash = blake3::Hasher::new();
    for folder in [root.clone(), root.join("include"), root.join("shim")] {
        let entries = fs::read_dir(folder).expect("the kernels are there");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end != "md")) {
            hash.update(&fs::read(path).unwrap_or_default());
        }
    }
    for word in options.iter().chain(files) {
        hash.update(word.as_bytes());
    }
    let name = format!("kernels-{what}-{}", &hash.finalize().to_hex()[..16]);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !target.exists() {
        compile(&root, options, files, &target);
    }
    target
}

fn compile(root: &Path, options: &[&str], files: &[&str], target: &Path) {
    // To a name of its own first, so that nobody loads half a file.
    let partial = target.with_extension(std::process::id().to_string());
    let mut command = Command::new("g++");
    // Contraction would round twice where a kernel rounds once.
    command.args(["-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", "-DDRIFTLESS_SHIM"]);
    command.arg("-DSHIM_TESTS").args(["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]);
    if cfg!(target_arch = "x86_64") {
        command.arg("-mfma");
    }
    command.args(options).arg("-I").arg(root.join("include")).arg("-I").arg(root.join("shim"));
    command.args(files.iter().map(|file| root.join("shim").join(file))).arg("-o").arg(&partial);
    let output = command.output().expect("g++ 10 or newer is needed to test the kernels: install it");
    assert!(output.status.success(), "g++ failed:\n{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(&partial, target).expect("the library moves to its place");
}
