//! The lead of a replica: it alone decides when the replica switches versions.
//!
//! - **CM-1 (one version per replica).** All receivers commit or all roll back.
//! - **CM-3 (exclusive decisions).** A decision is taken once; from then on it is only repeated.
//! - **CM-11 (every attempt ends).** Every wait before the decision has a deadline; the decision is repeated until
//!   every receiver has acknowledged it.
//! - **CM-10 (replay).** An attempt that has ended here never begins again; asked about, it is reported again.
//! - **CM-5 (fencing).** A lead ignores every coordinator older than the newest it has heard of.
//!
//! - **CM-14 (current before it serves).** As long as a receiver's weights are of no version the engine is not resumed,
//!   and the next attempt is taken in place.
//!
//! An attempt is taken *staged*, or *in place*: then the engine is paused first, everything is written into the live
//! weights, and the engine serves again when every digest matched. An attempt in place that fails leaves the replica
//! out of service, unless nothing was written yet.
//!
//! In a staged attempt nothing between pause and resume waits for the coordinator or for a sender: their death cannot keep
//! an engine paused. A restarted lead takes a higher incarnation and asks every receiver for its phase: if all have applied
//! or committed the attempt it commits, otherwise it rolls back.

mod place;
mod recovery;
mod words;

pub use words::{Command, Engine, Event, LeadOptions, Outcome, Verdict};

