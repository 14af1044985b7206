//! Recorded states of a folder, laid out as the trainer would hold them in memory.

use crate::args::DetectorArg;
use crate::console::Activity;
use crate::failure::Failure;
use crate::family::FamilyArg;
use crate::files::{Folder, PolicyFile, RecordedStep, Slot};
use crate::placement::Placement;
use crate::source::StateSource;
use driftless::{Bitset, Device, DeviceError, LayoutClaim, SourceBinding, StepMask};
use driftless_layout::{ParamMeta, RemapPlan};
use driftless_numerics::bf16::widen;
use driftless_numerics::{Cast, Family, StepParams};
use driftless_types::{Dtype, index_of};
use std::sync::Arc;

/// Recorded states, laid out as the trainer would hold them in memory.
pub(crate) struct FolderSource {
    folder: Folder,
    family: FamilyArg,
    params: Vec<ParamMeta>,
    placement: Placement,
    memory: Vec<Vec<SourceBinding>>,
    device: Arc<dyn Device>,
    /// The index of the step reached; `None`: the start.
    reached: Option<usize>,
    /// Reading takes a while: it says how far it is.
    activity: Activity,
}

impl FolderSource {
    /// Memory that holds the starting policy. What the masters were then was not recorded, but their served bits were.
    pub(crate) fn new(
        folder: Folder,
        plan: &RemapPlan,
        (family, detector): (FamilyArg, DetectorArg),
        device: Arc<dyn Device>,
        activity: Activity,
    ) -> Result<Self, Failure> {
        let (params, placement) = (plan.params().to_vec(), Placement::new(plan));
        let memory = zeroed(plan, detector, &*device).map_err(memory_failed)?;
        let reached = None;
        let source = Self { folder, family, params, placement, memory, device, reached, activity };
        for param in &source.params {
            source.says("loading", source.folder.start_step(), param);
            let words = source.folder.start().words(param)?;
            source.write(param, Slot::Master, &masters_of(param.dtype, &words))?;
        }
        Ok(source)
    }

    fn says(&self, doing: &str, version: u64, param: &ParamMeta) {
        self.activity.doing(format!(
            "v{version}: {doing} parameter {} of {}",
            param.id.0 + 1,
            self.params.len()
        ));
    }

    fn recorded(&self) -> Option<&RecordedStep> {
        self.reached.map(|index| &self.folder.steps()[index])
    }

    fn write(&self, param: &ParamMeta, slot: Slot, values: &[f32]) -> Result<(), Failure> {
        for place in self.placement.sources(param) {
            let binding = &self.memory[place.sender][place.tensor];
            let memory = match slot {
                Slot::Master => &binding.master,
                Slot::ExpAvg => &binding.exp_avg,
                Slot::ExpAvgSq => &binding.exp_avg_sq,
            };
            let written = memory.write_range(place.range(), |local| place.fill(param, values, local));
            written.map_err(memory_failed)?;
        }
        Ok(())
    }

    /// Before a state is overwritten by the next: its served bits are what a trainer's model would still hold.
    fn keep_old_bits(&self, cast: Cast) -> Result<(), DeviceError> {
        for binding in self.memory.iter().flatten() {
            let Some(model) = &binding.model else { continue };
            model.write(&self.served(binding, cast)?)?;
        }
        Ok(())
    }

    /// After it: what an optimizer would have marked in its step.
    fn mark_changes(&self, cast: Cast) -> Result<(), DeviceError> {
        for binding in self.memory.iter().flatten() {
            let (Some(model), Some(mask)) = (&binding.model, &binding.mask) else { continue };
            let (model, new) = (model.view()?, self.served(binding, cast)?);
            let mut changed = Bitset::new(new.len());
            for (index, (old, new)) in model.iter().zip(&new).enumerate() {
                if new != old {
                    changed.insert(index);
                }
            }
            mask.mark(&changed)?;
        }
        Ok(())
    }

    fn served(&self, binding: &SourceBinding, cast: Cast) -> Result<Vec<u16>, DeviceError> {
        let bits = self.device.served_bits(binding.master.lend().elements(), cast)?;
        Ok(bits.view()?.to_vec())
    }

    fn params_of(&self, recorded: &RecordedStep) -> StepParams {
        let params = recorded.state.optimizer().params.clone();
        let family = self.family.or(params.family);
        params.with_family(family)
    }
}

impl StateSource for FolderSource {
    fn start(&self) -> u64 {
        self.folder.start_step()
    }

    fn versions(&self) -> Vec<u64> {
        self.folder.steps().iter().map(|recorded| recorded.step).collect()
    }

    fn steps_taken(&self) -> u64 {
        self.folder.start_step()
    }

    fn family(&self) -> Family {
        self.folder.steps().first().map_or(Family::Agnostic, |recorded| self.params_of(recorded).family)
    }

    /// The masters of the start are not recorded, only their served bits: a NaN there may be of another trainer's cast.
    fn layout_claim(&self) -> LayoutClaim {
        LayoutClaim::Trusted
    }

    fn memory(&self) -> Vec<Vec<SourceBinding>> {
        self.memory.clone()
    }

