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
//!
//! Every operation is FP32, to nearest, rounds once, in the order written; nothing is contracted. The error
//! bound of the update is relative (`rho`) and absolute (`eta`), and both are computed with the scalars.

#[cfg(doc)]
use crate::audit::MasterAudit;
use crate::bf16::{Cast, INFINITY_CELL};
use crate::gate::{Gate, NotInvertible, check_hyperparameters};
use crate::params::{Family, GroupStep};
use crate::scalars::{StepScalars, single};
use driftless_types::Fqn;

/// The relative error of an update in any order of evaluation, apart from the scalars.
const BASE_RHO: f64 = 1.0 / 32_768.0;
/// Scalars that trainers compute with a larger relative spread than this are refused.
const MAX_SPREAD: f64 = 1.0 / 256.0;
/// How far contraction may move a double-precision decay, relative to the weight; four times what it can.
const DOUBLE_SLACK: f64 = 4.0 * f64::EPSILON;

/// Where and how a trainer applies weight decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decay {
    /// There is none.
    Absent,
    /// `y*c - q`.
    Multiplied,
    /// Any of the others.
    Unknown,
    /// `y - w*y - q`, the decay in double precision.
    Double,
    /// `y - (q + w*y)`.
    Inside,
    /// `fma(y, -w, y) - q`.
    Fused,
    /// `(y - q)*c`.
    After,
}

impl Decay {
    const fn new(family: Family, weight_decay: f64) -> Self {
        if weight_decay == 0.0 {
            return Self::Absent;
        }
        match family {
            Family::Agnostic => Self::Unknown,
            Family::Torch => Self::Multiplied,
            Family::TorchFusedCuda => Self::Double,
            Family::Apex | Family::TeRemainder => Self::Inside,
            Family::DeepspeedCpu => Self::Fused,
            Family::Bitsandbytes => Self::After,
        }
    }
}

/// The certified rule for the step of one parameter.
///
/// Build it once per parameter and step; it is a few dozen bytes of scalars, and its checks are pure.
#[derive(Clone, Debug)]
pub struct Rule {
    family: Family,
    decay: Decay,
    /// `lr / bc1`.
    step_size: f32,
    /// `1 / sqrt(bc2)`.
    inverse_root: f32,
    eps: f32,
    rho: f32,
    eta: f32,
    /// `1 - lr*wd`, in the smallest and largest way a trainer of the family may round it.
    keep: [f32; 2],
    /// `lr*wd`.
    loss: f32,
    /// `lr*wd` before rounding.
    loss_double: f64,
    /// `rho + lr*wd`.
    unknown_update: f32,
    /// `rho * lr*wd`.
    unknown_weight: f32,
    /// Second moments above this overflow in some order of evaluation.
    largest_second_moment: f32,
    /// The largest update that Adam's moments allow.
    largest_update: f32,
    /// Whether a zero with `m = +0` stays the zero it was.
    certifies_idle_zeros: bool,
}

impl Rule {
    /// The rule for one parameter, of a trainer of `family`, in one step.
    ///
    /// # Errors
    /// [`NotInvertible`] if a hyperparameter fails its gate, or if trainers disagree too much on the scalars of
    /// this step.
    pub fn new(group: &Fqn, family: Family, step: &GroupStep) -> Result<Self, NotInvertible> {
        check_hyperparameters(group, step)?;
        let hyper = &step.hyper;
        let scalars = StepScalars::new(step);
        let inverse_root = 1.0 / scalars.second_correction.sqrt();
        let flushed = if may_flush(family) { 2f64.powi(-62) / hyper.eps * inverse_root } else { 0.0 };
        let spread = scalars.spread + flushed;
        if spread.is_nan() || spread > MAX_SPREAD {
            let expected = format_args!("a relative spread of at most {MAX_SPREAD}").to_string();
            return Err(NotInvertible::new(group, Gate::ScalarSpread, format_args!("{spread:e}"), expected));
        }
        let rho = single(BASE_RHO + 2.0 * spread);
        // Flushed moments are scaled by the step size, which exceeds one only outside of practice.
        let eta = single(2f64.powi(-123) * (1.0 + 1.0 / hyper.eps) * scalars.step_size.max(1.0));
        let loss_double = hyper.lr * hyper.weight_decay;
        let loss = loss_of(family, hyper.lr, hyper.weight_decay);
        let bound = hyper.lr * scalars.moment_ratio * (1.0 + 2.0 * f64::from(rho)) + f64::from(eta);
        Ok(Self {
            family,
            decay: Decay::new(family, hyper.weight_decay),
            step_size: single(scalars.step_size),
            inverse_root: single(inverse_root),
            eps: single(hyper.eps),
            rho,
            eta,
            keep: keep_of(family, hyper.lr, hyper.weight_decay),
            loss,
            loss_double,
            unknown_update: rho + loss,
            unknown_weight: rho * loss,
            largest_second_moment: single(0.5 * f64::from(f32::MAX) * scalars.second_correction),
            largest_update: single(bound),
            certifies_idle_zeros: keeps_every_zero(family, hyper.weight_decay),
        })
    }

