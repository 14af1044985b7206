use crate::words::{fence, sender};
use driftless_proto::{
    Decision, ExchangeCommand, ExchangeEvent, FromLead, Intake, Limits, Participant, ParticipantCommand,
    ParticipantEvent, Phase, ProtocolViolation, RootCause, Shape, ToLead, Weights,
};
use driftless_types::{Fence, Incarnation};
use std::collections::BTreeMap;
use std::time::Duration;

const LEAD: Incarnation = Incarnation(3);

fn limits() -> Limits {
    Limits {
        staging_max_bytes: 100,
        round_deadline: Duration::from_secs(2),
        bandwidth_bytes_per_s: 100,
        window_bytes: 8,
    }
}

fn restored(committed: Option<Fence>, applied: Option<Fence>) -> Bench {
    let shape = Shape {
        sends: BTreeMap::new(),
        receives: BTreeMap::from([(sender(0), 32)]),
        windows: BTreeMap::from([(sender(0), 2)]),
    };
    Bench {
        participant: Participant::restore(shape, limits(), committed, applied, Weights::Whole),
        out: Vec::new(),
    }
}

struct Bench {
    participant: Participant,
    out: Vec<ParticipantCommand>,
}

impl Bench {
    fn receiving(fence: Fence) -> Self {
        let mut bench = restored(None, None);
        bench.hears(FromLead::Begin(fence, Intake::Staged));
        bench.out.clear();
        bench
    }

    fn checking(fence: Fence) -> Self {
        let mut bench = Self::receiving(fence);
        let announced = BTreeMap::from([(sender(0), 0)]);
        bench.on(ParticipantEvent::Exchange(fence, ExchangeEvent::RecordsMoved { announced }));
        assert_eq!(bench.took(), [ParticipantCommand::Check(fence)]);
        bench
    }

    fn staged(fence: Fence) -> Self {
        let mut bench = Self::checking(fence);
        bench.on(ParticipantEvent::Checked(fence, Ok(())));
        assert_eq!(bench.took(), [ParticipantCommand::Tell(ToLead::Staged(fence))]);
        bench
    }

    fn scattering(fence: Fence) -> Self {
        let mut bench = Self::staged(fence);
        bench.hears(FromLead::Apply(fence));
        assert_eq!(bench.took(), [ParticipantCommand::Scatter(fence)]);
        bench
    }

    fn applied(fence: Fence) -> Self {
        let mut bench = Self::scattering(fence);
        bench.on(ParticipantEvent::Scattered(fence, Ok(())));
        assert_eq!(bench.took(), [ParticipantCommand::Tell(ToLead::Applied(fence))]);
        bench
    }

    fn try_on(
        &self,
        event: ParticipantEvent,
    ) -> Result<(Participant, Vec<ParticipantCommand>), ProtocolViolation> {
        self.participant.clone().handle(event)
    }

    fn on(&mut self, event: ParticipantEvent) {
        let (participant, commands) = self.try_on(event).expect("an event in order");
        self.participant = participant;
        self.out.extend(commands);
    }

    fn hears(&mut self, word: FromLead) {
        self.on(ParticipantEvent::Lead(LEAD, word));
    }

    fn took(&mut self) -> Vec<ParticipantCommand> {
        std::mem::take(&mut self.out)
    }
}

fn done(fence: Fence, decision: Decision) -> ParticipantCommand {
    ParticipantCommand::Tell(ToLead::Done(fence, decision))
}

#[test]
fn cm4_staged_only_after_the_check_and_applied_only_after_the_digests() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::checking(fence);
    let damaged = RootCause::Damaged("a section".into());
    bench.on(ParticipantEvent::Checked(fence, Err(damaged.clone())));
    let failed = ParticipantCommand::Tell(ToLead::Failed(fence, damaged));
    assert_eq!(bench.took(), [ParticipantCommand::Discard(fence), failed]);
    assert_eq!(bench.participant.phase(), Phase::Serving(None));
    // A failed attempt is not applied however often it is asked for.
    bench.hears(FromLead::Apply(fence));
    assert_eq!(bench.took(), []);
    assert_eq!(Bench::applied(fence).participant.phase(), Phase::Applied(fence));
}

#[test]
fn cm3_a_wrong_digest_is_taken_back_before_the_receiver_serves() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::scattering(fence);
    let root = RootCause::DigestMismatch { tensors: [1].into() };
    bench.on(ParticipantEvent::Scattered(fence, Err(root.clone())));
    let failed = ParticipantCommand::Tell(ToLead::Failed(fence, root));
    assert_eq!(bench.took(), [ParticipantCommand::Undo(fence), failed]);
    assert_eq!(bench.participant.phase(), Phase::Open(fence));
    bench.hears(FromLead::Decide(fence, Decision::Rollback));
    assert_eq!(bench.took(), []);
    bench.on(ParticipantEvent::Undone(fence));
    assert_eq!(bench.took(), [ParticipantCommand::Discard(fence), done(fence, Decision::Rollback)]);
}

