//! The CUDA backend on the stand-in, each test in a process of its own.
#![cfg(feature = "cuda")]

mod fleet;
mod hostile;
mod log;
mod masks;
mod opening;
mod sections;
mod streams;
#[path = "../../../../crates/driftless-device/tests/support/mod.rs"]
mod support;
mod threads;
mod twins;
