//! `driftless publish`: recorded steps of a folder, or one checkpoint, into a stream.

use super::keys::{Purpose, open, signer, trust, without_key};
use super::{bits_each, stream_failure};
use crate::args::PublishArgs;
use crate::console::{Console, Lines, counted};
use crate::failure::Failure;
use crate::files::{BadInput, Folder, PolicyFile};
use crate::plan::{at_config, parse_config, peak_rss_bytes, read_folder};
use crate::recorded::{CheckpointSource, FolderSource};
use crate::report::milliseconds;
use crate::source::StateSource;
use driftless::log::{
    LogIo, Publication, PublishOptions, PublishState, PublishStop, Published, Publishing, StreamError,
    WholeValues, stream_model,
};
use driftless::{Device, Node, NodeOptions, Place, RunId, Trainer, TrainerMemory, Version};
use driftless_layout::{LayoutError, Model, RemapPlan, ServedDtypes};
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use tokio::task::block_in_place;

/// What was published; keys in the documented order.
#[derive(Debug, Serialize)]
struct PublishReport {
    stream: String,
    run: String,
    versions: Vec<PublishedReport>,
    /// The largest resident set of the process so far, in bytes; `null` where the system does not tell.
    peak_rss_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct PublishedReport {
    version: u64,
    /// The base of a delta; `null` for an anchor.
    base: Option<u64>,
    seq: u64,
    epoch: u64,
    nnz: u64,
    blobs: usize,
    stored_bytes: u64,
    /// Of a delta.
    bits_per_change: Option<f64>,
    ms: f64,
}

/// The model, as config and dtypes say, and where its weights are.
struct Source {
    config: String,
    model: Model,
    states: States,
}

/// Where weights are.
enum States {
    /// In the steps of a folder.
    Recorded(Folder),
    /// In one file.
    Checkpoint(PolicyFile),
}

impl States {
    /// Reads the first of them.
    fn load(
        self,
        plan: &RemapPlan,
        args: &PublishArgs,
        console: &Console,
    ) -> Result<Box<dyn StateSource>, Failure> {
        let (device, activity) = (cpu()?, console.activity());
        Ok(match self {
            Self::Recorded(folder) => {
                let how = (args.family, args.detector);
                Box::new(FolderSource::new(folder, plan, how, device, activity)?)
            }
            Self::Checkpoint(policy) => {
                Box::new(CheckpointSource::new(&policy, args.version, plan, &*device, &activity)?)
            }
        })
    }
}

/// Checks every file, then publishes what the stream does not hold.
pub(crate) async fn publish(args: PublishArgs) -> Result<(), Failure> {
    args.json.as_ref().map_or(Ok(()), crate::report::ReportTarget::check)?;
    let source = match (&args.dir, &args.from_checkpoint) {
        (Some(dir), _) => recorded(dir, &args)?,
        (None, Some(file)) => checkpoint(file, &args)?,
        (None, None) => return Err(Failure::Usage("publish a folder or --from-checkpoint FILE".into())),
    };
    let plan = |planned: Result<RemapPlan, LayoutError>| {
        planned.map_err(|source| Failure::Layout { place: format!("--trainer {}", args.trainer), source })
    };
    let log_plan = plan(RemapPlan::compile_log(&source.model, &args.trainer))?;
    let node_plan = plan(RemapPlan::compile(&source.model, &args.trainer, &[]))?;
    let signer = signer(args.key.as_deref())?;
    let io = LogIo {
        stream: open(&args.to, Purpose::Write)?,
        trust: trust(args.trust.as_deref(), &signer)?,
        signer,
    };
    let run = run_of(&io, &source.model, &args).await?;
    let console = Console::counting(Lines::beside(args.json.as_ref()), 0, "versions");
    let states = block_in_place(|| source.states.load(&node_plan, &args, &console))?;
    let mut session = Session::start(node_plan, log_plan, io, run, source.config, states, &args).await?;
    let versions = session.publish_all(&console).await?;
    session.node.stop().await;
    let report = PublishReport {
        stream: args.to.to_string(),
        run: run.to_string(),
        versions,
        peak_rss_bytes: peak_rss_bytes(),
    };
    console.line(&summary(&report));
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))
}

