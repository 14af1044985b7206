//! The actor that publishes: it executes the publisher's machine over the store.

use super::encode::{RankPart, Unwritten};
use super::io::{LogIo, fault, jittered};
use super::status::{Publication, PublishState};
use super::target::{Lineage, LogTarget, Made};
use crate::actor::Tasks;
use crate::{Shared, Site};
use bytes::Bytes;
use driftless_proto::log::{
    Ask, Fault, Lineage as Origin, LogTimer, Publish, PublishCommand, PublishEvent, Published, Refusal, Task,
};
use driftless_types::{Digest, SenderId, Version, WriterManifest};
use futures::{StreamExt, TryStreamExt, stream};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use tracing::{error, info, warn};

/// What the publisher hears.
#[derive(Debug)]
pub(crate) enum PublisherMsg {
    /// Some rank has made its part for the log.
    Made,
    /// It is known from where the trainer's weights come.
    Origin(Option<Published>),
    /// The answer to a command.
    Event(PublishEvent),
}

/// The actor that publishes.
pub(crate) struct PublisherActor;

/// What is lost when the actor dies: its successor reads the log again. Patches are in the target.
pub(crate) struct PublisherState {
    shared: Arc<Shared>,
    machine: Machine,
    /// The publication that the trainer's weights are, if the stream has one.
    origin: Option<Published>,
    /// What is being written, since when.
    writing: Option<(Made, Instant)>,
    publication: Option<Publication>,
    /// Publications in the epoch that the stream is open in.
    in_epoch: u32,
    /// Whether the next publication goes into an epoch of its own.
    wants_epoch: bool,
    tasks: Tasks<LogTimer>,
}

/// The machine begins when it is known from where the trainer's weights come.
enum Machine {
    /// No version is made yet.
    Waiting,
    /// The log is asked whether it holds the first of them.
    Asking,
    /// It runs.
    Open(Box<Publish>),
}

impl Actor for PublisherActor {
    type Msg = PublisherMsg;
    type State = PublisherState;
    type Arguments = Arc<Shared>;

    async fn pre_start(
        &self,
        me: ActorRef<PublisherMsg>,
        shared: Arc<Shared>,
    ) -> Result<PublisherState, ActorProcessingErr> {
        shared.registry.enter_publisher(me.clone());
        me.cast(PublisherMsg::Made)?;
        let tasks = Tasks::new(me.get_cell());
        Ok(PublisherState {
            shared,
            machine: Machine::Waiting,
            origin: None,
            writing: None,
            publication: None,
            in_epoch: 0,
            wants_epoch: false,
            tasks,
        })
    }

    async fn handle(
        &self,
        me: ActorRef<PublisherMsg>,
        message: PublisherMsg,
        state: &mut PublisherState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PublisherMsg::Made => state.made(&me),
            PublisherMsg::Origin(origin) => state.open(&me, origin),
            PublisherMsg::Event(event) => state.feed(&me, event),
        }
        Ok(())
    }
}

impl PublisherState {
    fn log(&self) -> &LogTarget {
        self.shared.log().expect("a publisher is started for a log")
    }

    /// Every rank has made its part, or not yet.
    fn made(&mut self, me: &ActorRef<PublisherMsg>) {
        let Some(made) = self.log().made() else { return };
        match self.machine {
            Machine::Open(_) => self.ask(me, &made),
            Machine::Asking => {}
            Machine::Waiting => {
                self.machine = Machine::Asking;
                let (me, shared) = (me.clone(), Arc::clone(&self.shared));
                self.tasks.spawn(async move {
                    let origin = origin(&shared, &made).await;
                    let _ = me.cast(PublisherMsg::Origin(origin));
                });
            }
        }
    }

    fn open(&mut self, me: &ActorRef<PublisherMsg>, origin: Option<Published>) {
        self.origin = origin;
        let lineage = origin.map_or(Origin::Diverged, |origin| Origin::Continues(origin.object));
        let (machine, commands) = Publish::new(self.log().machine_options(self.shared.options.run, lineage));
        self.machine = Machine::Open(Box::new(machine));
        self.execute(me, commands);
    }

    fn ask(&mut self, me: &ActorRef<PublisherMsg>, made: &Made) {
        if std::mem::take(&mut self.wants_epoch) {
            // LG-9: the blobs before the last anchor can be collected once they are of an older epoch.
            return self.feed(me, PublishEvent::Renew);
        }
        let base = match made.lineage {
            Lineage::Anchor => None,
            Lineage::After(base) => Some(base),
        };
        self.feed(me, PublishEvent::Ask(Ask { version: made.version, base }));
    }

    fn feed(&mut self, me: &ActorRef<PublisherMsg>, event: PublishEvent) {
        let Machine::Open(machine) = &mut self.machine else { return };
        let commands = machine.handle(event);
        self.execute(me, commands);
    }

