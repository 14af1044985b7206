//! The `driftless` program: `demo`, `sync`, `publish`, `follow`, `log`, `export`, `keygen`, `plan`, `inspect` and `certify`.
//!
//! Exit codes: 0 every receiver identical at every version (of `certify`: nothing missed; of `plan`: planned), 1 not so, 2 bad input, 130 interrupted.
#![forbid(unsafe_code)]

mod args;
mod certify;
mod chaos;
mod console;
mod demo;
mod evaluations;
mod failure;
mod family;
mod files;
mod fleet;
mod inspect;
mod placement;
mod plan;
mod recorded;
mod report;
mod run;
mod source;
mod stream;
mod sync;

use args::{Cli, Command};
use clap::Parser;
use console::Lines;
use failure::Failure;
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::EnvFilter;

/// How long a run that was interrupted may take to clean up.
const CLEAN_UP: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let result = match cli.command {
        Command::Demo(args) => until_interrupted(demo::demo(args)),
        Command::Sync(args) => until_interrupted(sync::sync(args)),
        Command::Plan(args) => plan::run(&args),
        Command::Publish(args) => until_interrupted(stream::publish(args)),
        Command::Follow(args) => until_interrupted(stream::follow(args)),
        Command::Log(args) => until_interrupted(stream::log(args)),
        Command::Export(args) => until_interrupted(stream::export(args)),
        Command::Keygen(args) => stream::keygen(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Certify(args) => until_it_ends(certify::certify(args)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            Lines::Stderr.write(&format!("error: {}", failure.line()));
            failure.exit_code()
        }
    }
}

/// Runs on a runtime of its own until the end or Ctrl-C; temporary files are gone in both cases.
fn until_interrupted(
    work: impl Future<Output = Result<(), Failure>> + Send + 'static,
) -> Result<(), Failure> {
    let runtime = runtime()?;
    let mut task = runtime.spawn(work);
    let result = runtime.block_on(async {
        tokio::select! {
            ended = &mut task => ended.unwrap_or_else(|error| Err(Failure::Runtime(error.into()))),
            _ = tokio::signal::ctrl_c() => {
                // Whatever the work holds, such as a half-written report, is dropped with it.
                task.abort();
                let _ = tokio::time::timeout(CLEAN_UP, task).await;
                Err(Failure::Interrupted)
            }
        }
    });
    // The process ends now. A runtime that is shut down instead panics every actor that waits for a timer.
    std::mem::forget(runtime);
    result
}

/// Runs work that minds Ctrl-C itself.
fn until_it_ends(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    runtime()?.block_on(work)
}

fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread().enable_all().build().map_err(|error| Failure::Runtime(error.into()))
}