#[test]
fn cm3_a_rollback_in_the_middle_of_a_scatter_waits_for_it_and_takes_it_back() {
    for result in [Ok(()), Err(RootCause::Died)] {
        let fence = fence(1, 1, 1);
        let mut bench = Bench::scattering(fence);
        bench.hears(FromLead::Decide(fence, Decision::Rollback));
        bench.hears(FromLead::Decide(fence, Decision::Rollback));
        assert_eq!(bench.took(), []);
        // What the scatter found is told all the same: the next attempt repairs it.
        let found = result.clone().err().map(|root| ParticipantCommand::Tell(ToLead::Failed(fence, root)));
        bench.on(ParticipantEvent::Scattered(fence, result));
        let undo: Vec<_> = [ParticipantCommand::Undo(fence)].into_iter().chain(found).collect();
        assert_eq!(bench.took(), undo);
        bench.on(ParticipantEvent::Undone(fence));
        assert_eq!(bench.took(), [ParticipantCommand::Discard(fence), done(fence, Decision::Rollback)]);
        assert_eq!(bench.participant.phase(), Phase::Serving(None));
    }
}

#[test]
fn cm3_a_rollback_is_acknowledged_from_every_state() {
    let fence = fence(1, 1, 1);
    let rollback = FromLead::Decide(fence, Decision::Rollback);
    let mut bench = Bench::receiving(fence);
    bench.hears(rollback.clone());
    let abort = ParticipantCommand::Exchange(fence, ExchangeCommand::AbortTransfers);
    let discard = ParticipantCommand::Discard(fence);
    assert_eq!(bench.took(), [abort, discard.clone(), done(fence, Decision::Rollback)]);
    for mut bench in [Bench::checking(fence), Bench::staged(fence)] {
        bench.hears(rollback.clone());
        assert_eq!(bench.took(), [discard.clone(), done(fence, Decision::Rollback)]);
    }
    let mut bench = Bench::applied(fence);
    bench.hears(rollback.clone());
    assert_eq!(bench.took(), [ParticipantCommand::Undo(fence)]);
    let mut bench = restored(None, None);
    bench.hears(rollback);
    assert_eq!(bench.took(), [done(fence, Decision::Rollback)]);
}

#[test]
fn cm5_an_older_lead_is_ignored_and_an_answer_is_a_promise() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::staged(fence);
    bench.on(ParticipantEvent::Lead(Incarnation(4), FromLead::AskPhase));
    assert_eq!(bench.took(), [ParticipantCommand::Tell(ToLead::Answer(Phase::Open(fence)))]);
    let before = bench.participant.clone();
    bench.hears(FromLead::Apply(fence));
    bench.hears(FromLead::Decide(fence, Decision::Commit));
    bench.hears(FromLead::AskPhase);
    assert_eq!((bench.took(), bench.participant), (Vec::new(), before));
}

#[test]
fn cm10_a_repeated_decision_is_acknowledged_again_and_changes_nothing() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::applied(fence);
    bench.hears(FromLead::Decide(fence, Decision::Commit));
    assert_eq!(bench.took(), [ParticipantCommand::Seal(fence)]);
    bench.hears(FromLead::Decide(fence, Decision::Commit));
    assert_eq!(bench.took(), []);
    bench.on(ParticipantEvent::Sealed(fence));
    assert_eq!(bench.took(), [done(fence, Decision::Commit)]);
    let before = bench.participant.clone();
    bench.hears(FromLead::Decide(fence, Decision::Commit));
    assert_eq!((bench.took(), bench.participant), (vec![done(fence, Decision::Commit)], before));
}

#[test]
fn cm3_a_commit_of_what_was_not_applied_is_a_violation() {
    let fence = fence(1, 1, 1);
    let commit = || ParticipantEvent::Lead(LEAD, FromLead::Decide(fence, Decision::Commit));
    for bench in
        [restored(None, None), Bench::receiving(fence), Bench::staged(fence), Bench::scattering(fence)]
    {
        assert!(bench.try_on(commit()).is_err());
    }
    let begin = ParticipantEvent::Lead(LEAD, FromLead::Begin(self::fence(1, 2, 1), Intake::Staged));
    assert!(Bench::applied(fence).try_on(begin).is_err(), "an attempt is open");
}

