//! The coordinator: one attempt per replica at the newest version that every sender has ready.
//!
//! - **CM-5 (fencing).** Every attempt carries the coordinator's epoch; attempts are numbered within it.
//! - **CM-10 (replay).** A report that is heard twice counts once, and older news of a sender is no news.
//! - **CM-11 (every attempt ends).** An attempt of whose end nothing is heard is given up after a deadline, and given
//!   up again until its lead answers: the word to the lead, or the lead's answer, was lost on the way.
//! - **CM-12 (retry).** After a failure the same version is tried again from the senders' kept patches, with
//!   back-off, until it commits, a newer version is ready, or the attempts are used up.
//! - **CM-15 (replicas are apart).** An attempt that fails touches no other replica.
//!
//! The coordinator decides no switch: it opens attempts and hears how they ended. When it dies, the next one asks
//! senders and leads where they stand.

use crate::{Cause, Needs, Outcome, PatchRange, RootCause, TimerId, TimerKind, Verdict};
use driftless_types::{
    Attempt, Epoch, Fence, Member, PlanDigest, ReceiverId, ReplicaId, RunId, SenderId, Version,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Bounds of retrying.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CoordinatorOptions {
    /// After so many failed attempts at one version the replica is left behind until the next.
    pub max_attempts: u32,
    /// The pause after the first failure; it doubles with each.
    pub first_back_off: Duration,
    /// The longest pause.
    pub longest_back_off: Duration,
    /// After this time without a report an attempt is given up; longer than all the deadlines of a lead together.
    pub attempt_deadline: Duration,
}

/// How a version ended for a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaOutcome {
    /// The replica serves it.
    Committed,
    /// The replica was left behind, at this version and for this reason.
    Lagging {
        /// What it serves.
        at: Version,
        /// Why the last attempt failed.
        cause: Cause,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A sender is up; the patch that it holds.
    SenderReady(SenderId, Option<PatchRange>),
    /// A receiver's actor is up.
    ReceiverUp(ReceiverId),
    /// A member's actor ended; heard before the first word of the actor that follows it.
    MemberDown(Member),
    /// A sender cannot serve an attempt.
    SenderFailed(Fence, Cause),
    /// A lead says what its replica serves; no attempt is open there.
    Serving(ReplicaId, Needs),
    /// A lead says how an attempt ended, and what its replica needs now.
    Ended(ReplicaId, Outcome, Version),
    /// A timer fired.
    TimerFired(TimerId),
}

/// What the actor must do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Open an attempt: tell the replica's lead and every sender.
    Begin {
        /// The attempt.
        fence: Fence,
        /// The replica.
        replica: ReplicaId,
        /// What the senders must send it.
        needs: Needs,
    },
    /// Give an attempt up: stop its transfers, tell its lead and every sender.
    Abort {
        /// The attempt.
        fence: Fence,
        /// The replica.
        replica: ReplicaId,
        /// Who failed.
        cause: Cause,
    },
    /// Tell the machine when this much time has passed.
    ArmTimer {
        /// The timer's name.
        id: TimerId,
        /// The time to wait.
        after: Duration,
    },
    /// A version has ended for a replica.
    Settle {
        /// The replica.
        replica: ReplicaId,
        /// The version.
        version: Version,
        /// How.
        outcome: ReplicaOutcome,
    },
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    run: RunId,
    plan: PlanDigest,
    epoch: Epoch,
    last_attempt: Attempt,
    options: CoordinatorOptions,
    senders: BTreeMap<SenderId, Sender>,
    replicas: BTreeMap<ReplicaId, Replica>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sender {
    Unheard,
    Up(Option<PatchRange>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    receivers: BTreeMap<ReceiverId, Receiver>,
    needs: Needs,
    failing: Option<Failing>,
    /// The version whose outcome every sender that is up has been told.
    settled: Option<Version>,
    /// The newest attempt whose end was reported.
    ended: Option<Fence>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Receiver {
    Down,
    Up,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Failing {
    version: Version,
    attempts: u32,
    cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Its lead has not reported.
    Unheard,
    /// No attempt is open.
    Serving,
    /// An attempt is open.
    Attempting(Fence),
    /// An attempt failed; the next one waits.
    BackingOff(TimerId),
}

impl Coordinator {
    /// A coordinator of a fresh epoch that has heard of nobody yet.
    #[must_use]
    pub fn new(
        run: RunId,
        plan: PlanDigest,
        epoch: Epoch,
        senders: impl IntoIterator<Item = SenderId>,
        receivers: impl IntoIterator<Item = ReceiverId>,
        options: CoordinatorOptions,
    ) -> Self {
        let mut replicas: BTreeMap<ReplicaId, Replica> = BTreeMap::new();
        for receiver in receivers {
            replicas.entry(receiver.replica).or_default().receivers.insert(receiver, Receiver::Down);
        }
        let senders = senders.into_iter().map(|sender| (sender, Sender::Unheard)).collect();
        Self { run, plan, epoch, last_attempt: Attempt(0), options, senders, replicas }
    }

    /// The epoch of its attempts.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Takes one event.
    pub fn handle(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        match event {
            Event::SenderReady(sender, patch) => self.sender_ready(sender, patch),
            Event::ReceiverUp(receiver) => {
                if let Some(replica) = self.replicas.get_mut(&receiver.replica) {
                    replica.receivers.insert(receiver, Receiver::Up);
                }
            }
            Event::MemberDown(member) => self.member_down(member, &mut out),
            Event::SenderFailed(fence, cause) => self.sender_failed(&fence, &cause, &mut out),
            Event::Serving(replica, needs) => self.serving(replica, needs),
            Event::Ended(replica, outcome, serving) => self.ended(replica, outcome, serving, &mut out),
            Event::TimerFired(id) => self.timer(id, &mut out),
        }
        self.settle_where_known(&mut out);
        self.begin_where_due(&mut out);
        out
    }

    /// The patch of the newest version, if every sender holds one: right for the bases that all of them name.
    fn ready(&self) -> Option<PatchRange> {
        let mut patches = self.senders.values().map(|sender| match sender {
            Sender::Unheard | Sender::Up(None) => None,
            Sender::Up(Some(patch)) => Some(*patch),
        });
        let first = patches.next()??;
        patches.try_fold(first, |all, patch| {
            let PatchRange { since, version } = patch?;
            (version == all.version).then(|| PatchRange { since: all.since.max(since), version })
        })
    }

    /// Whoever was told how the version ended may be gone: a lead before its report, a coordinator or a sender after
    /// it. What the replica serves, or its used-up attempts, say it again.
    fn settle_where_known(&mut self, out: &mut Vec<Command>) {
        let Some(PatchRange { version, .. }) = self.ready() else { return };
        for (&id, replica) in &mut self.replicas {
            if replica.settled == Some(version) {
                continue;
            }
            if let Some(outcome) = replica.outcome(version, &self.options) {
                replica.settle(id, version, outcome, out);
            }
        }
    }

    fn begin_where_due(&mut self, out: &mut Vec<Command>) {
        let Some(PatchRange { since, version }) = self.ready() else { return };
        let due: Vec<ReplicaId> = self
            .replicas
            .iter()
            .filter(|(_, replica)| replica.is_due(version, &self.options))
            .map(|(&id, _)| id)
            .collect();
        for id in due {
            self.last_attempt.0 += 1;
            let fence = Fence {
                run: self.run,
                epoch: self.epoch,
                attempt: self.last_attempt,
                version,
                plan: self.plan,
            };
            if let Some(replica) = self.replicas.get_mut(&id) {
                replica.state = State::Attempting(fence);
                out.push(Command::Begin { fence, replica: id, needs: replica.needs.given(since) });
                out.push(self.options.attempt_timer(&fence, id));
            }
        }
    }

    fn sender_ready(&mut self, sender: SenderId, patch: Option<PatchRange>) {
        let known = self.senders.insert(sender, Sender::Up(patch));
        if let Some(Sender::Up(Some(newest))) = known
            && patch.is_some_and(|patch| patch < newest)
        {
            self.senders.insert(sender, Sender::Up(Some(newest))); // CM-10: a word that was overtaken
        }
        self.replicas.values_mut().for_each(|replica| replica.settled = None);
    }

    fn member_down(&mut self, member: Member, out: &mut Vec<Command>) {
        let cause = Cause::new(member, RootCause::Died);
        match member {
            Member::Sender(sender) => {
                self.senders.insert(sender, Sender::Unheard);
                for (&id, replica) in &self.replicas {
                    replica.abort(id, &cause, out);
                }
            }
            Member::Receiver(receiver) => {
                let Some(replica) = self.replicas.get_mut(&receiver.replica) else { return };
                replica.receivers.insert(receiver, Receiver::Down);
                replica.abort(receiver.replica, &cause, out); // CM-15: this replica's attempt only
                if receiver.is_lead() {
                    replica.state = State::Unheard;
                }
            }
        }
    }

    fn sender_failed(&self, fence: &Fence, cause: &Cause, out: &mut Vec<Command>) {
        for (&id, replica) in &self.replicas {
            if replica.state == State::Attempting(*fence) {
                replica.abort(id, cause, out);
            }
        }
    }

    fn serving(&mut self, id: ReplicaId, needs: Needs) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        replica.needs = needs;
        // In an attempt it is what the lead said before it had heard of it: a lead that was restarted is down first.
        if replica.state == State::Unheard {
            replica.state = State::Serving;
        }
    }

    fn ended(&mut self, id: ReplicaId, outcome: Outcome, serving: Version, out: &mut Vec<Command>) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let needs = Needs { base: serving, repair: outcome.repair, intake: outcome.intake };
        if replica.ended.is_some_and(|ended| outcome.fence <= ended) {
            // CM-10: it counted when it was heard first. A lead that came back says with it that it is there.
            if replica.state == State::Unheard {
                self.serving(id, needs);
            }
            return;
        }
        replica.ended = Some(outcome.fence);
        if matches!(replica.state, State::Attempting(open) if outcome.fence < open) {
            return; // its lead turns to the open attempt now, and reports how that one ends
        }
        replica.needs = needs;
        match outcome.verdict {
            Verdict::Committed => {
                replica.state = State::Serving;
                replica.failing = None;
                replica.settle(id, outcome.fence.version, ReplicaOutcome::Committed, out);
            }
            // A second attempt at a version that is served: it has ended well, whatever became of the replay (CM-10).
            Verdict::RolledBack(_) if serving >= outcome.fence.version => replica.state = State::Serving,
            Verdict::RolledBack(cause) => replica.failed(id, outcome.fence, cause, &self.options, out),
        }
    }

    fn timer(&mut self, id: TimerId, out: &mut Vec<Command>) {
        match id.kind {
            TimerKind::BackOff(replica) => {
                if let Some(replica) = self.replicas.get_mut(&replica)
                    && replica.state == State::BackingOff(id)
                {
                    replica.state = State::Serving;
                }
            }
            TimerKind::Attempt(replica) => self.give_up(replica, id, out),
            _ => {}
        }
    }

    /// CM-11: nothing was heard of an attempt; its lead is asked to end it until it answers.
    fn give_up(&self, id: ReplicaId, timer: TimerId, out: &mut Vec<Command>) {
        let Some(replica) = self.replicas.get(&id) else { return };
        let State::Attempting(fence) = replica.state else { return };
        if timer != TimerId::of(&fence, TimerKind::Attempt(id)) {
            return;
        }
        let lead = ReceiverId { replica: id, rank: 0 };
        replica.abort(id, &Cause::at(lead, RootCause::Deadline { step: "the attempt" }), out);
        out.push(self.options.attempt_timer(&fence, id));
    }
}

impl CoordinatorOptions {
    const fn attempt_timer(&self, fence: &Fence, id: ReplicaId) -> Command {
        Command::ArmTimer { id: TimerId::of(fence, TimerKind::Attempt(id)), after: self.attempt_deadline }
    }
}

impl Default for Replica {
    fn default() -> Self {
        Self {
            receivers: BTreeMap::new(),
            needs: Needs::default(),
            failing: None,
            settled: None,
            ended: None,
            state: State::Unheard,
        }
    }
}

impl Replica {
    fn is_due(&self, version: Version, options: &CoordinatorOptions) -> bool {
        let tried = self.failing.as_ref().filter(|failing| failing.version == version);
        self.state == State::Serving
            && version > self.needs.base
            && self.receivers.values().all(|&receiver| receiver == Receiver::Up)
            && tried.is_none_or(|failing| failing.attempts < options.max_attempts)
    }

    /// How a version has ended here, as far as the replica's own state tells.
    fn outcome(&self, version: Version, options: &CoordinatorOptions) -> Option<ReplicaOutcome> {
        if self.state != State::Serving {
            return None;
        }
        if self.needs.base >= version {
            return Some(ReplicaOutcome::Committed);
        }
        let failing = self.failing.as_ref().filter(|failing| failing.version == version)?;
        let outcome = ReplicaOutcome::Lagging { at: self.needs.base, cause: failing.cause.clone() };
        (failing.attempts >= options.max_attempts).then_some(outcome)
    }

    fn settle(&mut self, id: ReplicaId, version: Version, outcome: ReplicaOutcome, out: &mut Vec<Command>) {
        self.settled = Some(version);
        out.push(Command::Settle { replica: id, version, outcome });
    }

    fn abort(&self, id: ReplicaId, cause: &Cause, out: &mut Vec<Command>) {
        if let State::Attempting(fence) = self.state {
            // The lead answers with the attempt's outcome: it alone knows whether it had decided already.
            out.push(Command::Abort { fence, replica: id, cause: cause.clone() });
        }
    }

    fn failed(
        &mut self,
        id: ReplicaId,
        fence: Fence,
        cause: Cause,
        options: &CoordinatorOptions,
        out: &mut Vec<Command>,
    ) {
        let version = fence.version;
        let before = self.failing.take().filter(|failing| failing.version == version);
        let attempts = match cause.root {
            // Values that are gone do not come back: only the next version can serve this replica.
            RootCause::WeightsMoved => options.max_attempts,
            _ => before.map_or(0, |failing| failing.attempts) + 1,
        };
        self.failing = Some(Failing { version, attempts, cause: cause.clone() });
        if attempts >= options.max_attempts {
            self.state = State::Serving;
            self.settle(id, version, ReplicaOutcome::Lagging { at: self.needs.base, cause }, out);
            return;
        }
        let timer = TimerId::of(&fence, TimerKind::BackOff(id));
        let doubled = options.first_back_off.saturating_mul(1 << (attempts - 1).min(16));
        out.push(Command::ArmTimer { id: timer, after: doubled.min(options.longest_back_off) });
        self.state = State::BackingOff(timer);
    }
}
