//! What the tests of the CUDA backend share: processes that find the stand-in, and what it counted in them.
#![cfg(feature = "cuda")]
#![expect(unsafe_code, reason = "the stand-in is asked through its C functions")]

use anyhow::{Context, Result, ensure};
use driftless_device::cuda::{CudaDevice, CudaOptions};
use driftless_testkit::standin_folder;
use libloading::{Library, Symbol};
use std::env;
use std::ffi::{CString, c_char, c_long};
use std::process::Command;

const CHILD: &str = "DRIFTLESS_CUDA_TEST";

/// Runs `body` in a process of its own, which finds the stand-in and has these variables; `name` is that of the test,
/// with its modules. It fails if the process does, or is ended by a signal.
///
/// # Errors
/// What the process printed.
pub fn on_standin(name: &str, variables: &[(&str, &str)], body: impl FnOnce() -> Result<()>) -> Result<()> {
    let folder = standin_folder().context("the stand-in needs g++")?;
    let path = folder.to_str().context("a plain path")?;
    in_child(name, &[&[("LD_LIBRARY_PATH", path)], variables].concat(), body)
}

/// Runs `body` in a process of its own with these variables, among them none of the library path that it is not given.
///
/// # Errors
/// What the process printed.
pub fn in_child(name: &str, variables: &[(&str, &str)], body: impl FnOnce() -> Result<()>) -> Result<()> {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    let mut command = Command::new(env::current_exe()?);
    command
        .args([name, "--exact", "--nocapture", "--include-ignored"])
        .env_remove("LD_LIBRARY_PATH")
        .env(CHILD, "1");
    let output = command.envs(variables.iter().copied()).output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    ensure!(stdout.contains("1 passed"), "{name} is not the name of the test: {stdout}");
    Ok(())
}

/// The stand-in's first GPU, without a cache.
///
/// # Errors
/// As [`CudaDevice::open`].
pub fn gpu() -> Result<CudaDevice> {
    Ok(CudaDevice::open(CudaOptions { ordinal: 0, cache: None })?)
}

/// The stand-in of this process.
pub struct Standin {
    library: Library,
}

impl Standin {
    /// Finds it.
    ///
    /// # Errors
    /// If it is not on the library path.
    pub fn find() -> Result<Self> {
        // SAFETY: the stand-in's initializers only start empty maps.
        Ok(Self { library: unsafe { Library::new("libcuda.so.1") }? })
    }

    /// Asks for a fault: `launch`, `alloc` or `vanish`, after so many calls; `code` is that of a launch, 0 for the usual.
    ///
    /// # Errors
    /// If it has no such function.
    pub fn inject(&self, what: &str, after: u32, code: u32) -> Result<()> {
        // SAFETY: the function's type is that of its definition.
        let inject: Symbol<'_, unsafe extern "C" fn(*const c_char, c_long, c_long)> =
            unsafe { self.library.get(b"standin_inject\0") }?;
        let what = CString::new(what)?;
        // SAFETY: a text that ends with a zero byte, and two numbers.
        unsafe { inject(what.as_ptr(), c_long::from(after), c_long::from(code)) };
        Ok(())
    }

    /// Bytes of device memory that are allocated now.
    ///
    /// # Errors
    /// If it has no such function.
    pub fn live_bytes(&self) -> Result<usize> {
        self.count(b"standin_live_bytes\0")
    }

    /// The most that were, since the peak was reset.
    ///
    /// # Errors
    /// If it has no such function.
    pub fn peak_bytes(&self) -> Result<usize> {
        self.count(b"standin_peak_bytes\0")
    }

    /// Bytes of host memory that are pinned now.
    ///
    /// # Errors
    /// If it has no such function.
    pub fn pinned_bytes(&self) -> Result<usize> {
        self.count(b"standin_pinned_bytes\0")
    }

    /// How many kernels were launched.
    ///
    /// # Errors
    /// If it has no such function.
    pub fn launches(&self) -> Result<usize> {
        self.count(b"standin_launches\0")
    }

    /// The peak is what is allocated now.
    ///
    /// # Errors
    /// If it has no such function.
    pub fn reset_peak(&self) -> Result<()> {
        // SAFETY: the function's type is that of its definition.
        let reset: Symbol<'_, unsafe extern "C" fn()> = unsafe { self.library.get(b"standin_reset_peak\0") }?;
        // SAFETY: it takes nothing.
        unsafe { reset() };
        Ok(())
    }

    fn count(&self, name: &[u8]) -> Result<usize> {
        // SAFETY: the functions' type is that of their definitions; a long is as wide as a size here.
        let count: Symbol<'_, unsafe extern "C" fn() -> usize> = unsafe { self.library.get(name) }?;
        // SAFETY: it takes nothing.
        Ok(unsafe { count() })
    }
}
