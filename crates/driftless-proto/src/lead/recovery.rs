//! A lead that comes back: it decides nothing before every receiver has said where it stands.

use super::{Command, Lead, State, Step};
use crate::{AttemptStep, Cause, Engine, FromLead, Phase, RootCause, TimerId, TimerKind, Verdict};
use driftless_types::{Attempt, Epoch, Fence, ReceiverId};
use std::collections::BTreeMap;

/// The timer of a lead that recovers: it belongs to no attempt.
pub(super) const ASK_AGAIN: TimerId =
    TimerId { epoch: Epoch { counter: 0, incarnation: 0 }, attempt: Attempt(0), kind: TimerKind::AskAgain };

impl State {
    /// The step at which something fails that fails now.
    pub(super) const fn step(&self) -> Option<AttemptStep> {
        match self {
            Self::Gathering { .. } => Some(AttemptStep::Staging),
            Self::Pausing { .. } | Self::Leaving { .. } => Some(AttemptStep::Pausing),
            Self::Taking { .. } => Some(AttemptStep::Taking),
            Self::Applying { .. } => Some(AttemptStep::Applying),
            Self::Recovering { .. } => Some(AttemptStep::Recovering),
            Self::Resting | Self::Deciding { .. } | Self::Resuming { .. } | Self::Reopening => None,
        }
    }

    /// The same; if it is a rollback now, its cause knows the step.
    pub(super) fn blamed(self, step: Option<AttemptStep>) -> Self {
        match self {
            Self::Deciding { fence, verdict: Verdict::RolledBack(cause), engine, waiting } => {
                let verdict = Verdict::RolledBack(cause.during(step));
                Self::Deciding { fence, verdict, engine, waiting }
            }
            state => state,
        }
    }
}

impl Lead {
    /// Asks every receiver that has not answered, and will ask again.
    pub(super) fn ask(&self, answers: &BTreeMap<ReceiverId, Phase>) -> Vec<Command> {
        let silent = self.members.iter().filter(|member| !answers.contains_key(member));
        let mut commands: Vec<_> = silent.map(|&member| Command::Tell(member, FromLead::AskPhase)).collect();
        commands.push(Command::ArmTimer { id: ASK_AGAIN, after: self.options.repeat_after });
        commands
    }

    pub(super) fn answer(
        &mut self,
        engine: Engine,
        mut answers: BTreeMap<ReceiverId, Phase>,
        member: ReceiverId,
        phase: Phase,
    ) -> Step {
        if matches!(phase, Phase::Torn(_)) {
            self.torn.insert(member);
        }
        answers.insert(member, phase);
        if answers.len() < self.members.len() {
            return (State::Recovering { engine, answers }, Vec::new());
        }
        let open = answers.values().filter_map(open_attempt).max();
        let Some(fence) = open else {
            return match engine {
                Engine::Paused if !self.torn.is_empty() => (State::Resting, vec![Command::ReportServing]),
                Engine::Paused => (State::Reopening, vec![Command::Resume]),
                Engine::Serving => (State::Resting, vec![Command::ReportServing]),
            };
        };
        // CM-3: had the former lead committed, no receiver could be short of applied.
        let all_applied = answers.values().all(|phase| match phase {
            Phase::Applied(theirs) => *theirs == fence,
            Phase::Serving(last) => *last == Some(fence),
            Phase::Open(_) | Phase::Torn(_) => false,
        });
        if all_applied {
            return self.decide(fence, Verdict::Committed, engine);
        }
        let cause = Cause::at(self.lead_id(), RootCause::Died);
        self.roll_back(fence, cause, engine)
    }
}

const fn open_attempt(phase: &Phase) -> Option<Fence> {
    match phase {
        Phase::Open(fence) | Phase::Applied(fence) => Some(*fence),
        Phase::Serving(_) | Phase::Torn(_) => None,
    }
}
