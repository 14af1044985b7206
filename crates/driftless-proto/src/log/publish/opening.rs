//! From a prefix of which nothing is known to a stream that this publisher owns.

use super::{Doing, Open, Publish, PublishCommand, PublishEvent, PublishStop, State};
use crate::log::Lineage;
use crate::log::append::Append;
use crate::log::chain::Chain;
use crate::log::look_back::{Broken, Known, LookBack, Wanted};
use crate::log::words::{Fault, Reading, Stored};
use driftless_types::{Entry, EntryKind, Epoch, Genesis, ObjectDigest, Seq};

impl Publish {
    pub(super) fn opening(&mut self, event: PublishEvent, out: &mut Vec<PublishCommand>) {
        match (&self.state, event) {
            (State::Looking, PublishEvent::Read(reading)) => self.looked(reading, out),
            (State::Probing, PublishEvent::ProbeKept) => {
                self.go(State::PuttingGenesis(self.first_epoch()), out)
            }
            (State::Probing, PublishEvent::ProbeOverwritten) => self.stop(PublishStop::IgnoresCondition, out),
            (State::PuttingGenesis(epoch), PublishEvent::GenesisPut(genesis)) => {
                self.found(*epoch, genesis, out)
            }
            (State::Listing(stream), PublishEvent::Listed(last)) => {
                let most = self.options.look_back_max;
                let tail = last.unwrap_or(Seq::GENESIS);
                let search = LookBack::from(*stream, tail, Wanted::Publication, Known::Nothing, most);
                self.go(State::LookingBack(Box::new(search)), out);
            }
            (State::LookingBack(..), PublishEvent::Read(reading)) => self.looked_back(reading, out),
            _ => {}
        }
    }

    const fn first_epoch(&self) -> Epoch {
        let counter = if self.options.counter == 0 { 1 } else { self.options.counter };
        Epoch { counter, incarnation: self.options.incarnation }
    }

    fn looked(&mut self, reading: Reading, out: &mut Vec<PublishCommand>) {
        match reading {
            Reading::Found(genesis) => self.genesis(genesis, out),
            Reading::Absent => self.go(State::Probing, out),
            Reading::Invalid => self.stop(PublishStop::Invalid { seq: Seq::GENESIS }, out),
            Reading::Failed(fault) => self.failed(fault, out),
        }
    }

    fn found(&mut self, epoch: Epoch, genesis: Genesis, out: &mut Vec<PublishCommand>) {
        let entry = Entry {
            stream: self.options.stream,
            seq: Seq::GENESIS,
            epoch: epoch.counter,
            created_by: epoch.incarnation,
            parent: ObjectDigest::ZERO,
            kind: EntryKind::Genesis(genesis),
        };
        let (append, commands) = Append::new(entry, self.options.patience);
        self.go(State::Founding(append), out);
        self.append_commands(commands, out);
    }

    /// Who founds a stream owns it: genesis begins the epoch of its writer.
    pub(super) fn founded(&mut self, genesis: &Stored, out: &mut Vec<PublishCommand>) {
        let chain = Chain::at_genesis(genesis);
        let epoch = chain.epoch;
        self.opened(Box::new(Open { chain, epoch, goes_on_from: None, abandoned: None }), out);
    }

    pub(super) fn genesis(&mut self, genesis: Stored, out: &mut Vec<PublishCommand>) {
        let EntryKind::Genesis(said) = &genesis.entry.kind else {
            return self.stop(PublishStop::Invalid { seq: Seq::GENESIS }, out);
        };
        if said.run != self.options.run {
            let stop = PublishStop::OtherRun { expected: self.options.run, found: said.run };
            return self.stop(stop, out);
        }
        self.go(State::Listing(genesis.entry.stream), out);
    }

    fn looked_back(&mut self, reading: Reading, out: &mut Vec<PublishCommand>) {
        let State::LookingBack(search) = &mut self.state else { return };
        let seq = search.next().unwrap_or_default();
        let stored = match reading {
            Reading::Found(stored) => stored,
            Reading::Invalid => return self.stop(PublishStop::Invalid { seq }, out),
            // It is listed, or the next entry names it: it will be seen.
            Reading::Absent => return self.failed(Fault::Unavailable, out),
            Reading::Failed(fault) => return self.failed(fault, out),
        };
        // LG-14: before anything is written.
        if let Some(key) = search.locked_by(&stored, self.options.signer) {
            return self.stop(PublishStop::Signed { seq, key }, out);
        }
        match search.take(&stored) {
            Ok(()) if search.next().is_some() => {
                self.failures = super::Failures::default();
                out.append(&mut self.due());
            }
            Ok(()) => self.searched(out),
            Err(Broken::Misplaced(seq) | Broken::Forked { seq, .. }) => {
                self.stop(PublishStop::BrokenChain { seq }, out);
            }
        }
    }

    fn searched(&mut self, out: &mut Vec<PublishCommand>) {
        let State::LookingBack(search) = &self.state else { return };
        if search.found().is_none() && search.is_exhausted() {
            return self.stop(PublishStop::LookBack { entries: self.options.look_back_max }, out);
        }
        let Some(chain) = search.tail() else {
            return self.stop(PublishStop::BrokenChain { seq: Seq::GENESIS }, out);
        };
        let counter = self.options.counter.max(search.highest_counter().saturating_add(1));
        let goes_on_from = chain.last.filter(|last| self.options.lineage == Lineage::Continues(last.object));
        let epoch = Epoch { counter, incarnation: self.options.incarnation };
        self.append_epoch(Box::new(Open { chain, epoch, goes_on_from, abandoned: None }), out);
    }

    /// Takes the stream over from itself.
    pub(super) fn take_over(&mut self, mut open: Box<Open>, out: &mut Vec<PublishCommand>) {
        open.epoch.counter += 1;
        self.append_epoch(open, out);
    }

    /// LG-4: the takeover is an entry of its own, before anything is published.
    fn append_epoch(&mut self, open: Box<Open>, out: &mut Vec<PublishCommand>) {
        let entry = open.next(self.options.incarnation, EntryKind::Epoch);
        let (append, commands) = Append::new(entry, self.options.patience);
        self.go(State::Open(open, Doing::TakingOver(append)), out);
        self.append_commands(commands, out);
    }

    pub(super) fn opened(&mut self, open: Box<Open>, out: &mut Vec<PublishCommand>) {
        out.push(PublishCommand::Opened { epoch: open.epoch, last: open.chain.last });
        self.go(State::Open(open, Doing::Nothing), out);
    }
}
