//! What all actors of a node share, and what outlives each of them.

use crate::actor::{Child, CoordinatorMsg, ReceiverMsg, ShardMsg};
use crate::binding::{ReceiverBinding, ReplicaBinding, SenderBinding, StepRequest};
use crate::log::{FollowBinding, FollowerMsg, LogTarget, PublisherMsg};
use crate::{Ledger, NodeOptions};
use dashmap::DashMap;
use driftless_device::Device;
use driftless_layout::{Fragment, ParamMeta, RemapPlan};
use driftless_numerics::DigestKeys;
use driftless_transport::{Loopback, LoopbackOptions, Transport};
use driftless_types::{Epoch, Member, ReceiverId, ReplicaId, SenderId, Version};
use ractor::{ActorCell, ActorRef};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// The state of a node that no actor owns: plan, backends, bindings, ledger, and the addresses of the living.
pub struct Shared {
    /// The plan that both sides hold.
    pub plan: RemapPlan,
    /// The options of the node.
    pub options: NodeOptions,
    /// Keys of the run's digests.
    pub keys: DigestKeys,
    /// Where weights live.
    pub device: Arc<dyn Device>,
    /// How bytes move.
    pub transport: Box<dyn Transport>,
    /// What is known of each version.
    pub ledger: Ledger,
    /// Bindings and addresses.
    pub registry: Registry,
    /// Whether the trainer's weights stand still, and at which version.
    pub standing: Standing,
    /// The runtime that the node was started on: its handles may be used from any thread.
    pub tokio: tokio::runtime::Handle,
    log: OnceLock<LogTarget>,
    stopped: AtomicBool,
    /// Steps reported by all trainers of this node.
    sequence: AtomicU64,
    /// The highest version that was reported here, or is served.
    newest: AtomicU64,
    /// Trainers that were detached.
    trainers_gone: AtomicU64,
}

impl Shared {
    /// The shared state of a node on the backend of its options with the loopback transport.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(plan: RemapPlan, options: NodeOptions) -> Arc<Self> {
        // What waits for a receiver is the senders' own memory, and what they encode is bounded by the plan: a receiver
        // that cannot stage it must come to say so.
        let fragments =
            plan.senders().iter().flat_map(|sender| &sender.edges).flat_map(|edge| &edge.fragments);
        let encoded = |fragment: &Fragment| {
            SECTION_OVERHEAD_BYTES + fragment.elements() * fragment.dtype.bytes() as u64
        };
        let early_bytes_max = fragments.map(encoded).sum();
        let loopback = LoopbackOptions { early_bytes_max, ..LoopbackOptions::default() };
        Arc::new(Self {
            keys: DigestKeys::new(options.run),
            plan,
            device: Arc::clone(&options.device),
            options,
            transport: Box::new(Loopback::new(loopback)),
            ledger: Ledger::default(),
            registry: Registry::default(),
            standing: Standing::default(),
            tokio: tokio::runtime::Handle::current(),
            log: OnceLock::new(),
            stopped: AtomicBool::new(false),
            sequence: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            trainers_gone: AtomicU64::new(0),
        })
    }

    /// The log that this node publishes to.
    #[must_use]
    pub fn log(&self) -> Option<&LogTarget> {
        self.log.get()
    }

    /// From now on this node publishes to a log. Says whether it did not before.
    pub fn set_log(&self, log: LogTarget) -> bool {
        self.log.set(log).is_ok()
    }

    /// The shared state of a node that goes on where `former` stopped, under another plan: in higher epochs (CM-5), at
    /// higher versions.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn successor(former: &Self, plan: RemapPlan) -> Arc<Self> {
        let next = Self::new(plan, former.options.clone());
        next.registry.epochs.store(former.registry.epochs.load(Ordering::Acquire), Ordering::Release);
        next.note_version(former.newest_version());
        if let Some(log) = former.log() {
            let _ = next.set_log(log.anew());
        }
        next
    }

    /// Whether the log that this node publishes to, if any, can be written under another plan, too: that of the same
    /// trainer and parameters.
    #[must_use]
    pub fn log_fits(&self, plan: &RemapPlan) -> bool {
        self.log()
            .is_none_or(|log| log.plan().trainer() == plan.trainer() && log.plan().params() == plan.params())
    }

    /// The number of the next step that is reported.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// A version was reported, or is served.
    pub fn note_version(&self, version: Version) {
        self.newest.fetch_max(version.0, Ordering::AcqRel);
    }

    /// The highest version that was reported, or is served: the next one must be higher, whoever reports it.
    #[must_use]
    pub fn newest_version(&self) -> Version {
        Version(self.newest.load(Ordering::Acquire))
    }

    /// A trainer leaves: whoever waits for its versions hears so, and what it made for the log is dropped.
    pub fn trainer_leaves(&self) {
        self.standing.set_moving();
        self.trainers_gone.fetch_add(1, Ordering::AcqRel);
        if let Some(log) = self.log() {
            log.trainer_left();
        }
        self.ledger.wake();
    }

    /// The first version of a trainer, whose parts for the log were made with its bindings, is to be published.
    pub fn publish_first(&self, version: Version) {
        if let Some(log) = self.log() {
            let _ = log.name(version);
            self.registry.tell_publisher(PublisherMsg::Made);
        }
    }

    /// How many trainers were detached.
    #[must_use]
    pub fn trainers_gone(&self) -> u64 {
        self.trainers_gone.load(Ordering::Acquire)
    }

    /// Nothing moves any more: whoever waits for a version hears so.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.ledger.wake();
    }

    /// Whether the node was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The training loop has stepped: each rank's actor detects it, or its successor does.
    ///
    /// Not if a trainer was detached since `trainers_gone` were: the one that is there now has not made this step.
    pub fn report_step(&self, step: impl FnOnce() -> StepRequest, trainers_gone: u64) {
        if trainers_gone != self.trainers_gone() {
            return;
        }
        let step = step();
        for sender in self.registry.bound_senders() {
            let Some(binding) = self.registry.sender(sender) else { continue };
            binding.request(step.clone());
            self.registry.tell_shard(sender, ShardMsg::StepDone);
        }
    }

    /// Canonical elements of the model.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.plan.params().iter().map(ParamMeta::elements).sum()
    }

    /// Served bytes of all attached receivers, padding left out.
    #[must_use]
    pub fn dense_bytes(&self) -> u64 {
        let receivers = self.plan.replicas().iter().flat_map(|replica| &replica.receivers);
        let attached = receivers.filter(|receiver| self.registry.receiver(receiver.id).is_some());
        let tensors = attached.flat_map(|receiver| &receiver.tensors);
        tensors
            .map(|tensor| {
                let elements: u64 = tensor.boxes.iter().map(|dest| dest.canonical.elements()).sum();
                elements * tensor.dtype.bytes() as u64
            })
            .sum()
    }
}

