//! The vocabulary of Driftless: ids, dtypes, shapes, ranks, versions, digests. Nothing here computes more than
//! the arithmetic of its own type, and nothing here does IO.
//!
//! Every other crate of the workspace builds on these words, so a word means one thing everywhere.
#![forbid(unsafe_code)]

mod bounded;
mod digest;
mod dtype;
mod entry;
mod ids;
mod retry;
mod shape;
mod transfer;

pub use bounded::{element_offset, index_of};
pub use digest::{Digest, Hex};
pub use dtype::Dtype;
pub use entry::{
    AnchorRef, BlobRef, Entry, EntryKind, Genesis, KeyId, ObjectDigest, Publication, Seq, StreamId,
    WriterManifest, Writers,
};
pub use ids::{
    Attempt, Epoch, Fqn, Incarnation, Member, ParamId, PlanDigest, ReceiverId, ReplicaId, RunId, SenderId,
    Version,
};
pub use retry::Retry;
pub use shape::Shape;
pub use transfer::{BufferId, ChangeSet, EdgeId, Fence, Payload, Round};
