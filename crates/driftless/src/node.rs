//! One process's part of the fleet.

use crate::{NodeError, Rollout, RolloutMemory, Trainer, TrainerMemory};
use driftless_runtime::binding::{
    DetectorState, ReceiverBinding, ReplicaBinding, SenderBinding, SnapshotState, SourceBinding,
};
use driftless_runtime::layout::{RemapPlan, SenderPlan};
use driftless_runtime::numerics::bf16;
use driftless_runtime::types::{ReceiverId, ReplicaId, Version};
use driftless_runtime::{Detector, Host, NodeOptions, Shared};
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
        let shared = self.host.shared();
        let senders = shared.plan.senders();
        if shared.registry.sender(senders[0].id).is_some() {
            return Err(NodeError::AttachedTwice { what: "the trainer".into() });
        }
        count("trainer ranks", memory.ranks.len(), senders.len())?;
        for (plan, rank) in senders.iter().zip(&memory.ranks) {
            check_sources(plan, rank)?;
        }
        for (plan, rank) in senders.iter().zip(memory.ranks) {
            let detector = detector_state(shared, plan, &rank, memory.steps_taken);
            shared.registry.bind_sender(Arc::new(SenderBinding::new(plan, rank, detector)));
        }
        shared.standing.set_version(memory.version);
        self.host.adopt().await?;
        Ok(Trainer::new(Arc::clone(shared), memory.version))
    }

    /// Attaches the live weights of one replica, which hold `version` now.
    ///
    /// # Errors
    /// An unknown replica, one that is attached already, or memory that is not what the plan says, by tensor.
    pub async fn attach_rollout(
        &self,
        replica: ReplicaId,
        memory: RolloutMemory,
        version: Version,
    ) -> Result<Rollout, NodeError> {
        let shared = self.host.shared();
        let replicas = shared.plan.replicas();
        let found = replicas.iter().find(|plan| plan.id == replica);
        let plan = found.ok_or(NodeError::NoReplica { found: replica, replicas: replicas.len() })?;
        if shared.registry.replica(replica).is_some() {
            return Err(NodeError::AttachedTwice { what: format!("replica {replica}") });
        }
        count("rollout ranks", memory.ranks.len(), plan.receivers.len())?;
        let mut bindings = Vec::new();
        for (receiver, rank) in plan.receivers.iter().zip(memory.ranks) {
            count(&format!("tensors of {}", receiver.name), rank.len(), receiver.tensors.len())?;
            for (tensor, buffer) in receiver.tensors.iter().zip(&rank) {
                let elements = tensor.shape.elements().unwrap_or(u64::MAX);
                let words = elements.saturating_mul(tensor.dtype.words() as u64);
                length(&receiver.name, &tensor.name, buffer.len(), words)?;
            }
            let device = &*shared.device;
            bindings.push(ReceiverBinding::new(&shared.plan, receiver, rank, version, device, &shared.keys)?);
        }
        shared.registry.bind_replica(Arc::new(ReplicaBinding::new(replica, version)));
        for binding in bindings {
            shared.registry.bind_receiver(Arc::new(binding));
        }
        self.host.adopt().await?;
        Ok(Rollout::new(Arc::clone(shared), replica))
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

    /// Stops every actor; live weights stay at the version that each replica serves.
    pub async fn stop(self) {
        self.host.stop().await;
    }
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

fn check_sources(plan: &SenderPlan, rank: &[SourceBinding]) -> Result<(), NodeError> {
    count(&format!("tensors of trainer rank {}", plan.name), rank.len(), plan.tensors.len())?;
    for (tensor, memory) in plan.tensors.iter().zip(rank) {
        for (part, buffer) in
            [("master", &memory.master), ("exp_avg", &memory.exp_avg), ("exp_avg_sq", &memory.exp_avg_sq)]
        {
            length(&plan.name, &format!("{} ({part})", tensor.name), buffer.len(), tensor.elements())?;
        }
    }
    Ok(())
}

fn detector_state(
    shared: &Shared,
    plan: &SenderPlan,
    rank: &[SourceBinding],
    steps_taken: u64,
) -> DetectorState {
    let pieces = plan.tensors.iter().flat_map(|tensor| &tensor.pieces);
    let steps_taken: BTreeMap<_, _> = pieces.map(|piece| (piece.param, steps_taken)).collect();
    let snapshot = match shared.options.detector {
        Detector::Inversion => Vec::new(),
        Detector::Snapshot => rank.iter().map(served_bits).collect(),
    };
    DetectorState {
        unpublished: None,
        steps_taken,
        snapshot,
        snapshot_state: SnapshotState::Clean,
        audited: BTreeSet::new(),
    }
}

fn served_bits(memory: &SourceBinding) -> Vec<u16> {
    memory.master.read().iter().map(|&x| bf16::cast(x)).collect()
}
