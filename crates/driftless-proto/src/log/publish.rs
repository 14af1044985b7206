//! The publisher of a stream.

mod words;

pub use words::{
    Ask, Lineage, PublishCommand, PublishEvent, PublishOptions, PublishStop, Refusal, Task, TaskKind,
};
