//! `driftless follow`: a stream into the weights of one replica, kept in a folder.

use super::keys::reading;
use super::out_dir::OutDir;
use super::stream_failure;
use crate::args::FollowArgs;
use crate::console::{Console, Lines};
use crate::failure::Failure;
use crate::fleet::zeroed;
use crate::plan::peak_rss_bytes;
use driftless::log::{
    BaseWords, Follow, FollowEnd, FollowOptions, FollowState, Following, Goal, Leasing, Published,
    stream_model,
};
use driftless::{
    Buffer, LayoutClaim, Node, NodeOptions, ReplicaId, RolloutMemory, TensorMemory, Version, WordBuffer,
};
use driftless_layout::RemapPlan;
use indicatif::HumanBytes;
use serde::Serialize;
use std::sync::Arc;

/// What the folder holds at the end; keys in the documented order.
#[derive(Debug, Serialize)]
struct FollowReport {
    stream: String,
    run: String,
    version: u64,
    epoch: u64,
    seq: u64,
    /// Bytes of blobs that were read.
    read_bytes: u64,
    receivers: Vec<ReceiverReport>,
    /// The largest resident set of the process so far, in bytes; `null` where the system does not tell.
    peak_rss_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ReceiverReport {
    name: String,
    digest: String,
}

/// Follows until the goal is reached, or for ever.
pub(crate) async fn follow(args: FollowArgs) -> Result<(), Failure> {
    let io = reading(&args.stream, None)?;
    let stream = stream_model(&io).await.map_err(|error| stream_failure(&args.stream.url, error))?;
    let hf = "hf".parse().map_err(|source| layout(&args, source))?;
    let plan = RemapPlan::compile(&stream.model, &hf, std::slice::from_ref(&args.rollout));
    let plan = plan.map_err(|source| layout(&args, source))?;
    let live: Vec<Vec<Buffer<u16>>> = zeroed(&plan.replicas()[0], |words| WordBuffer::new(words).into());
    let out = Arc::new(OutDir::open(&args.out, &plan.replicas()[0], &live)?);
    let memory = out.load_weights()?;
    let base = if memory.dirty.is_some() { BaseWords::Mixed } else { BaseWords::Exact };
    let options = NodeOptions { run: stream.run, ..NodeOptions::default() };
    args.failpoints.iter().for_each(|failpoint| failpoint.arm(&options.failpoints));
    let node = Node::start(plan, options).await.map_err(|error| Failure::Runtime(error.into()))?;
    let ranks = live.iter().map(|rank| rank.iter().cloned().map(TensorMemory::from).collect()).collect();
    let (goal, leasing) = (goal(&args), if args.no_lease { Leasing::None } else { Leasing::Kept });
    let follow = Follow {
        io,
        keep: Arc::clone(&out) as Arc<dyn driftless::log::Keep>,
        options: FollowOptions { goal, leasing, ..FollowOptions::default() },
        base,
    };
    let memory = RolloutMemory::of_tensors(ranks, LayoutClaim::Trusted);
    let attached = node.attach_follower(ReplicaId(0), memory, follow).await;
    let (rollout, following) = attached.map_err(|error| Failure::Runtime(error.into()))?;
    let console = Console::waiting(Lines::beside(args.stream.json.as_ref()));
    let (end, state) = tokio::join!(following.ended(), watch(&following, &console));
    let digests = rollout.digests().await;
    node.stop().await;
    let served = match end {
        FollowEnd::Done(done) => done.held,
        FollowEnd::Stopped(stop) => {
            return Err(Failure::Ended { place: args.stream.url.to_string(), source: stop.into() });
        }
        FollowEnd::Left => return Err(Failure::Runtime(driftless::NodeError::Stopped.into())),
    };
    let receivers =
        digests.into_iter().map(|(name, digest)| ReceiverReport { name, digest: digest.to_string() });
    let report = FollowReport {
        stream: args.stream.url.to_string(),
        run: stream.run.to_string(),
        version: served.version.0,
        epoch: served.epoch.counter,
        seq: served.seq.0,
        read_bytes: state.read_bytes,
        receivers: receivers.collect(),
        peak_rss_bytes: peak_rss_bytes(),
    };
    console.line(&format!(
        "{} holds v{} (entry {}), proven; {} read",
        args.out.display(),
        report.version,
        report.seq,
        HumanBytes(report.read_bytes)
    ));
    args.stream.json.as_ref().map_or(Ok(()), |target| target.write(&report))
}

fn layout(args: &FollowArgs, source: driftless_layout::LayoutError) -> Failure {
    Failure::Layout { place: format!("{} with --rollout {}", args.stream.url, args.rollout), source }
}

const fn goal(args: &FollowArgs) -> Goal {
    match (args.once, args.at_least, args.exactly) {
        (true, ..) => Goal::Once,
        (_, Some(version), _) => Goal::AtLeast(Version(version)),
        (_, _, Some(version)) => Goal::Exactly(Version(version)),
        _ => Goal::Forever,
    }
}

/// Says what is served and what is in the way, until the reader has ended; gives its last state.
async fn watch(following: &Following, console: &Console) -> FollowState {
    let mut status = following.status();
    let (mut serving, mut trouble): (Option<Published>, _) = (None, None);
    loop {
        let state = status.borrow_and_update().clone();
        if state.serving != serving {
            serving = state.serving;
            if let Some(now) = serving {
                console.line(&format!(
                    "v{} proven, entry {}, epoch {}",
                    now.version, now.seq, now.epoch.counter
                ));
            }
        }
        if state.trouble != trouble {
            trouble = state.trouble;
            if let Some(now) = trouble {
                console.warn(&now.to_string());
            }
        }
        console.activity().doing(format!("{} read", HumanBytes(state.read_bytes)));
        if state.ended.is_some() || status.changed().await.is_err() {
            return state;
        }
    }
}
