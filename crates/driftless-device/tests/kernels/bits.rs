//! Sets of elements.

use crate::abi::{CountArgs, FillArgs, MarkArgs};
use crate::shim::{BLOCK_SIZES, Grid, launch};
use crate::support::Rng;
use driftless_device::Bitset;

#[test]
fn ranges_and_indices_become_bits_and_are_counted() {
    let mut rng = Rng(21);
    for (seed, threads) in (0..).zip(BLOCK_SIZES) {
        let grid = Grid::new(threads, seed);
        for _ in 0..20 {
            let len = 1 + rng.below(3000) as usize;
            let [mut ours, mut theirs] = [Bitset::new(len), Bitset::new(len)];
            let (first, indices) =
                (rng.below(len as u64), (0..rng.below(200)).map(|_| rng.below(len as u64) as u32));
            let indices: Vec<u32> = indices.collect();
            let count = rng.below(len as u64 - first + 1);
            theirs.insert_range(first as usize..(first + count) as usize);
            theirs.insert_all(&indices);
            let words = 2 * ours.words().len() as u64;
            let bits = ours.words_mut().as_mut_ptr();
            launch("driftless_fill_bits", grid, &FillArgs { bits, first, count });
            let args = MarkArgs { bits, indices: indices.as_ptr(), count: indices.len() as u64 };
            launch("driftless_mark", grid, &args);
            assert_eq!(ours, theirs, "{first} {count} of {len}");
            let mut counted = 0;
            let args = CountArgs { bits: ours.words().as_ptr(), count: &raw mut counted, words };
            launch("driftless_count_bits", grid, &args);
            assert_eq!(counted, theirs.count());
        }
    }
}