/// Bindings by rank, and the actor that lives for each rank now.
#[derive(Default)]
pub struct Registry {
    senders: DashMap<SenderId, Arc<SenderBinding>>,
    receivers: DashMap<ReceiverId, Arc<ReceiverBinding>>,
    replicas: DashMap<ReplicaId, Arc<ReplicaBinding>>,
    shard_actors: DashMap<SenderId, ActorRef<ShardMsg>>,
    receiver_actors: DashMap<ReceiverId, ActorRef<ReceiverMsg>>,
    coordinator: RwLock<Option<ActorRef<CoordinatorMsg>>>,
    publisher: RwLock<Option<ActorRef<PublisherMsg>>>,
    followed: DashMap<ReplicaId, Arc<FollowBinding>>,
    follower_actors: DashMap<ReplicaId, ActorRef<FollowerMsg>>,
    epochs: AtomicU64,
    unhealthy: Mutex<BTreeSet<Child>>,
}

impl Registry {
    /// Adds a sender's binding.
    pub fn bind_sender(&self, binding: Arc<SenderBinding>) {
        self.senders.insert(binding.id, binding);
    }

    /// Adds a receiver's binding.
    pub fn bind_receiver(&self, binding: Arc<ReceiverBinding>) {
        self.receivers.insert(binding.id, binding);
    }

    /// Adds a replica's binding.
    pub fn bind_replica(&self, binding: Arc<ReplicaBinding>) {
        self.replicas.insert(binding.id, binding);
    }

    /// Removes a sender's binding: no actor is started for it any more.
    pub(crate) fn unbind_sender(&self, id: SenderId) -> Option<Arc<SenderBinding>> {
        self.senders.remove(&id).map(|(_, binding)| binding)
    }

    /// Removes a receiver's binding: no actor is started for it any more.
    pub(crate) fn unbind_receiver(&self, id: ReceiverId) -> Option<Arc<ReceiverBinding>> {
        self.receivers.remove(&id).map(|(_, binding)| binding)
    }

    /// Removes the binding of a replica that follows a log: after those of its receivers, which else had actors.
    pub(crate) fn unbind_followed(&self, id: ReplicaId) -> Option<Arc<FollowBinding>> {
        self.followed.remove(&id).map(|(_, binding)| binding)
    }