    /// The same rule, where the caller knows that all masters were [fit](MasterAudit::Fit) *before* this step.
    ///
    /// This certifies idle zeros of every family (NU-4): without it trainers that are unknown or flush to zero have
    /// theirs sent at every step, since a tiny weight may just have been flushed.
    #[must_use]
    pub const fn with_audited_masters(self) -> Self {
        Self { certifies_idle_zeros: true, ..self }
    }

    /// The family whose steps this rule inverts.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Whether the step provably left the served bits of an element as they were: `x` is its master after the
    /// step, `m` and `v` are its moments after it (`v` the running maximum under `AMSGrad`).
    #[inline]
    #[must_use]
    pub fn is_certified_unchanged(&self, x: f32, m: f32, v: f32) -> bool {
        self.certifies(self.family.cast(), self.decay, x, m, v)
    }

    /// The update of an element before any decay: `lr/bc1 * m / (sqrt(v)/sqrt(bc2) + eps)`.
    #[inline(always)]
    #[must_use]
    pub fn update(&self, m: f32, v: f32) -> f32 {
        self.step_size * (m / (v.sqrt() * self.inverse_root + self.eps))
    }

    /// Whether the update is one that Adam's moments can make. Moments that are not numbers pass: their elements
    /// are never certified, so they need no gate.
    #[inline(always)]
    #[must_use]
    pub fn update_within_bound(&self, m: f32, v: f32) -> bool {
        let numbers = (m.abs() <= f32::MAX) & (v.abs() <= f32::MAX);
        !numbers | (self.update(m, v).abs() <= self.largest_update)
    }

