//! A reader of a stream.

mod words;

pub use words::{
    Cursor, Dirty, Done, FollowCommand, FollowEvent, FollowOptions, FollowStop, Goal, Highest, Leasing,
    Memory, Trouble, Writing,
};