fn recorded(dir: &Path, args: &PublishArgs) -> Result<Source, Failure> {
    let folder = Folder::open(dir)?;
    let path = folder.config_path().to_owned();
    let (config, dtypes) = read_folder(&folder)?;
    let served = ServedDtypes::new(dtypes, &args.trainer, &[]).map_err(|source| at_config(&path, source))?;
    let model = Model::new(config, &served).map_err(|source| at_config(&path, source))?;
    folder.check(model.params())?;
    let config = folder.config().to_owned();
    Ok(Source { config, model, states: States::Recorded(folder) })
}

fn checkpoint(file: &Path, args: &PublishArgs) -> Result<Source, Failure> {
    let path = args.model.as_deref();
    let path = path.ok_or_else(|| Failure::Usage("--from-checkpoint needs --model CONFIG".into()))?;
    let config = std::fs::read_to_string(path)
        .map_err(|error| BadInput::file(path, error.to_string(), "the model's config, a JSON file"))?;
    let policy = PolicyFile::open(file)?;
    let served = ServedDtypes::new(policy.dtypes()?, &args.trainer, &[]);
    let served = served.map_err(|source| at_config(path, source))?;
    let model =
        Model::new(parse_config(path, &config)?, &served).map_err(|source| at_config(path, source))?;
    policy.check(model.params())?;
    Ok(Source { config, model, states: States::Checkpoint(policy) })
}

fn cpu() -> Result<Arc<dyn Device>, Failure> {
    Place::Cpu.open().map_err(|source| Failure::Device { device: Place::Cpu, source })
}

/// The run of the stream that is there already, or a new one.
async fn run_of(io: &LogIo, model: &Model, args: &PublishArgs) -> Result<RunId, Failure> {
    match stream_model(io).await {
        Ok(stream) if stream.model.params() == model.params() => Ok(stream.run),
        Ok(_) => Err(Failure::Usage(format!(
            "{} holds a stream of another model: use another address, or the model that it is of",
            args.to
        ))),
        Err(StreamError::Absent) => Ok(RunId(uuid::Uuid::new_v4().into_bytes())),
        Err(error) => Err(stream_failure(&args.to, error)),
    }
}

/// The node and its handles.
struct Session {
    node: Node,
    trainer: Trainer,
    publishing: Publishing,
    states: Box<dyn StateSource>,
    /// The version that the trainer is at.
    at: u64,
    url: String,
}

impl Session {
    async fn start(
        plan: RemapPlan,
        log_plan: RemapPlan,
        io: LogIo,
        run: RunId,
        model_config: String,
        mut states: Box<dyn StateSource>,
        args: &PublishArgs,
    ) -> Result<Self, Failure> {
        let at = go_on_from(&io, &mut *states, args).await?;
        let options = NodeOptions { run, detector: args.detector.into(), ..states.options() };
        args.failpoints.iter().for_each(|failpoint| failpoint.arm(&options.failpoints));
        let node = Node::start(plan, options).await.map_err(runtime)?;
        let options = PublishOptions {
            model_config,
            anchor_every: args.anchor_every,
            // Nobody trains here: the weights may stand still for as long as an upload takes.
            values: WholeValues::Standing,
            blob_bytes: args.blob_bytes,
            lease_ttl_s: args.lease_ttl,
            ..PublishOptions::default()
        };
        let publishing = node.publish(log_plan, io, options).map_err(runtime)?;
        let memory = TrainerMemory {
            ranks: states.memory(),
            steps_taken: at,
            version: Version(at),
            family: states.family(),
        };
        let trainer = node.attach_trainer(memory).await.map_err(runtime)?;
        Ok(Self { node, trainer, publishing, states, at, url: args.to.to_string() })
    }

