//! A small cluster as a model: what can happen in each state, and what must hold.
//!
//! The transport is collapsed to rounds that move, timers fire when nothing else happens or early within a budget,
//! and the weights are tags: for each element the version that wrote it last.

use crate::shell::Shell;
use crate::state::{Breach, Budget, ELEMENTS, ReceiverSlot, Settled, State};
use crate::words::{Action, Actor, Link};
use driftless_proto::{Engine, TimerId, TimerKind};
use driftless_types::{ReplicaId, Round, Version};
use stateright::{Model, Property};

/// Whom a death may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Coordinator,
    Sender,
    Lead,
    Receiver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterlife {
    /// Who died comes back.
    Restarts,
    /// Who died does not come back.
    None,
}

/// A wrapper around the machines that breaks a rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// Words carry no epoch, attempt or incarnation: each means the attempt that its hearer is in.
    NoTags,
    /// A receiver writes as soon as its own bytes are checked.
    ApplyOnArrival,
    /// A receiver that has applied rolls back by itself when it hears nothing.
    AppliedTimesOutAlone,
    /// The next patch is made before it is known how the last version ended, as if it had been committed.
    PatchBeforeOutcome,
    /// An applied attempt is forgotten when its actor dies, and its undo log with it.
    ForgetBinding,
    /// That the weights are of no version is forgotten when their actor dies.
    ForgetTorn,
}

/// What the receivers hold at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Version 0.
    Current,
    /// Nothing: they join out of service, and take everything in place.
    Blank,
}

/// Whether a sender may lose the positions of its patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Lasts,
    Forgets,
}

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) senders: u32,
    pub(crate) replicas: u32,
    /// Of each replica.
    pub(crate) receivers: u32,
    pub(crate) versions: u64,
    pub(crate) max_attempts: u32,
    pub(crate) budget: Budget,
    pub(crate) mortal: Vec<Role>,
    pub(crate) afterlife: Afterlife,
    pub(crate) defect: Defect,
    pub(crate) start: Start,
    pub(crate) memory: Memory,
}

impl Cluster {
    pub(crate) const fn of(senders: u32, replicas: u32, receivers: u32) -> Self {
        Self {
            senders,
            replicas,
            receivers,
            versions: 2,
            max_attempts: 8,
            budget: Budget { deaths: 0, faults: 0, early: 0 },
            mortal: Vec::new(),
            afterlife: Afterlife::Restarts,
            defect: Defect::None,
            start: Start::Current,
            memory: Memory::Lasts,
        }
    }

    pub(crate) fn with_death_of(mut self, roles: &[Role]) -> Self {
        self.budget.deaths = 1;
        self.mortal = roles.to_vec();
        self
    }

    pub(crate) const fn with_faults(mut self, faults: u8, early: u8) -> Self {
        self.budget.faults = faults;
        self.budget.early = early;
        self
    }

    pub(crate) const fn with_defect(mut self, defect: Defect) -> Self {
        self.defect = defect;
        self
    }

    /// Which of a sender's elements a version changes: the second sender has nothing to send for the first.
    pub(crate) fn changes(sender: usize, version: u64) -> u8 {
        match (sender, version) {
            (0, version) => 1 << ((version + 1) % ELEMENTS as u64),
            (_, 1) => 0,
            _ => 1,
        }
    }

    /// The bits of a sender's elements at a version.
    pub(crate) fn truth(sender: usize, version: Version) -> [u64; ELEMENTS] {
        std::array::from_fn(|element| {
            let changed = |version: &u64| Self::changes(sender, *version) >> element & 1 == 1;
            (1..=version.0).rev().find(changed).unwrap_or(0)
        })
    }

    fn is_mortal(&self, actor: Actor) -> bool {
        let role = match actor {
            Actor::Coordinator => Role::Coordinator,
            Actor::Sender(_) => Role::Sender,
            Actor::Receiver(id) if id.is_lead() => Role::Lead,
            Actor::Receiver(_) => Role::Receiver,
        };
        self.mortal.contains(&role)
    }

