//! The two rounds of one exchange, every member's machine against a rendezvous: a pair moves when both ends posted it.
//!
//! - **EX-3, EX-4**: both ends of a pair post the same size in the same round, and nothing waits in a circle.
//! - **EX-5**: a receiver that is announced too much refuses, and the others end too; taken in place, no more than a
//!   window of a pair is under way.
//! - **EX-6**: whatever happens, every member that lives comes to an end.

use driftless_proto::{
    Exchange, ExchangeCommand, ExchangeEnd, ExchangeEvent, Intake, Limits, RootCause, Shape, TimerId,
};
use driftless_types::{
    Attempt, Epoch, Fence, Member, PlanDigest, ReceiverId, ReplicaId, Round, RunId, SenderId, Version,
};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const STAGING_MAX: u64 = 10;

/// Two senders and two receivers; what each sender has for each receiver, in bytes.
pub(crate) struct Rounds {
    pub(crate) payload: [[u64; 2]; 2],
    pub(crate) intake: Intake,
    /// How many members die, deadlines pass early, or transfers break.
    pub(crate) faults: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct At {
    members: BTreeMap<Member, Running>,
    is_aborted: bool,
    /// Windows that were handed over, per ordered pair.
    handed: BTreeMap<(Member, Member), u32>,
    faults: u8,
    breach: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    /// None once it died.
    machine: Option<Exchange>,
    timers: BTreeSet<TimerId>,
    /// Every round it posted: bytes to and from each peer.
    posted: BTreeMap<Round, [BTreeMap<Member, u64>; 2]>,
    /// The round that it waits for.
    waits: Option<Round>,
    /// The window that it waits for, of each pair.
    windows: BTreeMap<Member, u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Happens {
    /// A member hears of the attempt.
    Opens(Member),
    /// All that it waits for has moved.
    Moves(Member),
    /// The window that it waits for has moved to or from a peer.
    Window(Member, Member),
    /// It is told that the exchange was aborted.
    Breaks(Member),
    Deadline(Member, TimerId),
    Dies(Member),
    Fails(Member),
    Early(Member, TimerId),
}

const fn fence() -> Fence {
    Fence {
        run: RunId([0; 16]),
        epoch: Epoch { counter: 1, incarnation: 1 },
        attempt: Attempt(1),
        version: Version(1),
        plan: PlanDigest([0; 32]),
    }
}

const fn limits() -> Limits {
    Limits {
        staging_max_bytes: STAGING_MAX,
        round_deadline: Duration::ZERO,
        bandwidth_bytes_per_s: 1,
        window_bytes: 1,
    }
}

fn sender(id: u32) -> Member {
    Member::Sender(SenderId(id))
}

fn receiver(rank: u32) -> Member {
    Member::Receiver(ReceiverId { replica: ReplicaId(0), rank })
}

fn everyone() -> [Member; 4] {
    [sender(0), sender(1), receiver(0), receiver(1)]
}

impl Rounds {
    fn bytes(&self, from: Member, to: Member) -> u64 {
        match (from, to) {
            (Member::Sender(from), Member::Receiver(to)) => self.payload[from.0 as usize][to.rank as usize],
            _ => 0,
        }
    }

    /// In place, a window holds a byte.
    fn windows(&self, one: Member, other: Member) -> u32 {
        u32::try_from(self.bytes(one, other) + self.bytes(other, one)).expect("a few")
    }

    fn open(&self, at: &mut At, member: Member) {
        let to = [receiver(0), receiver(1)].into_iter().filter(|_| matches!(member, Member::Sender(_)));
        let from = [sender(0), sender(1)].into_iter().filter(|_| matches!(member, Member::Receiver(_)));
        let shape = Shape {
            sends: to.clone().map(|peer| (peer, 1)).collect(),
            receives: from.clone().map(|peer| (peer, 1)).collect(),
            windows: to.clone().chain(from).map(|peer| (peer, self.windows(member, peer))).collect(),
        };
        let outgoing = to.map(|peer| (peer, self.bytes(member, peer))).collect();
        let (machine, commands) = match self.intake {
            Intake::Staged => Exchange::open(fence(), shape, outgoing, limits()),
            Intake::InPlace => Exchange::open_in_place(fence(), shape, limits()),
        };
        let running = Running {
            machine: Some(machine),
            timers: BTreeSet::new(),
            posted: BTreeMap::new(),
            waits: None,
            windows: BTreeMap::new(),
        };
        at.members.insert(member, running);
        at.obey(member, commands);
    }

    fn moved(&self, at: &At, member: Member, round: Round) -> ExchangeEvent {
        let [_, receives] = &at.members[&member].posted[&round];
        match round {
            Round::Payload => ExchangeEvent::PayloadMoved,
            Round::Records => ExchangeEvent::RecordsMoved {
                announced: receives.keys().map(|&peer| (peer, self.bytes(peer, member))).collect(),
            },
        }
    }
}

impl At {
    fn feed(&mut self, member: Member, event: ExchangeEvent) {
        let Some(running) = self.members.get_mut(&member) else { return };
        let Some(machine) = running.machine.take() else { return };
        let Ok((machine, commands)) = machine.handle(event) else {
            self.breach = Some("a machine calls what its backend did a violation");
            return;
        };
        if !matches!(machine, Exchange::Streaming(_)) {
            running.windows.clear();
        }
        running.waits = None;
        running.machine = Some(machine);
        self.obey(member, commands);
    }

    fn obey(&mut self, member: Member, commands: Vec<ExchangeCommand>) {
        let running = self.members.get_mut(&member).expect("it has opened");
        for command in commands {
            match command {
                ExchangeCommand::Post { round, sends, receives } => {
                    running.waits = Some(round);
                    running.posted.insert(round, [sends, receives]);
                }
                ExchangeCommand::Window { peer, index } => {
                    running.windows.insert(peer, index);
                }
                ExchangeCommand::ArmTimer { id, .. } => {
                    running.timers.insert(id);
                }
                ExchangeCommand::AbortTransfers => self.is_aborted = true,
            }
        }
        if running.machine.as_ref().is_some_and(|machine| machine.end().is_some()) {
            running.timers.clear();
        }
    }

    /// Whether both ends of all that the member waits for were posted.
    fn has_moved(&self, member: Member, round: Round) -> bool {
        let [sends, receives] = &self.members[&member].posted[&round];
        let peers = sends.keys().chain(receives.keys());
        let has_posted = |peer| self.members.get(peer).is_some_and(|other| other.posted.contains_key(&round));
        peers.into_iter().all(has_posted)
    }

    /// EX-4: the two ends of every pair that both posted.
    fn agrees(&self) -> bool {
        let both = |round: Round, from: Member, to: Member| {
            let posted = |member| self.members.get(&member).and_then(|running| running.posted.get(&round));
            let (Some([sends, _]), Some([_, receives])) = (posted(from), posted(to)) else { return true };
            sends.get(&to) == receives.get(&from)
        };
        let pairs = everyone().into_iter().flat_map(|from| everyone().map(|to| (from, to)));
        pairs
            .into_iter()
            .all(|(from, to)| [Round::Records, Round::Payload].iter().all(|&round| both(round, from, to)))
    }

    /// A sender waits until its receiver has asked for the window; a receiver until it was handed over.
    fn has_window(&self, member: Member, peer: Member, index: u32) -> bool {
        match member {
            Member::Sender(_) => {
                self.members.get(&peer).is_some_and(|other| other.windows.get(&member) == Some(&index))
            }
            Member::Receiver(_) => self.handed.get(&(peer, member)).is_some_and(|&handed| handed > index),
        }
    }

    fn end(&self, member: Member) -> Option<&ExchangeEnd> {
        self.members.get(&member)?.machine.as_ref()?.end()
    }

    fn has_died(&self, member: Member) -> bool {
        self.members.get(&member).is_some_and(|running| running.machine.is_none())
    }

    fn due(&self, out: &mut Vec<Happens>) {
        for member in everyone() {
            let Some(running) = self.members.get(&member) else {
                out.push(Happens::Opens(member));
                continue;
            };
            if running.machine.is_none() {
                continue;
            }
            for (&peer, &index) in &running.windows {
                if self.is_aborted {
                    out.push(Happens::Breaks(member));
                } else if self.has_window(member, peer, index) {
                    out.push(Happens::Window(member, peer));
                }
            }
            let Some(round) = running.waits else { continue };
            if self.is_aborted {
                out.push(Happens::Breaks(member));
            } else if self.has_moved(member, round) {
                out.push(Happens::Moves(member));
            }
        }
    }

    fn timers(&self) -> impl Iterator<Item = (Member, TimerId)> {
        let live = self.members.iter().filter(|(_, running)| running.machine.is_some());
        live.flat_map(|(&member, running)| running.timers.iter().map(move |&id| (member, id)))
    }
}

impl Model for Rounds {
    type State = At;
    type Action = Happens;

    fn init_states(&self) -> Vec<At> {
        let (members, handed) = (BTreeMap::new(), BTreeMap::new());
        vec![At { members, is_aborted: false, handed, faults: self.faults, breach: None }]
    }

    fn actions(&self, at: &At, out: &mut Vec<Happens>) {
        at.due(out);
        if out.is_empty() {
            out.extend(at.timers().map(|(member, id)| Happens::Deadline(member, id)));
        }
        if at.faults > 0 {
            let waits = |running: &Running| {
                running.machine.is_some() && (running.waits.is_some() || !running.windows.is_empty())
            };
            for (&member, _) in at.members.iter().filter(|(_, running)| waits(running)) {
                out.extend([Happens::Dies(member), Happens::Fails(member)]);
            }
            out.extend(at.timers().map(|(member, id)| Happens::Early(member, id)));
        }
    }

    fn next_state(&self, at: &At, action: Happens) -> Option<At> {
        let mut at = at.clone();
        match action {
            Happens::Opens(member) => self.open(&mut at, member),
            Happens::Moves(member) => {
                let round = at.members[&member].waits?;
                let event = self.moved(&at, member, round);
                at.feed(member, event);
            }
            Happens::Window(member, peer) => {
                if matches!(member, Member::Sender(_)) {
                    *at.handed.entry((member, peer)).or_default() += 1;
                }
                at.members.get_mut(&member)?.windows.remove(&peer);
                at.feed(member, ExchangeEvent::WindowMoved(peer));
            }
            Happens::Breaks(member) => at.feed(member, ExchangeEvent::Failed(RootCause::Aborted)),
            Happens::Deadline(member, id) => at.feed(member, ExchangeEvent::TimerFired(id)),
            Happens::Early(member, id) => {
                at.faults -= 1;
                at.feed(member, ExchangeEvent::TimerFired(id));
            }
            Happens::Fails(member) => {
                at.faults -= 1;
                at.feed(member, ExchangeEvent::Failed(RootCause::Transport(String::new())));
            }
            Happens::Dies(member) => {
                at.faults -= 1;
                at.members.get_mut(&member)?.machine = None;
            }
        }
        Some(at)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("EX-3, EX-4", |_, at: &At| at.agrees() && at.breach.is_none()),
            Property::always("EX-5", |rounds: &Self, at: &At| {
                let announced =
                    |to| [sender(0), sender(1)].map(|from| rounds.bytes(from, to)).iter().sum::<u64>();
                let took = |&to: &Member| {
                    rounds.intake == Intake::Staged && at.end(to) == Some(&ExchangeEnd::Complete)
                };
                [receiver(0), receiver(1)]
                    .iter()
                    .filter(|to| took(to))
                    .all(|&to| announced(to) <= STAGING_MAX)
            }),
            // A timer that fires in vain stays in the state: only what ended or died is quiet.
            Property::always("EX-6", |rounds: &Self, at: &At| {
                let mut next = Vec::new();
                rounds.actions(at, &mut next);
                !next.is_empty()
                    || everyone().into_iter().all(|member| at.has_died(member) || at.end(member).is_some())
            }),
            Property::always("EX-5 in place", |_, at: &At| {
                at.handed.iter().all(|(&(from, to), &handed)| {
                    let asked = at.members.get(&to).and_then(|running| running.windows.get(&from));
                    asked.is_none_or(|&asked| handed <= asked + 1)
                })
            }),
            Property::sometimes("everyone completes, or refuses", |rounds: &Self, at: &At| {
                let is_small = rounds.intake == Intake::InPlace
                    || rounds.payload.iter().flatten().all(|&bytes| bytes <= STAGING_MAX);
                everyone().into_iter().all(|member| match at.end(member) {
                    Some(ExchangeEnd::Complete) => is_small,
                    Some(ExchangeEnd::Failed(_)) => !is_small,
                    None => false,
                })
            }),
        ]
    }
}
