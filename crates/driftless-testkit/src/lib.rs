//! What tests and the demo are made of.
#![forbid(unsafe_code)]

pub mod sim;
mod standin;
mod trainer;

pub use standin::standin_folder;
pub use trainer::{TINY_CONFIG, TensorBuffers, TensorState, TinyTrainer, tiny_model, tiny_plan};
