//! One process's part of the fleet.

use crate::log::{Follow, Following, Publishing};
use crate::{LayoutClaim, NodeError, Rollout, RolloutMemory, Trainer, TrainerMemory};
use driftless_runtime::binding::{
    DetectorState, FirstVersion, Hook, LiveTensor, Pending, ReceiverBinding, ReplicaBinding, SenderBinding,
    SnapshotState, SourceBinding, TensorMemory, plan_over,
};
use driftless_runtime::codec::BaseWords;
use driftless_runtime::device::{Buffer, DeviceError};
use driftless_runtime::layout::{DestTensor, ReceiverPlan, RemapPlan, ReplicaPlan, SenderPlan};
use driftless_runtime::log::{FollowBinding, LogIo, LogTarget, PublishOptions};
use driftless_runtime::numerics::Cast;
use driftless_runtime::proto::{Engine, PatchBook, Weights};
use driftless_runtime::types::{ReceiverId, ReplicaId, Version};
use driftless_runtime::{Detector, Host, NodeOptions, Shared, probe};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A node: the actors of the trainer ranks and the rollout ranks that this process holds.
///
/// ```
/// use driftless::{ModelConfig, Model, Node, NodeOptions, RemapPlan, ServedDtypes};
/// # #[tokio::main(flavor = "multi_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let json = r#"{"model_type":"qwen3","vocab_size":256,"hidden_size":16,"num_hidden_layers":1,
/// #   "num_attention_heads":2,"num_key_value_heads":2,"head_dim":8,"intermediate_size":32}"#;
/// let model = Model::new(ModelConfig::from_json(json)?, &ServedDtypes::default())?;
/// let plan = RemapPlan::compile(&model, &"megatron:tp=2".parse()?, &["vllm:tp=2".parse()?])?;
/// let node = Node::start(plan, NodeOptions::default()).await?;
/// node.stop().await;
/// # Ok(()) }
/// ```
pub struct Node {
    host: Host,
}

impl Node {
    /// Starts the actors of a node; nothing moves before a trainer and a rollout are attached.
    ///
    /// # Errors
    /// [`NodeError::Host`] if the supervisor does not start.
    pub async fn start(plan: RemapPlan, options: NodeOptions) -> Result<Self, NodeError> {
        let shared = Shared::new(plan, options);
        Ok(Self { host: Host::start(shared).await? })
    }

    /// The plan that trainer and rollouts share.
    #[must_use]
    pub fn plan(&self) -> &RemapPlan {
        &self.host.shared().plan
    }

    /// Attaches the memory of all trainer ranks, whose weights are those of `memory.version` now.
    ///
    /// # Errors
    /// A trainer that is attached already, or memory that is not what the plan says, by tensor.
    pub async fn attach_trainer(&self, memory: TrainerMemory) -> Result<Trainer, NodeError> {
        let _alone = self.host.membership().await;
        let shared = self.host.shared();
        let senders = shared.plan.senders();
        if shared.registry.sender(senders[0].id).is_some() {
            return Err(NodeError::AttachedTwice { what: "the trainer".into() });
        }
        count("trainer ranks", memory.ranks.len(), senders.len())?;
        for (plan, rank) in senders.iter().zip(&memory.ranks) {
            check_sources(plan, rank, shared.options.detector)?;
        }
        let version = memory.version;
        let bindings = blocking(Arc::clone(shared), move |shared| bind_trainer(shared, memory)).await?;
        for binding in bindings {
            shared.registry.bind_sender(Arc::new(binding));
        }
        self.prove_trainer(version).await;
        shared.standing.set_version(version);
        shared.note_version(version);
        shared.publish_first(version);
        self.host.adopt().await?;
        Ok(Trainer::new(Arc::clone(shared), version))
    }

