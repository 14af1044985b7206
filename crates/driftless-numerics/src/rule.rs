//! The certified rule: which elements a step provably left on their BF16 bits.
//!
//! With y the master before the step and x after it, every supported trainer computes `rn(D(y) - q)` or
//! `D(rn(y - q))`, where the update q does not depend on y and the decay map D never decreases. Rounding is
//! monotone, so the whole step is. Let A and L be the first floats above and below the rounding cell of x.
//! - **NU-2 (boundary replay).** x is certified only if replaying the step from A, with the largest update q
//!   could have been, ends above x, and from L, with the smallest, below x. If the cast of y differs from that
//!   of x, then y >= A or y <= L, and monotony contradicts one of the two. So no changed element is certified.
//! - **NU-3 (numbers only).** NaN, infinities and whatever overflows on the way are never certified.
//! - **NU-4 (idle weights).** The cell of a zero ends at the zero of the other sign, which no error bound can
//!   keep apart: zeros are certified only where the trainer's arithmetic leaves them exactly as they were.
//!   An update from `m = +0` is exactly zero in every order of evaluation. So a zero that had one was a zero of the
//!   same sign if the decay keeps signs and flushes nothing, or if the masters before the step were
//!   [audited](MasterAudit::Fit): +0.0 stays +0.0, and a weight of at least 2^-124 stays normal.
//! - **NU-5 (step bound).** The same replay from the edges of the cells of all BF16 values within j steps of x proves
//!   that the old bits were among them.
//!
//! Every operation is FP32, to nearest, rounds once, in the order written; nothing is contracted. The error
//! bound of the update is relative (`rho`) and absolute (`eta`), and both are computed with the scalars.

use crate::audit::MasterAudit;
use crate::bf16::{Cast, key};
use crate::family::{
    Agnostic, Apex, Bitsandbytes, DeepspeedCpu, Family, OptimizerFamily, Sgd, TeRemainder, Torch,
    TorchFusedCuda, Undecayed,
};
use crate::gate::{Gate, NotInvertible};
use crate::params::{GroupStep, Optimizer};
use crate::scalars::Scalars;
use driftless_types::Fqn;
pub use lowered::RuleScalars;
use quick::Quick;

/// The certified rule for the step of one parameter.
///
/// Build it once per parameter and step; it is a few dozen bytes of scalars, and its checks are pure.
#[derive(Clone, Debug)]
pub struct Rule {
    family: Family,
    form: Form,
    scalars: Scalars,
    quick: Quick,
}

/// The arithmetic of a step: that of its family, or a simpler one in which families agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Agnostic,
    Torch,
    TorchFusedCuda,
    Apex,
    TeRemainder,
    DeepspeedCpu,
    Bitsandbytes,
    Undecayed,
    UndecayedHalfAway,
    Sgd,
    SgdHalfAway,
}

const UNDECAYED: Undecayed = Undecayed { cast: Cast::NearestEven };
const UNDECAYED_HALF_AWAY: Undecayed = Undecayed { cast: Cast::HalfAway };
const SGD: Sgd = Sgd { cast: Cast::NearestEven };
const SGD_HALF_AWAY: Sgd = Sgd { cast: Cast::HalfAway };

impl Form {
    fn new(family: Family, step: &GroupStep) -> Self {
        match (step.optimizer, family.cast()) {
            (Optimizer::Sgd, Cast::NearestEven) => return Self::Sgd,
            (Optimizer::Sgd, Cast::HalfAway) => return Self::SgdHalfAway,
            (Optimizer::AdamW | Optimizer::Adam, cast) if step.decoupled().weight_decay == 0.0 => {
                return if cast == Cast::NearestEven { Self::Undecayed } else { Self::UndecayedHalfAway };
            }
            _ => {}
        }
        match family {
            Family::Agnostic => Self::Agnostic,
            Family::Torch => Self::Torch,
            Family::TorchFusedCuda => Self::TorchFusedCuda,
            Family::Apex => Self::Apex,
            Family::TeRemainder => Self::TeRemainder,
            Family::DeepspeedCpu => Self::DeepspeedCpu,
            Family::Bitsandbytes => Self::Bitsandbytes,
        }
    }

    fn arithmetic(self) -> &'static dyn OptimizerFamily {
        match self {
            Self::Agnostic => &Agnostic,
            Self::Torch => &Torch,
            Self::TorchFusedCuda => &TorchFusedCuda,
            Self::Apex => &Apex,
            Self::TeRemainder => &TeRemainder,
            Self::DeepspeedCpu => &DeepspeedCpu,
            Self::Bitsandbytes => &Bitsandbytes,
            Self::Undecayed => &UNDECAYED,
            Self::UndecayedHalfAway => &UNDECAYED_HALF_AWAY,
            Self::Sgd => &SGD,
            Self::SgdHalfAway => &SGD_HALF_AWAY,
        }
    }
}

