//! `driftless sync`: recorded steps of a folder, from any trainer layout to any rollout layouts.

use crate::args::SyncArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::files::Folder;
use crate::plan;
use crate::recorded::FolderSource;
use crate::run::run;
use driftless_layout::RemapPlan;
use std::sync::Arc;
use tokio::task::block_in_place;

/// Checks every file, then runs.
pub(crate) async fn sync(args: SyncArgs) -> Result<(), Failure> {
    args.run.json.as_ref().map_or(Ok(()), crate::report::ReportTarget::check)?;
    let folder = Folder::open(&args.dir)?;
    let plan = plan(&folder, &args)?;
    folder.check(plan.params())?;
    let console = Console::of_run(&args.run, folder.steps().len());
    let device = args.run.open_device()?;
    let how = (args.family, args.run.detector);
    let load = || FolderSource::new(folder, &plan, how, Arc::clone(&device), console.activity());
    let source = block_in_place(load)?;
    run(plan, Box::new(source), args.run, device, console).await
}

fn plan(folder: &Folder, args: &SyncArgs) -> Result<RemapPlan, Failure> {
    let path = folder.config_path();
    let (config, dtypes) = plan::read_folder(folder)?;
    plan::compile(path, config, dtypes, &args.trainer, &args.rollouts)
}
