//! The shell of a sender: one exchange per replica, served from the patch in its binding.

use super::actors::SenderActor;
use super::binding::WINDOWS;
use super::check::Breach;
use super::message::{Actor, Address, Happening, Message, Moved, Window};
use super::options::{FaultKind, Sabotage};
use super::transport::{Batch, Notice, Part};
use super::world::{STALL_MS, World};
use driftless_proto::{
    CoordinatorEvent, Exchange, ExchangeCommand, ExchangeEvent, Intake, Limits, Needs, PatchRange,
    ReplicaOutcome, RootCause, Shape,
};
use driftless_types::{Fence, Member, ReceiverId, ReplicaId, Round, SenderId, Version};
use std::collections::BTreeMap;
use std::time::Duration;

const RECORD_BYTES: u64 = 32;
const STAGING_MAX_BYTES: u64 = 100_000;
const LARGEST_PAYLOAD_BYTES: u64 = 5_000;

pub(super) const fn limits() -> Limits {
    Limits {
        staging_max_bytes: STAGING_MAX_BYTES,
        round_deadline: Duration::from_millis(1_500),
        bandwidth_bytes_per_s: 100_000,
        window_bytes: 1_000,
    }
}

pub(super) fn receiver_shape(world: &World, receiver: ReceiverId) -> Shape {
    let edges = world.edges.iter().filter(|(_, to)| *to == receiver);
    let senders: Vec<_> = edges.map(|(from, _)| Member::Sender(*from)).collect();
    let receives = senders.iter().map(|&from| (from, RECORD_BYTES)).collect();
    let windows = senders.iter().map(|&from| (from, WINDOWS)).collect();
    Shape { sends: BTreeMap::new(), receives, windows }
}

impl World {
    pub(super) fn restart_sender(&mut self, id: SenderId) {
        let slot = self.senders.entry(id).or_default();
        slot.life += 1;
        slot.live = Some(SenderActor::default());
        self.announce_sender(id);
    }

    pub(super) fn announce_sender(&mut self, id: SenderId) {
        let Some(me) = self.address(Actor::Sender(id)) else { return };
        let patch = self
            .senders
            .get(&id)
            .and_then(|slot| Some(PatchRange { since: slot.since, version: slot.patch? }));
        let word = Message::ToCoordinator(CoordinatorEvent::SenderReady(id, patch));
        self.say(me, Actor::Coordinator, word);
    }

    /// The optimizer has stepped: the binding holds the new patch whether or not the actor lives.
    pub(super) fn step_done(&mut self, id: SenderId, version: Version) -> Result<(), Breach> {
        let since = if self.fault(FaultKind::PatchLost) { version } else { Version(0) };
        let slot = self.senders.entry(id).or_default();
        slot.patch = Some(version);
        slot.since = since;
        slot.outcomes.clear();
        let open: Vec<_> =
            slot.live.iter().flat_map(|actor| actor.exchanges.values().map(|(fence, _)| *fence)).collect();
        for fence in open {
            self.sender_exchange(id, fence, ExchangeEvent::Failed(RootCause::WeightsMoved))?;
        }
        self.announce_sender(id);
        Ok(())
    }

    pub(super) fn sender(&mut self, id: SenderId, message: Message) -> Result<(), Breach> {
        match message {
            Message::Begin(fence, replica, needs) => self.sender_begin(id, fence, replica, &needs),
            Message::Abort(fence, _) => {
                self.sender_exchange(id, fence, ExchangeEvent::Failed(RootCause::Aborted))
            }
            Message::Exchange(fence, event) => self.sender_exchange(id, fence, event),
            Message::Settle(replica, version, outcome) => self.settle(id, replica, version, outcome),
            Message::NewCoordinator(epoch) => {
                if let Some(actor) = self.senders.get_mut(&id).and_then(|slot| slot.live.as_mut()) {
                    actor.promised = actor.promised.max(epoch);
                }
                self.announce_sender(id);
                Ok(())
            }
            message => Err(Breach::new("simulation", format!("trainer/{id} cannot hear {message:?}"))),
        }
    }

