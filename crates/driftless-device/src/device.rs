//! What a backend does: the four kernels behind one object-safe trait.

use crate::{
    Bits, BitsMut, Buffer, ChangeList, Delivery, DeviceError, ElementSet, Elements, ElementsMut, Loaded,
    Packed, UndoLog,
};
use driftless_codec::FramedSection;
use driftless_layout::{DestTensor, Fragment, ParamMeta, SourceTensor};
use driftless_numerics::{Cast, DigestKeys, MasterAudit, Rule, StepClass};
use driftless_types::{ChangeSet, Digest};
use std::fmt;
use std::sync::atomic::AtomicBool;

/// How one piece of a source tensor is judged under inversion.
#[derive(Clone, Debug)]
pub enum PieceRule {
    /// By the certified rule of its parameter group.
    Rule(Rule),
    /// It is sent whole (a gate failed): no changes are listed.
    Dense,
    /// The optimizer did not touch it: nothing is sent.
    Untouched,
}

/// How one piece of a source tensor is judged where old bits, or a mask of changes, are at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceDiff {
    /// By comparison with the old bits, or by the mask.
    Compare,
    /// It is sent whole: no changes are listed, a snapshot is brought up to date.
    Dense,
}

/// What knows the old bits of a source tensor. Each of its memories has one entry per owned element.
///
/// Whatever the source says, the digest is taken over the new bits of every piece: that is why it can prove the source.
#[derive(Debug)]
pub enum ChangeSource<'a> {
    /// The optimizer's own state, from which the step is inverted.
    Inversion {
        /// FP32 master weights after the step.
        master: Elements<'a, f32>,
        /// First moments after the step.
        exp_avg: Elements<'a, f32>,
        /// Second moments after the step; empty if no rule reads them, as that of SGD.
        exp_avg_sq: Elements<'a, f32>,
        /// One per piece of the tensor, in order.
        rules: &'a [PieceRule],
    },
    /// A BF16 copy of the weights that were published last. It is brought up to date in the pass, but not where the
    /// parameter is served in FP32.
    ///
    /// A detection that fails, or whose result is lost, leaves the snapshot partly ahead of what was published: the
    /// next one must take every piece as [`PieceDiff::Dense`].
    Snapshot {
        /// FP32 master weights after the step.
        master: Elements<'a, f32>,
        /// Served bits at the last published version.
        previous: ElementsMut<'a, u16>,
        /// One per piece of the tensor, in order.
        diffs: &'a [PieceDiff],
    },
    /// The model's own BF16 weights of the version before, in the order of the masters, just before the trainer
    /// overwrites them: exact for any optimizer.
    PreCopy {
        /// FP32 master weights after the step.
        master: Elements<'a, f32>,
        /// Served bits before the step, still.
        model: Elements<'a, u16>,
        /// One per piece of the tensor, in order.
        diffs: &'a [PieceDiff],
    },
    /// The bits that an optimizer wrote while it had the old and the new weight of each element in registers: exact for
    /// any optimizer. They are those of this step alone.
    InStep {
        /// FP32 master weights after the step.
        master: Elements<'a, f32>,
        /// The elements whose served bits the step changed.
        changed: Bits<'a>,
        /// One per piece of the tensor, in order.
        diffs: &'a [PieceDiff],
    },
}

/// What a detection needs to know beside its source.
#[derive(Debug, Default)]
pub struct DetectOptions<'a> {
    /// How the trainer makes its served bits: part of its family.
    pub cast: Cast,
    /// Whether it says how far elements moved.
    pub classes: Classes,
    /// Changes of earlier steps that were not published, or those of this one.
    pub pending: Pending<'a>,
}

impl<'a> DetectOptions<'a> {
    /// The plain detection of a trainer whose served bits are made by `cast`.
    #[must_use]
    pub const fn new(cast: Cast) -> Self {
        Self { cast, classes: Classes::LeftOut, pending: Pending::Absent }
    }

    /// The same, with [`Changes::classes`].
    #[must_use]
    pub fn with_classes(self) -> Self {
        Self { classes: Classes::Listed, ..self }
    }

    /// The same, with a set of pending changes.
    #[must_use]
    pub fn with_pending(self, pending: Pending<'a>) -> Self {
        Self { pending, ..self }
    }
}

/// Whether changes are listed with [`Changes::classes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Classes {
    /// It does not.
    #[default]
    LeftOut,
    /// It does.
    Listed,
}

