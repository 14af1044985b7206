use crate::words::{died, epoch, fence, receiver};
use driftless_proto::{
    Cause, Decision, Engine, FromLead, Intake, Lead, LeadCommand, LeadEvent, LeadOptions, Phase, RootCause,
    TimerId, TimerKind, ToLead, Verdict,
};
use driftless_types::Fence;
use std::collections::BTreeSet;
use std::time::Duration;

fn options() -> LeadOptions {
    LeadOptions {
        staging_deadline: Duration::from_secs(4),
        pause_deadline: Duration::from_secs(3),
        apply_deadline: Duration::from_secs(2),
        taking_deadline: Duration::from_secs(20),
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
        bench.both(ToLead::Answer(Phase::Serving(None)));
        bench.out.clear();
        bench
    }

    fn gathering(fence: Fence) -> Self {
        let mut bench = Self::resting();
        bench.on(LeadEvent::Begin(fence, Intake::Staged));
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
    bench.assert_ignored(LeadEvent::Begin(fence(1, 9, 1), Intake::Staged));
    bench.assert_ignored(LeadEvent::NewEpoch(epoch(1)));
    bench.assert_ignored(LeadEvent::Abort(fence(1, 9, 1), died(0, 1)));
    bench.on(LeadEvent::Begin(fence(2, 1, 1), Intake::Staged));
    assert_eq!(bench.took(), to_both(&FromLead::Begin(fence(2, 1, 1), Intake::Staged)));
}

#[test]
fn cm4_every_receiver_stages_before_the_pause_and_applies_before_the_commit() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::gathering(fence);
    bench.says(0, ToLead::Staged(fence));
    bench.says(0, ToLead::Staged(fence));
    assert_eq!(bench.took(), []);
    bench.says(1, ToLead::Staged(fence));
    assert_eq!(bench.took(), [LeadCommand::Pause(fence)]);
    bench.on(LeadEvent::Paused(fence, Ok(())));
    assert_eq!(bench.took(), to_both(&FromLead::Apply(fence)));
    bench.says(1, ToLead::Applied(fence));
    bench.says(1, ToLead::Applied(fence));
    assert_eq!(bench.took(), []);
    bench.says(0, ToLead::Applied(fence));
    bench.assert_decided(fence, Decision::Commit);
}

#[test]
fn cm1_the_engine_resumes_only_after_every_acknowledgment_and_the_report_follows() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::applying(fence);
    bench.both(ToLead::Applied(fence));
    bench.assert_decided(fence, Decision::Commit);
    bench.says(0, ToLead::Done(fence, Decision::Commit));
    // What belongs to another decision acknowledges nothing.
    bench.says(1, ToLead::Done(fence, Decision::Rollback));
    assert_eq!(bench.took(), []);
    bench.says(1, ToLead::Done(fence, Decision::Commit));
    assert_eq!(bench.took(), [LeadCommand::Resume]);
    bench.on(LeadEvent::Resumed);
    let out = bench.took();
    let [LeadCommand::Report(outcome)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((outcome.fence, &outcome.verdict), (fence, &Verdict::Committed));
}

#[test]
fn cm3_a_decision_is_taken_once_and_then_only_repeated() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::applying(fence);
    bench.both(ToLead::Applied(fence));
    bench.assert_decided(fence, Decision::Commit);
    // Neither a failure, an abort, a deadline nor a new coordinator changes it.
    bench.assert_ignored(LeadEvent::Member(receiver(0, 1), ToLead::Failed(fence, RootCause::Aborted)));
    bench.on(LeadEvent::Abort(fence, died(0, 1)));
    bench.fires(fence, TimerKind::Applying);
    bench.on(LeadEvent::NewEpoch(epoch(2)));
    assert_eq!(bench.took(), []);
    bench.says(0, ToLead::Done(fence, Decision::Commit));
    bench.fires(fence, TimerKind::Repeat);
    let again = LeadCommand::Tell(receiver(0, 1), FromLead::Decide(fence, Decision::Commit));
    assert_eq!(bench.took(), std::slice::from_ref(&again));
    // A receiver that came back in between has not heard it.
    bench.says(1, ToLead::Phase(Phase::Applied(fence)));
    assert_eq!(bench.took(), [again]);
}

