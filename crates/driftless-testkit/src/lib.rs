//! What tests and the demo are made of.
#![forbid(unsafe_code)]

pub mod sim;
mod trainer;

pub use trainer::{TINY_CONFIG, TensorState, TinyTrainer, tiny_model, tiny_plan};
