//! A receiver's part of an attempt: it receives, checks, stages, and then does what its lead decides.
//!
//! - **CM-3 (nothing of an aborted attempt is applied).** Live weights are written only between `Apply` and
//!   `Commit` or `Rollback`, and a rollback restores every bit.
//! - **CM-4 (commit needs every member).** A receiver says `Staged` only after every byte was checked, and
//!   `Applied` only after its digests were compared.
//! - **CM-5 (fencing).** A lead with a lower incarnation than the highest heard is ignored.
//! - **CM-10 (replay).** A decision that is repeated is acknowledged again and changes nothing; an attempt that was
//!   begun or decided here once never begins again.
//! - **CM-14 (current before it serves).** Weights that are taken in place are of no version from the first window on
//!   until the attempt is sealed, whatever dies: a receiver that holds such weights says so, and takes everything.

use crate::{
    Exchange, ExchangeCommand, ExchangeEnd, ExchangeEvent, Intake, Limits, ProtocolViolation, RootCause,
    Shape, Weights,
};
use driftless_types::{Fence, Incarnation};
use std::collections::BTreeMap;

/// How an attempt ends for a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The new version is served; the undo log is dropped.
    Commit,
    /// The old version is served; the undo log was played back.
    Rollback,
}

/// What a lead says to a receiver of its replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FromLead {
    /// Take part in this attempt.
    Begin(Fence, Intake),
    /// Write the staged changes into the live weights.
    Apply(Fence),
    /// The decision.
    Decide(Fence, Decision),
    /// Where are you? The answer promises to ignore older leads.
    AskPhase,
}

/// What a receiver says to its lead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ToLead {
    /// Everything arrived and was checked; nothing is written.
    Staged(Fence),
    /// Written, digests compared, undo log kept.
    Applied(Fence),
    /// The decision is carried out.
    Done(Fence, Decision),
    /// The attempt is given up here, and what it wrote in place stays: the weights are of no version.
    Torn(Fence),
    /// This receiver cannot go on with the attempt.
    Failed(Fence, RootCause),
    /// The first word of an actor that was restarted.
    Phase(Phase),
    /// The answer to `AskPhase`, and the promise to ignore older leads.
    Answer(Phase),
}

/// Where a receiver stands, as a lead must know it to decide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No attempt is open; the last one that was committed here.
    Serving(Option<Fence>),
    /// An attempt is open and nothing of it is written, or its writing has not ended.
    Open(Fence),
    /// Written and compared, undecided.
    Applied(Fence),
    /// No attempt is open and the weights are of no version; the last one that was committed here.
    Torn(Option<Fence>),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A word from the lead of this incarnation.
    Lead(Incarnation, FromLead),
    /// Something happened to the exchange.
    Exchange(Fence, ExchangeEvent),
    /// All bytes of the attempt were checked.
    Checked(Fence, Result<(), RootCause>),
    /// Everything is written and its digests were compared; after a scatter that failed the undo log is still there.
    Scattered(Fence, Result<(), RootCause>),
    /// The undo log was played back.
    Undone(Fence),
    /// The version is sealed: the undo log is dropped.
    Sealed(Fence),
}

/// What the actor must do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// A command of the exchange.
    Exchange(Fence, ExchangeCommand),
    /// Check every byte that arrived.
    Check(Fence),
    /// Scatter with an undo log, then compare digests.
    Scatter(Fence),
    /// Everything was written in place: hash the live weights and compare their digests.
    Prove(Fence),
    /// Play the undo log back; of what was written in place there is none.
    Undo(Fence),
    /// Drop the undo log; the version is now this one.
    Seal(Fence),
    /// Forget what was staged.
    Discard(Fence),
    /// Say this to the lead.
    Tell(ToLead),
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Participant {
    heard: Incarnation,
    shape: Shape,
    limits: Limits,
    /// The newest attempt that was begun or decided here.
    begun: Option<Fence>,
    weights: Weights,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Serving(Option<Fence>),
    Receiving(Fence, Exchange, Option<Fence>),
    /// Window by window into the live weights.
    Taking(Fence, Exchange, Option<Fence>),
    /// All of it is written in place, and hashed.
    Proving(Fence, Option<Fence>),
    Checking(Fence, Option<Fence>),
    Staged(Fence, Option<Fence>),
    Scattering(Fence, Option<Fence>),
    /// A rollback was ordered while the scatter still runs: writers are never interrupted halfway.
    Unwinding(Fence, Option<Fence>),
    Applied(Fence, Option<Fence>),
    Undoing(Fence, Option<Fence>),
    Sealing(Fence),
}

