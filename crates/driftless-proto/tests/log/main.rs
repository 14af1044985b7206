//! What the machines of the log decide, transition by transition.

mod append;
mod follow;
mod publish;
mod reader;
mod retire;
mod words;
