//! Randomness without state: a number is a function of the seed and of where it is used.

/// A source of numbers that depend on nothing but the seed, a stream and an index.
///
/// Gradients drawn from it do not know in which order, or by which rank, they are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    seed: u64,
}

/// The increment of splitmix64: an odd constant that spreads consecutive indices.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Noise {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed: mix(seed ^ GOLDEN) }
    }

    /// The same seed, for another purpose.
    pub(super) const fn stream(self, stream: u64) -> Self {
        Self { seed: mix(self.seed.wrapping_add(mix(stream.wrapping_mul(GOLDEN)))) }
    }

    /// 64 random bits.
    pub(super) const fn bits(self, index: u64) -> u64 {
        mix(self.seed.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    /// Uniform in (0, 1).
    pub(super) fn uniform(self, index: u64) -> f32 {
        uniform_of((self.bits(index) >> 32) as u32)
    }

    /// Close to a standard normal, never beyond 3.5.
    pub(super) fn normal(self, index: u64) -> f32 {
        normal_of(self.bits(index))
    }

    /// A normal with a heavy tail: divided by the root of a uniform number, at most fifty-fold.
    pub(super) fn heavy_tailed(self, index: u64) -> f32 {
        let bits = self.bits(index);
        let tail = uniform_of((mix(bits) >> 32) as u32).sqrt().recip().min(50.0);
        normal_of(bits) * tail
    }
}

/// The finalizer of splitmix64.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn uniform_of(bits: u32) -> f32 {
    // 24 bits fit an f32 exactly; the half keeps it off zero.
    ((bits >> 8) as f32 + 0.5) / 16_777_216.0
}

/// The sum of four uniform numbers, centered and scaled to unit variance.
fn normal_of(bits: u64) -> f32 {
    let quarter = |shift: u32| f32::from((bits >> shift & 0xffff) as u16);
    let sum = quarter(0) + quarter(16) + quarter(32) + quarter(48);
    (sum - 131_070.0) / 37_837.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let noise = Noise::new(7).stream(3);
        let draws: Vec<f64> = (0..100_000).map(|index| f64::from(noise.normal(index))).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn streams_and_seeds_differ() {
        let draws = [Noise::new(1).bits(0), Noise::new(2).bits(0), Noise::new(1).stream(1).bits(0)];
        assert!(draws[0] != draws[1] && draws[0] != draws[2] && draws[1] != draws[2]);
    }
}
