//! The parts of a plan: what senders own, what receivers hold, and the fragments between them.

use crate::engine::RolloutLayout;
use crate::geometry::Box2;
use driftless_types::{Dtype, ParamId, ReceiverId, ReplicaId, SenderId, Shape};
use std::ops::Range;

/// The most elements of one fragment; larger boxes are cut by rows.
pub const MAX_FRAGMENT_ELEMENTS: u64 = 1 << 31;
/// The same for what is written to a log: a section of FP32 values takes 16 MiB, so that several fit into one blob.
pub const MAX_LOG_FRAGMENT_ELEMENTS: u64 = 1 << 22;

/// What one trainer rank owns and to whom it sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderPlan {
    /// Its rank, in the order that its layout counts in: Megatron's tp fastest, then dp, then pp.
    pub id: SenderId,
    /// Its name, such as `tp0-pp0-dp0`, `replica0-shard3`, `rank2`, or `hf`.
    pub name: String,
    /// Its local tensors in registration order (`hf`: in the order of names), those of which it owns nothing included.
    pub tensors: Vec<SourceTensor>,
    /// Ascending receiver; only those with fragments.
    pub edges: Vec<Edge>,
    /// How many digest cells its pieces have together.
    pub cells: u32,
}

/// What a trainer rank owns of one of its local tensors: a contiguous range of the flattened local shard.
///
/// The local shard is Megatron's tensor parallel share, FSDP's chunk, or the whole parameter where nothing cuts it but
/// the range (`hf`, DeepSpeed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// The trainer's name, such as `decoder.layers.0.self_attention.linear_qkv.weight`.
    pub name: String,
    /// The range in the flattened local shard, in elements; possibly empty.
    pub range: Range<u64>,
    /// Ascending `src_offset`, disjoint. Padding, and copies that another rank owns, are covered by none.
    pub pieces: Vec<Piece>,
}

impl SourceTensor {
    /// The length of the range: masters and moments have this many elements.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A contiguous run of a source tensor that is one box of one parameter, row-major and `canonical.cols` wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it starts, in elements from the start of the tensor's range.
    pub src_offset: u64,
    /// The parameter.
    pub param: ParamId,
    /// The box.
    pub canonical: Box2,
    /// Interior cuts of the digest cells, rows from the box's first, ascending.
    pub row_cuts: Vec<u64>,
    /// Interior cuts of the digest cells, columns from the box's first, ascending.
    pub col_cuts: Vec<u64>,
    /// Cell (row band, column band) is `first_cell + row_band * (col_cuts.len() + 1) + col_band`.
    pub first_cell: u32,
}

impl Piece {
    /// A piece of a single digest cell.
    pub(crate) const fn uncut(src_offset: u64, param: ParamId, canonical: Box2) -> Self {
        Self { src_offset, param, canonical, row_cuts: Vec::new(), col_cuts: Vec::new(), first_cell: 0 }
    }
}

/// All that one sender gives to one receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The receiver.
    pub receiver: ReceiverId,
    /// Ascending destination: tensor, then offset. Their indices are consecutive.
    pub fragments: Vec<Fragment>,
}

/// A canonical box that one sender gives to one receiver, with one affine destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Its index in the plan: by sender, then receiver, then destination.
    pub index: u32,
    /// The parameter.
    pub param: ParamId,
    /// Its served dtype.
    pub dtype: Dtype,
    /// The box, of at most [`MAX_FRAGMENT_ELEMENTS`] elements.
    pub canonical: Box2,
    /// The index of the receiver's tensor.
    pub dst_tensor: u32,
    /// Where its first element lies there, in elements.
    pub dst_offset: u64,
    /// The distance of its rows there, in elements.
    pub dst_row_stride: u64,
    /// Ascending `box_row`; they cover the box exactly.
    pub sources: Vec<SourceRun>,
    /// The sender's digest cells whose sum is the digest of its bits.
    pub cells: Vec<u32>,
    /// Whether its receiver is the first of its replica that holds these elements: counted once.
    pub first_in_replica: bool,
}

impl Fragment {
    /// How many elements it has.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.canonical.elements()
    }
}

/// Rows `box_row .. box_row + rows` of a fragment, where they lie with the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRun {
    /// The index of the sender's tensor.
    pub tensor: u32,
    /// Where the first element lies, in elements from the start of the tensor's range.
    pub src_offset: u64,
    /// The distance of rows there: the width of the piece.
    pub src_row_stride: u64,
    /// The first row, from the fragment's first.
    pub box_row: u64,
    /// How many rows, each as wide as the fragment.
    pub rows: u64,
}

/// The receivers that make up one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPlan {
    /// Its number, in the order in which the rollouts were given.
    pub id: ReplicaId,
    /// Its layout.
    pub layout: RolloutLayout,
    /// Its ranks in order: tp counts fastest, then pp.
    pub receivers: Vec<ReceiverPlan>,
}

/// What one rollout rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverPlan {
    /// Its replica and rank.
    pub id: ReceiverId,
    /// Its name, such as `rollout0/tp0-pp0`.
    pub name: String,
    /// Its tensors, in the engine's order.
    pub tensors: Vec<DestTensor>,
    /// Those who have an edge to it, ascending.
    pub senders: Vec<SenderId>,
}

/// One tensor of a rollout rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestTensor {
    /// The engine's name, such as `model.layers.0.self_attn.qkv_proj.weight`.
    pub name: String,
    /// Its local shape, padding included.
    pub shape: Shape,
    /// Its dtype: that of every parameter in it.
    pub dtype: Dtype,
    /// Ascending offset, disjoint; padding is covered by none.
    pub boxes: Vec<DestBox>,
}

/// A canonical box and where it lives in a destination tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestBox {
    /// The parameter.
    pub param: ParamId,
    /// The box.
    pub canonical: Box2,
    /// Where its first element lies, in elements.
    pub dst_offset: u64,
    /// The distance of its rows, in elements.
    pub dst_row_stride: u64,
}