use crate::{Cause, Decision, FromLead, Intake, Needs, Phase, RootCause, TimerId, TimerKind, ToLead};
use driftless_types::{Epoch, Fence, ReceiverId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lead {
    members: BTreeSet<ReceiverId>,
    options: LeadOptions,
    repair: BTreeMap<ReceiverId, BTreeSet<u32>>,
    /// Receivers whose weights are of no version; while there are any the engine stands still. Only an answer and an
    /// acknowledgment make one of them: any other word of theirs may be from before a commit, and come again.
    torn: BTreeSet<ReceiverId>,
    /// How the engine stands while no attempt is open.
    engine: Engine,
    /// In place after an attempt that no receiver could stage.
    intake: Intake,
    /// The newest coordinator it has heard of.
    promised: Epoch,
    /// How the newest attempt ended that has ended under this lead.
    ended: Option<Outcome>,
    /// The newest attempt that was opened while an older one had not ended here.
    next: Option<(Fence, Intake)>,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Resting,
    Recovering {
        engine: Engine,
        answers: BTreeMap<ReceiverId, Phase>,
    },
    Gathering {
        fence: Fence,
        waiting: BTreeSet<ReceiverId>,
    },
    Pausing {
        fence: Fence,
    },
    /// The engine is to leave service for an attempt in place.
    Leaving {
        fence: Fence,
    },
    /// The receivers take everything in place.
    Taking {
        fence: Fence,
        waiting: BTreeSet<ReceiverId>,
    },
    Applying {
        fence: Fence,
        waiting: BTreeSet<ReceiverId>,
    },
    Deciding {
        fence: Fence,
        verdict: Verdict,
        engine: Engine,
        waiting: BTreeSet<ReceiverId>,
    },
    Resuming {
        fence: Fence,
        verdict: Verdict,
    },
    /// The former lead died between its last acknowledgement and the resume hook.
    Reopening,
}

type Step = (State, Vec<Command>);

impl State {
    /// The attempt that is open here, as far as it is known.
    const fn attempt(&self) -> Option<Fence> {
        match self {
            Self::Resting | Self::Recovering { .. } | Self::Reopening => None,
            Self::Gathering { fence, .. }
            | Self::Pausing { fence }
            | Self::Leaving { fence }
            | Self::Taking { fence, .. }
            | Self::Applying { fence, .. }
            | Self::Deciding { fence, .. }
            | Self::Resuming { fence, .. } => Some(*fence),
        }
    }
}

impl Lead {
    /// A lead that starts or comes back: it asks every receiver where it stands before it does anything else.
    #[must_use]
    pub fn recover(
        members: BTreeSet<ReceiverId>,
        options: LeadOptions,
        engine: Engine,
    ) -> (Self, Vec<Command>) {
        let state = State::Recovering { engine, answers: BTreeMap::new() };
        let lead = Self {
            members,
            options,
            repair: BTreeMap::new(),
            torn: BTreeSet::new(),
            engine,
            intake: Intake::Staged,
            promised: Epoch::default(),
            ended: None,
            next: None,
            state,
        };
        let commands = lead.ask(&BTreeMap::new());
        (lead, commands)
    }

    /// Tensors that failed their digest and were not repaired yet.
    #[must_use]
    pub const fn repair(&self) -> &BTreeMap<ReceiverId, BTreeSet<u32>> {
        &self.repair
    }

    /// What the replica needs, given the version it serves.
    #[must_use]
    pub fn needs(&self, base: Version) -> Needs {
        Needs { base, repair: self.repair.clone(), intake: self.intake() }
    }

    /// Takes one event. Events of attempts that are over change nothing.
    #[must_use]
    pub fn handle(mut self, event: Event) -> (Self, Vec<Command>) {
        if let Some(epoch) = coordinator_of(&event) {
            if epoch < self.promised {
                return (self, Vec::new()); // CM-5: a word that an older coordinator sent before it died
            }
            self.promised = epoch;
        }
        self.note(&event);
        let state = std::mem::replace(&mut self.state, State::Resting);
        let step = state.step();
        let (state, commands) = match event {
            Event::Begin(fence, intake) => self.begin(state, fence, intake),
            Event::Abort(fence, cause) => self.abort(state, fence, cause),
            Event::Member(member, word) => self.member(state, member, word),
            Event::Paused(fence, result) => self.paused(state, fence, result),
            Event::Resumed => self.resumed(state),
            Event::NewEpoch(epoch) => self.new_epoch(state, epoch),
            Event::KeepAlive => Self::keep_alive(state),
            Event::TimerFired(id) => self.timer(state, id),
        };
        self.begin_next(state.blamed(step), commands)
    }

    fn begin_next(mut self, state: State, mut commands: Vec<Command>) -> (Self, Vec<Command>) {
        let next = if state == State::Resting { self.next.take() } else { None };
        let Some((fence, intake)) = next else { return (Self { state, ..self }, commands) };
        let (state, more) = self.begin(state, fence, intake);
        commands.extend(more);
        (Self { state, ..self }, commands)
    }

    /// What a receiver says of itself, whatever the lead is doing.
    fn note(&mut self, event: &Event) {
        let Event::Member(member, word) = event else { return };
        match word {
            ToLead::Failed(_, RootCause::DigestMismatch { tensors }) => {
                self.repair.entry(*member).or_default().extend(tensors);
            }
            ToLead::Failed(_, RootCause::Refused { .. }) => self.intake = Intake::InPlace,
            _ => {}
        }
    }

    fn tell_all(&self, word: &FromLead) -> Vec<Command> {
        self.members.iter().map(|&member| Command::Tell(member, word.clone())).collect()
    }

    fn begin(&mut self, state: State, fence: Fence, intake: Intake) -> Step {
        if state != State::Resting {
            if state.attempt().is_none_or(|open| fence > open) {
                self.next = self.next.max(Some((fence, intake)));
            }
            return (state, Vec::new());
        }
        if self.ended.as_ref().is_some_and(|ended| fence <= ended.fence) {
            return (state, Vec::new()); // CM-10
        }
        match intake {
            Intake::Staged if self.torn.is_empty() => self.gather(fence),
            // CM-14: it was begun for what the replica was, and ends at once.
            Intake::Staged => {
                let cause = Cause::at(self.lead_id(), RootCause::OutOfService);
                (State::Resting, self.end_of(fence, cause))
            }
            Intake::InPlace => self.leave(fence),
        }
    }

    fn gather(&self, fence: Fence) -> Step {
        let mut commands = self.tell_all(&FromLead::Begin(fence, Intake::Staged));
        let after = self.options.staging_deadline;
        commands.push(Command::ArmTimer { id: TimerId::of(&fence, TimerKind::Staging), after });
        (State::Gathering { fence, waiting: self.members.clone() }, commands)
    }

    fn abort(&mut self, state: State, fence: Fence, cause: Cause) -> Step {
        match state {
            State::Resting => (State::Resting, self.end_of(fence, cause)),
            State::Gathering { fence: mine, .. } if mine == fence => {
                self.roll_back(fence, cause, Engine::Serving)
            }
            // In place it needs the senders to the end.
            State::Leaving { fence: mine } | State::Taking { fence: mine, .. } if mine == fence => {
                self.roll_back(fence, cause, Engine::Paused)
            }
            State::Deciding { fence: mine, verdict, engine, waiting } if mine == fence => {
                (State::Deciding { fence, verdict: verdict.then(cause), engine, waiting }, Vec::new())
            }
            // From the pause on, the lead needs nobody but its receivers. One that is still to begin finds its transfers
            // aborted: in the middle of a switch nothing is reported.
            state => (state, Vec::new()),
        }
    }

    /// The coordinator has not heard how an attempt ended, or the lead has never heard of it: then it ends with this.
    fn end_of(&mut self, fence: Fence, cause: Cause) -> Vec<Command> {
        let newest = self.ended.as_ref().map(|ended| ended.fence);
        if newest.is_none_or(|newest| fence > newest) {
            self.ended = Some(self.outcome(fence, Verdict::RolledBack(cause)));
        }
        let asked = self.ended.iter().filter(|ended| ended.fence == fence);
        asked.map(|ended| Command::Report(ended.clone())).collect() // CM-10
    }

    fn roll_back(&self, fence: Fence, cause: Cause, engine: Engine) -> Step {
        self.decide(fence, Verdict::RolledBack(cause), engine)
    }

    fn decide(&self, fence: Fence, verdict: Verdict, engine: Engine) -> Step {
        let mut commands = self.tell_all(&FromLead::Decide(fence, decision(&verdict)));
        commands.push(self.repeat_timer(&fence));
        (State::Deciding { fence, verdict, engine, waiting: self.members.clone() }, commands)
    }

    fn repeat_timer(&self, fence: &Fence) -> Command {
        Command::ArmTimer { id: TimerId::of(fence, TimerKind::Repeat), after: self.options.repeat_after }
    }

    fn member(&mut self, state: State, member: ReceiverId, word: ToLead) -> Step {
        match (state, word) {
            (State::Recovering { engine, answers }, ToLead::Answer(phase)) => {
                self.answer(engine, answers, member, phase)
            }
            // A receiver that came back meanwhile has promised nothing yet, whatever it said in its last life.
            (State::Recovering { engine, mut answers }, ToLead::Phase(_)) => {
                answers.remove(&member);
                let again = Command::Tell(member, FromLead::AskPhase);
                (State::Recovering { engine, answers }, vec![again])
            }
            (State::Gathering { fence, waiting }, ToLead::Staged(theirs)) if theirs == fence => {
                self.staged(fence, waiting, member)
            }
            (State::Applying { fence, waiting }, ToLead::Applied(theirs)) if theirs == fence => {
                self.applied(fence, waiting, member)
            }
            (State::Applying { fence, waiting }, ToLead::Phase(Phase::Applied(theirs)))
                if theirs == fence =>
            {
                self.applied(fence, waiting, member)
            }
            (
                State::Taking { fence, waiting },
                ToLead::Applied(theirs) | ToLead::Phase(Phase::Applied(theirs)),
            ) if theirs == fence => self.taken(fence, waiting, member),
            (State::Deciding { fence, verdict, engine, waiting }, word) => {
                self.acknowledged(fence, verdict, engine, waiting, member, &word)
            }
            (state, ToLead::Failed(theirs, root)) => self.failed(state, theirs, Cause::at(member, root)),
            // A receiver that was restarted in the middle of the attempt has lost its part of it.
            (state, ToLead::Phase(_)) => self.restarted(state, member),
            (state, _) => (state, Vec::new()),
        }
    }

    fn staged(&self, fence: Fence, mut waiting: BTreeSet<ReceiverId>, member: ReceiverId) -> Step {
        waiting.remove(&member);
        if !waiting.is_empty() {
            return (State::Gathering { fence, waiting }, Vec::new());
        }
        // CM-4: the switch begins only when every receiver holds and has checked everything.
        let id = TimerId::of(&fence, TimerKind::Pausing);
        let deadline = Command::ArmTimer { id, after: self.options.pause_deadline };
        (State::Pausing { fence }, vec![Command::Pause(fence), deadline])
    }

    fn paused(&self, state: State, fence: Fence, result: Result<(), RootCause>) -> Step {
        match (state, result) {
            (State::Pausing { fence: mine }, Ok(())) if mine == fence => {
                let mut commands = self.tell_all(&FromLead::Apply(fence));
                let after = self.options.apply_deadline;
                commands.push(Command::ArmTimer { id: TimerId::of(&fence, TimerKind::Applying), after });
                (State::Applying { fence, waiting: self.members.clone() }, commands)
            }
            (State::Leaving { fence: mine }, Ok(())) if mine == fence => self.take(fence),
            (State::Pausing { fence: mine } | State::Leaving { fence: mine }, Err(root)) if mine == fence => {
                let lead = self.lead_id();
                self.roll_back(fence, Cause::at(lead, root), Engine::Paused)
            }
            (state, _) => (state, Vec::new()),
        }
    }

    fn applied(&self, fence: Fence, mut waiting: BTreeSet<ReceiverId>, member: ReceiverId) -> Step {
        waiting.remove(&member);
        if !waiting.is_empty() {
            return (State::Applying { fence, waiting }, Vec::new());
        }
        // CM-1, CM-4: every receiver has applied and proven its digests.
        self.decide(fence, Verdict::Committed, Engine::Paused)
    }

    fn failed(&self, state: State, theirs: Fence, cause: Cause) -> Step {
        match state {
            State::Gathering { fence, .. } if fence == theirs => {
                self.roll_back(fence, cause, Engine::Serving)
            }
            State::Pausing { fence }
            | State::Leaving { fence }
            | State::Applying { fence, .. }
            | State::Taking { fence, .. }
                if fence == theirs =>
            {
                self.roll_back(fence, cause, Engine::Paused)
            }
            state => (state, Vec::new()),
        }
    }

    fn restarted(&self, state: State, member: ReceiverId) -> Step {
        let cause = Cause::at(member, RootCause::Died);
        match state {
            State::Gathering { fence, .. } => self.roll_back(fence, cause, Engine::Serving),
            State::Pausing { fence }
            | State::Leaving { fence }
            | State::Applying { fence, .. }
            | State::Taking { fence, .. } => self.roll_back(fence, cause, Engine::Paused),
            state => (state, Vec::new()),
        }
    }

    fn acknowledged(
        &mut self,
        fence: Fence,
        verdict: Verdict,
        engine: Engine,
        mut waiting: BTreeSet<ReceiverId>,
        member: ReceiverId,
        word: &ToLead,
    ) -> Step {
        match word {
            ToLead::Done(theirs, done) if *theirs == fence && *done == decision(&verdict) => {
                waiting.remove(&member);
            }
            ToLead::Torn(theirs) if *theirs == fence && matches!(verdict, Verdict::RolledBack(_)) => {
                self.torn.insert(member);
                waiting.remove(&member);
            }
            ToLead::Failed(theirs, root) if *theirs == fence => {
                let verdict = verdict.then(Cause::at(member, root.clone()));
                return (State::Deciding { fence, verdict, engine, waiting }, Vec::new());
            }
            // The receiver came back in between: it has not heard the decision.
            ToLead::Phase(_) if waiting.contains(&member) => {
                let verdict = verdict.then(Cause::at(member, RootCause::Died));
                let again = Command::Tell(member, FromLead::Decide(fence, decision(&verdict)));
                return (State::Deciding { fence, verdict, engine, waiting }, vec![again]);
            }
            _ => {}
        }
        if !waiting.is_empty() {
            return (State::Deciding { fence, verdict, engine, waiting }, Vec::new());
        }
        self.settled(fence, verdict, engine)
    }

    fn keep_alive(state: State) -> Step {
        let commands = if state == State::Resting { vec![Command::ReportServing] } else { Vec::new() };
        (state, commands)
    }

    fn new_epoch(&self, state: State, epoch: Epoch) -> Step {
        match state {
            State::Resting => (State::Resting, vec![Command::ReportServing]),
            // CM-5: what an older coordinator began is not begun any further.
            State::Gathering { fence, .. } if fence.epoch < epoch => {
                self.roll_back(fence, Cause::at(self.lead_id(), RootCause::Aborted), Engine::Serving)
            }
            State::Leaving { fence } | State::Taking { fence, .. } if fence.epoch < epoch => {
                self.roll_back(fence, Cause::at(self.lead_id(), RootCause::Aborted), Engine::Paused)
            }
            state => (state, Vec::new()),
        }
    }

    fn outcome(&self, fence: Fence, verdict: Verdict) -> Outcome {
        Outcome { fence, verdict, repair: self.repair.clone(), intake: self.intake() }
    }

    fn timer(&self, state: State, id: TimerId) -> Step {
        let late = |step| Cause::at(self.lead_id(), RootCause::Deadline { step });
        match state {
            State::Gathering { fence, .. } if id == TimerId::of(&fence, TimerKind::Staging) => {
                self.roll_back(fence, late("staging"), Engine::Serving)
            }
            State::Taking { fence, .. } if id == TimerId::of(&fence, TimerKind::Taking) => {
                self.roll_back(fence, late("taking everything in place"), Engine::Paused)
            }
            State::Pausing { fence } | State::Leaving { fence }
                if id == TimerId::of(&fence, TimerKind::Pausing) =>
            {
                self.roll_back(fence, late("the pause hook"), Engine::Paused)
            }
            State::Applying { fence, .. } if id == TimerId::of(&fence, TimerKind::Applying) => {
                self.roll_back(fence, late("applying"), Engine::Paused)
            }
            State::Recovering { engine, answers } if id == recovery::ASK_AGAIN => {
                let commands = self.ask(&answers);
                (State::Recovering { engine, answers }, commands)
            }
            State::Deciding { fence, verdict, engine, waiting }
                if id == TimerId::of(&fence, TimerKind::Repeat) =>
            {
                let word = FromLead::Decide(fence, decision(&verdict));
                let mut again: Vec<_> =
                    waiting.iter().map(|&member| Command::Tell(member, word.clone())).collect();
                again.push(self.repeat_timer(&fence));
                (State::Deciding { fence, verdict, engine, waiting }, again)
            }
            state => (state, Vec::new()),
        }
    }

    fn lead_id(&self) -> ReceiverId {
        // A replica has at least one receiver: the plan refuses an empty one.
        self.members.first().copied().unwrap_or_default()
    }
}

const fn coordinator_of(event: &Event) -> Option<Epoch> {
    match event {
        Event::Begin(fence, _) | Event::Abort(fence, _) => Some(fence.epoch),
        Event::NewEpoch(epoch) => Some(*epoch),
        Event::Member(..) | Event::Paused(..) | Event::Resumed | Event::KeepAlive | Event::TimerFired(_) => {
            None
        }
    }
}

const fn decision(verdict: &Verdict) -> Decision {
    match verdict {
        Verdict::Committed => Decision::Commit,
        Verdict::RolledBack(_) => Decision::Rollback,
    }
}
