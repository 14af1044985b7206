//! `driftless log verify`: the whole chain read again, every blob, every digest.
//!
//! LG-3: what an entry names was there before it, so a blob that is missing and not retired is a fault of the store.

use crate::console::{Console, Lines, counted};
use crate::failure::{Failure, with_causes};
use crate::stream::args::StreamArgs;
use crate::stream::keys::reading;
use crate::stream::replay::{Damage, Replay};
use crate::stream::walk::{Taken, Walk, WalkError};
use crate::stream::{broken, stream_failure};
use driftless::log::{Effect, LogIo, Presence, Stored, stream_model};
use driftless_types::{AnchorRef, EntryKind, ObjectDigest, Seq};
use indicatif::HumanBytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// What was found; keys in the documented order.
#[derive(Debug, Serialize)]
struct VerifyReport {
    stream: String,
    run: String,
    entries: u64,
    /// Publications whose blobs were read, applied and proven.
    proven: u64,
    /// Publications whose blobs, or whose base's, were retired.
    retired: u64,
    /// Publications of an epoch that was over, which have no effect.
    fenced: u64,
    /// The last version that was proven.
    version: Option<u64>,
    blobs: u64,
    bytes: u64,
    problems: Vec<ProblemReport>,
}

#[derive(Debug, Serialize)]
struct ProblemReport {
    seq: Option<u64>,
    problem: String,
}

/// Reads everything; what is wrong is said and gone past, as far as the entries follow from each other.
pub(super) async fn verify(args: StreamArgs) -> Result<(), Failure> {
    let io = reading(&args, None)?;
    let stream = stream_model(&io).await.map_err(|error| stream_failure(&args.url, error))?;
    let console = Console::counting(Lines::beside(args.json.as_ref()), 0, "entries");
    console.doing("reading entries".to_owned());
    let keep_from = keep_from(&io).await;
    let mut walk = Walk::begin(&io).await.map_err(|error| broken(&args.url, error))?;
    console.expect(usize::try_from(walk.entries()).unwrap_or(usize::MAX));
    let report = VerifyReport {
        stream: args.url.to_string(),
        run: stream.run.to_string(),
        entries: 0,
        proven: 0,
        retired: 0,
        fenced: 0,
        version: None,
        blobs: 0,
        bytes: 0,
        problems: Vec::new(),
    };
    let replay = Replay::new(&stream);
    let mut proof = Proof { io: &io, keep_from, replay, anchors: BTreeMap::new(), report, console: &console };
    loop {
        match walk.next().await {
            Ok(Some(taken)) => proof.entry(&taken).await.map_err(|error| stream_failure(&args.url, error))?,
            Ok(None) => break,
            Err(error) if error.is_outage() => return Err(broken(&args.url, error)),
            Err(error) => {
                proof.broken(&error);
                break;
            }
        }
        console.step();
    }
    let report = proof.report;
    console.line(&summary(&report));
    args.json.as_ref().map_or(Ok(()), |target| target.write(&report))?;
    match report.problems.first() {
        None => Ok(()),
        Some(first) => {
            let seq = first.seq.map(|seq| format!("entry {seq}: ")).unwrap_or_default();
            Err(Failure::Damaged(format!("{}: {seq}{}", args.url, first.problem)))
        }
    }
}

/// From where on blobs must be there. A chain that breaks is read again, and reported then.
async fn keep_from(io: &LogIo) -> Seq {
    let mut keep_from = Seq::GENESIS;
    let Ok(mut walk) = Walk::begin(io).await else { return keep_from };
    while let Ok(Some(taken)) = walk.next().await {
        if let EntryKind::Retire { keep_from: seq, .. } = taken.stored.entry.kind
            && taken.is_in_force
        {
            keep_from = keep_from.max(seq);
        }
    }
    keep_from
}

/// What is known so far.
struct Proof<'a> {
    io: &'a LogIo,
    keep_from: Seq,
    replay: Replay,
    /// The objects of all anchors.
    anchors: BTreeMap<Seq, ObjectDigest>,
    report: VerifyReport,
    console: &'a Console,
}

