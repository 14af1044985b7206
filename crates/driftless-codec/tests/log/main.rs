//! Sections of a log, from outside.

mod adam_like;
mod boxes;
mod damage;
mod golden;
mod hostile;
mod kit;
mod rice;
