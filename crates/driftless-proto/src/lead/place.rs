//! The lead's part of an attempt in place: out of service first, then everything, then the proof.

use super::{Command, Lead, State, Step};
use crate::{Engine, FromLead, Intake, TimerId, TimerKind, Verdict};
use driftless_types::{Fence, ReceiverId};
use std::collections::BTreeSet;

impl Lead {
    /// How the replica takes the next attempt.
    pub(super) fn intake(&self) -> Intake {
        if self.torn.is_empty() { self.intake } else { Intake::InPlace }
    }

    /// CM-1: nothing is written in place before the engine stands still.
    pub(super) fn leave(&self, fence: Fence) -> Step {
        if self.engine == Engine::Paused {
            return self.take(fence); // it is out of service already
        }
        let id = TimerId::of(&fence, TimerKind::Pausing);
        let deadline = Command::ArmTimer { id, after: self.options.pause_deadline };
        (State::Leaving { fence }, vec![Command::Pause(fence), deadline])
    }

    pub(super) fn take(&self, fence: Fence) -> Step {
        let mut commands = self.tell_all(&FromLead::Begin(fence, Intake::InPlace));
        let after = self.options.taking_deadline;
        commands.push(Command::ArmTimer { id: TimerId::of(&fence, TimerKind::Taking), after });
        (State::Taking { fence, waiting: self.members.clone() }, commands)
    }

    pub(super) fn taken(&self, fence: Fence, mut waiting: BTreeSet<ReceiverId>, member: ReceiverId) -> Step {
        waiting.remove(&member);
        if !waiting.is_empty() {
            return (State::Taking { fence, waiting }, Vec::new());
        }
        // CM-14: every digest matched.
        self.decide(fence, Verdict::Committed, Engine::Paused)
    }

    /// The engine goes on, if it may.
    pub(super) fn settled(&mut self, fence: Fence, verdict: Verdict, engine: Engine) -> Step {
        if verdict == Verdict::Committed {
            self.repair.clear();
            self.torn.clear();
            self.intake = Intake::Staged;
        }
        let outcome = self.outcome(fence, verdict.clone());
        self.ended = Some(outcome.clone());
        match engine {
            // CM-14: the engine stays out of service until everything was taken.
            Engine::Paused if !self.torn.is_empty() => {
                self.engine = Engine::Paused;
                (State::Resting, vec![Command::Report(outcome)])
            }
            Engine::Serving => (State::Resting, vec![Command::Report(outcome)]),
            Engine::Paused => (State::Resuming { fence, verdict }, vec![Command::Resume]),
        }
    }

    pub(super) fn resumed(&mut self, state: State) -> Step {
        self.engine = Engine::Serving;
        match state {
            State::Resuming { fence, verdict } => {
                (State::Resting, vec![Command::Report(self.outcome(fence, verdict))])
            }
            State::Reopening => (State::Resting, vec![Command::ReportServing]),
            state => (state, Vec::new()),
        }
    }
}
