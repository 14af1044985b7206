//! What the machines of the log decide, transition by transition.

mod append;
mod words;
