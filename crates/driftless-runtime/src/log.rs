//! Across clusters: a trainer's versions into a log, and a log's versions into a replica.
//!
//! A publisher and a reader are actors that execute the machines of [`driftless_proto::log`] over a store. What must
//! survive them is outside: patches in the [`LogTarget`], weights and digests in the [`FollowBinding`], the reader's place
//! in whatever [`Keep`]s it. The machines decide; what is kept here, beyond that:
//! - **LG-3 (blobs first).** A version is read from the manifests of all its writers, each present exactly once, and
//!   written by all of them.
//! - **LG-5 (lineage).** A patch for the log says how far elements moved only if it leads from exactly the version that
//!   the stream holds.
//! - **LG-6 (atomicity).** The dirty mark, the weights and the cursor are durable before what comes after each of them.
//! - **LG-9 (orphans).** A publisher goes on in a new epoch after each further anchor, so that what it wrote before can be
//!   collected while it runs.
//! - **CM-14 (current before it serves).** Weights that a process finds are compared with the entry's digests before they
//!   are served.
//! - **LG-13 (checked first).** An entry's signature is checked before anything of it is parsed, and every byte of a
//!   blob before anything of it is written.

mod apply;
mod applying;
mod area;
mod cells;
mod encode;
mod follower;
mod genesis;
mod io;
mod keep;
mod memo;
mod patch;
mod proving;
mod publisher;
mod reading;
mod status;
mod target;

pub use apply::{NotApplied, sections};
pub(crate) use follower::{FollowerActor, FollowerMsg};
pub use genesis::{StreamError, StreamModel, stream_model};
pub use io::{LogIo, LogIoError, fault};
pub use keep::{InProcess, Keep, KeepError, StateFile, remove_unfinished, replace, write_whole};
pub(crate) use patch::conclude;
pub use patch::first;
pub(crate) use publisher::{PublisherActor, PublisherMsg};
pub use reading::{FollowBinding, FollowOptions};
pub use status::{FollowEnd, FollowState, Publication, PublishState};
pub use target::{Lineage, LogStep, LogTarget, PublishOptions, WholeValues};
