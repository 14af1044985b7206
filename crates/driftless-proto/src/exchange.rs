//! One member's part of the two-round exchange of one attempt.
//!
//! - **EX-0 (one exchange per replica).** All senders and the receivers of one replica; attempts of two replicas
//!   share nothing but bandwidth.
//! - **EX-2 (static round 1).** The sizes of round 1 follow from the plan alone.
//! - **EX-3 (one batch per round).** A member posts all sends and receives of a round before it waits for any, and
//!   enters round 2 when its *own* round 1 is done: there is no barrier.
//! - **EX-4 (shared knowledge).** Round 2 of a pair exists if and only if its records announce bytes.
//! - **EX-5 (memory).** After round 1 a receiver takes exactly the announced bytes, or refuses. Where everything is
//!   taken in place it holds no more than a window of each pair: the next one moves when the last was written.
//! - **EX-6 (every wait ends)** by data, deadline or abort.

use crate::{ProtocolViolation, RootCause, TimerId, TimerKind};
use driftless_types::{Fence, Member, Round};
use std::collections::BTreeMap;
use std::time::Duration;

/// Who exchanges records with whom, and how large they are: known from the plan before anything moves (EX-2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Bytes of records to send, per peer.
    pub sends: BTreeMap<Member, u64>,
    /// Bytes of records to receive, per peer.
    pub receives: BTreeMap<Member, u64>,
    /// Windows to or from each peer when everything is taken in place.
    pub windows: BTreeMap<Member, u32>,
}

/// Bounds of one exchange.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The most payload bytes that this member stages.
    pub staging_max_bytes: u64,
    /// The deadline of round 1, and the least deadline of round 2.
    pub round_deadline: Duration,
    /// The rate that the deadline of round 2 presumes, in bytes per second; the deadline is four times as long.
    pub bandwidth_bytes_per_s: u64,
    /// What a pair moves at once when everything is taken in place, in bytes of weights.
    pub window_bytes: u64,
}

impl Limits {
    fn payload_deadline(&self, bytes: u64) -> Duration {
        let expected_ms = bytes.saturating_mul(4000) / self.bandwidth_bytes_per_s.max(1);
        self.round_deadline.max(Duration::from_millis(expected_ms))
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// This member's round 1 has moved; the payload bytes that each peer announced to it.
    RecordsMoved {
        /// Bytes per peer, zero where nothing changed.
        announced: BTreeMap<Member, u64>,
    },
    /// This member's round 2 has moved.
    PayloadMoved,
    /// A window has moved, and is written where it was received.
    WindowMoved(Member),
    /// The backend failed.
    Failed(RootCause),
    /// A timer fired.
    TimerFired(TimerId),
}

/// What the actor must do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Post all sends and receives of a round as one batch.
    Post {
        /// The round.
        round: Round,
        /// Bytes to send, per peer.
        sends: BTreeMap<Member, u64>,
        /// Bytes to receive, per peer.
        receives: BTreeMap<Member, u64>,
    },
    /// Move a window to or from a peer; the receiver writes it into its live weights.
    Window {
        /// The other end.
        peer: Member,
        /// Which of the pair's windows.
        index: u32,
    },
    /// Tell the machine when this much time has passed.
    ArmTimer {
        /// The timer's name.
        id: TimerId,
        /// The time to wait.
        after: Duration,
    },
    /// Stop the transfers of this exchange, here and at its other members.
    AbortTransfers,
}

/// How an exchange ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Both rounds moved.
    Complete,
    /// It did not come to its end.
    Failed(RootCause),
}

/// The machine: one struct per state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Round 1 is moving.
    Counting(Counting),
    /// Round 2 is moving.
    Moving(Moving),
    /// Round 2 is moving window by window.
    Streaming(Streaming),
    /// Over.
    Ended(End),
}

/// Round 1 is moving.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Counting {
    fence: Fence,
    limits: Limits,
    senders: Vec<Member>,
    next: RoundTwo,
}

