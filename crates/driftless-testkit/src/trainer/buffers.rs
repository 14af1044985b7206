//! The trainer's memory where a device works: its own on the host, copies elsewhere, for it steps on the host.

use super::TinyTrainer;
use driftless_device::{Buffer, Device, DeviceError, Element, StepMask};

/// The memory of one local tensor of one rank, as it is attached.
#[derive(Clone, Debug)]
pub struct TensorBuffers {
    /// FP32 master weights.
    pub master: Buffer<f32>,
    /// First moments.
    pub exp_avg: Buffer<f32>,
    /// Second moments.
    pub exp_avg_sq: Buffer<f32>,
    /// What the last step changed.
    pub mask: StepMask,
    /// The BF16 weights before the last step.
    pub model: Buffer<u16>,
}

impl TinyTrainer {
    /// The optimizer's memory where `device` works: per rank, per source tensor of the plan.
    ///
    /// # Errors
    /// A device without so much memory.
    pub fn memory_on(&self, device: &dyn Device) -> Result<Vec<Vec<TensorBuffers>>, DeviceError> {
        let one = |state: super::TensorState| {
            let elements = state.master.len();
            let slots = [state.master, state.exp_avg, state.exp_avg_sq].map(Buffer::from);
            let copies = [device.zeros(elements)?, device.zeros(elements)?, device.zeros(elements)?];
            let is_on_host = copies[0].host().is_some();
            let [master, exp_avg, exp_avg_sq] = if is_on_host { slots } else { copies };
            let mask = if is_on_host { state.mask } else { StepMask::on(device, elements)? };
            let model = Buffer::from(state.model);
            let model = if is_on_host { model } else { device.words(model.view()?.to_vec())? };
            Ok(TensorBuffers { master, exp_avg, exp_avg_sq, mask, model })
        };
        let ranks = self.memory().into_iter();
        let memory = ranks.map(|rank| rank.into_iter().map(one).collect()).collect::<Result<Vec<_>, _>>()?;
        self.copy_to(&memory)?;
        Ok(memory)
    }

    /// Makes copies of the optimizer's memory equal to it, and hands its marks over to their masks: to be called after a
    /// step.
    ///
    /// # Errors
    /// A device that fails.
    pub fn copy_to(&self, memory: &[Vec<TensorBuffers>]) -> Result<(), DeviceError> {
        for (state, there) in self.memory.iter().flatten().zip(memory.iter().flatten()) {
            copy(&state.master.clone().into(), &there.master)?;
            copy(&state.exp_avg.clone().into(), &there.exp_avg)?;
            copy(&state.exp_avg_sq.clone().into(), &there.exp_avg_sq)?;
            copy(&state.model.clone().into(), &there.model)?;
            hand_over(&state.mask, &there.mask)?;
        }
        Ok(())
    }
}

/// Copies to a device; what is on the host is the trainer's own.
fn copy<T: Element>(from: &Buffer<T>, to: &Buffer<T>) -> Result<(), DeviceError> {
    if to.host().is_some() { Ok(()) } else { to.write(&from.view()?) }
}

/// Moves what is marked to a mask on a device; one on the host is the trainer's own.
fn hand_over(from: &StepMask, to: &StepMask) -> Result<(), DeviceError> {
    if to.host().is_some() {
        return Ok(());
    }
    let Some(mut marked) = from.host() else { return Ok(()) };
    to.mark(&marked)?;
    marked.clear();
    Ok(())
}
