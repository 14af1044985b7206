//! Elements to step: plausible ones, ones at the edges of cells, and special values.

use super::Element;
use crate::digest::mix;
use crate::params::GroupStep;
use crate::scalars::single;

/// Pseudo-random numbers from a seed: the same on every machine.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// A sequence of its own for every seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// 64 uniform bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A uniform number below `bound`, which is at most 2^32.
    pub const fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * bound as u64) >> 32) as u32
    }

    /// A uniform number in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub const fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number close to the normal distribution: the sum of four uniform ones, scaled.
    pub fn normal(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| self.unit()).sum();
        (sum - 2.0) * 3f64.sqrt()
    }
}

/// Elements for one step.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Seeded,
    /// Without counters: `lr/bc1`, `sqrt(bc2)`, `1 - lr*wd`.
    step_size: f64,
    root: f64,
    keep: f64,
    step: GroupStep,
}

impl Generator {
    /// A sequence of elements for a step.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counters of tests are small")]
    pub fn new(step: &GroupStep, seed: u64) -> Self {
        let hyper = &step.hyper;
        let power = |beta: f64| beta.powf(step.step as f64);
        Self {
            random: Seeded::new(seed),
            step_size: hyper.lr / (1.0 - power(hyper.beta1)),
            root: (1.0 - power(hyper.beta2)).sqrt(),
            keep: 1.0 - hyper.lr * hyper.weight_decay,
            step: step.clone(),
        }
    }

    /// Noise for orders that are not deterministic.
    #[expect(clippy::cast_possible_truncation, reason = "the low half of random bits")]
    pub const fn noise(&mut self) -> u32 {
        self.random.bits() as u32
    }

    /// Weights and moments as training makes them: several kinds of layers, idle rows among them.
    pub fn bulk(&mut self) -> Element {
        let before = match self.random.below(8) {
            0 => 1.0 + 0.1 * self.random.normal(),
            1 => 0.006 * self.random.normal(),
            2 => 0.0,
            3 => (self.random.unit() * 34.5 - 27.6).exp() * self.random.normal().signum(),
            _ => 0.02 * self.random.normal(),
        };
        let (m, v) = self.moments();
        Element { before: single(before), exp_avg: single(m), exp_avg_sq: single(v) }
    }

    fn moments(&mut self) -> (f64, f64) {
        let (beta1, beta2) = (self.step.hyper.beta1, self.step.hyper.beta2);
        if self.random.below(16) == 0 {
            return (0.0, 0.0);
        }
        let scale = 1e-5 * (0.8 * self.random.normal()).exp();
        let gradient = scale * self.random.normal();
        if self.step.step == 1 {
            return ((1.0 - beta1) * gradient, (1.0 - beta2) * gradient * gradient);
        }
        let m = scale * 0.4 * self.random.normal();
        let v = scale * scale * self.root * self.root * (0.5 + self.random.unit());
        (beta1 * m + (1.0 - beta1) * gradient, beta2 * v + (1.0 - beta2) * gradient * gradient)
    }

    /// An element whose master starts or lands within 8 floats of the edge of a cell, at any exponent, by an
    /// update of 2^-3 to 2^20 of its own ulps.
    pub fn adversarial(&mut self) -> Element {
        if self.random.below(2) == 0 { self.landing_at_an_edge() } else { self.starting_at_an_edge() }
    }

    fn landing_at_an_edge(&mut self) -> Element {
        let target = self.near_an_edge();
        let update = self.update_in_ulps_of(target, 20.0);
        let before = single((f64::from(target) + update) / self.keep);
        let jitter = self.random.below(7);
        let before = (0..jitter).fold(before, |y, _| y.next_up());
        let before = (0..3).fold(before, |y: f32, _| y.next_down());
        self.element(before, update)
    }

    /// The sharpest trial: replaying the edge is replaying the step itself.
    fn starting_at_an_edge(&mut self) -> Element {
        let before = self.near_an_edge();
        let update = self.update_in_ulps_of(before, 16.0);
        self.element(before, update)
    }

