use super::*;
use crate::bf16::{INFINITY_CELL, cell_edges};
use crate::conformance::{Forward, Generator, Order, Seeded, settings, special_elements};
use crate::family::agnostic::step_down;
use crate::params::{Hyperparameters, Moments};
use crate::scalars::single;
use proptest::prelude::*;

fn usual() -> Hyperparameters {
    Hyperparameters { lr: 1e-6, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }
}

fn rule(family: Family, hyper: Hyperparameters) -> Rule {
    Rule::new(&Fqn::from("w"), family, &GroupStep::new(7, hyper)).unwrap()
}

fn refusal(family: Family, step: u64, hyper: Hyperparameters) -> NotInvertible {
    Rule::new(&Fqn::from("w"), family, &GroupStep::new(step, hyper)).unwrap_err()
}

#[test]
fn nu1_the_rule_checks_the_hyperparameters_itself() {
    for family in Family::ALL {
        assert_eq!(refusal(family, 7, Hyperparameters { eps: 0.0, ..usual() }).gate, Gate::Epsilon);
        assert_eq!(refusal(family, 7, Hyperparameters { lr: -1.0, ..usual() }).gate, Gate::LearningRate);
        assert_eq!(refusal(family, 0, usual()).gate, Gate::StepCounter);
    }
}

#[test]
fn nu1_scalars_that_trainers_disagree_on_are_refused() {
    let betas = Hyperparameters { beta2: 0.999_999_9, ..usual() };
    let error = refusal(Family::Torch, 1, betas.clone());
    assert_eq!(error.gate, Gate::ScalarSpread);
    assert!(error.to_string().contains("scalar-spread: found"), "{error}");
    assert_eq!(
        refusal(Family::Torch, u64::MAX, Hyperparameters { beta2: 1.0 - 1e-14, ..betas }).gate,
        Gate::ScalarSpread
    );
    // Only trainers that flush to zero need an epsilon that subnormals cannot hide behind.
    let small = Hyperparameters { eps: 1e-20, ..usual() };
    assert_eq!(refusal(Family::Agnostic, 7, small.clone()).gate, Gate::ScalarSpread);
    assert_eq!(refusal(Family::Apex, 7, small.clone()).gate, Gate::ScalarSpread);
    assert_eq!(rule(Family::Torch, small).family(), Family::Torch);
}

#[test]
fn nu1_updates_beyond_the_moments_are_out_of_bound() {
    let rule = rule(Family::Torch, usual());
    assert!(rule.update_within_bound(9e-5, 1e-8));
    assert!(rule.update_within_bound(0.0, 0.0));
    // A first moment far above the root of the second cannot come from any gradients.
    assert!(!rule.update_within_bound(1e-2, 1e-8));
    assert!(!rule.update_within_bound(1e30, 0.0));
    for (m, v) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, 1.0), (1.0, f32::INFINITY)] {
        assert!(rule.update_within_bound(m, v), "moments that are no numbers are no gate");
    }
    let error = rule.gate_bound(&Fqn::from("w"), rule.update(1e-2, 1e-8));
    assert_eq!((error.group.as_str(), error.gate), ("w", Gate::UpdateBound));
    assert!(error.found.contains("e-"), "{error}");
}

#[test]
fn nu3_what_is_not_a_number_is_never_certified() {
    let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for family in Family::ALL {
        for weight_decay in [0.0, 0.1] {
            let rule = rule(family, Hyperparameters { weight_decay, ..usual() });
            let audited = rule.clone().with_audited_masters();
            for rule in [rule, audited] {
                assert!(rule.is_certified_unchanged(1.0, 0.0, 0.0));
                for odd in odd {
                    assert!(!rule.is_certified_unchanged(odd, 0.0, 0.0));
                    for x in [0.0, 1.0] {
                        assert!(!rule.is_certified_unchanged(x, odd, 0.0));
                        assert!(!rule.is_certified_unchanged(x, 0.0, odd));
                    }
                }
                // Neither is the finite cell of infinity, a negative second moment, or one that may overflow.
                assert!(!rule.is_certified_unchanged(f32::MAX, 0.0, 0.0));
                assert!(!rule.is_certified_unchanged(1.0, 0.0, -1.0));
                assert!(!rule.is_certified_unchanged(1.0, 0.0, f32::MAX));
            }
        }
    }
}

