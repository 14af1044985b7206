//! A trainer that publishes and replicas that follow, with nothing between them but a store.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use driftless::log::{
    BaseWords, Follow, FollowEnd, FollowOptions, Following, InProcess, Keep, LogIo, Patience, PublishOptions,
    Publishing, Signer, StoreOptions, Stream, Trust, stream_model,
};
use driftless::{
    Buffer, Device, Family, LayoutClaim, Node, NodeOptions, Outcome, ReplicaId, Rollout, RolloutMemory,
    SourceBinding, Trainer, TrainerLayout, TrainerMemory, Version,
};
use driftless_testkit::{TINY_CONFIG, TensorBuffers, TinyTrainer, tiny_model, tiny_plan};
use object_store::ObjectStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Pauses for tests: an outage is over in no time.
const PATIENCE: Patience =
    Patience { tries: 4, first: Duration::from_millis(5), longest: Duration::from_millis(40) };
/// A test that waits longer than this has failed.
const WAIT: Duration = Duration::from_secs(60);

/// Words: per receiver, per tensor.
type Words = Vec<Vec<Vec<u16>>>;

/// The stream in a store, for anybody who may write to it.
#[must_use]
pub fn stream(store: &Arc<dyn ObjectStore>) -> LogIo {
    let options = StoreOptions {
        deadline: Duration::from_secs(2),
        attempts: 2,
        backoff_min: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        ..StoreOptions::default()
    };
    LogIo {
        stream: Stream::new(Arc::clone(store), "runs/7".into(), options),
        trust: Arc::new(Trust::AllowUnsigned),
        signer: Arc::new(Signer::Unsigned),
    }
}

/// Options of a publisher under test.
#[must_use]
pub fn publish_options() -> PublishOptions {
    PublishOptions { model_config: TINY_CONFIG.into(), patience: PATIENCE, ..PublishOptions::default() }
}

/// A trainer with replicas of its own cluster and a stream.
pub struct Home {
    /// The node under test.
    pub node: Node,
    /// The facade's trainer.
    pub trainer: Trainer,
    /// The stream's handle.
    pub publishing: Publishing,
    /// The replicas of the own cluster.
    pub rollouts: Vec<Rollout>,
    /// The optimizer.
    pub policy: TinyTrainer,
    live: Vec<Vec<Vec<Buffer<u16>>>>,
    /// The optimizer's memory where the node's device works.
    memory: Vec<Vec<TensorBuffers>>,
    version: u64,
}

impl Home {
    /// Starts a trainer at version 0 with these replicas beside the stream.
    ///
    /// # Errors
    /// A layout that does not fit the tiny policy, or a node that does not start.
    pub async fn start(
        store: &Arc<dyn ObjectStore>,
        trainer: &str,
        rollouts: &[&str],
        node: NodeOptions,
        publish: PublishOptions,
    ) -> Result<Self> {
        let layouts = rollouts.iter().map(|text| text.parse()).collect::<Result<Vec<_>, _>>()?;
        let layout: TrainerLayout = trainer.parse()?;
        let plan = tiny_plan(&layout, &layouts)?;
        let policy = TinyTrainer::new(&plan, 7);
        let device = Arc::clone(&node.device);
        let rank = |receiver| buffers(policy.expected_words(receiver), &*device);
        let receivers = plan.replicas().iter().map(|replica| &replica.receivers);
        let live: Vec<Vec<Vec<Buffer<u16>>>> = receivers
            .map(|receivers| receivers.iter().map(rank).collect::<Result<_>>())
            .collect::<Result<_>>()?;
        let memory = policy.memory_on(&*device)?;
        let log = driftless::RemapPlan::compile_log(&tiny_model(&layout, &layouts)?, &layout)?;
        let node = Node::start(plan, node).await?;
        let publishing = node.publish(log, stream(store), publish)?;
        let trainer = node.attach_trainer(trainer_memory(&memory, &policy, 0)).await?;
        let mut handles = Vec::new();
        for (index, ranks) in (0u32..).zip(&live) {
            let attached = RolloutMemory::new(ranks.clone(), LayoutClaim::Proven);
            handles.push(node.attach_rollout(ReplicaId(index), attached, Version(0)).await?);
        }
        Ok(Self { node, trainer, publishing, rollouts: handles, policy, live, memory, version: 0 })
    }

