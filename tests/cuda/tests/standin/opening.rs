//! What can be wrong with a machine, as typed errors.

use anyhow::{Context as _, Result, ensure};
use driftless_cuda_tests::{Failure, Standin, gpu, in_child, on_standin};
use driftless_device::cuda::{CudaDevice, CudaOptions, Driver, probe};
use driftless_device::{Device as _, DeviceError, Place};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

fn refused(ordinal: u32) -> Option<DeviceError> {
    CudaDevice::open(CudaOptions { ordinal, cache: None }).err()
}

#[test]
fn a_machine_without_a_driver_says_so() -> Result<()> {
    in_child("opening::a_machine_without_a_driver_says_so", &[], || {
        ensure!(probe() == Err(DeviceError::NoDriver { library: "libcuda.so.1" }));
        ensure!(matches!(Place::Cuda(0).open().err(), Some(DeviceError::NoDriver { .. })));
        Ok(())
    })
}

#[test]
fn an_old_driver_is_refused() -> Result<()> {
    let old = [("STANDIN_DRIVER_VERSION", "12080")];
    on_standin("opening::an_old_driver_is_refused", &old, || {
        ensure!(refused(0) == Some(DeviceError::OldDriver { found: 12_080, expected: 13_000 }));
        Ok(())
    })
}

#[test]
fn a_device_that_is_not_there_is_refused() -> Result<()> {
    on_standin("opening::a_device_that_is_not_there_is_refused", &[("STANDIN_DEVICES", "1")], || {
        ensure!(probe() == Ok(Driver { version: 13_000, devices: 1 }));
        ensure!(refused(1) == Some(DeviceError::NoDevice { device: "cuda:1".into(), count: 1 }));
        ensure!(refused(0).is_none());
        Ok(())
    })
}

#[test]
fn a_driver_without_devices_is_refused() -> Result<()> {
    on_standin("opening::a_driver_without_devices_is_refused", &[("STANDIN_DEVICES", "0")], || {
        ensure!(refused(0) == Some(DeviceError::NoDevice { device: "cuda:0".into(), count: 0 }));
        Ok(())
    })
}

#[test]
fn an_old_architecture_is_refused() -> Result<()> {
    on_standin("opening::an_old_architecture_is_refused", &[("STANDIN_CAPABILITY", "75")], || {
        let found = "sm_75".to_owned();
        let expected = DeviceError::Architecture { device: "cuda:0".into(), found, expected: "sm_80" };
        ensure!(refused(0) == Some(expected));
        Ok(())
    })
}

#[test]
fn too_little_memory_is_refused_with_the_numbers() -> Result<()> {
    let small = [("STANDIN_MEMORY_BYTES", "1048576")];
    on_standin("opening::too_little_memory_is_refused_with_the_numbers", &small, || {
        let gpu = gpu()?;
        let held = gpu.zeros(100_000)?;
        let refused = gpu.zeros(200_000).err();
        let wanted = 800_000_u64.next_multiple_of(256);
        let free = 1_048_576 - 400_000_u64.next_multiple_of(256);
        let expected = DeviceError::OutOfMemory { device: "cuda:0".into(), wanted, free, total: 1_048_576 };
        ensure!(refused == Some(expected), "{refused:?}");
        drop(held);
        // What nobody holds is freed before the next allocation.
        ensure!(gpu.zeros(200_000)?.len() == 200_000);
        Ok(())
    })
}

#[test]
fn gt3_memory_that_is_dropped_is_given_back() -> Result<()> {
    on_standin("opening::gt3_memory_that_is_dropped_is_given_back", &[], || {
        let (gpu, standin) = (gpu()?, Standin::find()?);
        let before = gpu.memory_use().live_bytes;
        let buffers: Vec<_> = (1..50).map(|k| gpu.zeros(1000 * k)).collect::<Result<_, _>>()?;
        ensure!(gpu.memory_use().live_bytes > before + 4_000_000);
        ensure!(gpu.memory_use().live_bytes == standin.live_bytes()?);
        let view = buffers[3].view()?.to_vec();
        ensure!(view == vec![0.0; 4000]);
        drop(buffers);
        drop(gpu.zeros(1)?);
        drop(gpu.zeros(1)?);
        ensure!(standin.live_bytes()? <= before + 512);
        ensure!(standin.pinned_bytes()? == 16 << 20, "two pinned buffers, whatever is copied");
        Ok(())
    })
}

/// An engine that waits for its next version, or a trainer in its step, calls nothing: the undo log must not stay.
#[test]
fn gt3_memory_that_is_dropped_is_given_back_without_a_further_call() -> Result<()> {
    on_standin("opening::gt3_memory_that_is_dropped_is_given_back_without_a_further_call", &[], || {
        let (gpu, standin) = (gpu()?, Standin::find()?);
        let before = standin.live_bytes()?;
        drop((1..200).map(|k| gpu.zeros(1000 * k)).collect::<Result<Vec<_>, _>>()?);
        let began = Instant::now();
        while standin.live_bytes()? > before && began.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(5));
        }
        ensure!(standin.live_bytes()? == before, "{} of {before}", standin.live_bytes()?);
        Ok(())
    })
}

/// A library of the driver's name that is none: calling what it lacks panics in the binding, and must not here.
#[test]
fn a_library_without_a_drivers_functions_is_an_error() -> Result<()> {
    let folder = env::temp_dir().join(format!("driftless-empty-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let library = folder.join("libcuda.so.1");
    if env::var_os("EMPTY").is_none() {
        let compiler =
            Command::new("g++").args(["-shared", "-x", "c++", "/dev/null", "-o"]).arg(&library).status()?;
        ensure!(compiler.success(), "g++ makes an empty library");
    }
    let path = folder.to_str().context("a plain path")?;
    let name = "opening::a_library_without_a_drivers_functions_is_an_error";
    let outcome = in_child(name, &[("LD_LIBRARY_PATH", path), ("EMPTY", "1")], || {
        let lacks =
            |error: &DeviceError| error.to_string().contains("it lacks a function that every driver has");
        ensure!(probe().is_err_and(|error| lacks(&error)), "{:?}", probe());
        ensure!(refused(0).as_ref().is_some_and(lacks), "{:?}", refused(0));
        Ok(())
    });
    fs::remove_dir_all(folder)?;
    outcome
}

/// Nobody asked for the CPU: whoever names a GPU that cannot be had gets the reason, on every attempt.
#[test]
fn a_missing_gpu_is_never_replaced_by_the_cpu() -> Result<()> {
    on_standin("opening::a_missing_gpu_is_never_replaced_by_the_cpu", &[("STANDIN_DEVICES", "1")], || {
        ensure!(Place::Cuda(0).open()?.name() == "cuda:0");
        for _ in 0..2 {
            let refused = Place::Cuda(1).open().err();
            ensure!(matches!(refused, Some(DeviceError::NoDevice { .. })), "{refused:?}");
        }
        ensure!(Place::Cpu.open()?.name().starts_with("cpu"));
        Ok(())
    })
}

/// The same while it is opened, however far that got.
#[test]
fn a_device_that_fails_while_it_is_opened_is_an_error() -> Result<()> {
    on_standin("opening::a_device_that_fails_while_it_is_opened_is_an_error", &[], || {
        let standin = Standin::find()?;
        // One process, one loss: the last call that opening makes before a first answer.
        standin.inject(Failure::Vanished, 3)?;
        let refused = refused(0);
        let cause = "CUDA_ERROR_DEVICE_UNAVAILABLE";
        ensure!(refused.as_ref().is_some_and(|error| error.to_string().contains(cause)), "{refused:?}");
        Ok(())
    })
}
