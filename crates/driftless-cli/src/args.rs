//! The command line.

use crate::evaluations::Evaluations;
use crate::failure::Failure;
use crate::family::FamilyArg;
use crate::report::ReportTarget;
use crate::stream::{EXPORT_EXAMPLES, ExportArgs, FailpointArg, LOG_EXAMPLES, LogArgs, StreamArgs};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use driftless::log::StreamUrl;
use driftless::{Detector, Device, Place};
use driftless_layout::{RolloutLayout, TrainerLayout};
use std::path::PathBuf;
use std::sync::Arc;

const LAYOUTS: &str = "Trainer layouts:
  hf                             one process with whole parameters
  megatron:tp=T,pp=P,dp=D,ep=E   also vpp=, etp=, layers=A+B+.., bucket=, zero=0
  fsdp:world=N                   FSDP2; with replicas hsdp:world=N,replicas=R
  deepspeed:world=N,stage=S      ZeRO; groups=2 if decay has a group of its own
Rollout layouts:
  hf                             one engine with whole parameters
  vllm:tp=T,pp=P,ep=E            also placement=round-robin, w13=swapped
  sglang:tp=T,pp=P,ep=E          also w13=swapped
Axes that are not named are 1. The option router=fp32, as in vllm:tp=2,router=fp32,
serves the routers of an MoE model in FP32.";

const SYNC_EXAMPLES: &str = "Examples:
  driftless sync run/ --trainer hf --rollout vllm:tp=4
  driftless sync run/ --trainer megatron:tp=2,pp=2,dp=2 \\
      --rollout vllm:tp=4 --rollout vllm:tp=1 --json report.json
  driftless sync run/ --trainer megatron:tp=2,ep=4,dp=4 \\
      --rollout sglang:tp=2,ep=2 --detector snapshot --json -

Exit code: 0 every receiver identical at every version, 1 not identical,
2 bad input, 130 interrupted.";

const DEMO_EXAMPLES: &str = "Examples:
  driftless demo
  driftless demo --versions 100 --rollout sglang:tp=2 --json -
  driftless demo --chaos 7

Exit code: 0 every receiver identical at every version, 1 not identical,
2 bad input, 130 interrupted.";

const PLAN_EXAMPLES: &str = "Examples:
  driftless plan --model config.json --trainer megatron:tp=4,pp=2,dp=8 \\
      --rollout vllm:tp=2 --rollout vllm:tp=2
  driftless plan --model config.json --trainer fsdp:world=8 \\
      --rollout sglang:tp=4,ep=4 --json plan.json --svg plan.svg

Exit code: 0 planned, 2 bad input: the config, a layout, or the two together.";

const INSPECT_EXAMPLES: &str = "Examples:
  driftless inspect run/trainer-step-0007.safetensors
  driftless inspect run/policy-step-0006.safetensors --json
  driftless inspect fragment.section

Exit code: 0 described, 2 not a file that driftless knows.";

const CERTIFY_EXAMPLES: &str = "Examples:
  driftless certify steps/
  driftless certify steps/ --family torch --family agnostic --json -
  driftless certify --evaluations 1e8
  driftless certify --evaluations 1e10 --seed 7 --family apex

Exit code: 0 nothing missed, 1 a change was missed, 2 bad input,
130 interrupted, after a report of what was evaluated.";

const PUBLISH_EXAMPLES: &str = "Examples:
  driftless publish run/ --trainer megatron:tp=2,dp=2 --to file:///data/stream
  driftless publish run/ --trainer hf --to s3://bucket/policy --key publisher.key \\
      --anchor-every 50 --json -
  driftless publish --from-checkpoint model.safetensors --model config.json \\
      --to s3://bucket/policy

Credentials and endpoints come from the environment, as AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, AWS_ALLOW_HTTP, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME.

Exit code: 0 published, 1 stopped (fenced by another publisher, say), 2 bad input,
130 interrupted.";

const FOLLOW_EXAMPLES: &str = "Examples:
  driftless follow file:///data/stream --rollout vllm:tp=2 --out weights/
  driftless follow s3://bucket/policy --rollout hf --out weights/ --once --trust publisher.trust
  driftless follow https://host/policy --rollout hf --out weights/ --at-least 7 --no-lease

