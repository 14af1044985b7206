//! The live weights of the rollouts, and the proof that they are what they must be.

use crate::failure::Failure;
use crate::placement::{DestPlace, Difference, Placement};
use crate::source::StateSource;
use driftless::WordBuffer;
use driftless_layout::{ParamMeta, RemapPlan};
use driftless_numerics::DigestKeys;
use driftless_types::{Digest, Fqn, index_of};

/// Live weights: per replica, per receiver, per tensor of the plan.
pub(crate) type LiveWeights = Vec<Vec<Vec<WordBuffer>>>;

/// The rollouts' memory and the boxes that say what belongs where in it.
pub(crate) struct Fleet<'a> {
    plan: &'a RemapPlan,
    placement: Placement,
    keys: DigestKeys,
    live: LiveWeights,
}

/// What the weights themselves say, word by word.
pub(crate) struct Inspection {
    /// The first word that is wrong, in words of the user; `None` if there is none.
    pub(crate) difference: Option<String>,
    /// The digest that each receiver must have: per replica, per receiver.
    pub(crate) digests: Vec<Vec<Digest>>,
}

impl<'a> Fleet<'a> {
    /// Engines that have loaded the version that the source starts from; padding is zero.
    pub(crate) fn load(
        plan: &'a RemapPlan,
        keys: DigestKeys,
        source: &dyn StateSource,
    ) -> Result<Self, Failure> {
        let fleet = Self { plan, placement: Placement::new(plan), keys, live: zeroed(plan) };
        for param in plan.params() {
            let words = source.words(param)?;
            for place in fleet.placement.destinations(param) {
                place.fill(param, &words, &mut fleet.buffer(place).write());
            }
        }
        Ok(fleet)
    }

    /// Handles to the live weights.
    pub(crate) fn live(&self) -> LiveWeights {
        self.live.clone()
    }

    /// Compares every word of every receiver with what the source says it must be.
    pub(crate) fn inspect(&self, source: &dyn StateSource) -> Result<Inspection, Failure> {
        let replicas = self.plan.replicas().iter();
        let mut digests: Vec<_> =
            replicas.map(|replica| vec![Digest::ZERO; replica.receivers.len()]).collect();
        let mut difference = None;
        for param in self.plan.params() {
            let words = source.words(param)?;
            for place in self.placement.destinations(param) {
                digests[place.replica][place.rank] += place.digest(param, &words, &self.keys);
                if difference.is_none() {
                    let found = place.difference(param, &words, &self.buffer(place).read());
                    difference = found.map(|found| self.describe(place, param, found));
                }
            }
        }
        Ok(Inspection { difference, digests })
    }

    fn buffer(&self, place: &DestPlace) -> &WordBuffer {
        &self.live[place.replica][place.rank][place.tensor]
    }

    fn describe(&self, place: &DestPlace, param: &ParamMeta, difference: Difference) -> String {
        let receiver = &self.plan.replicas()[place.replica].receivers[place.rank];
        let words = param.dtype.words();
        let (fqn, tensor): (&Fqn, &str) = (&param.fqn, &receiver.tensors[place.tensor].name);
        format!(
            "{} tensor `{tensor}` element {} (`{fqn}` element {}): found 0x{:04x}, expected 0x{:04x}",
            receiver.name,
            difference.local_word / words,
            difference.canonical_word / words,
            difference.found,
            difference.expected
        )
    }
}

fn zeroed(plan: &RemapPlan) -> LiveWeights {
    let buffer = |tensor: &driftless_layout::DestTensor| {
        let elements = tensor.shape.elements().map_or(0, index_of);
        WordBuffer::new(vec![0; elements * tensor.dtype.words()])
    };
    let replicas = plan.replicas().iter();
    let receiver = |receiver: &driftless_layout::ReceiverPlan| receiver.tensors.iter().map(buffer).collect();
    replicas.map(|replica| replica.receivers.iter().map(receiver).collect()).collect()
}
