//! The GPU's own thread, images and memory of others.

use anyhow::{Context, Result, ensure};
use driftless_cuda_tests::{Failure, Standin, gpu, in_child, on_standin};
use driftless_device::cuda::{CudaDevice, CudaOptions};
use driftless_device::{Buffer, Device, DeviceError, Elements};
use driftless_numerics::Cast;
use std::{env, fs, thread};

#[test]
fn gt1_callers_of_many_threads_share_one_gpu() -> Result<()> {
    on_standin("threads::gt1_callers_of_many_threads_share_one_gpu", &[], || {
        let gpu = gpu()?;
        // More callers than the queue has places.
        let callers: Vec<_> = (0..100_u16)
            .map(|caller| {
                let gpu = gpu.clone();
                thread::spawn(move || -> Result<bool, DeviceError> {
                    let words = gpu.words(vec![caller; 300])?;
                    Ok(words.view()?[..] == [caller; 300])
                })
            })
            .collect();
        for caller in callers {
            ensure!(caller.join().ok().context("no panic")??);
        }
        Ok(())
    })
}

#[test]
fn gt2_a_launch_that_breaks_the_context_ends_everything_after_it() -> Result<()> {
    on_standin("threads::gt2_a_launch_that_breaks_the_context_ends_everything_after_it", &[], || {
        let (gpu, standin) = (gpu()?, Standin::find()?);
        let masters = gpu.zeros(1000)?;
        let cast = || gpu.served_bits(masters.lend().elements(), Cast::NearestEven);
        standin.inject(Failure::Launch, 0)?;
        let refused = cast().err();
        let is_launch =
            matches!(&refused, Some(DeviceError::Launch { kernel, .. }) if kernel == "driftless_gather");
        ensure!(is_launch, "{refused:?}");
        ensure!(cast()?.len() == 1000, "a launch that was refused is no harm");
        standin.inject(Failure::BrokenLaunch, 0)?;
        let broken = cast().err();
        ensure!(matches!(broken, Some(DeviceError::Lost { .. })), "{broken:?}");
        let launches = standin.launches()?;
        ensure!(cast().err() == broken && gpu.zeros(1).err() == broken && masters.view().err() == broken);
        ensure!(standin.launches()? == launches, "nothing more is asked of it");
        Ok(())
    })
}

#[test]
fn memory_of_another_place_is_refused_by_name() -> Result<()> {
    on_standin("threads::memory_of_another_place_is_refused_by_name", &[], || {
        let gpu = gpu()?;
        let other = CudaDevice::open(CudaOptions { ordinal: 1, cache: None })?;
        let place = |found: &str| DeviceError::Place { found: found.into(), expected: "cuda:0".into() };
        let cast = |masters: Elements<'_, f32>| gpu.served_bits(masters, Cast::NearestEven).err();
        ensure!(cast(Elements::Host(&[1.0])) == Some(place("cpu")));
        ensure!(cast(other.zeros(4)?.lend().elements()) == Some(place("cuda:1")));
        let on_host = driftless_device::CpuDevice::new();
        let refused = on_host.copy(gpu.zeros(4)?.lend().elements()).err();
        ensure!(refused == Some(DeviceError::Place { found: "cuda:0".into(), expected: "cpu".into() }));
        Ok(())
    })
}

/// Runs where NVRTC is on the library path, as in CI.
#[test]
#[ignore = "needs NVRTC 13.0 on LD_LIBRARY_PATH"]
fn gt4_images_are_compiled_once_and_a_damaged_cache_is_made_anew() -> Result<()> {
    const NAME: &str = "threads::gt4_images_are_compiled_once_and_a_damaged_cache_is_made_anew";
    let nvrtc = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let folder = driftless_testkit::standin_folder()?;
    let path = format!("{}:{nvrtc}", folder.to_str().context("a plain path")?);
    let cache = folder.join("cache");
    in_child(NAME, &[("LD_LIBRARY_PATH", &path), ("CACHE", cache.to_str().context("a plain path")?)], || {
        let cache = std::path::PathBuf::from(env::var("CACHE")?);
        let open = || CudaDevice::open(CudaOptions { ordinal: 0, cache: Some(cache.clone()) });
        let images = || -> Result<Vec<_>> {
            let mut images: Vec<_> = fs::read_dir(&cache)?
                .map(|entry| entry.map(|entry| entry.path()))
                .collect::<Result<_, _>>()?;
            images.sort();
            Ok(images)
        };
        let _ = fs::remove_dir_all(&cache);
        open()?;
        let first = images()?;
        ensure!(first.len() == 7, "an image for each file: {first:?}");
        let name = first[1].file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        ensure!(name.starts_with("detect-sm_90-nvrtc13.0-"), "{name}");
        let written = fs::metadata(&first[1])?.modified()?;
        let words = Buffer::from(open()?.uninitialized::<u16>(4)?);
        ensure!(words.len() == 4 && fs::metadata(&first[1])?.modified()? == written, "loaded, not compiled");
        fs::write(&first[1], "damaged")?;
        open()?;
        ensure!(images()? == first && fs::metadata(&first[1])?.len() > 1000, "compiled again");
        fs::remove_dir_all(&cache)?;
        Ok(())
    })
}