    /// What happens by itself, sooner or later.
    fn due(&self, state: &State, out: &mut Vec<Action>) {
        out.extend(state.links.keys().map(|&link| Action::Deliver(link)));
        for (index, slot) in state.receivers.iter().enumerate() {
            let Some(live) = &slot.live else { continue };
            if let Some((fence, _)) = live.posted {
                if state.aborted.contains(&fence) {
                    out.push(Action::Broken(index));
                } else if !live.windows.is_empty() && self.is_served(state, index) {
                    out.extend(live.windows.keys().map(|&sender| Action::WindowMoved(index, sender)));
                } else if self.is_served(state, index) {
                    out.push(Action::Moved(index));
                }
            }
            if live.scattering.is_some() {
                out.push(Action::Scattered(index));
            }
        }
        for (index, slot) in state.replicas.iter().enumerate() {
            if !slot.calls.is_empty() {
                out.push(Action::HookReturned(index));
            }
        }
        for (index, slot) in state.senders.iter().enumerate() {
            if slot.book.patch().version < state.trainer.newest {
                out.push(Action::StepDone(index));
            }
        }
        let back_offs = state.coordinator.timers.iter().filter(|id| is_back_off(id));
        out.extend(back_offs.map(|&id| Action::BackOff(id)));
        let dead = state.actors().into_iter().filter(|&actor| state.address(actor).is_none());
        let comes_up = |actor: &Actor| self.afterlife == Afterlife::Restarts || state.life(*actor) == 0;
        out.extend(dead.filter(comes_up).map(Action::Restart));
    }

    /// Whether every sender has posted what this receiver waits for.
    fn is_served(&self, state: &State, receiver: usize) -> bool {
        let slot = &state.receivers[receiver];
        let Some((fence, _)) = slot.live.as_ref().and_then(|live| live.posted) else { return false };
        let attempt = |sender: &crate::part::Part<crate::state::SenderSlot>| {
            let open = sender.live.as_ref()?.open.get(&slot.id.replica)?;
            (open.0 == fence || self.defect == Defect::NoTags).then_some(())
        };
        state.senders.iter().all(|sender| attempt(sender).is_some())
    }

    /// Deadlines, oldest names first.
    fn deadlines(state: &State) -> Vec<(Actor, TimerId)> {
        let coordinator = state.coordinator.timers.iter().filter(|id| !is_back_off(id));
        let mut timers: Vec<_> = coordinator.map(|&id| (Actor::Coordinator, id)).collect();
        for slot in &state.receivers {
            let live = slot.live.iter().flat_map(|live| &live.timers);
            timers.extend(live.map(|&id| (Actor::Receiver(slot.id), id)));
        }
        timers
    }

    fn may_step_late(&self, state: &State) -> bool {
        let newest = state.trainer.newest;
        let has_stepped = state.senders.iter().all(|slot| slot.book.patch().version == newest);
        has_stepped && newest.0 < self.versions && !state.has_ended(newest)
    }

    /// What may go wrong, within the budget.
    fn faults(&self, state: &State, out: &mut Vec<Action>) {
        if state.budget.deaths > 0 {
            let mortal = |actor: &Actor| self.is_mortal(*actor) && state.address(*actor).is_some();
            out.extend(state.actors().into_iter().filter(mortal).map(Action::Dies));
            let handled = state.links.keys().filter(|link| self.is_mortal(link.to.actor));
            out.extend(handled.flat_map(|&link: &Link| [1, 2].map(|done| Action::DiesHandling(link, done))));
        }
        if state.budget.early > 0 {
            out.extend(Self::deadlines(state).into_iter().map(|(actor, id)| Action::Early(actor, id)));
            if self.may_step_late(state) {
                out.push(Action::EarlyVersionDeadline);
            }
            if self.defect == Defect::AppliedTimesOutAlone {
                let applied =
                    state.receivers.iter().enumerate().filter(|(_, slot)| slot.binding.applied.is_some());
                out.extend(applied.map(|(index, _)| Action::Impatient(index)));
            }
        }
        if state.budget.faults == 0 {
            return;
        }
        for (index, slot) in state.receivers.iter().enumerate() {
            let Some(live) = &slot.live else { continue };
            if live.posted.is_some_and(|(_, round)| round == Round::Records) || !live.windows.is_empty() {
                out.push(Action::TransferFails(index));
            }
            if live.scattering.is_some() {
                out.push(Action::ScatterFails(index));
            }
        }
        let pausing = state
            .replicas
            .iter()
            .enumerate()
            .filter(|(_, slot)| matches!(slot.calls.front(), Some((_, Some(_)))));
        out.extend(pausing.map(|(index, _)| Action::PauseFails(index)));
        for (index, slot) in state.senders.iter().enumerate() {
            let open = slot.live.iter().flat_map(|live| live.open.keys());
            out.extend(open.map(|&replica| Action::SenderFails(index, replica)));
            let has_patch = slot.book.patch().since < slot.book.patch().version;
            if self.memory == Memory::Forgets && slot.live.is_some() && has_patch {
                out.push(Action::Forgets(index));
            }
        }
    }

