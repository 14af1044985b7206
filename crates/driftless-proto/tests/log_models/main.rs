//! Exhaustive checks of the log's machines as they are: every interleaving of a small stream within a budget of faults.

mod collector;
mod head;
mod reader;
mod state;
mod stream;
mod words;
mod writer;

use driftless_proto::log::{Ask, Leasing};
use head::Heads;
use state::{Faults, State};
use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;
use stream::{Defect, Stream, Trainer};

/// The most states that one model may have: a run that stops there is not exhaustive, and fails.
const STATES_MAX: usize = 2_000_000;

#[track_caller]
#[expect(clippy::disallowed_methods, reason = "how long a model takes is told, and decides nothing")]
fn holds(name: &str, model: Stream) {
    let started = Instant::now();
    let checker = model.checker().threads(2).target_state_count(STATES_MAX * 8).spawn_bfs().join();
    let (unique, all) = (checker.unique_state_count(), checker.state_count());
    eprintln!("{name}: {unique} states, {all} steps, depth {}, {:?}", checker.max_depth(), started.elapsed());
    assert_eq!(broken(&checker), Vec::<String>::new(), "{name}");
    assert!(unique < STATES_MAX, "not exhaustive: {unique} states");
}

/// The properties that do not hold, each with what leads there.
fn broken(checker: &impl Checker<Stream>) -> Vec<String> {
    let found = checker.discoveries();
    let properties = checker.model().properties();
    let broken = properties.iter().filter(|property| match property.expectation {
        Expectation::Always | Expectation::Eventually => found.contains_key(property.name),
        Expectation::Sometimes => !found.contains_key(property.name),
    });
    broken
        .map(|property| match found.get(property.name) {
            None => format!("{}: never", property.name),
            Some(path) => {
                let last = path.last_state();
                format!("{}: {:?} after {:#?}\n{}", property.name, last.breach, steps(path), last.seen())
            }
        })
        .collect()
}

fn steps<S, A: Debug + Clone + PartialEq>(path: &Path<S, A>) -> Vec<String>
where
    S: Clone + PartialEq + Debug + Hash,
{
    path.clone().into_actions().iter().map(|step| format!("{step:?}")).collect()
}

/// A variant that breaks a rule must be found to break a promise.
#[track_caller]
fn is_found(defect: Defect, stream: Stream, promises: &[&str]) {
    let model = Stream { defect, ..stream };
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.target_state_count(STATES_MAX).spawn_bfs().join();
    let found = checker.discoveries();
    let last: Option<&State> = found.get("every promise").map(Path::last_state);
    let breach = last.and_then(|state| state.breach);
    eprintln!("{defect:?}: {} states, {breach:?}", checker.unique_state_count());
    let id = breach.map(|breach| breach.id);
    assert!(id.is_some_and(|id| promises.contains(&id)), "{defect:?} breaks {breach:?}");
    if let Some(path) = found.get("every promise") {
        eprintln!("{:#?}", steps(path));
    }
}

const fn ask(base: Option<u64>, version: u64) -> Ask {
    use driftless_types::Version;
    let base = match base {
        Some(base) => Some(Version(base)),
        None => None,
    };
    Ask { version: Version(version), base }
}

/// The trainer whose versions 1 and 2 are in the log, going on; and one that was restarted from before version 2 and
/// has other bits from there on. One reader is ahead, at version 2, and one behind, at version 1.
fn divergence() -> Stream {
    Stream {
        trainers: vec![
            Trainer { history: 0, asks: vec![ask(Some(2), 3)], is_owner: true },
            Trainer { history: 1, asks: vec![ask(Some(1), 2), ask(Some(2), 3)], is_owner: false },
        ],
        ranks: 1,
        begins_with: vec![(1, None), (2, Some(1))],
        readers: vec![Some(2), Some(1)],
        leasing: Leasing::None,
        collects: false,
        faults: Faults::default(),
        defect: Defect::None,
    }
}

/// Two coordinators that find an empty prefix.
fn founding() -> Stream {
    Stream {
        trainers: vec![
            Trainer { history: 0, asks: vec![ask(None, 1), ask(Some(1), 2)], is_owner: false },
            Trainer { history: 1, asks: vec![ask(None, 1)], is_owner: false },
        ],
        begins_with: Vec::new(),
        readers: vec![None],
        ..divergence()
    }
}

/// A reader that is behind, one that has nothing, and a collector that retires what they need.
fn retention() -> Stream {
    Stream {
        trainers: vec![Trainer { history: 0, asks: vec![ask(None, 3), ask(None, 4)], is_owner: true }],
        readers: vec![Some(1)],
        leasing: Leasing::Kept,
        collects: true,
        ..divergence()
    }
}