impl State {
    /// The attempt that is open here.
    const fn attempt(&self) -> Option<Fence> {
        match self {
            Self::Serving(_) => None,
            Self::Receiving(fence, ..)
            | Self::Taking(fence, ..)
            | Self::Proving(fence, _)
            | Self::Checking(fence, _)
            | Self::Staged(fence, _)
            | Self::Scattering(fence, _)
            | Self::Unwinding(fence, _)
            | Self::Applied(fence, _)
            | Self::Undoing(fence, _)
            | Self::Sealing(fence) => Some(*fence),
        }
    }

    /// The last attempt that was committed here.
    const fn committed(&self) -> Option<Fence> {
        match self {
            Self::Serving(last)
            | Self::Receiving(_, _, last)
            | Self::Taking(_, _, last)
            | Self::Proving(_, last)
            | Self::Checking(_, last)
            | Self::Staged(_, last)
            | Self::Scattering(_, last)
            | Self::Unwinding(_, last)
            | Self::Applied(_, last)
            | Self::Undoing(_, last) => *last,
            Self::Sealing(_) => None,
        }
    }
}

type Step = Result<(State, Vec<Command>), ProtocolViolation>;

impl Participant {
    /// A receiver as its binding remembers it: serving, or with an applied attempt that nobody decided.
    #[must_use]
    pub const fn restore(
        shape: Shape,
        limits: Limits,
        committed: Option<Fence>,
        applied: Option<Fence>,
        weights: Weights,
    ) -> Self {
        let state = match applied {
            Some(fence) => State::Applied(fence, committed),
            None => State::Serving(committed),
        };
        let begun = if applied.is_some() { applied } else { committed };
        Self { heard: Incarnation(0), shape, limits, begun, weights, state }
    }

    /// Where this receiver stands.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match &self.state {
            State::Serving(last) if matches!(self.weights, Weights::Torn) => Phase::Torn(*last),
            State::Serving(last) => Phase::Serving(*last),
            State::Applied(fence, _) | State::Sealing(fence) => Phase::Applied(*fence),
            State::Receiving(fence, ..)
            | State::Taking(fence, ..)
            | State::Proving(fence, _)
            | State::Checking(fence, _)
            | State::Staged(fence, _)
            | State::Scattering(fence, _)
            | State::Unwinding(fence, _)
            | State::Undoing(fence, _) => Phase::Open(*fence),
        }
    }

    /// Takes one event.
    ///
    /// # Errors
    /// [`ProtocolViolation`] if no correct lead causes this event now; the state is lost with it, as the actor is.
    pub fn handle(mut self, event: Event) -> Result<(Self, Vec<Command>), ProtocolViolation> {
        if let Event::Lead(incarnation, _) = &event {
            if *incarnation < self.heard {
                return Ok((self, Vec::new())); // CM-5
            }
            self.heard = *incarnation;
        }
        if matches!(event, Event::Lead(_, FromLead::AskPhase)) {
            let answer = Command::Tell(ToLead::Answer(self.phase()));
            return Ok((self, vec![answer]));
        }
        match &event {
            Event::Lead(_, FromLead::Begin(fence, _)) => {
                if self.begun.is_some_and(|begun| *fence <= begun) {
                    return Ok((self, Vec::new())); // CM-10
                }
                self.begun = Some(*fence);
            }
            // CM-10: a Begin that comes after the decision must not write into an engine that serves again.
            Event::Lead(_, FromLead::Decide(fence, _)) => self.begun = self.begun.max(Some(*fence)),
            _ => {}
        }
        let Self { heard, shape, limits, begun, mut weights, state } = self;
        let torn = &mut weights;
        let (state, commands) = match event {
            Event::Lead(_, FromLead::Begin(fence, Intake::Staged)) => {
                begin(state, fence, &shape, &limits, *torn)
            }
            Event::Lead(_, FromLead::Begin(fence, Intake::InPlace)) => take(state, fence, &shape, &limits),
            Event::Lead(_, FromLead::Apply(fence)) => apply(state, fence),
            Event::Lead(_, FromLead::Decide(fence, Decision::Commit)) => commit(state, fence),
            Event::Lead(_, FromLead::Decide(fence, Decision::Rollback)) => Ok(rollback(state, fence, *torn)),
            Event::Lead(_, FromLead::AskPhase) => Ok((state, Vec::new())),
            Event::Exchange(fence, event) => exchange(state, fence, event, torn),
            Event::Checked(fence, result) => Ok(checked(state, fence, result)),
            Event::Scattered(fence, result) => Ok(scattered(state, fence, result)),
            Event::Undone(fence) => Ok(undone(state, fence, *torn)),
            Event::Sealed(fence) => Ok(sealed(state, fence, torn)),
        }?;
        Ok((Self { heard, shape, limits, begun, weights, state }, commands))
    }
}