impl Rule {
    /// The rule for one parameter, of a trainer of `family`, in one step.
    ///
    /// # Errors
    /// [`NotInvertible`] if a hyperparameter fails its gate, or if trainers disagree too much on the scalars of
    /// this step.
    pub fn new(group: &Fqn, family: Family, step: &GroupStep) -> Result<Self, NotInvertible> {
        let form = Form::new(family, step);
        form.arithmetic().gates(group, step)?;
        let scalars = Scalars::new(family.arithmetic(), group, step)?;
        Ok(Self { family, form, quick: Quick::new(&scalars), scalars })
    }

    /// The same rule, where the caller knows that all masters were [fit](MasterAudit::Fit) *before* this step.
    ///
    /// This certifies idle zeros of every family (NU-4): without it trainers that are unknown or flush to zero have
    /// theirs sent at every step, since a tiny weight may just have been flushed.
    #[must_use]
    pub fn with_audited_masters(mut self) -> Self {
        self.scalars = self.scalars.with_audited_masters();
        self
    }

    /// The same rule, with what `audit` of the masters before the step allows.
    ///
    /// # Errors
    /// [`NotInvertible`] if this rule needs them [fit](MasterAudit::Fit) to certify idle zeros, and they are not known
    /// to be. The rule as it was misses nothing then: it sends these zeros.
    pub fn audited(self, group: &Fqn, audit: MasterAudit) -> Result<Self, NotInvertible> {
        if audit == MasterAudit::Fit {
            return Ok(self.with_audited_masters());
        }
        if self.scalars.certifies_idle_zeros {
            return Ok(self);
        }
        let found = match audit {
            MasterAudit::Unfit => "a master of -0.0, or below 2^-124",
            _ => "masters that nobody audited",
        };
        Err(NotInvertible::new(group, Gate::AuditedMasters, found, "masters of +0.0, or of 2^-124 and above"))
    }

    /// The family whose steps this rule inverts.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// What it multiplies and adds with.
    #[must_use]
    pub const fn scalars(&self) -> &Scalars {
        &self.scalars
    }

    /// Whether it reads second moments: SGD has none.
    #[must_use]
    pub const fn reads_second_moments(&self) -> bool {
        !matches!(self.form, Form::Sgd | Form::SgdHalfAway)
    }

    /// Whether the step provably left the served bits of an element as they were: `x` is its master after the
    /// step, `m` and `v` are its moments after it (`v` the running maximum under `AMSGrad`, anything under SGD).
    #[must_use]
    pub fn is_certified_unchanged(&self, x: f32, m: f32, v: f32) -> bool {
        judge::certifies(self.form.arithmetic(), &self.scalars, x, m, v)
    }

    /// How far the step provably moved the served bits of an element at most, on the line of BF16 patterns.
    #[must_use]
    pub fn step_class(&self, x: f32, m: f32, v: f32) -> StepClass {
        let arithmetic = self.form.arithmetic();
        let is_within = |steps: u16| {
            let edges = arithmetic.cast().edges_around(x, steps);
            edges.is_some_and(|edges| judge::stays_between(arithmetic, &self.scalars, edges, x, m, v))
        };
        [StepClass::Unit, StepClass::Near]
            .into_iter()
            .find(|class| is_within(class.steps()))
            .unwrap_or_default()
    }

    /// The update of an element before any decay: `lr/bc1 * m / (sqrt(v)/sqrt(bc2) + eps)`; `lr * m` of SGD.
    #[must_use]
    pub fn update(&self, m: f32, v: f32) -> f32 {
        self.form.arithmetic().update(&self.scalars, m, v)
    }

    /// Whether the update is one that the optimizer's moments can make. Moments that are not numbers pass: their
    /// elements are never certified, so they need no gate.
    #[must_use]
    pub fn update_within_bound(&self, m: f32, v: f32) -> bool {
        judge::is_within_bound(self.form.arithmetic(), &self.scalars, m, v)
    }

    /// The failed gate for a parameter whose largest update, `worst_u`, is out of bounds.
    #[must_use]
    pub fn gate_bound(&self, group: &Fqn, worst_u: f32) -> NotInvertible {
        let expected =
            format_args!("at most {:e}, from its moments", self.scalars.largest_update).to_string();
        NotInvertible::new(group, Gate::UpdateBound, format_args!("an update of {worst_u:e}"), expected)
    }

    /// One bit per element of up to 64, lowest first: set where the element is *not* certified and must be sent.
    /// Equal to [`Self::is_certified_unchanged`] bit for bit, and several times as fast over long slices.
    ///
    /// # Panics
    /// If the three slices differ in length or are longer than 64.
    #[inline(always)]
    #[must_use]
    pub fn send_mask(&self, x: &[f32], m: &[f32], v: &[f32]) -> u64 {
        self.send_mask_and_bound(x, m, v).0
    }

