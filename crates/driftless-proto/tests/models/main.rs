//! Exhaustive checks of the machines as they are: every interleaving of a small cluster within a budget of faults.

mod cluster;
mod exchange;
mod lead;
mod part;
mod replica;
mod senders;
mod shell;
mod state;
mod words;

use cluster::{Afterlife, Cluster, Defect, Memory, Role, Start};
use driftless_proto::Intake;
use exchange::Rounds;
use state::State;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Path, Property};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

/// The most states that one model may have: a run that stops there is not exhaustive, and fails.
const STATES_MAX: usize = 2_000_000;

#[track_caller]
#[expect(clippy::disallowed_methods, reason = "how long a model takes is told, and decides nothing")]
fn holds<M: Model + Sync + Send + 'static>(name: &str, model: M)
where
    M::State: Hash + PartialEq + Clone + Debug + Send + Sync + Seen,
    M::Action: Hash + PartialEq + Clone + Debug + Send + Sync,
{
    let started = Instant::now();
    let checker = model.checker().threads(2).target_state_count(STATES_MAX * 8).spawn_bfs().join();
    let (unique, all) = (checker.unique_state_count(), checker.state_count());
    eprintln!("{name}: {unique} states, {all} steps, depth {}, {:?}", checker.max_depth(), started.elapsed());
    assert_eq!(broken(&checker), Vec::<String>::new(), "{name}");
    assert!(unique < STATES_MAX, "not exhaustive: {unique} states");
}

/// What a state says of itself when it ends a counterexample.
trait Seen {
    fn seen(&self) -> &'static str;
}

impl Seen for State {
    fn seen(&self) -> &'static str {
        self.breach.map_or("nothing more happens", |breach| breach.found)
    }
}

impl Seen for exchange::At {
    fn seen(&self) -> &'static str {
        "this"
    }
}

/// The properties that do not hold, each with what leads there.
fn broken<M: Model>(checker: &impl Checker<M>) -> Vec<String>
where
    M::State: Hash + PartialEq + Clone + Debug + Seen,
    M::Action: PartialEq + Clone + Debug,
{
    let found = checker.discoveries();
    let properties = checker.model().properties();
    let is_broken = |property: &Property<M>| match property.expectation {
        Expectation::Always | Expectation::Eventually => found.contains_key(property.name),
        Expectation::Sometimes => !found.contains_key(property.name),
    };
    properties
        .iter()
        .filter(|property| is_broken(property))
        .map(|property| told(property.name, found.get(property.name)))
        .collect()
}

fn told<S, A>(property: &str, path: Option<&Path<S, A>>) -> String
where
    S: Seen + Clone + PartialEq,
    A: Debug + Clone + PartialEq,
{
    let Some(path) = path else { return format!("{property}: never") };
    let steps: Vec<_> = path.clone().into_vec();
    let what = steps.last().map_or("", |(last, _)| last.seen());
    let actions: Vec<String> =
        steps.iter().filter_map(|(_, action)| Some(format!("{:?}", action.as_ref()?))).collect();
    format!("{property}: {what} after {actions:#?}")
}

/// A wrapper that breaks a rule must be found to break a promise.
#[track_caller]
fn is_found(defect: Defect, cluster: Cluster, promises: &[&str]) {
    let cluster = cluster.with_defect(defect);
    let checker = cluster.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.target_state_count(STATES_MAX * 8).spawn_bfs().join();
    let found = checker.discoveries();
    let broken = promises.iter().find_map(|&promise| Some((promise, found.get(promise)?)));
    assert!(
        broken.is_some(),
        "{defect:?} breaks {:?} in {} states",
        found.keys(),
        checker.unique_state_count()
    );
    let Some((promise, path)) = broken else { return };
    eprintln!("{defect:?}: breaks {promise}, {} states", checker.unique_state_count());
    eprintln!("{}", told(promise, Some(path)));
}

const ALL: [Role; 4] = [Role::Coordinator, Role::Sender, Role::Lead, Role::Receiver];

#[test]
fn ex3_ex4_ex5_ex6_every_exchange_comes_to_its_end() {
    // Payload for both, for one, for none, and more than a receiver takes.
    for payload in [[[4, 2], [3, 0]], [[4, 0], [0, 0]], [[0, 0], [0, 0]], [[11, 1], [0, 1]]] {
        let intake = Intake::Staged;
        holds(&format!("{payload:?} bytes, calm"), Rounds { payload, intake, faults: 0 });
        holds(&format!("{payload:?} bytes, two faults"), Rounds { payload, intake, faults: 2 });
    }
    for payload in [[[2, 1], [0, 2]], [[0, 0], [0, 0]], [[3, 0], [1, 0]]] {
        let intake = Intake::InPlace;
        holds(&format!("{payload:?} windows, calm"), Rounds { payload, intake, faults: 0 });
        holds(&format!("{payload:?} windows, a fault"), Rounds { payload, intake, faults: 1 });
    }
}

#[test]
fn cm12_a_calm_cluster_comes_to_rest_at_the_last_version() {
    holds("2 senders, 2 receivers, calm", Cluster::of(2, 1, 2));
    holds("2 replicas, calm", Cluster::of(1, 2, 1));
}

#[test]
fn cm1_cm2_cm3_cm4_cm5_cm6_cm10_cm11_cm12_hold_whoever_dies() {
    for role in ALL {
        let cluster = Cluster::of(2, 1, 2).with_death_of(&[role]);
        holds(&format!("2 senders, 2 receivers, a {role:?} dies"), cluster);
    }
    holds("2 replicas, anyone dies", Cluster::of(1, 2, 1).with_death_of(&ALL));
}