    /// What happens next if nothing goes wrong.
    pub(crate) fn fair(&self, state: &State, out: &mut Vec<Action>) {
        self.due(state, out);
        if !out.is_empty() {
            return;
        }
        out.extend(Self::deadlines(state).into_iter().map(|(actor, id)| Action::Deadline(actor, id)));
        if self.may_step_late(state) {
            out.push(Action::VersionDeadline);
        }
    }

    /// Whether nothing changes any more unless something goes wrong.
    fn is_at_rest(&self, state: &State) -> bool {
        let mut due = Vec::new();
        self.due(state, &mut due);
        if !due.is_empty() {
            return false;
        }
        let mut late = Vec::new();
        self.fair(state, &mut late);
        late.into_iter().all(|action| self.next_state(state, action).is_none_or(|next| next == *state))
    }

    /// CM-11, CM-12: everybody is at the last version or was left behind with a cause, and no engine is paused.
    pub(crate) fn is_well(&self, state: &State) -> bool {
        let last = Version(self.versions);
        (0u32..).zip(&state.replicas).all(|(id, slot)| {
            let index = id as usize;
            if state.members(index).any(|member| member.live.is_none()) {
                return true; // crippled for good: the others must be well
            }
            let at = |version: Version| state.members(index).all(|member| member.binding.version == version);
            let is_settled = match state.outcome(last, id) {
                Some(Settled::Committed) => at(last),
                Some(Settled::Lagging(version)) => at(version),
                None => false,
            };
            is_settled && slot.engine == Engine::Serving && slot.calls.is_empty()
        })
    }
}

const fn is_back_off(id: &TimerId) -> bool {
    matches!(id.kind, TimerKind::BackOff(_))
}

fn holds(state: &State, id: &str) -> bool {
    state.breach.is_none_or(|Breach { id: broken, .. }| broken != id)
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = Shell::boot(self);
        loop {
            let mut due = Vec::new();
            self.due(&state, &mut due);
            let Some(action) = due.into_iter().next() else { break };
            state = self.next_state(&state, action).expect("booting takes no step back");
        }
        state.trainer.change(|trainer| trainer.newest = Version(1));
        vec![state]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        if state.breach.is_some() {
            return;
        }
        self.fair(state, out);
        self.faults(state, out);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Shell::new(self, state.clone()).act(action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("CM-1", |_, state| holds(state, "CM-1")),
            Property::always("CM-2", |_, state| holds(state, "CM-2")),
            Property::always("CM-3", |_, state| holds(state, "CM-3")),
            Property::always("CM-4", |_, state| holds(state, "CM-4")),
            Property::always("CM-5", |_, state| holds(state, "CM-5")),
            Property::always("CM-6", |_, state| holds(state, "CM-6")),
            Property::always("CM-10", |_, state| holds(state, "CM-10")),
            Property::always("CM-14", |_, state| holds(state, "CM-14")),
            Property::always("no violation", |_, state| holds(state, "violation")),
            Property::always("CM-11, CM-12 at rest", |cluster: &Self, state: &State| {
                state.breach.is_some() || cluster.is_well(state) || !cluster.is_at_rest(state)
            }),
            Property::always("CM-12 after few attempts", |cluster: &Self, state: &State| {
                let Budget { deaths, faults, early } = cluster.budget;
                let wrong = u64::from(deaths + faults + early);
                let most = (cluster.versions + 3 * wrong) * u64::from(cluster.replicas);
                let posted = |slot: &ReceiverSlot| slot.live.as_ref()?.posted;
                let mut attempts = state.receivers.iter().filter_map(|slot| posted(slot));
                attempts.all(|(fence, _)| u64::from(fence.attempt.0) <= most)
            }),
            Property::sometimes("the last version is served by all", |cluster: &Self, state: &State| {
                state.receivers.iter().all(|slot| slot.binding.version.0 == cluster.versions)
            }),
        ];
        if self.budget != Budget::default() && self.afterlife == Afterlife::Restarts {
            properties.push(Property::sometimes("an attempt is rolled back", |_, state: &State| {
                state.replicas.iter().any(|slot| slot.history.values().any(|history| history.undone != 0))
            }));
        }
        properties
    }
}

impl State {
    pub(crate) fn last_outcomes(&self, version: Version) -> Vec<(ReplicaId, Settled)> {
        let of_version = self.trainer.outcomes.iter().filter(|((of, _), _)| *of == version);
        of_version.map(|((_, replica), &settled)| (*replica, settled)).collect()
    }
}