#[test]
fn nu4_zeros_are_certified_where_arithmetic_keeps_them() {
    // (family, weight decay, certified, certified with audited masters)
    let idle = [
        (Family::Agnostic, 0.0, false, true),
        (Family::Agnostic, 0.1, false, true),
        (Family::Torch, 0.0, true, true),
        (Family::Torch, 0.1, true, true),
        (Family::TorchFusedCuda, 0.0, true, true),
        (Family::TorchFusedCuda, 0.1, false, true),
        (Family::Apex, 0.0, false, true),
        (Family::Apex, 0.1, false, true),
        (Family::Apex, 1.0, false, true),
        (Family::TeRemainder, 0.1, false, true),
        (Family::DeepspeedCpu, 0.0, true, true),
        (Family::DeepspeedCpu, 0.1, false, true),
        (Family::Bitsandbytes, 0.0, false, true),
        (Family::Bitsandbytes, 0.1, false, true),
    ];
    for (family, weight_decay, plain, audited) in idle {
        let rule = rule(family, Hyperparameters { weight_decay, ..usual() });
        for zero in [0.0, -0.0] {
            assert_eq!(rule.is_certified_unchanged(zero, 0.0, 0.0), plain, "{family} {weight_decay}");
            let audited_rule = rule.clone().with_audited_masters();
            assert_eq!(
                audited_rule.is_certified_unchanged(zero, 0.0, 0.0),
                audited,
                "{family} {weight_decay}"
            );
            // m = -0.0 may have turned -0.0 into +0.0, and so may no learning rate at all.
            assert!(!rule.is_certified_unchanged(zero, -0.0, 0.0));
        }
        if weight_decay == 0.0 {
            for m in [0.0, -0.0] {
                assert!(
                    rule.is_certified_unchanged(f32::from_bits(1), m, 0.0),
                    "{family} keeps what it is given"
                );
            }
        }
    }
}

/// The rule word for word: no scalar hoisted, no mirror image.
fn by_the_book(rule: &Rule, hyper: &Hyperparameters, x: f32, m: f32, v: f32) -> bool {
    let edges = cell_edges(x);
    let (a, l) = (edges.above, edges.below);
    let (rho, eta) = (rule.scalars.rho, rule.scalars.eta);
    let c = single(1.0 - hyper.lr * hyper.weight_decay);
    let w = single(hyper.lr * hyper.weight_decay);
    let d = v.sqrt() * rule.scalars.inverse_root + rule.scalars.eps;
    let u = rule.scalars.step_size * (m / d);
    let e = match rule.form {
        Form::Agnostic => (rho + w) * u.abs() + rho * w * x.abs() + eta,
        _ => rho * u.abs() + eta,
    };
    let (high, low) = (u + e, u - e);
    let step_up = |x: f32| -step_down(-x);
    match rule.form {
        Form::Undecayed => (a - high) > x && (l - low) < x,
        Form::Torch => (c * a - high) > x && (c * l - low) < x,
        Form::Agnostic => step_down(step_down(c * a) - high) > x && step_up(step_up(c * l) - low) < x,
        Form::Apex => {
            a - (high + w * a + rho * (w * a.abs())) > x && l - (low + w * l - rho * (w * l.abs())) < x
        }
        Form::DeepspeedCpu => (a.mul_add(-w, a) - high) > x && (l.mul_add(-w, l) - low) < x,
        _ => unreachable!("not compared here"),
    }
}

#[test]
fn nu2_evaluates_the_rule_word_for_word() {
    let mut certified = 0;
    for (seed, step) in (1..).zip(settings()) {
        for family in [Family::Agnostic, Family::Torch, Family::Apex, Family::DeepspeedCpu] {
            let Ok(mut rule) = Rule::new(&Fqn::from("w"), family, &step) else {
                continue;
            };
            // DeepSpeed multiplies in FP32: give the book the same product.
            rule.scalars.loss = single(step.hyper.lr * step.hyper.weight_decay);
            let forward = Forward::new(Order::Torch, &step);
            let mut generator = Generator::new(&step, seed);
            for _ in 0..2000 {
                let element = generator.adversarial();
                let (m, v) = (element.exp_avg, element.exp_avg_sq);
                let x = forward.step(element, 0);
                if x.abs() < INFINITY_CELL && m.is_finite() && m != 0.0 {
                    let verdict = rule.is_certified_unchanged(x, m, v);
                    assert_eq!(
                        verdict,
                        by_the_book(&rule, &step.hyper, x, m, v),
                        "{family} {x:e} {m:e} {v:e}"
                    );
                    certified += u32::from(verdict);
                }
            }
        }
    }
    assert!(certified > 50_000, "{certified}");
}

fn assert_mask_agrees(rule: &Rule, x: &[f32], m: &[f32], v: &[f32]) {
    let (mask, all_within) = rule.send_mask_and_bound(x, m, v);
    assert_eq!(mask, rule.send_mask(x, m, v));
    assert_eq!(all_within, m.iter().zip(v).all(|(&m, &v)| rule.update_within_bound(m, v)));
    for (index, ((&x, &m), &v)) in x.iter().zip(m).zip(v).enumerate() {
        let sent = mask >> index & 1 == 1;
        assert_eq!(sent, !rule.is_certified_unchanged(x, m, v), "{rule:?} {x:e} {m:e} {v:e}");
    }
    assert!(x.len() == 64 || mask >> x.len() == 0);
}

