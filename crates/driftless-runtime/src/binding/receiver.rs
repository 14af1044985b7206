//! What a rollout rank owns: its live weights, their digests, and how to take a half-written version back.

use driftless_device::{Buffer, Device, DeviceError, Loaded, UndoLog, WordBuffer};
use driftless_layout::{DestTensor, Fragment, LayoutError, ReceiverPlan, RemapPlan, StridedDest, Strides};
use driftless_numerics::DigestKeys;
use driftless_proto::Weights;
use driftless_types::{Digest, Fence, ReceiverId, SenderId, Version, element_offset, index_of};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The live weights of one tensor, as the caller has them.
///
/// ```
/// # use driftless_device::WordBuffer;
/// # use driftless_layout::Strides;
/// # use driftless_runtime::binding::TensorMemory;
/// # use driftless_types::Shape;
/// let whole = TensorMemory::from(WordBuffer::new(vec![0; 4 * 64]));
/// // A view into something larger: four rows of 64 elements, 80 apart, the first at element 16.
/// let view = TensorMemory::from(WordBuffer::new(vec![0; 16 + 4 * 80]))
///     .with_strides(Strides::of_rows(Shape::new([4, 64]), 80, 16));
/// ```
#[derive(Clone, Debug)]
pub struct TensorMemory {
    /// 16-bit words, two per FP32 element, low half first.
    pub words: Buffer<u16>,
    /// How the tensor lies in them, in elements; `None`: without gaps, from the start.
    pub strides: Option<Strides>,
}

impl From<WordBuffer> for TensorMemory {
    fn from(words: WordBuffer) -> Self {
        Self { words: words.into(), strides: None }
    }
}

impl From<Buffer<u16>> for TensorMemory {
    fn from(words: Buffer<u16>) -> Self {
        Self { words, strides: None }
    }
}

impl TensorMemory {
    /// The same memory, in which the tensor lies as `strides` say.
    #[must_use]
    pub fn with_strides(self, strides: Strides) -> Self {
        Self { strides: Some(strides), ..self }
    }
}

/// The live weights of one tensor, and where the plan's boxes lie in them.
#[derive(Clone, Debug)]
pub struct LiveTensor {
    /// The words.
    pub words: Buffer<u16>,
    strided: Option<StridedDest>,
}

impl LiveTensor {
    /// Checks a tensor's strides, if it has any.
    ///
    /// # Errors
    /// [`LayoutError::Strides`] naming the tensor.
    pub fn new(plan: &DestTensor, memory: TensorMemory) -> Result<Self, LayoutError> {
        let elements = element_offset(memory.words.len() / plan.dtype.words());
        let strided = memory.strides.map(|strides| StridedDest::new(plan, &strides, elements)).transpose()?;
        Ok(Self { words: memory.words, strided })
    }

    /// The plan's tensor, as it lies in these words.
    #[must_use]
    pub fn tensor<'a>(&'a self, plan: &'a DestTensor) -> &'a DestTensor {
        self.strided.as_ref().map_or(plan, StridedDest::tensor)
    }

    /// A fragment of the tensor, as it goes into these words.
    #[must_use]
    pub fn fragment<'a>(&self, fragment: &'a Fragment) -> Cow<'a, Fragment> {
        match &self.strided {
            None => Cow::Borrowed(fragment),
            Some(strided) => Cow::Owned(strided.fragment(fragment)),
        }
    }
}

/// The sections of an attempt, every byte checked, and the digests that the senders promise.
#[derive(Debug)]
pub struct Staged {
    /// The attempt.
    pub fence: Fence,
    /// Sections by sender, each with the index of its fragment within the edge, where the weights are.
    pub sections: BTreeMap<SenderId, Vec<(usize, Loaded)>>,
    /// Per local tensor, the digest of its bits at the new version.
    pub promised: Vec<Digest>,
}

/// The part of a binding that its token guards.
#[derive(Debug)]
pub struct Live {
    /// Digests of the live bits, per local tensor.
    pub digests: Vec<Digest>,
    /// Digests before the open attempt wrote anything.
    pub old_digests: Option<Vec<Digest>>,
    /// Old words, per local tensor.
    pub undo: Vec<UndoLog>,
    /// What was staged.
    pub staged: Option<Staged>,
    /// The newest attempt of which nothing is to be staged any more.
    pub forgotten: Option<Fence>,
    /// The attempt that is written and compared, but not decided.
    pub applied: Option<Fence>,
    /// Whether the weights are a version: CM-14 hangs on it, so it is set before the first word is written in place.
    pub weights: Weights,
    /// The newest attempt that has written in place.
    pub taking: Option<Fence>,
    /// The attempt that was committed last.
    pub committed: Option<Fence>,
    /// Tensors whose digest did not match: what is in memory is not what is remembered, so they are hashed anew.
    pub suspect: BTreeSet<u32>,
    /// Canonical elements changed by the open attempt of which this is the first holder in its replica.
    pub changed: u64,
}

