#![doc = include_str!("../LOG.md")]

mod append;
mod chain;
mod follow;
mod look_back;
mod publish;
mod retire;
mod words;

pub use append::{Append, AppendCommand, AppendEvent};
pub use chain::{Breach, Chain, Effect, Fall};
pub use follow::{
    Cursor, Dirty, Done, Follow, FollowCommand, FollowEvent, FollowOptions, FollowStop, Goal, Highest,
    Leasing, Memory, Trouble, Writing,
};
pub use publish::{
    Ask, Lineage, Publish, PublishCommand, PublishEvent, PublishOptions, PublishStop, Refusal, Task, TaskKind,
};
pub use retire::{BlobKey, Retire, RetireCommand, RetireEvent, RetireMode, RetireOptions, RetireStop};
pub use words::{Fault, Lease, LogTimer, Patience, Presence, Published, Reading, Stored};
