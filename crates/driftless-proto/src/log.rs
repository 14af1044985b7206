#![doc = include_str!("../LOG.md")]

mod append;
mod chain;
mod follow;
mod publish;
mod retire;
mod words;

pub use append::{Append, AppendCommand, AppendEvent};
pub use chain::{Chain, Fall};
pub use follow::{
    Cursor, Dirty, Done, FollowCommand, FollowEvent, FollowOptions, FollowStop, Goal, Highest, Leasing,
    Memory, Trouble, Writing,
};
pub use publish::{
    Ask, Lineage, PublishCommand, PublishEvent, PublishOptions, PublishStop, Refusal, Task, TaskKind,
};
pub use retire::{BlobKey, RetireCommand, RetireEvent, RetireMode, RetireOptions, RetireStop};
pub use words::{Fault, Lease, LogTimer, Patience, Presence, Published, Reading, Stored};
