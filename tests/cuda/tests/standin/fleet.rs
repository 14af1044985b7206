//! Whole fleets whose weights live on the stand-in's GPU.

use anyhow::{Result, bail, ensure};
use driftless::{Detector, Device, Fault, NodeOptions, Outcome, ReplicaOutcome, Site};
use driftless_chaos::Fleet;
use driftless_cuda_tests::{Failure, Standin, gpu, on_standin};
use driftless_device::cuda::CudaDevice;
use driftless_device::{Bits, StepMask};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const TRAINER: &str = "megatron:tp=2";
const ROLLOUTS: [&str; 2] = ["vllm:tp=2", "hf"];

pub(crate) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(future)
}

pub(crate) fn options(gpu: &CudaDevice) -> NodeOptions {
    NodeOptions { device: Arc::new(gpu.clone()), ..NodeOptions::default() }
}

fn committed(outcome: &Outcome) -> Result<()> {
    ensure!(outcome.is_committed_everywhere(), "{:?}", outcome.replicas);
    Ok(())
}

#[test]
fn every_detector_keeps_a_fleet_identical() -> Result<()> {
    on_standin("fleet::every_detector_keeps_a_fleet_identical", &[], || {
        block_on(async {
            let gpu = gpu()?;
            for detector in [Detector::Inversion, Detector::Snapshot, Detector::PreCopy, Detector::InStep] {
                let options = NodeOptions { detector, ..options(&gpu) };
                let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await?;
                for _ in 0..2 {
                    fleet.step_unpublished().await;
                    let outcome = fleet.step().await?;
                    committed(&outcome)?;
                    ensure!(outcome.report.dense.is_empty() && outcome.report.repaired == 0);
                    ensure!(outcome.report.sent < outcome.report.elements / 4, "{detector:?} sends changes");
                    if detector == Detector::InStep {
                        fleet.masks().try_for_each(is_clear_and_on_a_device)?;
                    }
                    fleet.ensure_identical()?;
                }
                fleet.stop().await;
            }
            Ok(())
        })
    })
}

/// The masks of a step that was detected: the next one marks afresh.
fn is_clear_and_on_a_device(mask: &StepMask) -> Result<()> {
    let lent = mask.lend();
    let Bits::Device(memory) = lent.bits() else { bail!("a mask on the host") };
    let mut bytes = vec![1; memory.bytes()];
    memory.download(0, &mut bytes)?;
    ensure!(bytes.iter().all(|&byte| byte == 0), "marks of a step that was detected");
    Ok(())
}

/// The part of the chaos matrix in which a device has work in hand: faults of every kind where memory is read or written.
#[test]
fn dv2_actors_that_die_over_device_memory_leave_it_right() -> Result<()> {
    on_standin("fleet::dv2_actors_that_die_over_device_memory_leave_it_right", &[], || {
        block_on(async {
            let gpu = gpu()?;
            let options = NodeOptions { restarts_max: u32::MAX, ..options(&gpu) };
            let failpoints = options.failpoints.clone();
            let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await?;
            for site in [
                Site::ShardDetects,
                Site::ShardEncodes,
                Site::ReceiverApplies,
                Site::ReceiverScatters,
                Site::ReceiverDecides,
            ] {
                for fault in [Fault::Kill, Fault::Panic] {
                    failpoints.arm(site, None, fault, 1);
                    committed(&fleet.step().await?)?;
                    fleet.ensure_identical()?;
                }
            }
            fleet.stop().await;
            Ok(())
        })
    })
}

/// Refusals of the driver that pass: whatever call they hit, the next attempt or the restarted actor goes on.
#[test]
fn dv2_refused_launches_and_allocations_are_tried_again() -> Result<()> {
    on_standin("fleet::dv2_refused_launches_and_allocations_are_tried_again", &[], || {
        block_on(async {
            let (gpu, standin) = (gpu()?, Standin::find()?);
            let options = NodeOptions { restarts_max: u32::MAX, ..options(&gpu) };
            let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await?;
            let before = standin.launches()?;
            committed(&fleet.step().await?)?;
            let per_version = standin.launches()? - before;
            ensure!(per_version > 100, "{per_version} launches");
            for part in 0..4 {
                standin.inject(Failure::Launch, part * usize::try_from(per_version)? / 4)?;
                committed(&fleet.step().await?)?;
                fleet.ensure_identical()?;
                standin.inject(Failure::Allocation, part * 9)?;
                committed(&fleet.step().await?)?;
                fleet.ensure_identical()?;
            }
            fleet.stop().await;
            Ok(())
        })
    })
}

/// A device that is lost cannot come back in this process: the version ends with the cause, in bounded time.
#[test]
fn gt2_a_device_that_vanishes_is_reported() -> Result<()> {
    on_standin("fleet::gt2_a_device_that_vanishes_is_reported", &[], || {
        block_on(async {
            let (gpu, standin) = (gpu()?, Standin::find()?);
            let mut options = options(&gpu);
            options.restarts_max = 3;
            options.version_deadline = Duration::from_secs(40);
            options.coordinator.max_attempts = 3;
            let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options).await?;
            committed(&fleet.step().await?)?;
            standin.inject(Failure::Vanished, 400)?;
            // The optimizer may be the first to notice, as it copies to the device.
            for _ in 0..3 {
                match fleet.step().await {
                    Ok(outcome) if outcome.is_committed_everywhere() => {}
                    Ok(outcome) => {
                        ensure!(
                            outcome
                                .replicas
                                .values()
                                .any(|end| matches!(end, ReplicaOutcome::Lagging { .. }))
                        );
                        break;
                    }
                    Err(error) => {
                        ensure!(error.to_string().contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{error:#}");
                        break;
                    }
                }
            }
            let lost = gpu.zeros(1).err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(
                lost.contains("cuda:0 is lost") && lost.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"),
                "{lost}"
            );
            let again = gpu.zeros(1).err().map(|error| error.to_string());
            ensure!(again == Some(lost), "every later call says the same");
            fleet.stop().await;
            Ok(())
        })
    })
}

/// Beside the trainer's and the engines' memory there is the patch at either end and one window, and no more.
#[test]
fn gt3_the_peak_is_the_patch_at_either_end_and_one_window() -> Result<()> {
    on_standin("fleet::gt3_the_peak_is_the_patch_at_either_end_and_one_window", &[], || {
        block_on(async {
            let (gpu, standin) = (gpu()?, Standin::find()?);
            let mut fleet = Fleet::start(TRAINER, &ROLLOUTS, options(&gpu)).await?;
            committed(&fleet.step().await?)?;
            let attached = gpu.memory_use().live_bytes;
            gpu.reset_peak();
            standin.reset_peak()?;
            let outcome = fleet.step().await?;
            committed(&outcome)?;
            let peak = standin.peak_bytes()?;
            ensure!(peak == gpu.memory_use().peak_bytes, "both count the same bytes");
            let (elements, sent) = (outcome.report.elements, outcome.report.sent);
            // Two patches of 6 bytes a change at the switch, what two replicas received, which becomes their undo logs,
            // a window, and rounding up.
            let bound = 2 * 6 * sent + 2 * 6 * sent + elements / 2 + 256 * 2 * 1000;
            ensure!(peak - attached < bound, "{} beyond {attached}, at most {bound}", peak - attached);
            ensure!(bound < 2 * elements, "a snapshot would need more: {bound} of {elements}");
            fleet.stop().await;
            Ok(())
        })
    })
}
