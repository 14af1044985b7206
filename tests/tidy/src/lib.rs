//! The house rules that no lint checks. Each is one module with one function from a `tree::Tree` to a list of
//! offenders, run on this repository, and run on a small bad tree to show that it can fail:
//!
//! | module | rule |
//! |---|---|
//! | `layers` | crates depend on lower crates only, along the arrows listed there; pure crates see no runtime |
//! | `sizes` | files under 500 lines without their tests, functions of at most 70 lines |
//! | `invariants` | every invariant id that code cites is stated, and pinned by a test of its name |
//! | `headers` | `lib.rs` and `main.rs` begin with `//!`, pure crates forbid unsafe code, only one crate has any |
//! | `kernels` | every CUDA kernel has a twin on the CPU and a golden vector that a test runs it on |
//! | `files` | tracked files are small, speak of no machine, and configurations parse |
#![cfg(test)]

mod files;
mod headers;
mod invariants;
mod kernels;
mod layers;
mod sizes;
mod source;
mod tree;

/// Fails with every offender at once, each on a line of its own.
fn demand(rule: &str, offenders: &[String]) {
    assert!(offenders.is_empty(), "{rule}\n  {}\n", offenders.join("\n  "));
}