#[test]
fn cm1_cm2_cm3_cm4_cm5_cm6_cm10_cm11_cm12_hold_if_something_fails_or_a_deadline_passes_early() {
    holds("2 senders, 2 receivers, a fault", Cluster::of(2, 1, 2).with_faults(1, 0));
    holds("2 senders, 2 receivers, an early deadline", Cluster::of(2, 1, 2).with_faults(0, 1));
    holds("2 replicas, a fault", Cluster::of(1, 2, 1).with_faults(1, 0));
    holds("2 replicas, an early deadline", Cluster::of(1, 2, 1).with_faults(0, 1));
}

#[test]
fn cm1_cm3_cm4_cm11_cm12_hold_if_someone_dies_and_something_else_goes_wrong() {
    for role in ALL {
        let cluster = Cluster { versions: 1, ..Cluster::of(1, 1, 2).with_death_of(&[role]) };
        holds(
            &format!("one sender, one version, a {role:?} dies, a fault"),
            cluster.clone().with_faults(1, 0),
        );
        holds(
            &format!("one sender, one version, a {role:?} dies, an early deadline"),
            cluster.with_faults(0, 1),
        );
    }
}

#[test]
fn cm6_a_replica_that_was_left_behind_gets_all_that_it_lacks() {
    let cluster = Cluster { max_attempts: 1, ..Cluster::of(2, 1, 2) };
    holds("one attempt a version, a fault", cluster.clone().with_faults(1, 0));
    holds("one attempt a version, a death", cluster.with_death_of(&ALL));
    let cluster = Cluster { max_attempts: 1, ..Cluster::of(1, 2, 1) };
    holds("one attempt a version, 2 replicas", cluster.with_faults(1, 0));
}

#[test]
fn cm14_a_joiner_is_current_before_it_serves() {
    let blank = |senders, receivers| Cluster { start: Start::Blank, ..Cluster::of(senders, 1, receivers) };
    holds("blank: 2 senders, 2 receivers, calm", Cluster { versions: 1, ..blank(2, 2) });
    holds("blank: 1 sender, 2 receivers, calm", blank(1, 2));
    let one = || Cluster { versions: 1, ..blank(1, 2) };
    for role in ALL {
        holds(&format!("blank: 1 sender, 2 receivers, a {role:?} dies"), one().with_death_of(&[role]));
    }
    holds("blank: 2 senders, 1 receiver, anyone dies", blank(2, 1).with_death_of(&ALL));
    holds("blank: 1 sender, 2 receivers, a fault", one().with_faults(1, 0));
    holds("blank: 1 sender, 2 receivers, an early deadline", one().with_faults(0, 1));
}

#[test]
fn cm1_cm6_cm14_a_replica_whose_patch_was_lost_takes_everything_out_of_service() {
    let cluster = Cluster { memory: Memory::Forgets, ..Cluster::of(1, 1, 2) };
    holds("a sender forgets, or something else fails", cluster.clone().with_faults(1, 0));
    let cluster = Cluster { versions: 1, ..cluster };
    holds("a sender forgets, and something fails", cluster.clone().with_faults(2, 0));
    let cluster = Cluster { memory: Memory::Forgets, versions: 1, ..Cluster::of(1, 1, 1) };
    for role in [Role::Coordinator, Role::Sender, Role::Lead] {
        let cluster = cluster.clone().with_death_of(&[role]);
        holds(&format!("a sender forgets, a {role:?} dies"), cluster.with_faults(1, 0));
    }
}

#[test]
fn cm14_torn_weights_that_are_forgotten_are_found_to_break_it() {
    let cluster = Cluster { memory: Memory::Forgets, ..Cluster::of(1, 1, 2) };
    let cluster = cluster.with_death_of(&[Role::Receiver]).with_faults(1, 0);
    is_found(Defect::ForgetTorn, cluster, &["CM-2", "CM-3", "CM-14"]);
}

#[test]
fn cm15_a_replica_that_is_dead_for_good_stops_no_other() {
    let cluster = Cluster::of(1, 2, 1).with_death_of(&[Role::Lead]);
    holds("2 replicas, one dead for good", Cluster { afterlife: Afterlife::None, ..cluster });
}

#[test]
fn cm5_words_without_tags_are_found_to_break_it() {
    let cluster = Cluster::of(2, 1, 2).with_death_of(&[Role::Lead]);
    is_found(Defect::NoTags, cluster, &["CM-1", "CM-3"]);
}

#[test]
fn cm1_a_receiver_that_applies_on_arrival_is_found_to_break_it() {
    is_found(Defect::ApplyOnArrival, Cluster::of(2, 1, 2), &["CM-1"]);
}

#[test]
fn cm3_an_applied_receiver_that_gives_up_alone_is_found_to_break_it() {
    is_found(Defect::AppliedTimesOutAlone, Cluster::of(2, 1, 2).with_faults(0, 1), &["CM-3", "CM-4"]);
}

#[test]
fn cm6_a_patch_that_is_made_before_the_last_outcome_is_known_is_found_to_break_it() {
    is_found(Defect::PatchBeforeOutcome, Cluster::of(2, 1, 2).with_faults(1, 0), &["CM-6"]);
}

#[test]
fn cm3_a_binding_that_does_not_outlive_its_actor_is_found_to_break_it() {
    let cluster = Cluster::of(2, 1, 2).with_death_of(&[Role::Receiver]);
    is_found(Defect::ForgetBinding, cluster, &["CM-2", "CM-3"]);
}