    fn settle(
        &mut self,
        id: SenderId,
        replica: ReplicaId,
        version: Version,
        outcome: ReplicaOutcome,
    ) -> Result<(), Breach> {
        let slot = self.senders.entry(id).or_default();
        if slot.patch != Some(version) {
            return Ok(());
        }
        let before = slot.outcomes.insert(replica, outcome.clone());
        if before == Some(ReplicaOutcome::Committed) && outcome != ReplicaOutcome::Committed {
            if self.options.faults.contains(&FaultKind::RepeatWord) {
                // What was committed stays so: this word is from before, and comes again.
                slot.outcomes.insert(replica, ReplicaOutcome::Committed);
                return Ok(());
            }
            let found = format!("version {version} ended twice for replica {replica}: now {outcome:?}");
            return Err(Breach::new("CM-3", found));
        }
        self.note_outcomes();
        Ok(())
    }

    fn sender_begin(
        &mut self,
        id: SenderId,
        fence: Fence,
        replica: ReplicaId,
        needs: &Needs,
    ) -> Result<(), Breach> {
        let Some(slot) = self.senders.get_mut(&id) else { return Ok(()) };
        let Some(actor) = &mut slot.live else { return Ok(()) };
        if fence.epoch < actor.promised {
            return Ok(()); // CM-5
        }
        actor.promised = fence.epoch;
        if actor.exchanges.get(&replica).is_some_and(|(open, _)| fence <= *open) {
            return Ok(()); // CM-10: it was begun here before
        }
        let older = actor.exchanges.remove(&replica);
        let held = slot.patch.filter(|&held| held == fence.version);
        if let Some((older, _)) = older {
            self.abort_transfers(older);
        }
        let Some(version) = held else {
            self.abort_transfers(fence); // the values of that version are gone
            return Ok(());
        };
        let outgoing = self.offer(id, fence, replica, version, needs);
        let sends = outgoing.keys().map(|&peer| (peer, RECORD_BYTES)).collect();
        let windows = outgoing.keys().map(|&peer| (peer, WINDOWS)).collect();
        let shape = Shape { sends, receives: BTreeMap::new(), windows };
        let (exchange, commands) = match needs.intake {
            Intake::Staged => Exchange::open(fence, shape, outgoing, limits()),
            Intake::InPlace => Exchange::open_in_place(fence, shape, limits()),
        };
        if let Some(actor) = self.senders.get_mut(&id).and_then(|slot| slot.live.as_mut()) {
            actor.exchanges.insert(replica, (fence, exchange));
        }
        self.sender_commands(id, fence, commands)
    }

    /// Payload bytes for each receiver of a replica; often none at all.
    fn offer(
        &mut self,
        id: SenderId,
        fence: Fence,
        replica: ReplicaId,
        version: Version,
        needs: &Needs,
    ) -> BTreeMap<Member, u64> {
        let mine = self.edges.iter().filter(|(from, to)| *from == id && to.replica == replica);
        let receivers: Vec<_> = mine.map(|(_, to)| *to).collect();
        let is_stale = self.options.sabotage == Sabotage::SendOldBits && id == SenderId(0);
        let version = if is_stale { needs.base } else { version };
        let mut outgoing = BTreeMap::new();
        for receiver in receivers {
            let bytes = match self.rng.between(0, 3) {
                _ if self.fault(FaultKind::Oversized) => STAGING_MAX_BYTES + 1,
                0 | 1 => 0,
                _ => self.rng.between(1, LARGEST_PAYLOAD_BYTES),
            };
            let mut repair = needs.repair.get(&receiver).cloned().unwrap_or_default();
            if self.options.sabotage == Sabotage::ForgetRepair {
                repair.clear();
            }
            let skips = self.options.sabotage == Sabotage::AssumeNewerBase;
            let base = if skips { version } else { needs.base };
            let part = Part { version, base, repair, bytes };
            self.transport.offer(fence, id, receiver, part);
            outgoing.insert(Member::Receiver(receiver), bytes);
        }
        outgoing
    }

    fn sender_exchange(&mut self, id: SenderId, fence: Fence, event: ExchangeEvent) -> Result<(), Breach> {
        let Some(actor) = self.senders.get_mut(&id).and_then(|slot| slot.live.as_mut()) else {
            return Ok(());
        };
        let Some((_, exchange)) = actor.exchanges.values_mut().find(|(mine, _)| *mine == fence) else {
            return Ok(()); // an exchange that this sender has left
        };
        let (next, commands) = exchange
            .clone()
            .handle(event)
            .map_err(|violation| Breach::new("EX", format!("trainer/{id}: {violation}")))?;
        *exchange = next;
        self.sender_commands(id, fence, commands)
    }