impl Live {
    const fn new(digests: Vec<Digest>, undo: Vec<UndoLog>, weights: Weights) -> Self {
        Self {
            digests,
            old_digests: None,
            undo,
            staged: None,
            forgotten: None,
            applied: None,
            weights,
            taking: None,
            committed: None,
            suspect: BTreeSet::new(),
            changed: 0,
        }
    }

    /// Keeps what was checked for the scatter that follows. A check that was overtaken, by a newer attempt's or by the end
    /// of its own attempt, is too late.
    pub(crate) fn keep(&mut self, staged: Staged) {
        let newest = self.staged.as_ref().map(|kept| kept.fence).max(self.forgotten);
        if newest < Some(staged.fence) {
            self.staged = Some(staged);
        }
    }

    /// Gives back what was staged of an attempt that is over, and what may still come of it: on a device it takes memory.
    pub(crate) fn forget(&mut self, fence: Fence) {
        self.forgotten = self.forgotten.max(Some(fence));
        self.staged.take_if(|staged| staged.fence <= fence);
    }
}

/// The binding of one rollout rank.
#[derive(Debug)]
pub struct ReceiverBinding {
    /// The rank.
    pub id: ReceiverId,
    /// One per local tensor of the plan.
    pub memory: Vec<LiveTensor>,
    attached: Vec<Digest>,
    version: AtomicU64,
    live: Arc<tokio::sync::Mutex<Live>>,
}

impl ReceiverBinding {
    /// The binding of a rank whose memory holds `version`, or no version if it is torn; hashes all of it once.
    ///
    /// # Errors
    /// [`DeviceError`] if the memory is not what the plan says.
    pub fn new(
        plan: &RemapPlan,
        receiver: &ReceiverPlan,
        memory: Vec<LiveTensor>,
        version: Version,
        weights: Weights,
        device: &dyn Device,
        keys: &DigestKeys,
    ) -> Result<Self, DeviceError> {
        let digest = |(tensor, memory): (&DestTensor, &LiveTensor)| {
            device.digest(memory.words.lend().elements(), memory.tensor(tensor), plan.params(), keys)
        };
        let hashed = receiver.tensors.iter().zip(&memory);
        let digests: Vec<Digest> = hashed.map(digest).collect::<Result<_, _>>()?;
        let undo = memory.iter().map(|_| UndoLog::default()).collect();
        let attached = digests.clone();
        let live = Live::new(digests, undo, weights);
        let version = AtomicU64::new(version.0);
        Ok(Self { id: receiver.id, memory, attached, version, live: Arc::new(tokio::sync::Mutex::new(live)) })
    }

    /// Hashes a local tensor anew.
    ///
    /// # Errors
    /// [`DeviceError`] if the memory is not what the plan says.
    pub fn digest(
        &self,
        plan: &RemapPlan,
        tensor: u32,
        device: &dyn Device,
        keys: &DigestKeys,
    ) -> Result<Digest, DeviceError> {
        let (memory, tensor) =
            (&self.memory[index_of(tensor.into())], &plan.receiver(self.id).tensors[index_of(tensor.into())]);
        device.digest(memory.words.lend().elements(), memory.tensor(tensor), plan.params(), keys)
    }

    /// Digests of the bits that were there when the memory was attached, per local tensor.
    #[must_use]
    pub fn attached(&self) -> &[Digest] {
        &self.attached
    }

    /// The version that this rank has committed.
    #[must_use]
    pub fn version(&self) -> Version {
        Version(self.version.load(Ordering::Acquire))
    }

    /// The rank has committed a version.
    pub fn set_version(&self, version: Version) {
        self.version.store(version.0, Ordering::Release);
    }

    /// The token of this binding: waits until the former holder's task has ended (CM-9).
    pub async fn token(&self) -> tokio::sync::OwnedMutexGuard<Live> {
        Arc::clone(&self.live).lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driftless_types::{Attempt, Epoch, PlanDigest, RunId};

    const fn fence(attempt: u32) -> Fence {
        let (run, plan) = (RunId([0; 16]), PlanDigest([0; 32]));
        Fence {
            run,
            epoch: Epoch { counter: 1, incarnation: 0 },
            attempt: Attempt(attempt),
            version: Version(2),
            plan,
        }
    }

    const fn staged(attempt: u32) -> Staged {
        Staged { fence: fence(attempt), sections: BTreeMap::new(), promised: Vec::new() }
    }

    #[test]
    fn nothing_stays_staged_of_an_attempt_that_is_over_whatever_comes_last() {
        let mut live = Live::new(Vec::new(), Vec::new(), Weights::Whole);
        let kept = |live: &Live| live.staged.as_ref().map(|staged| staged.fence);
        live.keep(staged(3));
        live.forget(fence(2));
        assert_eq!(kept(&live), Some(fence(3)), "another attempt's end");
        live.keep(staged(1));
        assert_eq!(kept(&live), Some(fence(3)), "a check that was overtaken");
        live.forget(fence(3));
        assert_eq!(kept(&live), None);
        live.keep(staged(3));
        assert_eq!(kept(&live), None, "a check that ended after its attempt");
        live.keep(staged(4));
        assert_eq!(kept(&live), Some(fence(4)));
    }
}
