//! placeholder
mod memory;
pub use memory::{Element, ReadGuard, SharedBuffer, StateBuffer, WordBuffer, WriteGuard};