fn begin(state: State, fence: Fence, shape: &Shape, limits: &Limits, weights: Weights) -> Step {
    if weights == Weights::Torn {
        // CM-14: changes are of no use to weights of no version.
        return Ok((state, vec![Command::Tell(ToLead::Failed(fence, RootCause::OutOfService))]));
    }
    let (last, mut commands) = stand_free(state)?;
    let (exchange, opening) = Exchange::open(fence, shape.clone(), BTreeMap::new(), limits.clone());
    commands.extend(of(fence, opening));
    Ok((State::Receiving(fence, exchange, last), commands))
}

/// Leaves an attempt of which nothing is written: the last one that was committed, and what there is to do.
fn stand_free(state: State) -> Result<(Option<Fence>, Vec<Command>), ProtocolViolation> {
    match state {
        State::Serving(last) => Ok((last, Vec::new())),
        // A lead begins another attempt only when the last one has ended everywhere: this one was begun here by a word
        // that came too late. Nothing of it is written.
        State::Receiving(older, _, last) => {
            let stop = Command::Exchange(older, ExchangeCommand::AbortTransfers);
            Ok((last, vec![stop, Command::Discard(older)]))
        }
        State::Checking(older, last) | State::Staged(older, last) => {
            Ok((last, vec![Command::Discard(older)]))
        }
        _ => Err(ProtocolViolation { state: "an attempt that is being written", event: "begin" }),
    }
}

/// The engine has left service: everything comes window by window into the live weights.
fn take(state: State, fence: Fence, shape: &Shape, limits: &Limits) -> Step {
    let (last, mut commands) = stand_free(state)?;
    let (exchange, opening) = Exchange::open_in_place(fence, shape.clone(), limits.clone());
    commands.extend(of(fence, opening));
    Ok((State::Taking(fence, exchange, last), commands))
}

fn of(fence: Fence, commands: Vec<ExchangeCommand>) -> impl Iterator<Item = Command> {
    commands.into_iter().map(move |command| Command::Exchange(fence, command))
}

fn exchange(state: State, fence: Fence, event: ExchangeEvent, weights: &mut Weights) -> Step {
    let (exchange, last) = match state {
        State::Receiving(mine, exchange, last) if mine == fence => (exchange, last),
        State::Taking(mine, exchange, last) if mine == fence => {
            return taking(fence, exchange, last, event, weights);
        }
        state => return Ok((state, Vec::new())), // an exchange that this receiver has left
    };
    let (exchange, commands) = exchange.handle(event)?;
    let mut out: Vec<Command> = of(fence, commands).collect();
    let state = match exchange.end() {
        None => State::Receiving(fence, exchange, last),
        Some(ExchangeEnd::Complete) => {
            out.push(Command::Check(fence));
            State::Checking(fence, last)
        }
        Some(ExchangeEnd::Failed(root)) => {
            out.push(Command::Discard(fence));
            out.push(Command::Tell(ToLead::Failed(fence, root.clone())));
            State::Serving(last)
        }
    };
    Ok((state, out))
}

fn taking(
    fence: Fence,
    exchange: Exchange,
    last: Option<Fence>,
    event: ExchangeEvent,
    weights: &mut Weights,
) -> Step {
    let (exchange, commands) = exchange.handle(event)?;
    if commands.iter().any(|command| matches!(command, ExchangeCommand::Window { .. })) {
        *weights = Weights::Torn; // CM-14: from here on some of them may be overwritten
    }
    let mut out: Vec<Command> = of(fence, commands).collect();
    let state = match exchange.end() {
        None => State::Taking(fence, exchange, last),
        Some(ExchangeEnd::Complete) => {
            out.push(Command::Prove(fence));
            State::Proving(fence, last)
        }
        Some(ExchangeEnd::Failed(root)) => {
            out.push(Command::Discard(fence));
            out.push(Command::Tell(ToLead::Failed(fence, root.clone())));
            State::Serving(last)
        }
    };
    Ok((state, out))
}

fn checked(state: State, fence: Fence, result: Result<(), RootCause>) -> (State, Vec<Command>) {
    match (state, result) {
        // CM-4: only checked bytes are staged.
        (State::Checking(mine, last), Ok(())) if mine == fence => {
            (State::Staged(fence, last), vec![Command::Tell(ToLead::Staged(fence))])
        }
        (State::Checking(mine, last), Err(root)) if mine == fence => {
            (State::Serving(last), vec![Command::Discard(fence), Command::Tell(ToLead::Failed(fence, root))])
        }
        (state, _) => (state, Vec::new()),
    }
}