/// A coordinator that dies between its blobs and its entry, and one that makes the same bytes again.
fn orphans() -> Stream {
    let trainer = || Trainer { history: 0, asks: vec![ask(None, 4)], is_owner: false };
    Stream {
        trainers: vec![trainer(), trainer()],
        begins_with: vec![(1, None), (2, None), (3, None)],
        readers: Vec::new(),
        ..retention()
    }
}

#[test]
fn lg1_lg4_lg5_lg7_lg11_lg12_two_coordinators_and_two_readers_have_one_history() {
    holds("divergence, calm", divergence());
    // Readers meet only in the log: with faults of writers, one at a time is as good.
    for readers in [vec![Some(2)], vec![Some(1)]] {
        let stream = Stream { readers: readers.clone(), ..divergence() };
        let faults = Faults { writer_deaths: 1, ..Faults::default() };
        holds(&format!("a coordinator dies, a reader at {readers:?}"), Stream { faults, ..stream.clone() });
        let faults = Faults { lost_replies: 1, delays: 1, ..Faults::default() };
        let name = format!("a reply is lost, a creation is late, a reader at {readers:?}");
        holds(&name, Stream { faults, ..stream });
    }
}

#[test]
fn lg1_lg3_lg4_lg12_two_coordinators_found_one_stream() {
    let faults = Faults { writer_deaths: 1, lost_replies: 1, delays: 1, io: 1, ..Faults::default() };
    holds("founding, anything", Stream { faults, readers: Vec::new(), ranks: 2, ..founding() });
    let faults = Faults { reader_deaths: 1, ..Faults::default() };
    holds("founding, a reader from the beginning dies", Stream { faults, ..founding() });
}

#[test]
fn lg5_lg6_lg7_lg11_lg13_readers_that_die_anywhere_replay_or_begin_anew() {
    for readers in [vec![Some(2)], vec![Some(1)], vec![None]] {
        let faults = Faults { reader_deaths: 2, io: 1, ..Faults::default() };
        let name = format!("divergence, a reader at {readers:?} dies twice");
        holds(&name, Stream { faults, readers, ..divergence() });
    }
}

#[test]
fn lg8_lg9_lg13_retention_never_takes_what_a_lease_pins() {
    for readers in [vec![Some(1)], vec![None]] {
        let name = format!("retention, a reader at {readers:?}");
        let stream = Stream { readers, ..retention() };
        holds(&name, stream.clone());
        let faults = Faults { stalls: 1, ..Faults::default() };
        holds(&format!("{name} stands still"), Stream { faults, ..stream.clone() });
        let faults = Faults { reader_deaths: 1, ..Faults::default() };
        holds(&format!("{name} dies"), Stream { faults, ..stream });
    }
    holds("retention, two readers", Stream { readers: vec![Some(1), None], ..retention() });
}

#[test]
fn lg2_lg3_lg9_collection_never_takes_what_is_being_written() {
    let faults = Faults { writer_deaths: 1, lost_replies: 1, ..Faults::default() };
    holds("orphans", Stream { faults, ..orphans() });
}

#[test]
fn lg12_an_append_that_trusts_already_exists_is_found_to_break_it() {
    is_found(Defect::TrustedExists, divergence(), &["LG-12", "LG-4"]);
}

#[test]
fn lg1_entries_that_are_overwritten_are_found_to_break_it() {
    is_found(Defect::Overwritten, divergence(), &["LG-1", "LG-4"]);
}

#[test]
fn lg5_a_delta_that_is_taken_by_its_number_is_found_to_break_it() {
    is_found(Defect::NoLineage, divergence(), &["LG-5"]);
}

#[test]
fn lg9_keys_without_an_epoch_are_found_to_break_it() {
    let faults = Faults { writer_deaths: 1, ..Faults::default() };
    is_found(Defect::KeysWithoutEpoch, Stream { faults, ..orphans() }, &["LG-3", "LG-9"]);
}

#[test]
fn lg8_a_bound_that_is_read_before_the_lease_is_there_is_found_to_break_it() {
    is_found(Defect::LateLease, Stream { readers: vec![None], ..retention() }, &["LG-8"]);
}

#[test]
fn lg8_a_collector_that_does_not_wait_is_found_to_break_it() {
    is_found(Defect::NoWait, retention(), &["LG-8"]);
}

#[test]
fn lg1_version_keyed_objects_and_an_unconditional_head_are_found_to_break_it() {
    let checker = Heads.checker().spawn_bfs().join();
    let found = checker.discoveries();
    eprintln!("{} states, broken: {:?}", checker.unique_state_count(), found.keys());
    for promise in ["one history", "versions rise"] {
        let path = found.get(promise).map(steps);
        assert!(path.is_some(), "{promise}");
        eprintln!("{promise}: {path:#?}");
    }
}