    async fn publish_all(&mut self, console: &Console) -> Result<Vec<PublishedReport>, Failure> {
        console.line(&header());
        let mut reports = Vec::new();
        reports.extend(self.published(console).await?);
        let later: Vec<u64> = self.states.versions().into_iter().filter(|&v| v > self.at).collect();
        console.expect(later.len());
        for version in later {
            let step = self.trainer.step_begin().await;
            let params = block_in_place(|| self.states.advance(version))?;
            console.activity().doing(format!("v{version}: publishing"));
            let sync = self.trainer.step_done(step, Version(version), params).map_err(runtime)?;
            sync.detected().await;
            self.at = version;
            reports.extend(self.published(console).await?);
            console.step();
        }
        Ok(reports)
    }

    /// Waits until the stream holds the version that the trainer is at; what it took, if it was written now.
    async fn published(&self, console: &Console) -> Result<Option<PublishedReport>, Failure> {
        let waiting = self.publishing.published(Version(self.at));
        let warning = warn_of_outages(&self.publishing, console);
        let published = tokio::select! {
            published = waiting => published,
            () = warning => unreachable!("it waits for ever"),
        };
        let published = published.map_err(|state| self.ended(&state))?;
        let PublishState::Open { took: Some(took), .. } = self.publishing.status().borrow().clone() else {
            console.line(&format!("v{:<6} is in the stream already, entry {}", self.at, published.seq));
            return Ok(None);
        };
        console.line(&line(&published, &took));
        Ok(Some(report(&published, &took)))
    }

    fn ended(&self, state: &PublishState) -> Failure {
        if let PublishState::Stopped(PublishStop::Signed { seq, key }) = state {
            return without_key(&self.url, *seq, *key);
        }
        let source = match state {
            PublishState::Stopped(stop) => (*stop).into(),
            other => format!("{other:?}").into(),
        };
        Failure::Ended { place: self.url.clone(), source }
    }
}

/// Brings the memory to the version that the stream holds, if it is one of the recorded.
async fn go_on_from(io: &LogIo, states: &mut dyn StateSource, args: &PublishArgs) -> Result<u64, Failure> {
    let last = io.last().await.map_err(|error| stream_failure(&args.to, error))?;
    let last = last.and_then(|stored| stored.published()).map(|published| published.version.0);
    match last.filter(|version| states.versions().contains(version)) {
        Some(version) => {
            block_in_place(|| states.advance(version))?;
            Ok(version)
        }
        None => Ok(states.start()),
    }
}

async fn warn_of_outages(publishing: &Publishing, console: &Console) {
    let mut status = publishing.status();
    loop {
        let down = match *status.borrow_and_update() {
            PublishState::Down(fault) => Some(fault),
            _ => None,
        };
        if let Some(fault) = down {
            console.warn(&format!("the store does not take what is published, trying on: {fault}"));
        }
        if status.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn report(published: &Published, took: &Publication) -> PublishedReport {
    PublishedReport {
        version: published.version.0,
        base: took.base.map(|base| base.0),
        seq: published.seq.0,
        epoch: published.epoch.counter,
        nnz: took.nnz,
        blobs: took.blobs,
        stored_bytes: took.stored_bytes,
        bits_per_change: took.base.map(|_| bits_per_change(took)),
        ms: milliseconds(took.took),
    }
}

fn bits_per_change(took: &Publication) -> f64 {
    bits_each(took.stored_bytes, took.nnz)
}

fn header() -> String {
    format!(
        "{:<7} {:<12} {:>6} {:>12} {:>12} {:>6} {:>12}",
        "", "", "entry", "elements", "stored", "blobs", "bits each"
    )
}

fn line(published: &Published, took: &Publication) -> String {
    let kind = took.base.map_or_else(|| "anchor".to_owned(), |base| format!("delta of v{base}"));
    format!(
        "{:<7} {kind:<12} {:>6} {:>12} {:>12} {:>6} {:>12.2}",
        format!("v{}", published.version),
        published.seq.0,
        HumanCount(took.nnz).to_string(),
        HumanBytes(took.stored_bytes).to_string(),
        took.blobs,
        bits_per_change(took),
    )
}

fn summary(report: &PublishReport) -> String {
    let bytes = report.versions.iter().map(|version| version.stored_bytes).sum();
    format!("published {} in {}", counted(report.versions.len(), "version"), HumanBytes(bytes))
}

fn runtime(error: driftless::NodeError) -> Failure {
    Failure::Runtime(error.into())
}
