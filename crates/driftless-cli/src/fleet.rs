//! The live weights of the rollouts, and the proof that they are what they must be.

use crate::failure::Failure;
use crate::placement::{DestPlace, Difference, Placement};
use crate::source::StateSource;
use driftless::{Buffer, Device, DeviceError, HostView};
use driftless_layout::{DestTensor, ParamMeta, RemapPlan, ReplicaPlan};
use driftless_numerics::DigestKeys;
use driftless_types::{Digest, Fqn, index_of};

/// Live weights: per replica, per receiver, per tensor of the plan.
pub(crate) type LiveWeights = Vec<Vec<Vec<Buffer<u16>>>>;

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
        device: &dyn Device,
    ) -> Result<Self, Failure> {
        let (placement, mut loaded) = (
            Placement::new(plan),
            plan.replicas().iter().map(|replica| zeroed(replica, |words| words)).collect::<Vec<_>>(),
        );
        for param in plan.params() {
            let words = source.words(param)?;
            for place in placement.destinations(param) {
                place.fill(param, &words, &mut loaded[place.replica][place.rank][place.tensor]);
            }
        }
        let live = placed(loaded, device).map_err(|error| Failure::Runtime(error.into()))?;
        Ok(Self { plan, placement, keys, live })
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
        let views = self.views().map_err(|error| Failure::Runtime(error.into()))?;
        for param in self.plan.params() {
            let words = source.words(param)?;
            for place in self.placement.destinations(param) {
                digests[place.replica][place.rank] += place.digest(param, &words, &self.keys);
                if difference.is_none() {
                    let found =
                        place.difference(param, &words, &views[place.replica][place.rank][place.tensor]);
                    difference = found.map(|found| self.describe(place, param, found));
                }
            }
        }
        Ok(Inspection { difference, digests })
    }

    /// All live weights as the host sees them: those of a device are copied, each once.
    fn views(&self) -> Result<Vec<Vec<Vec<HostView<'_, u16>>>>, DeviceError> {
        self.live.iter().map(|replica| replica.iter().map(|rank| views(rank)).collect()).collect()
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

/// Words of zeros for one replica, each tensor's as `hold` holds them: per receiver, per tensor.
pub(crate) fn zeroed<T>(replica: &ReplicaPlan, hold: impl Fn(Vec<u16>) -> T) -> Vec<Vec<T>> {
    let words = |tensor: &DestTensor| {
        let elements = tensor.shape.elements().map_or(0, index_of);
        hold(vec![0; elements * tensor.dtype.words()])
    };
    let receivers = replica.receivers.iter();
    receivers.map(|receiver| receiver.tensors.iter().map(&words).collect()).collect()
}

/// The same words where a device works.
fn placed(loaded: Vec<Vec<Vec<Vec<u16>>>>, device: &dyn Device) -> Result<LiveWeights, DeviceError> {
    let rank = |rank: Vec<Vec<u16>>| rank.into_iter().map(|words| device.words(words)).collect();
    loaded.into_iter().map(|replica| replica.into_iter().map(rank).collect()).collect()
}

fn views(rank: &[Buffer<u16>]) -> Result<Vec<HostView<'_, u16>>, DeviceError> {
    rank.iter().map(Buffer::view).collect()
}
