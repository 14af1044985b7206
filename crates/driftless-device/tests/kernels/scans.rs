//! The look-back by itself: over more tiles than a warp has lanes, which no launch of a few blocks comes to.

use crate::shim::{Grid, try_launch};

#[repr(C)]
struct LookBackArgs {
    states: *mut u64,
    before: *mut u64,
    tile: u32,
    aggregate: u32,
}

const AGGREGATE: u64 = 1 << 62;
const PREFIX: u64 = 2 << 62;

/// What a tile finds that lies before it, and what it says of itself.
fn looked_back(states: &mut [u64], tile: usize, aggregate: u32) -> Result<(u64, u64), String> {
    let mut before = u64::MAX;
    let args =
        LookBackArgs { states: states.as_mut_ptr(), before: &raw mut before, tile: tile as u32, aggregate };
    try_launch("probe_look_back", Grid { blocks: 1, threads: 32, seed: 3 }, &args)?;
    Ok((before, states[tile]))
}

#[test]
fn gp1_a_look_back_goes_over_any_number_of_tiles() {
    for tile in [0_usize, 1, 2, 31, 32, 33, 63, 64, 65, 100] {
        for known in [None, Some(0), Some(tile / 2), Some(tile.saturating_sub(1))] {
            let known = known.filter(|&known| known < tile);
            // Each tile has three and its own number; up to the known one, that is said in sum.
            let own = |tile: usize| 3 + tile as u64;
            let sum = |end: usize| (0..end).map(own).sum::<u64>();
            let mut states: Vec<u64> = (0..=tile).map(|place| AGGREGATE | own(place)).collect();
            if let Some(known) = known {
                // Whoever goes on behind a prefix counts what is there a second time.
                states[..known].fill(PREFIX | 999);
                states[known] = PREFIX | sum(known + 1);
            }
            states[tile] = 0;
            let (before, said) =
                looked_back(&mut states, tile, 7).expect("every tile before it has said something");
            assert_eq!((before, said), (sum(tile), PREFIX | (sum(tile) + 7)), "{tile} {known:?}");
        }
    }
}

#[test]
fn gp1_a_look_back_waits_for_a_tile_that_has_said_nothing() {
    let mut states = [PREFIX | 5, 0, AGGREGATE | 4, 0];
    let error = looked_back(&mut states, 3, 1).expect_err("nobody else runs");
    assert!(error.contains("wait"), "{error}");
    assert_eq!(states[3], AGGREGATE | 1, "what it has itself is said first");
}
