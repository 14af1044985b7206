//! Attempts in place: out of service first, window by window, and no service before the proof.

use crate::words::{fence, receiver, sender};
use driftless_proto::{
    AttemptStep, Cause, Coordinator, CoordinatorCommand, CoordinatorEvent, CoordinatorOptions, Decision,
    Effect, Engine, ExchangeCommand, ExchangeEvent, FromLead, Intake, Lead, LeadCommand, LeadEvent,
    LeadOptions, Limits, Needs, Outcome, Participant, ParticipantCommand, ParticipantEvent, PatchRange,
    Phase, RootCause, Shape, TimerId, TimerKind, ToLead, Verdict, Weights,
};
use driftless_types::{
    Fence, Incarnation, Member, PlanDigest, ReceiverId, ReplicaId, RunId, SenderId, Version,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const LEAD: Incarnation = Incarnation(3);

/// A receiver of one sender that sends it everything in two windows.
fn receiver_with(weights: Weights) -> Participant {
    let shape = Shape {
        sends: BTreeMap::new(),
        receives: BTreeMap::from([(sender(0), 32)]),
        windows: BTreeMap::from([(sender(0), 2)]),
    };
    let limits = Limits {
        staging_max_bytes: 10,
        round_deadline: Duration::from_secs(2),
        bandwidth_bytes_per_s: 100,
        window_bytes: 8,
    };
    Participant::restore(shape, limits, None, None, weights)
}

fn on(participant: Participant, event: ParticipantEvent) -> (Participant, Vec<ParticipantCommand>) {
    let (participant, mut commands) = participant.handle(event).expect("nothing that no lead says");
    commands.retain(|command| {
        !matches!(command, ParticipantCommand::Exchange(_, ExchangeCommand::ArmTimer { .. }))
    });
    (participant, commands)
}

fn hears(participant: Participant, word: FromLead) -> (Participant, Vec<ParticipantCommand>) {
    on(participant, ParticipantEvent::Lead(LEAD, word))
}

fn exchange(fence: Fence, event: ExchangeEvent) -> ParticipantEvent {
    ParticipantEvent::Exchange(fence, event)
}

fn records() -> ExchangeEvent {
    // More than may be staged: in place nothing is.
    ExchangeEvent::RecordsMoved { announced: BTreeMap::from([(sender(0), 16)]) }
}

const fn window(fence: Fence, peer: Member, index: u32) -> ParticipantCommand {
    ParticipantCommand::Exchange(fence, ExchangeCommand::Window { peer, index })
}

/// A receiver whose first window was asked for.
fn taking(fence: Fence) -> Participant {
    let (participant, _) = hears(receiver_with(Weights::Whole), FromLead::Begin(fence, Intake::InPlace));
    let (participant, commands) = on(participant, exchange(fence, records()));
    assert_eq!(commands, [window(fence, sender(0), 0)]);
    participant
}

#[test]
fn ex5_a_window_moves_when_the_last_was_written_and_all_of_them_end_in_a_proof() {
    let fence = fence(1, 1, 1);
    let moved = || exchange(fence, ExchangeEvent::WindowMoved(sender(0)));
    let (participant, commands) = on(taking(fence), moved());
    assert_eq!(commands, [window(fence, sender(0), 1)]);
    let (participant, commands) = on(participant, moved());
    assert_eq!(commands, [ParticipantCommand::Prove(fence)]);
    let (participant, commands) = on(participant, ParticipantEvent::Scattered(fence, Ok(())));
    assert_eq!(commands, [ParticipantCommand::Tell(ToLead::Applied(fence))]);
    assert_eq!(participant.phase(), Phase::Applied(fence));
    let (participant, commands) = hears(participant, FromLead::Decide(fence, Decision::Commit));
    assert_eq!(commands, [ParticipantCommand::Seal(fence)]);
    let (participant, _) = on(participant, ParticipantEvent::Sealed(fence));
    assert_eq!(participant.phase(), Phase::Serving(Some(fence)), "whole again");
}

#[test]
fn cm14_whatever_ends_an_attempt_in_place_leaves_weights_of_no_version() {
    let fence = fence(1, 1, 1);
    let (participant, _) = hears(taking(fence), FromLead::Decide(fence, Decision::Rollback));
    assert_eq!(participant.phase(), Phase::Torn(None));
    // A failure of its own says so first.
    let root = RootCause::Transport("cut".into());
    let (participant, commands) = on(taking(fence), exchange(fence, ExchangeEvent::Failed(root.clone())));
    assert!(commands.contains(&ParticipantCommand::Tell(ToLead::Failed(fence, root))));
    assert_eq!(participant.phase(), Phase::Torn(None));
    let (participant, commands) = hears(participant, FromLead::Decide(fence, Decision::Rollback));
    assert_eq!(commands, [ParticipantCommand::Tell(ToLead::Torn(fence))]);
    // Digests that differ, or that matched in vain.
    for outcome in [Ok(()), Err(RootCause::DigestMismatch { tensors: BTreeSet::from([0]) })] {
        let moved = || exchange(fence, ExchangeEvent::WindowMoved(sender(0)));
        let (participant, _) = on(on(taking(fence), moved()).0, moved());
        let (participant, _) = on(participant, ParticipantEvent::Scattered(fence, outcome));
        let (participant, _) = hears(participant, FromLead::Decide(fence, Decision::Rollback));
        let (participant, _) = on(participant, ParticipantEvent::Undone(fence));
        assert_eq!(participant.phase(), Phase::Torn(None));
    }
    // Changes are of no use to them.
    let (_, commands) = hears(participant, FromLead::Begin(self::fence(1, 2, 1), Intake::Staged));
    let refused = ToLead::Failed(self::fence(1, 2, 1), RootCause::OutOfService);
    assert_eq!(commands, [ParticipantCommand::Tell(refused)]);
}

#[test]
fn cm10_an_attempt_in_place_that_was_rolled_back_never_begins() {
    let fence = fence(1, 1, 1);
    let (participant, commands) =
        hears(receiver_with(Weights::Whole), FromLead::Decide(fence, Decision::Rollback));
    assert_eq!(commands, [ParticipantCommand::Tell(ToLead::Done(fence, Decision::Rollback))]);
    // The engine serves again: a word that was overtaken must not write into it.
    let (participant, commands) = hears(participant, FromLead::Begin(fence, Intake::InPlace));
    assert_eq!((commands, participant.phase()), (vec![], Phase::Serving(None)));
}

#[test]
fn cm14_nothing_is_torn_before_the_first_window_was_asked_for() {
    let fence = fence(1, 1, 1);
    let (participant, _) = hears(receiver_with(Weights::Whole), FromLead::Begin(fence, Intake::InPlace));
    let (_, commands) = hears(participant, FromLead::Decide(fence, Decision::Rollback));
    assert!(commands.contains(&ParticipantCommand::Tell(ToLead::Done(fence, Decision::Rollback))));
}

// The lead.

fn lead(engine: Engine, phase: &Phase) -> (Lead, Vec<LeadCommand>) {
    let options = LeadOptions {
        staging_deadline: Duration::from_secs(4),
        pause_deadline: Duration::from_secs(3),
        apply_deadline: Duration::from_secs(2),
        taking_deadline: Duration::from_secs(20),
        repeat_after: Duration::from_secs(1),
    };
    let (lead, _) = Lead::recover(members().into(), options, engine);
    both(lead, &ToLead::Answer(phase.clone()))
}

fn members() -> [ReceiverId; 2] {
    [receiver(0, 0), receiver(0, 1)]
}

fn both(mut lead: Lead, word: &ToLead) -> (Lead, Vec<LeadCommand>) {
    let mut all = Vec::new();
    for member in members() {
        let (next, commands) = feed(lead, LeadEvent::Member(member, word.clone()));
        lead = next;
        all.extend(commands);
    }
    (lead, all)
}

fn feed(lead: Lead, event: LeadEvent) -> (Lead, Vec<LeadCommand>) {
    let (lead, mut commands) = lead.handle(event);
    commands.retain(|command| !matches!(command, LeadCommand::ArmTimer { .. }));
    (lead, commands)
}

fn tell(word: &FromLead) -> Vec<LeadCommand> {
    members().map(|member| LeadCommand::Tell(member, word.clone())).into()
}

#[test]
fn cm1_the_engine_leaves_service_before_anything_is_written_in_place() {
    let fence = fence(1, 1, 1);
    let (lead, _) = lead(Engine::Serving, &Phase::Serving(None));
    let (lead, commands) = feed(lead, LeadEvent::Begin(fence, Intake::InPlace));
    assert_eq!(commands, [LeadCommand::Pause(fence)]);
    let (lead, commands) = feed(lead, LeadEvent::Paused(fence, Ok(())));
    assert_eq!(commands, tell(&FromLead::Begin(fence, Intake::InPlace)));
    let (lead, commands) = both(lead, &ToLead::Applied(fence));
    assert_eq!(commands, tell(&FromLead::Decide(fence, Decision::Commit)));
    let (_, commands) = both(lead, &ToLead::Done(fence, Decision::Commit));
    assert_eq!(commands, [LeadCommand::Resume]);
}

fn report(commands: &[LeadCommand]) -> &Outcome {
    let [LeadCommand::Report(outcome)] = commands else { unreachable!("{commands:?}") };
    outcome
}

#[test]
fn cm14_a_torn_replica_stays_out_of_service_and_takes_everything_next() {
    let first = fence(1, 1, 1);
    let (lead, _) = lead(Engine::Serving, &Phase::Serving(None));
    let (lead, _) = feed(lead, LeadEvent::Begin(first, Intake::InPlace));
    let (lead, _) = feed(lead, LeadEvent::Paused(first, Ok(())));
    // The sender dies: in place it is needed to the end.
    let cause = Cause::new(sender(0), RootCause::Died);
    let (lead, commands) = feed(lead, LeadEvent::Abort(first, cause.clone()));
    assert_eq!(commands, tell(&FromLead::Decide(first, Decision::Rollback)));
    let (lead, _) = feed(lead, LeadEvent::Member(receiver(0, 0), ToLead::Done(first, Decision::Rollback)));
    let (lead, commands) = feed(lead, LeadEvent::Member(receiver(0, 1), ToLead::Torn(first)));
    let outcome = report(&commands);
    // The chain of causes knows the step, and what else was heard.
    let cause = Cause { step: Some(AttemptStep::Taking), ..cause };
    assert_eq!((&outcome.verdict, outcome.intake), (&Verdict::RolledBack(cause), Intake::InPlace));
    // It is out of service already: no second pause.
    let second = fence(1, 2, 1);
    let (lead, commands) = feed(lead, LeadEvent::Begin(second, Intake::InPlace));
    assert_eq!(commands, tell(&FromLead::Begin(second, Intake::InPlace)));
    let (lead, _) = feed(lead, LeadEvent::TimerFired(TimerId::of(&second, TimerKind::Taking)));
    let (lead, _) = both(lead, &ToLead::Torn(second));
    // One that was begun for what the replica was ends at once.
    let (_, commands) = feed(lead, LeadEvent::Begin(fence(1, 3, 1), Intake::Staged));
    let Verdict::RolledBack(cause) = &report(&commands).verdict else { unreachable!("it cannot commit") };
    assert_eq!(cause.root, RootCause::OutOfService);
}

#[test]
fn cm14_a_lead_that_comes_back_to_torn_weights_does_not_resume() {
    let (recovered, commands) = lead(Engine::Paused, &Phase::Torn(None));
    assert_eq!(commands, [LeadCommand::ReportServing]);
    assert_eq!(recovered.needs(Version(0)).intake, Intake::InPlace);
    let (recovered, _) = lead(Engine::Paused, &Phase::Applied(fence(1, 1, 1)));
    let (_, commands) = both(recovered, &ToLead::Done(fence(1, 1, 1), Decision::Commit));
    assert_eq!(commands, [LeadCommand::Resume], "proven everywhere");
}

#[test]
fn ex5_what_nobody_can_stage_is_taken_in_place() {
    let fence = fence(1, 1, 1);
    let (lead, _) = lead(Engine::Serving, &Phase::Serving(None));
    let (lead, _) = feed(lead, LeadEvent::Begin(fence, Intake::Staged));
    let refused = ToLead::Failed(fence, RootCause::Refused { bytes: 11, limit: 10 });
    let (lead, _) = feed(lead, LeadEvent::Member(receiver(0, 1), refused));
    let (_, commands) = both(lead, &ToLead::Done(fence, Decision::Rollback));
    assert_eq!(report(&commands).intake, Intake::InPlace);
}

#[test]
fn the_chain_of_causes_puts_what_failed_first_before_what_it_led_to() {
    let fence = fence(1, 1, 1);
    let (lead, _) = lead(Engine::Serving, &Phase::Serving(None));
    let (lead, _) = feed(lead, LeadEvent::Begin(fence, Intake::Staged));
    // A receiver meets the end of the sender before the coordinator says who died.
    let cut = RootCause::Transport("cut".into());
    let (lead, _) = feed(lead, LeadEvent::Member(receiver(0, 1), ToLead::Failed(fence, cut.clone())));
    let (lead, _) = feed(lead, LeadEvent::Abort(fence, Cause::new(sender(0), RootCause::Died)));
    let again = ToLead::Failed(fence, RootCause::Aborted);
    let (lead, _) = feed(lead, LeadEvent::Member(receiver(0, 0), again.clone()));
    let (lead, _) = feed(lead, LeadEvent::Member(receiver(0, 0), again));
    let (_, commands) = both(lead, &ToLead::Done(fence, Decision::Rollback));
    let Verdict::RolledBack(cause) = &report(&commands).verdict else { unreachable!("it cannot commit") };
    let effect = |rank, root| Effect { member: Member::Receiver(receiver(0, rank)), root };
    assert_eq!((cause.member, &cause.root), (sender(0), &RootCause::Died));
    assert_eq!(cause.step, Some(AttemptStep::Staging));
    assert_eq!(cause.effects, [effect(1, cut), effect(0, RootCause::Aborted)]);
}

// The coordinator.

fn begun(senders: [PatchRange; 2], base: u64, intake: Intake) -> Option<Needs> {
    let options = CoordinatorOptions {
        max_attempts: 3,
        first_back_off: Duration::from_millis(10),
        longest_back_off: Duration::from_millis(25),
        attempt_deadline: Duration::from_secs(30),
    };
    let (run, plan) = (RunId::default(), PlanDigest::default());
    let ids = [0, 1].map(SenderId);
    let mut coordinator = Coordinator::new(run, plan, crate::words::epoch(1), ids, [receiver(0, 0)], options);
    let needs = Needs { base: Version(base), intake, ..Needs::default() };
    let mut commands = Vec::new();
    for (id, patch) in ids.into_iter().zip(senders) {
        commands.extend(coordinator.handle(CoordinatorEvent::SenderReady(id, Some(patch))));
    }
    commands.extend(coordinator.handle(CoordinatorEvent::ReceiverUp(receiver(0, 0))));
    commands.extend(coordinator.handle(CoordinatorEvent::Serving(ReplicaId(0), needs)));
    commands.into_iter().find_map(|command| match command {
        CoordinatorCommand::Begin { needs, .. } => Some(needs),
        _ => None,
    })
}

#[test]
fn cm6_a_base_that_some_patch_does_not_lead_from_takes_everything_in_place() {
    let patch = |since, version| PatchRange { since: Version(since), version: Version(version) };
    let intake = |senders, base, needs| begun(senders, base, needs).map(|needs| needs.intake);
    assert_eq!(intake([patch(2, 5), patch(4, 5)], 4, Intake::Staged), Some(Intake::Staged));
    assert_eq!(intake([patch(2, 5), patch(4, 5)], 3, Intake::Staged), Some(Intake::InPlace));
    assert_eq!(intake([patch(4, 5), patch(4, 5)], 4, Intake::InPlace), Some(Intake::InPlace));
    assert_eq!(intake([patch(4, 5), patch(4, 6)], 4, Intake::Staged), None, "not ready everywhere");
}