#[test]
fn masks_agree_with_the_scalar_rule() {
    let mut random = Seeded::new(11);
    let elements: Vec<_> = special_elements().collect();
    for family in Family::ALL {
        for weight_decay in [0.0, 0.1] {
            let rule = rule(family, Hyperparameters { weight_decay, ..usual() });
            for chunk in elements.chunks(64) {
                let of = |part: fn(&crate::conformance::Element) -> f32| {
                    chunk.iter().map(part).collect::<Vec<_>>()
                };
                assert_mask_agrees(&rule, &of(|e| e.before), &of(|e| e.exp_avg), &of(|e| e.exp_avg_sq));
            }
            for length in 0..=64 {
                let x: Vec<_> = (0..length).map(|_| single(random.normal())).collect();
                let m: Vec<_> = (0..length).map(|_| single(1e-3 * random.normal())).collect();
                let v: Vec<_> = (0..length).map(|_| single(1e-6 * random.unit())).collect();
                assert_mask_agrees(&rule, &x, &m, &v);
            }
        }
    }
}

/// One element in all lanes: what the cheap test says of it is what the mask says.
#[test]
fn nu6_no_element_passes_the_cheap_test_alone() {
    let (mut passed, mut certified) = (0, 0);
    for (seed, step) in (1..).zip(settings()) {
        for family in Family::ALL {
            for optimizer in Optimizer::ALL {
                let step = step.clone().with_optimizer(optimizer);
                let Ok(rule) = Rule::new(&Fqn::from("w"), family, &step) else { continue };
                let mut generator = Generator::new(&step, seed);
                for round in 0..600 {
                    let element = if round % 2 == 0 { generator.adversarial() } else { generator.bulk() };
                    let (mut x, m, v) = (element.before, element.exp_avg, element.exp_avg_sq);
                    if round % 3 == 0 {
                        // Where the two tests part: around the float at which the update reaches an edge.
                        let edges = cell_edges(x);
                        let edge = if m < 0.0 { edges.below } else { edges.above };
                        let off = generator.noise() % 200;
                        x = edge - rule.update(m, v) * single(0.99 + f64::from(off) / 1e4);
                    }
                    let (mask, within) = rule.send_mask_and_bound(&[x; 16], &[m; 16], &[v; 16]);
                    let exact = rule.is_certified_unchanged(x, m, v);
                    let wanted = if exact { 0 } else { 0xffff };
                    assert_eq!(mask, wanted, "{family} {optimizer} {x:e} {m:e} {v:e} {step:?}");
                    assert_eq!(within, rule.update_within_bound(m, v));
                    certified += u32::from(exact);
                    passed += u32::from(match optimizer {
                        Optimizer::Sgd => rule.quick.certifies_sgd(x, m),
                        _ => rule.quick.certifies_adam(x, m, v),
                    });
                }
            }
        }
    }
    println!("{passed} of {certified} certified pass the cheap test");
    // Half of these elements are adversarial, and a third lie where the two tests part.
    assert!(passed > certified / 3 && certified > 50_000, "{passed} of {certified}");
}

#[test]
fn nu4_rounded_moments_certify_nothing_idle() {
    for moments in [Moments::Bf16Nearest, Moments::Bf16Stochastic] {
        for (family, weight_decay) in
            [(Family::Torch, 0.1), (Family::Torch, 0.0), (Family::DeepspeedCpu, 0.0)]
        {
            let step = GroupStep::new(7, Hyperparameters { weight_decay, ..usual() });
            let exact = Rule::new(&Fqn::from("w"), family, &step).unwrap();
            assert!(exact.is_certified_unchanged(0.0, 0.0, 0.0));
            let rule = Rule::new(&Fqn::from("w"), family, &step.with_moments(moments)).unwrap();
            for rule in [rule.clone(), rule.with_audited_masters()] {
                assert!(!rule.is_certified_unchanged(0.0, 0.0, 0.0), "{family} {moments:?}");
                // Far from the edges an error bound is enough.
                assert!(rule.is_certified_unchanged(1.0, 0.0, 0.0), "{family} {moments:?}");
                assert!(!rule.is_certified_unchanged(f32::from_bits(1), 0.0, 0.0));
            }
        }
    }
}