#[test]
fn cm11_every_wait_before_the_decision_has_a_deadline() {
    let fence = fence(1, 1, 1);
    let waits: [(Bench, TimerKind); 3] = [
        (Bench::gathering(fence), TimerKind::Staging),
        (Bench::pausing(fence), TimerKind::Pausing),
        (Bench::applying(fence), TimerKind::Applying),
    ];
    for (mut bench, kind) in waits {
        for other in [TimerKind::Staging, TimerKind::Pausing, TimerKind::Applying, TimerKind::Repeat] {
            if other != kind {
                bench.fires(fence, other);
            }
        }
        assert_eq!(bench.took(), []);
        bench.fires(fence, kind);
        bench.assert_decided(fence, Decision::Rollback);
        let engine_paused = kind != TimerKind::Staging;
        bench.both(ToLead::Done(fence, Decision::Rollback));
        if engine_paused {
            assert_eq!(bench.took(), [LeadCommand::Resume]);
            bench.on(LeadEvent::Resumed);
        }
        let out = bench.took();
        let cause = out.iter().find_map(rolled_back).expect("a report");
        assert!(matches!(cause.root, RootCause::Deadline { .. }), "{cause}");
    }
}

#[test]
fn cm11_every_deadline_is_armed_when_its_wait_begins() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::resting();
    let armed = |bench: &mut Bench, kind, after: u64| {
        let timer =
            LeadCommand::ArmTimer { id: TimerId::of(&fence, kind), after: Duration::from_secs(after) };
        assert!(bench.out.contains(&timer), "{:?}", bench.out);
        bench.out.clear();
    };
    bench.on(LeadEvent::Begin(fence, Intake::Staged));
    armed(&mut bench, TimerKind::Staging, 4);
    bench.both(ToLead::Staged(fence));
    armed(&mut bench, TimerKind::Pausing, 3);
    bench.on(LeadEvent::Paused(fence, Ok(())));
    armed(&mut bench, TimerKind::Applying, 2);
    bench.both(ToLead::Applied(fence));
    armed(&mut bench, TimerKind::Repeat, 1);
    bench.fires(fence, TimerKind::Repeat);
    armed(&mut bench, TimerKind::Repeat, 1);
}

#[test]
fn cm3_a_failed_pause_or_a_restarted_receiver_rolls_everyone_back() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::pausing(fence);
    bench.on(LeadEvent::Paused(fence, Err(RootCause::Pause("busy".into()))));
    bench.assert_decided(fence, Decision::Rollback);
    for mut bench in [Bench::gathering(fence), Bench::pausing(fence), Bench::applying(fence)] {
        bench.says(1, ToLead::Phase(Phase::Serving(None)));
        bench.assert_decided(fence, Decision::Rollback);
    }
    // One that comes back as applied has lost nothing.
    let mut bench = Bench::applying(fence);
    bench.says(1, ToLead::Phase(Phase::Applied(fence)));
    bench.says(0, ToLead::Applied(fence));
    bench.assert_decided(fence, Decision::Commit);
}

#[test]
fn cm15_from_the_pause_on_the_coordinator_cannot_abort() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::gathering(fence);
    bench.on(LeadEvent::Abort(fence, died(0, 1)));
    bench.assert_decided(fence, Decision::Rollback);
    for mut bench in [Bench::pausing(fence), Bench::applying(fence)] {
        bench.assert_ignored(LeadEvent::Abort(fence, died(0, 1)));
    }
}

#[test]
fn cm5_a_new_coordinator_rolls_back_what_is_still_gathering() {
    let mut bench = Bench::gathering(fence(1, 1, 1));
    bench.on(LeadEvent::NewEpoch(epoch(1)));
    assert_eq!(bench.took(), []);
    bench.on(LeadEvent::NewEpoch(epoch(2)));
    bench.assert_decided(fence(1, 1, 1), Decision::Rollback);
}

