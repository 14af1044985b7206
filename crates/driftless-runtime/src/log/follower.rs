//! The actor that follows a log: it executes the reader's machine over the store and one replica's weights.

use super::applying::Applying;
use super::io::jittered;
use super::keep::keeping;
use super::proving::proven;
use super::reading::{FollowBinding, recover};
use super::status::FollowEnd;
use crate::actor::Tasks;
use crate::binding::ReplicaBinding;
use crate::{Shared, Site, work};
use driftless_proto::log::{
    Cursor, Dirty, Follow, FollowCommand, FollowEvent, Lease, LogTimer, Memory, Published, Stored,
};
use driftless_store::Lease as StoredLease;
use driftless_types::ReplicaId;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

/// What the follower hears.
#[derive(Debug)]
pub(crate) enum FollowerMsg {
    /// The weights are in order again, and this was kept.
    Restored(Box<Memory>),
    /// They cannot be put in order, or what was kept cannot be read.
    Broken(String),
    /// The answer to a command.
    Event(FollowEvent),
}

/// The actor that follows a log.
pub(crate) struct FollowerActor;

/// What is lost when the actor dies: its successor goes on from what was kept.
pub(crate) struct FollowerState {
    shared: Arc<Shared>,
    binding: Arc<FollowBinding>,
    replica: Arc<ReplicaBinding>,
    machine: Option<Follow>,
    /// What is kept, as it was kept last.
    memory: Memory,
    /// Told when the engine has resumed: until then nothing is written.
    resumed: Option<oneshot::Receiver<()>>,
    tasks: Tasks<LogTimer>,
}

impl Actor for FollowerActor {
    type Msg = FollowerMsg;
    type State = FollowerState;
    type Arguments = (Arc<Shared>, ReplicaId);

    async fn pre_start(
        &self,
        me: ActorRef<FollowerMsg>,
        (shared, id): (Arc<Shared>, ReplicaId),
    ) -> Result<FollowerState, ActorProcessingErr> {
        let binding = shared.registry.followed(id).ok_or("the replica follows no log")?;
        let replica = shared.registry.replica(id).ok_or("the replica has no binding")?;
        shared.registry.enter_follower(id, me.clone());
        let mut tasks = Tasks::new(me.get_cell());
        let (restored, ours, cancel) = (Arc::clone(&binding), Arc::clone(&shared), tasks.cancel_flag());
        tasks.spawn(async move {
            let _ = me.cast(restore(&ours, &restored, &cancel).await);
        });
        let memory = Memory::default();
        Ok(FollowerState { shared, binding, replica, machine: None, memory, resumed: None, tasks })
    }

    async fn handle(
        &self,
        me: ActorRef<FollowerMsg>,
        message: FollowerMsg,
        state: &mut FollowerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            FollowerMsg::Restored(memory) => state.open(&me, *memory),
            FollowerMsg::Broken(error) => return Err(error.into()),
            FollowerMsg::Event(event) => state.feed(&me, event),
        }
        Ok(())
    }
}

/// Takes back what a predecessor left half-written, then reads what it kept, and sees whether the weights are that.
async fn restore(
    shared: &Arc<Shared>,
    binding: &Arc<FollowBinding>,
    cancel: &Arc<AtomicBool>,
) -> FollowerMsg {
    if let Err(error) = recover(shared, binding).await {
        return FollowerMsg::Broken(error.to_string());
    }
    match keeping(binding, cancel, |keep| keep.load()).await {
        Ok(memory) => FollowerMsg::Restored(Box::new(proven(shared, binding, memory).await)),
        Err(fault) => FollowerMsg::Broken(fault.to_string()),
    }
}

impl FollowerState {
    fn open(&mut self, me: &ActorRef<FollowerMsg>, memory: Memory) {
        self.memory = memory;
        let (machine, commands) = Follow::new(self.binding.options.machine(), memory);
        self.machine = Some(machine);
        self.execute(me, commands);
    }

    fn feed(&mut self, me: &ActorRef<FollowerMsg>, event: FollowEvent) {
        let Some(machine) = &mut self.machine else { return };
        let commands = machine.handle(event);
        self.execute(me, commands);
    }

    fn execute(&mut self, me: &ActorRef<FollowerMsg>, commands: Vec<FollowCommand>) {
        for command in commands {
            self.execute_one(me, command);
        }
    }