/// What follows round 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RoundTwo {
    /// What the records announce; what this member will send, in bytes per peer.
    Payload(BTreeMap<Member, u64>),
    /// Everything, in so many windows per peer.
    Windows(BTreeMap<Member, u32>),
}

/// Round 2 is moving.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Moving {
    fence: Fence,
}

/// Round 2 is moving window by window.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Streaming {
    fence: Fence,
    left: BTreeMap<Member, WindowsLeft>,
}

/// Where a pair stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WindowsLeft {
    moved: u32,
    of: u32,
}

impl Exchange {
    /// Opens an exchange: `outgoing` is the payload this member will send, in bytes per peer.
    #[must_use]
    pub fn open(
        fence: Fence,
        shape: Shape,
        outgoing: BTreeMap<Member, u64>,
        limits: Limits,
    ) -> (Self, Vec<Command>) {
        Self::count(fence, shape.sends, shape.receives, RoundTwo::Payload(outgoing), limits)
    }

    /// Opens an exchange in which everything moves, in the windows of the shape.
    #[must_use]
    pub fn open_in_place(fence: Fence, shape: Shape, limits: Limits) -> (Self, Vec<Command>) {
        Self::count(fence, shape.sends, shape.receives, RoundTwo::Windows(shape.windows), limits)
    }

    fn count(
        fence: Fence,
        sends: BTreeMap<Member, u64>,
        receives: BTreeMap<Member, u64>,
        next: RoundTwo,
        limits: Limits,
    ) -> (Self, Vec<Command>) {
        let senders = receives.keys().copied().collect();
        let after = limits.round_deadline;
        let commands = vec![
            // EX-3: the whole round is one batch.
            Command::Post { round: Round::Records, sends, receives },
            // EX-6: a peer that never posts ends this wait all the same.
            Command::ArmTimer { id: TimerId::of(&fence, TimerKind::Records), after },
        ];
        (Self::Counting(Counting { fence, limits, senders, next }), commands)
    }

    /// Takes one event.
    ///
    /// # Errors
    /// [`ProtocolViolation`] if no correct backend or peer causes this event now.
    pub fn handle(self, event: Event) -> Result<(Self, Vec<Command>), ProtocolViolation> {
        match (self, event) {
            (Self::Ended(end), _) => Ok((Self::Ended(end), Vec::new())),
            (_, Event::Failed(root)) => Ok(Self::fail(root)),
            (state, Event::TimerFired(id)) => Ok(state.timer(id)),
            (Self::Counting(counting), Event::RecordsMoved { announced }) => {
                counting.records_moved(&announced)
            }
            (Self::Moving(_), Event::PayloadMoved) => Ok((Self::Ended(End::Complete), Vec::new())),
            (Self::Streaming(streaming), Event::WindowMoved(peer)) => streaming.moved(peer),
            (state, event) => Err(ProtocolViolation { state: state.name(), event: event.name() }),
        }
    }

    /// How it ended, once it has.
    #[must_use]
    pub const fn end(&self) -> Option<&End> {
        match self {
            Self::Ended(end) => Some(end),
            _ => None,
        }
    }

    fn fail(root: RootCause) -> (Self, Vec<Command>) {
        // EX-6: the others of this exchange must not wait for a member that gave up.
        (Self::Ended(End::Failed(root)), vec![Command::AbortTransfers])
    }

    fn timer(self, id: TimerId) -> (Self, Vec<Command>) {
        let (fence, kind, step) = match &self {
            Self::Counting(counting) => (counting.fence, TimerKind::Records, "round 1 (records)"),
            Self::Moving(moving) => (moving.fence, TimerKind::Payload, "round 2 (payload)"),
            Self::Streaming(streaming) => (streaming.fence, TimerKind::Payload, "round 2 (windows)"),
            Self::Ended(_) => return (self, Vec::new()),
        };
        if id != TimerId::of(&fence, kind) {
            return (self, Vec::new());
        }
        Self::fail(RootCause::Deadline { step })
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Counting(_) => "counting",
            Self::Moving(_) => "moving",
            Self::Streaming(_) => "streaming",
            Self::Ended(_) => "ended",
        }
    }
}

