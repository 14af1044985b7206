//! A fleet under test: the tiny trainer, real actors, and rollouts whose every bit is compared with the trainer's.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use driftless::{
    Family, LayoutClaim, Node, NodeOptions, Outcome, ReplicaId, Rollout, RolloutMemory, SourceBinding,
    StepGuard, StepParams, SyncHandle, Trainer, TrainerMemory, Version, WordBuffer,
};
use driftless_testkit::{TinyTrainer, tiny_plan};

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
    live: Vec<Vec<Vec<WordBuffer>>>,
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
        let layouts = rollouts.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
        let plan = tiny_plan(&trainer.parse()?, &layouts)?;
        let policy = TinyTrainer::new(&plan, 7);
        let live: Vec<Vec<Vec<WordBuffer>>> = plan
            .replicas()
            .iter()
            .take(attached)
            .map(|replica| replica.receivers.iter().map(|r| buffers(policy.expected_words(r))).collect())
            .collect();
        let node = Node::start(plan, options).await?;
        let memory = TrainerMemory {
            ranks: sources(&policy),
            steps_taken: 0,
            version: Version(0),
            family: Family::Torch,
        };
        let trainer = node.attach_trainer(memory).await?;
        let mut handles = Vec::new();
        for (index, ranks) in (0u32..).zip(&live) {
            let memory = RolloutMemory::new(ranks.clone(), LayoutClaim::Proven);
            handles.push(node.attach_rollout(ReplicaId(index), memory, Version(0)).await?);
        }
        Ok(Self { node, trainer, rollouts: handles, policy, live, version: 0, params: None })
    }

    /// Takes one optimizer step and waits until its version has ended.
    ///
    /// # Errors
    /// A version that does not grow, which would be a bug.
    pub async fn step(&mut self) -> Result<Outcome> {
        let step = self.trainer.step_begin().await;
        let params = self.policy.step();
        self.params = Some(params.clone());
        self.report(step, params).await
    }

    /// Takes optimizer steps, of which the last is reported as `lie` says.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn steps_misreported(&mut self, steps: u64, lie: impl Fn(&mut StepParams)) -> Result<Outcome> {
        let guard = self.trainer.step_begin().await;
        let mut params = self.policy.step();
        for _ in 1..steps {
            params = self.policy.step();
        }
        lie(&mut params);
        self.report(guard, params).await
    }

    /// Takes one optimizer step that is not published.
    pub async fn step_unpublished(&mut self) {
        let step = self.trainer.step_begin().await;
        let params = self.policy.step();
        self.trainer.step_taken(step, params);
    }

    /// Takes one optimizer step and does not wait for its version to end.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub async fn step_ahead(&mut self) -> Result<SyncHandle> {
        let step = self.trainer.step_begin().await;
        let params = self.policy.step();
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

    /// Waits until the engines serve again: a version moves just before its resume hook is called.
    pub async fn settled(&self) {
        for rollout in &self.rollouts {
            rollout.settled().await;
        }
    }

    /// Every live word, receiver by receiver, tensor by tensor.
    #[must_use]
    pub fn words(&self) -> Vec<Vec<u16>> {
        self.live.iter().flatten().flatten().map(|buffer| buffer.read().to_vec()).collect()
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
        let words = self.live.iter().flatten().flatten().map(|buffer| buffer.read().to_vec()).collect();
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
                    ensure!(*live.read() == *expected, "{}: {} differs", receiver.name, tensor.name);
                }
            }
        }
        Ok(())
    }

    /// Live words of a receiver's tensor, to damage them.
    #[must_use]
    pub fn live(&self, replica: usize, rank: usize, tensor: usize) -> &WordBuffer {
        &self.live[replica][rank][tensor]
    }
}

/// What a stopped fleet left behind.
pub struct Left {
    /// The live words.
    pub words: Vec<Vec<u16>>,
    /// The words of the newest version.
    pub expected: Vec<Vec<u16>>,
}

fn buffers(words: Vec<Vec<u16>>) -> Vec<WordBuffer> {
    words.into_iter().map(WordBuffer::new).collect()
}

fn sources(policy: &TinyTrainer) -> Vec<Vec<SourceBinding>> {
    let bind = |state: driftless_testkit::TensorState| {
        SourceBinding::new(state.master, state.exp_avg, state.exp_avg_sq)
            .with_mask(state.mask)
            .with_model(state.model)
    };
    policy.memory().into_iter().map(|rank| rank.into_iter().map(bind).collect()).collect()
}