    /// [`Self::send_mask`], and whether every update is [within its bound](Self::update_within_bound): one loop
    /// for both, with a root and a division per group of elements of which some are near an edge.
    /// Inlined, so that a caller compiled for wider vectors gets wider vectors.
    ///
    /// # Panics
    /// If the three slices differ in length or are longer than 64.
    #[inline(always)]
    #[must_use]
    pub fn send_mask_and_bound(&self, x: &[f32], m: &[f32], v: &[f32]) -> (u64, bool) {
        // Each form as a type, so that the inlined loop has no branch left in it and is vectorized.
        let (scalars, quick, slices) = (&self.scalars, self.quick, [x, m, v]);
        let adam = |x, m, v| quick.certifies_adam(x, m, v);
        let sgd = |x, m, _| quick.certifies_sgd(x, m);
        match self.form {
            Form::Agnostic => judge::mask(&Agnostic, scalars, adam, slices),
            Form::Torch => judge::mask(&Torch, scalars, adam, slices),
            Form::TorchFusedCuda => judge::mask(&TorchFusedCuda, scalars, adam, slices),
            Form::Apex => judge::mask(&Apex, scalars, adam, slices),
            Form::TeRemainder => judge::mask(&TeRemainder, scalars, adam, slices),
            Form::DeepspeedCpu => judge::mask(&DeepspeedCpu, scalars, adam, slices),
            Form::Bitsandbytes => judge::mask(&Bitsandbytes, scalars, adam, slices),
            Form::Undecayed => judge::mask(&UNDECAYED, scalars, adam, slices),
            Form::UndecayedHalfAway => judge::mask(&UNDECAYED_HALF_AWAY, scalars, adam, slices),
            Form::Sgd => judge::mask(&SGD, scalars, sgd, slices),
            Form::SgdHalfAway => judge::mask(&SGD_HALF_AWAY, scalars, sgd, slices),
        }
    }
}

/// The certified rule for a family that this crate does not know.
///
/// It judges as [`Rule`] does; [`crate::conformance::check`] tries to break it.
#[derive(Clone, Debug)]
pub struct FamilyRule<F> {
    family: F,
    scalars: Scalars,
}

impl<F: OptimizerFamily> FamilyRule<F> {
    /// The rule for one parameter in one step of a trainer of `family`.
    ///
    /// # Errors
    /// [`NotInvertible`] if a gate of the family fails, or if trainers disagree too much on the scalars of this step.
    pub fn new(family: F, group: &Fqn, step: &GroupStep) -> Result<Self, NotInvertible> {
        family.gates(group, step)?;
        let scalars = Scalars::new(&family, group, step)?;
        Ok(Self { family, scalars })
    }

    /// See [`Rule::with_audited_masters`].
    #[must_use]
    pub fn with_audited_masters(self) -> Self {
        Self { scalars: self.scalars.with_audited_masters(), ..self }
    }

    /// The family whose steps this rule inverts.
    #[must_use]
    pub const fn family(&self) -> &F {
        &self.family
    }

    /// See [`Rule::is_certified_unchanged`].
    #[inline]
    #[must_use]
    pub fn is_certified_unchanged(&self, x: f32, m: f32, v: f32) -> bool {
        judge::certifies(&self.family, &self.scalars, x, m, v)
    }

    /// See [`Rule::send_mask_and_bound`].
    ///
    /// # Panics
    /// If the three slices differ in length or are longer than 64.
    #[inline(always)]
    #[must_use]
    pub fn send_mask_and_bound(&self, x: &[f32], m: &[f32], v: &[f32]) -> (u64, bool) {
        // The cheap test knows the orders of this crate's families alone.
        judge::mask(&self.family, &self.scalars, |_, _, _| false, [x, m, v])
    }
}

/// How far an element provably moved at most, in steps on the line of BF16 patterns ([`crate::bf16::key`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepClass {
    /// By one step, up or down.
    Unit,
    /// By at most 31 steps.
    Near,
    /// Nothing is known.
    #[default]
    Far,
}

impl StepClass {
    /// The bound in steps; the length of the line where nothing is known.
    #[must_use]
    pub const fn steps(self) -> u16 {
        match self {
            Self::Unit => 1,
            Self::Near => 31,
            Self::Far => u16::MAX,
        }
    }

    /// The class of an element whose old and new bits are known.
    #[must_use]
    pub const fn between(old: u16, new: u16) -> Self {
        match key(old).abs_diff(key(new)) {
            0..=1 => Self::Unit,
            2..=31 => Self::Near,
            _ => Self::Far,
        }
    }
}

mod judge;
mod lowered;
mod quick;
#[cfg(test)]
mod tests;