#[test]
fn cm1_an_applied_attempt_outlives_the_actor_undecided() {
    let (old, new) = (fence(1, 1, 1), fence(1, 2, 2));
    let mut bench = restored(Some(old), Some(new));
    assert_eq!(bench.participant.phase(), Phase::Applied(new));
    bench.hears(FromLead::Decide(new, Decision::Rollback));
    bench.on(ParticipantEvent::Undone(new));
    assert_eq!(bench.participant.phase(), Phase::Serving(Some(old)));
    let mut bench = restored(Some(old), Some(new));
    bench.hears(FromLead::Decide(new, Decision::Commit));
    bench.on(ParticipantEvent::Sealed(new));
    assert_eq!(bench.participant.phase(), Phase::Serving(Some(new)));
}

#[test]
fn ex6_an_exchange_that_fails_leaves_the_attempt_and_says_so() {
    let fence = fence(1, 1, 1);
    let mut bench = Bench::receiving(fence);
    bench.on(ParticipantEvent::Exchange(self::fence(1, 9, 1), ExchangeEvent::Failed(RootCause::Died)));
    assert_eq!(bench.took(), [], "another attempt's exchange");
    bench.on(ParticipantEvent::Exchange(fence, ExchangeEvent::Failed(RootCause::Died)));
    let failed = ParticipantCommand::Tell(ToLead::Failed(fence, RootCause::Died));
    let abort = ParticipantCommand::Exchange(fence, ExchangeCommand::AbortTransfers);
    let took = bench.took();
    assert!(took.contains(&failed) && took.contains(&ParticipantCommand::Discard(fence)), "{took:?}");
    assert!(took.contains(&abort), "{took:?}");
    bench.on(ParticipantEvent::Exchange(fence, ExchangeEvent::PayloadMoved));
    assert_eq!(bench.took(), []);
}

#[test]
fn cm10_an_attempt_that_was_begun_here_never_begins_again() {
    let (first, second) = (fence(1, 1, 1), fence(1, 2, 1));
    let mut bench = Bench::receiving(first);
    bench.hears(FromLead::Begin(first, Intake::Staged));
    assert_eq!(bench.took(), []);
    bench.hears(FromLead::Decide(first, Decision::Rollback));
    bench.took();
    bench.hears(FromLead::Begin(first, Intake::Staged));
    assert_eq!((bench.took(), bench.participant.phase()), (vec![], Phase::Serving(None)));
    let mut bench = restored(Some(second), None);
    bench.hears(FromLead::Begin(first, Intake::Staged));
    bench.hears(FromLead::Begin(second, Intake::Staged));
    assert_eq!((bench.took(), bench.participant.phase()), (vec![], Phase::Serving(Some(second))));
}

#[test]
fn cm3_an_attempt_that_was_begun_too_late_gives_way_to_the_next() {
    let (late, next) = (fence(1, 1, 1), fence(1, 2, 1));
    for mut bench in [Bench::receiving(late), Bench::checking(late), Bench::staged(late)] {
        bench.hears(FromLead::Begin(next, Intake::Staged));
        assert!(bench.took().contains(&ParticipantCommand::Discard(late)));
        assert_eq!(bench.participant.phase(), Phase::Open(next));
    }
}

#[test]
fn cm10_an_older_commit_that_comes_again_is_acknowledged_and_changes_nothing() {
    let (old, new) = (fence(1, 1, 1), fence(1, 2, 2));
    let mut bench = restored(Some(old), None);
    bench.hears(FromLead::Begin(new, Intake::Staged));
    bench.took();
    let before = bench.participant.clone();
    bench.hears(FromLead::Decide(old, Decision::Commit));
    assert_eq!((bench.took(), bench.participant), (vec![done(old, Decision::Commit)], before));
    let mut bench = restored(Some(old), Some(new));
    bench.hears(FromLead::Decide(new, Decision::Commit));
    bench.took();
    bench.hears(FromLead::Decide(old, Decision::Commit));
    assert_eq!((bench.took(), bench.participant.phase()), (vec![], Phase::Applied(new)));
    let unknown = ParticipantEvent::Lead(LEAD, FromLead::Decide(fence(1, 3, 2), Decision::Commit));
    assert!(restored(Some(old), None).try_on(unknown).is_err(), "a commit of what was never applied");
}

#[test]
fn cm10_an_older_rollback_that_comes_again_is_no_word_about_the_open_attempt() {
    let new = fence(1, 2, 1);
    for mut bench in [Bench::receiving(new), Bench::staged(new), Bench::applied(new)] {
        let before = bench.participant.clone();
        bench.hears(FromLead::Decide(fence(1, 1, 1), Decision::Rollback));
        assert_eq!((bench.took(), bench.participant), (vec![], before));
    }
}
