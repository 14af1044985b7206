//! A fleet under test: the tiny trainer, real actors, and rollouts whose every bit is compared with the trainer's.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use driftless::{
    Buffer, Device, Family, LayoutClaim, Node, NodeOptions, Outcome, ReceiverPlan, RemapPlan, ReplicaId,
    Rollout, RolloutMemory, SourceBinding, StepGuard, StepMask, StepParams, SyncHandle, Trainer,
    TrainerMemory, Version, WordBuffer,
};
use driftless_testkit::{TensorBuffers, TinyTrainer, tiny_plan};
use std::sync::Arc;

/// A trainer and its replicas, with handles to all memory.
pub struct Fleet {
    /// The node under test.
    pub node: Node,
    /// The facade's trainer.
    pub trainer: Trainer,
    /// One per replica.
    pub rollouts: Vec<Rollout>,
    /// The optimizer.
    pub policy: TinyTrainer,
    live: Vec<Vec<Vec<Buffer<u16>>>>,
    /// The optimizer's memory where the node's device works.
    memory: Vec<Vec<TensorBuffers>>,
    device: Arc<dyn Device>,
    version: u64,
    params: Option<StepParams>,
}

impl Fleet {
    /// Starts a fleet of these layouts at version 0.
    ///
    /// # Errors
    /// A layout that does not fit the tiny policy, or a node that does not start.
    pub async fn start(trainer: &str, rollouts: &[&str], options: NodeOptions) -> Result<Self> {
        Self::start_only(trainer, rollouts, rollouts.len(), options).await
    }