/// What a detection does with a set of changes that are not published yet: one bit per owned element of the tensor.
///
/// Several steps OR into one set. A pass that is canceled leaves it a superset of what is pending.
#[derive(Debug, Default)]
pub enum Pending<'a> {
    /// There is none.
    #[default]
    Absent,
    /// The changes of this step are published with all that are pending: these are listed too, with the bits that are
    /// there now, and the set is cleared. An element that returned to its old bits may be listed, none is missed.
    Drain(BitsMut<'a>),
    /// This step is not published: its changes are added to the set instead of listed, pieces that would go whole are
    /// added whole, and nothing is digested. Parameters served in FP32 have no bits in it.
    Collect(BitsMut<'a>),
}

/// The elements of a source tensor that may have changed, with their new bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Strictly rising indices into the owned range of the source tensor.
    pub indices: Vec<u32>,
    /// The served BF16 bits at the new version, one per index.
    pub values: Vec<u16>,
    /// How far each has provably moved at most, one per index, if it was asked for: what congruence coding needs. Exact
    /// where the old bits were at hand, and [`StepClass::Far`] for changes that were pending.
    pub classes: Option<Vec<StepClass>>,
}

/// The changes of a fragment, and how far each has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassedSet {
    /// Row-major in the fragment's box, strictly rising.
    pub positions: Vec<u32>,
    /// The served BF16 bits at the new version, one per position.
    pub values: Vec<u16>,
    /// One per position, as [`Changes::classes`].
    pub classes: Vec<StepClass>,
}

impl From<ClassedSet> for ChangeSet {
    fn from(set: ClassedSet) -> Self {
        Self::Sparse { positions: set.positions, values: set.values }
    }
}

/// What one pass over a source tensor found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detected {
    /// The elements to send, but none of pieces that go dense and none of parameters served in FP32.
    pub changes: ChangeList,
    /// The number of the first cell below in the sender's numbering; 0 for a tensor without pieces.
    pub first_cell: u32,
    /// Digests of the new bits, one per digest cell of the tensor, from `first_cell` on.
    pub cells: Vec<Digest>,
    /// Per piece: the largest update beyond the bound of its rule, if any. Such a piece must be sent dense, for its
    /// moments cannot have come from the optimizer that the caller described.
    pub bound_exceeded: Vec<Option<f32>>,
    /// Per piece: what the masters are after the step, so that the next step's rule may know what they were before
    /// it. Unknown for parameters served in FP32.
    pub audits: Vec<MasterAudit>,
}

/// What a scatter did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scattered {
    /// Elements whose bits differ from those they replaced.
    pub changed: u64,
    /// The digest of the new words less that of the old ones.
    pub delta: Digest,
}

/// A place where weights live and the four kernels run.
///
/// Every method is a pure function of its arguments and the memory that they lend; `params` is the table of all
/// parameters, indexed by id. Arguments that contradict each other are a [`DeviceError`], and then nothing was written.
pub trait Device: fmt::Debug + Send + Sync {
    /// The backend's name, for logs: such as `cpu` or `cuda:0`.
    fn name(&self) -> &str;

    /// Finds the changed elements of a source tensor and the digest of its new bits, in one pass.
    ///
    /// Elements of FP32-served parameters and of dense pieces are digested, never listed. `cancel` is looked at once
    /// per block.
    ///
    /// # Errors
    /// [`DeviceError::Canceled`], or arguments whose lengths or boxes disagree with the plan.
    fn detect(
        &self,
        tensor: &SourceTensor,
        params: &[ParamMeta],
        source: ChangeSource<'_>,
        options: DetectOptions<'_>,
        keys: &DigestKeys,
        cancel: &AtomicBool,
    ) -> Result<Detected, DeviceError>;

    /// Pushes sorted indices of the source tensors, `changes[i]` for source tensor `i`, into a fragment's box.
    ///
    /// Gives [`ChangeSet::Sparse`] with strictly rising row-major positions.
    ///
    /// # Errors
    /// A run that speaks of a tensor outside `changes`, or that overruns the fragment's box.
    fn remap(&self, changes: &[ChangeList], fragment: &Fragment) -> Result<ChangeSet, DeviceError>;

    /// [`Self::remap`] of several fragments, in order: a device hands them over in one go.
    ///
    /// # Errors
    /// As [`Self::remap`], of the first fragment that does not fit.
    fn remap_all(
        &self,
        changes: &[ChangeList],
        fragments: &[&Fragment],
    ) -> Result<Vec<ChangeSet>, DeviceError> {
        fragments.iter().map(|fragment| self.remap(changes, fragment)).collect()
    }

    /// [`Self::remap_all`] into what is sent: a device encodes it before it leaves, the host leaves that to its caller.
    ///
    /// # Errors
    /// As [`Self::remap_all`].
    fn pack(&self, changes: &[ChangeList], fragments: &[&Fragment]) -> Result<Vec<Packed>, DeviceError> {
        Ok(self.remap_all(changes, fragments)?.into_iter().map(Packed::Set).collect())
    }

    /// [`Self::remap_all`] of lists with classes, which go where their changes go.
    ///
    /// # Errors
    /// As [`Self::remap`], and if a list does not say of every change how far it moved.
    fn remap_classed(
        &self,
        changes: &[ChangeList],
        fragments: &[&Fragment],
    ) -> Result<Vec<ClassedSet>, DeviceError>;