    fn advance(&mut self, version: u64) -> Result<StepParams, Failure> {
        self.reached = self.folder.steps().iter().position(|recorded| recorded.step == version);
        let recorded = self.recorded().expect("a run asks only for recorded versions");
        let cast = self.params_of(recorded).family.cast();
        self.keep_old_bits(cast).map_err(memory_failed)?;
        for param in &self.params {
            self.says("reading", version, param);
            // One slot at a time: the largest of them bounds what is held beside the trainer's memory.
            for &slot in recorded.state.slots() {
                self.write(param, slot, &recorded.state.read(param, slot)?)?;
            }
        }
        self.mark_changes(cast).map_err(memory_failed)?;
        Ok(self.params_of(recorded))
    }

    /// The recorded policy; where there is none, the recorded masters as the trainer's family casts them.
    fn words(&self, param: &ParamMeta) -> Result<Vec<u16>, Failure> {
        let Some(recorded) = self.recorded() else {
            self.says("loading", self.folder.start_step(), param);
            return Ok(self.folder.start().words(param)?);
        };
        self.says("comparing", recorded.step, param);
        if let Some(policy) = &recorded.policy {
            return Ok(policy.words(param)?);
        }
        let cast = self.params_of(recorded).family.cast();
        let master = recorded.state.read(param, Slot::Master)?;
        Ok(match param.dtype {
            Dtype::Bf16 => master.iter().map(|x| cast.bits(*x)).collect(),
            Dtype::Fp32 => master.iter().flat_map(|x| halves(*x)).collect(),
        })
    }
}

/// One checkpoint, as a trainer would hold it that has not stepped yet.
pub(crate) struct CheckpointSource {
    version: u64,
    memory: Vec<Vec<SourceBinding>>,
}

impl CheckpointSource {
    /// Masters that are served as the checkpoint's weights; moments are zero.
    pub(crate) fn new(
        policy: &PolicyFile,
        version: u64,
        plan: &RemapPlan,
        device: &dyn Device,
        activity: &Activity,
    ) -> Result<Self, Failure> {
        let memory = zeroed(plan, DetectorArg::Inversion, device).map_err(memory_failed)?;
        let placement = Placement::new(plan);
        for param in plan.params() {
            activity.doing(format!("loading parameter {} of {}", param.id.0 + 1, plan.params().len()));
            let values = masters_of(param.dtype, &policy.words(param)?);
            for place in placement.sources(param) {
                let master = &memory[place.sender][place.tensor].master;
                let written = master.write_range(place.range(), |local| place.fill(param, &values, local));
                written.map_err(memory_failed)?;
            }
        }
        Ok(Self { version, memory })
    }
}

impl StateSource for CheckpointSource {
    fn start(&self) -> u64 {
        self.version
    }

    fn versions(&self) -> Vec<u64> {
        Vec::new()
    }

    fn steps_taken(&self) -> u64 {
        self.version
    }

    fn family(&self) -> Family {
        Family::Agnostic
    }

    fn layout_claim(&self) -> LayoutClaim {
        LayoutClaim::Trusted
    }

    fn memory(&self) -> Vec<Vec<SourceBinding>> {
        self.memory.clone()
    }

    fn advance(&mut self, version: u64) -> Result<StepParams, Failure> {
        Err(Failure::Usage(format!("a checkpoint is one version, and has no version {version}")))
    }

    fn words(&self, param: &ParamMeta) -> Result<Vec<u16>, Failure> {
        Err(Failure::Usage(format!("the weights of {} are in the checkpoint", param.fqn)))
    }
}

fn memory_failed(error: DeviceError) -> Failure {
    Failure::Runtime(error.into())
}

fn zeroed(
    plan: &RemapPlan,
    detector: DetectorArg,
    device: &dyn Device,
) -> Result<Vec<Vec<SourceBinding>>, DeviceError> {
    let zeros = |elements| device.zeros(index_of(elements));
    let binding = |elements| {
        let binding = SourceBinding::new(zeros(elements)?, zeros(elements)?, zeros(elements)?);
        let model = || device.words(vec![0; index_of(elements)]);
        Ok(match detector {
            DetectorArg::Inversion | DetectorArg::Snapshot => binding,
            DetectorArg::PreCopy => binding.with_model(model()?),
            DetectorArg::InStep => {
                binding.with_model(model()?).with_mask(StepMask::on(device, index_of(elements))?)
            }
        })
    };
    let senders = plan.senders().iter();
    senders.map(|sender| sender.tensors.iter().map(|tensor| binding(tensor.elements())).collect()).collect()
}

/// Masters that are served as these words.
fn masters_of(dtype: Dtype, words: &[u16]) -> Vec<f32> {
    match dtype {
        Dtype::Bf16 => words.iter().map(|word| widen(*word)).collect(),
        Dtype::Fp32 => {
            let whole = |[low, high]: &[u16; 2]| f32::from_bits(u32::from(*high) << 16 | u32::from(*low));
            words.as_chunks::<2>().0.iter().map(whole).collect()
        }
    }
}

/// An FP32 weight as its two words, low half first.
const fn halves(x: f32) -> [u16; 2] {
    let [a, b, c, d] = x.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}
