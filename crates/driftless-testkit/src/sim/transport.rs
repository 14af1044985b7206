//! A transport without bytes: batches are matched pair by pair, and the sizes of both ends are compared.

use super::check::Breach;
use super::message::{Address, Moved, Transfer, Window};
use driftless_proto::{ExchangeEvent, RootCause};
use driftless_types::{Fence, Member, ReceiverId, Round, SenderId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// What a sender's payload for one receiver carries.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The version of the bits.
    pub(super) version: Version,
    /// The oldest base for which they are complete.
    pub(super) base: Version,
    /// Tensors that are sent whole.
    pub(super) repair: BTreeSet<u32>,
    /// Payload bytes, announced by the records.
    pub(super) bytes: u64,
}

/// One round as a member posts it.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) at: Address,
    pub(super) sends: BTreeMap<Member, u64>,
    pub(super) receives: BTreeMap<Member, u64>,
}

#[derive(Debug, Default)]
pub(super) struct Transport {
    exchanges: BTreeMap<Fence, Running>,
}

#[derive(Debug, Default)]
struct Running {
    fate: Fate,
    posted: BTreeMap<(Member, Round), Posted>,
    parts: BTreeMap<(SenderId, ReceiverId), Part>,
    windows: BTreeMap<(SenderId, ReceiverId), Ends>,
}

/// The window that each end of a pair waits for.
#[derive(Debug, Default)]
struct Ends {
    sender: Option<(Address, u32)>,
    receiver: Option<(Address, u32)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    #[default]
    Live,
    Aborted,
}

#[derive(Debug)]
struct Posted {
    batch: Batch,
    open: usize,
}

/// An event for one member's exchange.
pub(super) type Notice = (Address, Fence, ExchangeEvent);

impl Transport {
    /// What `sender` will send to `receiver` in this attempt.
    pub(super) fn offer(&mut self, fence: Fence, sender: SenderId, receiver: ReceiverId, part: Part) {
        self.exchanges.entry(fence).or_default().parts.insert((sender, receiver), part);
    }

    /// What arrived at a receiver, per sender.
    pub(super) fn parts(&self, fence: &Fence, receiver: ReceiverId) -> BTreeMap<SenderId, Part> {
        let Some(running) = self.exchanges.get(fence) else { return BTreeMap::new() };
        let mine = running.parts.iter().filter(|((_, to), _)| *to == receiver);
        mine.map(|((from, _), part)| (*from, part.clone())).collect()
    }

    /// Posts a batch. Returns the transfers that can start now, and what is known at once.
    ///
    /// # Errors
    /// EX-4 if the two ends of a pair post different sizes.
    pub(super) fn post(
        &mut self,
        fence: Fence,
        member: Member,
        round: Round,
        batch: Batch,
    ) -> Result<(Vec<Transfer>, Vec<Notice>), Breach> {
        let running = self.exchanges.entry(fence).or_default();
        if running.fate == Fate::Aborted {
            let late = (batch.at, fence, ExchangeEvent::Failed(RootCause::Aborted));
            return Ok((Vec::new(), vec![late]));
        }
        let mut started = Vec::new();
        for (&(peer, _), theirs) in running.posted.iter().filter(|((_, theirs), _)| *theirs == round) {
            agree(member, &batch, peer, &theirs.batch)?;
            let transfer = |from, to| Transfer { fence, round, from, to };
            if batch.sends.contains_key(&peer) {
                started.push(transfer(member, peer));
            }
            if batch.receives.contains_key(&peer) {
                started.push(transfer(peer, member));
            }
        }
        let open = batch.sends.len() + batch.receives.len();
        running.posted.insert((member, round), Posted { batch, open });
        let notices = if open == 0 { running.done(fence, member, round) } else { Vec::new() };
        Ok((started, notices))
    }

    /// A transfer came to its end, at both ends.
    pub(super) fn transferred(&mut self, transfer: Transfer, moved: Moved) -> Vec<Notice> {
        let Transfer { fence, round, from, to } = transfer;
        let Some(running) = self.exchanges.get_mut(&fence) else { return Vec::new() };
        if running.fate == Fate::Aborted {
            return Vec::new();
        }
        let mut notices = Vec::new();
        for member in [from, to] {
            let Some(posted) = running.posted.get_mut(&(member, round)) else { continue };
            if moved == Moved::Broken {
                let root = RootCause::Transport("the connection broke".into());
                notices.push((posted.batch.at, fence, ExchangeEvent::Failed(root)));
                continue;
            }
            posted.open -= 1;
            if posted.open == 0 {
                notices.extend(running.done(fence, member, round));
            }
        }
        notices
    }