fn apply(state: State, fence: Fence) -> Step {
    match state {
        State::Staged(mine, last) if mine == fence => {
            Ok((State::Scattering(fence, last), vec![Command::Scatter(fence)]))
        }
        // Repeated, or overtaken by a restart of this actor: the lead learns the phase instead.
        state => Ok((state, Vec::new())),
    }
}

fn scattered(state: State, fence: Fence, result: Result<(), RootCause>) -> (State, Vec<Command>) {
    match (state, result) {
        (State::Scattering(mine, last), Ok(())) if mine == fence => {
            (State::Applied(fence, last), vec![Command::Tell(ToLead::Applied(fence))])
        }
        // CM-3: what was written is taken back before anyone is told.
        (State::Scattering(mine, last), Err(root)) if mine == fence => {
            let tell = Command::Tell(ToLead::Failed(fence, root));
            (State::Undoing(fence, last), vec![Command::Undo(fence), tell])
        }
        (State::Proving(mine, last), Ok(())) if mine == fence => {
            (State::Applied(fence, last), vec![Command::Tell(ToLead::Applied(fence))])
        }
        // There is nothing to take back: the weights are of no version, and say so.
        (State::Proving(mine, last), Err(root)) if mine == fence => {
            (State::Serving(last), vec![Command::Tell(ToLead::Failed(fence, root))])
        }
        (State::Unwinding(mine, last), result) if mine == fence => {
            // The lead has decided, but what this receiver found is for the next attempt to repair.
            let found = result.err().map(|root| Command::Tell(ToLead::Failed(fence, root)));
            (State::Undoing(fence, last), [Command::Undo(fence)].into_iter().chain(found).collect())
        }
        (state, _) => (state, Vec::new()),
    }
}

fn commit(state: State, fence: Fence) -> Step {
    match state {
        State::Applied(mine, _) if mine == fence => Ok((State::Sealing(fence), vec![Command::Seal(fence)])),
        State::Sealing(mine) if fence <= mine => Ok((State::Sealing(mine), Vec::new())),
        // CM-10: a repeated commit is acknowledged again.
        state if state.committed().is_some_and(|committed| fence <= committed) => {
            Ok((state, vec![Command::Tell(ToLead::Done(fence, Decision::Commit))]))
        }
        _ => Err(ProtocolViolation { state: "an attempt that was not applied", event: "commit" }),
    }
}

/// How a rollback is acknowledged.
const fn rolled_back(fence: Fence, weights: Weights) -> Command {
    match weights {
        Weights::Whole => Command::Tell(ToLead::Done(fence, Decision::Rollback)),
        Weights::Torn => Command::Tell(ToLead::Torn(fence)),
    }
}

fn rollback(state: State, fence: Fence, weights: Weights) -> (State, Vec<Command>) {
    let done = rolled_back(fence, weights);
    match state {
        State::Receiving(mine, _, last) | State::Taking(mine, _, last) if mine == fence => {
            let stop = Command::Exchange(fence, ExchangeCommand::AbortTransfers);
            (State::Serving(last), vec![stop, Command::Discard(fence), done])
        }
        State::Checking(mine, last) | State::Staged(mine, last) if mine == fence => {
            (State::Serving(last), vec![Command::Discard(fence), done])
        }
        State::Scattering(mine, last) | State::Proving(mine, last) if mine == fence => {
            (State::Unwinding(mine, last), Vec::new())
        }
        State::Applied(mine, last) if mine == fence => {
            (State::Undoing(mine, last), vec![Command::Undo(fence)])
        }
        State::Unwinding(mine, _) | State::Undoing(mine, _) if mine == fence => (state, Vec::new()),
        // CM-10: repeated from before this attempt, which its lead began when everyone had acknowledged that one.
        state if state.attempt().is_some_and(|open| fence < open) => (state, Vec::new()),
        // Nothing of it is here: it never began, or it was taken back already (CM-10).
        state => (state, vec![done]),
    }
}

fn undone(state: State, fence: Fence, weights: Weights) -> (State, Vec<Command>) {
    match state {
        State::Undoing(mine, last) if mine == fence => {
            (State::Serving(last), vec![Command::Discard(fence), rolled_back(fence, weights)])
        }
        state => (state, Vec::new()),
    }
}

fn sealed(state: State, fence: Fence, weights: &mut Weights) -> (State, Vec<Command>) {
    match state {
        State::Sealing(mine) if mine == fence => {
            *weights = Weights::Whole;
            (State::Serving(Some(fence)), vec![Command::Tell(ToLead::Done(fence, Decision::Commit))])
        }
        state => (state, Vec::new()),
    }
}
