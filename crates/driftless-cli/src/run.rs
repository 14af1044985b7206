//! One run: a node of this process, a trainer, the rollouts, and a proof after every version.

use crate::args::{DetectorArg, RunArgs};
use crate::console::{Activity, Console, counted, ratio, version_header};
use crate::failure::Failure;
use crate::fleet::{Fleet, Inspection};
use crate::report::{DenseGroup, PhasesMs, ReceiverReport, Report, VersionReport};
use crate::source::StateSource;
use driftless::{
    Device, Node, NodeError, NodeOptions, Outcome, Phase, ReplicaOutcome, Rollout, RolloutMemory, SyncReport,
    Trainer, TrainerMemory,
};
use driftless_layout::RemapPlan;
use driftless_numerics::DigestKeys;
use driftless_types::{Digest, ReplicaId, RunId, Version};
use indicatif::{HumanBytes, HumanCount};
use std::sync::Arc;
use tokio::task::block_in_place;

/// Every run of the program has the same id: digests of equal weights are then equal from run to run. They guard
/// against accidents here, and no log is written that another run could be mixed with.
const RUN: RunId = RunId([0; 16]);

/// Syncs every version of the source, proves each, and reports.
///
/// # Errors
/// [`Failure::NotIdentical`] after the report was written, if some version was not proven; any other failure writes
/// nothing.
pub(crate) async fn run(
    plan: RemapPlan,
    mut source: Box<dyn StateSource>,
    args: RunArgs,
    device: Arc<dyn Device>,
    console: Console,
) -> Result<(), Failure> {
    let fleet = block_in_place(|| Fleet::load(&plan, DigestKeys::new(RUN), &*source, &*device))?;
    let session = Session::start(&plan, &fleet, &*source, args.detector, device).await?;
    console.line(&opening(&plan));
    console.line(&version_header());
    let (report, trouble) = session.sync_all(&fleet, &mut *source, &console).await?;
    if let Some(target) = &args.json {
        target.write(&report)?;
    }
    if let Some(trouble) = trouble {
        return Err(Failure::NotIdentical(trouble));
    }
    console.line(&traffic(&report));
    console.line(&proven(&plan, &report));
    Ok(())
}

/// The node and its handles.
struct Session<'a> {
    plan: &'a RemapPlan,
    node: Node,
    trainer: Trainer,
    rollouts: Vec<Rollout>,
}

impl<'a> Session<'a> {
    async fn start(
        plan: &'a RemapPlan,
        fleet: &Fleet<'_>,
        source: &dyn StateSource,
        detector: DetectorArg,
        device: Arc<dyn Device>,
    ) -> Result<Self, Failure> {
        let start = Version(source.start());
        let options = NodeOptions { run: RUN, detector: detector.into(), device, ..source.options() };
        let node = Node::start(plan.clone(), options).await.map_err(runtime)?;
        let memory = TrainerMemory {
            ranks: source.memory(),
            steps_taken: source.steps_taken(),
            version: start,
            family: source.family(),
        };
        let trainer = node.attach_trainer(memory).await.map_err(runtime)?;
        let mut rollouts = Vec::new();
        for (id, ranks) in (0..).map(ReplicaId).zip(fleet.live()) {
            let rollout = node
                .attach_rollout(id, RolloutMemory::new(ranks, source.layout_claim()), start)
                .await
                .map_err(runtime)?;
            rollouts.push(rollout);
        }
        Ok(Self { plan, node, trainer, rollouts })
    }

    /// Syncs all versions; the text says what went wrong first, if anything did.
    async fn sync_all(
        mut self,
        fleet: &Fleet<'_>,
        source: &mut dyn StateSource,
        console: &Console,
    ) -> Result<(Report, Option<String>), Failure> {
        let mut report = Report { plan_digest: self.plan.digest().to_string(), ..Report::default() };
        let mut trouble = None;
        for version in source.versions() {
            if let Some(fault) = source.disturb() {
                console.line(&fault);
            }
            let outcome = self.sync(version, source, &console.activity()).await?;
            let digests = self.digests().await;
            let inspection = block_in_place(|| fleet.inspect(source))?;
            let wrong = what_is_wrong(&outcome, &inspection, &digests);
            let version_report = version_report(&outcome, wrong.is_none());
            console.version(&version_report);
            report.versions.push(version_report);
            if let Some(wrong) = wrong {
                console.warn(&format!("v{version}: {wrong}"));
                trouble.get_or_insert_with(|| format!("v{version}: {wrong}"));
            }
        }
        report.receivers = self.receivers().await;
        self.node.stop().await;
        Ok((report, trouble))
    }

