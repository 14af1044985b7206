//! The transitions of each machine, one file a machine; the names of the tests carry the ids they pin.

mod coordinator;
mod exchange;
mod lead;
mod participant;
mod patch;
mod place;
mod words;