    /// Forgets the addresses of children that have left, and gives them: nothing reaches whoever lives there still.
    pub(crate) fn dismiss(&self, children: &[Child]) -> Vec<ActorCell> {
        let address = |child: &Child| match child {
            Child::Coordinator => None,
            Child::Publisher => {
                let mut publisher = self.publisher.write().unwrap_or_else(PoisonError::into_inner);
                publisher.take().map(|actor| actor.get_cell())
            }
            Child::Follower(id) => self.follower_actors.remove(id).map(|(_, actor)| actor.get_cell()),
            Child::Member(Member::Sender(id)) => {
                self.shard_actors.remove(id).map(|(_, actor)| actor.get_cell())
            }
            Child::Member(Member::Receiver(id)) => {
                self.receiver_actors.remove(id).map(|(_, actor)| actor.get_cell())
            }
        };
        children.iter().filter_map(address).collect()
    }

    /// Removes a replica's binding.
    pub(crate) fn unbind_replica(&self, id: ReplicaId) -> Option<Arc<ReplicaBinding>> {
        self.replicas.remove(&id).map(|(_, binding)| binding)
    }

    /// The binding of a sender.
    #[must_use]
    pub fn sender(&self, id: SenderId) -> Option<Arc<SenderBinding>> {
        self.senders.get(&id).map(|binding| Arc::clone(&binding))
    }

    /// The binding of a receiver.
    #[must_use]
    pub fn receiver(&self, id: ReceiverId) -> Option<Arc<ReceiverBinding>> {
        self.receivers.get(&id).map(|binding| Arc::clone(&binding))
    }

    /// The binding of a replica.
    #[must_use]
    pub fn replica(&self, id: ReplicaId) -> Option<Arc<ReplicaBinding>> {
        self.replicas.get(&id).map(|binding| Arc::clone(&binding))
    }

    /// Adds the binding of a replica that follows a log: before those of its receivers, which then have no actors.
    pub fn bind_followed(&self, binding: Arc<FollowBinding>) {
        self.followed.insert(binding.replica, binding);
    }

    /// The binding of a replica that follows a log.
    #[must_use]
    pub fn followed(&self, id: ReplicaId) -> Option<Arc<FollowBinding>> {
        self.followed.get(&id).map(|binding| Arc::clone(&binding))
    }

    /// The replicas that follow a log, in order.
    #[must_use]
    pub fn followed_replicas(&self) -> Vec<ReplicaId> {
        sorted(self.followed.iter().map(|entry| *entry.key()))
    }

    /// The senders that are bound, in order.
    #[must_use]
    pub fn bound_senders(&self) -> Vec<SenderId> {
        sorted(self.senders.iter().map(|entry| *entry.key()))
    }

    /// The receivers that are bound and follow no log, in order.
    #[must_use]
    pub fn bound_receivers(&self) -> Vec<ReceiverId> {
        let receivers = self.receivers.iter().map(|entry| *entry.key());
        sorted(receivers.filter(|id| !self.followed.contains_key(&id.replica)))
    }

    /// The replicas that are bound and follow no log, in order.
    #[must_use]
    pub fn bound_replicas(&self) -> Vec<ReplicaId> {
        let replicas = self.replicas.iter().map(|entry| *entry.key());
        sorted(replicas.filter(|id| !self.followed.contains_key(id)))
    }

    /// The epoch of a coordinator that starts now: above every earlier one of this node.
    pub(crate) fn next_epoch(&self) -> Epoch {
        let counter = self.epochs.fetch_add(1, Ordering::AcqRel) + 1; // CM-5
        let (incarnation, _) = uuid::Uuid::new_v4().as_u64_pair();
        Epoch { counter, incarnation }
    }

    /// An actor announces that it now lives for a sender.
    pub(crate) fn enter_shard(&self, id: SenderId, actor: ActorRef<ShardMsg>) {
        self.shard_actors.insert(id, actor);
    }

    /// An actor announces that it now lives for a receiver.
    pub(crate) fn enter_receiver(&self, id: ReceiverId, actor: ActorRef<ReceiverMsg>) {
        self.receiver_actors.insert(id, actor);
    }

    /// An actor announces that it now is the coordinator.
    pub(crate) fn enter_coordinator(&self, actor: ActorRef<CoordinatorMsg>) {
        *self.coordinator.write().unwrap_or_else(PoisonError::into_inner) = Some(actor);
    }

    /// An actor announces that it now publishes.
    pub(crate) fn enter_publisher(&self, actor: ActorRef<PublisherMsg>) {
        *self.publisher.write().unwrap_or_else(PoisonError::into_inner) = Some(actor);
    }

    /// An actor announces that it now reads for a replica.
    pub(crate) fn enter_follower(&self, id: ReplicaId, actor: ActorRef<FollowerMsg>) {
        self.follower_actors.insert(id, actor);
    }

