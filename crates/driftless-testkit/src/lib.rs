//! What tests and the demo are made of.
#![forbid(unsafe_code)]

pub mod sim;
mod trainer;

pub use trainer::{TensorState, TinyTrainer, tiny_plan};
