//! `driftless plan`: who sends what to whom, from a config and layouts alone, and what it costs to know it.

use crate::args::PlanArgs;
use crate::console::{Lines, warn};
use crate::failure::Failure;
use crate::files::{BadInput, Folder};
use crate::report::{self, ReportTarget};
use driftless_layout::{
    LayoutError, Model, ModelConfig, PlanSummary, RemapPlan, RolloutLayout, ServedDtypes, TrainerLayout,
};
use driftless_types::{Dtype, Fqn};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// What was planned, what came out, and what it took; keys in the documented order.
#[derive(Debug, Serialize)]
struct PlanReport<'a> {
    model: String,
    trainer: String,
    rollouts: Vec<String>,
    #[serde(flatten)]
    summary: &'a PlanSummary,
    /// Milliseconds from the config's text to the plan.
    plan_ms: f64,
    /// The largest resident set of the process so far, in bytes; `null` where the system does not tell.
    peak_rss_bytes: Option<u64>,
}

/// Plans, and writes whatever was asked for.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let targets = || args.json.iter().chain(&args.svg);
    targets().try_for_each(ReportTarget::check)?;
    if targets().filter(|target| **target == ReportTarget::Stdout).count() > 1 {
        return Err(Failure::Usage("--json and --svg cannot both go to standard output".into()));
    }
    let text = read_config(&args.model)?;
    let start = Instant::now();
    let config = parse_config(&args.model, &text)?;
    let plan = compile(&args.model, config, BTreeMap::new(), &args.trainer, &args.rollouts)?;
    let (took, peak_rss_bytes) = (start.elapsed(), peak_rss_bytes());
    let summary = plan.summary();
    let on_stdout = targets().find(|target| **target == ReportTarget::Stdout);
    let lines = Lines::beside(on_stdout);
    lines.write(&format!("{summary}\nplanned in   {}", cost(took, peak_rss_bytes)));
    if let Some(target) = &args.svg {
        target.write_text(plan.svg().as_bytes())?;
    }
    let Some(target) = &args.json else { return Ok(()) };
    target.write(&PlanReport {
        model: args.model.display().to_string(),
        trainer: args.trainer.to_string(),
        rollouts: args.rollouts.iter().map(ToString::to_string).collect(),
        summary: &summary,
        plan_ms: report::milliseconds(took),
        peak_rss_bytes,
    })
}

fn cost(took: Duration, peak_rss_bytes: Option<u64>) -> String {
    let time = format!("{:.1} ms", report::milliseconds(took));
    match peak_rss_bytes {
        Some(peak) => format!("{time}, peak memory {}", indicatif::BinaryBytes(peak)),
        None => time,
    }
}

/// The largest resident set of this process so far, where the system tells.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn read_config(path: &Path) -> Result<String, BadInput> {
    fs::read_to_string(path)
        .map_err(|error| BadInput::file(path, error.to_string(), "the model's config, a JSON file"))
}

/// Parses the text of the config at `path`.
pub(crate) fn parse_config(path: &Path, text: &str) -> Result<ModelConfig, Failure> {
    ModelConfig::from_json(text).map_err(|source| at_config(path, source))
}

/// The config of a folder, and the dtypes of the policy that it starts from.
pub(crate) fn read_folder(folder: &Folder) -> Result<(ModelConfig, BTreeMap<Fqn, Dtype>), Failure> {
    let path = folder.config_path();
    let config = parse_config(path, folder.config())?;
    let any_dtype =
        Model::new(config.clone(), &ServedDtypes::default()).map_err(|source| at_config(path, source))?;
    let dtypes = folder.served_dtypes(any_dtype.params())?;
    Ok((config, dtypes))
}

/// Plans the model of the config at `path`; `dtypes` are those of the starting policy, if there is one.
pub(crate) fn compile(
    path: &Path,
    config: ModelConfig,
    dtypes: BTreeMap<Fqn, Dtype>,
    trainer: &TrainerLayout,
    rollouts: &[RolloutLayout],
) -> Result<RemapPlan, Failure> {
    let planned = || {
        let served = ServedDtypes::new(dtypes, trainer, rollouts)?;
        let model = Model::new(config, &served)?;
        warn_of_ignored_axes(&model, rollouts);
        RemapPlan::compile(&model, trainer, rollouts)
    };
    planned().map_err(|source| {
        let rollouts: Vec<_> = rollouts.iter().map(|layout| format!("--rollout {layout}")).collect();
        let place = format!("{} with --trainer {trainer} {}", path.display(), rollouts.join(" "));
        Failure::Layout { place, source }
    })
}

/// Engines take expert parallelism for a dense model and ignore it; so do we, but not silently.
fn warn_of_ignored_axes(model: &Model, rollouts: &[RolloutLayout]) {
    let ignoring = rollouts.iter().filter(|layout| layout.ignores_expert_axis(model));
    // Replicas are often alike: one line for all of them.
    for layout in ignoring.map(ToString::to_string).collect::<BTreeSet<_>>() {
        warn(&format!("--rollout {layout}: the model has no experts, so `ep` has no effect"));
    }
}

/// Blames the config alone.
pub(crate) fn at_config(path: &Path, source: LayoutError) -> Failure {
    Failure::Layout { place: path.display().to_string(), source }
}
