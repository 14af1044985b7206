//! One step of the trainer and of its senders.

use crate::cluster::{Cluster, Defect};
use crate::part::Part;
use crate::shell::Shell;
use crate::state::{ELEMENTS, Offered, SenderSlot, Settled};
use crate::words::{Actor, Word};
use driftless_proto::{
    Cause, CoordinatorEvent, Intake, Needs, Offer, PatchRange, Pending, ReplicaOutcome, RootCause,
};
use driftless_types::{Fence, Member, ReceiverId, ReplicaId, SenderId, Version};

impl Shell<'_> {
    pub(crate) fn next_version(&mut self) {
        self.state.trainer.change(|trainer| trainer.newest.0 += 1);
    }

    pub(crate) fn publish(&mut self) {
        let newest = self.state.trainer.newest;
        let has_made = |slot: &Part<SenderSlot>| slot.book.patch().version == newest;
        let has_ended = match self.cluster.defect {
            Defect::PatchBeforeOutcome => self.state.senders.iter().all(has_made),
            _ => self.state.has_ended(newest),
        };
        if newest > Version(0) && newest.0 < self.cluster.versions && has_ended {
            self.next_version();
        }
    }

    pub(crate) fn step_done(&mut self, index: usize) {
        let newest = self.state.trainer.newest;
        let last = self.state.senders[index].book.patch().version;
        let known = self.state.last_outcomes(last);
        let presumes = self.cluster.defect == Defect::PatchBeforeOutcome;
        let replicas = self.cluster.replicas;
        let changed = Cluster::changes(index, newest.0);
        let left = self.state.senders[index].change(|slot| {
            for (replica, settled) in known {
                slot.book.ended(replica, last, &outcome(settled));
            }
            for replica in (0..replicas).map(ReplicaId).filter(|_| presumes) {
                slot.book.ended(replica, last, &ReplicaOutcome::Committed);
            }
            let (_, pending) = slot.book.step(newest);
            slot.positions = if pending == Pending::Kept { slot.positions | changed } else { changed };
            slot.live.as_mut().map(|live| std::mem::take(&mut live.open)).unwrap_or_default()
        });
        // The values of the last version are gone, and with them what was still sent of it.
        left.into_values().for_each(|(fence, _)| self.abort(fence));
        self.announce(u32::try_from(index).expect("a few senders"));
    }

    pub(crate) fn announce(&mut self, id: u32) {
        let Some(me) = self.state.address(Actor::Sender(id)) else { return };
        let held = self.state.senders[id as usize].book.patch();
        // With the defect it leads from wherever a replica is.
        let presumes = self.cluster.defect == Defect::PatchBeforeOutcome;
        let held = if presumes { PatchRange { since: Version(0), ..held } } else { held };
        let held = (held.version > Version(0)).then_some(held);
        let ready = CoordinatorEvent::SenderReady(SenderId(id), held);
        self.say(me, Actor::Coordinator, Word::ToCoordinator(ready));
    }

    pub(crate) fn sender(&mut self, id: u32, word: Word) {
        match word {
            Word::Announce(epoch) => {
                self.state.senders[id as usize].change(|slot| {
                    if let Some(live) = &mut slot.live {
                        live.promised = live.promised.max(epoch);
                    }
                });
                self.announce(id);
            }
            Word::Abort(fence) => self.state.senders[id as usize].change(|slot| {
                if let Some(live) = &mut slot.live {
                    live.open.retain(|_, (open, _)| *open != fence);
                }
            }),
            Word::Begin(fence, replica, needs) => self.sender_begins(id, fence, replica, &needs),
            word => unreachable!("sender {id} cannot hear {word:?}"),
        }
    }

    fn sender_begins(&mut self, id: u32, fence: Fence, replica: ReplicaId, needs: &Needs) {
        let is_checked = self.cluster.defect != Defect::PatchBeforeOutcome;
        let slot = &self.state.senders[id as usize];
        let Some(live) = &slot.live else { return };
        if fence.epoch < live.promised && self.cluster.defect != Defect::NoTags {
            return; // CM-5
        }
        let version = slot.book.patch().version;
        if version != fence.version {
            return self.sender_failed(id, fence, RootCause::WeightsMoved);
        }
        let is_whole = needs.intake == Intake::InPlace;
        if is_checked && !is_whole && slot.book.offer(needs.base) == Offer::All {
            let root = RootCause::Uncovered { base: needs.base, since: slot.book.patch().since };
            return self.sender_failed(id, fence, root);
        }
        let is_all = is_whole || !needs.repair.is_empty();
        let positions = if is_all { (1 << ELEMENTS) - 1 } else { slot.positions };
        let older = self.state.senders[id as usize].change(|slot| {
            let live = slot.live.as_mut()?;
            live.promised = fence.epoch;
            live.open.insert(replica, (fence, Offered { version, positions }))
        });
        if let Some((older, _)) = older {
            self.abort(older);
        }
    }

    fn sender_failed(&mut self, id: u32, fence: Fence, root: RootCause) {
        let Some(me) = self.state.address(Actor::Sender(id)) else { return };
        let cause = Cause::new(Member::Sender(SenderId(id)), root);
        let failed = CoordinatorEvent::SenderFailed(fence, cause);
        self.say(me, Actor::Coordinator, Word::ToCoordinator(failed));
    }

    pub(crate) fn forgets(&mut self, index: usize) {
        self.state.budget.faults -= 1;
        self.state.senders[index].change(|slot| slot.book.forget());
        self.announce(u32::try_from(index).expect("a few senders"));
    }

    pub(crate) fn sender_fails(&mut self, index: usize, replica: ReplicaId) -> Option<()> {
        self.state.budget.faults -= 1;
        let (fence, _) =
            self.state.senders[index].change(|slot| slot.live.as_mut()?.open.remove(&replica))?;
        let id = u32::try_from(index).expect("a few senders");
        self.sender_failed(id, fence, RootCause::Task(String::new()));
        Some(())
    }
}

fn outcome(settled: Settled) -> ReplicaOutcome {
    match settled {
        Settled::Committed => ReplicaOutcome::Committed,
        Settled::Lagging(at) => {
            let cause = Cause::at(ReceiverId::default(), RootCause::Aborted);
            ReplicaOutcome::Lagging { at, cause }
        }
    }
}
