//! No family's rule misses a change, whatever the order of operations and however hard the element.

use driftless_numerics::conformance::{
    self, Element, Forward, Generator, Order, Tally, check_family, check_special_values,
};
use driftless_numerics::{Family, GroupStep, Hyperparameters, Rule, bf16};
use driftless_types::Fqn;
use std::sync::atomic::AtomicBool;

fn assert_nothing_missed(family: Family, tally: &Tally) {
    assert_eq!(tally.missed, 0, "{family}: {:?}", tally.first_miss);
    assert!(
        tally.changed > 10_000 && tally.changed < tally.evaluated - 10_000,
        "{family}: a dull test {tally:?}"
    );
}

#[test]
fn nu2_no_family_misses_a_change() {
    for family in Family::ALL {
        let elements = if family == Family::Agnostic { 1500 } else { 3000 };
        assert_nothing_missed(family, &check_family(family, elements));
    }
}

#[test]
fn nu4_no_family_misses_a_change_among_special_values() {
    for family in Family::ALL {
        assert_nothing_missed(family, &check_special_values(family));
    }
}

/// Bulk, adversarial and special elements in all nine orders, each judged by the agnostic rule and by its own.
#[test]
fn nu2_nothing_is_missed_in_a_hundred_million_evaluations() {
    let evaluations = if cfg!(debug_assertions) { 1_000_000 } else { 100_000_000 };
    let report = conformance::run(evaluations, 2026, &|_| (), &AtomicBool::new(false));
    println!("{report:#?}");
    assert!(report.evaluations >= evaluations);
    assert_eq!(report.missed(), 0, "{:?}", report.first_miss());
    for (family, tally) in &report.families {
        assert!(tally.changed > evaluations / 200 && tally.surplus > 0, "{family}: a dull test {tally:?}");
    }
}

/// Why a family is part of the handshake, and proof that the tests above can fail.
#[test]
fn the_rule_of_another_family_misses_changes() {
    let hyper = Hyperparameters { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let step = GroupStep::new(10, hyper);
    for (family, order) in [
        (Family::Torch, Order::Apex),
        (Family::Apex, Order::Torch),
        (Family::DeepspeedCpu, Order::Torch),
        (Family::Bitsandbytes, Order::Torch),
    ] {
        let rule = Rule::new(&Fqn::from("w"), family, &step).unwrap();
        let forward = Forward::new(order, &step);
        let mut generator = Generator::new(&step, 3);
        let mut tally = Tally::default();
        for _ in 0..100_000 {
            let element = generator.adversarial();
            tally.judge(&rule, &forward, element, generator.noise());
        }
        println!("{family} on {order:?}: {tally:?}");
        assert!(tally.missed > 10, "{family} hardly misses a step of {order:?}");
    }
}

/// The overhead law: on plain data a known family sends about `2*rho` of the changes in vain.
#[test]
fn surplus_on_plain_data_follows_the_law() {
    let hyper = Hyperparameters { lr: 1e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    let step = GroupStep::new(100, hyper);
    let forward = Forward::new(Order::Torch, &step);
    for (family, allowed_per_10_000) in [(Family::Torch, 5), (Family::Agnostic, 20)] {
        let rule = Rule::new(&Fqn::from("w"), family, &step).unwrap();
        let mut generator = Generator::new(&step, 7);
        let mut tally = Tally::default();
        while tally.evaluated < 1_000_000 {
            let element = generator.bulk();
            // Zeros have a law of their own.
            if element.before != 0.0 {
                tally.judge(&rule, &forward, element, 0);
            }
        }
        println!("{family}: {tally:?}");
        assert_eq!(tally.missed, 0);
        assert!(
            tally.changed > 10_000 && tally.surplus * 10_000 <= allowed_per_10_000 * tally.changed,
            "{tally:?}"
        );
    }
}

/// Without an update the replay of an edge is exact, so one rounding of the decay factor decides.
#[test]
fn nu2_replays_the_very_rounding_of_the_decay() {
    for (family, order) in
        [(Family::DeepspeedCpu, Order::DeepspeedCpu), (Family::Bitsandbytes, Order::Bitsandbytes)]
    {
        let mut tally = Tally::default();
        for pair in 0..1500u32 {
            let (lr, weight_decay) = (0.003 + 1e-5 * f64::from(pair / 10), 0.5 + 0.03 * f64::from(pair % 10));
            let hyper = Hyperparameters { lr, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay };
            let step = GroupStep::new(5, hyper);
            let rule = Rule::new(&Fqn::from("w"), family, &step).unwrap();
            let forward = Forward::new(order, &step);
            for bits in 0x3f80..0x4000 {
                let edges = bf16::cell_edges(bf16::widen(bits));
                for before in [edges.above, edges.below] {
                    let element = Element { before, exp_avg: 0.0, exp_avg_sq: 0.0 };
                    (0..2).for_each(|noise| tally.judge(&rule, &forward, element, noise));
                }
            }
        }
        assert!(tally.missed == 0 && tally.changed > 100_000, "{family}: {tally:?}");
    }
}