    /// The same, of which only the first `attached` replicas are attached.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_only(
        trainer: &str,
        rollouts: &[&str],
        attached: usize,
        options: NodeOptions,
    ) -> Result<Self> {
        Self::of_plan(plan_of(trainer, rollouts)?, attached, options).await
    }

    /// The same, of a plan.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn of_plan(plan: RemapPlan, attached: usize, options: NodeOptions) -> Result<Self> {
        let policy = TinyTrainer::new(&plan, 7);
        let device = Arc::clone(&options.device);
        let rank = |receiver| buffers(policy.expected_words(receiver), &*device);
        let live: Vec<Vec<Vec<Buffer<u16>>>> = plan
            .replicas()
            .iter()
            .take(attached)
            .map(|replica| replica.receivers.iter().map(rank).collect::<Result<_>>())
            .collect::<Result<_>>()?;
        let memory = policy.memory_on(&*device)?;
        let node = Node::start(plan, options).await?;
        let trainer = node.attach_trainer(trainer_memory(&memory, &policy, 0)).await?;
        let mut handles = Vec::new();
        for (index, ranks) in (0u32..).zip(&live) {
            let attached = RolloutMemory::new(ranks.clone(), LayoutClaim::Proven);
            handles.push(node.attach_rollout(ReplicaId(index), attached, Version(0)).await?);
        }
        Ok(Self { node, trainer, rollouts: handles, policy, live, memory, device, version: 0, params: None })
    }

    /// Takes one optimizer step and waits until its version has ended.
    ///
    /// # Errors
    /// A version that does not grow, which would be a bug.
    pub async fn step(&mut self) -> Result<Outcome> {
        let step = self.trainer.step_begin().await;
        let params = self.step_policy()?;
        self.params = Some(params.clone());
        self.report(step, params).await
    }

    /// Takes optimizer steps, of which the last is reported as `lie` says.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn steps_misreported(&mut self, steps: u64, lie: impl Fn(&mut StepParams)) -> Result<Outcome> {
        let guard = self.trainer.step_begin().await;
        let mut params = self.step_policy()?;
        for _ in 1..steps {
            params = self.step_policy()?;
        }
        lie(&mut params);
        self.report(guard, params).await
    }

    /// Takes one optimizer step that is not published.
    ///
    /// # Panics
    /// If the device fails.
    pub async fn step_unpublished(&mut self) {
        let step = self.trainer.step_begin().await;
        let params = self.step_policy().expect("the device takes the optimizer's memory");
        self.trainer.step_taken(step, params);
    }

    /// The optimizer's marks, of every rank and tensor.
    pub fn masks(&self) -> impl Iterator<Item = &StepMask> {
        self.memory.iter().flatten().map(|memory| &memory.mask)
    }

    fn step_policy(&mut self) -> Result<StepParams> {
        let params = self.policy.step();
        self.policy.copy_to(&self.memory)?;
        Ok(params)
    }

    /// Takes one optimizer step and does not wait for its version to end.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn step_ahead(&mut self) -> Result<SyncHandle> {
        let step = self.trainer.step_begin().await;
        let params = self.step_policy()?;
        self.version += 1;
        Ok(self.trainer.step_done(step, Version(self.version), params)?)
    }

    /// Reports the last step once more as a new version: no parameter's counter has grown.
    ///
    /// # Errors
    /// If no step was taken yet.
    pub async fn report_again(&mut self) -> Result<Outcome> {
        let step = self.trainer.step_begin().await;
        let params = self.params.clone().context("a step was taken before")?;
        self.report(step, params).await
    }

    async fn report(&mut self, step: StepGuard, params: StepParams) -> Result<Outcome> {
        self.version += 1;
        let sync = self.trainer.step_done(step, Version(self.version), params)?;
        Ok(sync.committed().await)
    }

    /// Attaches the next replica of the plan, with memory that holds what `layout` says: the newest version, or nothing.
    ///
    /// # Errors
    /// What the node has against it.
    pub async fn join(&mut self, layout: LayoutClaim) -> Result<()> {
        let memory = self.memory_for(self.rollouts.len(), layout)?;
        self.join_with(memory).await
    }

    /// Memory for a replica of the plan, kept for comparison as that of the next one.
    ///
    /// # Errors
    /// A plan without such a replica.
    pub fn memory_for(&mut self, replica: usize, layout: LayoutClaim) -> Result<RolloutMemory> {
        let plan = self.node.plan().replicas().get(replica).context("the plan has such a replica")?;
        let mut words: Vec<Vec<Vec<u16>>> =
            plan.receivers.iter().map(|receiver| self.policy.expected_words(receiver)).collect();
        if layout == LayoutClaim::Blank {
            // Not a number, and no padding that was cleared.
            blank(self.node.plan().replicas()[replica].receivers.as_slice(), &mut words);
        }
        let rank = |words| buffers(words, &*self.device);
        let ranks = words.into_iter().map(rank).collect::<Result<Vec<_>>>()?;
        self.live.push(ranks.clone());
        Ok(RolloutMemory::new(ranks, layout))
    }

    /// Attaches the next replica with this memory.
    ///
    /// # Errors
    /// What the node has against it.
    pub async fn join_with(&mut self, memory: RolloutMemory) -> Result<()> {
        let id = ReplicaId(u32::try_from(self.rollouts.len())?);
        self.rollouts.push(self.node.attach_rollout(id, memory, Version(self.version)).await?);
        Ok(())
    }

    /// Detaches the last replica: the version that its memory holds.
    ///
    /// # Errors
    /// A fleet without replicas.
    pub async fn leave(&mut self) -> Result<Option<Version>> {
        let rollout = self.rollouts.pop().context("a replica is attached")?;
        self.live.pop();
        Ok(self.node.detach_rollout(rollout).await?)
    }

    /// Detaches the trainer, and attaches one with these weights, which it says are `version`.
    ///
    /// # Errors
    /// What the node has against it.
    pub async fn restart_trainer(self, policy: TinyTrainer, version: u64) -> Result<Self> {
        let Self { node, trainer, rollouts, live, device, version: newest, .. } = self;
        node.detach_trainer(trainer).await?;
        let memory = policy.memory_on(&*device)?;
        let trainer = node.attach_trainer(trainer_memory(&memory, &policy, version)).await?;
        let version = newest.max(version);
        Ok(Self { node, trainer, rollouts, policy, live, memory, device, version, params: None })
    }

    /// Goes on with other layouts of the rollouts; none of them is attached yet.
    ///
    /// # Errors
    /// A layout that does not fit, or what the node has against it.
    pub async fn replan(
        self,
        trainer: &str,
        rollouts: &[&str],
    ) -> Result<(Self, Vec<Vec<Vec<Buffer<u16>>>>)> {
        let plan = plan_of(trainer, rollouts)?;
        let Self { node, policy, live, memory, device, version, .. } = self;
        let node = node.replan(plan).await?;
        let trainer = node.attach_trainer(trainer_memory(&memory, &policy, version)).await?;
        let (rollouts, kept) = (Vec::new(), Vec::new());
        let fleet =
            Self { node, trainer, rollouts, policy, live: kept, memory, device, version, params: None };
        Ok((fleet, live))
    }

    /// Attaches the next replica with memory that another fleet's replica had.
    ///
    /// # Errors
    /// What the node has against it.
    pub async fn join_again(&mut self, ranks: Vec<Vec<Buffer<u16>>>) -> Result<()> {
        self.live.push(ranks.clone());
        self.join_with(RolloutMemory::new(ranks, LayoutClaim::Proven)).await
    }

    /// Waits until the engines serve again: a version moves just before its resume hook is called.
    pub async fn settled(&self) {
        for rollout in &self.rollouts {
            rollout.settled().await;
        }
    }

    /// Every live word, receiver by receiver, tensor by tensor.
    ///
    /// # Panics
    /// If the device fails.
    #[must_use]
    pub fn words(&self) -> Vec<Vec<u16>> {
        words(&self.live)
    }

    /// Stops the node at once; gives the first rollout, what is in memory, and what the newest version should be.
    ///
    /// # Panics
    /// Never: a fleet has a rollout.
    pub async fn stop_and_look(mut self) -> (Rollout, Left) {
        let plan = self.node.plan();
        let receivers = plan.replicas().iter().flat_map(|replica| &replica.receivers);
        let expected = receivers.flat_map(|receiver| self.policy.expected_words(receiver)).collect();
        self.node.stop().await;
        let words = words(&self.live);
        (self.rollouts.remove(0), Left { words, expected })
    }

    /// Stops the node and drops every handle.
    pub async fn stop(self) {
        self.node.stop().await;
    }

    /// Compares every bit of every receiver with what the trainer holds now.
    ///
    /// # Errors
    /// Names the first tensor that differs.
    pub fn ensure_identical(&self) -> Result<()> {
        for (replica, ranks) in self.node.plan().replicas().iter().zip(&self.live) {
            for (receiver, tensors) in replica.receivers.iter().zip(ranks) {
                let expected = self.policy.expected_words(receiver);
                for ((tensor, live), expected) in receiver.tensors.iter().zip(tensors).zip(expected) {
                    ensure!(live.view()?[..] == *expected, "{}: {} differs", receiver.name, tensor.name);
                }
            }
        }
        Ok(())
    }

    /// Live words of a receiver's tensor, to damage them.
    ///
    /// # Panics
    /// If they are not on the host.
    #[must_use]
    pub fn live(&self, replica: usize, rank: usize, tensor: usize) -> &WordBuffer {
        self.live[replica][rank][tensor].host().expect("a fleet on the host")
    }
}