    /// The failed gate for a parameter whose largest update, `worst_u`, is out of bounds.
    #[must_use]
    pub fn gate_bound(&self, group: &Fqn, worst_u: f32) -> NotInvertible {
        let expected = format_args!("at most {:e}, from its moments", self.largest_update).to_string();
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

    /// [`Self::send_mask`], and whether every update is [within its bound](Self::update_within_bound): one loop,
    /// one root and one division per element for both.
    /// Inlined, so that a caller compiled for wider vectors gets wider vectors.
    ///
    /// # Panics
    /// If the three slices differ in length or are longer than 64.
    #[inline(always)]
    #[must_use]
    pub fn send_mask_and_bound(&self, x: &[f32], m: &[f32], v: &[f32]) -> (u64, bool) {
        assert!(
            x.len() == m.len() && x.len() == v.len() && x.len() <= 64,
            "three slices of one length, at most 64"
        );
        // Each form as a literal, so that the inlined loop has no branch left in it and is vectorized.
        match (self.family.cast(), self.decay) {
            (Cast::NearestEven, Decay::Absent) => self.mask(Cast::NearestEven, Decay::Absent, x, m, v),
            (Cast::NearestEven, Decay::Multiplied) => {
                self.mask(Cast::NearestEven, Decay::Multiplied, x, m, v)
            }
            (Cast::NearestEven, Decay::Unknown) => self.mask(Cast::NearestEven, Decay::Unknown, x, m, v),
            (Cast::NearestEven, Decay::Double) => self.mask(Cast::NearestEven, Decay::Double, x, m, v),
            (Cast::NearestEven, Decay::Inside) => self.mask(Cast::NearestEven, Decay::Inside, x, m, v),
            (Cast::NearestEven, Decay::Fused) => self.mask(Cast::NearestEven, Decay::Fused, x, m, v),
            (Cast::NearestEven, Decay::After) => self.mask(Cast::NearestEven, Decay::After, x, m, v),
            (Cast::HalfAway, Decay::Absent) => self.mask(Cast::HalfAway, Decay::Absent, x, m, v),
            (Cast::HalfAway, Decay::Inside) => self.mask(Cast::HalfAway, Decay::Inside, x, m, v),
            (cast, decay) => self.mask(cast, decay, x, m, v),
        }
    }

    #[inline(always)]
    fn mask(&self, cast: Cast, decay: Decay, x: &[f32], m: &[f32], v: &[f32]) -> (u64, bool) {
        let mut send = [0u8; 64];
        let mut all_within = true;
        for (((flag, &x), &m), &v) in send.iter_mut().zip(x).zip(m).zip(v) {
            *flag = u8::from(!self.certifies(cast, decay, x, m, v));
            all_within &= self.update_within_bound(m, v);
        }
        // Eight flags to eight bits: the multiplication moves flag i to bit 56 + i, where nothing else lands.
        let eights = send.as_chunks::<8>().0.iter().map(|eight| u64::from_le_bytes(*eight));
        let bits = eights.map(|flags| flags.wrapping_mul(0x0102_0408_1020_4080) >> 56);
        (bits.enumerate().fold(0, |mask, (index, byte)| mask | (byte << (8 * index))), all_within)
    }

    #[inline(always)]
    fn certifies(&self, cast: Cast, decay: Decay, x: f32, m: f32, v: f32) -> bool {
        let u = self.update(m, v);
        let e = self.update_error(decay, x, u);
        let edges = cast.edges(x);
        // NU-2: the second test is the mirror image of the first, bit for bit.
        let stays = (self.replayed(decay, edges.above, u + e) > x)
            & (self.replayed(decay, -edges.below, -(u - e)) > -x);
        // NU-3: comparisons with NaN are false.
        let numbers = (x.abs() < INFINITY_CELL)
            & (m.abs() <= f32::MAX)
            & (v >= 0.0)
            & (v <= self.largest_second_moment);
        numbers & (stays | self.is_idle(decay, x, m))
    }

    /// How far the trainer's update may be from `u`.
    #[inline(always)]
    fn update_error(&self, decay: Decay, x: f32, u: f32) -> f32 {
        match decay {
            Decay::Unknown => self.unknown_update * u.abs() + self.unknown_weight * x.abs() + self.eta,
            _ => self.rho * u.abs() + self.eta,
        }
    }

    /// NU-2: the least that a step can make of `y` if its update is at most `q`.
    #[inline(always)]
    fn replayed(&self, decay: Decay, y: f32, q: f32) -> f32 {
        match decay {
            Decay::Absent => y - q,
            Decay::Multiplied => self.keep[0] * y - q,
            Decay::Unknown => step_down(step_down(self.keep[0] * y) - q),
            Decay::Double => {
                let wide = f64::from(y);
                single(wide - self.loss_double * wide - DOUBLE_SLACK * wide.abs()) - q
            }
            Decay::Inside => y - (q + self.loss * y + self.rho * (self.loss * y.abs())),
            Decay::Fused => y.mul_add(-self.loss, y) - q,
            Decay::After => {
                let moved = y - q;
                (self.keep[0] * moved).min(self.keep[1] * moved)
            }
        }
    }

    /// NU-4: an update that is exactly zero and, at a zero weight, of the sign that changes nothing.
    #[inline(always)]
    fn is_idle(&self, decay: Decay, x: f32, m: f32) -> bool {
        let no_decay = matches!(decay, Decay::Absent);
        let at_zero = (x == 0.0) & (m.to_bits() == 0) & self.certifies_idle_zeros;
        at_zero | (no_decay & (m == 0.0) & (x != 0.0))
    }
}

/// Trainers that may flush subnormals to zero: those built with fast math, and the unknown.
const fn may_flush(family: Family) -> bool {
    match family {
        Family::Agnostic | Family::Apex | Family::TeRemainder | Family::Bitsandbytes => true,
        Family::Torch | Family::TorchFusedCuda | Family::DeepspeedCpu => false,
    }
}

/// NU-4: whether a zero weight that got `m = +0` was the same zero before, whatever the masters held.
const fn keeps_every_zero(family: Family, weight_decay: f64) -> bool {
    match family {
        Family::Torch => true,
        // Decay by subtraction turns -0.0 into +0.0.
        Family::TorchFusedCuda | Family::DeepspeedCpu => weight_decay == 0.0,
        // A subnormal weight may have been flushed.
        Family::Agnostic | Family::Apex | Family::TeRemainder | Family::Bitsandbytes => false,
    }
}

/// `lr*wd` as the trainer's kernel holds it.
fn loss_of(family: Family, lr: f64, weight_decay: f64) -> f32 {
    match family {
        Family::DeepspeedCpu => single(lr) * single(weight_decay),
        _ => single(lr * weight_decay),
    }
}

/// `1 - lr*wd`, rounded; two values where a kernel may or may not contract it.
fn keep_of(family: Family, lr: f64, weight_decay: f64) -> [f32; 2] {
    if family != Family::Bitsandbytes {
        return [single(1.0 - lr * weight_decay); 2];
    }
    let contracted = (-single(lr)).mul_add(single(weight_decay), 1.0);
    [contracted, 1.0 - single(lr) * single(weight_decay)]
}

/// The next float toward negative infinity, where -0.0 comes next after +0.0.
#[inline(always)]
const fn step_down(x: f32) -> f32 {
    let bits = x.to_bits().cast_signed();
    let place = (bits ^ ((bits >> 31) & i32::MAX)).wrapping_sub(1);
    f32::from_bits((place ^ ((place >> 31) & i32::MAX)).cast_unsigned())
}

#[cfg(test)]
mod tests;