    /// Takes one optimizer step and waits until its version has ended in the own cluster.
    ///
    /// # Errors
    /// A version that does not grow, which would be a bug.
    pub async fn step(&mut self) -> Result<Outcome> {
        let step = self.trainer.step_begin().await;
        let params = self.policy.step();
        self.policy.copy_to(&self.memory)?;
        self.version += 1;
        let sync = self.trainer.step_done(step, Version(self.version), params)?;
        sync.detected().await;
        Ok(sync.committed().await)
    }

    /// Detaches the trainer and attaches it again, as it is now.
    ///
    /// # Errors
    /// What the node has against it.
    pub async fn restart_trainer(self) -> Result<Self> {
        let Self { node, trainer, .. } = self;
        node.detach_trainer(trainer).await?;
        let memory = trainer_memory(&self.memory, &self.policy, self.version);
        let trainer = node.attach_trainer(memory).await?;
        Ok(Self { node, trainer, ..self })
    }

    /// Goes on under the plan of another trainer layout, or of the same, without replicas of its own.
    ///
    /// # Errors
    /// What the node has against it.
    pub async fn replan(self, trainer: &str) -> Result<Self> {
        let plan = tiny_plan(&trainer.parse()?, &["hf".parse()?])?;
        let node = self.node.replan(plan).await?;
        let publishing = node.publishing().context("the log is carried along")?;
        let memory = trainer_memory(&self.memory, &self.policy, self.version);
        let trainer = node.attach_trainer(memory).await?;
        Ok(Self { node, trainer, publishing, rollouts: Vec::new(), live: Vec::new(), ..self })
    }

    /// The version that was reported last.
    #[must_use]
    pub const fn version(&self) -> Version {
        Version(self.version)
    }

    /// Waits until the stream holds this version or a later one.
    ///
    /// # Errors
    /// A publisher that stopped, or that takes too long.
    pub async fn published(&self, version: Version) -> Result<driftless::log::Published> {
        let published = tokio::time::timeout(WAIT, self.publishing.published(version)).await;
        let published = published.with_context(|| format!("version {version} was not published in time"))?;
        published.map_err(|state| anyhow::anyhow!("the publisher is {state:?}"))
    }

    /// Compares every bit of the own cluster's receivers with what the trainer holds now.
    ///
    /// # Errors
    /// Names the first tensor that differs.
    pub fn ensure_identical(&self) -> Result<()> {
        for (replica, ranks) in self.node.plan().replicas().iter().zip(&self.live) {
            for (receiver, tensors) in replica.receivers.iter().zip(ranks) {
                for ((tensor, live), expected) in
                    receiver.tensors.iter().zip(tensors).zip(self.policy.expected_words(receiver))
                {
                    ensure!(live.view()?[..] == *expected, "{}: {} differs", receiver.name, tensor.name);
                }
            }
        }
        Ok(())
    }
}

/// A replica in another cluster.
pub struct Away {
    /// The node under test.
    pub node: Node,
    /// The replica's handle.
    pub rollout: Rollout,
    /// The reader's handle.
    pub following: Following,
    live: Vec<Vec<Buffer<u16>>>,
    expected: BTreeMap<Version, Words>,
}

impl Away {
    /// Starts a replica whose memory is zero, which is out of service until its first version, and follows for ever.
    ///
    /// # Errors
    /// A stream that is not there, or a node that does not start.
    pub async fn start(store: &Arc<dyn ObjectStore>, rollout: &str, options: NodeOptions) -> Result<Self> {
        Self::start_as(store, rollout, options, FollowOptions::default()).await
    }