    fn execute(&mut self, me: &ActorRef<PublisherMsg>, commands: Vec<PublishCommand>) {
        for command in commands {
            self.execute_one(me, command);
        }
    }

    fn execute_one(&mut self, me: &ActorRef<PublisherMsg>, command: PublishCommand) {
        match command {
            PublishCommand::Read(seq) => {
                self.answer(me, move |io| async move { PublishEvent::Read(io.read(seq).await) });
            }
            PublishCommand::List { after } => self.answer(me, move |io| async move {
                io.last_after(after).await.map_or_else(PublishEvent::Failed, PublishEvent::Listed)
            }),
            PublishCommand::Probe => self.answer(me, |io| async move { io.probe().await }),
            PublishCommand::PutGenesis(epoch) => {
                let genesis = self.log().founding(self.shared.options.run);
                self.answer(me, move |io| async move { genesis.put(&io, epoch).await });
            }
            PublishCommand::Create(entry) => {
                let failpoints = self.shared.options.failpoints.clone();
                self.answer(me, move |io| async move {
                    failpoints.pass_process(Site::PublisherCreates);
                    let created = io.create(&entry).await;
                    failpoints.pass_process(Site::PublisherCreated);
                    created.map_or(PublishEvent::CreateFailed, PublishEvent::Created)
                });
            }
            PublishCommand::Write { task, ranks } => self.write(me, task, ranks),
            PublishCommand::Seal { task, writers } => self.seal(me, task, writers),
            PublishCommand::ArmTimer { id, after } => {
                let (me, fired) = (me.clone(), PublisherMsg::Event(PublishEvent::TimerFired(id)));
                self.tasks.arm(id, jittered(after), move || drop(me.cast(fired)));
            }
            PublishCommand::Opened { epoch, last } => {
                info!(%epoch, last = ?last.map(|last| last.version), "the stream is open");
                self.opened(me, last);
            }
            PublishCommand::Published(published) => self.published(me, published),
            PublishCommand::Abandoned(version) => self.give_up(version, "its values are gone"),
            PublishCommand::Refused(version, refusal) => self.refused(version, refusal),
            PublishCommand::StoreDown(fault) => {
                warn!(%fault, "the store does not take entries; trying on");
                self.log().tell(PublishState::Down(fault));
            }
            PublishCommand::Stopped(stop) => {
                error!(%stop, "the publisher stops for good");
                self.log().tell(PublishState::Stopped(stop));
            }
        }
    }

    /// Starts a command whose outcome is its answer.
    fn answer<F>(&mut self, me: &ActorRef<PublisherMsg>, run: impl FnOnce(LogIo) -> F)
    where
        F: Future<Output = PublishEvent> + Send + 'static,
    {
        let (me, answering) = (me.clone(), run(self.log().io().clone()));
        self.tasks.spawn(async move {
            let _ = me.cast(PublisherMsg::Event(answering.await));
        });
    }

    fn opened(&mut self, me: &ActorRef<PublisherMsg>, last: Option<Published>) {
        // LG-5: what another past has published is nothing that this trainer has.
        let held = last.filter(|_| last == self.origin);
        // An epoch of its own says nothing new of the stream.
        if std::mem::take(&mut self.in_epoch) == 0 {
            self.log().tell(PublishState::Open { last: held, took: None });
        }
        if let (Some(last), Some(made)) = (held, self.log().made())
            && last.version == made.version
        {
            // The stream holds these very weights: there is nothing to publish, and deltas may follow.
            self.log().published(last, made.lineage);
        }
        self.made(me);
    }