impl Proof<'_> {
    async fn entry(&mut self, taken: &Taken) -> Result<(), Damage> {
        let (stored, seq) = (&taken.stored, taken.stored.seq());
        self.report.entries += 1;
        self.console.doing(format!("entry {seq}: {}", stored.entry.kind.name()));
        if matches!(stored.entry.kind, EntryKind::Anchor(_)) {
            self.anchors.insert(seq, stored.object);
        }
        match (taken.effect, &stored.entry.kind) {
            (_, EntryKind::Retire { anchors, .. }) if taken.is_in_force => self.retire(seq, anchors),
            (Effect::Silent, EntryKind::Anchor(_) | EntryKind::Delta { .. }) => self.fenced(stored).await,
            (Effect::Silent, _) => {}
            (Effect::OtherLineage(_), _) => {
                self.problem(Some(seq), "it is a delta of another lineage".into())
            }
            (Effect::Anchor(_) | Effect::Delta(_), _) => return self.publication(stored).await,
        }
        Ok(())
    }

    /// What is damaged is noted.
    ///
    /// # Errors
    /// A store that fails.
    async fn publication(&mut self, stored: &Stored) -> Result<(), Damage> {
        let seq = stored.seq();
        let may_be_gone = seq < self.keep_from;
        // What was retired is not asked for again and again.
        if may_be_gone && self.io.presence(stored).await == Presence::Missing {
            self.replay.forget();
            self.report.retired += 1;
            return Ok(());
        }
        match self.replay.take(self.io, stored).await {
            Ok(proven) => {
                self.report.proven += 1;
                self.report.version = Some(proven.version.0);
                self.report.blobs += proven.blobs;
                self.report.bytes += proven.bytes;
            }
            Err(Damage::NoBase(_)) if may_be_gone => self.report.retired += 1,
            Err(damage) if damage.outage().is_some() => return Err(damage),
            Err(damage) => self.problem(Some(seq), with_causes(&damage)),
        }
        Ok(())
    }

    /// A publication of an epoch that was over: nobody applies it, but what it names was put before it (LG-3).
    async fn fenced(&mut self, stored: &Stored) {
        self.report.fenced += 1;
        if stored.seq() >= self.keep_from && self.io.presence(stored).await == Presence::Missing {
            self.problem(Some(stored.seq()), "a blob that it names is not there".into());
        }
    }

    fn retire(&mut self, seq: Seq, anchors: &[AnchorRef]) {
        for anchor in anchors {
            if self.anchors.get(&anchor.seq) != Some(&anchor.object) {
                self.problem(Some(seq), format!("entry {} is not the anchor that it keeps", anchor.seq));
            }
        }
    }

    fn broken(&mut self, error: &WalkError) {
        self.problem(error.seq(), with_causes(error));
    }

    fn problem(&mut self, seq: Option<Seq>, problem: String) {
        let place = seq.map(|seq| format!("entry {seq}: ")).unwrap_or_default();
        self.console.warn(&format!("{place}{problem}"));
        self.report.problems.push(ProblemReport { seq: seq.map(|seq| seq.0), problem });
    }
}

fn summary(report: &VerifyReport) -> String {
    let counts = |count: u64, noun| counted(usize::try_from(count).unwrap_or(usize::MAX), noun);
    let mut line = format!(
        "{} read, {} proven ({} in {})",
        counts(report.entries, "entry").replace("entrys", "entries"),
        counts(report.proven, "publication"),
        counts(report.blobs, "blob"),
        HumanBytes(report.bytes)
    );
    for (count, what) in [(report.retired, "retired"), (report.fenced, "without effect")] {
        if count > 0 {
            line = format!("{line}, {count} {what}");
        }
    }
    match report.problems.len() {
        0 => line,
        problems => format!("{line}; {}", counted(problems, "problem")),
    }
}