    /// Moments that give this update.
    fn element(&mut self, before: f32, update: f64) -> Element {
        let v = match self.random.below(2) {
            0 => 1e-10 * self.random.unit(),
            _ => (self.random.unit() * 60.0 - 70.0).exp2(),
        };
        let exp_avg_sq = single(v);
        let denominator = f64::from(exp_avg_sq).sqrt() / self.root + self.step.hyper.eps;
        Element { before, exp_avg: single(update / self.step_size * denominator), exp_avg_sq }
    }

    /// A step of 2^-3 to 2^`most` ulps, of either sign.
    fn update_in_ulps_of(&mut self, x: f32, most: f64) -> f64 {
        let ulp = f32::from_bits((x.to_bits() & 0x7f80_0000).max(0x0080_0000)) * f32::EPSILON;
        let ulps = (self.random.unit() * (most + 3.0) - 3.0).exp2();
        let sign = if self.random.below(2) == 0 { 1.0 } else { -1.0 };
        f64::from(ulp) * ulps * sign
    }

    /// A float within 8 floats of a tie between two BF16 values; mostly of the size of weights.
    fn near_an_edge(&mut self) -> f32 {
        let exponent = match self.random.below(4) {
            0 => self.random.below(255),
            _ => 82 + self.random.below(48),
        };
        let mantissa = match self.random.below(4) {
            0 => 0,
            1 => 127,
            _ => self.random.below(128),
        };
        let tie = (exponent << 23) | (mantissa << 16) | 0x8000;
        let magnitude = tie - 8 + self.random.below(17);
        let signed = magnitude | (self.random.below(2) << 31);
        f32::from_bits(signed)
    }
}

/// Bits of magnitudes at which something special happens: zeros, subnormals, edges of cells and binades, the
/// largest numbers, infinity, NaN.
const SPECIAL_MAGNITUDES: [u32; 44] = [
    0,
    1,
    2,
    0x7fff,
    0x8000,
    0x8001,
    0xffff,
    0x1_0000,
    0x1_7fff,
    0x1_8000,
    0x7f_0000,
    0x7f_7fff,
    0x7f_8000,
    0x7f_8001,
    0x7f_ffff,
    0x80_0000,
    0x80_0001,
    0x80_7fff,
    0x80_8000,
    0x80_8001,
    0x81_0000,
    0x82_0000,
    0xa0_0000,
    0x100_0000,
    0x17f_ffff,
    0x180_0000,
    0x180_8001,
    0x3c00_0000,
    0x3c00_8001,
    0x3f7f_7fff,
    0x3f7f_8000,
    0x3f7f_8001,
    0x3f7f_ffff,
    0x3f80_0000,
    0x3f80_0001,
    0x3f80_7fff,
    0x3f80_8000,
    0x3f80_8001,
    0x7f7f_0000,
    0x7f7f_7fff,
    0x7f7f_8000,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7fc0_0000,
];

const SPECIAL_MOMENTS: [f32; 17] = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1e-38,
    -1e-38,
    1e-20,
    -1e-20,
    1e-9,
    -1e-9,
    1e-5,
    -1e-5,
    1.0,
    -1.0,
    1e30,
    f32::INFINITY,
    f32::NAN,
];

const SPECIAL_SECOND_MOMENTS: [f32; 12] =
    [0.0, 1e-45, 1e-38, 1e-30, 1e-20, 1e-12, 1e-10, 1.0, 1e30, 3e38, f32::INFINITY, f32::NAN];

/// The cross product of special masters and moments.
pub fn special_elements() -> impl Iterator<Item = Element> {
    let masters = SPECIAL_MAGNITUDES.iter().flat_map(|&bits| [bits, bits | 0x8000_0000]);
    masters.flat_map(|bits| {
        SPECIAL_MOMENTS.iter().flat_map(move |&exp_avg| {
            let with = move |&exp_avg_sq: &f32| Element { before: f32::from_bits(bits), exp_avg, exp_avg_sq };
            SPECIAL_SECOND_MOMENTS.iter().map(with)
        })
    })
}
