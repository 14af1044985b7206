//! `driftless demo`: a tiny policy trained in this process, and rollouts that follow it.

use crate::args::DemoArgs;
use crate::chaos::Chaos;
use crate::console::Console;
use crate::failure::Failure;
use crate::run::run;
use crate::source::StateSource;
use driftless::{Buffer, Device, DeviceError, LayoutClaim, NodeOptions, SourceBinding};
use driftless_layout::ParamMeta;
use driftless_numerics::{Family, StepParams};
use driftless_testkit::{TensorState, TinyTrainer, tiny_plan};

/// Plans, trains and syncs.
pub(crate) async fn demo(args: DemoArgs) -> Result<(), Failure> {
    args.run.json.as_ref().map_or(Ok(()), crate::report::ReportTarget::check)?;
    let plan = tiny_plan(&args.trainer, &args.rollouts)
        .map_err(|source| Failure::Layout { place: "the demo's policy".into(), source })?;
    let chaos = args.chaos.map(|seed| Chaos::new(&plan, seed));
    let device = args.run.open_device()?;
    let (trainer, versions) = (TinyTrainer::new(&plan, args.seed), args.versions);
    let memory = attached(&trainer, &*device).map_err(|error| Failure::Runtime(error.into()))?;
    let source = TrainedSource { trainer, memory, versions, chaos };
    let console = Console::of_run(&args.run, source.versions().len());
    run(plan, Box::new(source), args.run, device, console).await
}

/// The trainer's memory as it is attached: its own on the host, copies on a device, which it cannot step on.
fn attached(trainer: &TinyTrainer, device: &dyn Device) -> Result<Vec<Vec<SourceBinding>>, DeviceError> {
    let binding = |state: TensorState| {
        let [master, exp_avg, exp_avg_sq] = [state.master, state.exp_avg, state.exp_avg_sq].map(Buffer::from);
        let zeros = device.zeros(master.len())?;
        if zeros.host().is_some() {
            let binding = SourceBinding::new(master, exp_avg, exp_avg_sq);
            return Ok(binding.with_mask(state.mask).with_model(state.model));
        }
        let copy = |buffer: &Buffer<f32>, copy: Buffer<f32>| copy.write(&buffer.view()?).map(|()| copy);
        let (first, second) = (device.zeros(exp_avg.len())?, device.zeros(exp_avg_sq.len())?);
        let model = device.words(state.model.read().to_vec())?;
        let binding =
            SourceBinding::new(copy(&master, zeros)?, copy(&exp_avg, first)?, copy(&exp_avg_sq, second)?);
        Ok(binding.with_mask(state.mask).with_model(model))
    };
    let ranks = trainer.memory().into_iter();
    ranks.map(|tensors| tensors.into_iter().map(binding).collect()).collect()
}

/// A trainer that steps when a version is asked for.
struct TrainedSource {
    trainer: TinyTrainer,
    /// The trainer's own memory, or copies of it where the device works.
    memory: Vec<Vec<SourceBinding>>,
    versions: u64,
    chaos: Option<Chaos>,
}

impl StateSource for TrainedSource {
    fn start(&self) -> u64 {
        0
    }

    fn versions(&self) -> Vec<u64> {
        (1..=self.versions).collect()
    }

    fn steps_taken(&self) -> u64 {
        self.trainer.steps_taken()
    }

    fn family(&self) -> Family {
        Family::Torch
    }

    fn layout_claim(&self) -> LayoutClaim {
        LayoutClaim::Proven
    }

    fn options(&self) -> NodeOptions {
        self.chaos.as_ref().map_or_else(NodeOptions::default, Chaos::options)
    }

    fn disturb(&mut self) -> Option<String> {
        self.chaos.as_mut().map(Chaos::strike)
    }

    fn memory(&self) -> Vec<Vec<SourceBinding>> {
        self.memory.clone()
    }

    fn advance(&mut self, _version: u64) -> Result<StepParams, Failure> {
        let params = self.trainer.step();
        self.bring_along().map_err(|error| Failure::Runtime(error.into()))?;
        Ok(params)
    }

    fn words(&self, param: &ParamMeta) -> Result<Vec<u16>, Failure> {
        Ok(self.trainer.canonical_words(param))
    }
}

impl TrainedSource {
    /// After a step: what is not the trainer's own memory is made equal to it.
    fn bring_along(&self) -> Result<(), DeviceError> {
        for (state, binding) in self.trainer.memory().iter().flatten().zip(self.memory.iter().flatten()) {
            if binding.master.host().is_some() {
                continue;
            }
            binding.master.write(&state.master.read())?;
            binding.exp_avg.write(&state.exp_avg.read())?;
            binding.exp_avg_sq.write(&state.exp_avg_sq.read())?;
            if let Some(model) = &binding.model {
                model.write(&state.model.read())?;
            }
        }
        Ok(())
    }
}