Exit code: 0 reached, 1 stopped (the log was forked, say), 2 bad input, 130 interrupted.";

const KEYGEN_EXAMPLES: &str = "Examples:
  driftless keygen --key publisher.key --trust publisher.trust

Exit code: 0 made, 2 a file exists or cannot be written.";

/// Keeps a fleet of rollout engines bit-identical to a trainer by sending only the weights that changed.
#[derive(Debug, Parser)]
#[command(name = "driftless", version, about, propagate_version = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a tiny policy in this process and keep rollout replicas identical to it, without any files.
    #[command(after_help = DEMO_EXAMPLES, after_long_help = format!("{LAYOUTS}\n\n{DEMO_EXAMPLES}"))]
    Demo(DemoArgs),
    /// Sync every recorded step of a folder from a trainer layout to rollout layouts, and prove the result.
    ///
    /// DIR holds config.json (Hugging Face keys), policy-step-NNNN.safetensors (served weights) and
    /// trainer-step-NNNN.safetensors (per parameter the FP32 master under its name, .exp_avg, .exp_avg_sq, with AMSGrad
    /// also .max_exp_avg_sq; metadata step, lr, beta1, beta2, eps, weight_decay, and optionally optimizer, family,
    /// moments, amsgrad, no_decay_suffix, and `<key>@<parameter>` for a parameter's own value). The rollouts start from
    /// the highest policy step below the first trainer step, and are compared with every later policy bit for bit.
    ///
    /// The optimizer is AdamW, Adam (weight decay as L2, inside the moments) or SGD. SGD has a momentum buffer as
    /// .exp_avg and no .exp_avg_sq, its metadata are step, lr, momentum, weight_decay; nesterov is refused. Moments are
    /// fp32, or, stored as F32 all the same, bf16 or bf16-stochastic if they were rounded between steps.
    #[command(after_help = SYNC_EXAMPLES, after_long_help = format!("{LAYOUTS}\n\n{SYNC_EXAMPLES}"))]
    Sync(SyncArgs),
    /// Plan who sends what to whom, from a model's config and the layouts alone.
    ///
    /// CONFIG is a Hugging Face config.json. Printed are parameters, fragments, boxes, edges and their bytes (the least,
    /// the median and the most) if all is sent, how many copies the rollouts hold together, what always goes dense, the
    /// plan's digest, and the time and the memory that planning took. Both sides of a sync compute the same plan: equal
    /// digests mean equal plans.
    #[command(after_help = PLAN_EXAMPLES, after_long_help = format!("{LAYOUTS}\n\n{PLAN_EXAMPLES}"))]
    Plan(PlanArgs),
    /// Publish every recorded step of a folder to a stream in an object store.
    ///
    /// DIR is as for sync. A stream that is there already is gone on with: from the version that it holds, if that is one
    /// of the recorded and proven by digest, else with an anchor that replaces it.
    #[command(after_help = PUBLISH_EXAMPLES, after_long_help = format!("{LAYOUTS}\n\n{PUBLISH_EXAMPLES}"))]
    Publish(PublishArgs),
    /// Follow a stream: keep the weights of one replica in a folder, each version proven.
    ///
    /// FOLDER gets a safetensors file per rank of the layout, replaced as a whole at each version, and state.json, which
    /// says what they are: nothing is served while they change. Whatever dies is started again with the same command.
    #[command(after_help = FOLLOW_EXAMPLES, after_long_help = format!("{LAYOUTS}\n\n{FOLLOW_EXAMPLES}"))]
    Follow(FollowArgs),
    /// List, describe, prove and clean up the entries of a stream.
    #[command(after_help = LOG_EXAMPLES)]
    Log(LogArgs),
    /// Write one version of a stream as a Hugging Face checkpoint: BF16 and F32 tensors under the model's names.
    ///
    /// The version is replayed from its anchor and proven by its digests before anything is written, with the weights in
    /// memory (2 bytes per parameter). `publish --from-checkpoint` of the file gives the same bits again.
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Make a key that signs what is published, and the file by which readers trust it.
    #[command(after_help = KEYGEN_EXAMPLES)]
    Keygen(KeygenArgs),
    /// Describe a trainer state, a policy file or a section file.
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
    /// Check that no change of an optimizer is missed, on recorded steps or on generated elements.
    ///
    /// DIR holds *.safetensors, each one recorded step: F32 tensors of one shape named before and after (the masters),
    /// exp_avg and exp_avg_sq (the moments after the step), with AMSGrad also max_exp_avg_sq, with SGD only exp_avg;
    /// metadata as for sync. A line per file says how many elements changed, how many of these the rule missed (none, if
    /// the family is right), and how many unchanged ones it would send (which only costs bytes).
    ///
    /// With --evaluations no files are needed: plausible, adversarial and special elements are stepped in every order of
    /// operations that trainers of the families use, for as long as you like.
    #[command(after_help = CERTIFY_EXAMPLES)]
    Certify(CertifyArgs),
}

