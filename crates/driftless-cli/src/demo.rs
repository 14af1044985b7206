//! `driftless demo`: a tiny policy trained in this process, and rollouts that follow it.

use crate::args::DemoArgs;
use crate::chaos::Chaos;
use crate::console::Console;
use crate::failure::Failure;
use crate::run::run;
use crate::source::StateSource;
use driftless::{LayoutClaim, NodeOptions, SourceBinding};
use driftless_layout::ParamMeta;
use driftless_numerics::{Family, StepParams};
use driftless_testkit::{TensorBuffers, TinyTrainer, tiny_plan};

/// Plans, trains and syncs.
pub(crate) async fn demo(args: DemoArgs) -> Result<(), Failure> {
    args.run.json.as_ref().map_or(Ok(()), crate::report::ReportTarget::check)?;
    let plan = tiny_plan(&args.trainer, &args.rollouts)
        .map_err(|source| Failure::Layout { place: "the demo's policy".into(), source })?;
    let chaos = args.chaos.map(|seed| Chaos::new(&plan, seed));
    let device = args.run.open_device()?;
    let (trainer, versions) = (TinyTrainer::new(&plan, args.seed), args.versions);
    let memory = trainer.memory_on(&*device).map_err(|error| Failure::Runtime(error.into()))?;
    let source = TrainedSource { trainer, memory, versions, chaos };
    let console = Console::of_run(&args.run, source.versions().len());
    run(plan, Box::new(source), args.run, device, console).await
}

/// A trainer that steps when a version is asked for.
struct TrainedSource {
    trainer: TinyTrainer,
    /// The trainer's own memory, or copies of it where the device works.
    memory: Vec<Vec<TensorBuffers>>,
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
        let binding = |state: &TensorBuffers| {
            let TensorBuffers { master, exp_avg, exp_avg_sq, mask, model } = state.clone();
            SourceBinding::new(master, exp_avg, exp_avg_sq).with_mask(mask).with_model(model)
        };
        self.memory.iter().map(|rank| rank.iter().map(binding).collect()).collect()
    }

    fn advance(&mut self, _version: u64) -> Result<StepParams, Failure> {
        let params = self.trainer.step();
        self.trainer.copy_to(&self.memory).map_err(|error| Failure::Runtime(error.into()))?;
        Ok(params)
    }

    fn words(&self, param: &ParamMeta) -> Result<Vec<u16>, Failure> {
        Ok(self.trainer.canonical_words(param))
    }
}
