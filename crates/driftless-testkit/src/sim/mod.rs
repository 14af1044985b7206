//! A simulated cluster around the machines of `driftless-proto`: one thread, logical time, one seed.
//!
//! Every actor of production has a shell here that does what its machine asks: senders with a patch in their
//! binding, receivers with live weights, an undo log and a phase that outlive them, a lead in receiver 0 of each
//! replica, and a coordinator. Words between two living actors arrive in order after a random delay; words to a
//! life that is over are lost. Which faults happen, when, and how long everything takes is drawn from the seed, so
//! a seed replays a run exactly. The promises of the protocol are checked at every event by code that looks at
//! the shells alone and trusts no machine; see [`Breach`].
//!
//! ```
//! use driftless_testkit::sim::{SimOptions, run};
//! let seed = 7;
//! let report = run(seed, &SimOptions::stormy(seed)).map_err(|failure| failure.to_string())?;
//! assert!(report.commits >= 1);
//! # Ok::<(), String>(())
//! ```

mod actors;
mod binding;
mod check;
mod coordinators;
mod engine;
mod message;
mod options;
mod receivers;
mod rng;
mod senders;
mod trace;
mod transport;
mod world;

pub use check::Breach;
pub use options::{FaultKind, Missing, Sabotage, SimOptions};

use std::fmt;
use world::World;

/// What a run that kept every promise did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Events that happened.
    pub events: u64,
    /// A hash of all of them in order: equal for equal seeds and options.
    pub trace_digest: u64,
    /// Attempts that a coordinator opened.
    pub attempts: u64,
    /// Attempts that a lead reported as committed.
    pub commits: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// The logical time of the last event, in ms.
    pub ended_at_ms: u64,
}

/// A run that broke a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Replays the run.
    pub seed: u64,
    /// The broken promise.
    pub breach: Breach,
    /// The last things that happened, oldest first.
    pub tail: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}: {}", self.seed, self.breach.invariant, self.breach.found)?;
        self.tail.iter().try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl std::error::Error for Failure {}

/// Runs one simulated cluster until nothing is left to happen.
///
/// # Errors
/// [`Failure`] if a promise was broken, with the trace's tail.
pub fn run(seed: u64, options: &SimOptions) -> Result<Report, Box<Failure>> {
    let mut world = World::new(seed, options);
    match world.run() {
        Ok(()) => Ok(world.report()),
        Err(breach) => Err(Box::new(Failure { seed, breach, tail: world.tail() })),
    }
}
