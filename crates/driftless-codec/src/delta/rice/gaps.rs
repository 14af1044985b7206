//! One list of positions as Rice-coded gaps: a plane of low bits and a plane of unary quotients.

use super::bits::{PlaneWriter, bits_at, is_padded, ones, plane_bytes};
use super::block::{BlockFault, ListName, MAX_K};
use driftless_types::index_of;

/// How a list is coded, and what its unary plane takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GapCode {
    /// How many positions.
    pub(crate) count: u32,
    /// Bits of each gap in the plane of low bits.
    pub(crate) k: u8,
    /// Bytes of the unary plane.
    pub(crate) unary_bytes: u32,
}

impl GapCode {
    /// The code of positions that rise strictly, in a block of at most 2^20 elements.
    pub(crate) fn of(positions: &[u32]) -> Self {
        let Some(&last) = positions.last() else { return Self::default() };
        let count = u32::try_from(positions.len()).expect("at most 2^20 positions");
        // All gaps are the positions below the last one that are not in the list.
        let k = best_k(u64::from(last - (count - 1)), u64::from(count));
        let quotients: u64 = gaps(positions).map(|gap| u64::from(gap >> k)).sum();
        let unary_bytes = plane_bytes(quotients + u64::from(count));
        Self { count, k, unary_bytes: u32::try_from(unary_bytes).expect("at most 2^21 bits") }
    }

    /// Bytes of the plane of low bits.
    pub(crate) fn low_bytes(self) -> u64 {
        plane_bytes(self.low_bits())
    }

    fn low_bits(self) -> u64 {
        u64::from(self.count) * u64::from(self.k)
    }

    /// Appends both planes.
    pub(crate) fn write(self, positions: &[u32], out: &mut Vec<u8>) {
        let mut low = PlaneWriter::new(out);
        gaps(positions).for_each(|gap| low.put(gap & ((1 << self.k) - 1), self.k.into()));
        low.finish();
        let mut unary = PlaneWriter::new(out);
        gaps(positions).for_each(|gap| unary.put_unary(gap >> self.k));
        unary.finish();
    }

    /// Reads the positions, which must lie below `elements`. `k` and the lengths of the planes were checked.
    pub(crate) fn read(
        self,
        list: ListName,
        low: &[u8],
        unary: &[u8],
        elements: u32,
    ) -> Result<Vec<u32>, BlockFault> {
        debug_assert!(self.k <= MAX_K && low.len() as u64 == self.low_bytes());
        if !is_padded(low, self.low_bits()) {
            return Err(BlockFault::Padding { list });
        }
        let found = unary.iter().map(|byte| byte.count_ones()).sum();
        if found != self.count {
            return Err(BlockFault::Quotients { list, found, expected: self.count });
        }
        // The last quotient ends in the last byte, so nothing follows it.
        if unary.last() == Some(&0) {
            return Err(BlockFault::Padding { list });
        }
        let mut lows = 0;
        // There is a one in memory for each of them.
        let mut positions = Vec::with_capacity(index_of(self.count.into()));
        for (index, one) in (0..).zip(ones(unary)) {
            lows += u64::from(bits_at(low, index * u64::from(self.k), self.k.into()));
            // At most 2^27 quotients of 2^20 each, 2^20 low parts of as much: far below 2^64.
            let found = ((one - index) << self.k) + lows + index;
            let position = u32::try_from(found).ok().filter(|&position| position < elements);
            positions.push(position.ok_or(BlockFault::OutOfRange { list, found, elements })?);
        }
        Ok(positions)
    }
}

/// The smallest k with 2^(k+1) > 0.6931 * mean gap + 0.5: within a few thousandths of the best one.
fn best_k(sum_of_gaps: u64, count: u64) -> u8 {
    let right = 6931 * sum_of_gaps + 5000 * count;
    (0..MAX_K).find(|&k| (count * 10_000) << (k + 1) > right).unwrap_or(MAX_K)
}

/// What lies between the positions of a list, and before the first.
fn gaps(positions: &[u32]) -> impl Iterator<Item = u32> {
    let next = std::iter::once(0).chain(positions.iter().map(|&position| position + 1));
    positions.iter().zip(next).map(|(&position, next)| position - next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k_follows_the_mean_gap() {
        // 0.6931 * mean + 0.5 against 2, 4, 8 ... 2^20.
        let table = [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (99, 6), (1000, 9), (1 << 20, 19)];
        for (mean, k) in table {
            assert_eq!(best_k(mean, 1), k, "mean gap {mean}");
            assert_eq!(best_k(1000 * mean, 1000), k, "mean gap {mean}");
        }
    }

    #[test]
    fn positions_come_back_with_any_k() {
        let positions = [0, 1, 5, 200, 201, 70_000, (1 << 20) - 1];
        for k in 0..=MAX_K {
            let quotients: u32 = gaps(&positions).map(|gap| gap >> k).sum();
            let code = GapCode { count: 7, k, unary_bytes: (quotients + 7).div_ceil(8) };
            let mut out = Vec::new();
            code.write(&positions, &mut out);
            let (low, unary) = out.split_at(usize::try_from(code.low_bytes()).unwrap());
            assert_eq!(unary.len(), usize::try_from(code.unary_bytes).unwrap());
            assert_eq!(code.read(ListName::A, low, unary, 1 << 20), Ok(positions.to_vec()));
            assert_eq!(
                code.read(ListName::A, low, unary, (1 << 20) - 1).unwrap_err().to_string(),
                "position 1048575 of list A lies outside of its 1048575 elements"
            );
        }
    }
}