    async fn sync(
        &mut self,
        version: u64,
        source: &mut dyn StateSource,
        activity: &Activity,
    ) -> Result<Outcome, Failure> {
        let step = self.trainer.step_begin().await;
        let params = block_in_place(|| source.advance(version))?;
        activity.doing(format!("v{version}: syncing"));
        let sync = self.trainer.step_done(step, Version(version), params).map_err(runtime)?;
        sync.detected().await;
        Ok(sync.committed().await)
    }

    /// Per replica, per receiver, the digest of what is in its memory.
    async fn digests(&self) -> Vec<Vec<Digest>> {
        let mut digests = Vec::new();
        for rollout in &self.rollouts {
            digests.push(rollout.digests().await.into_iter().map(|(_, digest)| digest).collect());
        }
        digests
    }

    async fn receivers(&self) -> Vec<ReceiverReport> {
        let mut reports = Vec::new();
        for rollout in &self.rollouts {
            let version = rollout.version().version.0;
            let digests = rollout.digests().await.into_iter();
            let report =
                |(name, digest): (_, Digest)| ReceiverReport { name, version, digest: digest.to_string() };
            reports.extend(digests.map(report));
        }
        reports
    }
}

/// Proven means three things that do not depend on each other: committed, words equal, digests equal.
fn what_is_wrong(outcome: &Outcome, inspection: &Inspection, digests: &[Vec<Digest>]) -> Option<String> {
    for (replica, ended) in &outcome.replicas {
        if let ReplicaOutcome::Lagging { at, cause } = ended {
            return Some(format!("rollout{replica} did not commit and still serves v{at}: {cause}"));
        }
    }
    if inspection.difference.is_some() {
        return inspection.difference.clone();
    }
    (inspection.digests != digests).then(|| "a receiver's digest is not that of its weights".to_owned())
}

fn runtime(error: NodeError) -> Failure {
    Failure::Runtime(error.into())
}

fn version_report(outcome: &Outcome, verified: bool) -> VersionReport {
    let sync = &outcome.report;
    let dense = sync.dense.iter();
    VersionReport {
        version: outcome.version.0,
        elements: sync.elements,
        changed: sync.changed,
        sent: sync.sent,
        share: ratio(sync.changed, sync.elements),
        dense_bytes: sync.dense_bytes,
        wire_bytes: sync.wire_bytes,
        phases_ms: phases_ms(sync),
        verified,
        repaired: sync.repaired,
        dense: dense.map(|d| DenseGroup { group: d.group.clone(), gate: d.gate.to_string() }).collect(),
    }
}

fn phases_ms(sync: &SyncReport) -> PhasesMs {
    let ms = |phase| sync.phases.get(&phase).map_or(0.0, |duration| duration.as_secs_f64() * 1e3);
    PhasesMs {
        detect: ms(Phase::Detect),
        remap: ms(Phase::Remap),
        encode: ms(Phase::Encode),
        transfer: ms(Phase::Transfer),
        stage: ms(Phase::Stage),
        pause: ms(Phase::Pause),
        apply: ms(Phase::Apply),
        commit: ms(Phase::Commit),
    }
}

fn receiver_count(plan: &RemapPlan) -> usize {
    plan.replicas().iter().map(|replica| replica.receivers.len()).sum()
}

fn opening(plan: &RemapPlan) -> String {
    let elements = plan.params().iter().map(driftless_layout::ParamMeta::elements).sum();
    format!(
        "{} elements in {}, {} to {} in {}, plan {:.12}",
        HumanCount(elements),
        counted(plan.params().len(), "parameter"),
        counted(plan.senders().len(), "trainer rank"),
        counted(receiver_count(plan), "receiver"),
        counted(plan.replicas().len(), "replica"),
        plan.digest().to_string(),
    )
}

/// `29,147 changed elements took 406.98 KiB instead of 10.35 MiB (3.84 %)`
fn traffic(report: &Report) -> String {
    let sum = |of: fn(&VersionReport) -> u64| report.versions.iter().map(of).sum::<u64>();
    let (wire, dense) = (sum(|version| version.wire_bytes), sum(|version| version.dense_bytes));
    format!(
        "{} changed elements took {} instead of {} ({:.2} %)",
        HumanCount(sum(|version| version.changed)),
        HumanBytes(wire),
        HumanBytes(dense),
        100.0 * ratio(wire, dense),
    )
}

fn proven(plan: &RemapPlan, report: &Report) -> String {
    let receivers = receiver_count(plan);
    format!(
        "proven: {} in {} {} bit-identical to the trainer at each of {}, by digest and word by word",
        counted(receivers, "receiver"),
        counted(plan.replicas().len(), "replica"),
        if receivers == 1 { "was" } else { "were" },
        counted(report.versions.len(), "version"),
    )
}
