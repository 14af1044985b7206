//! The lead of a replica: it alone decides when the replica switches versions.
//!
//! - **CM-1 (one version per replica).** All receivers commit or all roll back.
//! - **CM-3 (exclusive decisions).** A decision is taken once; from then on it is only repeated.
//! - **CM-11 (every attempt ends).** Every wait before the decision has a deadline; the decision is repeated until
//!   every receiver has acknowledged it.
//! - **CM-10 (replay).** An attempt that has ended here never begins again; asked about, it is reported again.
//! - **CM-5 (fencing).** A lead ignores every coordinator older than the newest it has heard of.
//!
//! Between pause and resume nothing waits for the coordinator or for a sender: their death cannot keep an engine
//! paused. A restarted lead takes a higher incarnation and asks every receiver for its phase: if all have applied
//! or committed the attempt it commits, otherwise it rolls back.

mod words;

pub use words::{Command, Engine, Event, LeadOptions, Outcome, Verdict};

use crate::{Cause, Decision, FromLead, Needs, Phase, RootCause, TimerId, TimerKind, ToLead};
use driftless_types::{Attempt, Epoch, Fence, ReceiverId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lead {
    members: BTreeSet<ReceiverId>,
    options: LeadOptions,
    repair: BTreeMap<ReceiverId, BTreeSet<u32>>,
    /// The newest coordinator it has heard of.
    promised: Epoch,
    /// How the newest attempt ended that has ended under this lead.
    ended: Option<Outcome>,
    /// The newest attempt that was opened while an older one had not ended here.
    next: Option<Fence>,
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

/// The timer of a lead that recovers: it belongs to no attempt.
const ASK_AGAIN: TimerId =
    TimerId { epoch: Epoch { counter: 0, incarnation: 0 }, attempt: Attempt(0), kind: TimerKind::AskAgain };

type Step = (State, Vec<Command>);

impl State {
    /// The attempt that is open here, as far as it is known.
    const fn attempt(&self) -> Option<Fence> {
        match self {
            Self::Resting | Self::Recovering { .. } | Self::Reopening => None,
            Self::Gathering { fence, .. }
            | Self::Pausing { fence }
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
        let repair = BTreeMap::new();
        let lead =
            Self { members, options, repair, promised: Epoch::default(), ended: None, next: None, state };
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
        Needs { base, repair: self.repair.clone() }
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
        self.note_mismatch(&event);
        let state = std::mem::replace(&mut self.state, State::Resting);
        let (state, commands) = match event {
            Event::Begin(fence) => self.begin(state, fence),
            Event::Abort(fence, cause) => self.abort(state, fence, cause),
            Event::Member(member, word) => self.member(state, member, word),
            Event::Paused(fence, result) => self.paused(state, fence, result),
            Event::Resumed => self.resumed(state),
            Event::NewEpoch(epoch) => self.new_epoch(state, epoch),
            Event::KeepAlive => Self::keep_alive(state),
            Event::TimerFired(id) => self.timer(state, id),
        };
        self.begin_next(state, commands)
    }

    fn begin_next(mut self, state: State, mut commands: Vec<Command>) -> (Self, Vec<Command>) {
        let next = if state == State::Resting { self.next.take() } else { None };
        let Some(fence) = next else { return (Self { state, ..self }, commands) };
        let (state, more) = self.begin(state, fence);
        commands.extend(more);
        (Self { state, ..self }, commands)
    }

    /// Asks every receiver that has not answered, and will ask again.
    fn ask(&self, answers: &BTreeMap<ReceiverId, Phase>) -> Vec<Command> {
        let silent = self.members.iter().filter(|member| !answers.contains_key(member));
        let mut commands: Vec<_> = silent.map(|&member| Command::Tell(member, FromLead::AskPhase)).collect();
        commands.push(Command::ArmTimer { id: ASK_AGAIN, after: self.options.repeat_after });
        commands
    }

    fn note_mismatch(&mut self, event: &Event) {
        if let Event::Member(member, ToLead::Failed(_, RootCause::DigestMismatch { tensors })) = event {
            self.repair.entry(*member).or_default().extend(tensors);
        }
    }

    fn tell_all(&self, word: &FromLead) -> Vec<Command> {
        self.members.iter().map(|&member| Command::Tell(member, word.clone())).collect()
    }

    fn begin(&mut self, state: State, fence: Fence) -> Step {
        if state != State::Resting {
            if state.attempt().is_none_or(|open| fence > open) {
                self.next = self.next.max(Some(fence));
            }
            return (state, Vec::new());
        }
        if self.ended.as_ref().is_some_and(|ended| fence <= ended.fence) {
            return (state, Vec::new()); // CM-10
        }
        let mut commands = self.tell_all(&FromLead::Begin(fence));
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
            (State::Pausing { fence: mine }, Err(root)) if mine == fence => {
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
            State::Pausing { fence } | State::Applying { fence, .. } if fence == theirs => {
                self.roll_back(fence, cause, Engine::Paused)
            }
            state => (state, Vec::new()),
        }
    }

    fn restarted(&self, state: State, member: ReceiverId) -> Step {
        let cause = Cause::at(member, RootCause::Died);
        match state {
            State::Gathering { fence, .. } => self.roll_back(fence, cause, Engine::Serving),
            State::Pausing { fence } | State::Applying { fence, .. } => {
                self.roll_back(fence, cause, Engine::Paused)
            }
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
            // The receiver came back in between: it has not heard the decision.
            ToLead::Phase(_) if waiting.contains(&member) => {
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

    fn settled(&mut self, fence: Fence, verdict: Verdict, engine: Engine) -> Step {
        if verdict == Verdict::Committed {
            self.repair.clear();
        }
        let outcome = self.outcome(fence, verdict.clone());
        self.ended = Some(outcome.clone());
        match engine {
            Engine::Serving => (State::Resting, vec![Command::Report(outcome)]),
            Engine::Paused => (State::Resuming { fence, verdict }, vec![Command::Resume]),
        }
    }

    fn resumed(&self, state: State) -> Step {
        match state {
            State::Resuming { fence, verdict } => {
                (State::Resting, vec![Command::Report(self.outcome(fence, verdict))])
            }
            State::Reopening => (State::Resting, vec![Command::ReportServing]),
            state => (state, Vec::new()),
        }
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
            state => (state, Vec::new()),
        }
    }

    fn outcome(&self, fence: Fence, verdict: Verdict) -> Outcome {
        Outcome { fence, verdict, repair: self.repair.clone() }
    }

    fn timer(&self, state: State, id: TimerId) -> Step {
        let late = |step| Cause::at(self.lead_id(), RootCause::Deadline { step });
        match state {
            State::Gathering { fence, .. } if id == TimerId::of(&fence, TimerKind::Staging) => {
                self.roll_back(fence, late("staging"), Engine::Serving)
            }
            State::Pausing { fence } if id == TimerId::of(&fence, TimerKind::Pausing) => {
                self.roll_back(fence, late("the pause hook"), Engine::Paused)
            }
            State::Applying { fence, .. } if id == TimerId::of(&fence, TimerKind::Applying) => {
                self.roll_back(fence, late("applying"), Engine::Paused)
            }
            State::Recovering { engine, answers } if id == ASK_AGAIN => {
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

    fn answer(
        &mut self,
        engine: Engine,
        mut answers: BTreeMap<ReceiverId, Phase>,
        member: ReceiverId,
        phase: Phase,
    ) -> Step {
        answers.insert(member, phase);
        if answers.len() < self.members.len() {
            return (State::Recovering { engine, answers }, Vec::new());
        }
        let open = answers.values().filter_map(open_attempt).max();
        let Some(fence) = open else {
            return match engine {
                Engine::Paused => (State::Reopening, vec![Command::Resume]),
                Engine::Serving => (State::Resting, vec![Command::ReportServing]),
            };
        };
        // CM-3: had the former lead committed, no receiver could be short of applied.
        let all_applied = answers.values().all(|phase| match phase {
            Phase::Applied(theirs) => *theirs == fence,
            Phase::Serving(last) => *last == Some(fence),
            Phase::Open(_) => false,
        });
        if all_applied {
            return self.decide(fence, Verdict::Committed, engine);
        }
        let cause = Cause::at(self.lead_id(), RootCause::Died);
        self.roll_back(fence, cause, engine)
    }

    fn lead_id(&self) -> ReceiverId {
        // A replica has at least one receiver: the plan refuses an empty one.
        self.members.first().copied().unwrap_or_default()
    }
}

const fn coordinator_of(event: &Event) -> Option<Epoch> {
    match event {
        Event::Begin(fence) | Event::Abort(fence, _) => Some(fence.epoch),
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

const fn open_attempt(phase: &Phase) -> Option<Fence> {
    match phase {
        Phase::Open(fence) | Phase::Applied(fence) => Some(*fence),
        Phase::Serving(_) => None,
    }
}
