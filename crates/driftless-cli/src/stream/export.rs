//! `driftless export`: one version of a stream as a Hugging Face checkpoint.

use super::args::ExportArgs;
use super::header::{Row, header, write_words};
use super::keys::reading;
use super::replay::{Damage, Replay};
use super::stream_failure;
use super::walk::{Walk, WalkError};
use crate::console::{Console, Lines};
use crate::failure::{Failure, with_causes};
use driftless::log::{Effect, KeepError, LogIo, Stored, StreamUrl, replace, stream_model};
use driftless_layout::ParamMeta;
use driftless_types::{Dtype, Version};
use indicatif::HumanBytes;
use serde::Serialize;
use std::path::Path;
use tokio::task::block_in_place;

/// What was exported; keys in the documented order.
#[derive(Debug, Serialize)]
struct ExportReport {
    stream: String,
    run: String,
    version: u64,
    seq: u64,
    epoch: u64,
    tensors: usize,
    bytes: u64,
}

/// Replays the version's entries and writes the file.
pub(crate) async fn export(args: ExportArgs) -> Result<(), Failure> {
    let ExportArgs { stream: args, wanted, out } = args;
    let io = reading(&args, None)?;
    let stream = stream_model(&io).await.map_err(|error| stream_failure(&args.url, error))?;
    let console = Console::counting(Lines::beside(args.json.as_ref()), 0, "entries");
    let path = path_to(&io, &args.url, wanted.map(Version)).await?;
    console.expect(path.len());
    let mut replay = Replay::new(&stream);
    for stored in &path {
        replay.take(&io, stored).await.map_err(|damage| not_proven(&args.url, stored, damage))?;
        console.step();
    }
    let last = path.last().and_then(Stored::published);
    let last = last.ok_or_else(|| Failure::Usage(format!("{}: nothing is published yet", args.url)))?;
    console.doing(format!("writing {}", out.display()));
    let bytes = block_in_place(|| write(&replay, &out)).map_err(|error| Failure::Runtime(error.into()))?;
    console.line(&format!("{} is v{}, proven; {}", out.display(), last.version, HumanBytes(bytes)));
    let report = ExportReport {
        stream: args.url.to_string(),
        run: stream.run.to_string(),
        version: last.version.0,
        seq: last.seq.0,
        epoch: last.epoch.counter,
        tensors: replay.weights().count(),
        bytes,
    };
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))
}

fn not_proven(url: &StreamUrl, stored: &Stored, damage: Damage) -> Failure {
    if damage.outage().is_some() {
        return stream_failure(url, damage);
    }
    Failure::Damaged(format!("{url}: entry {}: {}", stored.seq(), with_causes(&damage)))
}

/// The entries that lead to a version, the anchor first: in the history that the log ends with.
async fn path_to(io: &LogIo, url: &StreamUrl, wanted: Option<Version>) -> Result<Vec<Stored>, Failure> {
    let broken = |error: WalkError| super::broken(url, error);
    let mut walk = Walk::begin(io).await.map_err(broken)?;
    let (mut path, mut found) = (Vec::<Stored>::new(), None);
    while let Some(taken) = walk.next().await.map_err(broken)? {
        let published = match taken.effect {
            Effect::Anchor(published) => {
                path.clear();
                // After a reset what was above it is another past.
                found = found.filter(|_| wanted.is_some_and(|wanted| wanted < published.version));
                published
            }
            Effect::Delta(published) if !path.is_empty() => published,
            Effect::OtherLineage(_) => {
                path.clear();
                continue;
            }
            Effect::Delta(_) | Effect::Silent => continue,
        };
        path.push(taken.stored);
        if wanted == Some(published.version) {
            found = Some(path.clone());
        }
    }
    let Some(version) = wanted else { return Ok(path) };
    let missing = format!("{url}: version {version} is not in the stream (see `driftless log ls`)");
    found.ok_or(Failure::Usage(missing))
}

/// Writes the checkpoint tensor by tensor; FP32 first, so that every tensor is aligned.
fn write(replay: &Replay, out: &Path) -> Result<u64, KeepError> {
    let of = |dtype: Dtype| replay.weights().filter(move |(param, _)| param.dtype == dtype);
    let weights: Vec<(&ParamMeta, &[u16])> = of(Dtype::Fp32).chain(of(Dtype::Bf16)).collect();
    let rows = weights.iter().map(|(param, words)| Row {
        name: param.fqn.as_str(),
        dtype: param.dtype,
        shape: &param.shape,
        words: words.len(),
    });
    let header = header(rows, &serde_json::json!({ "format": "pt" }));
    replace(out, |file| {
        file.write_all(&header)?;
        weights.iter().try_for_each(|(_, words)| write_words(words, file))
    })?;
    let words: usize = weights.iter().map(|(_, words)| words.len()).sum();
    Ok((header.len() + 2 * words) as u64)
}