    fn published(&mut self, me: &ActorRef<PublisherMsg>, published: Published) {
        self.shared.options.failpoints.pass_process(Site::PublisherPublished);
        let lineage = self.writing.take().map_or(Lineage::Anchor, |(made, _)| made.lineage);
        self.log().published(published, lineage);
        self.origin = Some(published);
        let took = self.publication.take();
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let Some(log) = shared.log() else { return };
            log.io().hint(published.seq).await;
            log.tell(PublishState::Open { last: Some(published), took });
        });
        self.in_epoch += 1;
        self.wants_epoch = lineage == Lineage::Anchor && self.in_epoch > 1;
        self.made(me);
    }

    fn give_up(&mut self, version: Version, why: &str) {
        warn!(%version, why, "a version is not published; an anchor follows");
        self.writing = None;
        self.log().given_up();
    }

    fn refused(&mut self, version: Version, refusal: Refusal) {
        match refusal {
            // It is asked again when the stream is free.
            Refusal::Busy => {}
            refusal => self.give_up(version, &refusal.to_string()),
        }
    }

    fn write(&mut self, me: &ActorRef<PublisherMsg>, task: Task, ranks: BTreeSet<u32>) {
        let made = self.log().made().filter(|made| made.version == task.version);
        let Some(made) = made else {
            let _ = me.cast(PublisherMsg::Event(PublishEvent::ValuesGone(task.version)));
            return;
        };
        self.writing = Some((made.clone(), Instant::now()));
        let (me, shared) = (me.clone(), Arc::clone(&self.shared));
        self.tasks.spawn(async move {
            let failed = write_ranks(&shared, &made, task, ranks, |manifest| {
                let _ = me.cast(PublisherMsg::Event(PublishEvent::Written(task.version, manifest)));
            });
            let event = match failed.await {
                Ok(()) => return,
                Err(NotWritten::Gone) => PublishEvent::ValuesGone(task.version),
                Err(NotWritten::Store(fault)) => PublishEvent::WriteFailed(task.version, fault),
            };
            let _ = me.cast(PublisherMsg::Event(event));
        });
    }

    fn seal(&mut self, me: &ActorRef<PublisherMsg>, task: Task, writers: Vec<WriterManifest>) {
        let Some((made, since)) = &self.writing else {
            let _ = me.cast(PublisherMsg::Event(PublishEvent::ValuesGone(task.version)));
            return;
        };
        let publication = Publication::of(made, &task, &writers, *since);
        self.publication = Some(publication);
        self.log().tell(PublishState::Publishing(publication));
        let digests = digests(made, self.shared.plan.params().len());
        let failpoints = self.shared.options.failpoints.clone();
        self.answer(me, move |io| async move {
            failpoints.pass_process(Site::PublisherSeals);
            io.seal(task, &digests, &writers).await
        });
    }
}

/// The digest of every parameter, in order of id.
fn digests(made: &Made, params: usize) -> Vec<Digest> {
    let mut digests = vec![Digest::ZERO; params];
    for (param, share) in made.patches.values().flat_map(|patch| &patch.digests) {
        digests[driftless_types::index_of(param.0.into())] += *share;
    }
    digests
}

/// The publication that the trainer's weights are: the last of their version with their digests, if the stream has it.
async fn origin(shared: &Shared, made: &Made) -> Option<Published> {
    let log = shared.log()?;
    let digests = digests(made, shared.plan.params().len());
    // A publisher that died may have left what it was about to publish.
    log.io().find(made.version, &digests).await.or_else(|| log.held())
}

enum NotWritten {
    Gone,
    Store(Fault),
}

/// Writes the parts of these ranks one after the other; the uploads of one overlap.
async fn write_ranks(
    shared: &Arc<Shared>,
    made: &Made,
    task: Task,
    ranks: BTreeSet<u32>,
    mut written: impl FnMut(WriterManifest),
) -> Result<(), NotWritten> {
    for rank in ranks {
        written(write_rank(shared, made, task, rank).await?);
    }
    Ok(())
}

async fn write_rank(
    shared: &Arc<Shared>,
    made: &Made,
    task: Task,
    rank: u32,
) -> Result<WriterManifest, NotWritten> {
    let (Some(log), Some(patch)) = (shared.log(), made.patches.get(&SenderId(rank))) else {
        return Err(NotWritten::Gone);
    };
    let (io, uploads) = (log.io().clone(), log.uploads());
    // One blob waits while others are under way: memory is bounded by the blobs in flight, whatever the model's size.
    let (blobs, mut waiting) = tokio::sync::mpsc::channel::<Bytes>(1);
    let encoding = tokio::task::spawn_blocking({
        let (shared, patch) = (Arc::clone(shared), Arc::clone(patch));
        move || {
            let (Some(log), Some(binding)) = (shared.log(), shared.registry.sender(SenderId(rank))) else {
                return Err(Unwritten::Gone);
            };
            let blob_bytes = log.blob_bytes();
            let part = RankPart { shared: &shared, log, binding: &binding, patch: &patch, task, blob_bytes };
            part.write(&mut |blob| blobs.blocking_send(blob).is_ok())
        }
    });
    let failpoints = &shared.options.failpoints;
    let taken = stream::poll_fn(|context| waiting.poll_recv(context));
    let uploads = taken
        .map(|blob| {
            failpoints.pass_process(Site::PublisherPuts);
            io.put_blob(task.epoch, blob)
        })
        .buffered(uploads)
        .try_collect::<Vec<_>>();
    let blobs = uploads.await.map_err(|error| NotWritten::Store(fault(&error)))?;
    let nnz = match encoding.await {
        Ok(Ok(nnz)) => nnz,
        Ok(Err(error)) => {
            warn!(rank, %error, "a rank's part was not written");
            return Err(NotWritten::Gone);
        }
        Err(panicked) => {
            error!(rank, %panicked, "encoding a rank's part failed");
            return Err(NotWritten::Gone);
        }
    };
    Ok(WriterManifest { rank, blobs, nnz })
}