    /// Attaches the live weights of one replica, which hold `version` now; unless the layout is
    /// [`LayoutClaim::Trusted`], that is proven by digest, tensor by tensor, before anything is written.
    ///
    /// # Errors
    /// An unknown replica, one that is attached already, or memory that is not what the plan says, by tensor.
    pub async fn attach_rollout(
        &self,
        replica: ReplicaId,
        memory: RolloutMemory,
        version: Version,
    ) -> Result<Rollout, NodeError> {
        let _alone = self.host.membership().await;
        let shared = self.host.shared();
        let plan = replica_plan(shared, replica)?;
        count("rollout ranks", memory.ranks.len(), plan.receivers.len())?;
        let layout = memory.layout;
        let hooks = Hooks::of(&memory);
        let bindings =
            blocking(Arc::clone(shared), move |shared| bind_replica(shared, replica, memory, version))
                .await?;
        let (version, engine) = match layout {
            LayoutClaim::Blank => (Version(0), Engine::Paused),
            LayoutClaim::Proven | LayoutClaim::Trusted => (version, Engine::Serving),
        };
        shared.note_version(version);
        shared.registry.bind_replica(hooks.bind(ReplicaBinding::new(replica, version, engine)));
        for binding in bindings {
            shared.registry.bind_receiver(Arc::new(binding));
        }
        self.host.adopt().await?;
        Ok(Rollout::new(Arc::clone(shared), replica))
    }

    /// From now on this node publishes to a log what its trainer reports. To be called before the trainer is attached,
    /// whose weights are the first version of the stream, or the one that it holds already.
    ///
    /// `plan` is [`RemapPlan::compile_log`] of the same model and trainer layout.
    ///
    /// # Errors
    /// A node that publishes already, a trainer that is attached, or a plan of another trainer.
    pub fn publish(
        &self,
        plan: RemapPlan,
        io: LogIo,
        options: PublishOptions,
    ) -> Result<Publishing, NodeError> {
        let shared = self.host.shared();
        let senders = shared.plan.senders();
        count("ranks that write to the log", plan.senders().len(), senders.len())?;
        if shared.registry.sender(senders[0].id).is_some() {
            return Err(NodeError::AttachedTwice { what: "the trainer".into() });
        }
        if !shared.set_log(LogTarget::new(plan, io, options)) {
            return Err(NodeError::AttachedTwice { what: "a log to publish to".into() });
        }
        Ok(Publishing::new(Arc::clone(shared)))
    }

    /// Attaches the live weights of one replica that follows a log instead of a trainer of this cluster. `base` says
    /// whether the weights are those of one version, if of any; `keep` knows which.
    ///
    /// The node's plan is that of the trainer layout `hf` and the node's run that of the stream. An engine whose weights
    /// are a mix, or of no version by [`LayoutClaim::Blank`], counts as paused: it must not serve before its resume hook
    /// is called.
    ///
    /// # Errors
    /// As [`Self::attach_rollout`], but that no layout is proven now: the first version's digests prove it.
    pub async fn attach_follower(
        &self,
        replica: ReplicaId,
        memory: RolloutMemory,
        follow: Follow,
    ) -> Result<(Rollout, Following), NodeError> {
        let _alone = self.host.membership().await;
        let shared = self.host.shared();
        let plan = replica_plan(shared, replica)?;
        count("rollout ranks", memory.ranks.len(), plan.receivers.len())?;
        // What is of no version is not served.
        let engine = match (memory.layout, follow.base) {
            (LayoutClaim::Blank, _) | (_, BaseWords::Mixed) => Engine::Paused,
            (LayoutClaim::Proven | LayoutClaim::Trusted, BaseWords::Exact) => Engine::Serving,
        };
        let hooks = Hooks::of(&memory);
        let memory = RolloutMemory { layout: LayoutClaim::Trusted, ..memory };
        let bind = move |shared: &Shared| {
            let receivers = bind_replica(shared, replica, memory, Version::default())?;
            let receivers: Vec<_> = receivers.into_iter().map(Arc::new).collect();
            let plan = replica_plan(shared, replica)?;
            let Follow { io, keep, options, base } = follow;
            let binding = FollowBinding::new(shared, plan, receivers.clone(), io, keep, options, base)?;
            Ok((Arc::new(binding), receivers))
        };
        let (binding, receivers) = blocking(Arc::clone(shared), bind).await?;
        shared.registry.bind_followed(Arc::clone(&binding));
        shared.registry.bind_replica(hooks.bind(ReplicaBinding::new(replica, Version::default(), engine)));
        for receiver in receivers {
            shared.registry.bind_receiver(receiver);
        }
        self.host.adopt().await?;
        Ok((Rollout::new(Arc::clone(shared), replica), Following::new(binding)))
    }