/// What a stopped fleet left behind.
pub struct Left {
    /// The live words.
    pub words: Vec<Vec<u16>>,
    /// The words of the newest version.
    pub expected: Vec<Vec<u16>>,
}

fn plan_of(trainer: &str, rollouts: &[&str]) -> Result<RemapPlan> {
    let layouts = rollouts.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
    Ok(tiny_plan(&trainer.parse()?, &layouts)?)
}

fn trainer_memory(memory: &[Vec<TensorBuffers>], policy: &TinyTrainer, version: u64) -> TrainerMemory {
    TrainerMemory {
        ranks: sources(memory),
        steps_taken: policy.steps_taken(),
        version: Version(version),
        family: Family::Torch,
    }
}

/// Spoils every word that belongs to the model; padding stays as it is, for nobody sends it.
fn blank(receivers: &[ReceiverPlan], words: &mut [Vec<Vec<u16>>]) {
    for (receiver, ranks) in receivers.iter().zip(words) {
        for (tensor, words) in receiver.tensors.iter().zip(ranks) {
            let held: u64 = tensor.boxes.iter().map(|dest| dest.canonical.elements()).sum();
            if Some(held) == tensor.shape.elements() {
                words.fill(0x7fc0);
            }
        }
    }
}

fn buffers(words: Vec<Vec<u16>>, device: &dyn Device) -> Result<Vec<Buffer<u16>>> {
    words.into_iter().map(|words| Ok(device.words(words)?)).collect()
}

fn words(live: &[Vec<Vec<Buffer<u16>>>]) -> Vec<Vec<u16>> {
    let buffers = live.iter().flatten().flatten();
    buffers.map(|buffer| buffer.view().expect("the device answers").to_vec()).collect()
}

fn sources(memory: &[Vec<TensorBuffers>]) -> Vec<Vec<SourceBinding>> {
    let bind = |state: &TensorBuffers| {
        let TensorBuffers { master, exp_avg, exp_avg_sq, mask, model } = state.clone();
        SourceBinding::new(master, exp_avg, exp_avg_sq).with_mask(mask).with_model(model)
    };
    memory.iter().map(|rank| rank.iter().map(bind).collect()).collect()
}