/// What every run takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// How the trainer knows which weights changed.
    #[arg(long, value_enum, default_value_t = DetectorArg::Inversion)]
    pub(crate) detector: DetectorArg,
    /// Where weights are, and changes are found and applied: cpu, or cuda:N for a GPU.
    #[arg(long, value_name = "DEVICE", default_value_t = Place::Cpu)]
    pub(crate) device: Place,
    /// Write the report as JSON to FILE, or to standard output with `-`.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<ReportTarget>,
}

impl RunArgs {
    /// Opens the device that was asked for, and no other.
    pub(crate) fn open_device(&self) -> Result<Arc<dyn Device>, Failure> {
        self.device.open().map_err(|source| Failure::Device { device: self.device, source })
    }
}

/// The detectors that a user can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DetectorArg {
    /// Invert the optimizer's step; needs no memory, and can never miss a change.
    Inversion,
    /// Keep a BF16 copy of the last published weights; exact for any optimizer.
    Snapshot,
    /// Compare with the model's own BF16 weights before they are overwritten; exact for any optimizer.
    PreCopy,
    /// Take the optimizer's word for what each step changed; exact for any optimizer.
    InStep,
}

impl From<DetectorArg> for Detector {
    fn from(arg: DetectorArg) -> Self {
        match arg {
            DetectorArg::Inversion => Self::Inversion,
            DetectorArg::Snapshot => Self::Snapshot,
            DetectorArg::PreCopy => Self::PreCopy,
            DetectorArg::InStep => Self::InStep,
        }
    }
}