    fn sender_commands(
        &mut self,
        id: SenderId,
        fence: Fence,
        commands: Vec<ExchangeCommand>,
    ) -> Result<(), Breach> {
        let Some(me) = self.address(Actor::Sender(id)) else { return Ok(()) };
        let cut = self.cut(FaultKind::KillSender, commands.len());
        let all = commands.len();
        for (done, command) in commands.into_iter().enumerate() {
            if cut.is_here(done) {
                self.kill(me.actor);
                return Ok(());
            }
            self.exchange_command(me, Member::Sender(id), fence, command)?;
        }
        if cut.is_here(all) {
            self.kill(me.actor);
        }
        Ok(())
    }

    /// Executes a command of an exchange, at either end.
    pub(super) fn exchange_command(
        &mut self,
        me: Address,
        member: Member,
        fence: Fence,
        command: ExchangeCommand,
    ) -> Result<(), Breach> {
        match command {
            ExchangeCommand::Post { round, mut sends, receives } => {
                if round == Round::Payload && self.options.sabotage == Sabotage::PostAnotherSize {
                    sends.values_mut().for_each(|bytes| *bytes += 1);
                }
                let batch = Batch { at: me, sends, receives };
                let (started, notices) = self.transport.post(fence, member, round, batch)?;
                for transfer in started {
                    let stalls = self.fault(FaultKind::TransferStalls);
                    let after_ms = if stalls { STALL_MS } else { self.rng.between(1, 60) };
                    let moved =
                        if self.fault(FaultKind::TransferFails) { Moved::Broken } else { Moved::Whole };
                    self.after(after_ms, Happening::Transferred(transfer, moved));
                }
                self.notify(notices);
            }
            ExchangeCommand::Window { peer, index } => self.window(me, member, fence, peer, index),
            ExchangeCommand::ArmTimer { id, after } => {
                let message = exchange_message(me, fence, ExchangeEvent::TimerFired(id));
                self.arm(me, after, message);
            }
            ExchangeCommand::AbortTransfers => self.abort_transfers(fence),
        }
        Ok(())
    }

    fn window(&mut self, me: Address, member: Member, fence: Fence, peer: Member, index: u32) {
        let (Member::Sender(from), Member::Receiver(to)) = (member.min(peer), member.max(peer)) else {
            return;
        };
        let (met, late) = self.transport.window(me, member, Window { fence, from, to, index });
        self.notify(late);
        let Some(window) = met else { return };
        let stalls = self.fault(FaultKind::TransferStalls);
        let after_ms = if stalls { STALL_MS } else { self.rng.between(1, 40) };
        let moved = if self.fault(FaultKind::TransferFails) { Moved::Broken } else { Moved::Whole };
        self.after(after_ms, Happening::WindowMoved(window, moved));
    }

    pub(super) fn window_moved(&mut self, window: Window, moved: Moved) {
        let Some((at, notices)) = self.transport.window_moved(window, moved) else { return };
        let version =
            self.transport.parts(&window.fence, window.to).get(&window.from).map(|part| part.version);
        if moved == Moved::Whole
            && self.is_current_receiver(window.to, at)
            && let Some(slot) = self.receivers.get_mut(&window.to)
        {
            slot.binding.write_window(window.from, version.unwrap_or_default(), window.index);
        }
        self.notify(notices);
    }

    pub(super) fn abort_transfers(&mut self, fence: Fence) {
        let notices = self.transport.abort(fence);
        self.notify(notices);
    }

    pub(super) fn notify(&mut self, notices: Vec<Notice>) {
        for (who, fence, event) in notices {
            let delay_ms = self.rng.between(0, 10);
            self.after(delay_ms, Happening::Deliver(who, exchange_message(who, fence, event)));
        }
    }
}

const fn exchange_message(who: Address, fence: Fence, event: ExchangeEvent) -> Message {
    match who.actor {
        Actor::Receiver(_) => {
            Message::ToParticipant(driftless_proto::ParticipantEvent::Exchange(fence, event))
        }
        Actor::Sender(_) | Actor::Coordinator => Message::Exchange(fence, event),
    }
}
