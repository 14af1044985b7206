//! BF16 bit patterns: casts from FP32, their line of steps, and the edges of their rounding cells.
//!
//! A *cell* is the set of FP32 numbers that a cast maps to the same BF16 bits: a run of consecutive floats.
//! - **BF-1 (edges).** The floats next to a cell on both sides cast to other bits, and every float between
//!   them casts to the cell's own. -0.0 and +0.0 are different floats here, and each other's neighbors.
//! - **BF-2 (order).** [`key`] grows by one from each BF16 pattern to the next larger one.

const SIGN: u32 = 0x8000_0000;
/// The least magnitude that a cast maps to infinity: cells below it are finite.
pub const INFINITY_CELL: f32 = f32::from_bits(0x7f7f_8000);

/// How a trainer turns FP32 masters into the BF16 bits that it serves; part of its family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cast {
    /// To nearest, ties to even; every NaN becomes `0xFFFF`.
    #[default]
    NearestEven,
    /// To nearest, ties away from zero, as a master stored as BF16 plus a signed 16-bit remainder does.
    HalfAway,
}

impl Cast {
    /// The BF16 bits of `x` under this cast; every NaN becomes `0xFFFF`.
    #[inline]
    #[must_use]
    pub const fn bits(self, x: f32) -> u16 {
        if x.is_nan() {
            return 0xFFFF;
        }
        let magnitude = x.to_bits() & !SIGN;
        (((x.to_bits() & SIGN) | self.middle(magnitude)) >> 16) as u16
    }

    /// The first floats outside the cell of `x`; for NaN, and in the cells of the infinities, they mean nothing.
    #[inline]
    #[must_use]
    pub const fn edges(self, x: f32) -> CellEdges {
        let sign = x.to_bits() & SIGN;
        let middle = self.middle(x.to_bits() & !SIGN);
        let (far_reach, near_reach) = self.reach(middle);
        let far = f32::from_bits(sign | middle.wrapping_add(far_reach));
        // BF-1: toward zero from a zero lies the zero of the other sign.
        let near = if middle == 0 { sign ^ SIGN } else { sign | middle.wrapping_sub(near_reach) };
        let near = f32::from_bits(near);
        if sign == 0 { CellEdges { above: far, below: near } } else { CellEdges { above: near, below: far } }
    }

    /// The first floats outside the cells of all BF16 patterns within `steps` of that of `x` on their line; none if
    /// that runs into an infinity.
    #[must_use]
    pub fn edges_around(self, x: f32, steps: u16) -> Option<CellEdges> {
        let place = key(self.bits(x));
        let [low, high] = [place.checked_sub(steps)?, place.checked_add(steps)?].map(unkey);
        // The cell of an infinity, and NaN beyond it, have no float outside.
        let is_finite = |bits: u16| widen(bits).is_finite();
        let edges = |bits| self.edges(widen(bits));
        (is_finite(low) && is_finite(high))
            .then(|| CellEdges { above: edges(high).above, below: edges(low).below })
    }

    /// The magnitude of the BF16 value that `magnitude` rounds to, as FP32 bits.
    #[inline]
    const fn middle(self, magnitude: u32) -> u32 {
        let half = match self {
            Self::NearestEven => 0x7fff + ((magnitude >> 16) & 1),
            Self::HalfAway => 0x8000,
        };
        magnitude.wrapping_add(half) & 0xffff_0000
    }

    /// How far from a cell's middle its neighbors lie, away from zero and toward zero, in floats.
    #[inline]
    const fn reach(self, middle: u32) -> (u32, u32) {
        match self {
            Self::NearestEven => {
                let reach = 0x8001 - ((middle >> 16) & 1);
                (reach, reach)
            }
            Self::HalfAway => (0x8000, 0x8001),
        }
    }
}

/// The floats just outside a rounding cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellEdges {
    /// The first float above the cell.
    pub above: f32,
    /// The first float below the cell.
    pub below: f32,
}

/// The served bits of `x`: nearest-even, every NaN becomes `0xFFFF`.
#[inline]
#[must_use]
pub const fn cast(x: f32) -> u16 {
    Cast::NearestEven.bits(x)
}