    /// Reads a fragment whole out of the masters, `masters[i]` for source tensor `i`, as words served by `cast`.
    ///
    /// # Errors
    /// A run outside `masters`, or runs that do not cover the fragment's box in order.
    fn gather(
        &self,
        masters: &[Elements<'_, f32>],
        fragment: &Fragment,
        cast: Cast,
    ) -> Result<ChangeSet, DeviceError>;

    /// Writes a change set into a destination tensor of words, old words noted in `undo` before each block of writes.
    ///
    /// `param_cols` is the width of the fragment's parameter. All positions are checked before the first write.
    ///
    /// # Errors
    /// A position outside the fragment, a fragment outside `dst`, or a change set of another dtype or length.
    fn scatter(
        &self,
        dst: ElementsMut<'_, u16>,
        fragment: &Fragment,
        param_cols: u64,
        changes: &ChangeSet,
        keys: &DigestKeys,
        undo: &mut UndoLog,
    ) -> Result<Scattered, DeviceError>;

    /// Checks the changes of sections that arrived, and brings them to where the backend works, in order.
    ///
    /// # Errors
    /// [`DeviceError::Section`] of the first that is damaged.
    fn load(&self, sections: Vec<FramedSection>) -> Result<Vec<Loaded>, DeviceError> {
        let checked = sections
            .into_iter()
            .map(|section| section.check().map(Loaded::Host).map_err(DeviceError::Section));
        checked.collect()
    }

    /// [`Self::scatter`] of sections that were loaded, in order, into one tensor; `undo` knows of every one that wrote.
    ///
    /// # Errors
    /// A section of another place, or as [`Self::scatter`], of the first that does not fit: those before it may be
    /// written.
    fn deliver(
        &self,
        dst: ElementsMut<'_, u16>,
        deliveries: Vec<Delivery<'_>>,
        keys: &DigestKeys,
        undo: &mut UndoLog,
    ) -> Result<Vec<Scattered>, DeviceError> {
        let dst = dst.on_host()?;
        let scatter = |Delivery { fragment, param_cols, section }| {
            let changes = section.on_host()?.changes();
            self.scatter(ElementsMut::Host(&mut *dst), fragment, param_cols, &changes, keys, undo)
        };
        deliveries.into_iter().map(scatter).collect()
    }

    /// The words of a BF16 fragment of a destination tensor at some of its positions, which rise strictly; `param_cols` is
    /// the width of the fragment's parameter.
    ///
    /// # Errors
    /// A position outside the fragment, a fragment outside `words`, or one of another dtype.
    fn read_at(
        &self,
        words: Elements<'_, u16>,
        fragment: &Fragment,
        param_cols: u64,
        positions: &[u32],
    ) -> Result<Vec<u16>, DeviceError>;

    /// Puts back what `undo` holds, in reverse order of writing, and empties it.
    ///
    /// # Errors
    /// `dst` is shorter than the tensor that was written.
    fn undo(&self, dst: ElementsMut<'_, u16>, undo: &mut UndoLog) -> Result<(), DeviceError>;

    /// The digest of a destination tensor's words in canonical coordinates, padding left out: a full rehash.
    ///
    /// # Errors
    /// A box outside `words` or outside its parameter.
    fn digest(
        &self,
        words: Elements<'_, u16>,
        tensor: &DestTensor,
        params: &[ParamMeta],
        keys: &DigestKeys,
    ) -> Result<Digest, DeviceError>;

    /// Zeros where this backend works.
    ///
    /// # Errors
    /// A device without so much memory.
    fn zeros(&self, elements: usize) -> Result<Buffer<f32>, DeviceError>;

    /// Words where this backend works.
    ///
    /// # Errors
    /// A device without so much memory.
    fn words(&self, words: Vec<u16>) -> Result<Buffer<u16>, DeviceError>;

    /// A copy of masters, where they are.
    ///
    /// # Errors
    /// A device without so much memory.
    fn copy(&self, masters: Elements<'_, f32>) -> Result<Buffer<f32>, DeviceError>;

    /// The BF16 bits by which masters are served.
    ///
    /// # Errors
    /// A device without so much memory.
    fn served_bits(&self, masters: Elements<'_, f32>, cast: Cast) -> Result<Buffer<u16>, DeviceError>;

    /// The empty set of so many possible elements.
    ///
    /// # Errors
    /// A device without so much memory.
    fn empty_set(&self, elements: usize) -> Result<ElementSet, DeviceError>;

    /// Puts all of `changes` into `set`, which has one bit per element of the tensor that they are of.
    ///
    /// # Errors
    /// A set or changes of another place.
    fn remember(&self, set: &mut ElementSet, changes: &ChangeList) -> Result<(), DeviceError>;

    /// How many elements are in a set.
    ///
    /// # Errors
    /// A set of another place.
    fn count(&self, set: &ElementSet) -> Result<u64, DeviceError>;
}
