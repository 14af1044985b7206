//! The scalar functions that kernels are made of, against those of `driftless-numerics`: bit for bit.

use crate::shim::{Grid, launch};
use driftless_numerics::conformance::{Generator, special_elements};
use driftless_numerics::{
    Agnostic, Apex, Bitsandbytes, Cast, DeepspeedCpu, Family, GroupStep, Hyperparameters, Moments, Optimizer,
    OptimizerFamily, Rule, RuleScalars, Sgd, TeRemainder, Torch, TorchFusedCuda, Undecayed,
};
use driftless_types::Fqn;

#[repr(C)]
struct ProbeArgs {
    x: *const f32,
    m: *const f32,
    v: *const f32,
    y: *const f32,
    q: *const f32,
    out: *mut u32,
    count: u64,
    rule: RuleScalars,
}

const PROBED: usize = 8;

/// The arithmetic of a form.
fn arithmetic(form: &str) -> Box<dyn OptimizerFamily> {
    match form {
        "agnostic" => Box::new(Agnostic),
        "torch" => Box::new(Torch),
        "torch_fused_cuda" => Box::new(TorchFusedCuda),
        "apex" => Box::new(Apex),
        "te_remainder" => Box::new(TeRemainder),
        "deepspeed_cpu" => Box::new(DeepspeedCpu),
        "bitsandbytes" => Box::new(Bitsandbytes),
        "undecayed" => Box::new(Undecayed { cast: Cast::NearestEven }),
        "undecayed_half_away" => Box::new(Undecayed { cast: Cast::HalfAway }),
        "sgd" => Box::new(Sgd { cast: Cast::NearestEven }),
        "sgd_half_away" => Box::new(Sgd { cast: Cast::HalfAway }),
        other => panic!("no arithmetic of the name {other}"),
    }
}

/// Masters, moments, and any two other numbers.
#[derive(Default)]
struct Numbers {
    x: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    y: Vec<f32>,
    q: Vec<f32>,
}

impl Numbers {
    fn new(step: &GroupStep) -> Self {
        let mut generator = Generator::new(step, 5);
        let made = (0..2500).flat_map(|_| [generator.bulk(), generator.adversarial()]);
        let elements: Vec<_> = made.chain(special_elements().step_by(7)).collect();
        let mut numbers = Self::default();
        for (k, element) in elements.iter().enumerate() {
            // Updates of every size beside a master: other elements' masters, and their moments.
            let other = &elements[(k * 7919 + 13) % elements.len()];
            numbers.x.push(element.before);
            numbers.m.push(element.exp_avg);
            numbers.v.push(element.exp_avg_sq);
            numbers.y.push(if k % 3 == 0 { other.before } else { element.before });
            numbers.q.push(if k % 2 == 0 { element.exp_avg } else { element.before * 1.7e-3 });
        }
        numbers
    }
}

/// NaN is NaN: which of two operands hands on its bits is nobody's promise.
fn bits(x: f32) -> u32 {
    if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }
}

fn check(rule: &Rule, numbers: &Numbers) {
    let count = numbers.x.len();
    let mut out = vec![0_u32; PROBED * count];
    let args = ProbeArgs {
        x: numbers.x.as_ptr(),
        m: numbers.m.as_ptr(),
        v: numbers.v.as_ptr(),
        y: numbers.y.as_ptr(),
        q: numbers.q.as_ptr(),
        out: out.as_mut_ptr(),
        count: count as u64,
        rule: rule.lowered(),
    };
    launch(&format!("probe_{}", rule.form()), Grid { blocks: 1, threads: 32, seed: 1 }, &args);
    let (family, scalars) = (arithmetic(rule.form()), rule.scalars());
    let is_number = |bits: u32| !f32::from_bits(bits).is_nan();
    for (k, found) in out.as_chunks::<PROBED>().0.iter().enumerate() {
        let (x, m, v) = (numbers.x[k], numbers.m[k], numbers.v[k]);
        let (y, q) = (numbers.y[k], numbers.q[k]);
        let edges = family.outside(x);
        let certified = rule.is_certified_unchanged(x, m, v);
        let wanted = [
            bits(family.update(scalars, m, v)),
            bits(family.update_error(scalars, x, q)),
            bits(family.replay(scalars, y, q)),
            bits(edges.above),
            bits(edges.below),
            u32::from(family.cast().bits(x)),
            u32::from(certified),
        ];
        let floats = found.map(|word| if is_number(word) { word } else { 0x7fc0_0000 });
        assert_eq!(floats[..7], wanted, "{}: {x:e} {m:e} {v:e} {y:e} {q:e}", rule.form());
        assert!(certified || found[7] == 0, "nu6: {} {x:e} {m:e} {v:e}", rule.form());
        assert!(!certified || found[7] == 0 || rule.update_within_bound(m, v));
    }
    let sure = out.iter().skip(7).step_by(PROBED).filter(|&&sure| sure == 1).count();
    assert!(sure > count / 20 || rule.scalars().step_size > 0.01, "the cheap test certifies some: {sure}");
}

#[test]
fn nu6_scalar_functions_give_the_bits_of_their_twins() {
    let usual = Hyperparameters { lr: 1e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };
    // A decay of such odd factors that every way of rounding it shows.
    let strong = Hyperparameters { lr: 0.031, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.71 };
    let mut forms = std::collections::BTreeSet::new();
    for hyper in [usual, strong] {
        let step = GroupStep::new(10, hyper);
        let numbers = Numbers::new(&step);
        for family in Family::ALL {
            for optimizer in Optimizer::ALL {
                for moments in [Moments::Fp32, Moments::Bf16Nearest] {
                    let step = step.clone().with_optimizer(optimizer).with_moments(moments);
                    let Ok(rule) = Rule::new(&Fqn::from("w"), family, &step) else { continue };
                    forms.insert(rule.form());
                    check(&rule, &numbers);
                    check(&rule.with_audited_masters(), &numbers);
                }
            }
        }
    }
    assert_eq!(forms.len(), 11, "every form has been run: {forms:?}");
}