    fn execute_one(&mut self, me: &ActorRef<FollowerMsg>, command: FollowCommand) {
        let io = self.binding.io.clone();
        match command {
            FollowCommand::Read(seq) => {
                self.answer(me, async move { FollowEvent::Read(io.read(seq).await) });
            }
            FollowCommand::List { after } => self.answer(me, async move {
                io.last_after(after).await.map_or_else(FollowEvent::ListFailed, FollowEvent::Listed)
            }),
            FollowCommand::CheckBlobs(stored) => {
                self.answer(me, async move { FollowEvent::Blobs(io.presence(&stored).await) });
            }
            FollowCommand::PersistDirty(dirty) => self.persist_dirty(me, dirty),
            FollowCommand::PersistCursor(cursor) => self.persist_cursor(me, *cursor),
            FollowCommand::Apply(stored) => self.apply(me, stored),
            FollowCommand::PutLease(lease) => self.lease(me, lease),
            FollowCommand::ArmTimer { id, after } => {
                let (me, fired) = (me.clone(), FollowerMsg::Event(FollowEvent::TimerFired(id)));
                self.tasks.arm(id, jittered(after), move || drop(me.cast(fired)));
            }
            FollowCommand::Serve(published) => self.serve(published),
            FollowCommand::Report(trouble) => {
                warn!(replica = %self.binding.replica, %trouble, "the reader does not get on; trying on");
                self.binding.tell(|state| state.trouble = Some(trouble));
            }
            FollowCommand::Done(done) => self.end(FollowEnd::Done(done)),
            FollowCommand::Stopped(stop) => {
                error!(replica = %self.binding.replica, %stop, "the reader stops for good");
                self.end(FollowEnd::Stopped(stop));
            }
        }
    }

    /// Starts a command whose outcome is its answer.
    fn answer(
        &mut self,
        me: &ActorRef<FollowerMsg>,
        answering: impl Future<Output = FollowEvent> + Send + 'static,
    ) {
        let me = me.clone();
        self.tasks.spawn(async move {
            let _ = me.cast(FollowerMsg::Event(answering.await));
        });
    }

    fn persist_dirty(&mut self, me: &ActorRef<FollowerMsg>, dirty: Dirty) {
        self.memory.dirty = Some(dirty);
        self.persist(me, Site::FollowerDirty);
    }

    fn persist_cursor(&mut self, me: &ActorRef<FollowerMsg>, cursor: Cursor) {
        self.memory = Memory { cursor: Some(cursor), dirty: None };
        self.persist(me, Site::FollowerKeeps);
    }

    /// LG-6: what comes next comes after this is durable.
    fn persist(&mut self, me: &ActorRef<FollowerMsg>, site: Site) {
        let (binding, memory) = (Arc::clone(&self.binding), self.memory);
        let cancel = self.tasks.cancel_flag();
        let failpoints = self.shared.options.failpoints.clone();
        self.answer(me, async move {
            failpoints.pass_process(site);
            let kept = keeping(&binding, &cancel, move |keep| keep.save(&memory)).await;
            kept.map_or_else(FollowEvent::PersistFailed, |()| FollowEvent::Persisted)
        });
    }

    fn apply(&mut self, me: &ActorRef<FollowerMsg>, stored: Stored) {
        let applying = Applying {
            shared: Arc::clone(&self.shared),
            binding: Arc::clone(&self.binding),
            replica: Arc::clone(&self.replica),
            stored,
            cancel: self.tasks.cancel_flag(),
        };
        let resumed = self.resumed.take();
        self.answer(me, async move {
            if let Some(resumed) = resumed {
                // CM-1: an engine that is still on its way to the last version is not stopped for the next one.
                let _ = resumed.await;
            }
            FollowEvent::Written(applying.run().await)
        });
    }

    fn lease(&mut self, me: &ActorRef<FollowerMsg>, lease: Lease) {
        let io = self.binding.io.clone();
        let lease =
            StoredLease { reader: self.binding.options.reader, counter: lease.counter, pinned: lease.pinned };
        self.answer(me, async move {
            match io.stream.put_lease(&lease).await {
                Ok(()) => FollowEvent::LeasePut,
                Err(error) => {
                    warn!(%error, "the lease was not put");
                    FollowEvent::LeaseFailed(super::io::fault(&error))
                }
            }
        });
    }

    fn serve(&mut self, published: Published) {
        info!(replica = %self.binding.replica, version = %published.version, seq = %published.seq, "serving");
        self.replica.serve(published.epoch, published.version);
        let (shared, replica, binding) =
            (Arc::clone(&self.shared), Arc::clone(&self.replica), Arc::clone(&self.binding));
        let (done, resumed) = oneshot::channel();
        self.resumed = Some(resumed);
        self.tasks.spawn(async move {
            work::resume(&shared, &replica).await;
            let _ = done.send(());
            binding.tell(|state| {
                state.serving = Some(published);
                state.trouble = None;
            });
            shared.ledger.wake();
        });
    }

    fn end(&mut self, end: FollowEnd) {
        if self.binding.options.leasing == driftless_proto::log::Leasing::Kept {
            let (io, reader) = (self.binding.io.clone(), self.binding.options.reader);
            // What is not given up expires by itself.
            self.tasks.spawn(async move { drop(io.stream.delete_lease(reader).await) });
        }
        self.binding.tell(|state| state.ended = Some(end));
        self.shared.ledger.wake();
    }
}
