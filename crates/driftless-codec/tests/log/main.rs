//! Sections of a log, from outside.

mod adam_like;
mod boxes;
mod damage;
mod hostile;
mod kit;
mod rice;
