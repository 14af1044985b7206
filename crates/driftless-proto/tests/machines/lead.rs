use crate::words::{died, epoch, fence, receiver};
use driftless_proto::{
    Cause, Decision, Engine, FromLead, Lead, LeadCommand, LeadEvent, LeadOptions, Phase, RootCause, TimerId,
    TimerKind, ToLead, Verdict,
};
use driftless_types::Fence;
use std::collections::BTreeSet;
use std::time::Duration;

fn options() -> LeadOptions {
    LeadOptions {
        staging_deadline: Duration::from_secs(4),
        pause_deadline: Duration::from_secs(3),
        apply_deadline: Duration::from_secs(2),
        repeat_after: Duration::from_secs(1),
    }
}

/// A lead of two receivers and everything it asked for since it was last looked at.
struct Bench {
    lead: Option<Lead>,
    out: Vec<LeadCommand>,
}

impl Bench {
    fn recovering(engine: Engine) -> Self {
        let members = BTreeSet::from([receiver(0, 0), receiver(0, 1)]);
        let (lead, out) = Lead::recover(members, options(), engine);
        Self { lead: Some(lead), out }
    }

    /// Both receivers serve, the coordinator has been told.
    fn resting() -> Self {
        let mut bench = Self::recovering(Engine::Serving);
        bench.both(ToLead::Phase(Phase::Serving(None)));
        bench.out.clear();
        bench
    }

    fn gathering(fence: Fence) -> Self {
        let mut bench = Self::resting();
        bench.on(LeadEvent::Begin(fence));
        bench.out.clear();
        bench
    }

    fn pausing(fence: Fence) -> Self {
        let mut bench = Self::gathering(fence);
        bench.both(ToLead::Staged(fence));
        bench.out.clear();
        bench
    }

    fn applying(fence: Fence) -> Self {
        let mut bench = Self::pausing(fence);
        bench.on(LeadEvent::Paused(fence, Ok(())));
        bench.out.clear();
        bench
    }

    fn on(&mut self, event: LeadEvent) {
        let (lead, commands) = self.lead.take().expect("a lead").handle(event);
        self.lead = Some(lead);
        self.out.extend(commands);
    }

    fn says(&mut self, rank: u32, word: ToLead) {
        self.on(LeadEvent::Member(receiver(0, rank), word));
    }

    fn both(&mut self, word: ToLead) {
        self.says(0, word.clone());
        self.says(1, word);
    }

    fn fires(&mut self, fence: Fence, kind: TimerKind) {
        self.on(LeadEvent::TimerFired(TimerId::of(&fence, kind)));
    }

    /// What it said to its receivers and did otherwise, timers left out.
    fn took(&mut self) -> Vec<LeadCommand> {
        let mut out = std::mem::take(&mut self.out);
        out.retain(|command| !matches!(command, LeadCommand::ArmTimer { .. }));
        out
    }

    fn assert_decided(&mut self, fence: Fence, decision: Decision) {
        assert_eq!(self.took(), to_both(&FromLead::Decide(fence, decision)));
    }

    fn assert_ignored(&mut self, event: LeadEvent) {
        let before = self.lead.clone();
        self.on(event);
        assert_eq!((&self.lead, self.out.as_slice()), (&before, [].as_slice()));
    }
}

fn to_both(word: &FromLead) -> Vec<LeadCommand> {
    [0, 1].map(|rank| LeadCommand::Tell(receiver(0, rank), word.clone())).into()
}

fn rolled_back(command: &LeadCommand) -> Option<&Cause> {
    match command {
        LeadCommand::Report(outcome) => match &outcome.verdict {
            Verdict::RolledBack(cause) => Some(cause),
            Verdict::Committed => None,
        },
        _ => None,
    }
}

#[test]
fn cm5_words_of_an_older_coordinator_change_nothing() {
    let mut bench = Bench::resting();
    bench.on(LeadEvent::NewEpoch(epoch(2)));
    assert_eq!(bench.took(), [LeadCommand::ReportServing]);
    bench.assert_ignored(LeadEvent::Begin(fence(1, 9, 1)));
    bench.assert_ignored(LeadEvent::NewEpoch(epoch(1)));
    bench.assert_ignored(LeadEvent::Abort(fence(1, 9, 1), died(0, 1)));
    bench.on(LeadEvent::Begin(fence(2, 1, 1)));
    assert_eq!(bench.took(), to_both(&FromLead::Begin(fence(2, 1, 1))));
}