    /// A trainer that is attached to replicas which serve its version proves itself by their digests. One that cannot, as
    /// it was set back or differs, has a history of its own: its first version is sent whole to everyone.
    async fn prove_trainer(&self, version: Version) {
        let shared = self.host.shared();
        let mut proven = true;
        for id in shared.registry.bound_receivers() {
            let (plan, Some(binding)) = (shared.plan.receiver(id), shared.registry.receiver(id)) else {
                continue;
            };
            let live = binding.token().await;
            if binding.version() < version || live.weights == Weights::Torn {
                continue; // the patches of this trainer do not lead from there
            }
            proven &= binding.version() == version
                && probe::promised(shared, plan, version).is_some_and(|promised| promised == live.digests);
        }
        if proven {
            return;
        }
        for id in shared.registry.bound_senders() {
            if let Some(binding) = shared.registry.sender(id) {
                binding.token().await.pending = Some(Pending::unknown());
            }
        }
    }

    /// Takes a replica out of the fleet; its memory is the caller's again. Gives the version that it holds, which the
    /// engine may go on serving; `None` if it holds none, and the engine is out of service. It may be attached again.
    ///
    /// # Errors
    /// [`NodeError::OtherNode`] for a handle of another node, [`NodeError::Host`] if no supervisor answers.
    pub async fn detach_rollout(&self, rollout: Rollout) -> Result<Option<Version>, NodeError> {
        if !rollout.is_of(self.host.shared()) {
            return Err(NodeError::OtherNode { what: format!("replica {}", rollout.id()) });
        }
        Ok(self.host.release_replica(rollout.id()).await?)
    }

    /// Takes the trainer out of the fleet, at whatever point it is; its memory is the caller's again. Replicas go on
    /// serving what they serve. A trainer that is attached later reports versions above all that were reported before;
    /// unless its weights are proven to be what the replicas serve, its first version is sent whole.
    ///
    /// # Errors
    /// [`NodeError::OtherNode`] for a handle of another node, [`NodeError::Host`] if no supervisor answers.
    pub async fn detach_trainer(&self, trainer: Trainer) -> Result<(), NodeError> {
        if !trainer.is_of(self.host.shared()) {
            return Err(NodeError::OtherNode { what: "the trainer".into() });
        }
        drop(trainer);
        Ok(self.host.release_trainer().await?)
    }

    /// Goes on under another plan, such as other layouts or more replicas: every actor stops, every replica is brought to
    /// one version, and patches are dropped. Trainer and rollouts are attached to the new node, at versions that they
    /// prove; whoever cannot is sent everything. Handles of this node are answered as if it was stopped. A log that this
    /// node publishes to is published to by the new one ([`Self::publishing`]).
    ///
    /// # Errors
    /// [`NodeError::LogOfAnotherPlan`] if the log's plan is not one of the new plan's trainer and parameters,
    /// [`NodeError::Host`] if the supervisor does not start. This node is stopped all the same.
    pub async fn replan(self, plan: RemapPlan) -> Result<Self, NodeError> {
        let former = Arc::clone(self.host.shared());
        self.host.stop().await;
        if !former.log_fits(&plan) {
            return Err(NodeError::LogOfAnotherPlan);
        }
        Ok(Self { host: Host::start(Shared::successor(&former, plan)).await? })
    }

    /// The handle of the log that this node publishes to, if it does.
    #[must_use]
    pub fn publishing(&self) -> Option<Publishing> {
        let shared = self.host.shared();
        shared.log().map(|_| Publishing::new(Arc::clone(shared)))
    }

    /// The names of the ranks whose actors died too often to be started again.
    #[must_use]
    pub fn unhealthy(&self) -> Vec<String> {
        self.host.shared().registry.unhealthy().iter().map(ToString::to_string).collect()
    }

    /// The name of a receiver, such as `rollout0/tp0-pp0`.
    #[must_use]
    pub fn receiver_name(&self, id: ReceiverId) -> &str {
        &self.plan().receiver(id).name
    }