    /// The same, with options of its own.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_as(
        store: &Arc<dyn ObjectStore>,
        rollout: &str,
        options: NodeOptions,
        follow: FollowOptions,
    ) -> Result<Self> {
        Self::start_from(store, rollout, options, follow, Arc::new(InProcess::default())).await
    }

    /// The same, with what an earlier reader kept; its memory is zero all the same.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_from(
        store: &Arc<dyn ObjectStore>,
        rollout: &str,
        options: NodeOptions,
        follow: FollowOptions,
        keep: Arc<dyn Keep>,
    ) -> Result<Self> {
        let io = stream(store);
        let model = stream_model(&io).await?;
        let plan = driftless::RemapPlan::compile(&model.model, &"hf".parse()?, &[rollout.parse()?])?;
        let zeros = |tensor: &driftless::DestTensor| {
            let elements = usize::try_from(tensor.shape.elements().unwrap_or(0)).unwrap_or(0);
            Ok(options.device.words(vec![0; elements * tensor.dtype.words()])?)
        };
        let receivers = plan.replicas()[0].receivers.iter();
        let rank = |receiver: &driftless::ReceiverPlan| receiver.tensors.iter().map(zeros).collect();
        let live: Vec<Vec<Buffer<u16>>> = receivers.map(rank).collect::<Result<_>>()?;
        let node = Node::start(plan, NodeOptions { run: model.run, ..options }).await?;
        let memory = RolloutMemory::new(live.clone(), LayoutClaim::Blank);
        let options = FollowOptions { patience: PATIENCE, poll_after: Duration::from_millis(10), ..follow };
        let follow = Follow { io, keep, options, base: BaseWords::Exact };
        let (rollout, following) = node.attach_follower(ReplicaId(0), memory, follow).await?;
        Ok(Self { node, rollout, following, live, expected: BTreeMap::new() })
    }

    /// Detaches the replica and attaches it again with the same memory, of which nothing is known, and with these hooks.
    /// Gives the version that it left with.
    ///
    /// # Errors
    /// What the node has against it.
    pub async fn leave_and_join(
        self,
        store: &Arc<dyn ObjectStore>,
        hooks: impl FnOnce(RolloutMemory) -> RolloutMemory,
    ) -> Result<(Self, Option<Version>)> {
        let Self { node, rollout, following, live, expected } = self;
        let left = node.detach_rollout(rollout).await?;
        ensure!(following.ended().await == FollowEnd::Left, "its reader has not ended");
        let memory = hooks(RolloutMemory::new(live.clone(), LayoutClaim::Blank));
        let options = FollowOptions {
            patience: PATIENCE,
            poll_after: Duration::from_millis(10),
            ..FollowOptions::default()
        };
        let keep = Arc::new(InProcess::default());
        let follow = Follow { io: stream(store), keep, options, base: BaseWords::Mixed };
        let (rollout, following) = node.attach_follower(ReplicaId(0), memory, follow).await?;
        Ok((Self { node, rollout, following, live, expected }, left))
    }

    /// Remembers what this replica must hold at the version that the trainer is at.
    pub fn expect(&mut self, home: &Home) {
        let receivers = self.node.plan().replicas()[0].receivers.iter();
        let words = receivers.map(|receiver| home.policy.expected_words(receiver)).collect();
        self.expected.insert(home.version(), words);
    }

    /// The replica's memory: per receiver, per tensor.
    #[must_use]
    pub fn live(&self) -> &[Vec<Buffer<u16>>] {
        &self.live
    }

    /// Waits until the replica serves this version or a later one, and compares every bit with the trainer's.
    ///
    /// # Errors
    /// A reader that takes too long, or the first tensor that differs.
    pub async fn ensure_reaches(&self, version: Version) -> Result<Version> {
        let served = tokio::time::timeout(WAIT, async {
            self.rollout.wait_for(version).await;
            self.rollout.settled().await;
            self.rollout.version().version
        });
        let served = served.await.with_context(|| {
            format!("version {version} was not reached in time: {:?}", self.following.status().borrow())
        })?;
        self.ensure_holds(served)?;
        Ok(served)
    }

    /// Compares every bit with what the trainer held at a version.
    ///
    /// # Errors
    /// Names the first tensor that differs.
    pub fn ensure_holds(&self, version: Version) -> Result<()> {
        let expected = self.expected.get(&version);
        let expected = expected.with_context(|| format!("nobody said what version {version} is"))?;
        let receivers = self.node.plan().replicas()[0].receivers.iter();
        for ((receiver, live), expected) in receivers.zip(&self.live).zip(expected) {
            for ((tensor, live), expected) in receiver.tensors.iter().zip(live).zip(expected) {
                ensure!(
                    live.view()?[..] == *expected,
                    "{}: {} differs at v{version}",
                    receiver.name,
                    tensor.name
                );
            }
        }
        Ok(())
    }
}

fn trainer_memory(memory: &[Vec<TensorBuffers>], policy: &TinyTrainer, version: u64) -> TrainerMemory {
    let bind = |state: &TensorBuffers| {
        let TensorBuffers { master, exp_avg, exp_avg_sq, .. } = state.clone();
        SourceBinding::new(master, exp_avg, exp_avg_sq)
    };
    TrainerMemory {
        ranks: memory.iter().map(|rank| rank.iter().map(bind).collect()).collect(),
        steps_taken: policy.steps_taken(),
        version: Version(version),
        family: Family::Torch,
    }
}

fn buffers(words: Vec<Vec<u16>>, device: &dyn Device) -> Result<Vec<Buffer<u16>>> {
    Ok(words.into_iter().map(|words| device.words(words)).collect::<Result<_, _>>()?)
}