    /// One end of a pair is ready for a window: it starts when both are. In an exchange that was aborted the end hears so.
    pub(super) fn window(
        &mut self,
        at: Address,
        me: Member,
        window: Window,
    ) -> (Option<Window>, Vec<Notice>) {
        let Window { fence, from, to, index } = window;
        let running = self.exchanges.entry(fence).or_default();
        if running.fate == Fate::Aborted {
            return (None, vec![(at, fence, ExchangeEvent::Failed(RootCause::Aborted))]);
        }
        let ends = running.windows.entry((from, to)).or_default();
        match me {
            Member::Sender(_) => ends.sender = Some((at, index)),
            Member::Receiver(_) => ends.receiver = Some((at, index)),
        }
        let is_met =
            ends.sender.is_some_and(|(_, sent)| ends.receiver.is_some_and(|(_, asked)| sent == asked));
        (is_met.then_some(window), Vec::new())
    }

    /// A window came to its end, at both ends: whom it reached, and what both hear.
    pub(super) fn window_moved(&mut self, window: Window, moved: Moved) -> Option<(Address, Vec<Notice>)> {
        let Window { fence, from, to, .. } = window;
        let running = self.exchanges.get_mut(&fence).filter(|running| running.fate == Fate::Live)?;
        let ends = running.windows.remove(&(from, to))?;
        let (Some((sender, _)), Some((receiver, _))) = (ends.sender, ends.receiver) else { return None };
        let event = |peer| match moved {
            Moved::Whole => ExchangeEvent::WindowMoved(peer),
            Moved::Broken => ExchangeEvent::Failed(RootCause::Transport("the connection broke".into())),
        };
        let notices = vec![
            (sender, fence, event(Member::Receiver(to))),
            (receiver, fence, event(Member::Sender(from))),
        ];
        Some((receiver, notices))
    }

    /// Stops an exchange for every member.
    pub(super) fn abort(&mut self, fence: Fence) -> Vec<Notice> {
        let running = self.exchanges.entry(fence).or_default();
        if running.fate == Fate::Aborted {
            return Vec::new();
        }
        running.fate = Fate::Aborted;
        let waiting = running.posted.values().filter(|posted| posted.open > 0);
        let windows = std::mem::take(&mut running.windows);
        let ends = windows.into_values().flat_map(|ends| [ends.sender, ends.receiver]);
        let streaming = ends.flatten().map(|(at, _)| at);
        let all = waiting.map(|posted| posted.batch.at).chain(streaming);
        all.map(|at| (at, fence, ExchangeEvent::Failed(RootCause::Aborted))).collect()
    }

    /// The exchanges in which this life still waits for something.
    pub(super) fn waiting(&self, who: Address) -> Vec<Fence> {
        let waits = |running: &Running| {
            running.fate == Fate::Live
                && (running.posted.values().any(|posted| posted.batch.at == who && posted.open > 0)
                    || running.windows.values().any(|ends| ends.waits(who)))
        };
        self.exchanges.iter().filter(|(_, running)| waits(running)).map(|(fence, _)| *fence).collect()
    }
}

impl Ends {
    fn waits(&self, who: Address) -> bool {
        [self.sender, self.receiver].iter().flatten().any(|(at, _)| *at == who)
    }
}

impl Running {
    fn done(&self, fence: Fence, member: Member, round: Round) -> Vec<Notice> {
        let Some(posted) = self.posted.get(&(member, round)) else { return Vec::new() };
        let event = match round {
            Round::Records => {
                ExchangeEvent::RecordsMoved { announced: self.announced(member, &posted.batch) }
            }
            Round::Payload => ExchangeEvent::PayloadMoved,
        };
        vec![(posted.batch.at, fence, event)]
    }

    fn announced(&self, member: Member, batch: &Batch) -> BTreeMap<Member, u64> {
        let bytes = |peer: Member| match (peer, member) {
            (Member::Sender(from), Member::Receiver(to)) => {
                self.parts.get(&(from, to)).map_or(0, |part| part.bytes)
            }
            _ => 0,
        };
        batch.receives.keys().map(|&peer| (peer, bytes(peer))).collect()
    }
}

fn agree(member: Member, mine: &Batch, peer: Member, theirs: &Batch) -> Result<(), Breach> {
    let forth = (mine.sends.get(&peer), theirs.receives.get(&member));
    let back = (theirs.sends.get(&member), mine.receives.get(&peer));
    if forth.0 == forth.1 && back.0 == back.1 {
        return Ok(());
    }
    Err(Breach::new("EX-4", format!("{member} and {peer} post {forth:?} forth and {back:?} back")))
}