    /// Stops every actor; live weights are those of the version that each replica serves, and no engine stays paused but
    /// one whose weights are of no version.
    /// Dropping a node does the same in the background.
    pub async fn stop(self) {
        self.host.stop().await;
    }
}

/// The hooks that an engine brings along.
struct Hooks {
    on_pause: Option<Hook>,
    on_resume: Option<Hook>,
}

impl Hooks {
    fn of(memory: &RolloutMemory) -> Self {
        Self { on_pause: memory.on_pause.clone(), on_resume: memory.on_resume.clone() }
    }

    fn bind(self, binding: ReplicaBinding) -> Arc<ReplicaBinding> {
        self.on_pause.into_iter().for_each(|hook| binding.set_on_pause(hook));
        self.on_resume.into_iter().for_each(|hook| binding.set_on_resume(hook));
        Arc::new(binding)
    }
}

/// The plan of a replica that is not attached yet.
fn replica_plan(shared: &Shared, replica: ReplicaId) -> Result<&ReplicaPlan, NodeError> {
    let replicas = shared.plan.replicas();
    let found = replicas.iter().find(|plan| plan.id == replica);
    let plan = found.ok_or(NodeError::NoReplica { found: replica, replicas: replicas.len() })?;
    if shared.registry.replica(replica).is_some() {
        return Err(NodeError::AttachedTwice { what: format!("replica {replica}") });
    }
    Ok(plan)
}

fn count(what: &str, found: usize, expected: usize) -> Result<(), NodeError> {
    if found != expected {
        return Err(NodeError::Count { what: what.into(), found, expected });
    }
    Ok(())
}

fn length(rank: &str, tensor: &str, found: usize, expected: u64) -> Result<(), NodeError> {
    if found as u64 != expected {
        let tensor = format!("{rank}, {tensor}");
        return Err(NodeError::BufferLength { tensor, found: found as u64, expected });
    }
    Ok(())
}

fn check_sources(plan: &SenderPlan, rank: &[SourceBinding], detector: Detector) -> Result<(), NodeError> {
    count(&format!("tensors of trainer rank {}", plan.name), rank.len(), plan.tensors.len())?;
    for (tensor, memory) in plan.tensors.iter().zip(rank) {
        // With strides it is the layout that says how long the masters must be.
        let masters = memory.master.len() as u64;
        let expected = if memory.strides.is_some() { masters } else { tensor.elements() };
        for (part, buffer) in
            [("master", &memory.master), ("exp_avg", &memory.exp_avg), ("exp_avg_sq", &memory.exp_avg_sq)]
        {
            length(&plan.name, &format!("{} ({part})", tensor.name), buffer.len(), expected)?;
        }
        // What the detector reads beside the masters must be there: nothing counts as a buffer of no values.
        let (part, found) = match detector {
            Detector::Inversion | Detector::Snapshot => continue,
            Detector::PreCopy => ("model", memory.model.as_ref().map_or(0, Buffer::len)),
            Detector::InStep => ("mask", memory.mask.as_ref().map_or(0, |mask| mask.len())),
        };
        length(&plan.name, &format!("{} ({part})", tensor.name), found, expected)?;
    }
    Ok(())
}

/// Hashing whole models is work for a blocking thread.
async fn blocking<T: Send + 'static>(
    shared: Arc<Shared>,
    run: impl FnOnce(&Shared) -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    let outcome = tokio::task::spawn_blocking(move || run(&shared)).await;
    outcome.unwrap_or_else(|panicked| Err(NodeError::Task(panicked.to_string())))
}