#[test]
fn nu1_masters_that_a_family_needs_audited_have_a_gate() {
    let group = Fqn::from("w");
    for (family, weight_decay, needs) in [
        (Family::Torch, 0.1, false),
        (Family::DeepspeedCpu, 0.0, false),
        (Family::DeepspeedCpu, 0.1, true),
        (Family::Agnostic, 0.0, true),
        (Family::Apex, 0.1, true),
    ] {
        let rule = rule(family, Hyperparameters { weight_decay, ..usual() });
        assert!(
            rule.clone().audited(&group, MasterAudit::Fit).unwrap().is_certified_unchanged(0.0, 0.0, 0.0)
        );
        for audit in [MasterAudit::Unknown, MasterAudit::Unfit] {
            match rule.clone().audited(&group, audit) {
                Ok(rule) => assert!(!needs && rule.is_certified_unchanged(0.0, 0.0, 0.0), "{family}"),
                Err(error) => {
                    assert!(needs, "{family}");
                    assert_eq!((error.group.as_str(), error.gate), ("w", Gate::AuditedMasters));
                }
            }
        }
    }
}

#[test]
fn nu1_sgd_and_coupled_decay_have_rules_of_their_own() {
    let strong = Hyperparameters { weight_decay: 1e6, ..usual() };
    let coupled = GroupStep::new(7, strong.clone()).with_optimizer(Optimizer::Adam);
    let rule = Rule::new(&Fqn::from("w"), Family::Torch, &coupled).unwrap();
    assert_eq!(rule.form, Form::Undecayed);
    assert!(rule.reads_second_moments());
    let buffer = GroupStep::new(7, Hyperparameters { eps: 0.0, ..strong }).with_optimizer(Optimizer::Sgd);
    let rule = Rule::new(&Fqn::from("w"), Family::TeRemainder, &buffer).unwrap();
    assert_eq!(rule.form, Form::SgdHalfAway);
    assert!(!rule.reads_second_moments() && rule.update_within_bound(f32::MAX, -1.0));
    assert_eq!(rule.update(0.5, f32::NAN), 0.5e-6);
    let without = Hyperparameters { beta1: 0.0, ..usual() };
    let step = GroupStep::new(7, without).with_optimizer(Optimizer::Sgd);
    assert_eq!(Rule::new(&Fqn::from("w"), Family::Torch, &step).unwrap_err().gate, Gate::Momentum);
}

#[test]
fn nu5_classes_bound_the_steps_of_every_order() {
    let mut found = [0u32; 3];
    for (seed, step) in (1..).zip(settings()) {
        for family in Family::ALL {
            let Ok(rule) = Rule::new(&Fqn::from("w"), family, &step) else { continue };
            for forward in Order::of(family).iter().map(|&order| Forward::new(order, &step)) {
                let mut generator = Generator::new(&step, seed);
                for _ in 0..400 {
                    let element = generator.adversarial();
                    let after = forward.step(element, generator.noise());
                    let class = rule.step_class(after, element.exp_avg, element.exp_avg_sq);
                    let [old, new] = [element.before, after].map(|x| family.cast().bits(x));
                    assert!(
                        StepClass::between(old, new) <= class,
                        "{family} {:?} {element:?}",
                        forward.order()
                    );
                    found[class as usize] += u32::from(old != new);
                }
            }
        }
    }
    println!("changed elements by class: {found:?}");
    assert!(found.iter().all(|&count| count > 1000), "{found:?}");
}

#[test]
fn nu5_classes_of_known_bits_are_distances_on_the_line() {
    assert_eq!(StepClass::between(0x3f80, 0x3f80), StepClass::Unit);
    assert_eq!(StepClass::between(0x0000, 0x8000), StepClass::Unit);
    assert_eq!(StepClass::between(0x3f80, 0x3f82), StepClass::Near);
    assert_eq!(StepClass::between(0x800f, 0x000f), StepClass::Near);
    assert_eq!(StepClass::between(0x3f9f, 0x3f80), StepClass::Near);
    assert_eq!(StepClass::between(0x3fa0, 0x3f80), StepClass::Far);
    assert_eq!(rule(Family::Torch, usual()).step_class(f32::NAN, 0.0, 0.0), StepClass::Far);
}

proptest! {
    #[test]
    fn nu2_certified_elements_stay_in_their_cell_under_any_bits(
        y: u32, m: u32, v in 0u32..0x7f80_0000, order in prop::sample::select(Order::ALL.to_vec()), noise: u32,
    ) {
        let step = GroupStep::new(7, usual());
        let (y, m, v) = (f32::from_bits(y), f32::from_bits(m), f32::from_bits(v));
        let x = Forward::new(order, &step).step(crate::conformance::Element { before: y, exp_avg: m, exp_avg_sq: v }, noise);
        let rule = rule(Family::Agnostic, usual());
        prop_assert!(!rule.is_certified_unchanged(x, m, v) || crate::bf16::cast(x) == crate::bf16::cast(y));
    }
}
