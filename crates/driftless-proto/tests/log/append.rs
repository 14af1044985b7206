use crate::words::{Log, anchor, delta, epoch, patience, reset, stored};
use driftless_proto::log::{Append, AppendCommand as Command, AppendEvent as Event, Fault, Reading, Stored};
use driftless_types::{Entry, EntryKind, Seq};
use std::sync::Arc;
use std::time::Duration;

fn log() -> Log {
    Log::founded().then(1, anchor(1))
}

const fn retire() -> EntryKind {
    EntryKind::Retire { keep_from: Seq(1), anchors: Vec::new() }
}

/// An append of epoch 2 whose first create failed, so that it reads.
fn reading(kind: EntryKind) -> (Append, Entry) {
    let entry = log().next(2, kind);
    let (mut append, commands) = Append::new(entry.clone(), patience());
    let mine = Arc::new(entry.clone());
    assert_eq!(commands, [Command::Create(Arc::clone(&mine))]);
    assert_eq!(append.handle(Event::CreateFailed), [Command::Read(mine)]);
    (append, entry)
}

fn found(kind: EntryKind, counter: u64, theirs: EntryKind) -> (Entry, Stored, Vec<Command>) {
    let (mut append, mine) = reading(kind);
    let theirs = stored(log().next(counter, theirs));
    let commands = append.handle(Event::Read(Reading::Found(theirs.clone())));
    (mine, theirs, commands)
}

#[test]
fn lg12_an_entry_whose_creation_is_confirmed_is_done() {
    let entry = log().next(2, delta(1, 2));
    let (mut append, _) = Append::new(entry.clone(), patience());
    let mine = stored(entry);
    assert_eq!(append.handle(Event::Created(mine.object)), [Command::Appended(mine)]);
    assert_eq!(append.handle(Event::CreateFailed), []);
}

#[test]
fn lg12_after_any_error_my_own_bytes_mean_done() {
    let (mut append, mine) = reading(delta(1, 2));
    let mine = stored(mine);
    assert_eq!(append.handle(Event::Read(Reading::Found(mine.clone()))), [Command::Appended(mine)]);
}

#[test]
fn lg12_nothing_there_means_the_same_bytes_again_after_a_pause() {
    let (mut append, mine) = reading(delta(1, 2));
    for pause in [1, 2] {
        let armed = [Command::ArmTimer(Duration::from_secs(pause))];
        assert_eq!(append.handle(Event::Read(Reading::Absent)), armed);
        assert_eq!(append.handle(Event::TimerFired), [Command::Create(Arc::new(mine.clone()))]);
        assert_eq!(append.handle(Event::CreateFailed), [Command::Read(Arc::new(mine.clone()))]);
    }
}

#[test]
fn lg12_a_store_that_is_down_is_reported_once_and_tried_on() {
    let (mut append, mine) = reading(delta(1, 2));
    let mut reports = 0;
    for _ in 0..10 {
        let commands = append.handle(Event::Read(Reading::Failed(Fault::Denied)));
        reports += commands.iter().filter(|&command| *command == Command::StoreDown(Fault::Denied)).count();
        assert_eq!(append.handle(Event::TimerFired), [Command::Read(Arc::new(mine.clone()))]);
    }
    assert_eq!(reports, 1);
    let mine = stored(mine);
    assert_eq!(append.handle(Event::Read(Reading::Found(mine.clone()))), [Command::Appended(mine)]);
}

#[test]
fn lg4_lg12_a_newer_epoch_fences_for_good() {
    for theirs in [EntryKind::Epoch, delta(1, 2)] {
        let (_, _, commands) = found(delta(1, 2), 3, theirs);
        assert_eq!(commands, [Command::Fenced(epoch(3))]);
    }
    let (_, _, commands) = found(EntryKind::Epoch, 3, EntryKind::Epoch);
    assert_eq!(commands, [Command::Fenced(epoch(3))]);
}

#[test]
fn lg4_lg12_a_counter_that_another_incarnation_took_is_lost() {
    let (mut append, mine) = reading(EntryKind::Epoch);
    let theirs = stored(Entry { created_by: mine.created_by - 1, ..mine });
    let by = theirs.entry.fence();
    assert_eq!(append.handle(Event::Read(Reading::Found(theirs))), [Command::Fenced(by)]);
}

#[test]
fn lg12_a_retire_of_my_epoch_is_passed_with_a_new_body() {
    let (mine, theirs, commands) = found(delta(1, 2), 2, retire());
    let after = Entry { seq: Seq(3), parent: theirs.object, ..mine };
    assert_eq!(commands, [Command::Passed(theirs), Command::Create(Arc::new(after))]);
    // And a retire goes after what the owner of its epoch wrote.
    let (_, theirs, commands) = found(retire(), 2, delta(1, 2));
    assert_eq!(commands[0], Command::Passed(theirs));
}

#[test]
fn lg12_an_epoch_entry_is_put_after_what_a_lower_epoch_wrote() {
    for theirs in [delta(1, 2), retire(), EntryKind::Epoch] {
        let (mine, theirs, commands) = found(EntryKind::Epoch, 1, theirs);
        let after = Entry { seq: Seq(3), parent: theirs.object, ..mine };
        assert_eq!(commands, [Command::Passed(theirs), Command::Create(Arc::new(after))]);
    }
}

#[test]
fn lg12_anything_else_is_foreign() {
    // Another body of my own epoch, and one of a lower epoch where I was the owner.
    let (_, theirs, commands) = found(delta(1, 2), 2, delta(1, 3));
    assert_eq!(commands, [Command::Foreign(Some(theirs))]);
    let (_, theirs, commands) = found(delta(1, 2), 1, delta(1, 2));
    assert_eq!(commands, [Command::Foreign(Some(theirs))]);
    let (_, theirs, commands) = found(delta(1, 2), 2, reset(2));
    assert_eq!(commands, [Command::Foreign(Some(theirs))]);
    // An entry of another history, even of a newer epoch.
    let (mut append, mine) = reading(EntryKind::Epoch);
    let parent = log().at(0).object;
    let theirs = stored(Entry { parent, epoch: 9, ..mine });
    assert_eq!(append.handle(Event::Read(Reading::Found(theirs.clone()))), [Command::Foreign(Some(theirs))]);
    // Bytes that do not verify.
    let (mut append, _) = reading(EntryKind::Epoch);
    assert_eq!(append.handle(Event::Read(Reading::Invalid)), [Command::Foreign(None)]);
}