fn bind_trainer(shared: &Shared, memory: TrainerMemory) -> Result<Vec<SenderBinding>, NodeError> {
    let (version, cast) = (memory.version, memory.family.cast());
    let mut bindings = Vec::new();
    for (plan, rank) in shared.plan.senders().iter().zip(memory.ranks) {
        let strides = |source| NodeError::Strides { rank: plan.name.clone(), source };
        let plan = plan_over(plan, &rank).map_err(strides)?;
        let cells = probe::digest_sources(shared, &plan, &rank, cast)?;
        let detector = detector_state(shared, &plan, &rank, (version, memory.steps_taken), cast)?;
        let log = shared.log().map(|log| plan_over(&log.plan().senders()[bindings.len()], &rank));
        let log = log.transpose().map_err(strides)?;
        let binding = SenderBinding::new(plan, rank, detector, FirstVersion { version, cells });
        bindings.push(match log {
            None => binding,
            Some(log) => binding.with_log_plan(log),
        });
    }
    for binding in &bindings {
        driftless_runtime::log::first(shared, binding, version, cast)?;
    }
    Ok(bindings)
}

fn bind_replica(
    shared: &Shared,
    replica: ReplicaId,
    memory: RolloutMemory,
    version: Version,
) -> Result<Vec<ReceiverBinding>, NodeError> {
    let plans = shared.plan.replicas().iter().filter(|plan| plan.id == replica);
    let mut bindings = Vec::new();
    for (receiver, rank) in plans.flat_map(|plan| &plan.receivers).zip(memory.ranks) {
        count(&format!("tensors of {}", receiver.name), rank.len(), receiver.tensors.len())?;
        let live = receiver.tensors.iter().zip(rank).map(|(tensor, memory)| live(receiver, tensor, memory));
        let rank = live.collect::<Result<_, _>>()?;
        let device = &*shared.device;
        let (version, weights) = match memory.layout {
            LayoutClaim::Blank => (Version(0), Weights::Torn),
            LayoutClaim::Proven | LayoutClaim::Trusted => (version, Weights::Whole),
        };
        let binding =
            ReceiverBinding::new(&shared.plan, receiver, rank, version, weights, device, &shared.keys)?;
        if memory.layout == LayoutClaim::Proven {
            prove(shared, receiver, &binding, version)?;
        }
        bindings.push(binding);
    }
    Ok(bindings)
}

fn live(receiver: &ReceiverPlan, tensor: &DestTensor, memory: TensorMemory) -> Result<LiveTensor, NodeError> {
    if memory.strides.is_none() {
        let elements = tensor.shape.elements().unwrap_or(u64::MAX);
        let words = elements.saturating_mul(tensor.dtype.words() as u64);
        length(&receiver.name, &tensor.name, memory.words.len(), words)?;
    }
    let strides = |source| NodeError::Strides { rank: receiver.name.clone(), source };
    LiveTensor::new(tensor, memory).map_err(strides)
}

fn prove(
    shared: &Shared,
    receiver: &ReceiverPlan,
    binding: &ReceiverBinding,
    version: Version,
) -> Result<(), NodeError> {
    let promised = probe::promised(shared, receiver, version);
    let promised = promised.ok_or(NodeError::NothingToProveAgainst { version })?;
    let digests = binding.attached();
    for ((tensor, &found), expected) in receiver.tensors.iter().zip(digests).zip(promised) {
        if found != expected {
            let (receiver, tensor) = (receiver.name.clone(), tensor.name.clone());
            return Err(NodeError::LayoutNotProven { receiver, tensor, version, found, expected });
        }
    }
    Ok(())
}

fn detector_state(
    shared: &Shared,
    plan: &SenderPlan,
    rank: &[SourceBinding],
    (version, steps_taken): (Version, u64),
    cast: Cast,
) -> Result<DetectorState, DeviceError> {
    let pieces = plan.tensors.iter().flat_map(|tensor| &tensor.pieces);
    let steps_taken: BTreeMap<_, _> = pieces.map(|piece| (piece.param, steps_taken)).collect();
    let snapshot = match shared.options.detector {
        Detector::Inversion | Detector::PreCopy | Detector::InStep => Vec::new(),
        Detector::Snapshot => {
            let bits =
                |memory: &SourceBinding| shared.device.served_bits(memory.master.lend().elements(), cast);
            rank.iter().map(bits).collect::<Result<_, _>>()?
        }
    };
    let bound = u64::from(shared.options.max_lag_versions);
    Ok(DetectorState {
        book: PatchBook::new([], version, bound),
        pending: None,
        steps_taken,
        snapshot,
        snapshot_state: SnapshotState::Clean,
        audited: BTreeSet::new(),
    })
}