    /// Says something to the publisher; to a dead one it is lost, as its successor looks for itself.
    pub(crate) fn tell_publisher(&self, message: PublisherMsg) {
        let publisher = self.publisher.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = publisher.as_ref() {
            let _ = actor.cast(message);
        }
    }

    /// Says something to a sender's actor; to a dead one it is lost, as its successor announces itself.
    pub(crate) fn tell_shard(&self, id: SenderId, message: ShardMsg) {
        if let Some(actor) = self.shard_actors.get(&id) {
            let _ = actor.cast(message);
        }
    }

    /// Says something to a receiver's actor; to a dead one it is lost, as its successor announces itself.
    pub(crate) fn tell_receiver(&self, id: ReceiverId, message: ReceiverMsg) {
        if let Some(actor) = self.receiver_actors.get(&id) {
            let _ = actor.cast(message);
        }
    }

    /// Says something to the coordinator; to a dead one it is lost, as its successor asks everybody.
    pub(crate) fn tell_coordinator(&self, message: CoordinatorMsg) {
        let coordinator = self.coordinator.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = coordinator.as_ref() {
            let _ = actor.cast(message);
        }
    }

    /// Every actor below the supervisor that is or was alive.
    #[must_use]
    pub(crate) fn children(&self) -> Vec<ActorCell> {
        let coordinator = self.coordinator.read().unwrap_or_else(PoisonError::into_inner);
        let shards = self.shard_actors.iter().map(|entry| entry.value().get_cell());
        let receivers = self.receiver_actors.iter().map(|entry| entry.value().get_cell());
        let publisher = self.publisher.read().unwrap_or_else(PoisonError::into_inner);
        let followers = self.follower_actors.iter().map(|entry| entry.value().get_cell());
        let single =
            [coordinator.as_ref().map(ActorRef::get_cell), publisher.as_ref().map(ActorRef::get_cell)];
        shards.chain(receivers).chain(followers).chain(single.into_iter().flatten()).collect()
    }

    /// A child's restart budget is spent: it rests before it is started again.
    pub(crate) fn exhausted(&self, child: Child) {
        self.unhealthy.lock().unwrap_or_else(PoisonError::into_inner).insert(child);
    }

    /// A child lives again.
    pub(crate) fn revived(&self, child: Child) {
        self.unhealthy.lock().unwrap_or_else(PoisonError::into_inner).remove(&child);
    }

    /// The children whose restart budget is spent.
    #[must_use]
    pub fn unhealthy(&self) -> Vec<Child> {
        self.unhealthy.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_unstable();
    items
}

/// The most that a section and its record take beside what dense words would.
const SECTION_OVERHEAD_BYTES: u64 = 256;
/// Reading dense values takes no longer: nobody waits for a peer meanwhile.
const READS_END: Duration = Duration::from_secs(10);
/// How often the optimizer says that it waits.
const CALL_AGAIN: Duration = Duration::from_millis(2);

/// Between `step_done` and `step_begin` the trainer's weights stand still, and dense values may be read from them.
#[derive(Debug, Default)]
pub struct Standing {
    gate: Arc<tokio::sync::RwLock<()>>,
    version: AtomicU64,
    wanted: tokio::sync::Notify,
}

impl Standing {
    /// Waits for readers of dense values, then lets the optimizer write for as long as the guard lives.
    pub async fn begin_step(&self) -> tokio::sync::OwnedRwLockWriteGuard<()> {
        let alone = Arc::clone(&self.gate).write_owned();
        tokio::pin!(alone);
        loop {
            // Whoever began to read just now has not heard the first call.
            self.wanted.notify_waiters();
            if let Ok(guard) = tokio::time::timeout(CALL_AGAIN, &mut alone).await {
                return guard;
            }
        }
    }

    /// Waits until the optimizer wants to step.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// The weights now are those of this version.
    pub fn set_version(&self, version: Version) {
        self.version.store(version.0, Ordering::Release);
    }

    /// The weights are of no version.
    pub fn set_moving(&self) {
        self.version.store(u64::MAX, Ordering::Release);
    }

    /// Waits until nobody reads dense values who reads them now; where a step is open, nobody does.
    pub(crate) async fn unread(&self) {
        if Arc::clone(&self.gate).try_read_owned().is_ok() {
            // Bounded, for a step may begin just now, and its guard be kept by whoever waits for this.
            let _ = tokio::time::timeout(READS_END, Arc::clone(&self.gate).write_owned()).await;
        }
    }

    /// Leave to read dense values of a version; `None` if the optimizer has moved on.
    #[must_use]
    pub fn read(&self, version: Version) -> Option<tokio::sync::OwnedRwLockReadGuard<()>> {
        let guard = Arc::clone(&self.gate).try_read_owned().ok()?;
        (self.version.load(Ordering::Acquire) == version.0).then_some(guard)
    }
}