#[test]
fn cm3_a_restarted_lead_commits_only_what_all_have_applied_or_committed() {
    let fence = fence(1, 1, 1);
    let (applied, open) = (Phase::Applied(fence), Phase::Open(fence));
    let (committed, old) = (Phase::Serving(Some(fence)), Phase::Serving(None));
    let cases = [
        (applied.clone(), applied.clone(), Decision::Commit),
        (applied.clone(), committed.clone(), Decision::Commit),
        (committed, applied.clone(), Decision::Commit),
        (applied.clone(), open.clone(), Decision::Rollback),
        (applied.clone(), old.clone(), Decision::Rollback),
        (old, applied, Decision::Rollback),
        (open.clone(), open, Decision::Rollback),
    ];
    for (first, second, decision) in cases {
        let mut bench = Bench::recovering(Engine::Paused);
        assert_eq!(bench.took(), to_both(&FromLead::AskPhase));
        bench.on(LeadEvent::Begin(self::fence(1, 2, 1), Intake::Staged));
        bench.says(0, ToLead::Answer(first));
        assert_eq!(bench.took(), []);
        bench.says(1, ToLead::Answer(second));
        bench.assert_decided(fence, decision);
        bench.both(ToLead::Done(fence, decision));
        assert_eq!(bench.took(), [LeadCommand::Resume]);
    }
}

#[test]
fn cm11_a_restarted_lead_resumes_an_engine_that_was_left_paused() {
    let mut bench = Bench::recovering(Engine::Paused);
    bench.took();
    bench.both(ToLead::Answer(Phase::Serving(Some(fence(1, 1, 1)))));
    assert_eq!(bench.took(), [LeadCommand::Resume]);
    bench.on(LeadEvent::Begin(fence(1, 2, 2), Intake::Staged));
    assert_eq!(bench.took(), []);
    bench.on(LeadEvent::Resumed);
    let out = bench.took();
    assert_eq!(out[0], LeadCommand::ReportServing);
    assert_eq!(
        out[1..],
        to_both(&FromLead::Begin(fence(1, 2, 2), Intake::Staged)),
        "the attempt waited for the engine"
    );
}

#[test]
fn cm12_tensors_with_a_wrong_digest_are_asked_for_whole_until_a_commit() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::applying(fence);
    let tensors = BTreeSet::from([3, 5]);
    let mismatch = RootCause::DigestMismatch { tensors: tensors.clone() };
    bench.says(1, ToLead::Failed(fence, mismatch));
    bench.assert_decided(fence, Decision::Rollback);
    bench.both(ToLead::Done(fence, Decision::Rollback));
    bench.on(LeadEvent::Resumed);
    let lead = bench.lead.clone().expect("a lead");
    assert_eq!(lead.repair().get(&receiver(0, 1)), Some(&tensors));
    let out = bench.took();
    let Some(LeadCommand::Report(outcome)) = out.last() else { panic!("{out:?}") };
    assert_eq!(&outcome.repair, lead.repair());
    let fence = self::fence(1, 2, 1);
    bench.on(LeadEvent::Begin(fence, Intake::Staged));
    bench.both(ToLead::Staged(fence));
    bench.on(LeadEvent::Paused(fence, Ok(())));
    bench.both(ToLead::Applied(fence));
    bench.both(ToLead::Done(fence, Decision::Commit));
    assert!(bench.lead.expect("a lead").repair().is_empty());
}

#[test]
fn cm11_a_lead_that_comes_back_asks_until_everyone_has_answered() {
    let mut bench = Bench::recovering(Engine::Serving);
    let id = bench.out.iter().find_map(armed).expect("a timer");
    bench.took();
    bench.says(1, ToLead::Answer(Phase::Serving(None)));
    for _ in 0..2 {
        bench.on(LeadEvent::TimerFired(id));
        assert_eq!(bench.out.iter().find_map(armed), Some(id));
        assert_eq!(bench.took(), [LeadCommand::Tell(receiver(0, 0), FromLead::AskPhase)]);
    }
    bench.says(0, ToLead::Answer(Phase::Serving(None)));
    assert_eq!(bench.took(), [LeadCommand::ReportServing]);
    bench.assert_ignored(LeadEvent::TimerFired(id));
}

