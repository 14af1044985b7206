//! A rule as plain numbers, for code on other hardware that evaluates it bit for bit.

use super::quick::Quick;
use super::{Form, Rule};

/// The scalars of a [`Rule`] in the layout that compiled kernels read: 96 bytes, C order, no padding.
///
/// The first ones are those of [`Scalars`](crate::Scalars), of the same names; `quick_*` are those of the cheap test that
/// certifies most elements without a root or a division.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of `Scalars`")]
pub struct RuleScalars {
    pub loss_double: f64,
    pub step_size: f32,
    pub inverse_root: f32,
    pub eps: f32,
    pub rho: f32,
    pub eta: f32,
    pub keep: [f32; 2],
    pub loss: f32,
    pub unknown_update: f32,
    pub unknown_weight: f32,
    pub largest_second_moment: f32,
    pub largest_update: f32,
    pub quick_root: f32,
    pub quick_inverse_eps: f32,
    pub quick_largest_quotient: f32,
    pub quick_second_moment_bits: u32,
    pub quick_along: f32,
    pub quick_either: f32,
    pub quick_weight: f32,
    pub quick_always: f32,
    pub certifies_idle_zeros: u32,
    pub certifies_idle_weights: u32,
}

impl RuleScalars {
    /// For code that judges by no rule, and reads none.
    pub const NONE: Self = Self {
        loss_double: 0.0,
        step_size: 0.0,
        inverse_root: 0.0,
        eps: 0.0,
        rho: 0.0,
        eta: 0.0,
        keep: [0.0; 2],
        loss: 0.0,
        unknown_update: 0.0,
        unknown_weight: 0.0,
        largest_second_moment: 0.0,
        largest_update: 0.0,
        quick_root: 0.0,
        quick_inverse_eps: 0.0,
        quick_largest_quotient: 0.0,
        quick_second_moment_bits: 0,
        quick_along: 0.0,
        quick_either: 0.0,
        quick_weight: 0.0,
        quick_always: 0.0,
        certifies_idle_zeros: 0,
        certifies_idle_weights: 0,
    };
}

impl Rule {
    /// The arithmetic by which it judges, as kernels name it: that of its family, or a simpler one in which families
    /// agree.
    #[must_use]
    pub const fn form(&self) -> &'static str {
        match self.form {
            Form::Agnostic => "agnostic",
            Form::Torch => "torch",
            Form::TorchFusedCuda => "torch_fused_cuda",
            Form::Apex => "apex",
            Form::TeRemainder => "te_remainder",
            Form::DeepspeedCpu => "deepspeed_cpu",
            Form::Bitsandbytes => "bitsandbytes",
            Form::Undecayed => "undecayed",
            Form::UndecayedHalfAway => "undecayed_half_away",
            Form::Sgd => "sgd",
            Form::SgdHalfAway => "sgd_half_away",
        }
    }

    /// What it multiplies and adds with, for a kernel of its [`form`](Self::form).
    #[must_use]
    pub fn lowered(&self) -> RuleScalars {
        let scalars = &self.scalars;
        let Quick { root, inverse_eps, largest_quotient, second_moment_bits, along, either, weight, always } =
            self.quick;
        RuleScalars {
            loss_double: scalars.loss_double,
            step_size: scalars.step_size,
            inverse_root: scalars.inverse_root,
            eps: scalars.eps,
            rho: scalars.rho,
            eta: scalars.eta,
            keep: scalars.keep,
            loss: scalars.loss,
            unknown_update: scalars.unknown_update,
            unknown_weight: scalars.unknown_weight,
            largest_second_moment: scalars.largest_second_moment,
            largest_update: scalars.largest_update,
            quick_root: root,
            quick_inverse_eps: inverse_eps,
            quick_largest_quotient: largest_quotient,
            quick_second_moment_bits: second_moment_bits,
            quick_along: along,
            quick_either: either,
            quick_weight: weight,
            quick_always: always,
            certifies_idle_zeros: scalars.certifies_idle_zeros.into(),
            certifies_idle_weights: scalars.certifies_idle_weights.into(),
        }
    }
}
