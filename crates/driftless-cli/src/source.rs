//! Where states come from: recorded files, or a trainer that runs in this process. Runs see no difference.

use crate::failure::Failure;
use driftless::{LayoutClaim, NodeOptions, SourceBinding};
use driftless_layout::ParamMeta;
use driftless_numerics::{Family, StepParams};

/// A policy that grows version by version, in the memory of trainer ranks.
pub(crate) trait StateSource: Send + Sync {
    /// The version that rollouts start from.
    fn start(&self) -> u64;

    /// The versions after it, ascending.
    fn versions(&self) -> Vec<u64>;

    /// Optimizer steps taken before the first version.
    fn steps_taken(&self) -> u64;

    /// The optimizer's family.
    fn family(&self) -> Family;

    /// Whether rollouts prove at the start that they hold what the trainer holds.
    fn layout_claim(&self) -> LayoutClaim;

    /// What its node is started with, but for the run and the detector.
    fn options(&self) -> NodeOptions {
        NodeOptions::default()
    }

    /// Arms a fault for the next version, and says which; `None` if none was.
    fn disturb(&mut self) -> Option<String> {
        None
    }

    /// The ranks' memory: per sender of the plan, per source tensor.
    fn memory(&self) -> Vec<Vec<SourceBinding>>;

    /// Brings the memory to a version, and says what step led there. Nobody else holds a guard meanwhile.
    fn advance(&mut self, version: u64) -> Result<StepParams, Failure>;

    /// The served words of a parameter at the version reached, in canonical order: what every rollout must hold.
    fn words(&self, param: &ParamMeta) -> Result<Vec<u16>, Failure>;
}