/// The FP32 value of a BF16 pattern, exactly.
#[inline]
#[must_use]
pub const fn widen(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The place of a BF16 pattern on the line of all patterns: a step is the difference of two keys.
#[inline]
#[must_use]
pub const fn key(bits: u16) -> u16 {
    if bits & 0x8000 == 0 { bits ^ 0x8000 } else { bits ^ 0xffff }
}

/// The BF16 pattern at a place on the line: the inverse of [`key`].
#[inline]
#[must_use]
pub const fn unkey(place: u16) -> u16 {
    if place & 0x8000 == 0 { place ^ 0xffff } else { place ^ 0x8000 }
}

/// The edges of the cell of `x` under [`cast`].
#[inline]
#[must_use]
pub const fn cell_edges(x: f32) -> CellEdges {
    Cast::NearestEven.edges(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The float just below, where -0.0 comes just below +0.0.
    fn before(x: f32) -> f32 {
        if x.to_bits() == 0 { -0.0 } else { x.next_down() }
    }

    fn after(x: f32) -> f32 {
        if x.to_bits() == SIGN { 0.0 } else { x.next_up() }
    }

    #[test]
    fn casts_round_ties_and_keep_nan_apart() {
        assert_eq!(cast(1.0), 0x3f80);
        assert_eq!(cast(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(cast(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(Cast::HalfAway.bits(f32::from_bits(0x3f80_8000)), 0x3f81);
        assert_eq!(cast(f32::MAX), 0x7f80);
        assert_eq!(cast(-0.0), 0x8000);
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)] {
            assert_eq!([cast(nan), Cast::HalfAway.bits(nan)], [0xFFFF; 2]);
        }
        assert_eq!([cast(INFINITY_CELL), cast(INFINITY_CELL.next_down())], [0x7f80, 0x7f7f]);
    }

    #[test]
    fn every_pattern_survives_widening() {
        for bits in 0..=u16::MAX {
            let wide = widen(bits);
            let kept = if wide.is_nan() { 0xFFFF } else { bits };
            assert_eq!([cast(wide), Cast::HalfAway.bits(wide)], [kept; 2]);
        }
    }

    #[test]
    fn bf1_edges_enclose_exactly_the_cell() {
        for rounding in [Cast::NearestEven, Cast::HalfAway] {
            for bits in (0..0x7f80).chain(0x8000..0xff80) {
                let CellEdges { above, below } = rounding.edges(widen(bits));
                assert_ne!(rounding.bits(above), bits, "above {bits:04x}");
                assert_ne!(rounding.bits(below), bits, "below {bits:04x}");
                for inside in [before(above), after(below)] {
                    assert_eq!(rounding.bits(inside), bits, "cell {bits:04x}");
                    let edges = rounding.edges(inside);
                    assert_eq!(edges.above.to_bits(), above.to_bits());
                    assert_eq!(edges.below.to_bits(), below.to_bits());
                }
            }
        }
    }

    #[test]
    fn bf2_keys_follow_the_order_of_values() {
        let line = (0x8000..=0xff80).rev().chain(0..=0x7f80);
        assert!(line.map(key).is_sorted_by(|a, b| a + 1 == *b));
        assert_eq!(key(0).wrapping_sub(key(0x8000)), 1);
        assert!((0..=u16::MAX).all(|bits| unkey(key(bits)) == bits));
    }

    #[test]
    fn bf1_edges_around_enclose_the_neighbors_of_a_cell() {
        for rounding in [Cast::NearestEven, Cast::HalfAway] {
            for bits in (0..0x7f80).step_by(13).chain((0x8000..0xff80).step_by(17)) {
                for steps in [0, 1, 31] {
                    let Some(CellEdges { above, below }) = rounding.edges_around(widen(bits), steps) else {
                        assert!(bits & 0x7fff > 0x7f7f - steps, "{bits:04x} is far from the infinities");
                        continue;
                    };
                    let distance = |x: f32| key(rounding.bits(x)).abs_diff(key(bits));
                    assert_eq!([distance(above), distance(below)], [steps + 1; 2], "{bits:04x}");
                    assert_eq!([distance(before(above)), distance(after(below))], [steps; 2], "{bits:04x}");
                }
            }
            for odd in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                assert_eq!(rounding.edges_around(odd, 1), None);
            }
        }
    }
}