/// `driftless demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// How many versions to sync.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) versions: u64,
    /// Seed of the weights and gradients: one seed, one policy, on any layout.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Kill, panic or fail some actor at every version; a seed gives the same faults again.
    #[arg(long, value_name = "SEED")]
    pub(crate) chaos: Option<u64>,
    /// How the trainer holds the policy.
    #[arg(long, value_name = "LAYOUT", default_value = "megatron:tp=2,pp=2,dp=2")]
    pub(crate) trainer: TrainerLayout,
    /// How a rollout replica holds it; give it once per replica.
    #[arg(long = "rollout", value_name = "LAYOUT", default_values = ["vllm:tp=4", "vllm:tp=1"])]
    pub(crate) rollouts: Vec<RolloutLayout>,
    /// The rest.
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// `driftless sync`.
#[derive(Args, Debug)]
pub(crate) struct SyncArgs {
    /// The folder of the recorded steps.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// How the trainer holds the policy.
    #[arg(long, value_name = "LAYOUT")]
    pub(crate) trainer: TrainerLayout,
    /// How a rollout replica holds it; give it once per replica.
    #[arg(long = "rollout", value_name = "LAYOUT", required = true)]
    pub(crate) rollouts: Vec<RolloutLayout>,
    /// The optimizer family: agnostic, torch, ...; auto is the files' own, else agnostic.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) family: FamilyArg,
    /// The rest.
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// `driftless publish`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["dir", "from_checkpoint"]))]
pub(crate) struct PublishArgs {
    /// The folder of the recorded steps.
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Publish one Hugging Face checkpoint instead, as an anchor.
    #[arg(long, value_name = "FILE")]
    pub(crate) from_checkpoint: Option<PathBuf>,
    /// The checkpoint's config.
    #[arg(long, value_name = "CONFIG", requires = "from_checkpoint")]
    pub(crate) model: Option<PathBuf>,
    /// The checkpoint's version.
    #[arg(long, value_name = "V", default_value_t = 0, requires = "from_checkpoint")]
    pub(crate) version: u64,
    /// How the trainer holds the policy.
    #[arg(long, value_name = "LAYOUT", default_value = "hf")]
    pub(crate) trainer: TrainerLayout,
    /// Where the stream is, or is to be: file:///folder, s3://bucket/prefix, gs://, az://.
    #[arg(long, value_name = "URL")]
    pub(crate) to: StreamUrl,
    /// Write an anchor after so many deltas.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) anchor_every: Option<u32>,
    /// Sign entries with the key of FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Believe what the keys of FILE signed [default: the key of --key].
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
    /// The optimizer family: agnostic, torch, ...; auto is the files' own, else agnostic.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) family: FamilyArg,
    /// How the trainer knows which weights changed.
    #[arg(long, value_enum, default_value_t = DetectorArg::Inversion)]
    pub(crate) detector: DetectorArg,
    /// Close a blob before it grows beyond this, in bytes: six of them bound the memory that publishing takes.
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub(crate) blob_bytes: usize,
    /// How long `log retire` waits for readers of a stream that is founded now, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) lease_ttl: u64,
    /// Write the report as JSON to FILE, or to standard output with `-`.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<ReportTarget>,
    /// For tests: kill or stop this process at a place, such as publisher-creates=kill@2.
    #[arg(long = "failpoint", value_name = "SITE=FAULT@N")]
    pub(crate) failpoints: Vec<FailpointArg>,
}

/// `driftless follow`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("goal").args(["once", "at_least", "exactly"]))]
pub(crate) struct FollowArgs {
    /// The stream.
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
    /// How the replica holds the policy.
    #[arg(long, value_name = "LAYOUT")]
    pub(crate) rollout: RolloutLayout,
    /// The folder that the weights are kept in.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: PathBuf,
    /// End at the end of the log as it is.
    #[arg(long)]
    pub(crate) once: bool,
    /// End at this version, or a later one.
    #[arg(long, value_name = "V")]
    pub(crate) at_least: Option<u64>,
    /// End at this version: waited for as long as it can still come, an error once it cannot.
    #[arg(long, value_name = "V")]
    pub(crate) exactly: Option<u64>,
    /// Pin nothing in the store, which may then be read-only: retention may interrupt this reader.
    #[arg(long)]
    pub(crate) no_lease: bool,
    /// For tests: kill or stop this process at a place, such as follower-writes=kill@2.
    #[arg(long = "failpoint", value_name = "SITE=FAULT@N")]
    pub(crate) failpoints: Vec<FailpointArg>,
}

/// `driftless keygen`.
#[derive(Args, Debug)]
pub(crate) struct KeygenArgs {
    /// Where the secret key goes: a new file that only you can read.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
    /// Where the file for readers goes.
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: PathBuf,
}

/// `driftless plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// The model's config.
    #[arg(long, value_name = "CONFIG")]
    pub(crate) model: PathBuf,
    /// How the trainer holds the policy.
    #[arg(long, value_name = "LAYOUT")]
    pub(crate) trainer: TrainerLayout,
    /// How a rollout replica holds it; give it once per replica.
    #[arg(long = "rollout", value_name = "LAYOUT", required = true)]
    pub(crate) rollouts: Vec<RolloutLayout>,
    /// Write the numbers as JSON to FILE, or to standard output with `-`.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<ReportTarget>,
    /// Draw who sends what to whom, as SVG to FILE, or to standard output with `-`.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<ReportTarget>,
}

/// `driftless inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// The file to describe.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Describe it as JSON, to standard output or to FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<ReportTarget>,
}

/// `driftless certify`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("work").required(true).args(["dir", "evaluations"]))]
pub(crate) struct CertifyArgs {
    /// The folder of the recorded steps.
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// How many generated elements to step, at least, over all orders of operations: 1e8, 100_000_000, ...
    #[arg(long, value_name = "COUNT")]
    pub(crate) evaluations: Option<Evaluations>,
    /// Seed of the generated elements.
    #[arg(long, default_value_t = 1, conflicts_with = "dir")]
    pub(crate) seed: u64,
    /// The optimizer family; give it once per family [default: auto, the file's own or else agnostic; every family
    /// with --evaluations].
    #[arg(long = "family", value_name = "NAME")]
    pub(crate) families: Vec<FamilyArg>,
    /// Write the report as JSON to FILE, or to standard output with `-`.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<ReportTarget>,
}
