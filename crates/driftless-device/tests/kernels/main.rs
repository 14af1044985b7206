//! The CUDA kernels against their twins on the CPU, bit for bit, on machines without a GPU.
//!
//! The very `.cu` files are compiled for the host by `g++` and run by the shim in `kernels/shim`: threads of a block in
//! a seeded random order, several blocks alive together, at block sizes from one warp to the largest. A machine without
//! `g++` fails these tests: nothing is skipped.
#![expect(unsafe_code, reason = "kernels are C functions that take pointers")]
#![allow(clippy::cast_possible_truncation, clippy::panic, reason = "test data are small")]

mod abi;
mod bits;
mod block16;
mod boxes;
mod chain;
mod detect;
mod faults;
mod golden;
mod lists;
mod pass;
mod scalars;
mod scans;
mod shim;
#[path = "../support/mod.rs"]
mod support;