impl Counting {
    fn records_moved(
        self,
        announced: &BTreeMap<Member, u64>,
    ) -> Result<(Exchange, Vec<Command>), ProtocolViolation> {
        if !announced.keys().eq(self.senders.iter()) {
            return Err(ProtocolViolation {
                state: "counting",
                event: "records of other peers than the plan's",
            });
        }
        match self.next {
            RoundTwo::Payload(outgoing) => Ok(payload(self.fence, &outgoing, announced, &self.limits)),
            RoundTwo::Windows(windows) => Ok(Streaming::open(self.fence, windows, &self.limits)),
        }
    }
}

fn payload(
    fence: Fence,
    outgoing: &BTreeMap<Member, u64>,
    announced: &BTreeMap<Member, u64>,
    limits: &Limits,
) -> (Exchange, Vec<Command>) {
    let incoming = announced.values().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    let limit = limits.staging_max_bytes;
    if incoming > limit {
        return Exchange::fail(RootCause::Refused { bytes: incoming, limit }); // EX-5
    }
    // EX-4: both ends know from the same records which pairs have a second round.
    let existing = |bytes: &BTreeMap<Member, u64>| -> BTreeMap<Member, u64> {
        bytes.iter().filter(|&(_, &bytes)| bytes > 0).map(|(&peer, &bytes)| (peer, bytes)).collect()
    };
    let (sends, receives) = (existing(outgoing), existing(announced));
    if sends.is_empty() && receives.is_empty() {
        return (Exchange::Ended(End::Complete), Vec::new());
    }
    let total = sends.values().fold(incoming, |sum, &bytes| sum.saturating_add(bytes));
    let after = limits.payload_deadline(total);
    let commands = vec![
        Command::Post { round: Round::Payload, sends, receives },
        Command::ArmTimer { id: TimerId::of(&fence, TimerKind::Payload), after },
    ];
    (Exchange::Moving(Moving { fence }), commands)
}

impl Streaming {
    /// The first window of every pair: no pair waits for another.
    fn open(fence: Fence, windows: BTreeMap<Member, u32>, limits: &Limits) -> (Exchange, Vec<Command>) {
        let left: BTreeMap<Member, WindowsLeft> = windows
            .into_iter()
            .filter(|&(_, of)| of > 0)
            .map(|(peer, of)| (peer, WindowsLeft { moved: 0, of }))
            .collect();
        if left.is_empty() {
            return (Exchange::Ended(End::Complete), Vec::new());
        }
        let all: u64 = left.values().map(|left| u64::from(left.of)).sum();
        let after = limits.payload_deadline(all.saturating_mul(limits.window_bytes));
        let mut commands: Vec<_> = left.keys().map(|&peer| Command::Window { peer, index: 0 }).collect();
        commands.push(Command::ArmTimer { id: TimerId::of(&fence, TimerKind::Payload), after });
        (Exchange::Streaming(Self { fence, left }), commands)
    }

    /// EX-5: the next window of a pair moves when the last one was written.
    fn moved(mut self, peer: Member) -> Result<(Exchange, Vec<Command>), ProtocolViolation> {
        let Some(left) = self.left.get_mut(&peer) else {
            return Err(ProtocolViolation { state: "streaming", event: "a window that was not asked for" });
        };
        left.moved += 1;
        if left.moved < left.of {
            let next = Command::Window { peer, index: left.moved };
            return Ok((Exchange::Streaming(self), vec![next]));
        }
        self.left.remove(&peer);
        if self.left.is_empty() {
            return Ok((Exchange::Ended(End::Complete), Vec::new()));
        }
        Ok((Exchange::Streaming(self), Vec::new()))
    }
}

impl Event {
    const fn name(&self) -> &'static str {
        match self {
            Self::RecordsMoved { .. } => "records moved",
            Self::PayloadMoved => "payload moved",
            Self::WindowMoved(_) => "window moved",
            Self::Failed(_) => "failed",
            Self::TimerFired(_) => "timer fired",
        }
    }
}
