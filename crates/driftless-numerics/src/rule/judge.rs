//! The rule on one element, generic over the arithmetic of its family: inlined, each family is a loop of its own.

use crate::bf16::{CellEdges, INFINITY_CELL};
use crate::family::OptimizerFamily;
use crate::scalars::Scalars;

/// Elements that are tried together before any of them is judged alone.
const LANES: usize = 16;

impl Scalars {
    /// NU-4: what an audit of the masters before the step adds.
    pub(super) fn with_audited_masters(self) -> Self {
        // With moments that were rounded, an idle weight may not have been idle.
        let certifies_idle_zeros = self.are_moments_exact;
        Self { certifies_idle_zeros, ..self }
    }
}

/// Whether an element provably stayed in its cell.
#[inline(always)]
pub(super) fn certifies<F>(family: &F, scalars: &Scalars, x: f32, m: f32, v: f32) -> bool
where
    F: OptimizerFamily + ?Sized,
{
    let edges = family.outside(x);
    let is_idle = are_numbers(family, scalars, x, m, v) & is_idle(scalars, x, m);
    stays_between(family, scalars, edges, x, m, v) | is_idle
}

/// NU-2: whether an element provably was between two edges, both of which replay to beyond where it is now.
#[inline(always)]
pub(super) fn stays_between<F>(
    family: &F,
    scalars: &Scalars,
    edges: CellEdges,
    x: f32,
    m: f32,
    v: f32,
) -> bool
where
    F: OptimizerFamily + ?Sized,
{
    let u = family.update(scalars, m, v);
    let e = family.update_error(scalars, x, u);
    // NU-2: the second test is the mirror image of the first, bit for bit.
    let stays = (family.replay(scalars, edges.above, u + e) > x)
        & (family.replay(scalars, -edges.below, -(u - e)) > -x);
    stays & are_numbers(family, scalars, x, m, v)
}

/// NU-3: comparisons with NaN are false.
#[inline(always)]
fn are_numbers<F>(family: &F, scalars: &Scalars, x: f32, m: f32, v: f32) -> bool
where
    F: OptimizerFamily + ?Sized,
{
    (x.abs() < INFINITY_CELL) & family.are_numbers(scalars, m, v)
}

/// NU-4: an update that is exactly zero and, at a zero weight, of the sign that changes nothing.
#[inline(always)]
fn is_idle(scalars: &Scalars, x: f32, m: f32) -> bool {
    let at_zero = (x == 0.0) & (m.to_bits() == 0) & scalars.certifies_idle_zeros;
    at_zero | ((m == 0.0) & (x != 0.0) & scalars.certifies_idle_weights)
}

/// Whether the optimizer's moments can make this update, or are no numbers.
#[inline(always)]
pub(super) fn is_within_bound<F>(family: &F, scalars: &Scalars, m: f32, v: f32) -> bool
where
    F: OptimizerFamily + ?Sized,
{
    let numbers = (m.abs() <= f32::MAX) & (v.abs() <= f32::MAX);
    !numbers | (family.update(scalars, m, v).abs() <= scalars.largest_update)
}

/// One bit per element of up to 64 that is not certified, and whether all updates are within their bound. `surely`
/// tells some elements for which both hold (NU-6).
#[inline(always)]
pub(super) fn mask<F>(
    family: &F,
    scalars: &Scalars,
    surely: impl Fn(f32, f32, f32) -> bool,
    [x, m, v]: [&[f32]; 3],
) -> (u64, bool)
where
    F: OptimizerFamily + ?Sized,
{
    assert!(
        x.len() == m.len() && x.len() == v.len() && x.len() <= 64,
        "three slices of one length, at most 64"
    );
    let (xs, x) = x.as_chunks::<LANES>();
    let (ms, m) = m.as_chunks::<LANES>();
    let (vs, v) = v.as_chunks::<LANES>();
    let (mut send, mut all_within) = (0, true);
    for (group, ((x, m), v)) in xs.iter().zip(ms).zip(vs).enumerate() {
        // NU-6: most groups hold no element near an edge.
        let elements = x.iter().zip(m).zip(v);
        if elements.fold(true, |all, ((&x, &m), &v)| all & surely(x, m, v)) {
            continue;
        }
        let (marks, within) = exact_mask(family, scalars, x, m, v);
        send |= marks << (LANES * group);
        all_within &= within;
    }
    if !x.is_empty() {
        let (marks, within) = exact_mask(family, scalars, x, m, v);
        send |= marks << (LANES * xs.len());
        all_within &= within;
    }
    (send, all_within)
}

/// The mask of at most 16 elements by the exact test.
#[inline(always)]
fn exact_mask<F>(family: &F, scalars: &Scalars, x: &[f32], m: &[f32], v: &[f32]) -> (u64, bool)
where
    F: OptimizerFamily + ?Sized,
{
    let mut send = [0u8; LANES];
    let mut all_within = true;
    for (((flag, &x), &m), &v) in send.iter_mut().zip(x).zip(m).zip(v) {
        *flag = u8::from(!certifies(family, scalars, x, m, v));
        all_within &= is_within_bound(family, scalars, m, v);
    }
    // Eight flags to eight bits: the multiplication moves flag i to bit 56 + i, where nothing else lands.
    let eights = send.as_chunks::<8>().0.iter().map(|eight| u64::from_le_bytes(*eight));
    let bits = eights.map(|flags| flags.wrapping_mul(0x0102_0408_1020_4080) >> 56);
    (bits.enumerate().fold(0, |mask, (index, byte)| mask | (byte << (8 * index))), all_within)
}
