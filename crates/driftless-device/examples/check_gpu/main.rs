//! Is this GPU right, and how fast is it: what `kernels/check_gpu.sh` runs.
//!
//! `check_gpu [--golden DIR] [--elements N] [--sync-elements N] [--rounds N]` compares every kernel with its twin on the
//! CPU, times each by events beside a copy on the device in the same run, and syncs a trainer with an engine on this one
//! GPU. It prints one table; its exit code is 0 if every bit was right.
#![allow(clippy::print_stdout, reason = "a table on stdout is what this program is for")]

mod agree;
mod golden;
mod kernels;
mod sync;
mod work;

use driftless_device::cuda::{CudaDevice, CudaOptions};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// What any step can fail with.
type Checked<T> = Result<T, Box<dyn Error>>;

/// What the command line says.
struct Options {
    golden: Option<PathBuf>,
    elements: usize,
    sync_elements: usize,
    rounds: usize,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Checked<Self> {
        let mut options = Self { golden: None, elements: 256 << 20, sync_elements: 1_000_000_000, rounds: 9 };
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--golden" => options.golden = Some(value.into()),
                "--elements" => options.elements = value.parse()?,
                "--sync-elements" => options.sync_elements = value.parse()?,
                "--rounds" => options.rounds = value.parse()?,
                _ => return Err(format!("{word} is no option").into()),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| check(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(options: &Options) -> Checked<()> {
    let started = Instant::now();
    let gpu = CudaDevice::open(CudaOptions::new(0))?;
    println!("{}; kernels loaded after {:.1} s", gpu.model()?, started.elapsed().as_secs_f64());
    let cases = agree::check(&gpu)?;
    let vectors = options.golden.as_deref().map_or(Ok(0), |folder| golden::check(&gpu, folder))?;
    println!("right: {cases} adversarial cases and {vectors} golden vectors, bit for bit as on the CPU");
    kernels::table(&gpu, options.elements, options.rounds)?;
    drop(gpu);
    sync::table(options.sync_elements)?;
    println!("done after {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}
