//! Failpoints: named places where a test makes an actor die. A handle in the node's options and no global, so that
//! two tests in one process never meet. Without armed points the cost is one lock of an empty list.

use driftless_types::Member;
use ractor::{ActorCell, ActorProcessingErr};
use rustix::process::{Signal, getpid, kill_process};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A place in the life of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Site {
    /// A sender is about to detect.
    ShardDetects,
    /// A sender is about to remap and encode for an attempt.
    ShardEncodes,
    /// A sender is about to post its payload.
    ShardSends,
    /// A sender is about to hand over a window.
    ShardLends,
    /// A receiver is told to take part.
    ReceiverBegins,
    /// A receiver holds every byte and is about to check them.
    ReceiverStages,
    /// A receiver is told to apply.
    ReceiverApplies,
    /// A receiver's scatter has written the first of its tensors.
    ReceiverScatters,
    /// A receiver has written a window in place.
    ReceiverTakes,
    /// A receiver is told the decision.
    ReceiverDecides,
    /// A lead is about to call the pause hook.
    LeadPauses,
    /// A lead has heard that a receiver has applied.
    LeadHearsApplied,
    /// A lead is about to call the resume hook.
    LeadResumes,
    /// The coordinator is about to open an attempt.
    CoordinatorBegins,
    /// The coordinator hears that a sender is ready.
    CoordinatorHearsReady,
    /// The coordinator hears how an attempt ended.
    CoordinatorHearsEnd,
    /// The supervisor hears of anything.
    SupervisorHears,
    /// The publisher is about to put a blob.
    PublisherPuts,
    /// The publisher has put every blob of the writers, and is about to put what the entry names beside them.
    PublisherSeals,
    /// The publisher is about to create an entry.
    PublisherCreates,
    /// The publisher has asked for an entry, and not yet heard what became of it.
    PublisherCreated,
    /// The publisher has heard that a version is in the log.
    PublisherPublished,
    /// A reader is about to write down that it writes an entry into the weights.
    FollowerDirty,
    /// A reader is about to write a section into the weights.
    FollowerWrites,
    /// A reader is about to write down that it holds an entry.
    FollowerKeeps,
}

impl Site {
    /// The sites of publishers and readers of a log, in their order.
    pub const LOG: [Self; 8] = [
        Self::PublisherPuts,
        Self::PublisherSeals,
        Self::PublisherCreates,
        Self::PublisherCreated,
        Self::PublisherPublished,
        Self::FollowerDirty,
        Self::FollowerWrites,
        Self::FollowerKeeps,
    ];

    /// Every site within a cluster, in the order of an attempt.
    pub const ALL: [Self; 17] = [
        Self::ShardDetects,
        Self::ShardEncodes,
        Self::ShardSends,
        Self::ShardLends,
        Self::ReceiverBegins,
        Self::ReceiverStages,
        Self::ReceiverApplies,
        Self::ReceiverScatters,
        Self::ReceiverTakes,
        Self::ReceiverDecides,
        Self::LeadPauses,
        Self::LeadHearsApplied,
        Self::LeadResumes,
        Self::CoordinatorBegins,
        Self::CoordinatorHearsReady,
        Self::CoordinatorHearsEnd,
        Self::SupervisorHears,
    ];
}

/// What happens at a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The handler panics.
    Panic,
    /// The actor is killed in the middle of its handler.
    Kill,
    /// The handler returns an error.
    Error,
    /// The whole process is killed, without a chance to clean up.
    KillProcess,
    /// The whole process is stopped, until somebody lets it go on.
    StopProcess,
}

#[derive(Debug)]
struct Armed {
    site: Site,
    member: Option<Member>,
    fault: Fault,
    passes_left: u32,
}

/// The failpoints of one node. Clones share them.
#[derive(Clone, Default)]
pub struct Failpoints {
    armed: Arc<Mutex<Vec<Armed>>>,
}

impl Failpoints {
    /// Arms a fault: it happens once, after `passes` harmless passes of the site by `member` (by anyone if `None`).
    pub fn arm(&self, site: Site, member: Option<Member>, fault: Fault, passes: u32) {
        self.lock().push(Armed { site, member, fault, passes_left: passes });
    }

    /// How many armed faults have not happened yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Armed>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self, site: Site, member: Option<Member>) -> Option<Fault> {
        let mut armed = self.lock();
        let matches = |a: &Armed| a.site == site && (a.member.is_none() || a.member == member);
        let index = armed.iter().position(matches)?;
        if armed[index].passes_left > 0 {
            armed[index].passes_left -= 1;
            return None;
        }
        Some(armed.swap_remove(index).fault)
    }

    /// Passes a site inside a task: a fault of the process hits it there, any other panics the task, which kills its actor.
    #[expect(clippy::panic, reason = "the fault that a test asked for")]
    pub(crate) fn pass_process(&self, site: Site) {
        match self.take(site, None) {
            None => {}
            Some(Fault::KillProcess) => signal(Signal::KILL),
            Some(Fault::StopProcess) => signal(Signal::STOP),
            Some(Fault::Panic | Fault::Kill | Fault::Error) => panic!("failpoint {site:?}"),
        }
    }

    /// Passes a site inside an actor's handler.
    pub(crate) async fn pass(
        &self,
        site: Site,
        member: Option<Member>,
        me: ActorCell,
    ) -> Result<(), ActorProcessingErr> {
        match self.take(site, member) {
            None => Ok(()),
            Some(fault) => strike(fault, site, me).await,
        }
    }
}

impl fmt::Debug for Failpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failpoints").field("pending", &self.pending()).finish()
    }
}

/// So long a signal may take to reach the thread that sent it.
const SIGNAL_LANDS: Duration = Duration::from_millis(200);

/// Sends a signal to this very process.
fn signal(signal: Signal) {
    // If the system refuses, nothing happens, and the test sees that.
    let _ = kill_process(getpid(), signal);
    // Any thread may take it first: this one must not get past its failpoint until it is stopped too.
    std::thread::sleep(SIGNAL_LANDS);
}

#[expect(clippy::panic, reason = "the fault that a test asked for")]
async fn strike(fault: Fault, site: Site, me: ActorCell) -> Result<(), ActorProcessingErr> {
    match fault {
        Fault::Panic => panic!("failpoint {site:?}"),
        Fault::Error => Err(format!("failpoint {site:?}").into()),
        Fault::KillProcess => {
            signal(Signal::KILL);
            Ok(())
        }
        Fault::StopProcess => {
            signal(Signal::STOP);
            Ok(())
        }
        Fault::Kill => {
            me.kill();
            // The kill ends this handler at its next await: this one.
            std::future::pending().await
        }
    }
}
