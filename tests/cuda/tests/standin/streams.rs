//! Copies of any size go through two pinned buffers, whatever the order in which the device gets to its work.

use anyhow::{Result, ensure};
use driftless_cuda_tests::{Standin, gpu, on_standin};
use driftless_device::{Buffer, Device as _, Elements};

/// More work than a test puts on its streams.
const ALL_OF_IT: u32 = 1_000_000;
/// Five and a half pinned buffers of words.
const LARGE: usize = (11 << 22) / 2 + 1;

/// A number that says where it is.
fn word(seed: usize, index: usize) -> u16 {
    u16::try_from((index * 40_503 + seed * 7 + (index >> 16)) % 65_521).unwrap_or(0)
}

#[test]
fn gt6_large_copies_survive_any_order_of_work() -> Result<()> {
    on_standin("streams::gt6_large_copies_survive_any_order_of_work", &[("STANDIN_SEED", "7")], || {
        let (gpu, standin) = (gpu()?, Standin::find()?);
        // As late as may be at first, then sooner and later in turns.
        for (seed, held) in [(1, ALL_OF_IT), (2, 0), (3, 0), (4, 0)] {
            standin.hold(held)?;
            let sizes = [LARGE, 1, LARGE - 4096];
            let words: Vec<Vec<u16>> =
                sizes.iter().map(|&size| (0..size).map(|index| word(seed, index)).collect()).collect();
            let buffers =
                words.iter().map(|words| gpu.words(words.clone())).collect::<Result<Vec<_>, _>>()?;
            for (words, buffer) in words.iter().zip(&buffers) {
                ensure!(buffer.view()?[..] == words[..], "{} words, round {seed}", words.len());
            }
        }
        ensure!(standin.pinned_bytes()? == 16 << 20, "two pinned buffers, whatever is copied");
        Ok(())
    })
}

/// What an upload leaves on the stream is read by the next work of the same call, in order.
#[test]
fn gt6_what_nobody_waits_for_is_done_in_order() -> Result<()> {
    on_standin("streams::gt6_what_nobody_waits_for_is_done_in_order", &[], || {
        let (gpu, standin) = (gpu()?, Standin::find()?);
        standin.hold(ALL_OF_IT)?;
        let mut last: Option<Buffer<f32>> = None;
        for round in 0..20_u16 {
            let masters = gpu.zeros(5000)?;
            masters.write(&[f32::from(round); 5000])?;
            let copy = gpu.copy(match &masters {
                Buffer::Device(buffer) => Elements::Device(buffer.memory()),
                Buffer::Host(_) => anyhow::bail!("memory of the device"),
            })?;
            // Freed memory is gone at once: whoever still worked on it would end the process.
            drop(masters);
            if let Some(last) = last.replace(copy) {
                ensure!(last.view()?[..] == [f32::from(round - 1); 5000], "round {round}");
            }
        }
        Ok(())
    })
}