fn armed(command: &LeadCommand) -> Option<TimerId> {
    match command {
        LeadCommand::ArmTimer { id, .. } => Some(*id),
        _ => None,
    }
}

#[test]
fn cm10_an_attempt_that_has_ended_is_reported_again_and_never_begun_again() {
    let fence = fence(1, 2, 1);
    let mut bench = Bench::gathering(fence);
    bench.says(1, ToLead::Failed(fence, RootCause::Aborted));
    bench.both(ToLead::Done(fence, Decision::Rollback));
    let report = bench.took().pop().expect("a report");
    assert!(matches!(report, LeadCommand::Report(_)));
    bench.assert_ignored(LeadEvent::Begin(fence, Intake::Staged));
    bench.assert_ignored(LeadEvent::Begin(self::fence(1, 1, 1), Intake::Staged));
    bench.on(LeadEvent::Abort(fence, died(0, 0)));
    assert_eq!(bench.took(), [report]);
    bench.assert_ignored(LeadEvent::Abort(self::fence(1, 1, 1), died(0, 0)));
}

#[test]
fn cm11_an_attempt_whose_begin_was_lost_ends_when_it_is_given_up() {
    let mut bench = Bench::resting();
    let fence = fence(1, 1, 1);
    bench.on(LeadEvent::Abort(fence, died(0, 1)));
    let out = bench.took();
    assert!(matches!(&out[..], [report] if rolled_back(report) == Some(&died(0, 1))), "{out:?}");
    // The word that was lost comes after all.
    bench.assert_ignored(LeadEvent::Begin(fence, Intake::Staged));
}

#[test]
fn cm11_a_resting_lead_says_again_where_its_replica_stands() {
    let mut bench = Bench::resting();
    bench.on(LeadEvent::KeepAlive);
    assert_eq!(bench.took(), [LeadCommand::ReportServing]);
    Bench::gathering(fence(1, 1, 1)).assert_ignored(LeadEvent::KeepAlive);
}

#[test]
fn cm5_only_an_answer_to_the_question_is_a_promise() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::recovering(Engine::Paused);
    bench.took();
    bench.says(1, ToLead::Answer(Phase::Applied(fence)));
    bench.says(1, ToLead::Phase(Phase::Applied(fence)));
    assert_eq!(bench.took(), [LeadCommand::Tell(receiver(0, 1), FromLead::AskPhase)]);
    bench.says(0, ToLead::Answer(Phase::Applied(fence)));
    assert_eq!(bench.took(), [], "the receiver that came back has to answer again");
    bench.says(1, ToLead::Answer(Phase::Applied(fence)));
    bench.assert_decided(fence, Decision::Commit);
    // An answer that was asked for twice comes late and means nothing.
    let mut bench = Bench::gathering(fence);
    bench.assert_ignored(LeadEvent::Member(receiver(0, 1), ToLead::Answer(Phase::Serving(None))));
}

#[test]
fn cm12_an_attempt_that_is_opened_too_early_begins_when_the_last_one_has_ended() {
    let (older, newer) = (fence(1, 1, 1), fence(1, 2, 1));
    let mut bench = Bench::gathering(older);
    bench.on(LeadEvent::Begin(older, Intake::Staged));
    bench.on(LeadEvent::Begin(newer, Intake::Staged));
    assert_eq!(bench.took(), []);
    bench.says(1, ToLead::Failed(older, RootCause::Aborted));
    bench.took();
    bench.both(ToLead::Done(older, Decision::Rollback));
    let out = bench.took();
    assert!(rolled_back(&out[0]).is_some(), "{out:?}");
    assert_eq!(out[1..], to_both(&FromLead::Begin(newer, Intake::Staged)));
    // In the middle of a switch nothing is reported, not even of an attempt that is given up before it began.
    let mut bench = Bench::applying(older);
    bench.on(LeadEvent::Begin(newer, Intake::Staged));
    bench.both(ToLead::Applied(older));
    bench.took();
    bench.says(0, ToLead::Done(older, Decision::Commit));
    bench.on(LeadEvent::Abort(newer, died(0, 1)));
    assert_eq!(bench.took(), []);
}
