//! The kernels as this GPU runs them: compiled for its architecture, from the cache, or from the checked-in PTX.
//!
//! - **GT-4 (a cache is a copy).** A compiled image is named by all that it is made of, appears whole or not at all, and
//!   is made anew if it does not load: so a cache may be deleted, shared or damaged at any time.
#![expect(unsafe_code, reason = "calls of the driver and of its compiler")]

use super::sources::{FILES, HEADERS};
use crate::DeviceError;
use cudarc::driver::result::module;
use cudarc::driver::sys::{CUfunction, CUmodule};
use cudarc::nvrtc::{result as nvrtc, sys};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Modules of all files, and the functions in them.
pub(super) struct Kernels {
    modules: Vec<CUmodule>,
    functions: BTreeMap<&'static str, CUfunction>,
}

impl Kernels {
    /// Loads every kernel into the current context.
    pub(super) fn load(
        device: &str,
        architecture: (i32, i32),
        cache: Option<&Path>,
    ) -> Result<Self, DeviceError> {
        let refused = |cause: String| DeviceError::Kernels { device: device.to_owned(), cause };
        let compiler = Compiler::find(architecture);
        let mut kernels = Self { modules: Vec::new(), functions: BTreeMap::new() };
        for file in &FILES {
            if let Some(compiler) = &compiler {
                let module = compiler.module(file.name, file.source, cache).map_err(refused)?;
                kernels.modules.push(module);
                for kernel in file.kernels {
                    kernels.find(module, kernel.name).map_err(refused)?;
                }
                continue;
            }
            for kernel in file.kernels {
                let module = kernel.ptx().and_then(|ptx| load(&ptx));
                let module =
                    module.map_err(|cause| refused(format!("{cause} (the PTX of {})", kernel.name)))?;
                kernels.modules.push(module);
                kernels.find(module, kernel.name).map_err(refused)?;
            }
        }
        Ok(kernels)
    }

    fn find(&mut self, module: CUmodule, name: &'static str) -> Result<(), String> {
        // SAFETY: the module was just loaded.
        let function = unsafe { module::get_function(module, c_string(name)) };
        self.functions.insert(name, function.map_err(|error| format!("{name}: {error:?}"))?);
        Ok(())
    }

    /// A kernel by its name.
    pub(super) fn function(&self, name: &str) -> Option<CUfunction> {
        self.functions.get(name).copied()
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        for &module in &self.modules {
            // SAFETY: loaded in `load`, and no kernel of it runs: every job waits for its own.
            let _ = unsafe { module::unload(module) };
        }
    }
}

/// Loads an image, which ends with a zero byte.
fn load(image: &[u8]) -> Result<CUmodule, String> {
    debug_assert_eq!(image.last(), Some(&0));
    // SAFETY: the driver reads an image by its own header, or up to the zero byte.
    unsafe { module::load_data(image.as_ptr().cast()) }.map_err(|error| format!("{error:?}"))
}

/// NVRTC, if it is installed.
struct Compiler {
    architecture: String,
    version: (i32, i32),
}

impl Compiler {
    fn find(architecture: (i32, i32)) -> Option<Self> {
        // SAFETY: loads a library by its usual names.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let mut version = (0, 0);
        // SAFETY: the pointers are those of local integers.
        unsafe { sys::nvrtcVersion(&raw mut version.0, &raw mut version.1) }.result().ok()?;
        Some(Self { architecture: format!("sm_{}{}", architecture.0, architecture.1), version })
    }

    fn options(&self) -> Vec<String> {
        let architecture = format!("--gpu-architecture={}", self.architecture);
        ["--std=c++17", "--fmad=false"].map(str::to_owned).into_iter().chain([architecture]).collect()
    }

    /// A file's module: from the cache if it loads from there, else compiled, and then cached.
    fn module(&self, name: &str, source: &str, cache: Option<&Path>) -> Result<CUmodule, String> {
        let cached = cache.map(|folder| folder.join(self.file_name(name, source)));
        if let Some(image) = cached.as_deref().and_then(|path| fs::read(path).ok())
            && let Ok(module) = load(&terminated(image))
        {
            return Ok(module);
        }
        let image = self.compile(name, source)?;
        if let Some(path) = cached {
            // A cache that cannot be written only costs time.
            let _ = write_whole(&path, &image);
        }
        load(&terminated(image)).map_err(|cause| format!("{cause} ({name} for {})", self.architecture))
    }

    /// GT-4: the name says all that an image is made of.
    fn file_name(&self, name: &str, source: &str) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        let texts = HEADERS.iter().flat_map(|(name, text)| [*name, *text]).chain([name, source]);
        let options = self.options();
        for text in texts.chain(options.iter().map(String::as_str)) {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        let (hash, (major, minor)) = (hasher.finalize().to_hex(), self.version);
        format!(
            "{}-{}-nvrtc{major}.{minor}-{:.32}.cubin",
            name.trim_end_matches(".cu"),
            self.architecture,
            hash.as_str()
        )
        .into()
    }

    fn compile(&self, name: &str, source: &str) -> Result<Vec<u8>, String> {
        let program = Program::new(name, source)?;
        // SAFETY: the program lives as long as `program`.
        let compiled = unsafe { nvrtc::compile_program(program.handle, &self.options()) };
        if let Err(error) = compiled {
            return Err(format!(
                "{name} does not compile for {}: {error}\n{}",
                self.architecture,
                program.log()
            ));
        }
        program.cubin().map_err(|error| format!("{name}: {error}"))
    }
}

/// A program of the compiler, with the texts that it refers to.
struct Program {
    handle: sys::nvrtcProgram,
    _texts: Vec<CString>,
}

impl Program {
    fn new(name: &str, source: &str) -> Result<Self, String> {
        let (source, name) = (c_string(source), c_string(name));
        let names: Vec<CString> = HEADERS.iter().map(|(name, _)| c_string(name)).collect();
        let texts: Vec<CString> = HEADERS.iter().map(|(_, text)| c_string(text)).collect();
        let name_pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let text_pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let count = c_int::try_from(HEADERS.len()).unwrap_or(0);
        let mut program = std::ptr::null_mut();
        // SAFETY: all texts end with a zero byte and live as long as the program, which refers to them.
        let made = unsafe {
            sys::nvrtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                count,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        made.result().map_err(|error| error.to_string())?;
        let kept = names.into_iter().chain(texts).chain([source, name]).collect();
        Ok(Self { handle: program, _texts: kept })
    }

    fn log(&self) -> String {
        // SAFETY: the program lives as long as `self`.
        let log = unsafe { nvrtc::get_program_log(self.handle) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, nvrtc::NvrtcError> {
        let mut size = 0;
        // SAFETY: the program was compiled; the pointer is that of a local integer.
        unsafe { sys::nvrtcGetCUBINSize(self.handle, &raw mut size) }.result()?;
        let mut image = vec![0u8; size];
        // SAFETY: as many bytes as the compiler said.
        unsafe { sys::nvrtcGetCUBIN(self.handle, image.as_mut_ptr().cast()) }.result()?;
        Ok(image)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed nowhere else.
        let _ = unsafe { nvrtc::destroy_program(self.handle) };
    }
}

fn terminated(mut image: Vec<u8>) -> Vec<u8> {
    image.push(0);
    image
}

/// A text of this crate, which holds no zero byte.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// GT-4: writes beside the file and renames.
fn write_whole(path: &Path, image: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder)?;
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = fs::File::create(&beside)?;
    let written =
        file.write_all(image).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}
