//! Entries of a log, from outside.

mod golden;
mod hostile;
mod keys;
mod kit;
mod round_trips;
mod tables;
